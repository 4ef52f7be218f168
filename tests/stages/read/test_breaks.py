"""What is promised of packed files that are damaged: all lines and records that inflate before a break are read, a wrong
checksum costs no line, and neither depends on how many bytes a decompressor was given at a time."""

import gzip
import io
import json
import random
import zlib
from collections import Counter
from types import NoneType

import pytest
import zstandard
from hypothesis import given, settings, strategies as st

from gristmill.stages.read.jsonl import Jsonl
from gristmill.stages.read.members import (
    ENDS,
    INFLATED,
    STEP,
    Damaged,
    Gzip,
    GzipMember,
    Window,
    WrongChecksum,
    ZstdFrame,
)
from gristmill.stages.read.warc import Warc
from gristmill.stages.stage import Origin

ENDINGS = {"incorrect data check", "incorrect length check"}


def lines_of(count: int, seed: int = 0) -> list[str]:
    words = random.Random(seed)
    return [f"document {n}: " + words.randbytes(words.randrange(10, 150)).hex() for n in range(count)]


def packed_lines(texts: list[str]) -> bytes:
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


def read(data: bytes, path: str = "a.jsonl.gz", reader=None):
    """Texts (or urls of pages), and damage other than bad lines."""
    reader = reader or Jsonl(path="x")
    rows, damaged = [], []
    for reading in reader.read(io.BytesIO(data), Origin("s", path, len(data))):
        rows += [row["text"] or row["url"] for row in reading.documents.to_pylist()]
        damaged += reading.damaged
    return rows, [d for d in damaged if not d.what.startswith("no JSON")]


def inflated_plain(data: bytes) -> tuple[bytes, str]:
    """What zlib gives of a member, a byte at a time, and what it says in the end."""
    inflater, out = zlib.decompressobj(wbits=31), []
    try:
        for byte in data:
            out.append(inflater.decompress(bytes([byte])))
            if inflater.eof:
                return b"".join(out), ""
    except zlib.error as error:
        return b"".join(out), str(error).rpartition(": ")[2]
    return b"".join(out), "ends"


def flipped(data: bytes, at: int, bits: int = 1) -> bytes:
    return data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :] if at >= 0 else flipped(data, len(data) + at, bits)


@pytest.mark.parametrize("count", [1, 100, 2000])
@pytest.mark.parametrize("at", [-6, -2], ids=["checksum", "length"])
@pytest.mark.parametrize("end", [b"\n", b""])
def test_a_wrong_checksum_costs_no_line(count, at, end):
    texts = lines_of(count)
    data = flipped(gzip.compress(packed_lines(texts).rstrip() + end), at)
    rows, damaged = read(data)
    assert rows == texts
    assert [(d.start, d.end, d.records) for d in damaged] == [(len(data) - 8, len(data), 1)]
    assert "checksum" in damaged[0].what


def test_reading_goes_on_behind_a_member_of_a_wrong_checksum():
    texts = lines_of(300)
    members = [gzip.compress(packed_lines(texts)[at : at + 9999]) for at in range(0, len(packed_lines(texts)), 9999)]
    assert len(members) > 4
    members[1], members[-1] = flipped(members[1], -6), flipped(members[-1], -2)
    rows, damaged = read(b"".join(members) + bytes(512))
    ends = [sum(map(len, members[: n + 1])) for n in range(len(members))]
    assert rows == texts
    assert [(d.start, d.end) for d in damaged] == [(ends[1] - 8, ends[1]), (ends[-1] - 8, ends[-1])]


@pytest.mark.parametrize("level", [0, 1, 9])
def test_all_lines_before_a_break_are_read(level):
    texts = lines_of(2000)
    whole = gzip.compress(packed_lines(texts), level)
    at = len(whole) * 9 // 10
    data = whole[:at] + b"\xff\xff\xff\xff" + whole[at + 4 :]
    rows, damaged = read(data)
    inflated, why = inflated_plain(data)
    good = [n for n, line in enumerate(inflated.splitlines(keepends=True)) if line == packed_lines(texts[n : n + 1])]
    assert len(good) > 1750 and why and set(rows) >= {texts[n] for n in good}
    assert len(damaged) == 1 and damaged[0].end == len(data) and damaged[0].start <= len(data)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 400), st.sampled_from([1, 6, 9]), st.integers(0, 2**32), st.sampled_from([1, 7, 300, 1 << 16]))
