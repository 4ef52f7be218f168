"""The clock of a run over its sessions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gristmill.kernels.common import energy
from gristmill.kernels.common.energy import Energy
from gristmill.trainer.model.flops import flops_of
from gristmill.trainer.run import reporting
from gristmill.trainer.run.feed import BatchFacts
from gristmill.trainer.run.metrics import read_metrics
from gristmill.trainer.run.progress import Progress
from gristmill.trainer.run.reporting import Reporter, UpdateResult
from gristmill.trainer.step.world import ONE
from tests.trainer.tiny_runs import SHAPE, TRAINING


class Counted:
    """A meter that shows these joules, one after another."""

    def __init__(self, joules: Sequence[float | None]) -> None:
        self._joules = list(joules)

    def read(self) -> Energy:
        joules = self._joules.pop(0)
        return Energy(joules, joules)


@pytest.mark.parametrize(
    ("sessions", "known"),
    [
        ([[0.0, 5.0, 7.0], [100.0, 104.0, 104.0]], 11.0),
        ([[None, None, None], [100.0, 104.0, 104.0]], None),
        ([[0.0, 5.0, 7.0], [None, None, None]], None),
        ([[0.0, None, 7.0], [0.0, 1.0, 2.0]], None),
    ],
)
def test_joules_are_those_of_the_whole_run_or_none(
    sessions: list[list[float | None]], known: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = Progress()
    for joules in sessions:
        monkeypatch.setattr(reporting, "meter_for", lambda device, joules=joules: Counted(joules))
        teller = Reporter(tmp_path, TRAINING, SHAPE, torch.device("cpu"), ONE)
        teller.clock(now)
        teller.clock(now)
    assert now.joules == known and now.seconds > 0


@pytest.mark.parametrize("joules", [8.0, None])
def test_a_line_has_every_figure_and_divides_by_the_interval(
    joules: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = [0.0, 0.0, joules, 9.0] if joules else [None] * 4
    monkeypatch.setattr(reporting, "meter_for", lambda device: Counted(shown))
    monkeypatch.setattr(reporting, "time", SimpleNamespace(perf_counter=iter([0.0, 1.0, 1.5, 2.0]).__next__))
    now = Progress(update=7, tokens=280, line_losses=[2.0, 3.0], line_events=[{"event": "skip"}])
    teller = Reporter(tmp_path, replace(TRAINING, grams_per_kwh=450.0), SHAPE, torch.device("cpu"), ONE)
    teller._peak = 1e9
    teller.begin(now)
    read = BatchFacts(0, 38, 40, np.array([10, 30]), {})
    teller.add(UpdateResult(6, read, 0.5, 3.0, math.inf, True, 38, 40, (math.inf, math.inf)))
    teller.report(now, {"expert_load": 2.0})
    (line,) = read_metrics(tmp_path / "metrics.jsonl")
    flops = flops_of(SHAPE, read.lengths)
    assert (line["step"], line["tokens"], line["loss"], line["norm"]) == (7, 280, 2.5, None)
    assert line["rate"] == TRAINING.optimizer.rate / 2 and line["expert_load"] == 2.0
    assert line["seconds"] == 0.5 and line["tokens_per_second"] == 80
    assert line["matmul_flops_per_second"] == 2 * flops.matmul
    assert line["attention_flops_per_second"] == 2 * flops.attention > 0
    assert line["mfu"] == pytest.approx(2 * flops.total / 1e9)
    assert (line["joules"], line["processor_joules"]) == (joules, joules)
    assert line["tokens_per_joule"] == (joules and 5) and line["grams_co2"] == (
        joules and pytest.approx(8 / 3.6e6 * 450)
    )
    assert line["events"] == [{"event": "skip"}] and (now.line_losses, now.line_events) == ([], [])


def test_processors_that_ranks_share_count_once() -> None:
    assert reporting._of_machines([("a", 1.0, 5.0), ("a", 1.0, 5.25), ("b", 1.0, 3.0)]) == 8.25
    assert reporting._of_machines([("a", 1.0, 5.0), ("b", 1.0, None)]) is None
    assert energy.machine_name() == energy.machine_name() != ""


def test_speed_is_that_of_this_session(tmp_path: Path) -> None:
    now = Progress(tokens=1_000_000, seconds=1.0)
    teller = Reporter(tmp_path, TRAINING, SHAPE, torch.device("cpu"), ONE)
    with teller:
        teller.begin(now)
        now.tokens, now.seconds = 1_000_100, 3.0
        assert teller.speed(now) == 50.0
