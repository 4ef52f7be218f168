#!/usr/bin/env python3
"""How far the time left that a run shows is from the time that it took: four recipes, each from nothing.

    python -m benchmarks.pipeline.time_left [--workers 2] [--times 3] [--only demo,extract,dedup,pack] [--logs FOLDER]
      [--crawl 'crawl-*.warc.gz']

The recipes: the demo's on 13,000 pages; extraction by trafilatura; near-deduplication of made texts; rules, a tokenizer
and packing. With --crawl the first two read these files: real pages are larger. Every event of a run is logged with its
second, and the predictor is asked again at 10, 25, 50 and 75 % of the time that the run took in the end. `error` is the
predicted total over the true one, less 1. One JSON line a recipe, with the median of the runs and all of them. With
--cold-kernels each run compiles its kernels, as the first on a machine does; with --after-sample a run on a part of the
input comes first, from which the run knows its stages.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pipeline import made_documents
from gristmill.pipeline.demo.crawl import write_crawl
from gristmill.pipeline.plan.plan import Node
from gristmill.pipeline.progress import events
from gristmill.pipeline.progress.progress import Quiet
from gristmill.pipeline.store.records import Result, Task

SHARES = (0.1, 0.25, 0.5, 0.75)
HEAD = "name: {name}\nparts: {{files: {files}}}\nsources:\n  made: {{{reader}}}\nstages:\n"
MADE = 'jsonl: {path: "MADE"}'
RULES = "  - keep_languages: {languages: [en], at_least: 0.2}\n  - gopher_repetition\n  - gopher_quality\n"
PACK = "  - tokenize: {vocab_size: 4096}\n  - order: {by: mtld}\n  - pack: {row_length: 1024}\n"
NEAR = "  - exact_dedup\n  - minhash_dedup: {threshold: 0.7}\n"
RECIPES = {
    "demo": HEAD.format(name="demo", files=1, reader='warc: {path: "CRAWL"}')
    + "  - extract\n" + RULES + NEAR + "  - write\n" + PACK,
    "extract": HEAD.format(name="extract", files=1, reader='warc: {path: "CRAWL"}')
    + "  - extract: {engine: trafilatura}\n" + RULES + "  - exact_dedup\n  - write\n",
    "dedup": HEAD.format(name="dedup", files=1, reader=MADE) + NEAR + "  - write\n",
    "pack": HEAD.format(name="pack", files=1, reader=MADE) + "  - gopher_repetition\n" + PACK,
}  # fmt: skip
SIZES = {"demo": 40, "extract": 40, "dedup": 60, "pack": 16}  # crawls of the demo, or files of made texts
IN_A_FILE = 2500


class Logged(Quiet):
    """Every event of a run."""

    def __init__(self) -> None:
        self.start = time.time()
        self.events: list[events.Event] = []

    @property
    def at(self) -> float:
        return round(time.time() - self.start, 3)

    def connected(self, dashboard: str | None, workers: int) -> None:
        self.events.append(events.Event(self.at, "connected", workers=workers))

    def begins(self, node: Node, parts: int) -> None:
        self.events.append(events.Event(self.at, "began", node.name, tasks=parts))

    def expects(self, tasks: Sequence[Task]) -> None:
        self.events += events.expected(self.at, tasks)

    def finished(self, task: Task, result: Result, anew: bool) -> None:
        if event := events.finished(self.at, task, result, anew):
            self.events.append(event)

    def ends(self, node: Node) -> None:
        self.events.append(events.Event(self.at, "ended", node.name))


def run_logged(recipe: str, out: str, log: str, workers: int) -> None:
    """A run, in this process, and its log: a line of the plan, then one for each event, then one with the seconds."""
    from gristmill.pipeline.engine.cluster import Where
    from gristmill.pipeline.plan.plan import make_plan
    from gristmill.pipeline.recipe import recipe as recipes
    from gristmill.pipeline.run.earlier import known_before
    from gristmill.pipeline.run.run import run
    from gristmill.pipeline.store.storage import Store

    ui = Logged()
    loaded = recipes.load(recipe)
    plan = make_plan(loaded)
    known = known_before(plan, Store(out))
    run(loaded, out, Where(workers), ui)
    rows = [
        {
            "nodes": [shape_row(node) for node in plan.nodes],
            "known": known.plain() if known else None,
            "workers": workers,
        },
        *(event.plain() for event in ui.events),
        {"seconds": ui.at},
    ]
    Path(log).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def shape_row(node: Node) -> dict[str, Any]:
    return events.shape_of(node).plain()


def inputs(folder: Path, name: str, crawl: str | None) -> str:
    """A pattern of files."""
    if crawl and "CRAWL" in RECIPES[name]:
        return str(Path(crawl).absolute())
    pattern = "*.warc.gz" if "CRAWL" in RECIPES[name] else "*.jsonl"
    made = folder / ("in-crawl" if "CRAWL" in RECIPES[name] else f"in-{name}")
    if made.exists():
        return f"{made}/{pattern}"
    made.mkdir(parents=True)
    for number in range(SIZES[name]):
        if "CRAWL" in RECIPES[name]:
            write_crawl(folder / "one", seed=number)
            for path in (folder / "one").glob("*.warc.gz"):
                path.rename(made / f"{number:03d}-{path.name}")
        else:
            count = random.Random(number).randint(IN_A_FILE // 2, IN_A_FILE * 3 // 2)
            rows = np.arange(number * 10_000, number * 10_000 + count, dtype=np.uint64)
            texts = made_documents.page_texts(rows).to_pylist()
            with (made / f"{number:03d}.jsonl").open("w", encoding="utf-8") as file:
                file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    return f"{made}/{pattern}"


def measured(folder: Path, name: str, given: argparse.Namespace, time_: int) -> dict[str, Any]:
    out, log, recipe = folder / f"out-{name}", folder / f"{name}-{time_}.jsonl", folder / f"{name}.yaml"
    made = inputs(folder, name, given.crawl)
    recipe.write_text(RECIPES[name].replace("CRAWL", made).replace("MADE", made))
    for old in (out, Path(f"{out}-sample")):
        shutil.rmtree(old, ignore_errors=True)
    environment = dict(os.environ)
    if given.cold_kernels:
        environment["GRISTMILL_CACHE"] = tempfile.mkdtemp(dir=folder)
    if given.after_sample:
        command = [sys.executable, "-m", "gristmill.pipeline.cli.app", "run", str(recipe), "--out", str(out)]
        subprocess.run([*command, "--sample", "10%"], check=True, env=environment, stdout=subprocess.DEVNULL)
    child = ["-m", "benchmarks.pipeline.time_left", "--child", str(recipe), str(out), str(log)]
    subprocess.run([sys.executable, *child, "--workers", str(given.workers)], check=True, env=environment)
    return errors_of([json.loads(line) for line in log.read_text().splitlines()])


def errors_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The predicted total over the true one, less 1, at some shares of the run; and all that was predicted."""
    seconds = rows[-1]["seconds"]
    found: dict[str, Any] = {"seconds": round(seconds, 1)}
    for share in SHARES:
        left = asked_at(rows, share * seconds)
        found[f"{share:.0%}"] = None if left is None else round((share * seconds + left) / seconds - 1, 3)
    shares = [number / 20 for number in range(1, 20)]
    lefts = [asked_at(rows, share * seconds) for share in shares]
    found["totals"] = [
        None if left is None else round(share * seconds + left, 1) for share, left in zip(shares, lefts, strict=True)
    ]
    return found


