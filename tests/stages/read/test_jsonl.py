"""What is promised of JSON lines: any cut gives the same, and a bad line costs that line."""

import bz2
import gzip
import io
import json
import lzma
import random
import zlib

import pytest
import zstandard
from hypothesis import given, settings, strategies as st

from gristmill.stages.documents import uid_of
from gristmill.stages.read.columns import pieces
from gristmill.stages.read.frames import frames_of
from gristmill.stages.read.jsonl import Jsonl
from gristmill.stages.stage import Origin


def read(data: bytes, path: str = "a.jsonl", cut: int | None = None, **chosen):
    reader = Jsonl(path="x", **chosen)
    rows, skipped, damaged = [], {}, []
    for start, end in reader.spans(io.BytesIO(data), path, len(data), cut or len(data) or 1):
        for reading in reader.read(io.BytesIO(data), Origin("s", path, len(data), start, end)):
            rows += reading.documents.to_pylist()
            damaged += reading.damaged
            for reason, count in reading.skipped.items():
                skipped[reason] = skipped.get(reason, 0) + count
    return rows, skipped, damaged


LINES = [
    json.dumps({"text": f"text {n} " * (n % 5 + 1), "id": n, "url": f"u:{n}", "more": {"n": n}}).encode()
    for n in range(40)
]
DATA = b"\n".join(LINES) + b"\n"


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 3000))
def test_any_cut_gives_the_same(cut):
    rows, skipped, damaged = read(DATA, cut=cut)
    assert [row["url"] for row in rows] == [f"u:{n}" for n in range(40)] and (skipped, damaged) == ({}, [])
    assert rows == read(DATA)[0]


def test_identity_is_the_byte_where_the_line_begins():
    rows = read(DATA)[0]
    assert rows[1]["uid"] == uid_of("s", "a.jsonl", len(LINES[0]) + 1)
    assert (rows[1]["id"], rows[1]["meta"]) == ("1", '{"more": {"n": 1}}')


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_compressed_files_of_many_members(pack):
    data = pack(DATA[:777]) + pack(DATA[777:])
    rows, _, damaged = read(data, "a.jsonl.gz", cut=50)
    assert [row["url"] for row in rows] == [f"u:{n}" for n in range(40)] and damaged == []


def bgzf(data: bytes) -> bytes:
    """A member as bgzip writes it: its length in its header."""
    body = zlib.compressobj(wbits=-15)
    packed = body.compress(data) + body.flush()
    head = b"\x1f\x8b\x08\x04" + bytes(5) + b"\xff\x06\x00BC\x02\x00"
    length = len(head) + 2 + len(packed) + 8
    tail = zlib.crc32(data).to_bytes(4, "little") + len(data).to_bytes(4, "little")
    return head + (length - 1).to_bytes(2, "little") + packed + tail


FRAMES = {"a.jsonl.zst": zstandard.ZstdCompressor(write_checksum=True).compress, "a.jsonl.gz": bgzf}


def in_frames(path: str, each: int) -> bytes:
    return b"".join(FRAMES[path](DATA[at : at + each]) for at in range(0, len(DATA), each))


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(sorted(FRAMES)), st.integers(7, 900), st.integers(1, 3000))
def test_any_cut_between_frames_gives_the_same(path, each, cut):
    data = in_frames(path, each)
    rows, skipped, damaged = read(data, path, cut=cut)
    assert [row["url"] for row in rows] == [f"u:{n}" for n in range(40)] and (skipped, damaged) == ({}, [])
    plain = [uid_of("s", path, place) for place in [0, *(i + 1 for i, c in enumerate(DATA[:-1]) if c == 10)]]
    assert [row["uid"] for row in rows] == plain  # places are those in the text


