"""Metrics of a run that was killed read as of one that was not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gristmill.trainer.run.metrics import Metrics, memory_in_use, read_metrics


def test_a_resumed_file_is_that_of_a_run_never_killed(tmp_path: Path) -> None:
    whole, path = tmp_path / "whole.jsonl", tmp_path / "run" / "metrics.jsonl"
    with Metrics(whole) as metrics:
        for step in range(1, 9):
            metrics.write({"step": step, "loss": 1 / step})
    with Metrics(path) as metrics:
        for step in range(1, 7):
            metrics.write({"step": step, "loss": 1 / step})
    path.write_bytes(path.read_bytes() + b'{"step": 7, "lo')  # killed while it wrote
    assert [line["step"] for line in read_metrics(path)] == [1, 2, 3, 4, 5, 6]
    with Metrics(path, resumed=4) as metrics:
        assert [line["step"] for line in read_metrics(path)] == [1, 2, 3, 4]
        for step in range(5, 9):
            metrics.write({"step": step, "loss": 1 / step})
    assert path.read_bytes() == whole.read_bytes() and len(read_metrics(path)) == 8
    assert [file.name for file in path.parent.iterdir()] == ["metrics.jsonl"]
    Metrics(path, resumed=8).close()
    assert path.read_bytes() == whole.read_bytes()
    Metrics(path).close()  # begins anew
    assert path.read_bytes() == b""


def test_a_line_is_there_as_soon_as_it_is_written(tmp_path: Path) -> None:
    with Metrics(tmp_path / "m.jsonl") as metrics:
        metrics.write({"step": 1, "loss": float("nan")})
        assert read_metrics(tmp_path / "m.jsonl") == [{"step": 1, "loss": None}]


def test_damage_is_named_by_its_line_and_cut_out_on_resume(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 1}\n\0\0\0\n{"step": 2}\n')
    with pytest.raises(ValueError, match=r"m\.jsonl:2"):
        read_metrics(path)
    Metrics(path, resumed=2).close()
    assert [line["step"] for line in read_metrics(path)] == [1, 2]


def test_memory_is_in_bytes() -> None:
    now, peak = memory_in_use(torch.device("cpu"))
    assert 10_000_000 < now <= peak * 1.1
