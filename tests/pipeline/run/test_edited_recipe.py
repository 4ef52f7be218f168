"""A recipe is edited and run again in the same folder: all that a run leaves is what a fresh folder has."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from gristmill.pipeline.cli.maintain_verify import check_files
from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.look.tune import tune
from gristmill.pipeline.store.storage import Store
from tests.pipeline.runs import go, lines, save, sentences

HEAD = "name: edited\nsources:\n  a: {jsonl: {path: in}}\nstages:\n"
RULE = "gopher_quality: {min_words: 12, min_stop_words: 0}"
OTHER = "keep_languages: {languages: [en], at_least: 0}"
LANGUAGES = "keep_languages: {name: second, languages: [en], at_least: 0}"
EDITS = {
    "a rule above the deduplication": (("exact_dedup", RULE, "write"), (RULE, "exact_dedup", "write")),
    "a rule before a rule": (("exact_dedup", RULE, "write"), ("exact_dedup", OTHER, RULE, "write")),
    "a rule of its own segment into another": (
        (OTHER, "exact_dedup", LANGUAGES, RULE, "write"),
        (OTHER, "exact_dedup", RULE, LANGUAGES, "write"),
    ),
    "a rule below the deduplication": ((RULE, "exact_dedup", "write"), ("exact_dedup", RULE, "write")),
    "a rule goes": ((OTHER, "exact_dedup", RULE, "write"), (OTHER, "exact_dedup", "write")),
}


def run_all(folder: Path, out: str, *recipes: str) -> Path:
    for recipe in recipes:
        go(save(folder / "r.yaml", recipe), folder / out)
    return folder / out


def texts_in(out: Path) -> list[str]:
    return sorted(text for path in out.glob("write/*.parquet") for text in pq.read_table(path)["text"].to_pylist())


@pytest.mark.parametrize("keep", ["signals", "nothing"])
@pytest.mark.parametrize("stages", [(RULE, "write"), (RULE, "exact_dedup", "write"), ("exact_dedup", RULE, "write")])
def test_a_folder_that_kept_less_has_all_again(tmp_path: Path, keep: str, stages: tuple[str, ...]) -> None:
    lines(tmp_path / "in/x.jsonl", sentences(random.Random(4), 60, 40))
    whole = HEAD + "".join(f"  - {stage}\n" for stage in stages)
    out = run_all(tmp_path, "out", f"keep: {keep}\n{whole}", whole, whole)
    fresh = run_all(tmp_path, "fresh", whole)
    assert notes_in(out) == notes_in(fresh) and len(texts_in(out)) > 20 and texts_in(out) == texts_in(fresh)
    assert tune(RunFolder(out), ["gopher_quality.min_words=20"]).sources.keys() == {"a"}
    back = run_all(tmp_path, "out", f"keep: {keep}\n{whole}")
    assert texts_in(back) == texts_in(fresh) and check_files(Store(str(back))).faults == []


@pytest.mark.parametrize("keep", ["all", "signals", "nothing"])
def test_an_edit_above_buckets_where_some_parts_stay_as_they_are(tmp_path: Path, keep: str) -> None:
    chance = random.Random(6)
    shared = sentences(chance, 10, 80)
    for number, least in enumerate((12, 12, 70)):  # nothing of the last file goes by the edit
        lines(tmp_path / f"in/{number}.jsonl", [t for t in sentences(chance, 90, 120) if t.count(" ") > least] + shared)
    recipe = (
        f"keep: {keep}\n{HEAD}  - gopher_quality: {{min_words: LEAST, min_stop_words: 0}}\n"
        "  - substring_dedup: {tokens: 10}\n  - text_signals\n"
        "  - quantile_buckets: {by: [mtld], buckets: 4, tiers: {low: 2, high: 4}}\n  - write\n"
    ).replace("sources:", "parts: {files: 1, small_file: 0}\nsources:")
    edited = [recipe.replace("LEAST", str(least)) for least in (12, 40, 60, 12)]
    out = run_all(tmp_path, "out", *edited, edited[1])
    assert len(texts_in(out)) > 50 and texts_in(out) == texts_in(run_all(tmp_path, "fresh", edited[1]))


def notes_in(out: Path) -> dict[str, bytes]:
    """What segments say of themselves, but for times and the segment that a file was first made for."""
    found = {
        path.relative_to(out).as_posix(): re.sub(rb'"partitions/[^/"]+/', b'"partitions/', path.read_bytes())
        for pattern in ("partitions/*/rules.json", "partitions/*/survey.json")
        for path in sorted(out.glob(pattern))
    }
    return found | {path.relative_to(out).as_posix(): b"" for path in sorted(out.glob("partitions/*/manifest.json"))}


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
        asked = [tune(RunFolder(tmp_path / out), ["gopher_quality.min_words=20"]) for out in ("out", "fresh")]
        counts = [{name: vars(source) for name, source in answer.sources.items()} for answer in asked]
        assert counts[0] == counts[1] and counts[0]["a"]
    assert check_files(Store(str(tmp_path / "out"))).faults == []
    go(before, tmp_path / "out")
    go(before, tmp_path / "first")
    assert notes_in(tmp_path / "out") == notes_in(tmp_path / "first")
