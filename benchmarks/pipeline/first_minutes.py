#!/usr/bin/env python3
"""A newcomer's first minutes, by step: from a clone, or from a wheel, to the demo's report and to pages of their own.

    python -m benchmarks.pipeline.first_minutes clone [--rounds 3]
    python -m benchmarks.pipeline.first_minutes wheel [--rounds 3]      (after `make wheel`)

An empty home, an empty environment, Python alone, and for `clone` what Git has of this checkout. The packages that are
needed are downloaded first (told apart) and then installed from that folder. `demo` is the command from its start to
its end, `ready` how long of it the run waited for its workers, which is how long kernels are compiled; `demo_again` and
`ready_again` are the same with kernels that are there. `own_extracts` is a first run on WARC files, with an empty cache
again, until a worker has its first pages. One JSON line a round, in seconds of the clock, and with the seconds of
processor time of all that the step started.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
WANTED = {"clone": "install + demo <= 75, ready <= 30", "wheel": "install + demo <= 35, demo <= 10, own_extracts <= 5"}
OWN = "name: own\nsources: {crawl: {warc: {path: demo/crawl/*.warc.gz}}}\nstages: [extract, gopher_quality, write]\n"
BEGUN = re.compile(r"\.[0-9a-f]{16}-\d+\.tmp")  # the file by which a worker says what it is about to do


class Steps:
    """Commands in a home of their own, and how long each took."""

    def __init__(self, home: Path, wheelhouse: Path) -> None:
        self.home = home
        self.seconds: dict[str, float] = {}
        self.processor: dict[str, float] = {}
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(wheelhouse),
        }

    def start(self, *words: str | Path, folder: Path | None = None, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(word) for word in words], cwd=folder or self.home, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, env=self.environment | more,
        )  # fmt: skip

    def do(self, name: str, *words: str | Path, folder: Path | None = None) -> None:
        began, used = time.perf_counter(), os.times()
        process = self.start(*words, folder=folder)
        said, _ = process.communicate()
        if process.returncode:
            sys.exit(f"{name} failed:\n{said}")
        now = os.times()
        self.seconds[name] = round(time.perf_counter() - began, 1)
        self.processor[name] = round(
            now.children_user + now.children_system - used.children_user - used.children_system, 1
        )

    def demo(self, name: str, run: Path, *words: str | Path, folder: Path | None = None) -> None:
        """The demo, and how long it waited for workers."""
        self.do(f"demo{name}", *words, folder=folder)
        if not (run / "report.html").is_file():
            sys.exit(f"no report in {run}")
        self.seconds[f"ready{name}"] = round(json.loads((run / "run.json").read_text())["start"]["seconds"], 1)

    def first_pages(self, gristmill: Path) -> None:
        """A run of one's own with an empty cache, until a worker has begun."""
        (self.home / "own.yaml").write_text(OWN)
        began = time.perf_counter()
        process = self.start(gristmill, "run", "own.yaml", XDG_CACHE_HOME=str(self.home / "empty"))
        while process.poll() is None and not any(BEGUN.fullmatch(path.name) for path in self.home.glob("out/own/*/.*")):
            time.sleep(0.02)
        self.seconds["own_extracts"] = round(time.perf_counter() - began, 1)
        if process.wait():
            sys.exit(f"own.yaml failed:\n{process.stdout.read() if process.stdout else ''}")


def from_wheel(steps: Steps) -> None:
    steps.do("environment", sys.executable, "-m", "venv", "venv")
    programs = steps.home / "venv" / "bin"
    steps.do("install", programs / "pip", "install", "-q", newest_wheel())
    steps.demo("", steps.home / "demo/run", programs / "gristmill", "demo")
    shutil.rmtree(steps.home / "demo")
    steps.demo("_again", steps.home / "demo/run", programs / "gristmill", "demo")
    steps.first_pages(programs / "gristmill")


def from_clone(steps: Steps) -> None:
    steps.do("clone", "git", "clone", "-q", ROOT, "gristmill")
    clone = steps.home / "gristmill"
    python = f"PYTHON={sys.executable}"
    steps.do("install", "make", python, ".venv/.installed", folder=clone)
    steps.demo("", clone / "demo/run", "make", python, "demo", folder=clone)
    shutil.rmtree(clone / "demo")
    steps.demo("_again", clone / "demo/run", "make", python, "demo", folder=clone)


def newest_wheel() -> Path:
    wheels = sorted((ROOT / "dist").glob("gristmill-*.whl"), key=lambda path: path.stat().st_mtime)
    if not wheels:
        sys.exit("no wheel in dist: `make wheel` first")
    return wheels[-1]


def download(wheelhouse: Path) -> dict[str, float]:
    began = time.perf_counter()
    pip = [sys.executable, "-m", "pip", "download", "-q", "-d", str(wheelhouse), "setuptools>=77", "wheel", str(ROOT)]
    done = subprocess.run(pip, check=False, capture_output=True)
    if done.returncode:
        sys.exit(done.stderr.decode())
    for own in wheelhouse.glob("gristmill-*"):
        own.unlink()
    files = [path for path in wheelhouse.iterdir() if path.is_file()]
    megabytes = round(sum(path.stat().st_size for path in files) / 1e6)
    return {"download": round(time.perf_counter() - began, 1), "packages": len(files), "megabytes": megabytes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", choices=WANTED)
    parser.add_argument("--wheelhouse", type=Path, default=ROOT / "build" / "wheelhouse")
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    wheelhouse = args.wheelhouse.resolve()
    wheelhouse.mkdir(parents=True, exist_ok=True)
    print(json.dumps(download(wheelhouse)), flush=True)
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory() as folder:
            steps = Steps(Path(folder), wheelhouse)
            (from_wheel if args.way == "wheel" else from_clone)(steps)
            result = {
                "what": f"first minutes from a {args.way}",
                "machine": f"{platform.machine()} {platform.system()}, {os.cpu_count()} cores",
                "versions": {"python": platform.python_version()},
                **steps.seconds,
                "processor_seconds": steps.processor,
                "wanted": WANTED[args.way],
            }
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
