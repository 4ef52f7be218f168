"""Which documents survive depends on the inputs and the settings alone: not on workers, parts, order, batches or hash
seeds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline.runs import go, save, shared_texts, written

pytestmark = pytest.mark.run

FILES = [f"f{n}.jsonl" for n in range(6)]


def recipe(folder: Path, parts: str, path: str = "in") -> Path:
    return save(
        folder / "r.yaml",
        f"name: r\nparts: {{{parts}}}\nsources:\n  a: {{jsonl: {{path: {path}}}}}\nstages:\n  - exact_dedup\n  - write\n",
    )


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, str]]:
    folder = tmp_path_factory.mktemp("usual")
    shared_texts(folder / "in")
    go(recipe(folder, "files: 1"), folder / "out")
    found = written(folder / "out")
    assert len(found) == len({text for _, text in found}) == 33
    return found


@pytest.mark.parametrize("parts", ["files: 50", "files: 2, batch_bytes: 40", "files: 1, max_bytes: 60"])
def test_parts_batches_and_splits_do_not_matter(tmp_path: Path, usual: list[tuple[int, str]], parts: str) -> None:
    shared_texts(tmp_path / "in")
    go(recipe(tmp_path, parts), tmp_path / "out", workers=2)
    assert written(tmp_path / "out") == usual


def test_the_order_of_files_does_not_matter(tmp_path: Path, usual: list[tuple[int, str]]) -> None:
    shared_texts(tmp_path / "made")
    (tmp_path / "in").mkdir()
    for name in reversed(FILES):
        (tmp_path / "made" / name).rename(tmp_path / "in" / name)
    listed = f"[{', '.join(f'in/{n}' for n in (FILES[3:] + FILES[:3]))}]"
    go(recipe(tmp_path, "files: 50", listed), tmp_path / "out")
    assert written(tmp_path / "out") == usual


def test_the_hash_seed_does_not_matter(tmp_path: Path, usual: list[tuple[int, str]]) -> None:
    shared_texts(tmp_path / "in")
    for seed in ("0", "4711"):
        command = [
            sys.executable,
            "-m",
            "gristmill.pipeline.cli.app",
            "run",
            str(recipe(tmp_path, "files: 1")),
            "--out",
            str(tmp_path / seed),
        ]
        subprocess.run(
            [*command, "--workers", "1"], env=os.environ | {"PYTHONHASHSEED": seed}, check=True, capture_output=True
        )
        assert written(tmp_path / seed) == usual
