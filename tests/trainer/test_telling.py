"""The clock of a run over its sessions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tiny_runs import SHAPE, TRAINING

from trainer import telling
from trainer.energy import Energy
from trainer.parallel import ALONE, grid_of
from trainer.progress import Progress
from trainer.telling import Teller


class Counted:
    """A meter that shows these joules, one after another."""

    def __init__(self, joules: Sequence[float | None]) -> None:
        self._joules = list(joules)

    def read(self) -> Energy:
        return Energy(self._joules.pop(0), None)


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
        monkeypatch.setattr(telling, "meter_of", lambda device, joules=joules: Counted(joules))
        teller = Teller(tmp_path, TRAINING, SHAPE, torch.device("cpu"), grid_of(ALONE, 1))
        teller.clock(now)
        teller.clock(now)
    assert now.joules == known and now.seconds > 0
