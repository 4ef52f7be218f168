"""`--limit` reads at most as many documents as were asked for, `--sample` about the share; what is read never hangs on
the workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from gristmill.pipeline.engine.cluster import Where
from gristmill.pipeline.inputs import files as inputs
from gristmill.pipeline.inputs.portion import Portion, find_inputs
from gristmill.pipeline.progress.progress import Quiet
from gristmill.pipeline.recipe import recipe as recipes
from gristmill.pipeline.run.run import run
from gristmill.pipeline.store.storage import Store
from tests.pipeline.engine.here import work_here
from tests.pipeline.runs import lines, save, written

RECIPE = "name: some\nsources:\n  a: {jsonl: {path: in}}\nstages: [write]\n"


def made(folder: Path, documents: list[int]) -> Path:
    """A file of each number of documents."""
    for file, count in enumerate(documents):
        lines(folder / f"in/{file}.jsonl", [f"document {n} of file {file}" for n in range(count)])
    return save(folder / "some.yaml", RECIPE)


@pytest.mark.parametrize(
    ("documents", "limit", "taken"),
    [
        ([50, 50, 50], 60, 60),
        ([3, 50, 50], 60, 43),  # the small file gives what it has
        ([3, 50, 50], 1000, 103),
        ([2] * 40, 50, 50),  # over more parts where they are small
        ([1] * 40, 40, 40),
        ([2] * 40, 5, 5),
    ],
)
def test_a_limit_is_shared_over_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, documents: list[int], limit: int, taken: int
) -> None:
    work_here(monkeypatch)
    loaded, kept = recipes.load(made(tmp_path, documents)), []
    for workers in (1, 7):
        out = tmp_path / f"out{workers}"
        summary = run(loaded, str(out), Where(workers), Quiet(), Portion(documents=limit))
        kept.append(written(out))
        assert summary.record.stages[0].count.kept == len(kept[-1]) == len(set(kept[-1])) == taken
        again = run(loaded, str(out), Where(workers), Quiet(), Portion(documents=limit))
        assert again.worked == 0 and written(out) == kept[-1]
    assert kept[0] == kept[1]


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_a_sample_is_about_as_large_as_was_asked_for(tmp_path: Path, share: float) -> None:
    path = made(tmp_path, [])
    for file in range(2):
        lines(tmp_path / f"in/{file}.jsonl", ["x" * 1000] * 10_000)
    [taken] = find_inputs(
        recipes.load(path), Store(str(tmp_path / "out")), Portion(share=share), remember=False
    ).values()
    read = sum((span.end or span.file.size) - span.start for spans, _ in taken.parts for span in spans)
    assert read / taken.bytes == pytest.approx(share, rel=0.2)
    [whole] = find_inputs(recipes.load(path), Store(str(tmp_path / "out")), Portion(share=1.0), remember=False).values()
    assert sum((span.end or span.file.size) - span.start for spans, _ in whole.parts for span in spans) == whole.bytes


def test_what_is_not_taken_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few documents of a large crawl: the rest of it is not hashed first."""
    path, read = made(tmp_path, [2] * 40), []
    opened = inputs.open_input
    monkeypatch.setattr(
        "gristmill.pipeline.inputs.files.open_input", lambda address: read.append(address) or opened(address)
    )
    [few] = find_inputs(recipes.load(path), Store(str(tmp_path / "out")), Portion(documents=5), remember=False).values()
    assert len(read) == len(few.parts) == 5 and all(file.content for file in few.read)
    [whole] = find_inputs(recipes.load(path), Store(str(tmp_path / "out")), Portion(), remember=False).values()
    assert {file.path: file.content for file in few.read}.items() <= {
        file.path: file.content for file in whole.read
    }.items()
