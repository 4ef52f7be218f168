"""An upgrade redoes what it can change, and nothing else: code and packages as each stage reaches them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from benchmarks.pipeline.stale_code import (
    COMMAND,
    PACKAGES,
    PDF,
    USERS,
    copy_product,
    python,
    reached_from,
    reasons,
    release,
    write_users_stages,
)

# Stages of ours, by source; engines that need no compiled kernels.
OURS = """
  texts: {jsonl: {path: texts.jsonl}, stages: [sample: {rate: 1.0}]}
  pages: {html: {path: pages}, stages: [extract: {name: by_resiliparse, engine: resiliparse}]}
  by_trafilatura: {html: {path: pages}, stages: [extract: {name: otherwise, engine: trafilatura}]}
  files: {pdf: {path: pages}, stages: [extract: {name: of_files, engine: plain}]}
"""
HOMES = {
    "texts": "gristmill.stages.sample",
    "pages": "gristmill.stages.extract.stage",
    "by_trafilatura": "gristmill.stages.extract.stage",
    "files": "gristmill.stages.extract.stage",
}
Edit = Callable[[Path], None]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the product, users' stages, and a finished run of them and some of ours."""
    folder = tmp_path_factory.mktemp("stale")
    copy_product(folder / "lib")
    (folder / "pages").mkdir()
    (folder / "pages" / "a.html").write_text("<html><body><p>Some text of a page.</p></body></html>")
    (folder / "pages" / "a.pdf").write_bytes(PDF)
    (folder / "r.yaml").write_text(f"name: r\nsources:\n{write_users_stages(folder)}{OURS}")
    path = [folder / "lib", folder]
    python(COMMAND, "run", folder / "r.yaml", "--out", folder / "out", "--workers", "1", path=path)
    return folder


@pytest.fixture
def edit() -> Iterator[Edit]:
    """Adds a statement to a file, until the test ends."""
    before: dict[Path, str] = {}

    def add_statement(path: Path) -> None:
        before[path] = path.read_text()
        path.write_text(before[path] + "\nEDITED = 1\n")

    yield add_statement
    for path, source in before.items():
        path.write_text(source)


def redone(folder: Path, *before: Path) -> dict[str, str]:
    """Segments that `plan`, in another process, would run again, with its reasons; all others are up to date."""
    why = reasons(folder / "r.yaml", folder / "out", [*before, folder / "lib", folder])
    assert why.keys() == {*USERS, *HOMES}
    return {name: reason for name, reason in why.items() if reason != "up to date"}


def reaching(folder: Path, *kernels: str) -> set[str]:
    """Segments whose stages import a kernel at any depth, by a walk over import statements."""
    begins = {name: [home] for name, home in HOMES.items()}
    begins |= {name: [*modules, "gristmill.stages.stage"] for name, (_, _, modules) in USERS.items()}
    return {name for name, modules in begins.items() if reached_from(modules, folder / "lib") & {*kernels}}


def test_an_upgrade_redoes_the_stages_that_reach_the_code_however_they_do_and_names_it(done: Path, edit: Edit) -> None:
    kernels = ("words.token_rules", "urls.urls", "html.text", "language.pooled_terms", "repair.mojibake")
    for kernel in kernels:
        edit(done / "lib" / "gristmill" / "kernels" / f"{kernel.replace('.', '/')}.py")
    edit(done / "counting_urls.py")
    found = redone(done)
    assert found.keys() == reaching(done, *(f"gristmill.kernels.{kernel}" for kernel in kernels))
    assert found == {
        "by_name": "changed: kernels/words/token_rules.py",
        "lazily": "changed: kernels/html/text.py",
        "by_class": "changed: kernels/repair/mojibake.py",
        "by_string": "changed: kernels/language/pooled_terms.py, kernels/words/token_rules.py",
        "by_helper": "changed: counting_urls.py, kernels/urls/urls.py",
        **dict.fromkeys(("pages", "by_trafilatura", "files"), "changed: kernels/html/text.py"),
    }


def test_an_upgrade_of_packages_redoes_the_stages_whose_settings_and_inputs_reach_them(
    done: Path, tmp_path: Path
) -> None:
    for package in PACKAGES:
        release(tmp_path, package, "99")
    assert redone(done, tmp_path) == {
        "by_trafilatura": f"changed: trafilatura {version('trafilatura')} -> 99",
        "files": f"changed: pypdfium2 {version('pypdfium2')} -> 99",
        # what a user's stage asks of `gristmill.extract`, nobody knows
        "lazily": f"changed: pypdfium2 {version('pypdfium2')} -> 99, trafilatura {version('trafilatura')} -> 99",
    }