def test_a_damaged_member_gives_what_zlib_gives(count, level, seed, feed):
    chance = random.Random(seed)
    data = gzip.compress(packed_lines(lines_of(count, seed)), level)
    at = chance.randrange(10, len(data))
    for place in range(at, min(len(data), at + chance.choice([1, 4, 64]))):
        data = flipped(data, place, chance.randrange(1, 256))
    inflated, why = inflated_plain(data)
    member = GzipMember(Window(io.BytesIO(data)), 0)
    member.feed = feed
    given, error = b"", None
    try:
        while chunk := member.chunk():
            given += chunk
    except Damaged as damage:
        error = damage
    if str(error) == ENDS:  # isal may keep the last symbol to itself, and looks at a checksum once the length is there
        assert inflated.startswith(given) and len(inflated) - len(given) <= 258
        return
    kind = NoneType if not why else WrongChecksum if why in ENDINGS else Damaged
    assert type(error) is kind, (why, error)
    if len(data) <= feed:
        assert given == inflated
    else:  # isal takes some codes that zlib refuses, and what it gave of them in earlier calls stays given
        assert given.startswith(inflated)


def test_what_comes_before_a_break_is_given_in_bounded_pieces():
    data = flipped(gzip.compress(bytes(50_000_000)), -6)
    member = Gzip().open(Window(io.BytesIO(data)), 0)
    member.feed = 1 << 30  # all in the call that fails
    pieces = Counter()
    with pytest.raises(WrongChecksum, match="checksum"):
        while chunk := member.chunk():
            pieces[len(chunk)] += 1
    assert sum(length * count for length, count in pieces.items()) == 50_000_000
    assert max(pieces) < INFLATED + 1100 * STEP


@pytest.mark.parametrize("known", [True, False], ids=["length known", "length unknown"])
def test_zstd_too(known):
    texts = lines_of(2000)
    data = packed_lines(texts)
    packer = zstandard.ZstdCompressor(write_checksum=True)
    streamed = packer.compressobj()
    whole = packer.compress(data) if known else streamed.compress(data) + streamed.flush()
    rows, damaged = read(flipped(whole, -2), "a.jsonl.zst")
    start = 0 if known else len(whole) - 4  # a frame that tells its length is a stretch of its own
    assert rows == texts and [(d.start, d.end) for d in damaged] == [(start, len(whole))]
    assert "checksum" in damaged[0].what
    at = len(whole) - 3000
    broken = whole[:at] + bytes(2000) + whole[at + 2000 :]
    rows, damaged = read(broken, "a.jsonl.zst")
    assert len(rows) > len(texts) * (1 - (1 << 17) / len(data)) - 2 and len(damaged) == 1  # all of earlier blocks
    assert [row for row in rows if row not in set(texts)] == []


@pytest.mark.parametrize("feed", [1, 100, 4096])
def test_blocks_of_zstd_in_the_call_that_fails_are_given(feed):
    blocks = [b"line %d\n" % n * 9 for n in range(30)]
    streamed = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    data = b"".join(streamed.compress(b) + streamed.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) for b in blocks)
    data = flipped(data + streamed.flush(), -1)
    frame = ZstdFrame(Window(io.BytesIO(data)), 0, zstandard.ZstdDecompressor())
    frame.feed = feed
    given = []
    with pytest.raises(WrongChecksum, match="checksum"):
        while chunk := frame.chunk():
            given.append(chunk)
    assert b"".join(given) == b"".join(blocks) and frame.end == len(data)


def record(number: int) -> bytes:
    html = b"<html><p>" + random.Random(number).randbytes(500).hex().encode()
    body = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n" + html
    head = f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: u:{number}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body + b"\r\n\r\n"


def test_all_records_before_a_break_are_read_in_a_warc_that_is_packed_as_a_whole():
    records = [record(n) for n in range(40)]
    urls = [f"u:{n}" for n in range(40)]
    whole = gzip.compress(b"".join(records))
    for at in (-6, -2):
        rows, damaged = read(flipped(whole, at), "a.warc.gz", Warc(path="x"))
        assert rows == urls and len(damaged) == 1 and "checksum" in damaged[0].what
    broken = whole[:-5000] + b"\xff" * 100 + whole[-4900:]
    inflated, why = inflated_plain(broken)
    rows, damaged = read(broken, "a.warc.gz", Warc(path="x"))
    count = inflated.count(b"WARC/1.0\r\n") - 1
    assert count > 25 and why and rows == urls[:count] and len(damaged) == 1


def test_a_wrong_checksum_accuses_a_record_that_is_alone_in_its_member():
    members = [gzip.compress(record(n) + (record(n + 1) if n == 4 else b"")) for n in (0, 1, 2, 4)]
    members[1], members[3] = flipped(members[1], -6), flipped(members[3], -6)
    rows, damaged = read(b"".join(members), "a.warc.gz", Warc(path="x"))
    assert rows == ["u:0", "u:2", "u:4", "u:5"] and len(damaged) == 2
