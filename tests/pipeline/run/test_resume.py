"""Only what changed is done again, and what comes out is as if it had been done from the start."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gristmill.pipeline.errors import GristmillError
from gristmill.pipeline.recipe import fingerprint, recipe as recipes
from gristmill.pipeline.run.dry_run import foresee
from gristmill.pipeline.shuffle.shuffle import BUCKETS_FOR_WORK
from tests.pipeline.runs import go, lines, save, shared_texts, tree, written

RECIPE = "name: r\nparts: {files: 1}\nsources:\n  a: {jsonl: {path: in}}\nstages:\n  - exact_dedup\n  - sample: {rate: RATE}\n  - write\n"
MAPS = "name: r\nparts: {files: 1}\nsources:\n  a: {jsonl: {path: in}}\nstages:\n  - write\n"


def made(folder: Path, rate: str = "1.0") -> Path:
    return save(folder / "r.yaml", RECIPE.replace("RATE", rate))


def why(recipe: Path, out: Path) -> dict[str, str]:
    return {s.name: s.why for s in foresee(recipes.load(recipe), str(out))}


def test_a_second_run_does_nothing_and_a_new_file_only_its_share(tmp_path: Path) -> None:
    shared_texts(tmp_path / "in")
    recipe, out = made(tmp_path), tmp_path / "out"
    assert why(recipe, out) == {
        "a": "never run",
        "exact_dedup": "known after a",
        "sample": "known after exact_dedup",
    }
    first, anew = go(recipe, out)
    assert len(written(out)) == 6 * 5 + 3
    assert first.worked == sum(anew.values()) > 0 and anew["a", "stages"] == 6
    assert set(why(recipe, out).values()) == {"up to date"}
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.is_file() and p.name != ".lock"}
    second, anew = go(recipe, out)
    assert (second.worked, sum(anew.values())) == (0, 0)
    assert {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.is_file() and p.name != ".lock"} == before

    lines(tmp_path / "in" / "g.jsonl", ["shared 1 words", "a new text", "another"])
    assert why(recipe, out)["a"] == "1 new part"
    _, anew = go(recipe, out)
    assert anew["a", "stages"] == 1
    assert anew["exact_dedup", "map"] == 1
    assert anew["exact_dedup", "reduce"] >= BUCKETS_FOR_WORK and anew["exact_dedup", "drop"] > 0
    assert len(written(out)) == 6 * 5 + 3 + 2
    fresh = tmp_path / "fresh"
    go(recipe, fresh)
    assert tree(out) == tree(fresh)


def test_a_changed_setting_leaves_nothing_stale_and_going_back_gives_the_same_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared_texts(tmp_path / "in")
    out = tmp_path / "out"
    go(made(tmp_path), out)
    first = tree(out, "write", "partitions", "stages", "shuffle")
    half = made(tmp_path, "0.5")
    assert why(half, out) == {
        "a": "up to date",
        "exact_dedup": "up to date",
        "sample": "changed: settings of sample",
    }
    _, anew = go(half, out)
    assert set(anew) == {("sample", "stages")}
    assert "runs again: sample, write; changed: settings of sample" in capsys.readouterr().err
    assert 0 < len(written(out)) < 33
    names = {n for n in first if n.startswith("write/")}
    assert not names & set(tree(out, "write"))
    go(made(tmp_path), out)
    assert tree(out, "write", "partitions", "stages", "shuffle") == first


def test_what_runs_again_is_named_as_the_recipe_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The segment begins with a stage that the run inserted, which measures for the rule."""
    shared_texts(tmp_path / "in")
    recipe, text = tmp_path / "r.yaml", RECIPE.replace("sample: {rate: RATE}", "gopher_quality: {min_words: WORDS}")
    for words in "12":
        go(save(recipe, text.replace("WORDS", words)), tmp_path / "out")
    said = capsys.readouterr().err
    assert "runs again: gopher_quality; changed: settings of gopher_quality" in said
    assert why(recipe, tmp_path / "out").keys() == {"a", "exact_dedup", "text_signals"}


def test_what_is_kept_rests_on_files_that_were_made_anew_with_the_same_contents(tmp_path: Path) -> None:
    """More input does each drop of a deduplication again, and the parts of which it says the same are not judged again
    by the rule after it."""
    recipe, out = tmp_path / "r.yaml", tmp_path / "out"
    text = RECIPE.replace("RATE", "0.5").replace("  - write", "  - url_dedup: {prefer: [PREFERRED]}\n  - write")
    shared_texts(tmp_path / "in")
    save(recipe, text.replace("PREFERRED", "longest"))
    go(recipe, out)
    lines(tmp_path / "in" / "g.jsonl", ["a new text", "a new text"])
    _, anew = go(recipe, out)
    assert anew["exact_dedup", "drop"] > 1 and anew["sample", "rules"] == 1
    assert set(why(recipe, out).values()) == {"up to date"}
    save(recipe, text.replace("PREFERRED", "earliest"))
    _, anew = go(recipe, out)
    assert {node for node, _ in anew} == {"url_dedup"}


def test_a_part_that_was_deleted_is_made_again_and_no_other(tmp_path: Path) -> None:
    shared_texts(tmp_path / "in")
    recipe, out = made(tmp_path), tmp_path / "out"
    go(recipe, out)
    first = tree(out)
    sorted((out / "write").glob("*.parquet"))[0].unlink()
    assert why(recipe, out)["sample"] == "its files are gone (cleaned?)"
    _, anew = go(recipe, out)
    assert dict(anew) == {("sample", "stages"): 1}
    assert tree(out) == first and set(why(recipe, out).values()) == {"up to date"}


