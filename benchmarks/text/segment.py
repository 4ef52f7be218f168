"""How fast pages become elements and blocks, beside the parsers of resiliparse and selectolax (lexbor), and what
hostile pages cost.

    python -m benchmarks.text.segment PAGES.parquet [--rounds 3] [--only pages,hostile]

PAGES has a column `html` of bytes. Our side returns all text in blocks; the peers parse into a tree and give nothing
yet. Each hostile page is read in a process of its own, so that its peak memory is its own. Prints one JSON line for
each result.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from gristmill.kernels.html.segment import segment
from gristmill.stages.extract.engines import extract

MILLION = 1_000_000
HOSTILE: dict[str, Callable[[], bytes]] = {
    "ten million nested tags": lambda: b"<p>" * (10 * MILLION),
    "ten million nested tags, closed": lambda: b"<div>" * (5 * MILLION) + b"</div>" * (5 * MILLION),
    "a page of 50 MB of text": lambda: b"<p>some words &amp; <b>more</b>\n" * (50 * MILLION // 31),
    "a million attributes": lambda: b"<p " + b"".join(b"a%d=b " % i for i in range(MILLION)) + b">x",
    "100,000 tables": lambda: b"<table><tr><td>x" * 100_000,
    "10 million unclosed comments": lambda: b"<!--" * (10 * MILLION),
    "a million unclosed scripts": lambda: b"<script>" * MILLION,
    "a million blocks": lambda: b"<p>x" * MILLION,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="pages,hostile")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(read_one(arguments.one)))
        return
    if "pages" in arguments.only:
        beside_parsers(arguments.pages, arguments.rounds)
    if "hostile" in arguments.only:
        for what in HOSTILE:
            found = subprocess.run(
                [sys.executable, "-m", "benchmarks.text.segment", str(arguments.pages), "--one", what],
                check=True,
                capture_output=True,
                text=True,
            )
            print(
                json.dumps(
                    {"what": what, "machine": platform.processor() or platform.machine(), **json.loads(found.stdout)}
                ),
                flush=True,
            )


def beside_parsers(path: Path, rounds: int) -> None:
    from resiliparse.parse.html import HTMLTree
    from selectolax.lexbor import LexborHTMLParser

    sources = [
        html.decode("utf-8", "replace").encode() for html in pq.read_table(path, columns=["html"]).column(0).to_pylist()
    ]
    arrays = [np.frombuffer(source, np.uint8) for source in sources]
    size = sum(map(len, sources))
    ways: dict[str, Callable[[int], Any]] = {
        "gristmill": lambda i: segment(arrays[i]),
        "resiliparse": lambda i: HTMLTree.parse_from_bytes(sources[i]),
        "selectolax": lambda i: LexborHTMLParser(sources[i]),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way(0)
    for _ in range(rounds):
        for name, way in ways.items():
            begun = time.process_time()  # others may be at work on the machine
            for i in range(len(sources)):
                way(i)
            seconds[name].append(time.process_time() - begun)
    ours = statistics.median(seconds["gristmill"])
    for name, taken in seconds.items():
        median = statistics.median(taken)
        result: dict[str, Any] = {
            "what": f"pages to a tree or blocks, {name}", "machine": platform.processor() or platform.machine(),
            "sizes": {"pages": len(sources), "bytes": size},
            "versions": {package: version(package) for package in ("gristmill", "numba", "resiliparse", "selectolax")},
            "median": round(median, 3), "spread": round(max(taken) - min(taken), 3),
            "megabytes_a_second": round(size / median / 1e6, 1),
            "pages_a_second": round(len(sources) / median, 1),
        }  # fmt: skip
        if name != "gristmill":
            result |= {"peer": name, "ratio": round(median / ours, 2)}
        print(json.dumps(result), flush=True)


def read_one(what: str) -> dict[str, Any]:
    segment(np.frombuffer(b"<p>x", np.uint8))
    data = np.frombuffer(HOSTILE[what](), np.uint8)
    before = peak_memory()
    begun = time.process_time()
    page = segment(data)
    taken = time.process_time() - begun
    after_segment = peak_memory()
    del page
    extract(b"<p>a b c")
    begun = time.process_time()
    extract(data.tobytes())
    whole = time.process_time() - begun
    page = segment(data)
    return {
        "sizes": {"bytes": len(data), "elements": len(page.tag), "blocks": len(page.element)},
        "median": round(taken, 3),
        "nanoseconds_a_byte": round(taken * 1e9 / len(data), 1),
        "megabytes_above_the_page": round((after_segment - before) / 1e6),
        "extraction": {"seconds": round(whole, 2), "megabytes_above_the_page": round((peak_memory() - before) / 1e6)},
    }


def peak_memory() -> int:
    """Of this process since it began, in bytes. (`ru_maxrss` would be that of the parent at least.)"""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
