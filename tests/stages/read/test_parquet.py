"""What is promised of Parquet and Arrow: every row is a document, a skip or damage, whatever its types and however it
is cut."""

import datetime
import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.stages.documents import BASE, page_schema, uid_of
from gristmill.stages.extract.stage import Extract
from gristmill.stages.read.arrow import Arrow
from gristmill.stages.read.jsonl import Jsonl
from gristmill.stages.read.parquet import Parquet
from gristmill.stages.stage import Origin

ROWS = 100


def table(kind=None) -> pa.Table:
    texts = [None if n % 10 == 3 else f"text {n}" for n in range(ROWS)]
    return pa.table({
        "text": pa.array(texts, pa.string()).cast(kind or pa.string()),
        "id": list(range(ROWS)),
        "metadata": [{"url": f"u:{n}", "x": n} for n in range(ROWS)],
        "date": [datetime.datetime(2026, 1, 1)] * ROWS,
    })  # fmt: skip


def parquet(data: pa.Table, group: int = 30) -> bytes:
    out = io.BytesIO()
    pq.write_table(data, out, row_group_size=group)
    return out.getvalue()


def read(data: bytes, cut: int = 1 << 30, reader=None):
    reader = reader or Parquet(path="x")
    rows, skipped, skips, damaged = [], {}, [], []
    for start, end in reader.spans(io.BytesIO(data), "a", len(data), cut):
        for reading in reader.read(io.BytesIO(data), Origin("s", "a", len(data), start, end)):
            assert reading.documents.schema == BASE
            rows += reading.documents.to_pylist()
            skips += reading.skips
            damaged += reading.damaged
            for reason, count in reading.skipped.items():
                skipped[reason] = skipped.get(reason, 0) + count
    return rows, skipped, skips, damaged


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.string_view()])
def test_every_type_of_text(kind):
    try:
        data = parquet(table(kind))
    except pa.ArrowNotImplementedError:
        pytest.skip(f"this pyarrow writes no {kind}")
    rows, skipped, skips, damaged = read(data)
    assert [row["text"] for row in rows] == [f"text {n}" for n in range(ROWS) if n % 10 != 3]
    assert skipped == {"no_text": 10} and skips[1].url == "u:13" and damaged == []
    assert rows[0]["uid"] == uid_of("s", "a", "0:0") and rows[-1]["uid"] == uid_of("s", "a", "3:9")
    assert (rows[0]["id"], rows[0]["url"], rows[0]["date"]) == ("0", "u:0", "2026-01-01T00:00:00")
    assert json.loads(rows[5]["meta"]) == {"metadata": {"x": 6}}


def test_spans_are_row_groups_and_any_cut_gives_the_same():
    data = parquet(table())
    assert Parquet(path="x").spans(io.BytesIO(data), "a", len(data), 1) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert read(data, 1) == read(data) == read(data, 3000)


def test_a_damaged_row_group_costs_its_rows_and_no_others():
    whole = parquet(table(pa.string()))
    info = pq.ParquetFile(io.BytesIO(whole)).metadata.row_group(1).column(0)
    start = info.dictionary_page_offset or info.data_page_offset
    rows, skipped, _, damaged = read(
        whole[:start] + b"\xff" * info.total_compressed_size + whole[start + info.total_compressed_size :]
    )
    assert len(rows) + skipped["no_text"] + sum(d.records for d in damaged) == ROWS
    assert [d.records for d in damaged] == [30]


def test_nothing_and_noise():
    for reader in (Parquet(path="x"), Arrow(path="x")):
        assert [(str(d), d.records) for d in read(b"", reader=reader)[3]] == [("a: the file is empty", 1)]
    assert [(d.start, d.end) for d in read(b"noise" * 50)[3]] == [(0, 250)]
    assert read(parquet(table().slice(0, 0)))[0] == []


def remarks(data: pa.Table, **chosen) -> list[list[str]]:
    """Of the table as Parquet, and as Arrow."""
    arrow = io.BytesIO()
    with pa.ipc.new_file(arrow, data.schema) as writer:
        writer.write_table(data)
    found = []
    for reader, file in ((Parquet(path="x", **chosen), parquet(data)), (Arrow(path="x", **chosen), arrow.getvalue())):
        readings = list(reader.read(io.BytesIO(file), Origin("s", "a", len(file))))
        assert sum(len(r.documents) + sum(r.skipped.values()) for r in readings) == len(data)
        found.append([remark for reading in readings for remark in reading.remarks])
    return found


def test_a_table_that_cannot_have_text_is_worth_a_remark():
    strange = pa.table({"body": ["a"] * 3, "id": [1, 2, 3], "inner": [{"text": 1}] * 3})
    assert (
        remarks(strange)
        == [["it has none of text, content, raw_content; it has body, id, inner: name the text's field with `text:`"]]
        * 2
    )
    assert remarks(strange, keep=["id"]) == remarks(strange)
    assert (
        remarks(strange, text="inner.text")
        == [["its column inner.text is int64 and no text; name the text's column with `text:`"]] * 2
    )
    assert (
        remarks(strange, text="body")
        == remarks(table())
        == remarks(table().slice(0, 0))
        == remarks(strange.slice(0, 0))
        == [[], []]
    )


