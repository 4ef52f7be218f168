"""What is promised of WARC, ARC and WET: every whole record comes out once, damage is counted once, however a file is
cut."""

import gzip
import io
import json
import random
import time
import zlib
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard
from fastwarc.warc import ArchiveIterator, WarcRecordType
from hypothesis import given, settings, strategies as st
from warcio.archiveiterator import ArchiveIterator as WarcioIterator

from gristmill.stages.documents import uid_of
from gristmill.stages.read.warc import Warc
from gristmill.stages.read.wet import Wet
from gristmill.stages.stage import Origin

READER = Warc(path="x")


def record(url: str, body: bytes, kind: str = "response", **extra: str) -> bytes:
    lines = [
        f"WARC-Type: {kind}",
        f"WARC-Record-ID: <urn:uuid:{url}>",
        f"WARC-Target-URI: {url}",
        "WARC-Date: 2026-01-01T00:00:00Z",
    ]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in extra.items()]
    return (
        ("WARC/1.0\r\n" + "\r\n".join([*lines, f"Content-Length: {len(body)}"]) + "\r\n\r\n").encode()
        + body
        + b"\r\n\r\n"
    )


def page(
    url: str, html: bytes, status: str = "200 OK", headers: str = "Content-Type: text/html; charset=UTF-8"
) -> bytes:
    return record(
        url,
        f"HTTP/1.1 {status}\r\n{headers}\r\n\r\n".encode() + html,
        Content_Type="application/http; msgtype=response",
    )


def html_of(number: int) -> bytes:
    return b"<html><p>" + random.Random(number).randbytes(300 + number % 7 * 100).hex().encode() + b"</p></html>"


PAGES = [page(f"https://e.example/{n}", html_of(n)) for n in range(12)]
URLS = [f"https://e.example/{n}" for n in range(12)]


def read(data: bytes, path: str = "a.warc.gz", cut: int | None = None, reader=READER):
    """Rows, skips, damage and counts of a file, read in spans of `cut` bytes."""
    rows, skipped, skips, damaged = [], {}, [], []
    for start, end in reader.spans(io.BytesIO(data), path, len(data), cut or len(data) or 1):
        readings = list(reader.read(io.BytesIO(data), Origin("s", path, len(data), start, end)))
        assert readings
        for reading in readings:
            rows += reading.documents.to_pylist()
            skips += reading.skips
            damaged += reading.damaged
            for reason, count in reading.skipped.items():
                skipped[reason] = skipped.get(reason, 0) + count
    return rows, skipped, skips, damaged


def urls(rows) -> list[str]:
    return [row["url"] for row in rows]


def hostile() -> bytes:
    """Good records with broken ones between, in the manner of shared/checks/crawl.py."""
    members = [gzip.compress(p, mtime=0) for p in PAGES]
    for bad in (3, 4, 8):
        middle = len(members[bad]) // 2
        members[bad] = members[bad][:middle] + b"\xff" * 64 + members[bad][middle + 64 :]
    members[6] = b"\0" * 20 + members[6][20:]  # not even a magic number is left
    return (
        b"".join(members)
        + gzip.compress(page("u:gone", b"gone", "404 Not Found"), mtime=0)
        + gzip.compress(PAGES[0], mtime=0)[:200]
    )


def test_good_records_survive_damaged_neighbours():
    data = hostile()
    rows, skipped, skips, damaged = read(data)
    assert urls(rows) == [u for n, u in enumerate(URLS) if n not in (3, 4, 6, 8)]
    assert skipped == {"http_status": 1} and skips[0].detail == "404 Not Found"
    starts = [data.find(gzip.compress(PAGES[n], mtime=0)[:40]) for n in (3, 4, 8)]
    assert [d.start for d in damaged][:2] == starts[:2]
    assert len(damaged) == 5 and damaged[-1].what == "the file ends inside this record" and damaged[-1].end == len(data)
    assert damaged[0].end == damaged[1].start


