"""What near-deduplication costs as it grows: synthetic documents with 20 % near copies, or clusters of one shape, on two
workers.

    python -m benchmarks.pipeline.near_scale [--sizes 250000,1000000,4000000] [--shape random|pages|equal|chain|stars]
      [--workers 2] [--check] [--folder FOLDER] [--keep]

Documents are made by a reader (`made_documents.py`) and the recipe says `keep: signals`. For each size: seconds of the
whole run less those of a run of 1,000 documents, of the clock and of all processors; seconds by round, the largest
anonymous memory of any process, the largest task, and bytes on disk, sampled each second: of rows between rounds
(`scratch`), and of the documents that the run keeps while it needs them. `--check` holds the cluster of every document
against one process that keeps all pairs in memory and knows nothing of rounds: a plain union-find over the pairs that
buckets nominate and that are alike. Prints one JSON line a size.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import resource
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
import pyarrow.parquet as pq

from benchmarks.pipeline import made_documents
from gristmill.kernels.duplicates.nominate import pairs_in_buckets
from gristmill.stages import MinhashDedup

IN_A_FILE = 50_000
RECIPE = """\
name: scale
keep: signals
parts: {{files: 1}}
sources:
  made:
    {reader}:Made: {{path: {folder}, shape: {shape}}}
stages:
  - minhash_dedup: {{threshold: 0.8}}