def test_text_that_is_not_utf8_is_mended():
    bad = pa.array([b"ok", b"\xff bad"], pa.binary()).view(pa.string())
    assert [row["text"] for row in read(parquet(pa.table({"text": bad})))[0]] == ["ok", "\ufffd bad"]


def both(data: pa.Table, **chosen) -> list[dict]:
    """Its rows from Parquet, which are those from Arrow."""
    arrow = io.BytesIO()
    with pa.ipc.new_file(arrow, data.schema) as writer:
        writer.write_table(data)
    rows = read(parquet(data), reader=Parquet(path="x", **chosen))[0]
    assert rows == read(arrow.getvalue(), reader=Arrow(path="x", **chosen))[0]
    return rows


def test_what_python_cannot_hold_is_a_text():
    bad = pa.array([b"ok", b"\xff bad"], pa.binary()).view(pa.string())
    inner = pa.StructArray.from_arrays([bad, bad], ["url", "x"])
    times = pa.array([1, 1 << 62]).cast(pa.timestamp("us"))
    strange = pa.table({
        "text": ["a", "b"], "metadata": inner, "tags": pa.ListArray.from_arrays([0, 1, 2], bad), "date": times,
        "map": pa.MapArray.from_arrays([0, 1, 2], pa.array(["k", "k"]), bad), "zone": times.cast(pa.timestamp("us", "No/Where")),
    })  # fmt: skip
    first, second = both(strange)
    assert (first["url"], second["url"], first["date"], second["text"]) == (
        "ok",
        "\ufffd bad",
        "1970-01-01T00:00:00.000001",
        "b",
    )
    assert json.loads(second["meta"]) == {
        "map": [["k", "\ufffd bad"]],
        "metadata": {"x": "\ufffd bad"},
        "tags": ["\ufffd bad"],
        "zone": str(1 << 62),
    }
    assert str(1 << 62) in second["date"]
    assert [row["text"] for row in both(strange, text="metadata.x")] == ["ok", "\ufffd bad"]


def test_views_inside_others_and_dictionaries_from_arrow():
    views = pa.array(["u:0", None, "u:2"], pa.string_view())
    data = pa.table({
        "text": pa.array(["a", None, "c"]).dictionary_encode(), "metadata": pa.StructArray.from_arrays([views, views], ["url", "x"]),
        "list": pa.ListArray.from_arrays([0, 1, 2, 3], views),
    })  # fmt: skip
    out = io.BytesIO()
    with pa.ipc.new_file(out, data.schema) as writer:
        writer.write_table(data)
    rows, skipped, _, _ = read(out.getvalue(), reader=Arrow(path="x"))
    assert [(row["text"], row["url"]) for row in rows] == [("a", "u:0"), ("c", "u:2")] and skipped == {"no_text": 1}
    assert json.loads(rows[1]["meta"]) == {"list": ["u:2"], "metadata": {"x": "u:2"}}


def test_the_first_place_that_holds_a_value_counts_in_each_row():
    rows = [
        {"text": "a", "content": "b", "url": None, "metadata": {"url": "u:1", "x": 1}, "doc_id": 7},
        {"text": None, "content": "c", "url": "u:2", "metadata": {"url": "u:3", "x": None}, "doc_id": 8},
        {"text": None, "content": None, "url": None, "metadata": None, "doc_id": None},
    ]
    for chosen in ({}, {"keep": ["content", "metadata"]}):
        lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
        expected = [
            row
            for r in Jsonl(path="x", **chosen).read(io.BytesIO(lines), Origin("s", "a", len(lines)))
            for row in r.documents.to_pylist()
        ]
        found = both(pa.Table.from_pylist(rows), **chosen)
        names = ("text", "id", "url")
        assert [[row[name] for name in names] for row in found] == [
            [row[name] for name in names] for row in expected
        ] and len(found) == 2
        assert [row["text"] for row in found] == ["a", "c"] and json.loads(found[0]["meta"]) == json.loads(
            expected[0]["meta"]
        )
        assert json.loads(found[0]["meta"]) == {"content": "b", "metadata": {"x": 1}}
    assert remarks(pa.table({"text": pa.nulls(1), "content": ["a"]})) == [[], []]
    for text, kind in ((pa.nulls(1), "null"), (pa.array([1]), "int64")):
        odd = pa.table({"text": text, "id": [1]} | ({"content": ["a"]} if kind == "int64" else {}))
        assert (
            remarks(odd) == [[f"its column text is {kind} and no text; name the text's column with `text:`"]] * 2
            and both(odd) == []
        )


