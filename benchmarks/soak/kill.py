#!/usr/bin/env python3
"""Runs that are killed at random moments, held against a run that was left alone: one JSON line, exit code 1 if
anything differs.

    python -m benchmarks.soak.kill [--crawl FOLDER] [--times 25] [--seed 0] [--workers 2] [--work FOLDER]

Each time a run in a fresh folder loses its driver to kill -9, and the same command is given again; and another run
loses one worker to kill -9 and is left to finish. What must be equal says killed_runs.py. kills.py does the same
in slices that resume, on a small crawl.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import psutil

from benchmarks.soak.killed_runs import KILLS, disturb, make_case, make_crawl, survivors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--crawl", type=Path, help="a folder of WARC or JSONL files; else copies of the demo's crawl")
    parser.add_argument("--copies", type=int, default=18, help="how many copies of the demo's crawl")
    parser.add_argument("--times", type=int, default=25, help="how many kills of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--work", type=Path, help="an empty folder for the runs; it is kept")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.work or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        crawl = arguments.crawl or make_crawl(folder / "crawl", arguments.copies)
        case = make_case(crawl, folder, arguments.workers)
        print(f"seed {arguments.seed}", file=sys.stderr)
        seconds, outcomes = disturb(
            case, folder, arguments.times, arguments.seed, lambda line: print(line, file=sys.stderr, flush=True)
        )
        identical = sum(not o.differences for o in outcomes)
        result = {
            "what": "runs killed at random moments (kill -9 of the driver; of a worker) that end as an undisturbed "
            "run, byte for byte",
            "times": len(outcomes),
            "hit": {what: sum(o.hit for o in outcomes if o.what == what) for what in KILLS},
            "identical": identical,
            "seconds_undisturbed": round(seconds, 1),
            "sizes": {
                "files": sum(1 for p in crawl.iterdir() if p.is_file()),
                "bytes": sum(p.stat().st_size for p in crawl.iterdir() if p.is_file()),
                "survivors": len(survivors(folder / "undisturbed")),
            },
            "seed": arguments.seed,
            "machine": f"{platform.machine()} {platform.system()}, {psutil.cpu_count()} cores",
            "versions": {name: version(name) for name in ("gristmill", "distributed", "pyarrow")}
            | {"python": platform.python_version()},
        }
        print(json.dumps(result))
    sys.exit(identical != len(outcomes))


if __name__ == "__main__":
    main()
