#!/usr/bin/env python3
"""What it costs to hold files against their checksums: processor seconds of runs with and without, in alternated pairs.

    python -m benchmarks.pipeline.check_overhead [--crawl FOLDER] [--pairs 10] [--runs 5]

The runs work in this process, so that its processor time is all there is; without a crawl three copies of the demo's
are made. A pair is the median ratio of several couples, a run with checks beside one without: a shared processor
changes its speed by a tenth and more from one run to the next. Prints one JSON line: the median ratio of a pair, a 95 %
interval of the mean ratio; and, since such a processor hides what is under some per cent, the share of a run that its
checks take by their own clocks, with its interval (the reading of a batch that is checked counts in full, though a run
without checks reads it as well).
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
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.soak.flips import Quieter, in_this_process
from benchmarks.soak.killed_runs import make_crawl
from gristmill.pipeline.engine.cluster import Where
from gristmill.pipeline.engine.engine import Engine
from gristmill.pipeline.flow import rows as flow_rows
from gristmill.pipeline.processes import template
from gristmill.pipeline.recipe import recipe as recipes
from gristmill.pipeline.run.run import run
from gristmill.pipeline.store import checksums

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


CHECKS = (
    (checksums, "is_whole"),
    (flow_rows, "checked_batch"),
    (flow_rows, "batch_checksum"),
    (flow_rows, "as_in_a_file"),
)


def clocked(work: Callable[..., Any], clock: list[float]) -> Callable[..., Any]:
    def clocked_work(*given: Any, **named: Any) -> Any:
        begin = time.process_time()
        try:
            return work(*given, **named)
        finally:
            clock.append(time.process_time() - begin)

    return clocked_work


def seconds(recipe: Path, out: Path, checked: bool, clock: list[float] | None = None) -> float:
    """Processor seconds of a run; with a clock, its checks' own as well."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(Engine, "_work", in_this_process))
        stack.enter_context(patch.object(template, "begin", lambda recipe: None))
        if clock is not None:
            for module, name in CHECKS:
                stack.enter_context(patch.object(module, name, clocked(getattr(module, name), clock)))
        if not checked:
            stack.enter_context(patch.object(checksums, "is_whole", lambda store, path, checksum: True))
            stack.enter_context(
                patch.object(flow_rows, "checked_batch", lambda reader, schema, place, path: reader.get_batch(place))
            )
            stack.enter_context(patch.object(flow_rows, "batch_checksum", lambda batch, schema, place, count: ""))
            stack.enter_context(patch.object(flow_rows, "as_in_a_file", lambda batch: batch))
        gc.collect()
        begin = time.process_time()
        run(recipes.load(recipe), str(out), Where(1), Quieter())
        return time.process_time() - begin


def interval(name: str, values: list[float]) -> dict[str, float]:
    """The mean and its 95 % interval."""
    mean = statistics.mean(values)
    half = (T_9 if len(values) == 10 else 1.96) * statistics.stdev(values) / len(values) ** 0.5
    return {f"mean_{name}": mean, f"{name}_low": mean - half, f"{name}_high": mean + half}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--crawl", type=Path)
    options.add_argument("--pairs", type=int, default=10)
    options.add_argument("--runs", type=int, default=5, help="couples of runs in a pair")
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        crawl = asked.crawl or make_crawl(folder / "crawl", copies=3)
        recipe = folder / "r.yaml"
        recipe.write_text(f'name: r\nsources:\n  crawl: {{warc: {{path: "{crawl.resolve()}"}}}}\nstages:\n{STAGES}')
        seconds(recipe, folder / "warm", True)
        ratios, plain, shares = [], [], []
        for pair in range(asked.pairs):
            took: dict[bool, list[float]] = {True: [], False: []}
            for turn in range(2 * asked.runs):
                checked = (turn + turn // 2 + pair) % 2 == 0
                out = folder / "out"
                took[checked].append(seconds(recipe, out, checked))
                shutil.rmtree(out)
            ratios.append(statistics.median(one / other for one, other in zip(took[True], took[False], strict=True)))
            plain.append(statistics.median(took[False]))
            clock: list[float] = []
            shares.append(1 / (seconds(recipe, folder / f"clocked-{pair}", True, clock) / sum(clock)))
    facts = {"median_ratio": statistics.median(ratios)} | interval("ratio", ratios) | interval("share_by_clock", shares)
    print(
        json.dumps(
            {"what": "check_overhead", "pairs": len(ratios), "seconds_without": round(statistics.median(plain), 3)}
            | {key: round(value, 4) for key, value in facts.items()}
            | {"machine": f"{platform.machine()} {platform.system()}", "versions": {"pyarrow": version("pyarrow")}}
        )
    )


if __name__ == "__main__":
    main()
