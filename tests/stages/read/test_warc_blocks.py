"""What is promised of blocks: a reader that takes records by the block gives what one gives that takes them one by one,
row for row, batch for batch, with the same account of what is damaged, skipped and noted."""

import gzip
import io
import random
from functools import partial
from typing import TypeVar

import pytest
import zstandard
from hypothesis import given, settings, strategies as st
from test_warc import page, record as record_of

from gristmill.stages import documents
from gristmill.stages.documents import Collector, uid_of, uids_at
from gristmill.stages.read import page_rows, warc
from gristmill.stages.read.page_rows import PageCollector
from gristmill.stages.read.site_files import SiteFiles
from gristmill.stages.read.warc import Warc
from gristmill.stages.read.wet import Wet
from gristmill.stages.stage import Origin

T = TypeVar("T")
READERS = (
    Warc(path="x"),
    Warc(path="x", keep_plain_text=True, keep_pdf=True, keep_headers=True, max_record_bytes=1500),
    Warc(path="x", keep_truncated=False),
    Wet(path="x"),
    SiteFiles(path="x"),
)


def readings(data: bytes, path: str, reader: warc.Archive, cut: int) -> list[tuple[object, ...]]:
    """All that a reader hands over, in its order."""
    out: list[tuple[object, ...]] = []
    for start, end in reader.spans(io.BytesIO(data), path, len(data), cut):
        for each in reader.read(io.BytesIO(data), Origin("s", path, len(data), start, end)):
            each.documents.validate(full=True)
            out.append((
                each.documents.schema, each.documents.to_pylist(), each.skipped, each.skips, each.damaged, each.remarks,
                each.stored, each.nuls, each.noted,
            ))  # fmt: skip
    return out


def one_by_one(data: bytes, path: str, reader: warc.Archive, cut: int, batch_bytes: int) -> list[tuple[object, ...]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_rows.Blocks, "due", lambda self: False)
        patch.setattr(warc, "PageCollector", partial(Collector, batch_bytes=batch_bytes))
        return readings(data, path, reader, cut)


def by_the_block(data: bytes, path: str, reader: warc.Archive, cut: int, batch_bytes: int) -> list[tuple[object, ...]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warc, "PageCollector", partial(PageCollector, batch_bytes=batch_bytes))
        return readings(data, path, reader, cut)


