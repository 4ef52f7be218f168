#!/usr/bin/env python3
"""From a wheel to the demo's open report, as a newcomer has it, by step.

    make wheel
    python -m benchmarks.pipeline.first_minutes [--wheelhouse build/wheelhouse] [--rounds 3]

An empty home, an empty environment, Python alone. The packages that the wheel needs are downloaded first (told apart)
and then installed from that folder. `compiled` are the kernels that were compiled during the demo: none, where the
wheel has brought them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Steps:
    def __init__(self, home: Path) -> None:
        self.home, self.seconds = home, dict[str, float]()

    def do(self, name: str, *words: str | Path) -> str:
        began = time.perf_counter()
        done = subprocess.run(
            [str(word) for word in words], cwd=self.home, capture_output=True, text=True, check=False,
            env={"PATH": os.environ["PATH"], "HOME": str(self.home), "LANG": "C.UTF-8"},
        )  # fmt: skip
        if done.returncode:
            sys.exit(f"{name} failed:\n{done.stdout}{done.stderr}")
        self.seconds[name] = round(time.perf_counter() - began, 1)
        return done.stdout


def compiled(home: Path) -> int:
    """Kernels in the cache that no pack holds."""
    cache = home / ".cache" / "gristmill"
    brought = {path.name for path in cache.glob("packs/*/*/*.nbc")}
    return len({path.name for path in cache.glob("kernels-*/*.nbc")} - brought)


def download(wheel: Path, wheelhouse: Path) -> float:
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "-d", wheelhouse, wheel], check=False, capture_output=True
    )
    if done.returncode:
        sys.exit(done.stderr.decode())
    return time.perf_counter() - began


def once(wheel: Path, wheelhouse: Path) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        steps, bin = Steps(Path(folder)), Path(folder) / "venv" / "bin"
        steps.do("environment", sys.executable, "-m", "venv", "venv")
        steps.do("install", bin / "pip", "install", "-q", "--no-index", "--find-links", wheelhouse, wheel)
        said = steps.do("demo", bin / "gristmill", "demo")
        [report] = re.findall(r"report: file://(\S+)", said)
        if not Path(report).is_file():
            sys.exit(f"no report:\n{said}")
        total = round(sum(steps.seconds.values()), 1)
        return {**steps.seconds, "all": total, "compiled": compiled(Path(folder)), "wanted": "all < 90"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheelhouse", type=Path, default=ROOT / "build" / "wheelhouse")
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    wheels = sorted((ROOT / "dist").glob("gristmill-*.whl"), key=lambda path: path.stat().st_mtime)
    if not wheels:
        sys.exit("no wheel in dist: `make wheel` first")
    args.wheelhouse.mkdir(parents=True, exist_ok=True)
    seconds = download(wheels[-1], args.wheelhouse)
    files = [path for path in args.wheelhouse.iterdir() if path.is_file()]
    megabytes = sum(path.stat().st_size for path in files) / 1e6
    print(
        json.dumps({"download": round(seconds, 1), "packages": len(files), "megabytes": round(megabytes)}), flush=True
    )
    for _ in range(args.rounds):
        print(json.dumps(once(wheels[-1], args.wheelhouse)), flush=True)


if __name__ == "__main__":
    main()
