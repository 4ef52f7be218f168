#!/usr/bin/env python3
"""What it costs to hold files against their checksums: processor seconds of runs with and without, in alternated pairs.

    python benchmarks/check_overhead.py [--crawl FOLDER] [--pairs 10]

The runs work in this process, so that its processor time is all there is; without a crawl three copies of the demo's are made. Prints one JSON line: the
median ratio of a pair, and a 95 % interval of the mean ratio.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import statistics
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from unittest.mock import patch

from benchmarks.killed_runs import make_crawl
from benchmarks.soak_flips import Quieter, in_this_process
from pipeline import checksums, flow_rows, template
from pipeline import recipe as recipes
from pipeline.cluster import Where
from pipeline.engine import Engine
from pipeline.run import run

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
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(Engine, "_work", in_this_process))
        stack.enter_context(patch.object(template, "begin", lambda recipe: None))
        if not checked:
            stack.enter_context(patch.object(checksums, "is_whole", lambda store, path, checksum: True))
            stack.enter_context(patch.object(flow_rows, "checked_batch", lambda reader, schema, place, path: reader.get_batch(place)))
            stack.enter_context(patch.object(flow_rows, "batch_checksum", lambda batch, schema, place, count: ""))
            stack.enter_context(patch.object(flow_rows, "as_in_a_file", lambda batch: batch))
        begin = time.process_time()
        run(recipes.load(recipe), str(out), Where(1), Quieter())
        return time.process_time() - begin


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
        seconds(recipe, folder / "warm", True)
        ratios, plain = [], []
        for pair in range(asked.pairs):
            order = (True, False) if pair % 2 else (False, True)
            took = {checked: seconds(recipe, folder / f"out-{pair}-{checked}", checked) for checked in order}
            ratios.append(took[True] / took[False])
            plain.append(took[False])
    half = (T_9 if len(ratios) == 10 else 1.96) * statistics.stdev(ratios) / len(ratios) ** 0.5
    mean = statistics.mean(ratios)
    facts = {"median_ratio": statistics.median(ratios), "mean_ratio": mean, "low": mean - half, "high": mean + half}
    print(
        json.dumps(
            {"what": "check_overhead", "pairs": len(ratios), "seconds_without": round(statistics.median(plain), 3)}
            | {key: round(value, 4) for key, value in facts.items()}
            | {"machine": f"{platform.machine()} {platform.system()}", "versions": {"pyarrow": version("pyarrow")}}
        )
    )


if __name__ == "__main__":
    main()