def test_numbers_that_json_has_not_are_null():
    (row,) = both(pa.table({"text": ["a"], "score": [float("nan")], "more": [[1.0, float("inf")]]}))
    assert row["meta"] == '{"more": [1.0, null], "score": null}'


def test_only_what_is_kept_goes_into_meta():
    rows = read(parquet(table()), reader=Parquet(path="x", keep=[]))[0]
    assert len(rows) == 90 and {row["meta"] for row in rows} == {None}


@pytest.mark.parametrize("new", [pa.ipc.new_file, pa.ipc.new_stream])
def test_arrow_files_and_streams(new):
    out = io.BytesIO()
    with new(out, table().schema) as writer:
        writer.write_table(table(), max_chunksize=30)
    rows, skipped, _, damaged = read(out.getvalue(), reader=Arrow(path="x"))
    assert rows == read(parquet(table()))[0] and (skipped, damaged) == ({"no_text": 10}, [])
    cut = read(out.getvalue()[: len(out.getvalue()) * 2 // 3], reader=Arrow(path="x"))
    assert len(cut[3]) == 1 and len(cut[0]) < 90


PAGE = "<meta charset=latin1><p>Grüße"


def pages(column: pa.Array, reader=Parquet, **chosen) -> tuple[list[dict], dict[str, int]]:
    """Documents of a table with this column, `doc.html`, and what was skipped."""
    data = pa.table(
        {
            "doc": pa.StructArray.from_arrays([column, pa.array(range(len(column)))], ["html", "n"]),
            "url": ["u:"] * len(column),
        }
    )
    out = io.BytesIO()
    if reader is Parquet:
        pq.write_table(data, out)
    else:
        with pa.ipc.new_file(out, data.schema) as file:
            file.write_table(data)
    readings = list(reader(path="x", html="doc.html", **chosen).read(out, Origin("s", "a", len(out.getvalue()))))
    assert {reading.documents.schema == page_schema() for reading in readings if len(reading.documents)} == {True}
    skipped: dict[str, int] = {}
    for reading in readings:
        assert reading.damaged == []
        skipped |= reading.skipped
    return [row for reading in readings for row in reading.documents.to_pylist()], skipped


@pytest.mark.parametrize("reader", [Parquet, Arrow])
@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.dictionary(pa.int32(), pa.string())]
)
def test_columns_of_pages(kind, reader):
    binary = kind in (pa.binary(), pa.large_binary())
    values = [PAGE, None, " \n", "", PAGE * 20]
    column = pa.array(
        [v if v is None or not binary else v.encode("latin1") for v in values], kind if binary else pa.string()
    ).cast(kind)
    rows, skipped = pages(column, reader, max_record_bytes=300)
    assert [(row["html"], row["charset"]) for row in rows] == [
        (PAGE.encode("latin1"), None) if binary else (PAGE.encode(), "utf-8")
    ]
    assert (rows[0]["text"], rows[0]["url"], rows[0]["meta"], rows[0]["uid"]) == (
        None,
        "u:",
        '{"doc": {"n": 0}}',
        uid_of("s", "a", "0:0"),
    )
    assert skipped == {"no_html": 3, "too_large": 1}
    assert Extract()(pa.Table.from_pylist(rows, page_schema()))["text"].to_pylist() == ["Grüße"]


def test_strings_that_are_no_utf8_are_bytes_whose_charset_is_detected():
    data = PAGE.encode() + PAGE.encode("latin1")
    offsets = pa.py_buffer(np.array([0, len(PAGE.encode()), len(data)], np.int32))
    rows, _ = pages(pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(data)]))
    assert [(row["html"], row["charset"]) for row in rows] == [(PAGE.encode(), "utf-8"), (PAGE.encode("latin1"), None)]


def test_a_column_that_cannot_hold_pages_is_remarked():
    data = parquet(table())
    (first, *_) = Parquet(path="x", html="id").read(io.BytesIO(data), Origin("s", "a", len(data)))
    assert first.remarks == ["its column id is int64 and no text; name the html's column with `html:`"]


def test_large_pages_of_an_arrow_file_come_in_batches_of_bounded_size():
    page = "<p>" + "x" * (8 << 20)
    out = io.BytesIO()
    with pa.ipc.new_file(out, pa.schema([("html", pa.string())])) as file:
        file.write_batch(pa.record_batch({"html": pa.array([page] * 20)}))
    readings = list(Arrow(path="x", html="html").read(out, Origin("s", "a", len(out.getvalue()))))
    assert (
        sum(len(reading.documents) for reading in readings) == 20
        and max(reading.documents.nbytes for reading in readings) < 80 << 20
    )
    uids = [uid for reading in readings for uid in reading.documents["uid"].to_pylist()]
    assert uids == [uid_of("s", "a", f"0:{n}") for n in range(20)]
