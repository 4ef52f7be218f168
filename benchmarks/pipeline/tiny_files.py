"""What a run costs where each document is a file of its own: CPU seconds of all its processes, and files left.

    python -m benchmarks.pipeline.tiny_files [--files 30000]

The peer is the same documents in one file.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

RECIPE = """\
name: tiny
sources:
  tiny: {jsonl: {path: PATH}}
stages:
  - gopher_quality: {min_words: 5}
  - exact_dedup
  - write
"""


def measured(recipe: Path, out: Path) -> dict[str, float]:
    """One run with two workers."""
    command = [sys.executable, "-m", "gristmill.pipeline.cli.app", "run", str(recipe), "--out", str(out)]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([*command, "--workers", "2"], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    left = sum(path.is_file() for path in out.rglob("*"))
    return {"cpu_seconds": round(cpu, 1), "seconds": round(time.perf_counter() - start, 1), "files_left": left}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=30_000)
    count = parser.parse_args().files
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = [
            json.dumps({"text": f"A tiny document, number {number:05d}, of some few words, and no more."}) + "\n"
            for number in range(count)
        ]
        for number, line in enumerate(lines):
            path = folder / "many" / f"{number // 1000:02d}" / f"{number:05d}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(line)
        (folder / "one").mkdir()
        (folder / "one" / "all.jsonl").write_text("".join(lines))
        found = {}
        for kind in ("warm", "one", "many"):  # the first compiles kernels
            recipe = folder / f"{kind}.yaml"
            recipe.write_text(RECIPE.replace("PATH", "one" if kind == "warm" else kind))
            found[kind] = measured(recipe, folder / f"out-{kind}")
    line = {
        "what": f"{count:,} files of {len(lines[0])} bytes",
        "machine": f"{os.cpu_count()} cores",
        "versions": {name: version(name) for name in ("gristmill", "pyarrow")},
        **found["many"],
        "peer": {"what": "one file", **found["one"]},
        "ratio": round(found["one"]["cpu_seconds"] / found["many"]["cpu_seconds"], 3),
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