def test_a_file_of_many_frames_is_many_spans():
    for path in FRAMES:
        data = in_frames(path, 200)
        spans = Jsonl(path="x").spans(io.BytesIO(data), path, len(data), 300)
        assert len(spans) > 5 and [end for _, end in spans[:-1]] == [start for start, _ in spans[1:]]


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(sorted(FRAMES)), st.integers(50, 900), st.integers(1, 3000), st.data())
def test_a_damaged_frame_costs_the_same_under_any_cut(path, each, cut, data):
    whole = in_frames(path, each)
    frames = frames_of(io.BytesIO(whole), len(whole))
    assert frames is not None and frames[-1].after == len(DATA)
    hit = data.draw(st.sampled_from(frames))
    broken = bytearray(whole)
    broken[hit.end - (4 if path.endswith("zst") else 8)] ^= 1  # of its checksum
    rows, _, damaged = read(bytes(broken), path)
    assert read(bytes(broken), path, cut=cut)[0] == rows
    assert [(d.start, d.end, d.records) for d in damaged] == [(hit.start, hit.end, 1)]
    assert [str(d) for d in read(bytes(broken), path, cut=cut)[2]] == [str(d) for d in damaged]
    assert [row["url"] for row in rows] == [f"u:{n}" for n in range(40)]  # all is there, and only the sum is wrong


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(sorted(FRAMES)), st.integers(50, 900), st.integers(1, 3000), st.data())
def test_a_frame_that_breaks_costs_the_same_under_any_cut(path, each, cut, data):
    whole = in_frames(path, each)
    hit = data.draw(st.sampled_from(frames_of(io.BytesIO(whole), len(whole))))
    at = hit.start + 18 if path.endswith("gz") else hit.end - 9
    broken = whole[:at] + b"\xff" * 5 + whole[at + 5 :]
    rows, _, damaged = read(broken, path)
    cut_rows, _, cut_damaged = read(broken, path, cut=cut)
    assert cut_rows == rows
    assert sorted(map(str, cut_damaged)) == sorted(map(str, damaged))  # a frame's comes first, or a line's
    assert (hit.start, hit.end) in [(d.start, d.end) for d in damaged]
    begins = [0, *(i + 1 for i, c in enumerate(DATA[:-1]) if c == 10), len(DATA)]
    untouched = [n for n in range(40) if begins[n + 1] <= hit.place or begins[n] > hit.after]
    assert {f"u:{n}" for n in untouched} <= {row["url"] for row in rows}


def test_frames_that_lie_or_do_not_tell_are_no_frames():
    streamed = zstandard.ZstdCompressor().compressobj()
    untold = streamed.compress(DATA) + streamed.flush()
    for data in (untold, gzip.compress(DATA), in_frames("a.jsonl.zst", 500)[:-3]):
        assert frames_of(io.BytesIO(data), len(data)) is None
    assert len(read(untold, "a.jsonl.zst", cut=50)[0]) == 40
    lie = bytearray(bgzf(DATA[:500]) + bgzf(DATA[500:]))
    lie[16] -= 1
    assert frames_of(io.BytesIO(lie), len(lie)) is None


def test_bad_lines_cost_themselves():
    bad = [b"{oops", b"[1]", b'{"text": 3}', b"{}", b"\xff\xfe", b"", b'{"text": "\\ud800!"}', b"[" * 100_000]
    data = b"\xef\xbb\xbf" + LINES[0] + b"\r\n" + b"\n".join(bad) + b"\n" + LINES[1]
    rows, skipped, damaged = read(data)
    assert [row["text"] for row in rows] == ["text 0 ", "\ufffd!", "text 1 text 1 "]
    assert skipped == {"no_text": 2} and sum(d.records for d in damaged) == 4
    assert read(data, cut=11)[0] == rows


def test_lone_surrogates_become_replacement_characters():
    text = "a \ud800 b \U0001f600 \udc00"
    ((got,), _, _) = read(json.dumps({"text": text}).encode())
    assert got["text"] == "a \ufffd b \U0001f600 \ufffd"
    ((got,), _, _) = read(json.dumps({"html": f"<p>{text}"}).encode(), html="html")
    assert got["html"].decode() == "<p>a \ufffd b \U0001f600 \ufffd"


@pytest.mark.parametrize(
    ("text", "kind"),
    [("3", "a number"), ("0.5", "a number"), ('["a"]', "a list"), ("{}", "an object"), ("true", "a boolean")],
)
def test_a_text_that_is_none_is_told_by_its_kind(text, kind):
    data = f'{{"text": {text}, "url": "u:"}}\n'.encode() * 3
    (reading,) = Jsonl(path="x").read(io.BytesIO(data), Origin("s", "a.jsonl", len(data)))
    assert reading.skipped == {"no_text": 3} and {skip.detail for skip in reading.skips} == {f"text is {kind}"}
    assert reading.remarks == [f"its field text is {kind} and no text; name the text's field with `text:`"]
    assert remarks(data + LINES[0]) == [] == remarks(b'{"text": null}\n{"text": ""}')
    assert remarks(b'{"a": {"b": [1]}}', text="a.b")[0].startswith("its field a.b is a list and")


def test_a_line_that_is_too_long_is_skipped():
    data = LINES[0] + b"\n" + b'{"text": "' + b"a" * 3_000_000 + b'"}\n' + LINES[1]
    rows, skipped, _ = read(data, max_record_bytes=1000)
    assert len(rows) == 2 and skipped == {"too_large": 1}


