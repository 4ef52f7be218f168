"""Stages that want a GPU run on the workers that have one, one process a GPU; without any they run where they can."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from runs import go, lines, save

from pipeline import cluster
from pipeline.gpus import gpus_here

STAGES = """
import os
import time
import pyarrow as pa
from stages.stage import Annotate

class OnGpu(Annotate):
    \"\"\"Says which GPU it sees.\"\"\"
    adds = ("gpu_seen",)
    needs = ("text",)
    costly = True

    @property
    def gpu(self):
        return True

    def annotate(self, batch):
        time.sleep(0.3)
        return {"gpu_seen": pa.array([os.environ.get("CUDA_VISIBLE_DEVICES", "none")] * len(batch))}


class Anywhere(Annotate):
    \"\"\"Says which process it is.\"\"\"
    adds = ("process",)
    needs = ("text",)

    def annotate(self, batch):
        time.sleep(0.3)
        return {"process": pa.array([os.getpid()] * len(batch))}
"""


def seen(folder: Path, workers: int) -> tuple[set[str], set[int]]:
    for number in range(8):
        lines(folder / "in" / f"{number}.jsonl", [f"text {number} {i}" for i in range(3)])
    save(folder / "s.py", STAGES)
    text = "name: r\nparts: {files: 1}\nsources:\n  a: {jsonl: {path: in}}\nstages:\n  - s.py:OnGpu\n  - exact_dedup\n  - s.py:Anywhere\n  - write\n"
    go(save(folder / "r.yaml", text), folder / "out", workers)
    rows = [row for path in (folder / "out" / "write").glob("*.parquet") for row in pq.read_table(path).to_pylist()]
    assert len(rows) == 24
    return {row["gpu_seen"] for row in rows}, {row["process"] for row in rows}


def test_gpu_tasks_go_to_workers_with_a_gpu_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "gpus_here", lambda: ["4", "7"])
    gpus, processes = seen(tmp_path, 3)
    assert gpus == {"4", "7"} and len(processes) == 3


def test_without_gpus_they_run_where_they_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "gpus_here", list)
    gpus, _ = seen(tmp_path, 1)
    assert len(gpus) == 1


def test_what_the_environment_leaves_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, GPU-abc,")
    assert gpus_here() == ["2", "GPU-abc"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert gpus_here() == []
