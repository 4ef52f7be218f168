"""Benchmarks are read from every kind of file that people publish them in; what is not there is named, with its file
and line."""

from __future__ import annotations

import gzip
import io
import json

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import zstandard

from gristmill.kernels.common.settings import SettingsError
from gristmill.stages import BenchmarkOverlap
from gristmill.stages.dedup.benchmarks import Benchmark, BenchmarkError, texts_of

ROWS = [
    {
        "question": "one?",
        "choices": {"text": ["a b", "c"], "label": ["A", "B"]},
        "answers": [{"text": "yes"}],
        "key": "k1",
        "deep": None,
    },
    {
        "question": "two 二?",
        "choices": {"text": [], "label": []},
        "answers": [{"text": "no"}, {"text": "maybe"}],
        "key": "k2",
        "deep": "x",
    },
]
FIELDS = ("question", "choices.text", "answers.text", "deep")
WANTED = [
    ("b/k1/question", 0, "one?"), ("b/k1/choices.text", 0, "a b"), ("b/k1/choices.text", 0, "c"), ("b/k1/answers.text", 0, "yes"),
    ("b/k2/question", 1, "two 二?"), ("b/k2/answers.text", 1, "no"), ("b/k2/answers.text", 1, "maybe"), ("b/k2/deep", 1, "x"),
]  # fmt: skip


def lines(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def arrow(stream):
    sink = io.BytesIO()
    table = pa.Table.from_pylist(ROWS)
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def parquet():
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS), sink, row_group_size=1)
    return sink.getvalue()


def feathered():
    sink = io.BytesIO()
    feather.write_feather(pa.Table.from_pylist(ROWS), sink)
    return sink.getvalue()


WHOLE = json.dumps(ROWS).encode()
FILES = {
    "a.jsonl": lines(ROWS),
    "a.ndjson": b"\xef\xbb\xbf" + lines(ROWS).replace(b"\n", b"\r\n\r\n"),
    "a.jsonl.gz": gzip.compress(lines(ROWS[:1]), mtime=0) + gzip.compress(lines(ROWS[1:]), mtime=0),
    "a.jsonl.zst": zstandard.compress(lines(ROWS[:1])) + zstandard.compress(lines(ROWS[1:])),
    "a.json": WHOLE,
    "b.json": json.dumps({"version": 1, "data": ROWS}).encode(),
    "c.json": lines(ROWS),
    "a.json.gz": gzip.compress(WHOLE, mtime=0),
    "a.json.zst": zstandard.compress(WHOLE),
    "a.parquet": parquet(),
    "a.parquet.gz": gzip.compress(parquet(), mtime=0),
    "a.arrow": arrow(stream=True),
    "b.arrow": arrow(stream=False),
    "a.feather": feathered(),
}


@pytest.mark.parametrize("name", FILES)
def test_every_kind_of_file(name, tmp_path):
    (tmp_path / name).write_bytes(FILES[name])
    benchmark = Benchmark(name="b", path=name, fields=FIELDS, id="key")
    assert [tuple(text) for text in texts_of(tmp_path, benchmark)] == WANTED


def test_globs_folders_and_lists_of_them(tmp_path):
    for name, text in {"x/test-1.jsonl": "one", "x/test-0.jsonl": "zero", "x/README.md": "no", "y.json": "two"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(lines([{"q": text}]))

    def texts(path):
        return [tuple(text) for text in texts_of(tmp_path, Benchmark(name="b", path=path, fields=("q",)))]

    assert (
        texts("x/test-*.jsonl")
        == texts("x")
        == texts(("x/test-0.jsonl", "x"))
        == [("b/0/q", 0, "zero"), ("b/1/q", 1, "one")]
    )
    assert texts(("y.json", "**/test-1*")) == [("b/0/q", 0, "two"), ("b/1/q", 1, "one")]


BAD = [
    ("a.jsonl", b'{"q": "x"}\n\n{"r": 1}\n', "q", "a.jsonl: line 3: no field 'q'; it has r"),
    (
        "a.jsonl",
        b'{"question": "x"}\n',
        "qestion",
        "a.jsonl: line 1: no field 'qestion'; it has question (did you mean question?)",
    ),
    ("a.jsonl", b'{"q": "x"}\n{"q": \n', "q", "a.jsonl: line 2: no JSON ("),
    ("a.jsonl", b'["x"]\n', "q", "a.jsonl: line 1: no JSON object but list"),
    ("a.jsonl", b'{"q": {"x": "y"}}\n', "q", "a.jsonl: line 1: field 'q' holds no text but dict"),
    ("a.jsonl", b'{"q": {"x": "y"}}\n', "q.z", "a.jsonl: line 1: no field 'q.z'; 'q' has x"),
    ("a.jsonl", b'{"q": "y"}\n', "q.z", "a.jsonl: line 1: field 'q.z' holds no text but str above 'z'"),
    ("a.json", b'[{"q": "x"}, 3]', "q", "a.json: row 2: no JSON object but int"),
    ("a.parquet", FILES["a.parquet"], "q", "a.parquet: row 1: no field 'q'; it has question, "),
    ("a.parquet", b"PAR1 and no more", "q", "a.parquet: cannot be read ("),
    ("a.arrow", FILES["a.arrow"], "choices.txt", "a.arrow: row 1: no field 'choices.txt'; 'choices' has "),
    ("a.jsonl.gz", FILES["a.jsonl.gz"][:40], "question", "a.jsonl.gz: cannot be read ("),
    ("a.jsonl.zst", b"no zstd", "question", "a.jsonl.zst: cannot be read ("),
]


@pytest.mark.parametrize("name, data, field, wanted", BAD)
def test_errors_name_file_line_and_field(name, data, field, wanted, tmp_path):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(BenchmarkError) as error:
        list(texts_of(tmp_path, Benchmark(name="b", path=name, fields=(field,))))
    assert f"{tmp_path}/{wanted}" in str(error.value)


@pytest.mark.parametrize(
    "path, wanted",
    [
        ("none.jsonl", "b: nothing to read at"),
        ("*.parquet", "b: nothing to read at"),
        ("../x.jsonl", "does not lie below"),
        ("a.txt", "ends in none of"),
    ],
)
def test_files_are_looked_for_when_the_stage_is_made(path, wanted, tmp_path):
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(SettingsError, match=wanted):
        BenchmarkOverlap(benchmarks_path=str(tmp_path), benchmarks=[{"name": "b", "path": path, "fields": ["q"]}])
    with pytest.raises(SettingsError, match="there is no folder"):
        BenchmarkOverlap(
            benchmarks_path=str(tmp_path / "none"), benchmarks=[{"name": "b", "path": path, "fields": ["q"]}]
        )


def test_a_benchmark_of_which_nothing_would_be_found_is_an_error(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(lines([{"q": "too short"}] * 3))
    stage = BenchmarkOverlap(
        benchmarks_path=str(tmp_path), benchmarks=[{"name": "b", "path": "a.jsonl", "fields": ["q"]}]
    )
    with pytest.raises(BenchmarkError, match="none of its 3 texts has 8 words"):
        stage.account()
