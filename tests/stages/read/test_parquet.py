"""What is promised of Parquet and Arrow: every row is a document, a skip or damage, whatever its types and however it is cut."""

import datetime
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stages.documents import BASE, uid_of
from stages.read.arrow import Arrow
from stages.read.parquet import Parquet
from stages.stage import Origin

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
    rows, skipped, _, damaged = read(whole[:start] + b"\xff" * info.total_compressed_size + whole[start + info.total_compressed_size :])
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
        remarks(strange) == [["it has none of text, content, raw_content; it has body, id, inner: name the text's field with `text:`"]] * 2
    )
    assert remarks(strange, keep=["id"]) == remarks(strange)
    assert remarks(strange, text="inner.text") == [["its column inner.text is int64 and no text; name the text's column with `text:`"]] * 2
    assert remarks(strange, text="body") == remarks(table()) == remarks(table().slice(0, 0)) == remarks(strange.slice(0, 0)) == [[], []]


def test_text_that_is_not_utf8_is_mended():
    bad = pa.array([b"ok", b"\xff bad"], pa.binary()).view(pa.string())
    assert [row["text"] for row in read(parquet(pa.table({"text": bad})))[0]] == ["ok", "\ufffd bad"]


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
