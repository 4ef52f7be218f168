#!/usr/bin/env python3
"""What reading pages for terms of use costs beside extracting them, and what real pages state.

    python -m benchmarks.text.terms [--data ../shared/data] [--every 4]

One JSON line a result, in CPU seconds. Terms are read from all pages; one page in so many is extracted too, and the
share is of the time on these.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import gristmill
from gristmill.stages import PageTerms

WANTED = {"reservations and licenses": (), "reservations": ("reservations",), "licenses": ("license_stated",)}
SETS = ("pages", "pages_more", "wild_pages")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--every", type=int, default=4)
    options = parser.parse_args()
    pages = [page for name in SETS for page in pq.read_table(options.data / f"{name}.parquet")["html"].to_pylist()]
    pages = [page.encode() if isinstance(page, str) else page for page in pages if page]
    stage = PageTerms()
    stage.prepare()
    table = pa.table({"html": pa.array(pages, pa.large_binary())})
    start = time.process_time()
    found = stage.annotate(table.combine_chunks().to_batches()[0])
    seconds = time.process_time() - start
    licenses = [row for row in found["license_stated"].to_pylist() if row]
    reserved = Counter(word for row in found["reservations"].to_pylist() if row for word in row.split())
    say(
        "terms of pages",
        len(pages),
        seconds=seconds,
        licenses=len(licenses),
        reservations=dict(reserved.most_common(8)),
    )
    some = pages[:: options.every]
    part = pa.table({"html": pa.array(some, pa.large_binary())})
    gristmill.extract(some[0], None)
    batch = part.combine_chunks().to_batches()[0]
    spent = {name: seconds_of(PageTerms(only=only), batch) for name, only in WANTED.items()}
    start = time.process_time()
    for page in some:
        gristmill.extract(page, None)
    extraction = time.process_time() - start
    for name, terms in spent.items():
        say(f"{name} beside extraction", len(some), terms=terms, extraction=extraction, share=terms / extraction)


def seconds_of(stage: PageTerms, batch: pa.RecordBatch) -> float:
    start = time.process_time()
    stage.annotate(batch)
    return time.process_time() - start


def say(what: str, pages: int, **facts: object) -> None:
    rounded = {name: round(value, 4) if isinstance(value, float) else value for name, value in facts.items()}
    print(json.dumps({"what": what, "machine": platform.machine(), "pages": pages, **rounded}), flush=True)


if __name__ == "__main__":
    main()
