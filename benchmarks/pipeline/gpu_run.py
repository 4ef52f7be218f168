"""`minhash_dedup: {device: gpu}` beside `{device: cpu}`, in whole runs on the workers of one machine: same result,
documents a second of both.

    python -m benchmarks.pipeline.gpu_run [--documents 300000] [--workers N] [--times 3] [--folder FOLDER]

Documents are made by a reader (`made_documents.py`: 600 to 1,400 words drawn by rank from 50,000; one in five is a copy
of another with one word changed). A small run on each device comes first, so that no kernel is compiled while time is taken; then
come runs on both in turn.

Exits 1 unless, in every pair of runs, both write the same documents with the same signals and the same band hashes
(file by file), at least nine in ten copies are dropped, and the GPU kernel ran in a worker: a stage after
`minhash_dedup`, in the processes that have a GPU, reports how many batches the kernel took there and how much GPU
memory was in use. On the GPU these are all batches and more than the bytes of one; on the CPU both are 0. Prints one
JSON line a result.
"""

from __future__ import annotations

import argparse
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

from benchmarks.pipeline import made_documents
from benchmarks.pipeline.made_documents import origins
from benchmarks.pipeline.near_scale import make
from gristmill.pipeline.engine.cluster import Where
from gristmill.pipeline.processes import gpus_here
from gristmill.pipeline.progress.progress import Quiet
from gristmill.pipeline.recipe import recipe as recipes
from gristmill.pipeline.run.run import run

DEVICES = ("cpu", "gpu")
SHAPE = "pages"
WARM_UP = 2_000  # documents
WITNESS = '''
"""Reports what the GPU kernel did in the process that a document came to."""

import os
import sys

import pyarrow as pa

from gristmill.stages.stage import Annotate


class Witness(Annotate):
    adds = ("process", "batches_on_gpu", "gpu_memory")
    needs = ("text",)
    costly = True

    @property
    def gpu(self):
        return True

    def annotate(self, batch):
        torch, transfer = sys.modules.get("torch"), sys.modules.get("gristmill.kernels.gpu.transfer")
        calls = transfer.streams.cache_info() if transfer else None  # the streams of the GPU are asked for once a batch
        batches = calls.hits + calls.misses if calls else 0
        memory = torch.cuda.max_memory_allocated() if torch and torch.cuda.is_initialized() else 0
        values = {"process": os.getpid(), "batches_on_gpu": batches, "gpu_memory": memory}
        return {name: pa.array([value] * len(batch), pa.int64()) for name, value in values.items()}
'''
RECIPE = """name: gpu_run
parts: {{files: 1}}
sources:
  made:
    {reader}:Made: {{path: {inputs}, shape: {shape}}}
stages:
  - minhash_dedup: {{device: {device}}}
  - witness.py:Witness
  - write
"""


