"""Two runs side by side: every document is on the side where both runs put it, and what cannot be compared is said
first."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st
from test_report import Page
from typer.testing import CliRunner

from gristmill.pipeline.cli.app import app
from gristmill.pipeline.compare import join
from gristmill.pipeline.compare.compare import aligned, compare, plain
from gristmill.pipeline.compare.join import ABSENT, KEPT, RECORD, Fate, Joined, Piles
from gristmill.pipeline.compare.sections import (
    costs,
    funnel,
    levels_of,
    page_of,
    reasons,
    sections,
    shortened,
)
from gristmill.pipeline.formatting import as_seconds
from gristmill.pipeline.inputs.files import sum_of
from gristmill.pipeline.look.run_folder import RunFolder
from tests.pipeline.look.outfolder import HOSTILE, make
from tests.pipeline.runs import WORDS, go, save

A = """
name: p
sources:
  crawl: {jsonl: {path: crawl.jsonl}}
  books: {jsonl: {path: books.jsonl}}
stages:
  - gopher_quality: {min_words: 20, min_stop_words: 0}
  - exact_dedup
  - write
"""
B = A.replace("min_words: 20", "min_words: 30, max_words: 60").replace(
    "  - exact_dedup\n", "  - repair\n  - exact_dedup\n"
)


def texts(folder: Path) -> None:
    """Documents of 10 to 80 words, some of them twice; one text is hostile."""
    for source, start in (("crawl", 10), ("books", 15)):
        lines = [
            {
                "text": " ".join(WORDS[(start + n + k) % len(WORDS)] for k in range(n)),
                "url": f"https://e.org/{source}/{n}",
            }
            for n in range(start, 81)
        ]
        lines += [
            {**lines[30], "url": "https://e.org/again"},
            {"text": f"{HOSTILE} {'hostile words ' * 11}", "url": "javascript:alert(1)"},
        ]
        (folder / f"{source}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("runs")
    texts(folder)
    outs = (folder / "a", folder / "b")
    for recipe, out in zip((A, B), outs, strict=True):
        go(save(folder / f"{out.name}.yaml", recipe), out)
    return outs


def fates_of(out: Path) -> dict[int, tuple[str, str] | None]:
    """uid to (stage, reason), or None where it was written: read plainly."""
    found: dict[int, tuple[str, str] | None] = {}
    for path in (out / "write").glob("*.parquet"):
        found |= dict.fromkeys(pq.read_table(path, columns=["uid"])["uid"].to_pylist())
    for path in out.glob("stages/*/rejects/*.parquet"):
        for row in pq.read_table(path).to_pylist():
            if row["uid"] is not None:
                assert row["uid"] not in found
                found[row["uid"]] = (row["stage"], row["reason"])
    return found


def test_every_document_is_on_the_side_where_both_runs_put_it(runs: tuple[Path, Path]) -> None:
    a, b = map(fates_of, runs)
    found = compare(*map(RunFolder, runs))
    assert found.documents is not None and found.unlike == []
    whole = found.documents.sides[-1]
    assert a.keys() == b.keys() and len(a) > 100
    kept_a, kept_b = ({uid for uid, fate in its.items() if fate is None} for its in (a, b))
    assert (whole.both_kept, whole.only_a, whole.only_b) == (
        len(kept_a & kept_b),
        len(kept_a - kept_b),
        len(kept_b - kept_a),
    )
    assert (
        whole.both_gone == len(a.keys() - kept_a - kept_b)
        and whole.only_a > 20
        and whole.missing_a == whole.missing_b == 0
    )
    words = [{uid: "kept" if fate is None else f"{fate[0]}: {fate[1]}" for uid, fate in its.items()} for its in (a, b)]
    ways = Counter((words[0][uid], words[1][uid]) for uid in a if (uid in kept_a) != (uid in kept_b))
    assert {(way.a, way.b): way.documents for way in found.documents.ways} == ways
    assert [one.source for one in found.documents.sides] == ["books", "crawl", None]
    assert sum(one.only_a for one in found.documents.sides[:-1]) == whole.only_a


def test_documents_that_changed_sides_are_shown_with_the_reason(runs: tuple[Path, Path]) -> None:
    found = compare(*map(RunFolder, runs))
    assert found.documents is not None
    for way in found.documents.ways:
        assert way.examples and len(way.examples) <= join.SAMPLES and "kept" in (way.a, way.b)
        for one in way.examples:
            fates = [its[int(one.uid, 16)] for its in map(fates_of, runs)]
            assert one.text and one.source in ("crawl", "books") and sorted(fates, key=bool)[0] is None
    assert found.documents.ways[0].b == "gopher_quality: too_many_words"


def test_many_piles_count_as_one(runs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = plain(compare(*map(RunFolder, runs)))
    monkeypatch.setattr(join, "PILE", 8)
    assert plain(compare(*map(RunFolder, runs)))["documents"] == whole["documents"]


@given(
    st.lists(
        st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 4), st.integers(0, 4)),
        max_size=60,
        unique_by=lambda row: row[0],
    ),
    st.integers(0, 5),
)
@settings(max_examples=60, deadline=None)
def test_the_join_is_that_of_two_dictionaries(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int, int]], bits: int
) -> None:
    """Fates 0 to 4: kept, absent, and three drops. A document that was dropped lies among those that arrived too, as
    beside a segment's rules."""
    names = [KEPT, ABSENT, *(Fate("s", f"r{n}") for n in range(3))]
    folder = tmp_path_factory.mktemp("piles")
    piles = [Piles(folder / name, bits) for name in "ab"]
    for pile, side in zip(piles, (1, 2), strict=True):
        for among in (range(1), range(2, 5)):
            its = [row for row in rows if row[side] in among or (among == range(1) and row[side] > 1)]
            pile.add(np.array([(row[0], 0 if among == range(1) else row[side], 0) for row in its], RECORD))
    found = Joined()
    for place in range(1 << bits):
        found.add(piles[0].pile(place), piles[1].pile(place), names, ["s"])
    assert found.counts == Counter(("s", names[a], names[b]) for _, a, b in rows if (a, b) != (1, 1))
    for pair, uids in found.samples.items():
        assert uids == sorted(uid for uid, a, b in rows if (names[a], names[b]) == pair)[: join.SAMPLES]


