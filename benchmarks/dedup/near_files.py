"""Near-deduplication from Parquet to Parquet, beside Daft's MinHash, on one core.

    python -m benchmarks.dedup.near_files [--documents 20000,100000] [--rounds 3] [--daft PYTHON_PATH] [--folder FOLDER]

Both read the same files of made documents (one in fourteen is new; of its copies three have 1 % of their words changed
and ten 25 %) and write the documents that stay. Gristmill runs `minhash_dedup` from its command line, with journal,
rejects, report and every pair checked; Daft (`near_files_daft.py`) checks no pair and names no survivor. The sides take
turns, each in fresh processes on one core. Seconds are of the clock (`wall`) and of the processor (`cpu`: all processes
of a side). Cold is the first round: what a side compiles is compiled, files may have to come from the disk. Warm is the
median of the others. `--daft`: a folder with Daft, as `pip install --target FOLDER daft` makes it; without it Gristmill
runs alone. Prints a JSON line for each size.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

WORDS, VOCABULARY, IN_A_FILE, FAMILY = 400, 50_000, 25_000, 14
CHANGED = [0.0] + [0.01] * 3 + [0.25] * 10  # of the words of each member of a family
PR_SET_CHILD_SUBREAPER = 36
RECIPE = """\
name: near
keep: {keep}
sources:
  made:
    parquet: {{path: "{folder}/*.parquet"}}
stages:
  - minhash_dedup: {{threshold: 0.8, ngram: 5}}
  - write
"""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--documents", default="20000,100000")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--keep", default="nothing", help="what the run of Gristmill keeps")
    arguments.add_argument("--daft", help="a folder that holds Daft")
    arguments.add_argument("--folder", type=Path)
    given = arguments.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="near-files-"))
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # processes of a run that outlive it count too
    for documents in map(int, given.documents.split(",")):
        print(json.dumps(raced(folder, documents, given)), flush=True)
    if given.folder is None:
        shutil.rmtree(folder)


def raced(folder: Path, documents: int, given: argparse.Namespace) -> dict[str, Any]:
    made = folder / f"made-{documents}"
    if not made.exists():
        make(made, documents)
    sides = {"gristmill": lambda out: gristmill(folder, made, out, given.keep)}
    if given.daft:
        sides["daft"] = lambda out: daft(made, out, given.daft)
    figures: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    for _ in range(given.rounds):
        for name, side in sides.items():
            out = folder / f"out-{name}"
            shutil.rmtree(out, ignore_errors=True)
            found = side(out)
            found["kept"] = sum(pq.read_metadata(path).num_rows for path in written_by(name, out))
            figures[name].append(found)
    texts = sum(path.stat().st_size for path in made.iterdir())
    return {
        "documents": documents,
        "bytes": texts,
        "processor": processor(),
        "gristmill": version("gristmill"),
        "daft": subprocess.run(
            [sys.executable, "-c", "import daft; print(daft.__version__)"], env=with_daft(given.daft),
            capture_output=True, text=True, check=True,
        ).stdout.strip() if given.daft else None,
        **{name: in_short(each) for name, each in figures.items()},
    }  # fmt: skip


def in_short(figures: list[dict[str, Any]]) -> dict[str, Any]:
    warm = figures[1:] or figures
    return {
        "kept": figures[0]["kept"],
        "cold": {name: figures[0][name] for name in ("wall", "cpu")},
        "warm": {name: round(statistics.median(each[name] for each in warm), 2) for name in ("wall", "cpu")},
        "largest_process_mb": max(each["largest_process_mb"] for each in figures),
        "all": [(each["wall"], each["cpu"]) for each in figures],
    }


def gristmill(folder: Path, made: Path, out: Path, keep: str) -> dict[str, Any]:
    recipe = folder / "near.yaml"
    recipe.write_text(RECIPE.format(folder=made, keep=keep))
    command = ["-m", "gristmill.pipeline.cli.app", "run", str(recipe), "--out", str(out), "--workers", "1"]
    return measured([sys.executable, *command], dict(os.environ))


def daft(made: Path, out: Path, packages: str) -> dict[str, Any]:
    return measured([sys.executable, __file__.replace("near_files.py", "near_files_daft.py"), str(made), str(out)],
                    with_daft(packages))  # fmt: skip


def with_daft(packages: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": packages, "DAFT_ANALYTICS_ENABLED": "0", "DO_NOT_TRACK": "1"}


def written_by(name: str, out: Path) -> list[Path]:
    return sorted((out / "write" if name == "gristmill" else out).rglob("*.parquet"))


def measured(command: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """Seconds of the clock and of the processor, of a command and all processes that it starts, on one core."""
    core = min(os.sched_getaffinity(0))
    begun = time.perf_counter()
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, preexec_fn=lambda: os.sched_setaffinity(0, {core})
    )
    cpu, wall, largest = 0.0, 0.0, 0
    while True:
        try:
            pid, status, used = os.wait4(-1, 0)
        except ChildProcessError:
            break
        cpu += used.ru_utime + used.ru_stime
        largest = max(largest, used.ru_maxrss)
        if pid == process.pid:
            wall = time.perf_counter() - begun
            process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return {"wall": round(wall, 2), "cpu": round(cpu, 2), "largest_process_mb": largest // 1024}


def make(folder: Path, documents: int) -> None:
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfw"))
    lengths = random.integers(2, 10, VOCABULARY)
    vocabulary = np.array(["".join(random.choice(letters, n)) for n in lengths], dtype=object)
    rank = 1 / (np.arange(VOCABULARY) + 10.0)
    rank /= rank.sum()
    original = np.empty(0, dtype=np.int64)
    rows: list[str] = []
    for number in range(documents):
        member = number % FAMILY
        if member == 0:
            original = random.choice(VOCABULARY, WORDS, p=rank)
        words = original.copy()
        changed = np.flatnonzero(random.random(WORDS) < CHANGED[member])
        words[changed] = random.integers(0, VOCABULARY, len(changed))
        rows.append(" ".join(vocabulary[words]))
    order = random.permutation(documents)
    for first in range(0, documents, IN_A_FILE):
        chosen = order[first : first + IN_A_FILE]
        table = pa.table({"id": [f"document {n}" for n in chosen], "text": [rows[n] for n in chosen]})
        pq.write_table(table, folder / f"{first // IN_A_FILE:04d}.parquet", compression="zstd")


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


if __name__ == "__main__":
    main()
