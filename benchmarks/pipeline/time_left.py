#!/usr/bin/env python3
"""How far the time left that a run shows is from the time that it took: four recipes, from nothing and again.

    python -m benchmarks.pipeline.time_left [--workers 2] [--only demo,extract,dedup,pack] [--crawl 'crawl-*.warc.gz']

The recipes: the demo's on 13,000 pages; extraction by trafilatura; near-deduplication of made texts; rules, a tokenizer
and packing. With --crawl the first two read these files: real pages are larger. Each runs twice, the second time on the
inputs of the first and as many more, when the first run has measured every node. The first knows the nodes at work
alone. One JSON line a run: `error` is what a run showed at 10, 25, 50 and 75 % of its time as its total, over the true
one, less 1, or null while it showed none; `of_nodes` is the same for what it showed for the nodes that it knew, over
the time until these ended.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pipeline import made_documents
from gristmill.pipeline.demo.crawl import write_crawl
from gristmill.pipeline.progress.progress import Progress, Quiet
from gristmill.pipeline.store.records import Result, Task

SHARES = (0.1, 0.25, 0.5, 0.75)
HEAD = "name: {name}\nparts: {{files: {files}}}\nsources:\n  made: {{{reader}}}\nstages:\n"
CRAWL, MADE = 'warc: {path: "IN/*.warc.gz"}', 'jsonl: {path: "IN/*.jsonl"}'
RULES = "  - keep_languages: {languages: [en], at_least: 0.2}\n  - gopher_repetition\n  - gopher_quality\n"
PACK = "  - tokenize: {vocab_size: 4096}\n  - order: {by: mtld}\n  - pack: {row_length: 1024}\n"
NEAR = "  - exact_dedup\n  - minhash_dedup: {threshold: 0.7}\n"
RECIPES = {
    "demo": HEAD.format(name="demo", files=1, reader=CRAWL) + "  - extract\n" + RULES + NEAR + "  - write\n" + PACK,
    "extract": HEAD.format(name="extract", files=1, reader=CRAWL)
    + "  - extract: {engine: trafilatura}\n" + RULES + "  - exact_dedup\n  - write\n",
    "dedup": HEAD.format(name="dedup", files=1, reader=MADE) + NEAR + "  - write\n",
    "pack": HEAD.format(name="pack", files=1, reader=MADE) + "  - gopher_repetition\n" + PACK,
}  # fmt: skip
SIZES = {"demo": 20, "extract": 20, "dedup": 30, "pack": 8}  # crawls of the demo, or files of made texts, in each half
IN_A_FILE = 2500


class Asking(Quiet):
    """What a run shows at each task that ends."""

    def __init__(self) -> None:
        self.shown: list[Progress] = []

    def follows(self, facts: Callable[[], Progress]) -> None:
        self.facts = facts

    def finished(self, task: Task, result: Result, anew: bool) -> None:
        self.shown.append(self.facts())


def add_inputs(folder: Path, name: str, first: int, crawl: str | None) -> None:
    """Half of the inputs of a recipe."""
    folder.mkdir(parents=True, exist_ok=True)
    if crawl and CRAWL in RECIPES[name]:
        files = sorted(Path().glob(crawl))
        half = slice(len(files) // 2, None) if first else slice(len(files) // 2)
        for path in files[half]:
            (folder / path.name).symlink_to(path.absolute())
        return
    for number in range(first, first + SIZES[name]):
        if CRAWL in RECIPES[name]:
            write_crawl(folder / "one", seed=number)
            for path in (folder / "one").glob("*.warc.gz"):
                path.rename(folder / f"{number:03d}-{path.name}")
        else:
            count = random.Random(number).randint(IN_A_FILE // 2, IN_A_FILE * 3 // 2)
            rows = np.arange(number * 10_000, number * 10_000 + count, dtype=np.uint64)
            texts = made_documents.page_texts(rows).to_pylist()
            with (folder / f"{number:03d}.jsonl").open("w", encoding="utf-8") as file:
                file.writelines(json.dumps({"text": text}) + "\n" for text in texts)


def measured(recipe: Path, out: Path, workers: int) -> dict[str, Any]:
    from gristmill.pipeline.engine.cluster import Where
    from gristmill.pipeline.recipe import recipe as recipes
    from gristmill.pipeline.run.run import run

    ui, start = Asking(), time.time()
    run(recipes.load(recipe), str(out), Where(workers), ui)
    seconds = time.time() - start
    ended = {node.name: node.ended or 0.0 for node in ui.facts().nodes}
    found: dict[str, Any] = {"seconds": round(seconds, 1), "error": {}, "of_nodes": {}}
    for share in SHARES:
        then = start + share * seconds
        facts = max((facts for facts in ui.shown if facts.updated <= then), key=lambda f: f.updated, default=None)
        whole = None if facts is None else facts.seconds_left
        known = {} if facts is None else {n.name: n.seconds_left for n in facts.nodes if n.seconds_left and not n.ended}
        found["error"][f"{share:.0%}"] = None if whole is None else error_of(share * seconds + whole, seconds)
        found["of_nodes"][f"{share:.0%}"] = (
            error_of(then + sum(known.values()) - start, max(ended[name] for name in known) - start) if known else None
        )
    return found


def error_of(guess: float, truth: float) -> float:
    return round(guess / truth - 1, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", default=",".join(RECIPES))
    parser.add_argument("--crawl", help="a pattern of WARC files below this folder, for demo and extract")
    given = parser.parse_args()
    for name in given.only.split(","):
        with tempfile.TemporaryDirectory(prefix="time-left-") as folder:
            recipe, inputs = Path(folder) / "recipe.yaml", Path(folder) / "in"
            recipe.write_text(RECIPES[name].replace("IN/", f"{inputs}/"))
            for first in (0, SIZES[name]):
                add_inputs(inputs, name, first, given.crawl)
                found = measured(recipe, Path(folder) / "out", given.workers)
                print(
                    json.dumps(
                        {
                            "what": f"time left, {name}: what was shown over the truth, less 1",
                            "machine": f"{platform.machine()}, {os.cpu_count()} cores, {given.workers} workers",
                            "versions": {"gristmill": version("gristmill")},
                            "known": "what the run before measured" if first else "nothing",
                            **found,
                        }
                    ),
                    flush=True,
                )


if __name__ == "__main__":
    main()
