"""From some parts of an input to all of it: right on even inputs, and with an interval that says how far off it may be
on uneven ones."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from gristmill.pipeline.engine.cluster import Where
from gristmill.pipeline.inputs.portion import Portion, cut_into_parts
from gristmill.pipeline.progress.progress import Quiet
from gristmill.pipeline.recipe import recipe as recipes
from gristmill.pipeline.recipe.recipe import Parts
from gristmill.pipeline.run.estimate import PartRead, documents_in_all, estimate
from gristmill.pipeline.run.run import run
from gristmill.pipeline.store.run_records import WholeRecord
from gristmill.stages.inputs import InputFile
from gristmill.stages.read.arrow import Arrow
from gristmill.stages.read.jsonl import Jsonl
from gristmill.stages.read.parquet import Parquet
from gristmill.stages.read.warc import Warc
from gristmill.stages.stage import Origin, Reader
from tests.pipeline.engine.here import work_here
from tests.pipeline.runs import save

Made = list[tuple[int, int]]  # parts: bytes and documents


def even(chance: random.Random) -> Made:
    sizes = [chance.randint(900_000, 1_100_000) for _ in range(200)]
    return [(size, round(size * 40e-6 * chance.uniform(0.97, 1.03))) for size in sizes]


def many_kinds(chance: random.Random) -> Made:
    """Archives of very different sizes, and of very different pages."""
    sizes = [round(chance.lognormvariate(13, 1.0)) for _ in range(59)]
    return [(size, round(size * 20e-6 * chance.lognormvariate(0, 0.7))) for size in sizes]


def sparse_large_ones(chance: random.Random) -> Made:
    """The larger a file, the fewer documents in each of its bytes."""
    sizes = [round(chance.lognormvariate(13, 1.5)) for _ in range(59)]
    return [(size, max(1, round(5 * (size / 4e5) ** 0.3 * chance.lognormvariate(0, 0.5)))) for size in sizes]


def taken(parts: Made, few: int, chance: random.Random) -> WholeRecord:
    read = [PartRead(size, size, documents, True) for size, documents in chance.sample(parts, few)]
    return documents_in_all(read, [size for size, _ in parts])


@pytest.mark.parametrize("few", [6, 16, 50])
def test_even_inputs_are_estimated_within_three_percent(few: int) -> None:
    for seed in range(50):
        chance = random.Random(seed)
        parts = even(chance)
        guess, truth = taken(parts, few, chance), sum(documents for _, documents in parts)
        assert guess["documents"] == pytest.approx(truth, rel=0.03), seed
        assert guess["low"] is not None and guess["high"] is not None and guess["high"] < 1.2 * guess["low"]


@pytest.mark.parametrize("few", [10, 16, 30])
@pytest.mark.parametrize("made", [even, many_kinds, sparse_large_ones])
def test_the_interval_holds_the_truth_nine_times_in_ten(made: Callable[[random.Random], Made], few: int) -> None:
    held, seeds = 0, 200
    for seed in range(seeds):
        chance = random.Random(seed)
        parts = made(chance)
        guess, truth = taken(parts, few, chance), sum(documents for _, documents in parts)
        held += guess["low"] is not None and guess["high"] is not None and guess["low"] <= truth <= guess["high"]
    assert held >= 0.9 * seeds


def test_what_cannot_be_known_is_not_claimed() -> None:
    sizes = [100, 100, 100, 500]
    one = documents_in_all([PartRead(100, 100, 10, True)], sizes)
    assert (one["documents"], one["low"], one["high"], one["parts"], one["of"]) == (80, None, None, 1, 4)
    none = documents_in_all([PartRead(100, 100, 0, True)] * 2, sizes)
    assert (none["documents"], none["low"], none["high"]) == (0, None, None)
    every = documents_in_all([PartRead(size, size, 7, True) for size in sizes], sizes)
    assert (every["documents"], every["low"], every["high"]) == (28, 28, 28)
    begun = documents_in_all([PartRead(size, size // 2, 100, False) for size in sizes], sizes)
    assert (
        begun["documents"] == 800
        and begun["low"] is not None
        and begun["high"] is not None
        and 400 <= begun["low"] < 800 < begun["high"] < 1000
    )
    assert documents_in_all([], []) == {"parts": 0, "of": 0, "documents": 0, "low": 0, "high": 0}


# --- how much of a file its records took ------------------------------------------------------------------------------


def record_of(number: int) -> bytes:
    page = b"<p>" + random.Random(number).randbytes(300).hex().encode()
    body = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n" + page
    head = f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: http://a.example/{number}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body + b"\r\n\r\n"


def row_of(number: int) -> bytes:
    return json.dumps({"text": random.Random(number).randbytes(300).hex()}).encode() + b"\n"


def table(path: Path, count: int) -> None:
    texts = pa.table({"text": [random.Random(n).randbytes(300).hex() for n in range(count)]})
    if path.suffix == ".parquet":
        pq.write_table(texts, path, row_group_size=150)
    else:
        with pa.ipc.new_file(path, texts.schema) as file:
            file.write_table(texts, max_chunksize=150)


COUNT = 3000
KINDS: dict[str, tuple[Reader, Callable[[Path], object]]] = {
    "a.warc": (Warc(path="x"), lambda path: path.write_bytes(b"".join(map(record_of, range(COUNT))))),
    "a.warc.gz": (
        Warc(path="x"),
        lambda path: path.write_bytes(b"".join(gzip.compress(record_of(n), 1) for n in range(COUNT))),
    ),
    "one.warc.gz": (
        Warc(path="x"),
        lambda path: path.write_bytes(gzip.compress(b"".join(map(record_of, range(COUNT))), 1)),
    ),
    "a.jsonl": (Jsonl(path="x"), lambda path: path.write_bytes(b"".join(map(row_of, range(COUNT))))),
    "a.jsonl.gz": (
        Jsonl(path="x"),
        lambda path: path.write_bytes(gzip.compress(b"".join(map(row_of, range(COUNT))), 1)),
    ),
    "a.jsonl.zst": (
        Jsonl(path="x"),
        lambda path: path.write_bytes(zstandard.compress(b"".join(map(row_of, range(COUNT))))),
    ),
    "a.parquet": (Parquet(path="x"), lambda path: table(path, COUNT)),
    "a.arrow": (Arrow(path="x"), lambda path: table(path, COUNT)),
}


@pytest.mark.parametrize("name", KINDS)
def test_the_bytes_that_records_took_are_known_and_not_those_read_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for module in ("documents", "read.page_rows"):
        monkeypatch.setattr(f"gristmill.stages.{module}.BATCH_ROWS", 150)
    reader, make = KINDS[name]
    make(tmp_path / name)
    size, documents, stored, checked = (tmp_path / name).stat().st_size, 0, 0, 0
    with (tmp_path / name).open("rb") as file:
        for reading in reader.read(file, Origin("a", name, size)):
            assert reading.stored is not None
            documents, stored = documents + len(reading.documents), stored + reading.stored
            if len(reading.documents) == 150:
                checked += 1
                assert stored == pytest.approx(size * documents / COUNT, rel=0.03, abs=3000)
    assert documents == COUNT and checked == COUNT // 150 and stored == pytest.approx(size, rel=0.02)


def test_spans_of_any_format_are_measured_in_bytes_of_the_file(tmp_path: Path) -> None:
    for name in ("a.parquet", "a.jsonl", "a.warc.gz"):
        reader, make = KINDS[name]
        make(tmp_path / name)
        size = (tmp_path / name).stat().st_size
        file = InputFile(str(tmp_path / name), name, size, "")
        spans = [span for part in cut_into_parts([file], reader, Parts(max_bytes=size // 8), "a") for span in part]
        assert len(spans) >= 7 and sum(span.bytes for span in spans) == size and min(span.bytes for span in spans) > 0


@pytest.mark.parametrize(
    ("name", "portion"),
    [("a.warc.gz", Portion(documents=160)), ("a.jsonl", Portion(documents=160)), ("a.parquet", Portion(share=0.3))],
)
def test_a_run_on_a_part_of_even_inputs_foresees_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, portion: Portion
) -> None:
    work_here(monkeypatch)
    for module in ("documents", "read.page_rows"):
        monkeypatch.setattr(f"gristmill.stages.{module}.BATCH_ROWS", 150)
    reader, make = KINDS[name]
    (tmp_path / "in").mkdir()
    for number in range(4):
        make(tmp_path / "in" / f"{number}{name}")
    recipe = save(
        tmp_path / "a.yaml",
        f"name: a\nsources: {{a: {{{reader.recipe_name()}: {{path: in}}}}}}\nstages: [{{sample: {{rate: 1}}}}]\n",
    )
    record = run(recipes.load(recipe), str(tmp_path / "out"), Where(1), Quiet(), portion).record
    assert 150 <= record.stages[0].count.kept < 0.5 * 4 * COUNT
    guess = estimate(record, 1)
    assert guess.documents == pytest.approx(4 * COUNT, rel=0.03)
    assert guess.low is not None and guess.high is not None and guess.low <= 4 * COUNT <= guess.high <= 1.6 * guess.low
    assert (
        f"about {guess.documents:,} documents ({guess.low:,} to {guess.high:,}, right in 9 of 10 cases)"
        in guess.in_words()
    )
    assert guess.share == pytest.approx(record.stages[0].count.kept / (4 * COUNT), rel=0.05)
