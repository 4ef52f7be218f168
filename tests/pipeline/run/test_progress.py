"""What a run says of itself while it goes on, and of the whole after a part of it."""

from __future__ import annotations

import io
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from gristmill.pipeline.engine.cluster import Where
from gristmill.pipeline.progress.terminal import Events, Lines, LiveView, final_table, ui_for
from gristmill.pipeline.recipe import recipe as recipes
from gristmill.pipeline.run.estimate import estimate
from gristmill.pipeline.run.run import run
from gristmill.pipeline.store.run_records import RunRecord
from tests.pipeline.engine.here import work_here
from tests.pipeline.runs import lines, save


def test_a_document_is_read_once_however_many_segments_it_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_here(monkeypatch)
    for file in range(3):
        lines(tmp_path / f"in/{file}.jsonl", [f"document {n} of file {file}" for n in range(7)])
    text = "name: a\nsources: {a: {jsonl: {path: in}}}\nstages: [exact_dedup, text_signals, {sample: {rate: 1.0}}, write]\n"
    view = LiveView(Console(file=io.StringIO()))
    run(recipes.load(save(tmp_path / "a.yaml", text)), str(tmp_path / "out"), Where(1), view)
    assert view.facts is not None and view.facts().documents == 42
    view.console.print(view.view())
    assert "21 documents read" in cast(io.StringIO, view.console.file).getvalue()


def test_a_log_hears_of_a_long_run_once_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    work_here(monkeypatch)
    for file in range(9):
        lines(tmp_path / f"in/{file}.jsonl", [f"document {n} of file {file}" for n in range(7)])
    text = "name: a\nparts: {files: 1}\nsources: {a: {jsonl: {path: in}}}\nstages: [exact_dedup, write]\n"
    asked = recipes.load(save(tmp_path / "a.yaml", text))
    clock = count(0, 20)
    run(asked, str(tmp_path / "out"), Where(1), Lines(lambda: next(clock)))
    said = [line.split(" ", 2)[2] for line in capsys.readouterr().err.splitlines()]
    assert said[0].startswith("a: 3 of 9 parts; 21 documents read, ")
    assert any(line.startswith("exact_dedup: map, round 1; 63 documents read") for line in said)
    assert any(line.startswith("write: ") for line in said) and 6 <= len(said) <= 15
    run(asked, str(tmp_path / "again"), Where(1), Lines(lambda: 0.0))
    assert capsys.readouterr().err == ""
    screen = Console(file=io.StringIO())
    assert isinstance(ui_for(False, screen), Lines) and isinstance(ui_for(True, screen), Events)


def record(seconds: float, start: float) -> dict[str, Any]:
    read = {
        "name": "a",
        "stage": "jsonl",
        "kind": "read",
        "bytes_in": 10,
        "seconds": 4.0,
        "kept": 5,
        "peak_memory": 1,
        "sources": {"a": {"kept": 5}},
    }
    return {
        "stages": [read],
        "inputs": {"a": {"bytes": 100, "estimate": {"documents": 50, "low": 40, "high": 65}}},
        "seconds": seconds,
        "start": {"seconds": start},
    }


def test_the_whole_is_not_told_to_compile_again() -> None:
    assert estimate(RunRecord.from_json(record(5.0, 2.0)), workers=2).seconds == pytest.approx(3.0 + 20.0)
    assert estimate(RunRecord.from_json(record(45.0, 43.0)), workers=2).seconds == pytest.approx(3.0 + 20.0)


def test_each_source_is_scaled_by_its_own_estimate() -> None:
    parts = record(5.0, 2.0)
    small = {
        "name": "b",
        "stage": "jsonl",
        "kind": "read",
        "bytes_in": 50,
        "seconds": 1.0,
        "kept": 7,
        "peak_memory": 1,
        "sources": {"b": {"kept": 7}},
    }
    last = {
        "name": "write",
        "stage": "write",
        "kind": "sink",
        "seconds": 1.0,
        "kept": 9,
        "peak_memory": 1,
        "sources": {"a": {"kept": 3}, "b": {"kept": 6}},
    }
    parts["stages"] += [small, last]
    parts["inputs"]["b"] = {"bytes": 50, "estimate": {"documents": 7, "low": 7, "high": 7}}
    guess = estimate(RunRecord.from_json(parts), workers=2)
    assert (guess.documents, guess.low, guess.high, guess.kept, round(guess.share, 2)) == (57, 47, 72, 36, 0.4)
    assert "about 57 documents (47 to 72, right in 9 of 10 cases), 36 kept" in guess.in_words()
    last |= {"name": "blend", "stage": "mix", "settings": {"budget": 1e6}}
    last["sources"] = {"a": {"docs_in": 4, "kept": 3}, "b": {"docs_in": 7, "kept": 6}}
    drawn = estimate(RunRecord.from_json(parts), workers=2)
    assert (drawn.kept, drawn.drawn_by) == (47, "blend")  # 4 of 5 in 50, and 7
    assert ", 47 come to blend, whose budget says how many are kept, " in drawn.in_words()
    parts["inputs"]["b"]["estimate"] |= {"low": None, "high": None}
    assert (
        "about 57 documents (too little was read to say how sure)"
        in estimate(RunRecord.from_json(parts), workers=2).in_words()
    )


def test_the_table_of_a_run_fits_and_says_why_documents_went() -> None:
    def entry(name: str, kept: int, kind: str = "rule", **dropped: int) -> dict[str, Any]:
        counts = {"docs_in": 1_234_567, "kept": kept, "dropped": dropped, "quarantined": 1}
        return {"name": name, "kind": kind, "seconds": 1234.5, **counts}

    stages = [
        entry("crawl", 1_234_567, "read"),
        entry("c4_lines", 1_234_500, too_few_lines=67),
        entry("minhash_dedup", 617_283, near_duplicate=617_284),
    ]
    for width in (80, 120):
        console = Console(width=width, file=io.StringIO())
        with console.capture() as shown:
            console.print(
                final_table(RunRecord.from_json({"name": "r", "status": "done", "seconds": 1, "stages": stages}))
            )
        assert all(words in shown.get() for words in ("too_few_lines", "near_duplicate", "617,284"))
        assert max(map(len, shown.get().splitlines())) <= width