VERSIONS = ["WARC/1.0"] * 8 + ["WARC/1.1", "WARC/", "WARC/1.0: a", "warc/1.0", "WARC", "HTTP/1.1 200"]
KINDS = ["response"] * 12 + [
    "Response", "request", "metadata", "warcinfo", "revisit", "conversion", "resource", "responses", "", "continuation",
]  # fmt: skip
STATUS = ["HTTP/1.1 200 OK"] * 12 + [
    "HTTP/1.0 200", "HTTP/2 299 x", "http/1.1 200 OK", "HTTP/1.1  200", "HTTP/1.1\t204 a", "HTTP/11.1 200", "HTTP/1. 200",
    "HTTP/1.1 2000", "HTTP/1.1 20", "HTTP/1.1 20x", "HTTP/1.1 301 b", "HTTP/1.1 404", "HTTP/1.1 100 c", "HTTP/.1 200",
    "HTTP/1.1: 200", "GET /", "", "HTTP/1.1 200 \u00e9",
]  # fmt: skip
TYPES = ["text/html", "text/html; charset=UTF-8"] * 6 + [
    "TEXT/HTML;Charset=\"Latin1\"", "application/xhtml+xml; charset = ' utf-8", "text/html5", "text/html-x", "text/html,",
    "text/html; charset", "text/html; charset=a", "text/html; xcharset==; charset=big5", "\ttext/html \t", "'text/html'",
    "text/plain", "image/png", "", "text/html; charset=" + "x" * 60, "application/xhtml+xml2", "text/html\x0b",
    "text/html; charset=utf-8\x7f",
]  # fmt: skip
NAMES = ["Content-Type"] * 12 + [
    "content-type ",
    "CONTENT-TYPE\t",
    "Content_Type",
    " Content-Type",
    "Content-Type:",
    "",
]
EXTRA = [
    "Server: x",
    "X-Robots-Tag: noindex",
    "x",
    ":",
    ": y",
    "Content-Length: 7",
    "Date: \u00fc",
    "a: b\r\n\tc",
    "\tfolded: 1",
]
ENCODED = ["Content-Encoding: gzip", "Content-Encoding:", "Transfer-Encoding: chunked", "content-encoding: identity"]
HEADS = [b"<html>"] * 8 + [
    b"", b" \r\n", b"\xef\xbb\xbf \n<p>", b"%PDF-1", b" \n%PDF-", b"\x89PNG", b"GIF8", b"PK\3\4", b"\x1f\x8b\x08", b"\xff\xfe<\0",
    b" " * 1100, b" " * 1020 + b"%PDF-", b"Good", b"5\r\n<html\r\n0\r\n\r\n", b"\0\0<html>", b"WARC/1.0\r\nWARC-Type: response\r\n",
]  # fmt: skip
ENDS = [b"\r\n"] * 14 + [b"\n", b"\r\r\n", b"\n\r", b"\r"]
GAPS = [b"\r\n\r\n"] * 14 + [b"", b"\r\n", b"\n", b"\r\n" * 9, b"x", b"\0", b"\r\n\r\n "]
USUAL = [
    "WARC-Record-ID: <urn:uuid:{n}>", "WARC-Target-URI: https://e.example/{n}", "WARC-Date: 2026-01-01T00:00:00Z",
    "WARC-IP-Address: 192.0.2.{n}",
]  # fmt: skip
FIELDS = [
    "WARC-Record-ID: {n}", "WARC-Record-ID: <<URN:uuid:{n}>", "WARC-Record-ID: <>", "WARC-Record-ID: >urn:uuid:<",
    "WARC-Target-URI: <https://e.example/{n}>", "WARC-Target-URI: https://e.example/{n}>", "WARC-Target-URI: <",
    "WARC-Target-URI: <>", "WARC-Target-URI: https://e.example/robots.txt", "WARC-Target-URI: https://e.example/\u00fc",
    "WARC-Target-URI: https://e.example/\x01", "WARC-Target-URI:", "warc-date : x", "WARC-Date:", "WARC-Type: response",
    'WARC-IP-Address: "{n}\\', "WARC-IP-Address:", "WARC-IP-Address: 2001:db8::{n}\x7f", "WARC-Truncated: length",
    "WARC-Segment-Number: 1", "WARC-Identified-Content-Language: deu", "WARC-Identified-Payload-Type: text/html",
    "Content-Type: application/http; msgtype=response",
]  # fmt: skip


def record(chance: random.Random, n: int, odd: float) -> bytes:
    """One record; `odd` is how often each part is drawn from all that it may be, and not the usual one."""

    def drawn(values: list[T]) -> T:
        return chance.choice(values) if chance.random() < odd else values[0]

    def lines(texts: list[str]) -> bytes:
        return b"".join(text.encode(chance.choice(["utf-8", "latin-1"])) + drawn(ENDS) for text in texts)

    answer = [drawn(STATUS), f"{drawn(NAMES)}: {drawn(TYPES)}"]
    answer += chance.choices(EXTRA, k=chance.randrange(3)) if chance.random() < odd else ["Server: x"]
    answer += [chance.choice(ENCODED)] if chance.random() < odd / 3 else []
    head = drawn(HEADS)
    payload = head + (b"<p>word</p>" * chance.randrange(90) if chance.random() < 0.9 else b"")
    if "chunked" in " ".join(answer) and chance.random() < 0.5:
        payload = b"%x\r\n%s\r\n0\r\n\r\n" % (len(payload), payload)
    body = lines(answer) + drawn([b"\r\n", b"\n", b"", b"\r"]) + payload
    fields = [each for each in USUAL if chance.random() > odd / 4]
    fields += chance.choices(FIELDS, k=chance.randrange(4)) if chance.random() < odd else []
    length = len(body) + (chance.randrange(-40, 40) if chance.random() < odd / 6 else 0)
    named = [f"WARC-Type: {drawn(KINDS)}", *(field.format(n=n) for field in fields), f"Content-Length: {length}"]
    if chance.random() < odd / 6:
        named[-1] = chance.choice(
            ["", "Content-Length: x", "Content-Length: 1" + "0" * 19, "Content-Length:", "content-length: 5 "]
        )
    chance.shuffle(named)
    return lines([drawn(VERSIONS), *named]) + drawn([b"\r\n", b"\n", b""]) + body + drawn(GAPS)


