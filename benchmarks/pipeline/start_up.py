#!/usr/bin/env python3
"""How long it takes until commands that only read answer: `--help`, and `plan` of two recipes; until Python has
`gristmill`; and until it has the text of a first page, by `gristmill.extract` and by others.

    python -m benchmarks.pipeline.start_up [--rounds 5]

Every round is a process of its own; one before them fills the caches and is not counted. One JSON line each: median
seconds, their spread, and the least seconds of processor time, which depend less on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

GRISTMILL = [sys.executable, "-m", "gristmill.pipeline.cli.app"]
RECIPES = {
    "words": "name: words\nsources: {a: {jsonl: {path: in/a.jsonl}}}\nstages: [gopher_quality, write]\n",
    "pages": (
        "name: pages\nsources: {a: {html: {path: in/a.html}}}\n"
        "stages: [extract, minhash_dedup, tokenize: {vocab_size: 4096}, pack: {row_length: 2048}]\n"
    ),
}
PAGE = "<title>Bread</title><h1>Bread</h1><p>The house bakes it on Sundays, when the oven is warm from the week."
STARTS = {
    "gristmill --help": [*GRISTMILL, "--help"],
    "gristmill plan: jsonl, gopher_quality, write": [*GRISTMILL, "plan", "words.yaml"],
    "gristmill plan: html, extract, minhash_dedup, tokenize, pack": [*GRISTMILL, "plan", "pages.yaml"],
    "python: pass": [sys.executable, "-c", "pass"],
    "import gristmill": [sys.executable, "-c", "import gristmill"],
    "import gristmill; gristmill.extract(html)": [
        sys.executable,
        "-c",
        f"import gristmill; gristmill.extract({PAGE!r})",
    ],
    "trafilatura.extract(html)": [sys.executable, "-c", f"import trafilatura; trafilatura.extract({PAGE!r})"],
    "resiliparse extract_plain_text(html)": [
        sys.executable,
        "-c",
        "from resiliparse.extract.html2text import extract_plain_text\n"
        f"extract_plain_text({PAGE!r}, main_content=True)",
    ],
}


def timed(command: list[str], folder: Path) -> tuple[float, float]:
    """Seconds, and seconds of processor time."""
    start, before = time.monotonic(), os.times()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return time.monotonic() - start, used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "in").mkdir()
        (folder / "in/a.jsonl").write_text('{"text": "one document"}\n')
        (folder / "in/a.html").write_text("<p>one page")
        for name, recipe in RECIPES.items():
            (folder / f"{name}.yaml").write_text(recipe)
        for what, command in STARTS.items():
            timed(command, folder)
            took = [timed(command, folder) for _ in range(rounds)]
            seconds = [each for each, _ in took]
            result = {
                "what": f"{what}: seconds",
                "machine": f"{platform.machine()} {platform.system()}, {os.cpu_count()} cores",
                "versions": {"python": platform.python_version(), "gristmill": version("gristmill")},
                "sizes": {"rounds": rounds},
                "median": round(statistics.median(seconds), 2),
                "spread": [round(min(seconds), 2), round(max(seconds), 2)],
                "processor_seconds": round(min(used for _, used in took), 2),
            }
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
