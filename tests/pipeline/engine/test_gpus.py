"""Stages that want a GPU run on the workers that have one, one process a GPU; without any they run where they can."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from gristmill.pipeline.engine import cluster
from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.processes import gpus_here
from tests.pipeline.runs import WORDS, go, lines, save

pytestmark = pytest.mark.run

STAGES = """
import os
import sys
import time
import pyarrow as pa
from gristmill.stages.stage import Annotate

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


class SentToGpu(Annotate):
    \"\"\"Says how many batches went through GPU kernels in its process before it, and which GPU that sees.\"\"\"
    adds = ("batches_sent", "gpu_seen")
    needs = ("text",)
    costly = True

    @property
    def gpu(self):
        return True

    def annotate(self, batch):
        transfer = sys.modules.get("gristmill.kernels.gpu.transfer")
        calls = transfer.streams.cache_info() if transfer else None
        sent = calls.hits + calls.misses if calls else 0
        return {name: pa.array([value] * len(batch)) for name, value in zip(self.adds, (sent, os.environ["CUDA_VISIBLE_DEVICES"]))}
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


def near_duplicates(folder: Path, device: str) -> Path:
    """A recipe on three files of four texts, the last of which is almost the same in all."""
    for number in range(3):
        texts = [" ".join(f"{word}{number}{i}" for word in WORDS) for i in range(3)]
        lines(folder / "in" / f"{number}.jsonl", [*texts, " ".join([*WORDS, f"end{number}"])])
    save(folder / "s.py", STAGES)
    stages = f"  - minhash_dedup: {{device: {device}, hashes: 16, bands: 8, rows: 2}}\n  - s.py:SentToGpu\n  - write\n"
    return save(
        folder / "r.yaml", f"name: r\nparts: {{files: 1}}\nsources:\n  a: {{jsonl: {{path: in}}}}\nstages:\n{stages}"
    )


def test_near_duplicates_are_signed_on_the_worker_that_has_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the GPU kernel itself: in Triton's interpreter where there is no GPU."""
    pytest.importorskip("torch", reason="gristmill.kernels.gpu needs torch, of the extra `gpu`")
    monkeypatch.setattr(cluster, "gpus_here", lambda: ["0"])
    kept = {}
    for device, sent in (("cpu", 0), ("gpu", 3)):
        go(near_duplicates(tmp_path, device), tmp_path / device, 2)
        rows = [
            row for path in (tmp_path / device / "write").glob("*.parquet") for row in pq.read_table(path).to_pylist()
        ]
        assert {(row["batches_sent"], row["gpu_seen"]) for row in rows} == {(sent, "0")}
        kept[device] = {row["uid"] for row in rows}
    assert len(kept["cpu"]) == 10 and kept["gpu"] == kept["cpu"]


def test_a_run_that_needs_a_gpu_and_has_none_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="gristmill.kernels.gpu needs torch, of the extra `gpu`")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(RunFailed) as error:
        go(near_duplicates(tmp_path, "gpu"), tmp_path / "out", 1)
    assert (
        str(error.value)
        == "minhash_dedup: `device: gpu`: torch sees no GPU on this machine; `device: cpu` gives the same result"
    )