def archive(seed: int) -> tuple[bytes, str]:
    """Records in one of all forms, some of them damaged."""
    chance = random.Random(seed)
    odd = chance.choice([0, 0.02, 0.1, 0.3, 0.7])
    made = [record(chance, n, odd) for n in range(chance.randrange(40))]
    path = chance.choice(["a.warc", "a.warc", "a.warc.gz", "a.warc.gz", "a.warc.gz", "a.warc.zst"])
    if path == "a.warc.gz":
        made += [b"", b"\r\n"] if chance.random() < 0.1 else []
        if chance.random() < 0.2:  # several records in a member
            made = [b"".join(made[i : i + 3]) for i in range(0, len(made), 3)]
        chance.shuffle(made)
        data = b"".join(gzip.compress(each, chance.choice([0, 1, 6]), mtime=0) for each in made)
    elif path == "a.warc.zst":
        data = b"".join(zstandard.ZstdCompressor(write_checksum=True).compress(each) for each in made)
    else:
        data = b"".join(made)
    wounded = bytearray(data)
    for _ in range(chance.choice([0, 0, 0, 1, 3]) if data else 0):
        at = chance.randrange(len(data))
        wounded[at : at + chance.randrange(60)] = chance.randbytes(chance.randrange(1, 60))
    return bytes(wounded) + b"\0" * chance.choice([0, 0, 0, 600]), path


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from(READERS),
    st.sampled_from([700, 3000, 1 << 20]),
    st.sampled_from([2000, 1 << 25]),
)
def test_blocks_change_nothing(seed: int, reader: warc.Archive, cut: int, batch_bytes: int) -> None:
    data, path = archive(seed)
    assert by_the_block(data, path, reader, cut, batch_bytes) == one_by_one(data, path, reader, cut, batch_bytes)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_columns_grow(pack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that are larger than the room behind a full batch, and texts than their columns."""
    monkeypatch.setattr(page_rows, "SPARE", 0)
    monkeypatch.setattr(page_rows, "TEXT_BYTES", 1)
    data = b"".join(pack(page(f"https://e.example/{n}", b"<p>" + b"x" * (n * 997))) for n in range(60))
    expected = one_by_one(data, "a.warc", READERS[0], len(data), 20_000)
    assert len(expected) > 40 and sum(len(rows) for _, rows, *_ in expected) == 60
    assert by_the_block(data, "a.warc", READERS[0], len(data), 20_000) == expected


@pytest.mark.parametrize("rows", [1, 7, 60])
def test_batches_are_cut_at_the_same_rows(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (documents, page_rows):
        monkeypatch.setattr(module, "BATCH_ROWS", rows)
    data = b"".join(page(f"https://e.example/{n}", b"<p>x", "200 OK" if n % 3 else "404 No") for n in range(200))
    expected = one_by_one(data, "a.warc", READERS[0], len(data), 1 << 20)
    assert len(expected) == -(-200 // rows) + (200 % rows == 0)
    assert by_the_block(data, "a.warc", READERS[0], len(data), 1 << 20) == expected


def test_usual_pages_are_taken_by_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them in one call; else blocks would be slow and nobody would see."""
    calls: list[int] = []
    take = page_rows.Columns.take_pages
    monkeypatch.setattr(page_rows.Columns, "take_pages", lambda *block: calls.append(1) or take(*block))
    request = record_of("https://e.example/r", b"GET / HTTP/1.1\r\n\r\n", "request")
    records = [part for n in range(100) for part in (page(f"https://e.example/{n}", b"<p>x"), request)]
    for path, data in (("a.warc", b"".join(records)), ("a.warc.gz", b"".join(map(gzip.compress, records)))):
        calls.clear()
        ((_, rows, skipped, *_),) = readings(data, path, READERS[0], len(data))
        assert (len(rows), skipped, len(calls)) == (100, {"not_a_page": 100}, 1)


def test_uids_at_many_are_those_of_each() -> None:
    places = [f"{n * 997}:0" for n in range(50)]
    assert uids_at("s", "a/\udcff.warc", places) == [uid_of("s", "a/\udcff.warc", place) for place in places]