@pytest.mark.parametrize("cut", [1, 7, 97, 401, 1000, 4096, 9999])
def test_any_cut_gives_the_same(cut):
    data = hostile()
    assert read(data, cut=cut) == read(data)


def test_a_flipped_bit_in_the_checksum_costs_that_record():
    members = [bytearray(gzip.compress(p, mtime=0)) for p in PAGES[:3]]
    members[1][-6] ^= 1
    rows, _, _, damaged = read(b"".join(map(bytes, members)))
    assert urls(rows) == [URLS[0], URLS[2]]
    assert len(damaged) == 1 and "checksum" in damaged[0].what


FORMS = {
    "plain.warc": b"".join(PAGES),
    "members.warc.gz": b"".join(gzip.compress(p, mtime=0) for p in PAGES),
    "one.warc.gz": gzip.compress(b"".join(PAGES), mtime=0),
    "frames.warc.zst": b"".join(zstandard.ZstdCompressor().compress(p) for p in PAGES),
    "padded.warc.gz": b"".join(gzip.compress(p, mtime=0) for p in PAGES) + b"\0" * 512,
    "empty-members.warc.gz": gzip.compress(b"", mtime=0).join(gzip.compress(p, mtime=0) for p in PAGES),
}


@pytest.mark.parametrize("path", FORMS)
def test_every_form_gives_the_same_pages_at_any_cut(path):
    whole = read(FORMS[path], path)
    assert urls(whole[0]) == URLS and whole[1:] == ({}, [], [])
    assert [row["html"] for row in whole[0]] == [html_of(n) for n in range(12)]
    for cut in (13, 333, 2500):
        assert read(FORMS[path], path, cut) == whole


def test_frames_with_a_dictionary_in_front():
    dictionary = zstandard.train_dictionary(2000, PAGES * 20)
    raw = dictionary.as_bytes()
    frames = b"".join(zstandard.ZstdCompressor(dict_data=dictionary).compress(p) for p in PAGES)
    for stored in (raw, zstandard.ZstdCompressor().compress(raw)):
        data = b"\x5d\x2a\x4d\x18" + len(stored).to_bytes(4, "little") + stored + frames
        rows, _, _, damaged = read(data, "d.warc.zst")
        assert urls(rows) == URLS and damaged == []
        assert read(data, "d.warc.zst", 500)[0] == rows


def test_identity_is_the_place_and_not_the_record_id():
    member = gzip.compress(PAGES[0], mtime=0)
    rows = read(member + member)[0]
    assert [row["id"] for row in rows] == [URLS[0]] * 2
    assert [row["uid"] for row in rows] == [uid_of("s", "a.warc.gz", f"{at}:0") for at in (0, len(member))]
    assert rows[0]["date"] == "2026-01-01T00:00:00Z" and rows[0]["charset"] == "utf-8"


def test_a_page_that_quotes_a_record_fools_no_span_of_a_plain_file():
    quoting = page("https://e.example/quoting", b"<html>" + b"\r\n".join(PAGES[:3]) + b"</html>")
    data = PAGES[0] + quoting + PAGES[1]
    for cut in (10, 200, 1000, len(data)):
        assert urls(read(data, "q.warc", cut)[0]) == [URLS[0], "https://e.example/quoting", URLS[1]]


@pytest.mark.parametrize("wrong", [b"Content-Length: 9\r\n", b"Content-Length: 99999999\r\n", b"Content-Length: x\r\n"])
def test_a_wrong_length_in_a_plain_file_costs_one_record(wrong):
    start = PAGES[1].index(b"Content-Length")
    bad = PAGES[1][:start] + wrong + PAGES[1][PAGES[1].index(b"\r\n", start) + 2 :]
    data = PAGES[0] + bad + PAGES[2] + PAGES[3]
    rows, _, _, damaged = read(data, "w.warc")
    assert urls(rows) == [URLS[0], URLS[2], URLS[3]]
    assert [(d.start, d.end) for d in damaged] == [(len(PAGES[0]), len(PAGES[0] + bad))]
    for cut in (50, 777):
        assert read(data, "w.warc", cut) == (rows, {}, [], damaged)