"""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--sizes", default="250000,1000000,4000000")
    arguments.add_argument("--shape", default="random", choices=made_documents.SHAPES)
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--check", action="store_true", help="hold all clusters against a plain union-find")
    arguments.add_argument("--folder", type=Path)
    arguments.add_argument("--keep", action="store_true", help="leave documents and runs where they are")
    given = arguments.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="near-scale-"))
    start = measured(folder, 1000, given)
    start_up = start["seconds"]
    each: dict[int, float] = {}
    for size in map(int, given.sizes.split(",")):
        found = measured(folder, size, given)
        each[size] = (found["seconds"] - start_up) / size
        found |= {
            "what": "near-deduplication",
            "microseconds_a_document": round(1e6 * each[size], 2),
            "processor_microseconds_a_document": round(1e6 * (found["cpu_seconds"] - start["cpu_seconds"]) / size, 2),
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


def measured(folder: Path, size: int, given: argparse.Namespace) -> dict[str, Any]:
    made, out = folder / f"made-{size}", folder / f"out-{size}"
    shutil.rmtree(out, ignore_errors=True)
    make(made, size)
    recipe = folder / f"scale-{size}.yaml"
    reader = Path(made_documents.__file__).resolve()
    recipe.write_text(RECIPE.format(folder=made, reader=reader, shape=given.shape))
    memory, watching = Sampled(out), threading.Event()
    begun, before = time.perf_counter(), cpu_of_children()
    run = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "gristmill.pipeline.cli.app",
            "run",
            str(recipe),
            "--out",
            str(out),
            "--workers",
            str(given.workers),
        ],
        stdout=subprocess.DEVNULL,
    )
    watcher = threading.Thread(target=memory.watch, args=(run.pid, watching))
    watcher.start()
    assert run.wait() == 0
    seconds, cpu_seconds = time.perf_counter() - begun, cpu_of_children() - before
    watching.set()
    watcher.join()
    stages = {s["name"]: s for s in json.loads((out / "run.json").read_text())["stages"]}
    tasks = [json.loads(line) for line in (out / "journal" / "tasks.jsonl").read_text().splitlines()]
    rounds: dict[str, float] = defaultdict(float)
    largest: dict[str, float] = defaultdict(float)
    for name, spent in spent_by_round(tasks):
        rounds[name] += spent
        largest[name] = max(largest[name], spent)
    found = {
        "documents": size,
        "shape": given.shape,
        "workers": given.workers,
        "dropped": sum(stages["minhash_dedup"]["dropped"].values()),
        "text_bytes_a_document": round(stages["made"]["text_bytes"] / size),
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu_seconds, 2),
        "worker_seconds_by_round": {k: round(v, 2) for k, v in rounds.items()},
        "longest_task_by_round": {k: round(v, 2) for k, v in largest.items()},
        "anonymous_mb": round(memory.memory / 1e6),
        "scratch_bytes_a_document": round(memory.scratch / size, 1),
        "documents_bytes_a_document": round(memory.documents / size, 1),
    }
    if given.check:
        clusters, expected = clusters_of(out), by_union_find(size, given.shape)
        assert len(clusters) == size
        found["clusters"] = len(set(expected.values()))
        found["documents_in_another_cluster"] = sum(cluster != expected[uid] for uid, cluster in clusters.items())
    if not given.keep:
        shutil.rmtree(out)
        shutil.rmtree(made)
    return found


def cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def clusters_of(out: Path) -> dict[int, int]:
    """The cluster of every document; one that is like no other has its own uid."""
    clusters: dict[int, int] = {}
    for path in (out / "partitions" / "minhash_dedup").glob("*.signals.parquet"):
        table = pq.read_table(path, columns=["uid", "minhash_cluster"])
        uids, named = table["uid"].to_pylist(), table["minhash_cluster"].to_pylist()
        clusters |= {uid: uid if cluster is None else cluster for uid, cluster in zip(uids, named, strict=True)}
    return clusters


def by_union_find(size: int, shape: str) -> dict[int, int]:
    stage = MinhashDedup(threshold=0.8)
    uids, keys, siblings, sketches = [], [], [], []
    for first in range(0, size, IN_A_FILE):
        number = np.arange(first, min(first + IN_A_FILE, size), dtype=np.uint64)
        docs = pa.Table.from_batches([made_documents.documents(number, "made", shape)])
        rows = stage.sign(docs)
        uids.append(rows["uid"].to_numpy())
        keys.append(rows["key"].to_numpy())
        siblings.append(rows["sibling"].to_numpy())
        sketches.append((docs["uid"].to_numpy(), *stage.sketches(docs["text"])))
    uid, key, sibling = (np.concatenate(parts) for parts in (uids, keys, siblings))
    order = np.lexsort((uid, sibling, key))
    uid, key, sibling = uid[order], key[order], sibling[order]
    a, b = pairs_in_buckets(key, sibling, uid)
    ends = np.unique(np.sort(np.stack([uid[a], uid[b]], axis=1), axis=1), axis=0)
    names = np.concatenate([part[0] for part in sketches])
    values = np.concatenate([part[1] for part in sketches])
    lengths = np.concatenate([np.diff(part[2]) for part in sketches])
    bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    by_name = np.argsort(names)
    places = by_name[np.searchsorted(names, ends, sorter=by_name)]
    alike = stage.similarities((values, bounds), places[:, 0].copy(), places[:, 1].copy()) >= stage.threshold
    parent = {uid: uid for uid in names.tolist()}

    def root(member: int) -> int:
        while parent[member] != member:
            parent[member] = parent[parent[member]]
            member = parent[member]
        return member

    for left, right in ends[alike].tolist():
        low, high = sorted((root(left), root(right)))
        parent[high] = low
    return {member: root(member) for member in names.tolist()}


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
                    if paths[0].startswith("shuffle/")
                    else "documents"
                    if "documents" in name
                    else "drop",
                    result["seconds"],
                )
            )
    return found


class Sampled:
    """The most anonymous memory that any process of a run has held (mapped files do not count), and the most bytes that
    its folder had."""

    def __init__(self, out: Path) -> None:
        self.out, self.memory, self.scratch, self.documents = out, 0, 0, 0

    def watch(self, pid: int, done: threading.Event) -> None:
        looks = 0
        while not done.wait(0.2):
            try:
                family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
            except psutil.NoSuchProcess:
                return
            self.memory = max([self.memory, *map(anonymous, family)])
            looks += 1
            if looks % 5 == 0:
                self.scratch = max(self.scratch, bytes_below(self.out / "shuffle"))
                self.documents = max(self.documents, bytes_below(self.out / "partitions"))


def bytes_below(folder: Path) -> int:
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # removed between two looks
                total += Path(where, name).stat().st_blocks * 512
    return total


def anonymous(process: psutil.Process) -> int:
    try:
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Anonymous:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def make(folder: Path, size: int) -> None:
    """Files that name ranges."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, first in enumerate(range(0, size, IN_A_FILE)):
        span = {"first": first, "count": min(IN_A_FILE, size - first)}
        (folder / f"{file:05d}.range").write_text(json.dumps(span))


if __name__ == "__main__":
    main()