def test_recipes_differ_field_by_field(runs: tuple[Path, Path]) -> None:
    pairs = {pair.name: pair for pair in compare(*map(RunFolder, runs)).stages}
    assert pairs["repair"].state == "only in B" and pairs["write"].state == "same"
    assert [(one.field, one.a, one.b) for one in pairs["gopher_quality"].differences] == [
        ("min_words", "20", "30"),
        ("max_words", "100000", "60"),
    ]
    assert pairs["text_signals"].inserted and not pairs["gopher_quality"].inserted


def test_two_orders_become_one() -> None:
    assert list(aligned("abcd", "acbe")) == [("a", False), ("c", True), ("b", False), ("d", False), ("e", False)]
    assert list(aligned([], ["x"])) == [("x", False)]


def test_long_lists_show_what_one_has_and_the_other_has_not() -> None:
    many = [f"s{n}" for n in range(9)]
    assert shortened(json.dumps(many), json.dumps(many[1:])) == ("8 the same, and s0", "8 the same, and no more")
    assert shortened("[1]", None) == ("[1]", "–") and shortened("[broken", '["a"]') == ("[broken", '["a"]')


def test_funnel_reasons_and_costs_are_those_of_both(runs: tuple[Path, Path]) -> None:
    found = compare(*map(RunFolder, runs))
    records = [json.loads((out / "run.json").read_text()) for out in runs]
    levels = [(stage, source, pair) for stage, source, pair in levels_of(found) if stage != "read"]
    assert {stage for stage, _, _ in levels} >= {"gopher_quality", "exact_dedup", "repair", "write"}
    for side, record in enumerate(records):
        entries = {entry["name"]: entry for entry in record["stages"]}
        for stage, source, pair in levels:
            entry = entries.get(stage)
            left = None if entry is None else (entry["sources"][source] if source else entry)["kept"]
            level = pair[side]
            assert (level.left if level else None) == left, (stage, source)
        shown = {row[0]: row[1 + side] for row in costs(found).tables[0].rows}
        assert {name: shown[name] for name in entries} == {
            name: as_seconds(entry["seconds"]) for name, entry in entries.items()
        }
    assert any(row[1:3] == ("too_many_words", "0") and row[3] != "0" for row in reasons(found).tables[0].rows)


def test_a_run_beside_itself_differs_in_nothing(runs: tuple[Path, Path]) -> None:
    found = compare(RunFolder(runs[0]), RunFolder(runs[0]))
    assert found.documents is not None and not found.documents.ways and not reasons(found).tables[0].rows
    assert all(pair.state == "same" for pair in found.stages)
    html = page_of(found)
    assert "The recipes are the same." in html and "0 documents changed sides" in html