def asked_at(rows: list[dict[str, Any]], now: float) -> float | None:
    """The time left as it was foreseen then: from the events up to that second alone."""
    from gristmill.pipeline.progress.time_left import time_left
    from gristmill.pipeline.progress.usual import Known

    shapes = [events.NodeShape.from_plain(row) for row in rows[0]["nodes"]]
    known = Known.from_plain(rows[0]["known"]) if rows[0]["known"] else None
    seen = [event for event in events.replayed(rows[1:-1]) if event.at <= now]
    return time_left(shapes, seen, now, known, rows[0]["workers"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--only", default=",".join(RECIPES))
    parser.add_argument("--logs", type=Path, help="keep inputs, runs and logs in this folder")
    parser.add_argument("--crawl", help="WARC files, for demo and extract")
    parser.add_argument("--cold-kernels", action="store_true")
    parser.add_argument("--after-sample", action="store_true")
    parser.add_argument("--child", nargs=3, metavar=("RECIPE", "OUT", "LOG"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        run_logged(*given.child, given.workers)
        return
    folder = given.logs or Path(tempfile.mkdtemp(prefix="time-left-"))
    for name in given.only.split(","):
        found = [measured(folder, name, given, time_) for time_ in range(given.times)]
        errors = {
            f"{share:.0%}": statistics.median(e for run in found if (e := run[f"{share:.0%}"]) is not None)
            for share in SHARES
        }
        print(
            json.dumps(
                {
                    "what": f"time left, {name}: predicted total over the true one, less 1",
                    "machine": f"{platform.machine()}, {os.cpu_count()} cores, {given.workers} workers",
                    "versions": {"gristmill": version("gristmill")},
                    "sizes": {"runs": given.times, "seconds": statistics.median(run["seconds"] for run in found)},
                    "kernels": "compiled in the run" if given.cold_kernels else "compiled before",
                    "known": "a run on 10 % of the input" if given.after_sample else "nothing",
                    "median": errors,
                    "each": found,
                }
            ),
            flush=True,
        )
    if given.logs is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
