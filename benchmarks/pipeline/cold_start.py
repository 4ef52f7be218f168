#!/usr/bin/env python3
"""How long a new worker takes until the kernels are ready: with nothing, and with its own cache.

    python -m benchmarks.pipeline.cold_start [RECIPE]

Without a recipe: every stage that needs no settings. `compiled` is `gristmill maintain warm` with an empty cache, on as
many cores as there are; `cached` is one process that prepares all stages with the cache that it has by then. One JSON
line each, in seconds, with seconds of processor time beside them, which depend less on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

READY = """
import sys
from pathlib import Path
from gristmill.pipeline.cli.maintain_warm import compile_one, specs_of
for spec in specs_of(Path(sys.argv[1]) if len(sys.argv) > 1 else None):
    compile_one(spec)
"""


def timed(command: list[str], cache: Path) -> tuple[float, float]:
    """Seconds, and seconds of processor time, of a command and what it starts."""
    start, before = time.monotonic(), os.times()
    subprocess.run(command, env=os.environ | {"GRISTMILL_CACHE": str(cache)}, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return time.monotonic() - start, used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path, nargs="?")
    recipe = [str(path) for path in [parser.parse_args().recipe] if path is not None]
    with tempfile.TemporaryDirectory() as made:
        warm = [sys.executable, "-m", "gristmill.pipeline.cli.app", "maintain", "warm", *recipe]
        ready = [sys.executable, "-c", READY, *recipe]
        took = {name: timed(command, Path(made)) for name, command in (("compiled", warm), ("cached", ready))}
        for name, (seconds, used) in took.items():
            result = {
                "what": f"a new worker, kernels {name}: seconds until ready",
                "machine": f"{platform.machine()} {platform.system()}, {os.cpu_count()} cores",
                "versions": {package: version(package) for package in ("numba", "llvmlite")},
                "median": round(seconds, 2),
                "processor_seconds": round(used, 2),
            }
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