def test_a_truncated_stream_keeps_what_came_before():
    data = gzip.compress(b"".join(b'{"text": "%032x"}\n' % (n * 7**30) for n in range(5000)))
    rows, _, damaged = read(data[: len(data) // 2], "a.jsonl.gz")
    assert 1000 < len(rows) < 5000 and len(damaged) == 1 and damaged[0].end == len(data) // 2
    assert read(b"noise" * 100, "a.jsonl.gz")[2][0].start == 0
    assert [str(d) for d in read(b"", "a.jsonl.gz")[2]] == ["a.jsonl.gz: the file is empty"]


def remarks(data: bytes, path: str = "a.jsonl", **chosen) -> list[str]:
    readings = Jsonl(path="x", **chosen).read(io.BytesIO(data), Origin("s", path, len(data)))
    return [remark for reading in readings for remark in reading.remarks]


def test_an_empty_file_is_worth_a_remark():
    assert read(b"") == ([], {}, []) and remarks(b"") == ["the file is empty"]
    assert remarks(DATA) == [] == remarks(b"\n")


def test_rows_whose_text_has_another_name_are_worth_a_remark():
    rows = b'{"body": "a", "no": 1}\n{"no": 2}\n'
    assert remarks(rows) == [
        "it has none of text, content, raw_content; it has body, no: name the text's field with `text:`"
    ]
    assert remarks(rows + LINES[0]) == [] == remarks(LINES[0] + b"\n" + rows) == remarks(rows, text="body")
    assert remarks(b'{"text": null}\n') == [] and read(b'{"text": null}\n')[1] == {"no_text": 1}  # the field is there
    assert (
        remarks(b'{"\\ud800": 1}')[0].count("\ufffd") == 1
        and "and 94 more" in remarks(json.dumps({str(n): n for n in range(100)}).encode())[0]
    )


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.ZstdCompressor().compress])
@pytest.mark.parametrize(
    ("head", "reader"), [(b"WARC/1.0\r\n", "warc"), (b"PAR1\x15\x04", "parquet"), (b"ARROW1\0\0", "arrow")]
)
def test_a_file_of_another_format_is_one_damage_that_names_its_reader(pack, head, reader):
    data = pack(head + b"line\n" * 5000)
    rows, skipped, damaged = read(data, cut=1000)
    assert (rows, skipped) == ([], {}) and [(d.start, d.end, d.records) for d in damaged] == [(0, len(data), 1)]
    assert damaged[0].what.endswith(f"and no JSON lines; read it with `{reader}`")


@pytest.mark.parametrize(
    ("pack", "name"),
    [(bz2.compress, "bzip2"), (lzma.compress, "xz"), (lambda data: gzip.compress(gzip.compress(data)), "packed twice")],
)
def test_a_file_packed_in_another_way_is_one_damage_that_says_so(pack, name):
    rows, _, damaged = read(pack(DATA), "a.jsonl.gz")
    assert rows == [] and len(damaged) == 1 and name in damaged[0].what and "pack it as gzip or zstd" in damaged[0].what


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (json.dumps([{"text": "a"}] * 3, indent=1).encode(), "a JSON array"),
        (DATA.decode().encode("utf-16"), "UTF-16"),
        (b"\n<!DOCTYPE html>\n<p>words\n" * 9, "HTML"),
    ],
    ids=["array", "utf-16", "html"],
)
def test_a_file_of_no_lines_of_json_is_one_damage_that_says_so(data, name):
    for pack in (bytes, gzip.compress):
        rows, _, damaged = read(pack(data), cut=20)
        assert rows == [] and [d.what.split(";")[0] for d in damaged] == [f"it holds {name} and no JSON lines"]
    assert len(read(b"[1]\n[{]\n" + DATA)[0]) == 40  # bad lines, each by itself


def test_numbers_that_json_has_not_are_null():
    rows = read(b'{"text": "a", "score": NaN, "far": [1e999, -Infinity, 1.5]}')[0]
    assert rows[0]["meta"] == '{"far": [null, null, 1.5], "score": null}'


def test_damage_is_handed_on_as_it_gathers():
    data = b"no json\n" * 20_000
    readings = list(Jsonl(path="x").read(io.BytesIO(data), Origin("s", "a", len(data))))
    assert sum(len(r.damaged) for r in readings) == 20_000 and max(len(r.damaged) for r in readings) <= 8192


