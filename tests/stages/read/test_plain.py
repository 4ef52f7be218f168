"""What is promised of plain files: one document a file."""

import io

from stages.documents import uid_of
from stages.read.plain import Plain
from stages.stage import Origin


def read(data: bytes, **chosen):
    (reading,) = Plain(path="x", **chosen).read(io.BytesIO(data), Origin("s", "a/b.txt", len(data)))
    return reading


def test_a_file_is_a_document():
    (row,) = read("Grüße\n".encode("cp1252"), charset="latin1").documents.to_pylist()
    assert (row["text"], row["id"], row["uid"]) == ("Grüße\n", "a/b.txt", uid_of("s", "a/b.txt", 0))


def test_empty_and_large_files():
    assert (len(read(b"").documents), read(b"").skipped, read(b"").damaged, read(b"").remarks) == (0, {}, [], ["the file is empty"])
    assert (len(read(b"aaaa", max_record_bytes=3).documents), read(b"aaaa", max_record_bytes=3).skipped) == (0, {"too_large": 1})
