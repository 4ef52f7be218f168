"""Cells of real tables that hold blocks, links and buttons: are they where a browser's DOM has them?

    python -m benchmarks.text.tables [--data ../shared/data] [--warc FOLDER] [--skip 6] [--show 10]

Chromium (headless) parses each page with DOMParser and says where the cells of its tables stand. Taken are tables of
`pages`, `wild_pages` and the pages of a folder of WARC files (six with a table of each host, after those that `--skip`
leaves out: the rules were chosen on the first six) that

- hold no table, have text in two rows and two columns, and in most rows in several cells;
- have a cell of several blocks of text.

Those that lay a page out were found by reading all of them, and are listed below. A table's cells are looked for in the
Markdown of all blocks of the page: a cell is in place where row, column and its letters and figures are the same, after
empty rows and columns are left out on both sides. A single cell above the others may stand before the table, as its
title. One JSON line for each source and one for all.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import subprocess
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from gristmill.stages.extract.gristmill import look_at, utf8, written_blocks

# Tables for layout, by source, page (its number or the end of its address) and number on the page.
LAYOUT = {
    ("pages", "516", 8),  # a post of a forum and who wrote it
    ("pages", "516", 10),
    ("pages", "632", 0),  # an article in two columns
    ("warc", "html/library/functions.html", 0),  # a list in four columns
}
MOST_OF_HOST = 6
BATCH = 25_000_000  # bytes of pages that a browser is given at once
BAR = re.compile(r"(?<!\\)\|")
READ_TABLES = r"""
const BLOCK = new Set(("P DIV UL OL LI DL DT DD H1 H2 H3 H4 H5 H6 TABLE CAPTION TR TD TH ARTICLE SECTION MAIN NAV "
  + "ASIDE HEADER FOOTER HGROUP ADDRESS BLOCKQUOTE PRE FIGURE FIGCAPTION FORM FIELDSET LEGEND DETAILS SUMMARY DIALOG MENU "
  + "CENTER HR").split(" "));
const UNSEEN = new Set(("SCRIPT STYLE IFRAME NOEMBED NOFRAMES TITLE TEXTAREA TEMPLATE OBJECT CANVAS AUDIO VIDEO SELECT "
  + "DATALIST RT RP RTC APPLET SVG").split(" "));
