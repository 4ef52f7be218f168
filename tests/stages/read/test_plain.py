"""What is promised of plain files: one document a file, packed or not."""

import bz2
import gzip
import io

import pytest
import zstandard

from gristmill.stages.documents import uid_of
from gristmill.stages.read.plain import Plain
from gristmill.stages.stage import Origin


def read(data: bytes, path: str = "a/b.txt", **chosen):
    (reading,) = Plain(path="x", **chosen).read(io.BytesIO(data), Origin("s", path, len(data)))
    return reading


def test_a_file_is_a_document():
    (row,) = read("Grüße\n".encode("cp1252"), charset="latin1").documents.to_pylist()
    assert (row["text"], row["id"], row["uid"]) == ("Grüße\n", "a/b.txt", uid_of("s", "a/b.txt", 0))


def test_empty_and_large_files():
    assert (len(read(b"").documents), read(b"").skipped, read(b"").damaged, read(b"").remarks) == (
        0,
        {},
        [],
        ["the file is empty"],
    )
    assert (len(read(b"aaaa", max_record_bytes=3).documents), read(b"aaaa", max_record_bytes=3).skipped) == (
        0,
        {"too_large": 1},
    )


TEXT = "Grüße an alle. " * 40_000


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.ZstdCompressor().compress])
@pytest.mark.parametrize("path", ["a.txt", "a.txt.gz"])
def test_packed_files_are_unpacked_whatever_their_name(pack, path):
    data = pack(TEXT.encode())
    if pack is bytes and path == "a.txt.gz":  # a name that lies
        assert len(read(data, path).documents) == 0 and len(read(data, path).damaged) == 1
        return
    assert [row["text"] for row in read(data, path).documents.to_pylist()] == [TEXT]
    assert read(data, path, max_record_bytes=1000).skipped == {"too_large": 1}
    if pack is not bytes:  # members one after the other, as `cat` makes them, and padding
        assert read(data + data + b"\0" * 512, path).documents.to_pylist()[0]["text"] == TEXT + TEXT
        assert [(d.start, d.end) for d in read(data[:-20], path).damaged] == [(0, len(data) - 20)] and len(
            read(data[:-20], path).documents
        ) == 0


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (bz2.compress(b"text"), "bzip2"),
        (b"PK\x03\x04\x14\0", "zip"),
        (gzip.compress(b"WARC/1.0\r\n"), "`warc`"),
        (b"%PDF-1.7\n", "PDF"),
        (b"PAR1\x15", "`parquet`"),
    ],
    ids=["bzip2", "zip", "warc", "pdf", "parquet"],
)
def test_a_file_that_is_no_text_is_one_damage_that_says_what_it_is(data, what):
    reading = read(data)
    assert len(reading.documents) == 0 and len(reading.damaged) == 1 and what in reading.damaged[0].what
    assert len(read(b"PAR1 is a gene, PK is not.").documents) == 1


def test_a_packed_file_without_a_byte_is_damage():
    assert [d.what for d in read(b"", "a.txt.gz").damaged] == ["the file is empty"]


def test_a_file_that_is_not_in_the_encoding_of_the_recipe_is_read_as_it_is_and_remarked_on():
    text = "Старая мельница у реки мелет медленно, но верно. " * 8
    reading = read(text.encode("cp1251"), charset="utf-8")
    assert reading.documents["text"].to_pylist() == [text]
    assert reading.remarks == ["it is not in the encoding utf-8, and was read as cp1251"]
    assert read(text.encode("cp1251"), charset="windows-1251").remarks == [] == read(text.encode("cp1251")).remarks
