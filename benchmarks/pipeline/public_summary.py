#!/usr/bin/env python3
"""Is every number of a run's public summary one that can be counted in its documents?

    python -m benchmarks.pipeline.public_summary OUT [OUT ...]

Makes the summary of each run, counts the documents again in plain Python (pyarrow reads the Parquet files, `urllib` the
addresses, `publicsuffixlist` knows suffixes; nothing else is shared with what made the summary), and compares every
number with the JSON file. Prints one JSON line a run; `differences` is to be empty.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow.parquet as pq
from publicsuffixlist import PublicSuffixList

from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.summary.files import write_summary

Counted = dict[str, Any]


def counted(out: Path) -> Counted:
    """From the documents alone."""
    suffixes = PublicSuffixList()
    documents = text = 0
    by_source, by_domain, months, days = Counter[str](), Counter[str](), Counter[str](), set[str]()
    for path in sorted((out / "write").glob("*.parquet")):
        for row in pq.read_table(path).to_pylist():
            size = len((row["text"] or "").encode())
            documents, text = documents + 1, text + size
            by_source[row["source"]] += 1
            host = (urlsplit(row["url"] or "").hostname or "").removeprefix("www.")
            if host:
                by_domain[suffixes.privatesuffix(host) or host] += size
            if row["date"]:
                days.add(row["date"][:10])
                months[row["date"][:7]] += 1
    top = sorted(by_domain.items(), key=lambda item: (-item[1], item[0]))[: math.ceil(len(by_domain) / 10)]
    run = json.loads((out / "run.json").read_text())
    gone = {stage["name"]: sum(stage["dropped"].values()) + stage["quarantined"] for stage in run["stages"]}
    return {
        "documents": documents, "text": text, "sources": dict(by_source), "domains": len(by_domain), "top": top,
        "days": [min(days, default=None), max(days, default=None)], "months": dict(months), "gone": gone,
    }  # fmt: skip


def stated(made: dict[str, Any]) -> Counted:
    """The same from the summary's JSON file."""
    points = {point["key"]: point for point in made["points"]}
    months = Counter[str]()
    for table in points["periods"]["tables"][1:]:
        for row in table["rows"]:
            months[row["month"]] += row["documents"]
    return {
        "documents": points["content"]["facts"]["documents"],
        "text": points["content"]["facts"]["text, bytes of UTF-8"],
        "sources": {row["source"]: row["documents"] for row in points["sources"]["tables"][0]["rows"]},
        "domains": points["domains"]["facts"]["domains"],
        "top": [(row["domain"], row["text bytes"]) for row in points["domains"]["tables"][0]["rows"]],
        "days": [points["periods"]["facts"]["first"], points["periods"]["facts"]["last"]],
        "months": dict(months),
        "gone": {row["stage"]: row["gone"] for row in points["processing"]["tables"][0]["rows"]},
    }


def main() -> None:
    for folder in sys.argv[1:]:
        out = Path(folder)
        begun = time.perf_counter()
        write_summary(RunFolder(folder), "eu")
        seconds = time.perf_counter() - begun
        wanted, found = counted(out), stated(json.loads((out / "summary" / "eu.json").read_text()))
        differences = [name for name in wanted if wanted[name] != found[name]]
        line = {
            "what": "public summary, counted again", "run": out.name, "documents": wanted["documents"],
            "text_bytes": wanted["text"], "domains": wanted["domains"], "top_tenth": len(wanted["top"]),
            "dropped": sum(wanted["gone"].values()), "differences": differences,
            "seconds": round(seconds, 2),
        }  # fmt: skip
        print(json.dumps(line), flush=True)
    if not sys.argv[1:]:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
