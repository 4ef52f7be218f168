"""What is promised of WACZ: the records of each archive in the zip file, however it is cut; and hostile zip files are
told of and bounded."""

import gzip
import io
import struct
import zipfile

import pytest
from test_warc import PAGES, URLS, html_of, page, read, urls

from gristmill.stages.documents import uid_of
from gristmill.stages.read import zipped
from gristmill.stages.read.warc import Warc
from gristmill.stages.stage import Origin

GZIPPED = [
    b"".join(gzip.compress(record) for record in PAGES[:6]),
    b"".join(gzip.compress(record) for record in PAGES[6:]),
]
BESIDE = {
    "datapackage.json": b"{}",
    "pages/pages.jsonl": b"{}\n" * 50,
    "indexes/index.cdx.gz": gzip.compress(b"com,example)/ {}" * 90),
}


def wacz(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as file:
        for name, data in members.items():
            file.writestr(zipfile.ZipInfo(name), data, method)
    return out.getvalue()


def remarks(data: bytes) -> list[str]:
    return [
        remark
        for reading in Warc(path="x").read(io.BytesIO(data), Origin("s", "a.wacz", len(data)))
        for remark in reading.remarks
    ]


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize(
    "archives",
    [{"archive/a.warc.gz": GZIPPED[0], "archive/b.warc.gz": GZIPPED[1]}, {"archive/a.warc": b"".join(PAGES)}],
)
def test_every_record_once_at_any_cut(method, archives):
    data = wacz({**BESIDE, **archives, "archive/": b""}, method)
    rows, skipped, _, damaged = read(data, "a.wacz")
    assert (urls(rows), skipped, damaged, remarks(data)) == (URLS, {}, [], [])
    assert [row["html"] for row in rows] == [html_of(n) for n in range(12)]
    assert len({row["uid"] for row in rows}) == 12
    for cut in (1, 1000, len(data) // 2):
        assert read(data, "a.wacz", cut)[0] == rows
    spans = Warc(path="x").spans(io.BytesIO(data), "a.wacz", len(data), 1000)
    assert len(spans) == len(archives) and spans[0][0] == 0 and spans[-1][1] == len(data)


def test_identity_is_the_place_in_the_file():
    data = wacz({**BESIDE, "archive/a.warc.gz": GZIPPED[0]})
    (first, *_), _, _, _ = read(data, "a.wacz")
    assert first["uid"] == uid_of("s", "a.wacz", f"{data.index(GZIPPED[0])}:0")


def test_damage_in_an_archive_names_it_and_costs_its_record():
    broken = bytearray(GZIPPED[0])
    broken[len(gzip.compress(PAGES[0])) + 30] ^= 255
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        data = wacz({"archive/a.warc.gz": bytes(broken), "archive/b.warc.gz": GZIPPED[1]}, method)
        rows, _, _, damaged = read(data, "a.wacz")
        assert urls(rows) == [URLS[0], *URLS[2:]] and len(damaged) == 1
        assert (
            damaged[0].path == "a.wacz"
            and "archive/a.warc.gz" in damaged[0].what
            and 0 < damaged[0].start < damaged[0].end < len(data)
        )


def test_a_checksum_that_is_wrong_is_remarked_where_nothing_else_would_tell():
    data = wacz({"archive/a.warc": b"".join(PAGES)})
    text = html_of(3)[10:30]
    assert (
        remarks(data.replace(text, text[::-1])) == ["archive/a.warc: its zip checksum is wrong"] and remarks(data) == []
    )
    assert len(read(data.replace(text, text[::-1]), "a.wacz")[0]) == 12


def test_a_file_that_was_cut_short_gives_the_records_that_are_there():
    data = wacz({**BESIDE, "archive/a.warc.gz": GZIPPED[0], "archive/b.warc.gz": GZIPPED[1]})
    cut = data[: data.index(GZIPPED[1]) + len(GZIPPED[1]) // 2]
    rows, _, _, damaged = read(cut, "a.wacz")
    assert urls(rows) == URLS[: len(rows)] and len(rows) in (8, 9) and len(damaged) == 3
    assert {row["uid"] for row in rows} <= {row["uid"] for row in read(data, "a.wacz")[0]}
    assert "its zip directory cannot be read" in remarks(cut)[0]


def test_a_zip_file_without_an_archive_and_an_archive_that_is_a_zip_file():
    for data, what in (
        (wacz(BESIDE), "no web archive is in this zip file"),
        (wacz({"archive/a.wacz": wacz({})}), "a zip file in a zip file is not read"),
        (wacz({}), "no web archive"),
    ):
        rows, _, _, damaged = read(data, "a.wacz")
        assert rows == [] and len(damaged) == 1 and what in damaged[0].what


def patched(data: bytes, name: str, at: int, form: str, value: int) -> bytes:
    """A zip file with a number in its directory changed, in the entry of one name."""
    entry = data.rindex(name.encode()) - 46
    assert data[entry : entry + 4] == b"PK\x01\x02"
    return data[: entry + at] + struct.pack(form, value) + data[entry + at + struct.calcsize(form) :]


TWO = wacz({"archive/a.warc.gz": GZIPPED[0], "archive/b.warc.gz": GZIPPED[1]})


@pytest.mark.parametrize(
    ("data", "what", "kept"),
    [
        (patched(TWO, "archive/b.warc.gz", 42, "<I", 0), "over another member", 6),  # two entries for the same bytes
        (patched(TWO, "archive/b.warc.gz", 42, "<I", 1 << 30), "does not lie where", 6),
        (patched(TWO, "archive/b.warc.gz", 42, "<I", 7), "does not lie where", 6),
        (patched(TWO, "archive/b.warc.gz", 20, "<I", 1 << 30), "does not lie where", 6),
        (patched(TWO, "archive/b.warc.gz", 8, "<H", 1), "it is encrypted", 6),
        (patched(TWO, "archive/b.warc.gz", 10, "<H", 12), "zip's method 12", 6),
        (wacz({"../../etc/x.warc.gz": GZIPPED[0], "/archive/b.warc.gz": GZIPPED[1]}), None, 12),  # a name is no path
    ],
    ids=["overlapping", "outside", "no header", "too long", "encrypted", "bzip2", "names"],
)
def test_members_that_are_not_as_the_directory_says(data, what, kept):
    rows, _, _, damaged = read(data, "a.wacz")
    assert len(rows) == kept and [what in d.what for d in damaged] == ([] if what is None else [True])
    assert read(data, "a.wacz", 1)[0] == rows


def test_entries_that_the_directory_counts_and_does_not_show_are_looked_for():
    data = patched(TWO, "archive/a.warc.gz", 32, "<H", 46 + len("archive/b.warc.gz"))  # a comment takes the next
    rows, _, _, damaged = read(data, "a.wacz")
    assert urls(rows) == URLS and len(damaged) == 3
    assert remarks(data) == [
        "its zip directory has 1 entries and says that it has 2; its records are looked for without it"
    ]


def test_a_directory_without_measure_is_not_read(monkeypatch):
    monkeypatch.setattr(zipped, "MOST_READ", 1 << 16)
    many = wacz({f"archive/{n}.warc.gz": b"" for n in range(2000)})
    assert "65,536 at most are read" in remarks(many)[0]
    assert read(many, "a.wacz")[0] == []


def test_a_deflated_bomb_stops(monkeypatch):
    monkeypatch.setattr(zipped, "SPARE", 1 << 16)
    bomb = b"".join(PAGES) + page("https://e.example/bomb", b"\0" * (8 << 20))
    data = wacz({"archive/a.warc": bomb}, zipfile.ZIP_DEFLATED)
    rows, _, _, damaged = read(data, "a.wacz")
    assert urls(rows) == URLS and any("it unpacks to more than" in d.what for d in damaged)
    twice = wacz({"archive/a.warc.gz": gzip.compress(b"\0" * (64 << 20)) * 40}, zipfile.ZIP_DEFLATED)
    assert any("it unpacks to more than" in d.what for d in read(twice, "a.wacz")[3])


def test_deflated_bytes_that_break_off_are_damage():
    pages = [page(f"https://e.example/{n}", html_of(n)) for n in range(60)]
    data = wacz({"archive/a.warc.gz": b"".join(map(gzip.compress, pages))}, zipfile.ZIP_DEFLATED)
    middle = len(data) // 2
    rows, _, _, damaged = read(data[:middle] + b"\xff" * 400 + data[middle + 400 :], "a.wacz")
    assert set(urls(rows)) == {
        f"https://e.example/{n}" for n in range(29)
    }  # broken deflate may repeat a record that came before
    assert damaged and all("archive/a.warc.gz" in d.what for d in damaged)
