"""The clock of a run over its sessions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from gristmill.kernels.common import energy
from gristmill.kernels.common.energy import Energy
from gristmill.trainer.parallel.ranks import ALONE, grid_of
from gristmill.trainer.run import reporting
from gristmill.trainer.run.progress import Progress
from gristmill.trainer.run.reporting import Reporter
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
        teller = Reporter(tmp_path, TRAINING, SHAPE, torch.device("cpu"), grid_of(ALONE, 1))
        teller.clock(now)
        teller.clock(now)
    assert now.joules == known and now.seconds > 0


def test_processors_that_ranks_share_count_once() -> None:
    assert reporting._of_machines([("a", 1.0, 5.0), ("a", 1.0, 5.25), ("b", 1.0, 3.0)]) == 8.25
    assert reporting._of_machines([("a", 1.0, 5.0), ("b", 1.0, None)]) is None
    assert energy.machine_name() == energy.machine_name() != ""


def test_speed_is_that_of_this_session(tmp_path: Path) -> None:
    now = Progress(tokens=1_000_000, seconds=1.0)
    teller = Reporter(tmp_path, TRAINING, SHAPE, torch.device("cpu"), grid_of(ALONE, 1))
    with teller:
        teller.begin(now)
        now.tokens, now.seconds = 1_000_100, 3.0
        assert teller.speed(now) == 50.0
