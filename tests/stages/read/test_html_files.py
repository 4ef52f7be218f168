"""What is promised of HTML files: one page a file, each accounted for, and a url only where the path or the recipe
gives it."""

import gzip
import io

import pytest
import zstandard

from gristmill.stages.documents import page_schema, uid_of
from gristmill.stages.extract.stage import Extract
from gristmill.stages.read.html import Html
from gristmill.stages.stage import Origin

PAGE = b"<!DOCTYPE html><title>A page</title><p>" + b"The first sentence of a page with some words in it. " * 8


def read(data: bytes, path: str = "a/b.html", **chosen):
    (reading,) = Html(path="x", **chosen).read(io.BytesIO(data), Origin("s", path, len(data)))
    assert reading.documents.schema == page_schema()
    return reading


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.ZstdCompressor().compress])
def test_a_file_is_a_page_packed_or_not(pack):
    (row,) = read(pack(PAGE)).documents.to_pylist()
    assert (row["html"], row["text"], row["charset"]) == (PAGE, None, None)
    assert (row["id"], row["uid"]) == ("a/b.html", uid_of("s", "a/b.html", 0))
    (text,) = Extract()(read(pack(PAGE)).documents)["text"].to_pylist()
    assert text.startswith("The first sentence of a page") and "<" not in text


@pytest.mark.parametrize(
    ("path", "base_url", "url"),
    [
        ("www.example.com/a/b.html", None, "https://www.example.com/a/b.html"),
        ("http/example.org:8080/a b.html.gz", None, "http://example.org:8080/a%20b.html"),
        ("https/example.org+8080/ä?page=2.html.zst", None, "https://example.org:8080/%C3%A4?page=2.html"),
        ("about/team.html", None, None),
        ("v1.2/index.html", None, None),
        ("index.html", None, None),
        ("docs/a#b.html", "https://example.com/x/", "https://example.com/x/docs/a%23b.html"),
        ("www.example.com/a.html", "", None),
    ],
)
def test_the_url_of_a_page(path, base_url, url):
    pack = (
        gzip.compress
        if path.endswith(".gz")
        else zstandard.ZstdCompressor().compress
        if path.endswith(".zst")
        else bytes
    )
    assert read(pack(PAGE), path, base_url=base_url).documents["url"].to_pylist() == [url]


def test_a_base_url_that_is_no_url_is_refused_in_words():
    with pytest.raises(ValueError, match=r"a url such as https://example\.com/docs/ was expected, not 'example\.com'"):
        Html(path="x", base_url="example.com")


def test_every_file_that_is_no_page_is_counted():
    for data, skipped in (
        (b"", {"empty_page": 1}),
        (b" \n", {"empty_page": 1}),
        (b"\x89PNG\r\n", {"not_html": 1}),
        (b"\xef\xbb\xbf\r\n%PDF-1.7\n", {"not_html": 1}),
        (PAGE * 10, {"too_large": 1}),
    ):
        reading = read(data, max_record_bytes=2000)
        assert (len(reading.documents), reading.skipped, reading.damaged, len(reading.skips)) == (0, skipped, [], 1)
    for data, path, what in (
        (gzip.compress(PAGE)[:-20], "a.html.gz", "the file ends inside its compressed stream"),
        (b"noise", "a.html.gz", "no gzip begins here"),
        (b"", "a.html.gz", "the file is empty"),
        (b"%PDF-1.7\n", "a.html", "it holds PDF and no HTML"),
    ):
        reading = read(data, path)
        assert (len(reading.documents), reading.skipped, len(reading.damaged)) == (
            0,
            {},
            1,
        ) and what in reading.damaged[0].what


def test_a_bomb_is_a_large_file():
    bomb = gzip.compress(b"\0" * (200 << 20), 9)
    assert len(bomb) < 1 << 18
    assert read(bomb, "a.html.gz", max_record_bytes=1 << 20).skipped == {"too_large": 1}


def test_what_is_taken_from_a_folder():
    assert set(Html.suffixes) == {
        f".{name}{packed}" for name in ("html", "htm", "xhtml") for packed in ("", ".gz", ".zst")
    }
