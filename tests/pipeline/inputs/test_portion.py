"""`--limit` reads as many documents as were asked for, `--sample` about the share; what is read never hangs on the
workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from gristmill.pipeline.engine.cluster import Where
from gristmill.pipeline.inputs import files as inputs
from gristmill.pipeline.inputs.portion import Portion, find_inputs, key_of
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
    ("documents", "limit"),
    [
        ([3, 50, 50], 60),  # the small file cannot fill its share
        ([3, 50, 1, 2], 54),
        ([3, 50, 50], 103),
        ([3, 50, 50], 1000),
        ([2] * 40, 50),  # nor can the first sixteen
        ([2] * 40, 5),
        ([1] * 20 + [30, 40], 60),
    ],
)
def test_a_limit_is_reached_where_there_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, documents: list[int], limit: int
) -> None:
    work_here(monkeypatch)
    loaded, kept = recipes.load(made(tmp_path, documents)), []
    for workers in (1, 7):
        out = tmp_path / f"out{workers}"
        summary = run(loaded, str(out), Where(workers), Quiet(), Portion(documents=limit))
        kept.append(written(out))
        assert (
            summary.record.to_json()["stages"][0]["kept"]
            == len(kept[-1])
            == len(set(kept[-1]))
            == min(limit, sum(documents))
        )
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
    more = few.topped_up(20, {key_of("a", spans): 2 for spans, _ in few.parts})
    assert more is not None
    more = more.with_contents(Store(str(tmp_path / "out")), remember=False)
    assert len(read) == len(more.parts) == 10 and all(file.content for file in more.read)
    [whole] = find_inputs(recipes.load(path), Store(str(tmp_path / "out")), Portion(), remember=False).values()
    assert {file.path: file.content for file in more.read}.items() <= {
        file.path: file.content for file in whole.read
    }.items()
