#!/usr/bin/env python3
"""What a second view of each page brings: words and pages that FineWeb's rules let through, of the full view, of the
precise one, and of both with `one_view` after the rules; and how much of it reviewers call main text.

    python -m benchmarks.text.views [--data ../shared/data] [--rows 0]

Pages of `pages.parquet` that have a reviewed text (the shipped model has learned from them). `precision` and `recall`
are shares of words (multisets) over the pages that pass, `recall` of the reviewed text of all pages. One JSON line for
each.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.classifiers.blocks.training import words_of
from gristmill.stages import (
    C4Lines,
    C4Quality,
    Extract,
    FinewebQuality,
    GopherQuality,
    GopherRepetition,
    OneView,
    TextSignals,
)
from gristmill.stages.extract.choices import other_uids

VIEWS = {"full": ["full"], "precise": ["precise"], "one_view": ["full", "precise"]}
RULES = [
    TextSignals(units="datatrove"),
    GopherRepetition(),
    GopherQuality(),
    C4Lines(terminal_punctuation=False),
    C4Quality(),
    TextSignals(units="datatrove"),
    FinewebQuality(),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--rows", type=int, default=0, help="as many pages; 0 are all")
    asked = parser.parse_args()
    source = asked.data / "pages.parquet"
    if not source.exists():
        raise SystemExit(f"{source}: no such file; --data names the folder with pages.parquet")
    pages = pq.read_table(source, columns=["url", "html", "main_content"])
    pages = pages.filter(pa.compute.fill_null(pa.compute.not_equal(pages["main_content"], ""), False))
    pages = pages.slice(0, asked.rows or None)
    uids = np.arange(1, len(pages) + 1, dtype=np.uint64)
    gold = dict(zip(uids.tolist(), map(words_of, pages["main_content"].to_pylist()), strict=True))
    given = pa.table(
        {
            "uid": uids,
            "html": pages["html"].cast(pa.binary()),
            "url": pages["url"],
            **{name: pa.nulls(len(pages), pa.string()) for name in ("charset", "text", "meta")},
        }
    )
    for name, views in VIEWS.items():
        table = Extract(views=views)(given)
        for rule in RULES:
            table = rule(table)
        if len(views) > 1:
            table = OneView()(table)
        print(json.dumps({"what": name, "pages": len(pages), **figures(table, gold)}), flush=True)


def figures(table: pa.Table, gold: dict[int, list[str]]) -> dict[str, float]:
    kept = right = precise = 0
    for row in table.to_pylist():
        uid = row["uid"]
        if row.get("view") == "precise":
            uid, precise = int(other_uids(np.uint64(uid))), precise + 1
        words = Counter(words_of(row["text"]))
        kept += words.total()
        right += (words & Counter(gold[uid])).total()
    return {
        "passed": len(table),
        "precise_views": precise,
        "words": kept,
        "precision": round(right / max(kept, 1), 4),
        "recall": round(right / sum(map(len, gold.values())), 4),
    }


if __name__ == "__main__":
    main()
