"""Text and tokens left after each stage, the slowest documents, and what a run cost: counted, told and shown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from gristmill.pipeline.cli.app import app
from gristmill.pipeline.demo.crawl import write_crawl
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.look.funnel import Funnel, Volume, Volumes
from gristmill.pipeline.look.overview import overview
from gristmill.pipeline.look.run_folder import RunFolder, Told
from gristmill.pipeline.recipe import recipe as recipes
from gristmill.pipeline.run.estimate import estimate
from gristmill.pipeline.store.counts import MOST, SlowDocument, Slowest
from gristmill.pipeline.store.run_records import RunRecord
from tests.pipeline.runs import go, lines, save

RECIPE = """
name: volume
parts: {files: 1, small_file: 0}
rejects: {REJECTS}
sources:
  notes: {jsonl: {path: "notes-*.jsonl"}}
  books: {jsonl: {path: "books.jsonl"}}
stages:
  - gopher_quality: {min_words: 5, max_words: 100000, min_mean_word_length: 0, min_stop_words: 0, min_alphabetic_word_share: 0}
  - exact_dedup
  - write
"""


def entry(name: str, kind: str, **sources: tuple[int, int, int]) -> dict[str, Any]:
    """docs_in, kept and text_bytes by source."""
    rows = {source: dict(zip(("docs_in", "kept", "text_bytes"), its, strict=True)) for source, its in sources.items()}
    return {"name": name, "kind": kind, "sources": rows} | (next(iter(rows.values())) if kind == "read" else {})


ENTRIES = [
    entry("web", "read", web=(10, 8, 0)),
    entry("books", "read", books=(4, 4, 4000)),
    entry("extract", "rewrite", web=(8, 8, 900)),
    entry("rule", "rule", web=(8, 6, 600), books=(4, 3, 3000)),
    entry("tokenize", "global", web=(6, 6, 600), books=(3, 3, 3000)),
    entry("late", "rule", web=(6, 6, 600), books=(3, 2, 2000)),
]
TOKENIZED = {
    "bytes_per_token_by_source": {
        "web": {"tokens": 200, "bytes_per_token": 3.0},
        "books": {"tokens": 600, "bytes_per_token": 5.0},
    }
}


def left_after(entries: Sequence[dict[str, Any]], reports: Mapping[str, Told]) -> Volumes:
    return Funnel.of(RunRecord.from_json({"stages": entries}), reports).volumes


def whole(by_source: dict[str, Volume]) -> Volume:
    return Volume.of_all(by_source.values())


def test_tokens_are_counted_from_the_tokenizer_on_and_estimated_before_it() -> None:
    found = left_after(ENTRIES, {"tokenize": TOKENIZED})
    assert found["read"] == {"web": Volume(None, None), "books": Volume(4000, 800)}
    assert whole(found["read"]) == Volume(4000, None)  # pages have no tokens yet, so nobody knows those of all
    assert found["extract"] == {"web": Volume(900, 300), "books": Volume(4000, 800)}
    assert whole(found["rule"]) == Volume(3600, 800)
    assert whole(found["tokenize"]) == Volume(3600, 800, True)
    assert found["late"] == {"web": Volume(600, 200, True), "books": Volume(2000, 400, False)}
    assert whole(found["late"]) == Volume(2600, 600, False)
    assert [whole(left).tokens for left in left_after(ENTRIES, {}).values()] == [None] * 5


def test_a_source_of_which_nothing_is_left_has_no_tokens_and_hides_none() -> None:
    stages = [
        *ENTRIES[:3],
        entry("rule", "rule", web=(8, 6, 600), books=(4, 0, 0)),
        entry("tokenize", "global", web=(6, 6, 600)),
    ]
    found = left_after(
        stages, {"tokenize": {"bytes_per_token_by_source": {"web": {"tokens": 200, "bytes_per_token": 3.0}}}}
    )
    assert (whole(found["rule"]), whole(found["tokenize"])) == (Volume(600, 200), Volume(600, 200, True))


def test_what_a_stage_dropped_is_not_hidden_by_what_it_made() -> None:
    """`extract` with two views adds documents: 10 came, 8 more were made, 3 went, 15 stay."""
    views = {"docs_in": 10, "made": 8, "kept": 15, "dropped": {"empty": 3}}
    read = {"docs_in": 10, "kept": 10}
    entries = [
        {"name": "web", "kind": "read", **read, "sources": {"web": read}},
        {"name": "extract", "kind": "map", **views, "sources": {"web": views}},
    ]
    steps = Funnel.of(RunRecord.from_json({"stages": entries}), {}).steps
    assert [(step.name, step.kept, step.gone) for step in steps] == [("read", 10, 0), ("extract", 15, 3)]


@pytest.mark.parametrize(("by", "tokens"), [("source", 500), ("bucket", None)])
def test_a_mix_of_sources_says_what_it_drew_and_one_of_buckets_waits_for_packing(by: str, tokens: int | None) -> None:
    mixed = {
        "mix": {
            "by": [by],
            "sources": [{"source": "web"}, {"source": "books"}],
            "drawn": [{"drawn": 100}, {"drawn": 400}],
        }
    }
    packed = {"packing": {"sources": {"web": {"tokens": 101}, "books": {"tokens": 404}}}}
    stages = [
        *ENTRIES[:5],
        entry("mix", "global", web=(6, 5, 500), books=(3, 3, 3000)),
        entry("pack", "global", web=(5, 5, 500), books=(3, 3, 3000)),
    ]
    found = left_after(stages, {"tokenize": TOKENIZED, "mix": mixed, "pack": packed})
    assert whole(found["mix"]) == Volume(3500, tokens, tokens is not None)
    assert whole(found["pack"]) == Volume(3500, 505, True)


@pytest.mark.parametrize("rejects", ["{keep: 1, text: true}", "{keep: 0}"])
def test_text_is_counted_to_the_byte_at_every_stage(tmp_path: Path, rejects: str) -> None:
    long = [f"These are the words of note number {n}, in which é is two bytes." for n in range(40)]
    lines(tmp_path / "notes-1.jsonl", [*long[:25], "too short", "kürzer"])
    lines(tmp_path / "notes-2.jsonl", [*long[20:], "short too"])  # five of them twice
    lines(tmp_path / "books.jsonl", ["A book has more words than a note, but only one line.", "no book"])
    summary, _ = go(save(tmp_path / "volume.yaml", RECIPE.replace("{REJECTS}", rejects)), tmp_path / "out", workers=2)
    size = {
        name: sum(len(text.encode()) for text in texts) for name, texts in {"once": long, "twice": long[20:25]}.items()
    }
    book = len("A book has more words than a note, but only one line.")
    stages = {its["name"]: its for its in summary.record.to_json()["stages"]}
    assert stages["notes"]["text_bytes"] == size["once"] + size["twice"] + len("too shortshort too") + len(
        "kürzer".encode()
    )
    assert stages["gopher_quality"]["sources"]["notes"]["text_bytes"] == size["once"] + size["twice"]
    assert stages["exact_dedup"]["sources"]["notes"]["text_bytes"] == size["once"]
    assert {name: its["text_bytes"] for name, its in stages["write"]["sources"].items()} == {
        "notes": size["once"],
        "books": book,
    }
    seen = overview(RunFolder(tmp_path / "out"))
    written = pa.concat_tables(
        pq.read_table(path, columns=["text"]) for path in (tmp_path / "out/write").glob("*.parquet")
    )
    assert (
        seen.totals.text_bytes == sum(len(text.encode()) for text in written["text"].to_pylist()) == size["once"] + book
    )
    assert all("@text_bytes" not in pq.read_schema(path).names for path in (tmp_path / "out/write").glob("*.parquet"))


def test_the_slowest_of_many_parts_are_the_slowest_of_all() -> None:
    chance = np.random.default_rng(5)
    seconds = chance.random(500).round(6)
    uid = pa.array(np.arange(500, dtype=np.uint64))
    batch = pa.record_batch(
        {
            "uid": uid,
            "url": pa.array([f"http://a/{n}" for n in range(500)]),
            "text": pa.array(["é" * n for n in range(500)]),
        }
    )
    whole, parts = Slowest(), Slowest()
    whole.look("extract", batch, seconds)
    for start in range(0, 500, 37):
        part = Slowest()
        part.look("extract", batch.slice(start, 37), seconds[start : start + 37])
        parts.add(part.by_stage)
    assert whole.by_stage == parts.by_stage
    rows = whole.by_stage["extract"]
    assert [row.seconds for row in rows] == sorted(seconds.tolist(), reverse=True)[:MOST]
    first = int(seconds.argmax())
    assert rows[0] == SlowDocument(f"{first:016x}", f"http://a/{first}", None, 2 * first, seconds.max())


@pytest.fixture(scope="module")
def priced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("priced")
    write_crawl(folder)
    text = (folder / "demo.yaml").read_text()
    save(folder / "demo.yaml", f"prices: {{currency: EUR, core_hour: 36, kilowatt_hour: 0.3}}\n{text}")
    go(folder / "demo.yaml", folder / "out", workers=2)
    return folder


def test_a_run_says_what_it_cost_and_which_pages_were_slow(priced: Path) -> None:
    record = json.loads((priced / "out/run.json").read_text())
    stages = {its["name"]: its for its in record["stages"]}
    assert all(its["cost"] == pytest.approx(its["seconds"] / 100, abs=1e-6) for its in stages.values())
    work = sum(its["cost"] for its in stages.values())
    assert record["cost"] == {
        "amount": pytest.approx(work + (record["joules"] or 0) / 3.6e6 * 0.3, abs=1e-5),
        "currency": "EUR",
    }
    slowest = RunFolder(priced / "out").stage("extract").slowest
    assert len(slowest) == MOST and all(its.seconds > 0 and its.bytes > 0 and its.url for its in slowest)
    assert all(not its["slowest"] for name, its in stages.items() if name != "extract")
    page = (priced / "out/report.html").read_text()
    assert "Slowest documents" in page and " EUR" in page and slowest[0].uid in page
    assert "slowest" not in (priced / "out/stages/extract/report.json").read_text()  # files of a run hold no times
    said = CliRunner().invoke(app, ["inspect", str(priced / "out"), "extract"]).output
    assert "Slowest documents" in said and slowest[0].uid in said
    assert " EUR" in CliRunner().invoke(app, ["inspect", str(priced / "out")]).output
    inputs = {name: {**its, "bytes": 2 * stages[name]["bytes_in"]} for name, its in record["inputs"].items()}
    half = RunRecord.from_json({**record, "inputs": inputs})
    assert (
        estimate(half, workers=2).cost == pytest.approx(2 * record["cost"]["amount"])
        and " EUR" in estimate(half, 2).in_words()
    )


def test_other_prices_are_no_other_work(priced: Path) -> None:
    before = json.loads((priced / "out/run.json").read_text())
    recipe = (priced / "demo.yaml").read_text()
    save(priced / "demo.yaml", recipe.replace("core_hour: 36", "core_hour: 72"))
    summary, _ = go(priced / "demo.yaml", priced / "out", workers=2)
    assert summary.worked == 0
    again = json.loads((priced / "out/run.json").read_text())
    assert [its["cost"] for its in again["stages"]] == pytest.approx(
        [2 * its["cost"] for its in before["stages"]], abs=2e-6
    )
    save(priced / "demo.yaml", recipe.replace("currency: EUR", "currency: beads"))
    with pytest.raises(RecipeError, match=r"demo\.yaml:1: prices\.currency"):
        recipes.load(priced / "demo.yaml")