class Clock(Quiet):
    """When tasks ended: the seconds of a run's rounds, on the clock and of all workers together."""

    def __init__(self) -> None:
        self.begun = self.signed = 0.0
        self.sign_seconds = 0.0
        self.batches = 0

    def finished(self, task: Any, result: Any, anew: bool) -> None:
        if task.node == "minhash_dedup" and not self.begun:
            self.begun = time.perf_counter() - result.seconds
        if getattr(task, "method", "") == "sign":
            self.signed = time.perf_counter()
            self.sign_seconds += result.seconds
            self.batches += sum(-(-part.rows // 8192) for part in task.parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=300_000)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    if not gpus_here():
        sys.exit("no GPU here (CUDA_VISIBLE_DEVICES, /proc/driver/nvidia/gpus)")
    folder = given.folder or Path(tempfile.mkdtemp(prefix="gpu-run-"))
    try:
        compare(folder, given.documents, given.workers, given.times)
    finally:
        if given.folder is None:
            shutil.rmtree(folder)


def compare(folder: Path, documents: int, workers: int, times: int) -> None:
    (folder / "witness.py").write_text(WITNESS)
    for device in DEVICES:
        measure(folder, device, *inputs(folder, WARM_UP), workers)
    made, copies = inputs(folder, documents)
    runs: dict[str, list[dict[str, Any]]] = {device: [] for device in DEVICES}
    for _ in range(times):
        for device in DEVICES:
            runs[device].append(measure(folder, device, made, copies, workers))
        wrong = differences(runs["cpu"][-1], runs["gpu"][-1], documents, copies)
        if wrong:
            say("device: gpu is not what it should be", wrong=wrong)
            sys.exit(1)
    facts = {
        name: runs["gpu"][-1][name]
        for name in ("kept", "dropped", "batches", "batches_on_gpu", "gpu_memory", "processes_on_gpu")
    }
    say("device: gpu keeps what device: cpu keeps, and its kernel ran in a worker", copies=copies, **facts)
    sizes = {
        "documents": documents,
        "bytes": runs["gpu"][-1]["text_bytes"],
        "workers": workers,
        "gpus": len(gpus_here()),
    }
    for what, name in (
        ("the whole run, start of workers included", "run_seconds"),
        ("the round of band hashes, reading included", "round_seconds"),
        ("the round of band hashes, by seconds of all workers together", "worker_seconds"),
    ):
        rates = {device: [documents / each[name] for each in runs[device]] for device in DEVICES}
        say(
            f"minhash_dedup on a GPU, documents a second: {what}",
            sizes=sizes,
            **spread(rates["gpu"]),
            peer={"device": "cpu", **spread(rates["cpu"])},
            ratio=round(statistics.median(rates["gpu"]) / statistics.median(rates["cpu"]), 3),
        )


def inputs(folder: Path, documents: int) -> tuple[Path, int]:
    """A folder of files that name ranges, and how many of the documents are copies."""
    made = folder / f"made-{documents}"
    make(made, documents)
    is_copy, _ = origins(np.arange(documents, dtype=np.uint64))
    return made, int(is_copy.sum())


def measure(folder: Path, device: str, made: Path, copies: int, workers: int) -> dict[str, Any]:
    """One run: what it took, what it wrote, and what the witness saw."""
    out, path, clock = folder / "out", folder / "recipe.yaml", Clock()
    reader = Path(made_documents.__file__).resolve()
    path.write_text(RECIPE.format(reader=reader, inputs=made, shape=SHAPE, device=device))
    begun = time.perf_counter()
    summary = run(recipes.load(path), str(out), Where(workers), clock)
    seconds = time.perf_counter() - begun
    rows = pa.concat_tables([pq.read_table(file) for file in sorted((out / "write").rglob("*.parquet"))]).sort_by("uid")
    seen = {row["process"]: row for row in rows.select(["process", "batches_on_gpu",
    "gpu_memory"]).group_by("process").aggregate(
        [("batches_on_gpu", "max"), ("gpu_memory", "max")]
    ).to_pylist()}  # fmt: skip
    stage = next(entry for entry in summary.record.stages if entry.name == "minhash_dedup")
    hashes = {file.name: file.read_bytes() for file in sorted((out / "shuffle" / "minhash_dedup").glob("*-sign-*"))}
    shutil.rmtree(out)
    return {
        "run_seconds": seconds,
        "text_bytes": summary.record.stages[0].count.text_bytes,
        "round_seconds": clock.signed - clock.begun,
        "worker_seconds": clock.sign_seconds,
        "batches": clock.batches,
        "kept": len(rows),
        "dropped": stage.count.lost,
        "documents": rows.drop_columns(["process", "batches_on_gpu", "gpu_memory"]),
        "band_hashes": hashes,
        "batches_on_gpu": sum(row["batches_on_gpu_max"] for row in seen.values()),
        "gpu_memory": max(row["gpu_memory_max"] for row in seen.values()),
        "processes_on_gpu": sum(row["gpu_memory_max"] > 0 for row in seen.values()),
    }


def differences(cpu: dict[str, Any], gpu: dict[str, Any], documents: int, copies: int) -> list[str]:
    """What speaks against the GPU's run."""
    least_memory = min(8192, documents) * 600 * 2  # bytes of a batch of two-letter words, at the least
    laws = {
        "both write the same documents and signals": gpu["documents"].equals(cpu["documents"]),
        "both leave the same band hashes": gpu["band_hashes"] == cpu["band_hashes"] and len(gpu["band_hashes"]) > 0,
        "nothing is lost": gpu["kept"] + gpu["dropped"] == documents,
        f"nine in ten of {copies:,} copies are dropped": 0.9 * copies <= gpu["dropped"] <= 1.1 * copies,
        f"the kernel took all batches on the GPU ({gpu['batches']}, took {gpu['batches_on_gpu']})": 0
        < gpu["batches"]
        <= gpu["batches_on_gpu"],
        f"at least {least_memory:,} bytes of GPU memory were in use, not {gpu['gpu_memory']:,}": gpu["gpu_memory"]
        >= least_memory,
        "the kernel had no part in the CPU's run": cpu["batches_on_gpu"] == 0 == cpu["gpu_memory"],
    }
    return [law for law, holds in laws.items() if not holds]


def spread(values: list[float]) -> dict[str, Any]:
    return {"median": round(statistics.median(values)), "spread": [round(min(values)), round(max(values))]}


def say(what: str, **facts: Any) -> None:
    machine = f"{gpu_name()}; {platform.machine()}, {os.cpu_count()} cores"
    versions = {package: version(package) for package in ("gristmill", "torch", "triton", "numba", "pyarrow", "dask")}
    print(json.dumps({"what": what, "machine": machine, "versions": versions, **facts}), flush=True)


def gpu_name() -> str:
    """Asked of the driver: a process that has touched a GPU is not forked from."""
    try:
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        return f"unknown GPU ({type(error).__name__})"


if __name__ == "__main__":
    main()