@pytest.mark.parametrize("layout", ["auto", "own"])
def test_layouts(layout):
    rows = {
        "dolma": {"text": "t", "id": "i", "source": "s", "created": "2020", "metadata": {"url": "u:", "x": 1}},
        "datatrove": {"text": "t", "id": "i", "metadata": {"url": "u:", "date": "2020", "x": 1}},
        "fineweb": {"text": "t", "id": "i", "dump": "d", "url": "u:", "date": "2020", "language_score": 0.9},
        "plain": {"text": "t", "id": "i", "url": "u:", "date": "2020"},
    }
    metas = {
        "dolma": {"metadata": {"x": 1}, "source": "s"}, "datatrove": {"metadata": {"x": 1}},
        "fineweb": {"dump": "d", "language_score": 0.9}, "plain": None,
    }  # fmt: skip
    for name, row in rows.items():
        got = read(json.dumps(row).encode(), layout=name if layout == "own" else "auto")[0]
        assert [(g["text"], g["id"], g["url"], g["date"]) for g in got] == [("t", "i", "u:", "2020")]
        assert (json.loads(got[0]["meta"]) if got[0]["meta"] else None) == metas[name]


def test_a_list_of_one_is_what_is_in_it_and_objects_are_json():
    rows = [{"text": "t", "url": ["u:"], "id": {"b": [1], "a": "é"}}, {"text": "t", "url": ["u:", "v:"], "id": []}]
    got = read(b"\n".join(json.dumps(row).encode() for row in rows))[0]
    assert [(g["url"], g["id"]) for g in got] == [("u:", '{"a": "é", "b": [1]}'), ('["u:", "v:"]', "[]")]


def test_fields_of_a_recipe_go_before_the_layout():
    got = read(b'{"a": {"b": "hello"}, "text": "no", "k": 1, "l": 2}', text="a.b", keep=["k"])[0]
    assert [(g["text"], g["meta"]) for g in got] == [("hello", '{"k": 1}')]


def test_a_small_file_that_is_no_gzip_is_not_called_cut_short():
    for data, says in (
        (b"hello\n", "no gzip begins here"),
        (gzip.compress(b'{"text": "a"}\n')[:6], "the file ends inside its compressed stream"),
    ):
        assert says in str(read(data, "a.jsonl.gz"))


def test_rows_of_pages():
    lines = [
        {"doc": {"html": "<meta charset=latin1><p>Grüße", "n": 1}, "url": "u:", "text": "old"},
        {"doc": {"html": " \n"}, "url": "v:"},
        {"url": "w:"},
    ]
    data = b"\n".join(json.dumps(line).encode() for line in [*lines, {"doc": {"html": "x" * 400}}])
    reader = Jsonl(path="x", html="doc.html", max_record_bytes=300)
    (reading,) = reader.read(io.BytesIO(data), Origin("s", "a.jsonl", len(data)))
    (row,) = reading.documents.to_pylist()
    assert (row["html"], row["charset"], row["text"], row["url"]) == (
        "<meta charset=latin1><p>Grüße".encode(),
        "utf-8",
        None,
        "u:",
    )
    assert json.loads(row["meta"]) == {"doc": {"n": 1}, "text": "old"}  # a text beside the page is the source's own
    assert reading.skipped == {"no_html": 2, "too_large": 1} and [skip.url for skip in reading.skips] == ["v:", "w:"]
    assert reader.gives_pages and not Jsonl(path="x").gives_pages


def test_text_and_html_exclude_each_other():
    with pytest.raises(ValueError, match=r"text \(body\) and html \(page\) exclude each other"):
        Jsonl(path="x", text="body", html="page")


def test_a_field_of_pages_is_found_or_remarked():
    row = b'{"raw_html": "<p>a", "url": "u:"}\n'
    assert remarks(row, html="page") == [
        "it has none of page; it has raw_html, url: name the html's field with `html:`"
    ]
    assert remarks(row, html="raw_html") == [] and remarks(row)[0].endswith(
        "with `text:`, or a field of pages with `html:`"
    )


@pytest.mark.parametrize(("name", "pack"), [("a.jsonl.gz", gzip.compress), ("a.jsonl.zst", zstandard.compress)])
def test_columns_of_a_packed_file_that_takes_several_reads(name, pack):
    lines = [json.dumps({"text": random.Random(number).randbytes(300).hex()}) + "\n" for number in range(3000)]
    data = pack("".join(lines).encode())
    assert len(data) > 600_000  # a read is of 256 KiB
    texts = [text for table in pieces(io.BytesIO(data), name, ["text"]) for text in table["text"].to_pylist()]
    assert len(texts) == 3000 and [json.dumps({"text": text}) + "\n" for text in texts] == lines
