"""A run whose workers die at random, three in ten a minute, and are started again; held byte for byte against a run that
was left alone.

A scheduler and workers as `dask scheduler` and `dask worker` start them. Parts do nothing but wait 3 s, so that many
workers fit on few cores; a killed worker is replaced at once, as a supervisor does it, and joins when it has imported
what it needs.

    python -m benchmarks.pipeline.dying_workers [--workers 8] [--parts 300]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import threading
import time
from pathlib import Path

import distributed

from gristmill.pipeline.engine.cluster import Where
from gristmill.pipeline.recipe.recipe import Recipe, load
from gristmill.pipeline.run.run import run
from tests.pipeline.engine.elsewhere import Elsewhere, Noting, elsewhere, slow_recipe
from tests.pipeline.run.killed_runs import contents, differences

SHARE = 0.3  # of the workers, a minute


class Killer(threading.Thread):
    """Kills one worker at a time, at even intervals, until it is enough, and starts another in its place."""

    def __init__(self, machines: Elsewhere, workers: int, seed: int) -> None:
        super().__init__()
        self.machines, self.workers, self.rng = machines, workers, random.Random(seed)
        self.enough = threading.Event()
        self.killed = 0

    def run(self) -> None:
        alive = self.machines.processes[1:]
        while not self.enough.wait(60 / (SHARE * self.workers)):
            victim = self.rng.randrange(self.workers)
            alive[victim].kill()
            alive[victim] = self.machines.worker()
            self.killed += 1


def timed(recipe: Recipe, out: Path, asked: argparse.Namespace, disturbed: bool) -> tuple[float, int, int]:
    """Seconds, workers killed, and those of them that died over a part."""
    with elsewhere() as machines:
        machines.scheduler()
        for _ in range(asked.workers):
            machines.worker()
        killer, ui, begin = Killer(machines, asked.workers, asked.seed), Noting(), time.monotonic()
        if disturbed:
            killer.start()
        try:
            run(recipe, str(out), Where(scheduler=machines.address), ui)
        finally:
            killer.enough.set()
            if disturbed:
                killer.join()
    return round(time.monotonic() - begin, 1), killer.killed, sum("a worker died" in note for note in ui.notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--parts", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dying-") as name:
        folder = Path(name)
        recipe = load(slow_recipe(folder, asked.parts, seconds=3))
        alone, _, _ = timed(recipe, folder / "left-alone", asked, disturbed=False)
        seconds, killed, over_parts = timed(recipe, folder / "disturbed", asked, disturbed=True)
        unlike = differences(folder / "left-alone", folder / "disturbed")
        print(
            json.dumps(
                {
                    "what": "a run of which three in ten workers die a minute",
                    "machine": {"cores": os.cpu_count()},
                    "versions": {"distributed": distributed.__version__},
                    "sizes": {
                        "workers": asked.workers,
                        "parts": asked.parts,
                        "files_compared": len(contents(folder / "left-alone")),
                    },
                    "killed": killed,
                    "killed_over_a_part": over_parts,
                    "seconds": {"left_alone": alone, "disturbed": seconds},
                    "differences": unlike,
                    "byte_equal": not unlike,
                }
            )
        )
    if unlike:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
