#!/usr/bin/env python3
"""How fast each text kernel is, in MB of UTF-8 a second on one thread, with the machine's memory bandwidth beside it: one JSON line a kernel.

    python benchmarks/kernel_speeds.py [TEXTS.parquet] [--times N]

A kernel is a name and a function of a text column; add yours to `KERNELS`. Bandwidth is that of one thread copying 256 MB (read and write, counted once).
Kernels that count words get words that were cut before, so that the table adds up.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kernels.columns import TextColumn, text_column
from stages.text.measure import SLICE_BYTES, measure
from stages.text.signals import number_of, stop_words_of, table_of

DATA = Path(__file__).parents[2] / "shared" / "data" / "rule_verdicts.parquet"


def group(name: str, units: str = "uax29"):
    """Everything that a group of signals costs, words included where it counts words."""
    table, first = table_of(None), number_of("en", list(stop_words_of(None)))

    def run(column: TextColumn) -> None:
        measure(column, {name}, units, np.full(len(column), first, np.int64), table, 30)

    return run


KERNELS = [
    ("words: whitespace", group("units", "whitespace")),
    ("words: uax29", group("units", "uax29")),
    ("words: datatrove", group("units", "datatrove")),
    ("word counts (with words: uax29)", group("words")),
    ("repeated n-grams (with words: uax29)", group("ngrams")),
    ("lines and paragraphs", group("lines")),
    ("characters and entropy", group("characters")),
    ("ellipses, links, javascript", group("mentions")),
    ("scripts", group("scripts")),
    ("compression", group("compressed")),
    ("sentences", group("sentences")),
]


def bandwidth(times: int) -> float:
    source = np.ones(256 << 20, np.uint8)
    target = np.empty_like(source)
    np.copyto(target, source)
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        np.copyto(target, source)
        seconds.append(time.perf_counter() - start)
    return len(source) / 1e6 / statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", default=DATA, help="a Parquet file with a column `text`")
    parser.add_argument("--times", type=int, default=5)
    arguments = parser.parse_args()
    if not arguments.file.exists():
        print(f"{arguments.file} is not there: name a Parquet file with a column `text`", file=sys.stderr)
        return
    column = text_column(pa.chunked_array(pq.read_table(arguments.file, columns=["text"]).column("text")))
    size = int(column.offsets[-1] - column.offsets[0])
    memory = round(bandwidth(arguments.times))
    for name, run in KERNELS:
        run(TextColumn(column.data, column.offsets[:2]))  # compiled
        seconds = []
        for _ in range(arguments.times):
            start = time.process_time()
            run(column)
            seconds.append(time.process_time() - start)
        print(
            json.dumps(
                {
                    "what": f"kernel: {name}, MB of UTF-8 a second of processor time",
                    "machine": f"{platform.machine()} {platform.system()}, {os.cpu_count()} cores, {memory} MB/s memory copy",
                    "versions": {package: version(package) for package in ("numba", "numpy")},
                    "sizes": {"documents": len(column), "bytes": size, "slice": SLICE_BYTES},
                    "median": round(size / 1e6 / statistics.median(seconds), 1),
                    "spread": [round(size / 1e6 / max(seconds), 1), round(size / 1e6 / min(seconds), 1)],
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
