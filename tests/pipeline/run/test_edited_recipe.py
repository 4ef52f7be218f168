"""A recipe is edited and run again in the same folder: all that a run leaves is what a fresh folder has."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from gristmill.pipeline.cli.upkeep import check_files
from gristmill.pipeline.look.tune import tune
from gristmill.pipeline.store.store import Store
from tests.pipeline.runs import go, lines, save, sentences

HEAD = "name: edited\nsources:\n  a: {jsonl: {path: in}}\nstages:\n"
RULE = "gopher_quality: {min_words: 12, min_stop_words: 0}"
OTHER = "keep_languages: {languages: [en], at_least: 0}"
LANGUAGES = "keep_languages: {name: second, languages: [en], at_least: 0}"
EDITS = {
    "a rule above the deduplication": (("exact_dedup", RULE, "write"), (RULE, "exact_dedup", "write")),
    "a rule before a rule": (("exact_dedup", RULE, "write"), ("exact_dedup", OTHER, RULE, "write")),
    "a rule of its own leg into another": (
        (OTHER, "exact_dedup", LANGUAGES, RULE, "write"),
        (OTHER, "exact_dedup", RULE, LANGUAGES, "write"),
    ),
    "a rule below the deduplication": ((RULE, "exact_dedup", "write"), ("exact_dedup", RULE, "write")),
    "a rule goes": ((OTHER, "exact_dedup", RULE, "write"), (OTHER, "exact_dedup", "write")),
}


def notes_in(out: Path) -> dict[str, bytes]:
    """What legs say of themselves, but for times and the leg that a file was first made for."""
    found = {
        path.relative_to(out).as_posix(): re.sub(rb'"legs/[^/"]+/', b'"legs/', path.read_bytes())
        for pattern in ("legs/*/rules.json", "legs/*/survey.json")
        for path in sorted(out.glob(pattern))
    }
    return found | {path.relative_to(out).as_posix(): b"" for path in sorted(out.glob("legs/*/manifest.json"))}


@pytest.mark.parametrize("edit", EDITS)
def test_a_stage_that_moves_leaves_nothing_where_it_was(tmp_path: Path, edit: str) -> None:
    texts = sentences(random.Random(4), 60, 40)
    lines(tmp_path / "in/x.jsonl", texts[:40])
    lines(tmp_path / "in/y.jsonl", texts[30:])
    before, after = (
        save(tmp_path / f"{name}.yaml", HEAD + "".join(f"  - {stage}\n" for stage in stages))
        for name, stages in zip(("before", "after"), EDITS[edit], strict=True)
    )
    go(before, tmp_path / "out")
    go(after, tmp_path / "out")
    go(after, tmp_path / "fresh")
    notes = notes_in(tmp_path / "out")
    assert len(notes) >= 2 and notes == notes_in(tmp_path / "fresh")
    if RULE in EDITS[edit][1]:
        asked = [tune(str(tmp_path / out), ["gopher_quality.min_words=20"]) for out in ("out", "fresh")]
        counts = [{name: vars(source) for name, source in answer.sources.items()} for answer in asked]
        assert counts[0] == counts[1] and counts[0]["a"]
    assert check_files(Store(str(tmp_path / "out"))).faults == []
    go(before, tmp_path / "out")
    go(before, tmp_path / "first")
    assert notes_in(tmp_path / "out") == notes_in(tmp_path / "first")