def test_nothing_and_noise():
    for reader in (READER, Wet(path="x")):
        assert [str(d) for d in read(b"", reader=reader)[3]] == ["a.warc.gz: the file is empty"]
    noise = random.Random(1).randbytes(50_000)
    for path in ("n.warc", "n.warc.gz", "n.warc.zst"):
        rows, skipped, _, damaged = read(noise, path)
        assert (rows, skipped) == ([], {}) and [(d.start, d.end) for d in damaged] == [(0, len(noise))]
        assert read(noise, path, 5000)[3] == damaged


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(FORMS)),
    st.lists(st.tuples(st.floats(0, 0.999), st.binary(min_size=1, max_size=80)), max_size=4),
    st.integers(40, 6000),
)
def test_any_damage_is_survived_and_the_same_at_any_cut(path, wounds, cut):
    data = bytearray(FORMS[path])
    for place, noise in wounds:
        at = int(place * len(data))
        data[at : at + len(noise)] = noise
    whole = read(bytes(data), path)
    assert read(bytes(data), path, cut) == whole
    assert len(whole[0]) <= 13


def test_every_reason_to_skip():
    chunked = b"5\r\n<html\r\n6\r\n>hello\r\n0\r\n\r\n"
    packed = gzip.compress(b"<html>packed</html>", mtime=0)
    members = [
        record("u:info", b"", "warcinfo"), record("u:req", b"GET /", "request"), record("u:rev", b"", "revisit"),
        page("u:301", b"", "301 Moved", "Location: u:there"), page("u:500", b"<html>", "500 Oops"), page("u:png", b"\x89PNG", headers="Content-Type: image/png"),
        page("u:empty", b" \r\n"), page("u:liar", b"%PDF-1.4"), record("u:odd", b"nonsense", Content_Type="application/http"),
        page("u:chunked", chunked, headers="content-TYPE: text/html\r\nTransfer-Encoding: chunked"),
        page("u:packed", packed, headers="Content-Type: text/html\r\nContent-Encoding: gzip"),
        page("u:notpacked", b"<html>not</html>", headers="Content-Type: text/html\r\nContent-Encoding: gzip"),
        page("u:sniffed", b"<!DOCTYPE html><p>x", headers="Server: x"), record("u:res", b"<html>res", "resource", Content_Type="text/html"),
        page("u:bomb", gzip.compress(b"<" * 300_000, mtime=0), headers="Content-Type: text/html\r\nContent-Encoding: gzip"), page("u:big", b"<p>" * 99_000),
    ]  # fmt: skip
    reader = Warc(path="x", max_record_bytes=200_000)
    for data, path in ((b"".join(map(gzip.compress, members)), "r.warc.gz"), (b"".join(members), "r.warc")):
        rows, skipped, skips, damaged = read(data, path, reader=reader)
        assert {row["url"]: row["html"] for row in rows} == {
            "u:chunked": b"<html>hello", "u:packed": b"<html>packed</html>", "u:notpacked": b"<html>not</html>",
            "u:sniffed": b"<!DOCTYPE html><p>x", "u:res": b"<html>res",
        }  # fmt: skip
        assert skipped == {
            "not_a_page": 2,
            "revisit": 1,
            "redirect": 1,
            "http_status": 1,
            "not_html": 2,
            "empty_page": 1,
            "not_http": 1,
            "too_large": 2,
        }
        assert {s.url: s.detail for s in skips if s.reason == "redirect"} == {"u:301": "u:there"} and damaged == []


PROSE = b"<html>" + b"".join(b"<p>A page of many words, number %d.</p>" % n for n in range(3000))
BROTLI = bytes(pa.compress(PROSE, codec="brotli", asbytes=True))