def test_one_folder_twice_is_said_first(runs: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(runs[0])
    for other in (str(runs[0]), f"{runs[0]}/", str(tmp_path / "link")):
        assert [line.partition(":")[0] for line in compare(RunFolder(runs[0]), RunFolder(other)).unlike] == [
            "A and B are the same folder"
        ]
    shutil.copytree(runs[0], tmp_path / "copy")
    assert compare(RunFolder(runs[0]), RunFolder(tmp_path / "copy")).unlike == []


def test_what_cannot_be_compared_is_said_first(runs: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(runs[1], tmp_path / "b")
    record = json.loads((tmp_path / "b/run.json").read_text())
    record["status"], record["versions"]["numpy"], record["inputs"]["crawl"]["bytes"] = "running", "0.1", 5
    cores, record["machine"]["cores"] = record["machine"]["cores"], 10_000
    (tmp_path / "b/run.json").write_text(json.dumps(record))
    found = compare(RunFolder(runs[0]), RunFolder(tmp_path / "b"))
    assert [line.split(" ")[0] for line in found.unlike] == ["B", "The", "The", "The"]
    assert (
        "crawl" in found.unlike[1] and f"(cores {cores} and 10000)" in found.unlike[2] and "versions" in found.unlike[3]
    )
    html = page_of(found)
    assert html.index("What cannot be compared") < html.index('id="overview"')
    inputs = json.loads((tmp_path / "b/journal/inputs.json").read_text())
    next(iter(inputs["files"].values()))[-1] = "other"
    (tmp_path / "b/journal/inputs.json").write_text(
        json.dumps({"sum": sum_of(inputs["files"]), "files": inputs["files"]})
    )
    assert any(
        line.startswith("1 of the files that both runs read changed")
        for line in compare(RunFolder(runs[0]), RunFolder(tmp_path / "b")).unlike
    )
    shutil.rmtree(next((tmp_path / "b/stages").glob("gopher_quality/rejects")))
    found = compare(RunFolder(runs[0]), RunFolder(tmp_path / "b"))
    assert found.documents is None and "rejects removed" in found.unlike[-1]
    assert "Documents that changed sides" not in page_of(found)


def test_other_inputs_are_told_by_the_documents(runs: tuple[Path, Path], tmp_path: Path) -> None:
    texts(tmp_path)
    (tmp_path / "more.jsonl").write_text(json.dumps({"text": "one more " * 30}) + "\n")
    recipe = A.replace("  books: {jsonl: {path: books.jsonl}}\n", "  more: {jsonl: {path: more.jsonl}}\n")
    go(save(tmp_path / "c.yaml", recipe), tmp_path / "c")
    found = compare(RunFolder(runs[0]), RunFolder(tmp_path / "c"))
    assert found.documents is not None
    whole = found.documents.sides[-1]
    assert (whole.missing_b, whole.missing_a, whole.only_a) == (68, 1, 0)
    assert [(way.a, way.documents) for way in found.documents.ways] == [
        ("exact_dedup: exact_duplicate", 1)
    ]  # its copy was in books
    said = "\n".join(found.unlike)
    assert said.count("Only A has the source books: 68 documents that B never read.") == 1
    assert "Only B has the source more: 1 document that A never read." in said and "Inputs differ" not in said
    lines = (tmp_path / "crawl.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "crawl.jsonl").write_text("".join(lines[:-3]))
    go(save(tmp_path / "d.yaml", A), tmp_path / "d")
    said = "\n".join(compare(RunFolder(runs[0]), RunFolder(tmp_path / "d")).unlike)
    assert (
        said.count("Inputs differ: 3 documents were read by A alone; they are on no side below.") == 1
        and "Only" not in said
    )


def test_a_share_of_rejects_is_compared_as_a_share(tmp_path: Path) -> None:
    texts(tmp_path)
    outs = (tmp_path / "a", tmp_path / "b")
    for recipe, out in zip((A, B), outs, strict=True):
        go(save(tmp_path / f"{out.name}.yaml", recipe.replace("name: p\n", "name: p\nrejects: {keep: 0.5}\n")), out)
    found = compare(*map(RunFolder, outs))
    assert found.documents is not None and found.documents.share == 0.5 and "share of 50.00%" in found.unlike[0]
    whole = found.documents.sides[-1]
    every = whole.both_kept + whole.only_a + whole.only_b + whole.both_gone
    assert 40 < every < 100


def test_a_cleaned_run_is_followed_by_what_it_wrote(runs: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(runs[1], tmp_path / "b")
    result = CliRunner().invoke(app, ["maintain", "clean", str(tmp_path / "b"), "--partitions"])
    assert result.exit_code == 0 and not list((tmp_path / "b/partitions").glob("*/*.documents.parquet"))
    found = compare(RunFolder(runs[0]), RunFolder(tmp_path / "b"))
    assert found.documents is not None, found.unlike
    assert plain(found)["documents"]["sides"] == plain(compare(*map(RunFolder, runs)))["documents"]["sides"]


def test_runs_without_a_tokenizer_have_no_table_of_tokens(runs: tuple[Path, Path]) -> None:
    shown = funnel(compare(*map(RunFolder, runs)))
    titles = ["Text left after each stage", "Documents left after each stage, by source"]
    assert [table.title for table in shown.folded] == titles


def hostile(folder: Path) -> tuple[Path, Path]:
    """Two made-up runs with hostile text in every place; the second dropped one document more, for a hostile reason."""
    a, b = make(folder / "a"), make(folder / "b")
    for path in folder.glob("*/partitions/*/manifest.json"):
        manifest = json.loads(path.read_text())
        for part in manifest["parts"]:
            part["source"] = "books" if part["key"] == "extract-2" else "crawl"
        path.write_text(json.dumps(manifest))
    uid = pq.read_table(b / "write/extract-2.parquet")["uid"][0].as_py()
    row = {
        "uid": uid,
        "url": "javascript:alert(1)",
        "source": "books",
        "stage": "write",
        "reason": HOSTILE,
        "detail": HOSTILE,
        "text": HOSTILE,
    }
    schema = pa.schema([("uid", pa.uint64()), *((name, pa.string()) for name in list(row)[1:])])
    (b / "stages/write/rejects").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist([row], schema=schema), b / "stages/write/rejects/part-0.parquet")
    record = json.loads((b / "run.json").read_text())
    for count in (record["stages"][-1], record["stages"][-1]["sources"]["books"]):
        count["kept"], count["dropped"] = count["kept"] - 1, {HOSTILE: 1}
    record["stages"][-1]["settings"], record["versions"]["numpy"] = {"note": HOSTILE}, HOSTILE
    (b / "run.json").write_text(json.dumps(record))
    return a, b


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    found = compare(*map(RunFolder, hostile(tmp_path)))
    assert found.documents is not None, found.unlike
    assert found.documents.sides[-1].only_a == 1
    html = page_of(found)
    page = Page(html)
    assert (
        page.open == []
        and not page.all("script")
        and "<script" not in html.lower()
        and html.count("&lt;script&gt;alert") >= 8
    )
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on") or name == "src"]
    assert not [link for link in page.all("a") if not (link["href"] or "").startswith(("#", "https://"))]
    policy = next(meta for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in (policy["content"] or "") and "script-src" not in (policy["content"] or "")
    result = CliRunner().invoke(app, ["report", str(tmp_path / "a"), str(tmp_path / "b")])
    assert result.exit_code == 0 and "\x1b[31m" not in result.output and "\u202e" not in result.output


def test_the_command_writes_the_page_and_says_what_differs(runs: tuple[Path, Path], tmp_path: Path) -> None:
    run = CliRunner().invoke(app, ["report", *map(str, runs)])
    assert run.exit_code == 0 and "documents changed sides" in run.output and (runs[1] / "compare.html").is_file()
    run = CliRunner().invoke(app, ["report", *map(str, runs), "--json", "--to", str(tmp_path / "c.html")])
    found: dict[str, Any] = json.loads(run.output)
    assert (
        found["documents"]["sides"][-1]["only_a"] > 20
        and (tmp_path / "c.html").read_text() == (runs[1] / "compare.html").read_text()
    )
    assert CliRunner().invoke(app, ["report", str(runs[0])]).exit_code == 0
    for arguments in (
        ["report", str(tmp_path)],
        ["report", str(runs[0]), str(tmp_path)],
        ["report", str(runs[0]), "--json"],
    ):
        assert CliRunner().invoke(app, arguments).exit_code != 0


def test_a_terminal_shows_the_first_rows_and_numbers_of_every_table(runs: tuple[Path, Path]) -> None:
    found = compare(*map(RunFolder, runs))
    said = CliRunner().invoke(app, ["report", *map(str, runs)], env={"COLUMNS": "80"}).output
    tables = [table for section in sections(found) for table in section.tables]
    folded = [table for section in sections(found) for table in section.folded]
    assert len(tables) > 4 and folded
    assert all(table.title in said for table in tables) and not any(table.title in said for table in folded)
    lines = said.splitlines()
    at = lines.index("Documents left after each stage")
    assert [line.split() for line in lines[at + 1 : at + 3]] == [
        ["after", "A", "B", "change"],
        ["read", "141", "141", "0"],
    ]
    assert ["gopher_quality", "min_words", "20", "30"] in [line.split() for line in lines]
    assert max(map(len, lines[2:-1])) <= 80 and "Only in B: repair." in lines


def test_names_that_repeat_are_encoded() -> None:
    for values in (pa.array(["x", "a", None, "b", "a"]), pa.array(["x", "a", None, "b", "a"]).dictionary_encode()):
        names, places = join.encoded(values.slice(1))
        assert [names[place] for place in places] == ["a", "", "b", "a"]
        empty, places = join.encoded(values.slice(5))
        assert (empty, len(places)) == ([], 0)
