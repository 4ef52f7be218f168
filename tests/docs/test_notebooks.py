"""The notebooks of the book are worked through, cell by cell, and show what is stored in them."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from gristmill.pipeline.ablate import workers
from tests.docs.pages import ROOT
from tests.docs.test_code_in_docs import calls_checked
from tests.pipeline.engine.here import work_here

TORCH = {"read_an_ablation": ("torch", "scipy"), "train_a_judge": ("sklearn",)}
NAMES = ("look_at_a_crawl", "tune_a_threshold", "train_a_judge", "mix_and_pack", "read_an_ablation")
LONGEST_STORED = 60_000  # bytes of a notebook


@pytest.fixture(scope="module")
def module() -> ModuleType:
    source = importlib.util.spec_from_file_location("notebooks", ROOT / "docs" / "site" / "notebooks.py")
    assert source is not None and source.loader is not None
    sys.modules["notebooks"] = made = importlib.util.module_from_spec(source)
    source.loader.exec_module(made)
    assert sorted(made.WORKED) == sorted(made.ORDER) == sorted(NAMES)
    assert {path.stem for path in made.FOLDER.glob("*.ipynb")} == {*NAMES}
    return made


@pytest.fixture(scope="module")
def shown(module: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[str]]]:
    """What cells show, by notebook: all in one folder, in which the run that three of them begin with is done once."""
    folder = tmp_path_factory.mktemp("notebooks")
    with pytest.MonkeyPatch.context() as patch:
        work_here(patch)
        patch.setattr(workers, "cores_here", lambda: 1)  # threads that wait for each other cost more than they bring
        for name in module.WORKED:
            for package in TORCH.get(name, ()):
                pytest.importorskip(package)
        yield {name: module.work(name, folder) for name in module.WORKED}


def words_of(text: str) -> list[str]:
    """The first line without its numbers, which depend on versions: texts of the demo are docstrings of Python's."""
    first = text.strip().split("\n")[0]
    return re.findall(r"[A-Za-z_]{3,}", re.sub(r"\b[0-9a-f]{16}\b", "", first))


@pytest.mark.parametrize("name", NAMES)
def test_cells_show_what_is_stored(name: str, module: ModuleType, shown: dict[str, list[str]]) -> None:
    stored = module.stored(name)
    assert len(stored) == len(shown[name]) >= 5 and sum(map(bool, stored)) >= 4
    for before, now in zip(stored, shown[name], strict=True):
        assert bool(before) == bool(now) and words_of(before) == words_of(now)


def test_what_the_prose_says_of_them_holds(shown: dict[str, list[str]]) -> None:
    assert "as predicted" in shown["tune_a_threshold"][-1]
    assert "{'pages': '70.0%', 'stories': '30.0%'}" in shown["mix_and_pack"]
    assert "adopt" in shown["read_an_ablation"][-1] and "inconclusive" in shown["read_an_ablation"][-1]
    good, bad = ast.literal_eval(next(text for text in shown["train_a_judge"] if text.startswith("[")))
    assert good > 0.7 > bad


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_one_that_jupyter_opens(name: str, module: ModuleType) -> None:
    path: Path = module.FOLDER / f"{name}.ipynb"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5) and path.stat().st_size < LONGEST_STORED
    identities = [cell["id"] for cell in notebook["cells"]]
    assert len(set(identities)) == len(identities) and all(re.fullmatch(r"[\w-]{1,64}", each) for each in identities)
    for cell in notebook["cells"]:
        needed = {"cell_type", "id", "metadata", "source"}
        more = {"outputs", "execution_count"} if cell["cell_type"] == "code" else set()
        assert {*cell} == needed | more
    code = [module.source_of(cell) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert calls_checked("\n".join(code)) >= 1
    prose = [module.source_of(cell) for cell in notebook["cells"] if cell["cell_type"] == "markdown"]
    assert prose[0].startswith("# ") and max(len(line) for text in prose for line in text.split("\n")) <= 120


def test_a_page_has_the_prose_the_code_and_what_it_showed(module: ModuleType) -> None:
    page = module.page("tune_a_threshold")
    assert "# Tune a threshold" in page and 'run.signal("words")' in page and "← gopher_quality.min_words 50" in page
    assert page.index('run.signal("words")') < page.index("← gopher_quality.min_words 50")
