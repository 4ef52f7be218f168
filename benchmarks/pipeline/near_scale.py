"""What near-deduplication costs as it grows: synthetic documents with 20 % near copies, on two workers.

    python -m benchmarks.pipeline.near_scale [--sizes 250000,1000000,4000000] [--folder FOLDER] [--keep]

A document has 60 to 140 words drawn by rank from 50,000; a copy has one of them changed. For each size: seconds of the
whole run less those of a run of 1,000 documents, seconds by round, the largest anonymous memory of any process, what
the flow leaves on disk, the largest task. Prints one JSON line a size.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

IN_A_FILE = 50_000
COPIES = 0.2
CHANGED = 1
VOCABULARY = 50_000
RECIPE = (
    "name: scale\nsources:\n  made: {{parquet: {{path: {folder}}}}}\nstages:\n  - minhash_dedup: {{threshold: 0.8}}\n"
)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--sizes", default="250000,1000000,4000000")
    arguments.add_argument("--folder", type=Path)
    arguments.add_argument("--keep", action="store_true", help="leave documents and runs where they are")
    given = arguments.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="near-scale-"))
    start_up = measured(folder, 1000, given.keep)["seconds"]
    each: dict[int, float] = {}
    for size in map(int, given.sizes.split(",")):
        found = measured(folder, size, given.keep)
        each[size] = (found["seconds"] - start_up) / size
        found |= {
            "what": "near-deduplication",
            "microseconds_a_document": round(1e6 * each[size], 2),
            "start_up_seconds": start_up,
        }
        found |= {
            "machine": f"{platform.machine()}, {psutil.cpu_count()} cores",
            "versions": {"gristmill": version("gristmill"), "pyarrow": pa.__version__},
        }
        if 1_000_000 in each:
            found["ratio_to_a_million"] = round(each[size] / each[1_000_000], 3)
        print(json.dumps(found), flush=True)
    if given.folder is None and not given.keep:
        shutil.rmtree(folder)


def measured(folder: Path, size: int, keep: bool) -> dict[str, Any]:
    made, out = folder / f"made-{size}", folder / f"out-{size}"
    shutil.rmtree(out, ignore_errors=True)
    copies = make(made, size)
    recipe = folder / f"scale-{size}.yaml"
    recipe.write_text(RECIPE.format(folder=made))
    memory, watching = Memory(), threading.Event()
    begun = time.perf_counter()
    run = subprocess.Popen(
        [sys.executable, "-m", "gristmill.pipeline.cli.app", "run", str(recipe), "--out", str(out), "--workers", "2"],
        stdout=subprocess.DEVNULL,
    )
    watcher = threading.Thread(target=memory.watch, args=(run.pid, watching))
    watcher.start()
    assert run.wait() == 0
    seconds = time.perf_counter() - begun
    watching.set()
    watcher.join()
    stages = {s["name"]: s for s in json.loads((out / "run.json").read_text())["stages"]}
    tasks = [json.loads(line) for line in (out / "journal" / "tasks.jsonl").read_text().splitlines()]
    rounds: dict[str, float] = defaultdict(float)
    largest: dict[str, float] = defaultdict(float)
    for name, spent in spent_by_round(tasks):
        rounds[name] += spent
        largest[name] = max(largest[name], spent)
    flow = sum(f.stat().st_size for f in (out / "flow").rglob("*") if f.is_file())
    text = sum(
        pc.sum(pc.binary_length(pq.read_table(f, columns=["text"])["text"])).as_py()
        for f in sorted(made.glob("*.parquet"))[:1]
    )
    found = {
        "documents": size,
        "copies": copies,
        "dropped": sum(stages["minhash_dedup"]["dropped"].values()),
        "bytes_a_document": round(text / min(size, IN_A_FILE)),
        "seconds": round(seconds, 2),
        "worker_seconds_by_round": {k: round(v, 2) for k, v in rounds.items()},
        "longest_task_by_round": {k: round(v, 2) for k, v in largest.items()},
        "anonymous_mb": round(memory.most / 1e6),
        "flow_bytes_a_document": round(flow / size, 1),
    }
    if not keep:
        shutil.rmtree(out)
        shutil.rmtree(made)
    return found


def spent_by_round(tasks: list[dict[str, Any]]) -> list[tuple[str, float]]:
    """Which round a task was of is in the name of its file; those that made none are left out."""
    found = []
    for line in tasks:
        result = line.get("result", line)
        paths = [f["path"] for f in (result.get("files") or {}).values()]
        if paths and "seconds" in result:
            name = Path(paths[0]).name
            found.append(
                (
                    "-".join(name.split("-")[:2])
                    if paths[0].startswith("flow/")
                    else "documents"
                    if "documents" in name
                    else "drop",
                    result["seconds"],
                )
            )
    return found


class Memory:
    """The most anonymous memory that any process of a run has held (mapped files do not count)."""

    def __init__(self) -> None:
        self.most = 0

    def watch(self, pid: int, done: threading.Event) -> None:
        while not done.wait(0.2):
            try:
                family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
            except psutil.NoSuchProcess:
                return
            self.most = max([self.most, *map(anonymous, family)])


def anonymous(process: psutil.Process) -> int:
    try:
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Anonymous:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def make(folder: Path, size: int, shortest: int = 60, longest: int = 140) -> int:
    """Documents of so many words in Parquet files; how many of them are copies of another."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = pa.array([word(n) for n in range(VOCABULARY)])
    copies = 0
    for file, first in enumerate(range(0, size, IN_A_FILE)):
        number = np.arange(first, min(first + IN_A_FILE, size), dtype=np.uint64)
        is_copy = (mixed(number ^ np.uint64(0xC0FFEE)) % np.uint64(1000) < 1000 * COPIES) & (number > 0)
        origin = np.where(is_copy, mixed(number) % np.maximum(number, 1), number)
        for _ in range(8):  # a copy of a copy is one of the first
            of_copy = (mixed(origin ^ np.uint64(0xC0FFEE)) % np.uint64(1000) < 1000 * COPIES) & (origin > 0)
            origin = np.where(of_copy, mixed(origin) % np.maximum(origin, 1), origin)
        lengths = (shortest + mixed(origin + np.uint64(7)) % np.uint64(longest - shortest + 1)).astype(np.int64)
        ends = np.concatenate([[0], np.cumsum(lengths)])
        place = np.arange(ends[-1], dtype=np.uint64) - np.repeat(ends[:-1], lengths).astype(np.uint64)
        drawn = mixed(np.repeat(origin, lengths) * np.uint64(0x9E3779B97F4A7C15) + place)
        for change in range(CHANGED):
            at = ends[:-1] + (mixed(number + np.uint64(change + 100)) % lengths.astype(np.uint64)).astype(np.int64)
            drawn[at[is_copy]] = mixed(number + np.uint64(change + 1000))[is_copy]
        rank = (VOCABULARY * ((drawn >> np.uint64(11)) / 2.0**53) ** 3).astype(np.int32)
        text = pc.binary_join(
            pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), vocabulary.take(pa.array(rank))), " "
        )
        pq.write_table(
            pa.table({"text": text}), folder / f"{file:05d}.parquet", compression="zstd", compression_level=1
        )
        copies += int(is_copy.sum())
    return copies


def mixed(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def word(number: int) -> str:
    letters = "etaoinshrdlucmfwypvbgkqjxz"
    found = letters[number % 26]
    while number := number // 26:
        found += letters[number % 26]
    return found + letters[number % 7] * (len(found) < 3)


if __name__ == "__main__":
    main()