def test_a_payload_whose_encoding_breaks_off_is_a_page_as_far_as_it_goes():
    for packed in (BROTLI, BROTLI + b"\r\n", BROTLI[: len(BROTLI) // 2]):
        ((row,), skipped, _, _) = read(
            page("u:br", packed, headers="Content-Type: text/html\r\nContent-Encoding: br"), "b.warc"
        )
        assert PROSE.startswith(row["html"]) and len(row["html"]) > 40_000 and skipped == {}
        assert (row["html"] == PROSE) == (len(packed) >= len(BROTLI))


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_payload_that_breaks_off_is_marked(encoding):
    packed = {"gzip": gzip.compress, "deflate": zlib.compress}[encoding](PROSE)
    headers = f"Content-Type: text/html\r\nContent-Encoding: {encoding}"
    ((row,), skipped, _, _) = read(page("u:x", packed[: len(packed) // 2], headers=headers), "c.warc")
    assert PROSE.startswith(row["html"]) and 100 < len(row["html"]) < len(PROSE) and skipped == {}
    assert json.loads(row["meta"])["truncated"] == "content-encoding"
    half = page("u:x", packed[: len(packed) // 2], headers=headers)
    rows, skipped, skips, _ = read(half, "k.warc", reader=Warc(path="x", keep_truncated=False))
    assert (rows, skipped) == ([], {"truncated": 1}) and skips[0].detail == "its content encoding breaks off"
    ((row,), _, _, _) = read(page("u:x", packed, headers=headers), "w.warc")
    assert row["html"] == PROSE and "truncated" not in json.loads(row["meta"])
    if encoding == "gzip":
        rows, skipped, skips, _ = read(page("u:x", packed[:12], headers=headers), "e.warc")
        assert (rows, skipped) == ([], {"undecodable": 1})
        assert skips[0].detail == "its content encoding breaks off before any text"


ZSTD = zstandard.ZstdCompressor()


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ("Content-Encoding: gzip", gzip.compress(b"<p>one", mtime=0) + gzip.compress(b"<p>two", mtime=0)),
        ("Content-Encoding: gzip", gzip.compress(b"<p>one", mtime=0) + gzip.compress(b"<p>two", mtime=0) + b"\0\0"),
        ("Content-Encoding: zstd", ZSTD.compress(b"<p>one") + ZSTD.compress(b"<p>two")),
        ("Content-Encoding: deflate", zlib.compress(b"<p>one<p>two", wbits=10)),
        ("Content-Encoding: gzip\r\nContent-Encoding: zstd", ZSTD.compress(gzip.compress(b"<p>one<p>two", mtime=0))),
        ("Content-Encoding: gzip\r\nContent-Encoding: gzip", gzip.compress(b"<p>one<p>two", mtime=0)),
        ("Transfer-Encoding: identity\r\nTransfer-Encoding: chunked", b"c\r\n<p>one<p>two\r\n0\r\n\r\n"),
        ("Transfer-Encoding: chunked", b"6\n<p>one\n6\n<p>two\n0\n\n"),
        ("Transfer-Encoding: gzip, chunked",
         b"%x\r\n%s\r\n0\r\n\r\n" % (len(gzip.compress(b"<p>one<p>two", mtime=0)), gzip.compress(b"<p>one<p>two", mtime=0))),
    ],
)  # fmt: skip
def test_payloads_in_every_manner_that_the_standards_allow(headers, body):
    ((row,), skipped, _, _) = read(page("u:x", body, headers=f"Content-Type: text/html\r\n{headers}"), "m.warc")
    assert (row["html"], skipped, "truncated" in row["meta"]) == (b"<p>one<p>two", {}, False)


def test_members_of_a_payload_are_whole_wherever_pieces_end_and_many_take_no_time():
    headers = "Content-Type: text/html\r\nContent-Encoding: gzip"
    noise = b"<html>" + random.Random(1).randbytes(150_000).hex().encode()
    for sizes in ([len(noise)], [1] * 50, [65_535, 65_536, 65_537], [200_000, 100_000, 6]):
        parts = [noise[start : start + size] for start, size in zip(accumulate([0, *sizes]), sizes, strict=False)]
        ((row,), _, _, _) = read(page("u:x", b"".join(map(gzip.compress, parts)), headers=headers), "a.warc")
        assert row["html"] == b"".join(parts) and "truncated" not in row["meta"]
    started = time.monotonic()
    ((row,), _, _, _) = read(
        page("u:x", gzip.compress(b"<p>", mtime=0) + gzip.compress(b"", mtime=0) * 1_000_000, headers=headers), "a.warc"
    )
    assert row["html"] == b"<p>" and "truncated" in row["meta"] and time.monotonic() - started < 5


def test_answers_before_the_answer_are_stepped_over():
    early = b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"
    answer = early + b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>one"
    ((row,), skipped, _, _) = read(record("u:x", answer, Content_Type="application/http"), "h.warc")
    assert (row["html"], skipped) == (b"<p>one", {})
    assert read(record("u:x", early, Content_Type="application/http"), "h.warc")[1] == {"http_status": 1}


@pytest.mark.parametrize(
    "text", ["1\nChapter one", "0\nzero", "2024\nreport", "Add\nsugar", "Softly since stand shines"]
)
@pytest.mark.parametrize("said", ["Transfer-Encoding: chunked", "Content-Encoding: deflate"])
def test_a_text_under_the_headers_of_how_it_once_came_is_itself(text, said):
    data = page("u:x", text.encode(), headers=f"Content-Type: text/plain\r\n{said}")
    assert [row["text"] for row in read(data, "t.warc", reader=Warc(path="x", keep_plain_text=True))[0]] == [text]


def test_the_first_segment_of_a_record_is_marked():
    first = record("u:x", b"<p>one", "resource", Content_Type="text/html", WARC_Segment_Number="1")
    ((row,), _, _, _) = read(first, "s.warc")
    assert json.loads(row["meta"])["truncated"] == "segmented"
    rows, skipped, skips, _ = read(first, "s.warc", reader=Warc(path="x", keep_truncated=False))
    assert (rows, skipped, skips[0].detail) == ([], {"truncated": 1}, "segmented")


@pytest.mark.parametrize("encoding", ["br", "gzip", "deflate"])
def test_a_payload_whose_encoding_cannot_be_undone_is_no_page(encoding):
    packed = {"br": BROTLI, "gzip": gzip.compress(PROSE, mtime=0), "deflate": zlib.compress(PROSE)}[encoding]
    damaged = packed[:12] + b"\xff" * 64 + packed[76:]
    rows, skipped, skips, _ = read(
        page("u:x", damaged, headers=f"Content-Type: text/html\r\nContent-Encoding: {encoding}"), "d.warc"
    )
    assert (rows, skipped) == ([], {"undecodable": 1}) and skips[
        0
    ].detail == f"its content encoding {encoding} cannot be undone"
    for text in (
        b"Read me. " * 200,
        b"Zoo opens. " * 200,
        "\ufeffwide".encode("utf-16"),
    ):  # the first two begin as brotli may
        said = page("u:x", text, headers=f"Content-Type: text/html\r\nContent-Encoding: {encoding}, identity")
        assert [row["html"] for row in read(said, "t.warc")[0]] == [text]
    assert (
        read(page("u:x", gzip.compress(PROSE, mtime=0)), "g.warc")[2][0].detail == "application/gzip"
    )  # and nobody had said so


def test_many_comments_before_a_page_of_no_type_take_no_time():
    rows, skipped, _, _ = read(
        page("u:x", b"<!---->" * 500 + b"<p>x", headers="A: b") + page("u:y", b"<!---->" * 500, headers="A: b"),
        "c.warc",
    )
    assert urls(rows) == ["u:x"] and skipped == {"not_html": 1}


@pytest.mark.parametrize(
    "said",
    [
        "text/html charset=utf-8",
        "TEXT/HTML,text/html",
        ' "text/html"',
        "text/html:charset=utf-8",
        "html",
        "Text/Html ;x",
    ],
)
def test_a_type_that_is_badly_written_is_that_type(said):
    ((row,), skipped, _, _) = read(page("u:x", b"<html>x", headers=f"Content-Type: {said}"), "t.warc")
    assert json.loads(row["meta"])["content_type"] in ("text/html", "html") and skipped == {}
    assert (
        read(page("u:x", b"<html>x", headers="Content-Type: text/htmlx; a=text/html"), "t.warc")[2][0].detail
        == "text/htmlx"
    )


def test_headers_as_old_servers_write_them():
    lines = "Content-Type: text/html;\r\n  charset=Shift_JIS\r\nX: y\n\tz"
    for end in ("\r\n\r\n", "\n\n", "\n\r\n", "\r\n\n"):
        body = f"HTTP/1.0 200 OK\r\n{lines}{end}".encode() + b"<p>a\r\n\r\n<p>b"
        (row,) = read(record("u:old", body), "o.warc")[0]
        assert (row["html"], row["charset"]) == (b"<p>a\r\n\r\n<p>b", "shift_jis")


def test_truncated_records_are_kept_unless_a_recipe_says_otherwise():
    data = record("u:cut", b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html>", WARC_Truncated="length")
    assert len(read(data, "t.warc")[0]) == 1
    assert read(data, "t.warc", reader=Warc(path="x", keep_truncated=False))[1] == {"truncated": 1}


def test_wet_records_that_are_not_utf8_are_read_as_what_they_are():
    text = "Die Mühle mahlt langsam, aber gründlich; jeden Morgen öffnet der Müller das Wehr.\n" * 4
    data = record("u:a", text.encode("latin-1"), "conversion") + record("u:b", text.encode(), "conversion")
    data += record("u:c", text.encode("utf-8") + b"\xff", "conversion", Content_Type="text/plain")
    rows, _, _, _ = read(data, "w.warc.wet", reader=Wet(path="x"))
    assert [row["text"] for row in rows] == [text, text, text + "\ufffd"]


def test_text_of_wet_records():
    data = gzip.compress(
        record("u:wet", "Grüße\n".encode(), "conversion", WARC_Identified_Content_Language="deu")
    ) + gzip.compress(PAGES[0], mtime=0)
    rows, skipped, _, _ = read(data, "w.warc.wet.gz", reader=Wet(path="x"))
    assert [(row["text"], row["meta"]) for row in rows] == [("Grüße\n", '{"language": "deu"}')] and skipped == {
        "not_text": 1
    }
    assert "html" not in rows[0]
    rows = read(data, reader=READER)[0]
    assert [row["text"] for row in rows] == ["Grüße\n", None]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_arc_files(pack):
    body = b"HTTP/1.0 200 OK\r\nContent-Type: text/html\r\n\r\n<html>arc</html>"
    head = b"1 0 Org\nURL IP-address Archive-date Content-type Archive-length\n"
    records = [b"filedesc://a.arc 0.0.0.0 20260101000000 text/plain %d\n" % len(head) + head + b"\n"]
    records += [
        b"http://arc.example/%d 1.2.3.4 20260102030405 text/html %d\n" % (n, len(body)) + body + b"\n" for n in range(5)
    ]
    data = b"".join(map(pack, records))
    rows, skipped, _, damaged = read(data, "a.arc")
    assert urls(rows) == [f"http://arc.example/{n}" for n in range(5)] and (skipped, damaged) == ({"not_a_page": 1}, [])
    assert rows[0]["date"] == "2026-01-02T03:04:05Z" and rows[0]["html"] == b"<html>arc</html>"
    assert read(data, "a.arc", 90)[0] == rows


def test_ours_equals_fastwarc_and_warcio():
    data = FORMS["members.warc.gz"]
    mine = [(row["url"], row["html"]) for row in read(data)[0]]
    fast = [
        (r.headers["WARC-Target-URI"], r.reader.read())
        for r in ArchiveIterator(io.BytesIO(data), record_types=WarcRecordType.response)
    ]
    slow = [
        (r.rec_headers.get_header("WARC-Target-URI"), r.content_stream().read())
        for r in WarcioIterator(io.BytesIO(data))
    ]
    assert len(mine) == 12 and mine == fast == slow


def test_the_shared_hostile_crawl(tmp_path):
    checks = Path(__file__).parents[4] / "shared" / "checks"
    if not (checks / "crawl.py").exists():
        pytest.skip("no shared/checks here")
    import importlib.util

    spec = importlib.util.spec_from_file_location("shared_crawl", checks / "crawl.py")
    crawl = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(crawl)
    told = crawl.hostile(tmp_path / "hostile.warc.gz", [(f"u:{n}", html_of(n) * 20) for n in range(11)])
    data = (tmp_path / "hostile.warc.gz").read_bytes()
    whole = read(data)
    assert set(told["good"]) < set(urls(whole[0])) and len(whole[0]) == 14
    assert whole[1] == {"empty_page": 1, "http_status": 1, "not_html": 1} and len(whole[3]) == 2
    assert read(data, cut=3000) == whole


def test_a_list_of_encodings_is_not_tried_without_end():
    said = ",".join(["identity", *["deflate"] * 5])
    rows, skipped, skips, _ = read(
        page("u:x", PROSE, headers=f"Content-Type: text/html\r\nContent-Encoding: {said}"), "e.warc"
    )
    assert (rows, skipped) == ([], {"undecodable": 1}) and skips[
        0
    ].detail == "its content encoding of 5 layers cannot be undone"
    twice = page(
        "u:y",
        gzip.compress(gzip.compress(PROSE), mtime=0),
        headers="Content-Type: text/html\r\nContent-Encoding: gzip, gzip",
    )
    assert [row["html"] for row in read(twice, "f.warc")[0]] == [PROSE]


def plain_text(url: str, body: bytes, kind: str = "text/plain; charset=windows-1252") -> bytes:
    return page(url, body, headers=f"Content-Type: {kind}")


def test_responses_of_plain_text_are_documents_where_a_recipe_asks_for_them():
    body = "Grüße\r\nan alle".encode("cp1252")
    data = b"".join([
        plain_text("https://e.example/a", body),
        plain_text("https://e.example/b", "Grüße".encode(), "text/plain"),
        plain_text("https://e.example/c", b"\0\1\2"),
        plain_text("https://e.example/d", b"%PDF-1.7 \n"),
        plain_text("https://e.example/e", b" \n"),
        plain_text("https://e.example/f", b"a,b", "text/csv"),
        record("urn:text:https://e.example/0", b"words", "resource", Content_Type="text/plain"),
        PAGES[0],
    ])  # fmt: skip
    rows, skipped, _, _ = read(data, "a.warc", reader=Warc(path="x", keep_plain_text=True))
    assert [(row["text"], row["html"]) for row in rows] == [
        ("Grüße\r\nan alle", None),
        ("Grüße", None),
        (None, html_of(0)),
    ]
    assert json.loads(rows[0]["meta"]) == {"content_type": "text/plain"} and skipped == {"not_html": 4, "empty_page": 1}
    rows, skipped, skips, _ = read(data, "a.warc")  # as ever without the setting
    assert (urls(rows), skipped, skips[0].detail) == (URLS[:1], {"not_html": 6, "empty_page": 1}, "text/plain")


def test_a_pdf_file_that_calls_itself_a_page_is_none_whatever_stands_before_its_mark():
    data = b"".join([
        plain_text("https://e.example/a", b"%PDF-1.7 \n", "text/html"),
        plain_text("https://e.example/b", b"\n%PDF-1.7 \n", "text/html"),
        PAGES[0],
    ])  # fmt: skip
    rows, skipped, skips, _ = read(data, "a.warc")
    assert (urls(rows), skipped, skips[1].detail) == (URLS[:1], {"not_html": 2}, "application/pdf")
    rows, skipped, _, _ = read(data, "a.warc", reader=Warc(path="x", keep_pdf=True))
    assert (len(rows), skipped) == (3, {})