def test_a_removed_input_takes_its_output_along(tmp_path: Path) -> None:
    shared_texts(tmp_path / "in")
    recipe, out = save(tmp_path / "r.yaml", MAPS), tmp_path / "out"
    go(recipe, out)
    assert len(written(out)) == 6 * 8
    (tmp_path / "in" / "f0.jsonl").unlink()
    summary, _ = go(recipe, out)
    assert summary.worked == 0 and len(written(out)) == 5 * 8


def test_what_a_killed_run_wrote_and_did_not_note_does_not_stay(tmp_path: Path) -> None:
    shared_texts(tmp_path / "in")
    recipe, out = save(tmp_path / "r.yaml", MAPS), tmp_path / "out"
    go(recipe, out)
    (out / "journal" / "tasks.jsonl").unlink()  # as if the kill had come before the journal was written
    lines(tmp_path / "in" / "f0.jsonl", ["other words"])
    go(recipe, out)
    assert len(written(out)) == 5 * 8 + 1


def test_sources_join_where_they_say(tmp_path: Path) -> None:
    shared_texts(tmp_path / "in")
    lines(tmp_path / "b.jsonl", ["shared 1 words", "only b"])
    lines(tmp_path / "c.jsonl", [f"c {i}" for i in range(40)])
    recipe = save(
        tmp_path / "r.yaml",
        "name: r\nsources:\n  a: {jsonl: {path: in}}\n  b: {jsonl: {path: b.jsonl}, join: exact_dedup}\n"
        "  c: {jsonl: {path: c.jsonl}, join: write, stages: [{sample: {name: some_c, rate: 0.5}}]}\n"
        "stages:\n  - sample: {rate: 1.0}\n  - exact_dedup\n  - write\n",
    )
    summary, _ = go(recipe, tmp_path / "out")
    stages = {s["name"]: s for s in summary.record.to_json()["stages"]}
    some = stages["some_c"]["kept"]
    assert 0 < some < 40 and stages["some_c"]["docs_in"] == 40
    assert {n: s["docs_in"] for n, s in stages["sample"]["sources"].items()} == {"a": 48}
    assert {n: s["docs_in"] for n, s in stages["exact_dedup"]["sources"].items()} == {"a": 48, "b": 2}
    assert stages["exact_dedup"]["dropped"] == {"exact_duplicate": 16} and stages["exact_dedup"]["kept"] == 34
    assert stages["write"]["docs_in"] == len(written(tmp_path / "out")) == 34 + some


def test_two_global_stages_with_maps_between_and_after(tmp_path: Path) -> None:
    shared_texts(tmp_path / "in")
    lines(tmp_path / "in" / "x.jsonl", ["Shared 1  words", "shared 1 words", "x"])
    recipe = save(
        tmp_path / "r.yaml",
        "name: r\nparts: {files: 1}\nsources:\n  a: {jsonl: {path: in}}\nstages:\n  - exact_dedup: {name: bytewise, normalise: false}\n"
        "  - write: {name: between}\n  - exact_dedup\n  - sample: {rate: 1.0}\n  - write\n",
    )
    summary, _ = go(recipe, tmp_path / "out")
    stages = {s["name"]: s for s in summary.record.to_json()["stages"]}
    assert (stages["bytewise"]["docs_in"], stages["bytewise"]["kept"], stages["exact_dedup"]["kept"]) == (51, 35, 34)
    assert (len(written(tmp_path / "out", "between")), len(written(tmp_path / "out"))) == (35, 34)
    assert go(recipe, tmp_path / "out")[0].worked == 0


def test_a_stage_that_loses_rows_stops_the_run(tmp_path: Path) -> None:
    shared_texts(tmp_path / "in")
    save(
        tmp_path / "loses.py",
        "from gristmill.stages.stage import Applied, Rewrite, Verdict\nclass Loses(Rewrite):\n    def rewrite(self, batch):\n"
        "        return Applied(batch.slice(1), Verdict.keep(len(batch) - 1))\n",
    )
    recipe = save(
        tmp_path / "r.yaml", "name: r\nsources:\n  a: {jsonl: {path: in}}\nstages:\n  - loses.py:Loses\n  - write\n"
    )
    with pytest.raises(GristmillError, match=r"documents came, and \d+ rows and \d+ verdicts were answered") as raised:
        go(recipe, tmp_path / "out")
    came, *answered = map(int, re.findall(r"(\d+) (?:documents|rows|verdicts)", str(raised.value)))
    assert answered == [came - 1, came - 1]  # whichever of the tasks failed first
    assert not written(tmp_path / "out")


def test_a_model_that_comes_with_us_is_part_of_the_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def of(name: str) -> dict[str, str]:
        fingerprint.code_of_module.cache_clear()
        return fingerprint.code_of_module(name)

    before = of("gristmill.stages.extract.stage")
    assert "gristmill.classifiers.blocks.model: blocks.npz" in before
    assert not any("blocks.npz" in name for name in of("gristmill.stages.text.language"))
    monkeypatch.setattr(fingerprint, "hash_below", lambda path: "trained anew")
    changed = {name for name, print_ in of("gristmill.stages.extract.stage").items() if before[name] != print_}
    monkeypatch.undo()
    fingerprint.code_of_module.cache_clear()
    assert changed == {"gristmill.classifiers.blocks.model: blocks.npz"}
