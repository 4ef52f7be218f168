#!/usr/bin/env python3
"""How fast each text kernel is, in MB of UTF-8 a second on one thread, with the machine's memory bandwidth beside it:
one JSON line a kernel.

    python -m benchmarks.text.kernel_speeds [TEXTS.parquet] [--times N] [--table]

A kernel is a name and a function of a text column; add yours to `KERNELS`. Where a stage is little more than its
kernel, the whole stage is measured, from Arrow column to Arrow column. `--table` prints Markdown instead, as in
docs/kernels.md. Bandwidth is that of one thread copying 256 MB (read and write, counted once). Kernels that count words
get words that were cut before, so that the table adds up.
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
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gristmill.kernels.base.columns import text_column
from gristmill.stages import Boilerplate, C4Lines, Language, ParagraphLanguages, PersonalData, RefinedwebLines, Repair
from gristmill.stages.stage import Map
from gristmill.stages.text.signals import SLICE_BYTES, measure, number_of, stop_words_of, table_of

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "rule_verdicts.parquet"


def group(name: str, units: str = "uax29"):
    """Everything that a group of signals costs, words included where it counts words."""
    table, first = table_of(None), number_of("en", list(stop_words_of(None)))

    def run(texts: pa.Array) -> None:
        column = text_column(texts)
        measure(column, {name}, units, np.full(len(column), first, np.int64), table, 30)

    return run


def stage(made: Map):
    """A whole stage."""
    return lambda texts: made.apply(pa.record_batch({"text": texts}))


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
    ("lines: C4", stage(C4Lines())),
    ("lines: RefinedWeb", stage(RefinedwebLines())),
    ("lines: boilerplate", stage(Boilerplate())),
    ("language, lid.176.ftz", stage(Language(model="lid.176"))),
    ("language of each line", stage(ParagraphLanguages())),
    ("personal data, seven kinds", stage(PersonalData())),
    ("repair, all steps", stage(Repair())),
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
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    if not arguments.file.exists():
        print(f"{arguments.file} is not there: name a Parquet file with a column `text`", file=sys.stderr)
        return
    texts = pq.read_table(arguments.file, columns=["text"]).column("text").combine_chunks()
    size = int(pc.sum(pc.binary_length(texts)).as_py())
    memory = round(bandwidth(arguments.times))
    machine = f"{platform.machine()} {platform.system()}, {os.cpu_count()} cores, {memory} MB/s memory copy"
    if arguments.table:
        print(f"{machine}; {len(texts):,} texts, {size / 1e6:.0f} MB\n\n| kernel | MB/s |\n| --- | --- |")
    for name, run in KERNELS:
        run(texts.slice(0, 1))  # compiled
        seconds = []
        for _ in range(arguments.times):
            start = time.process_time()
            run(texts)
            seconds.append(time.process_time() - start)
        speed = size / 1e6 / statistics.median(seconds)
        result = {
            "what": f"kernel: {name}, MB of UTF-8 a second of processor time",
            "machine": machine,
            "versions": {package: version(package) for package in ("numba", "numpy", "pyarrow")},
            "sizes": {"documents": len(texts), "bytes": size, "slice": SLICE_BYTES},
            "median": round(speed, 1),
            "spread": [round(size / 1e6 / max(seconds), 1), round(size / 1e6 / min(seconds), 1)],
        }
        print(f"| {name} | {speed:,.0f} |" if arguments.table else json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
