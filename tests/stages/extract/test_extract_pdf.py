"""PDF files through `extract`: from archives and folders to text, `meta`, reasons and the report."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gristmill
from gristmill.stages import Extract
from tests.pipeline.runs import go, save
from tests.stages.pdf.made_pdfs import SCAN, column, hostile, pdf, prose

pytest.importorskip("pypdfium2")

TEXT = column(prose(80), 72, 740, width=80)[0]
INFO = b"/Title (The Mill) /Author (A. Miller) /CreationDate (D:20240229101112Z)"
HTML = (
    b"<html><head><title>A page</title></head><body><article>" + b"<p>The wheel turns under the water all day.</p>" * 9
)
FOLDER = {
    "text.pdf": pdf([TEXT, TEXT], info=INFO),
    "packed/scan.pdf": pdf([SCAN] * 3),
    "partly.pdf": pdf([TEXT] * 5 + [SCAN]),
    "locked.pdf": hostile()["locked"][0],
    "broken.pdf": hostile()["no file at all"][0],
    "blank.pdf": pdf([b""]),
    "no.pdf": b"This is no PDF.",
}


def response(url: str, kind: str, body: bytes) -> bytes:
    http = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n\r\n".encode() + body
    head = f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: {url}\r\nContent-Type: application/http; msgtype=response\r\nContent-Length: {len(http)}\r\n\r\n"
    return head.encode() + http + b"\r\n\r\n"


def archive() -> bytes:
    files = [response(f"https://a.example/{name}", "application/pdf", data) for name, data in FOLDER.items()]
    return b"".join([response("https://a.example/page", "text/html", HTML), *files])


def rows(out: Path) -> dict[str, dict]:
    found = [row for path in (out / "write").rglob("*.parquet") for row in pq.read_table(path).to_pylist()]
    return {(row["url"] or row["id"]).rpartition("/")[2]: row for row in found}


def report(out: Path, stage: str) -> dict:
    return json.loads((out / "stages" / stage / "report.json").read_text())


def check(out: Path) -> None:
    found = rows(out)
    text = found["text.pdf"]
    assert text["text"].split() == prose(80) * 2
    assert json.loads(text["meta"]).items() >= {
        "title": "The Mill", "author": "A. Miller", "published": "2024-02-29", "pages": 2,
    }.items()  # fmt: skip
    assert found["partly.pdf"]["text"].split() == prose(80) * 5
    assert json.loads(found["partly.pdf"]["meta"])["pages_without_text"] == 1
    extracted = report(out, "extract")
    assert extracted["dropped"] == {"needs_ocr": 1, "pdf_encrypted": 1, "pdf_damaged": 1, "no_text": 1}
    assert extracted["noted"].items() >= {
        "pdf_files": 6, "pdf_pages": 12, "needs_ocr_pages": 4, "ocr_microdollars": 760,
    }.items()  # fmt: skip
    page = (out / "report.html").read_text()
    assert "pages that need OCR" in page and "$190 a million pages" in page


def test_pdf_files_of_an_archive_become_texts(tmp_path: Path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.warc").write_bytes(archive())
    recipe = save(
        tmp_path / "r.yaml",
        "name: r\nsources:\n  crawl: {warc: {path: in, keep_pdf: true}}\nstages:\n  - extract: {}\n  - write: {}\n",
    )
    go(recipe, tmp_path / "out")
    assert rows(tmp_path / "out").keys() == {"page", "text.pdf", "partly.pdf"}
    assert report(tmp_path / "out", "crawl")["dropped"] == {"not_html": 1}  # the one that is none
    check(tmp_path / "out")
    save(recipe, recipe.read_text().replace("true", "false"))
    go(recipe, tmp_path / "without")
    assert report(tmp_path / "without", "crawl")["dropped"] == {"not_html": 7}


def test_a_folder_of_pdf_files_is_a_source(tmp_path: Path):
    for name, data in FOLDER.items():
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    recipe = save(
        tmp_path / "r.yaml",
        "name: r\nsources:\n  papers: {pdf: {path: in}}\nstages:\n  - extract: {}\n  - write: {}\n",
    )
    go(recipe, tmp_path / "out")
    assert rows(tmp_path / "out").keys() == {"text.pdf", "partly.pdf"}
    assert report(tmp_path / "out", "papers")["dropped"] == {"not_pdf": 1}
    check(tmp_path / "out")


def test_the_price_of_ocr_stands_with_each_file_that_needs_it():
    data = pa.array([pdf([SCAN] * 3), pdf([TEXT, SCAN])], pa.binary())
    texts = {name: pa.array([None, None], pa.string()) for name in ("charset", "text", "url", "meta")}
    batch = pa.table({"html": data, **texts}).to_batches()[0]
    verdict = Extract(ocr_price=200.0).apply(batch).verdict
    assert [verdict.reason(row) for row in range(2)] == ["needs_ocr", "needs_ocr"]
    assert verdict.details == {
        0: "3 of 3 pages have no text; OCR costs about $0.000600",
        1: "1 of 2 pages have no text; OCR costs about $0.000200",
    }
    assert Extract(max_unread_share=0.5).apply(batch).verdict.reason(1) is None


def test_one_pdf_file_is_extracted_as_one_page_is():
    made = gristmill.extract(FOLDER["text.pdf"])
    assert (made.text.split(), made.title, made.no_page) == (prose(80) * 2, "The Mill", None)
    assert gristmill.extract(FOLDER["locked.pdf"]).no_page == "pdf_encrypted"
    assert gristmill.extract(FOLDER["packed/scan.pdf"]).no_page == "needs_ocr"


def test_rows_taken_for_running_heads_are_on_record():
    def page(number: int) -> list[tuple[float, float, float, str]]:
        return [
            (72, 800, 8, "Annals of Milling"),
            *column(prose(80, number), 72, 740, width=80)[0],
            (290, 30, 8, str(number)),
        ]

    data = pdf([page(number) for number in range(6)])
    none = {name: pa.nulls(1, pa.string()) for name in ("text", "meta", "url", "charset")}
    done = Extract().apply(pa.record_batch({"html": pa.array([data], pa.binary()), **none}))
    assert done.noted["pdf_head_rows"] == json.loads(done.batch["meta"][0].as_py())["running_heads"] == 12
    assert len(done.batch["text"][0].as_py().split()) == 6 * 80
    figures = Extract.figures({"noted": dict(done.noted)})
    assert figures is not None and "rows taken for running heads" in str(figures)
