#!/usr/bin/env python3
"""How far one WARC record travels through the code: files entered and jumps between files, from bytes to Parquet.

    python -m benchmarks.pipeline.trace_record [--recipe pages|shards] [--calls | --path]

Runs a recipe on a crawl of two pages with the workers' tasks in this process, after a run on other pages that loads and
compiles everything, and counts what workers call, and what the driver calls beside it. `pages` is `extract,
gopher_quality, write`; `shards` is `extract, gopher_quality, minhash_dedup, tokenize, pack`. A jump is a call in another
file than the call before it. Compiled kernels are not seen. Prints one JSON line; `--calls` lists every call of workers,
indented by its depth, `--path` the calls between `run` and the first stage's own code, both ends left out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

from benchmarks.soak.flips import Quieter
from gristmill.pipeline.engine.cluster import Where
from gristmill.pipeline.engine.executor import InlineExecutor
from gristmill.pipeline.engine.worker import run_task
from gristmill.pipeline.recipe import recipe as recipes
from gristmill.pipeline.run.run import run
from gristmill.pipeline.store.records import FOR_REPORTS, Result, Task

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


RECIPES = {
    "pages": "extract, gopher_quality, write",
    "shards": "extract, gopher_quality, minhash_dedup, tokenize: {tokenizer: train, vocab_size: 300}, pack: {row_length: 64, window_tokens: 1024}",
}
STAGE = "Extract.rewrite"  # the code of the first stage


class Trace:
    """Calls of our own code, in order; those of workers apart from those of the driver."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, int]] = []
        self.driver: list[tuple[str, str, int]] = []
        self.stack: list[tuple[str, str]] = []
        self.at_work = False
        self.path: list[tuple[str, str]] = []  # from `run` to the first stage

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        path = our_file(frame.f_code.co_filename)
        if not path:
            return
        if event == "call":
            name = frame.f_code.co_qualname
            (self.calls if self.at_work else self.driver).append((path, name, len(self.stack)))
            if self.at_work and not self.path and name == STAGE:
                self.path = self.stack[1:]
            self.stack.append((path, name))
        elif event == "return" and self.stack:
            self.stack.pop()


def files_in(calls: list[tuple[str, str, int]]) -> Counter[str]:
    return Counter(path for path, _, _ in calls)


def jumps_in(calls: list[tuple[str, str, int]]) -> int:
    return sum(a[0] != b[0] for a, b in itertools.pairwise(calls))


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


def traced_run(folder: Path, title: str, recipe: str = "pages") -> Trace:
    folder.mkdir()
    crawl = write_page(folder / "crawl", title)
    path = folder / "r.yaml"
    stages = "".join(f"  - {line}\n" for line in lines_of(RECIPES[recipe]))
    path.write_text(f"name: r\nsources: {{crawl: {{warc: {{path: {crawl}}}}}}}\nstages:\n{stages}")
    trace = Trace()

    def traced(task: Task) -> Result:
        if task.kind in FOR_REPORTS:
            sys.setprofile(None)
            try:
                return run_task(task)
            finally:
                sys.setprofile(trace)
        trace.at_work = True
        try:
            return run_task(task)
        finally:
            trace.at_work = False

    loaded = recipes.load(path)
    with patch.object(InlineExecutor, "run_task", staticmethod(traced)):
        sys.setprofile(trace)
        try:
            summary = run(loaded, str(folder / "out"), Where(0), Quieter())
        finally:
            sys.setprofile(None)
    kept = [stage.count.kept for stage in summary.record.stages]
    if not kept or kept[-1] != 1:
        raise SystemExit(f"the page did not come through: {summary.record.stages}")
    return trace


def lines_of(stages: str) -> list[str]:
    """Stages, of which settings may hold commas."""
    lines: list[str] = []
    for piece in stages.split(", "):
        if lines and lines[-1].count("{") > lines[-1].count("}"):
            lines[-1] += f", {piece}"
        else:
            lines.append(piece)
    return [re.sub(r"^(\w+): \{", r"\1: {", line) for line in lines]


def trace_of(recipe: str) -> Trace:
    """The trace of a run on a page, after one on another page."""
    with tempfile.TemporaryDirectory() as name:
        traced_run(Path(name) / "first", "Another page", recipe)
        return traced_run(Path(name) / "second", "The old mill", recipe)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--recipe", choices=RECIPES, default="pages")
    options.add_argument("--calls", action="store_true")
    options.add_argument("--path", action="store_true")
    asked = options.parse_args()
    trace = trace_of(asked.recipe)
    for path, function, depth in trace.calls if asked.calls else ():
        print(f"{'  ' * depth}{path}  {function}")
    for path, function in trace.path if asked.path else ():
        print(f"{path}  {function}")
    files = files_in(trace.calls)
    facts = {
        "what": "trace_record",
        "recipe": RECIPES[asked.recipe],
        "files": len(files),
        "jumps": jumps_in(trace.calls),
        "calls": len(trace.calls),
        "most": dict(files.most_common(5)),
        "driver_files": len(files_in(trace.driver)),
        "driver_jumps": jumps_in(trace.driver),
        "calls_from_run_to_a_stage": len(trace.path),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
