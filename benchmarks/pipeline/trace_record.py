#!/usr/bin/env python3
"""How far one WARC record travels through the code: files entered and jumps between files, from bytes to Parquet.

    python -m benchmarks.pipeline.trace_record [--calls]

Runs `extract, gopher_quality, write` on a crawl of one page with the workers' tasks in this process, after a run on another
page that loads and compiles everything, and counts what a worker calls: a jump is a call in another file than the call
before it. Compiled kernels are not seen. Prints one JSON line; `--calls` lists every call, indented by its depth.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

from benchmarks.soak.flips import Quieter
from gristmill.pipeline.engine import executor
from gristmill.pipeline.engine.cluster import Where
from gristmill.pipeline.engine.worker import run_tasks
from gristmill.pipeline.recipe import recipe as recipes
from gristmill.pipeline.run.run import run
from gristmill.pipeline.store.records import FOR_REPORTS

ROOT = Path(__file__).resolve().parents[2]
OURS = ("kernels", "mixing", "shards", "trainer", "classifiers", "stages", "pipeline", "gristmill")
SENTENCE = "The old mill stood at the end of the valley, and the people of the village brought their grain to it."
PAGE = "<html><head><title>{0}</title></head><body><article><h1>{0}</h1>{1}</article></body></html>"


@cache
def our_file(path: str) -> str:
    """A file of ours by its place in the repository, whatever link it was imported through; empty for other files."""
    file = Path(path).resolve()
    place = file.relative_to(ROOT).as_posix() if file.is_relative_to(ROOT) else ""
    return place if place.split("/")[0] in OURS else ""


class Trace:
    """Calls of our own code, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, int]] = []
        self.depth = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        path = our_file(frame.f_code.co_filename)
        if not path:
            return
        if event == "call":
            self.calls.append((path, frame.f_code.co_qualname, self.depth))
            self.depth += 1
        elif event == "return":
            self.depth -= 1

    def jumps(self) -> int:
        return sum(a[0] != b[0] for a, b in zip(self.calls, self.calls[1:], strict=False))


def write_page(folder: Path, title: str) -> Path:
    text = "".join(f"<p>{SENTENCE} This is part {number} of {title}.</p>" for number in range(20))
    body = PAGE.format(title, text).encode()
    http = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n" + body
    head = (
        "WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: http://mill.example/\r\n"
        "WARC-Date: 2024-01-01T00:00:00Z\r\nWARC-Record-ID: <urn:uuid:00000000-0000-0000-0000-000000000001>\r\n"
        f"Content-Type: application/http; msgtype=response\r\nContent-Length: {len(http)}\r\n\r\n"
    )
    folder.mkdir()
    (folder / "a.warc").write_bytes(head.encode() + http + b"\r\n\r\n")
    return folder


def traced_run(folder: Path, title: str) -> Trace:
    folder.mkdir()
    crawl = write_page(folder / "crawl", title)
    recipe = folder / "r.yaml"
    recipe.write_text(
        f"name: r\nsources: {{crawl: {{warc: {{path: {crawl}}}}}}}\nstages: [extract, gopher_quality, write]\n"
    )
    trace = Trace()

    def traced(tasks: list[Any], terms: Any) -> list[Any]:
        if tasks[0].kind in FOR_REPORTS:
            return run_tasks(tasks, terms)
        sys.setprofile(trace)
        try:
            return run_tasks(tasks, terms)
        finally:
            sys.setprofile(None)

    with patch.object(executor, "run_tasks", traced):
        summary = run(recipes.load(recipe), str(folder / "out"), Where(0), Quieter())
    kept = [stage["kept"] for stage in summary.record["stages"]]
    if not kept or kept[-1] != 1:
        raise SystemExit(f"the page did not come through: {summary.record['stages']}")
    return trace


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--calls", action="store_true")
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        traced_run(Path(name) / "first", "Another page")
        trace = traced_run(Path(name) / "second", "The old mill")
    if asked.calls:
        for path, function, depth in trace.calls:
            print(f"{'  ' * depth}{path}  {function}")
    files = Counter(path for path, _, _ in trace.calls)
    facts = {"files": len(files), "jumps": trace.jumps(), "calls": len(trace.calls)}
    print(json.dumps({"what": "trace_record", **facts, "most": dict(files.most_common(5))}))


if __name__ == "__main__":
    main()