function textOf(cell) {
  let parts = [], blocks = 0, fresh = true;
  const walk = node => {
    if (node.nodeType === 3 && node.data.trim()) { blocks += fresh; fresh = false; parts.push(node.data); }
    const name = node.nodeName.toUpperCase();
    if (name === "IMG" && node.className === "math") parts.push(node.alt);
    if (node.nodeType !== 1 || UNSEEN.has(name)) return;
    fresh ||= BLOCK.has(name);
    node.childNodes.forEach(walk);
    fresh ||= BLOCK.has(name);
  };
  cell.childNodes.forEach(walk);
  return {text: parts.join(" "), blocks};
}
function cellsOf(table) {
  const rows = [...table.querySelectorAll("tr")].filter(row => row.closest("table") === table);
  const taken = {}, cells = [];
  rows.forEach((row, r) => {
    let column = 0;
    for (const cell of row.cells) {
      while ((taken[column] || 0) > r) column++;
      cells.push({row: r, column, ...textOf(cell)});
      const wide = Math.min(cell.colSpan, 200);
      for (let k = 0; k < wide; k++) taken[column + k] = r + (cell.rowSpan || rows.length);
      column += wide;
    }
  });
  return cells;
}
const pages = [...document.querySelectorAll("script[type='text/page']")].map(script => {
  const bytes = Uint8Array.from(atob(script.textContent), letter => letter.charCodeAt(0));
  const page = new DOMParser().parseFromString(new TextDecoder().decode(bytes), "text/html");
  return [...page.querySelectorAll("table")].map(table => table.querySelector("table") ? [] : cellsOf(table));
});
document.body.textContent = btoa(unescape(encodeURIComponent(JSON.stringify(pages))));
"""

Grid = dict[tuple[int, int], str]


class Source(NamedTuple):
    """A page, and how it is called."""

    name: str
    page: str
    data: bytes


def sources(data: Path, warc: Path | None, skip: int) -> Iterator[Source]:
    for name in ("pages", "wild_pages"):
        for number, html in enumerate(pq.read_table(data / f"{name}.parquet", columns=["html"])["html"].to_pylist()):
            if html and b"<table" in html.lower():
                yield Source(name, str(number), utf8(html))
    of_host: Counter[str] = Counter()
    for path in sorted(warc.glob("*.warc.gz")) if warc else ():
        from fastwarc.warc import ArchiveIterator, WarcRecordType

        with path.open("rb") as file:
            for record in ArchiveIterator(file, record_types=WarcRecordType.response):
                html, url = record.reader.read(), record.headers["WARC-Target-URI"]
                host = url.split("/")[2]
                if b"<table" in html.lower() and len(html) < 400_000:
                    of_host[host] += 1
                    if skip < of_host[host] <= skip + MOST_OF_HOST:
                        yield Source("warc", url, utf8(html))


def browsers_tables(pages: list[bytes]) -> list[list[list[dict[str, Any]]]]:
    """Of each page the cells of each table, as Chromium parses it; scripts of pages do not run."""
    with tempfile.TemporaryDirectory() as folder:
        scripts = "".join(f"<script type='text/page'>{base64.b64encode(page).decode()}</script>" for page in pages)
        harness = Path(folder) / "pages.html"
        harness.write_text(f"<!doctype html><meta charset=utf-8><body>{scripts}<script>{READ_TABLES}</script>")
        options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile", "--dump-dom"]
        done = subprocess.run(["chromium", *options, f"file://{harness}"], capture_output=True, timeout=600, check=True)
    answer = re.search(rb"<body>([A-Za-z0-9+/=]*)\s*</body>", done.stdout)
    if answer is None:
        raise SystemExit(f"Chromium wrote no tables: {done.stderr[-300:]!r}")
    found: list[list[list[dict[str, Any]]]] = json.loads(base64.b64decode(answer[1]))
    return found


def batches(pages: Iterator[Source]) -> Iterator[list[Source]]:
    batch: list[Source] = []
    for page in pages:
        batch.append(page)
        if sum(len(page.data) for page in batch) > BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def is_wanted(cells: list[dict[str, Any]]) -> bool:
    filled = [cell for cell in cells if letters(cell["text"])]
    of_row = Counter(cell["row"] for cell in filled)
    columns = {cell["column"] for cell in filled}
    several = sum(count > 1 for count in of_row.values())
    return (
        len(of_row) > 1
        and len(columns) > 1
        and 2 * several >= len(of_row)
        and any(cell["blocks"] > 1 for cell in filled)
    )


def letters(text: str) -> str:
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", text).lower()))


def without_empty(cells: Iterator[tuple[int, int, str]]) -> Grid:
    """Cells by row and column, of those that hold text."""
    filled = {(row, column): letters(text) for row, column, text in cells if letters(text)}
    rows = {row: place for place, row in enumerate(sorted({row for row, _ in filled}))}
    columns = {column: place for place, column in enumerate(sorted({column for _, column in filled}))}
    return {(rows[row], columns[column]): text for (row, column), text in filled.items()}


def markdown_tables(text: str) -> list[Grid]:
    tables, rows = [], list[list[str]]()
    for line in [*text.split("\n"), ""]:
        line = line.lstrip("> ").rstrip()
        if line.startswith("| ") and line.endswith("|"):
            rows.append(BAR.split(line[1:-1].replace("\\|", "")))
        elif rows and not (line.startswith("|") and set(line) <= set("|- ")):
            tables.append(without_empty((r, c, cell) for r, row in enumerate(rows) for c, cell in enumerate(row)))
            rows = []
    return tables


def in_place(wanted: Grid, tables: list[Grid]) -> int:
    """Cells of a table that stand where they should, in that of the page's tables that has most of them."""
    has_title = sum(row == 0 for row, _ in wanted) == 1
    best = 0
    for table in tables:
        best = max(best, sum(table.get(place) == text for place, text in wanted.items()))
        if has_title:
            best = max(best, 1 + sum(row and table.get((row - 1, c)) == text for (row, c), text in wanted.items()))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--warc", type=Path)
    parser.add_argument("--skip", type=int, default=0, help="pages with a table of each host in the WARC files")
    parser.add_argument("--show", type=int, default=0, help="tables with the most cells out of place")
    args = parser.parse_args()
    scores: list[tuple[str, str, int, int]] = []
    for batch in batches(sources(args.data, args.warc, args.skip)):
        for source, tables in zip(batch, browsers_tables([page.data for page in batch]), strict=True):
            wanted = {
                number: without_empty((cell["row"], cell["column"], cell["text"]) for cell in cells)
                for number, cells in enumerate(tables)
                if is_wanted(cells) and not is_layout(source, number)
            }
            written = markdown_tables(written_blocks(look_at(source.data), "markdown")) if wanted else []
            for number, grid in wanted.items():
                scores.append((source.name, f"{source.page} {number}", in_place(grid, written), len(grid)))
    for name in [*dict.fromkeys(name for name, *_ in scores), "all"]:
        chosen = [score for score in scores if name in (score[0], "all")]
        cells, found = sum(score[3] for score in chosen), sum(score[2] for score in chosen)
        whole = sum(score[2] == score[3] for score in chosen)
        pages = len({score[1].split()[0] for score in chosen})
        line = {"what": name, "pages": pages, "tables": len(chosen), "cells": cells, "in_place": found}
        print(json.dumps({**line, "share": round(found / cells, 4), "whole_tables": whole}))
    for name, table, found, count in sorted(scores, key=lambda score: score[2] - score[3])[: args.show]:
        print(json.dumps({"what": "worst", "source": name, "table": table, "in_place": found, "cells": count}))


def is_layout(source: Source, number: int) -> bool:
    return any(
        name == source.name
        and table == number
        and (page == source.page or (name == "warc" and source.page.endswith(page)))
        for name, page, table in LAYOUT
    )


if __name__ == "__main__":
    main()
