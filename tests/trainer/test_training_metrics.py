"""Metrics of a run that was killed read as of one that was not."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from gristmill.kernels.common.energy import Energy
from gristmill.trainer.model.flops import Flops, flops_of
from gristmill.trainer.model.shapes import DecoderShape
from gristmill.trainer.run.metrics import MemoryUse, Metrics, Work, line_of, memory_in_use, read_metrics

SHAPE = DecoderShape(vocabulary=50, hidden=16, layers=2, heads=2, kv_heads=1, mlp=32)


def test_a_line_has_every_figure_and_divides_by_the_interval() -> None:
    flops = flops_of(SHAPE, np.array([10, 30]))
    line = line_of(
        7, 280, 2.5, 1e-3, 0.7, Work(40, flops, 0.5, Energy(8.0, 3.0)), MemoryUse(10, 20), peak=1e9, grams_per_kwh=450.0
    )
    assert (
        line["step"] == 7
        and line["tokens"] == 280
        and line["loss"] == 2.5
        and line["rate"] == 1e-3
        and line["norm"] == 0.7
    )
    assert line["tokens_per_second"] == 80 and line["seconds"] == 0.5
    assert (
        line["matmul_flops_per_second"] == 2 * flops.matmul
        and line["attention_flops_per_second"] == 2 * flops.attention > 0
    )
    assert line["mfu"] == pytest.approx(2 * (flops.matmul + flops.attention) / 1e9)
    assert line["memory"] == 10 and line["peak_memory"] == 20
    assert line["joules"] == 8 and line["tokens_per_joule"] == 5 and line["processor_joules"] == 3
    assert line["grams_co2"] == pytest.approx(8 / 3.6e6 * 450) and "events" not in line


def test_what_was_not_measured_is_null_and_what_was_not_asked_is_absent() -> None:
    line = line_of(
        1,
        4,
        float("nan"),
        0.1,
        float("inf"),
        Work(4, Flops(1, 2, 3, 4), 1.0, Energy(None, None)),
        MemoryUse(1, 1),
        events=[{"event": "skip"}],
    )
    assert (
        line["loss"] is None
        and line["norm"] is None
        and line["joules"] is None
        and line["tokens_per_joule"] is None
        and line["mfu"] is None
    )
    assert "grams_co2" not in line and line["events"] == [{"event": "skip"}]
    assert (
        line_of(1, 0, 1.0, 0.1, 1.0, Work(0, Flops(0, 0, 0, 0), 0.0, Energy(0.0, None)), MemoryUse(1, 1), peak=1.0)[
            "mfu"
        ]
        is None
    )


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
    memory = memory_in_use(torch.device("cpu"))
    assert 10_000_000 < memory.now <= memory.peak * 1.1


class Board:
    def __init__(self, folder: str, purge_step: int) -> None:
        self.folder, self.purge_step = folder, purge_step
        self.scalars: list[tuple[str, float, int]] = []

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.scalars.append((name, value, step))

    def flush(self) -> None: ...
    def close(self) -> None: ...


def test_tensorboard_gets_the_numbers_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Board] = []

    def board(folder: str, purge_step: int) -> Board:
        made.append(Board(folder, purge_step))
        return made[0]

    module: Any = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = board
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    with Metrics(tmp_path / "m.jsonl", 3, tmp_path / "board") as metrics:
        metrics.write({"step": 4, "loss": 2.0, "joules": None, "events": []})
    assert (
        made[0].scalars == [("loss", 2.0, 4)] and made[0].purge_step == 4 and made[0].folder == str(tmp_path / "board")
    )


def test_without_tensorboard_it_is_said_once_and_the_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with (
        pytest.warns(UserWarning, match="TensorBoard is not installed") as said,
        Metrics(tmp_path / "m.jsonl", 0, tmp_path / "board") as metrics,
    ):
        for step in range(1, 4):
            metrics.write({"step": step})
    assert len(said) == 1 and len((tmp_path / "m.jsonl").read_text().splitlines()) == 3
    assert not (tmp_path / "board").exists() and json.loads((tmp_path / "m.jsonl").read_text().splitlines()[0]) == {
        "step": 1
    }
