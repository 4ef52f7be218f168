#!/usr/bin/env python3
"""What it costs to hold files against their checksums: processor seconds of runs with and without, in alternated pairs.

    python -m benchmarks.pipeline.check_overhead [--crawl FOLDER] [--pairs 10]

The two runs of a pair share one core at the same time (benchmarks/paired.py). A run works in its process alone, so that
the processor time of that process is all there is; without a crawl three copies of the demo's are made. Prints one JSON
line: the ratio of processor seconds and its 95 % interval.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import platform
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from unittest.mock import patch

from benchmarks.paired import on_one_core
from benchmarks.soak.flips import Quieter
from gristmill.pipeline.engine.cluster import Where
from gristmill.pipeline.recipe import recipe as recipes
from gristmill.pipeline.run.run import run
from gristmill.pipeline.shuffle import spill
from gristmill.pipeline.store import storage
from tests.pipeline.run.killed_runs import make_crawl

STAGES = """\
  - extract
  - keep_languages: {languages: [en], at_least: 0.65}
  - text_signals: {units: datatrove}
  - gopher_repetition
  - gopher_quality
  - c4_lines: {terminal_punctuation: false}
  - c4_quality
  - fineweb_quality
  - minhash_dedup: {ngram: 5, threshold: 0.75}
  - personal_data: {kinds: [email, ip], style: fake}
  - write
"""
T_9 = 2.262  # Student's t, 0.975, 9 degrees of freedom


def seconds(recipe: Path, out: Path, checked: bool) -> float:
    """Processor seconds of a run."""
    with contextlib.ExitStack() as stack:
        if not checked:
            stack.enter_context(patch.object(storage, "is_whole", lambda store, path, checksum: True))
            stack.enter_context(
                patch.object(spill, "checked_batch", lambda reader, place, path: reader.get_batch(place))
            )
            stack.enter_context(patch.object(spill, "batch_checksum", lambda batch, place, count: ""))
        gc.collect()
        begin = time.process_time()
        run(recipes.load(recipe), str(out), Where(0), Quieter())
        return time.process_time() - begin


@dataclass(frozen=True)
class Runs:
    """The sides take turns at having checks."""

    recipe: Path
    folder: Path

    def __call__(self, side: int, pair: int) -> float:
        out = self.folder / f"out-{side}"
        shutil.rmtree(out, ignore_errors=True)
        return seconds(self.recipe, out, self.is_checked(side, pair))

    @staticmethod
    def is_checked(side: int, pair: int) -> bool:
        return (pair + pair // 2 + side) % 2 == 0


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--crawl", type=Path)
    options.add_argument("--pairs", type=int, default=10)
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        crawl = asked.crawl or make_crawl(folder / "crawl", copies=3)
        recipe = folder / "r.yaml"
        recipe.write_text(f'name: r\nsources:\n  crawl: {{warc: {{path: "{crawl.resolve()}"}}}}\nstages:\n{STAGES}')
        took = on_one_core(Runs(recipe, folder), asked.pairs)
    pairs = [both if Runs.is_checked(0, pair) else both[::-1] for pair, both in enumerate(took)]
    ratios = [checked / unchecked for checked, unchecked in pairs]
    mean = statistics.mean(ratios)
    half = (T_9 if len(ratios) == 10 else 1.96) * statistics.stdev(ratios) / len(ratios) ** 0.5
    facts = {"median_ratio": statistics.median(ratios), "mean_ratio": mean, "low": mean - half, "high": mean + half}
    print(
        json.dumps(
            {"what": "check_overhead", "pairs": len(ratios)}
            | {"seconds_without": round(statistics.median(unchecked for _, unchecked in pairs), 3)}
            | {key: round(value, 4) for key, value in facts.items()}
            | {"machine": f"{platform.machine()} {platform.system()}", "versions": {"pyarrow": version("pyarrow")}}
        )
    )


if __name__ == "__main__":
    main()
