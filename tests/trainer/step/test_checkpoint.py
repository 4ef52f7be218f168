"""A run goes on from a checkpoint bit for bit, and nothing but a whole checkpoint is ever read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gristmill.trainer.step import checkpoint
from gristmill.trainer.step.checkpoint import CheckpointError
from gristmill.trainer.step.optim import AdamW, update


class Run:
    def __init__(self, width: int = 4) -> None:
        torch.manual_seed(0)
        self.network = torch.nn.Sequential(torch.nn.Linear(width, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
        self.optimizer = AdamW(rate=0.01).optimizer(self.network)

    def go(self, updates: int) -> None:
        for _ in range(updates):
            loss = self.network(torch.randn(16, 4)).square().mean()
            update(self.optimizer, list(self.network.parameters()), [loss], 1.0, 1.0)


def test_a_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    straight, stopped = Run(), Run()
    torch.manual_seed(1)
    straight.go(8)
    torch.manual_seed(1)
    stopped.go(5)
    checkpoint.save(tmp_path, 5, stopped.network.state_dict(), stopped.optimizer, {"seed": 1})
    torch.manual_seed(99)
    resumed = Run()
    resumed.go(2)
    found = checkpoint.load(checkpoint.steps(tmp_path)[-1], resumed.network.state_dict(), resumed.optimizer)
    assert (found.step, found.facts) == (5, {"seed": 1})
    resumed.go(3)
    assert all(
        torch.equal(a, b) for a, b in zip(straight.network.parameters(), resumed.network.parameters(), strict=True)
    )
    assert not torch.equal(stopped.network[0].weight, resumed.network[0].weight)


def test_the_newest_are_kept_and_drafts_are_not_seen(tmp_path: Path) -> None:
    run = Run()
    run.go(1)
    for step in (1, 2, 10, 3):
        checkpoint.save(tmp_path, step, run.network.state_dict(), run.optimizer, {}, keep=3)
    (tmp_path / ".step-00000099.1").mkdir()
    (tmp_path / "step-00000098").mkdir()  # without state.json
    assert [path.name for path in checkpoint.steps(tmp_path)] == ["step-00000002", "step-00000003", "step-00000010"]
    checkpoint.save(tmp_path, 10, run.network.state_dict(), run.optimizer, {"again": True}, keep=3)
    assert checkpoint.load(tmp_path / "step-00000010", run.network.state_dict(), run.optimizer).facts == {"again": True}


def test_killed_while_an_old_one_is_removed_leaves_no_half_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run()
    run.go(1)
    for step in (1, 2):
        checkpoint.save(tmp_path, step, run.network.state_dict(), run.optimizer, {}, keep=2)

    def killed(path: Path, **_: object) -> None:
        if path.exists():
            (path / "model.safetensors").unlink()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(checkpoint.shutil, "rmtree", killed)
        checkpoint.save(tmp_path, 3, run.network.state_dict(), run.optimizer, {}, keep=2)
    assert [path.name for path in checkpoint.steps(tmp_path)] == ["step-00000002", "step-00000003"]
    checkpoint.save(tmp_path, 4, run.network.state_dict(), run.optimizer, {}, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000003", "step-00000004"]


def test_one_that_was_not_due_pushes_none_out_that_was(tmp_path: Path) -> None:
    run = Run()
    run.go(1)
    held = []
    for step in (1, 2, 3, 4, 5, 8, 9, 12):
        checkpoint.save(
            tmp_path, step, run.network.state_dict(), run.optimizer, {}, keep=2, due=lambda step: step % 4 == 0
        )
        held.append([checkpoint.step_of(path) for path in checkpoint.steps(tmp_path)])
    assert held == [[1], [1, 2], [2, 3], [3, 4], [4, 5], [4, 8], [4, 8, 9], [8, 12]]


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors"])
def test_a_changed_byte_is_refused(tmp_path: Path, file: str) -> None:
    run = Run()
    run.go(1)
    path = checkpoint.save(tmp_path, 1, run.network.state_dict(), run.optimizer, {})
    data = bytearray((path / file).read_bytes())
    data[-1] ^= 1
    (path / file).write_bytes(data)
    with pytest.raises(CheckpointError, match="not the bytes"):
        checkpoint.load(path, run.network.state_dict(), run.optimizer)
    (path / file).unlink()
    with pytest.raises(CheckpointError, match="missing"):
        checkpoint.load(path, run.network.state_dict(), run.optimizer)


def test_another_model_and_another_version_are_refused(tmp_path: Path) -> None:
    run = Run()
    run.go(1)
    path = checkpoint.save(tmp_path, 1, run.network.state_dict(), run.optimizer, {})
    other = Run(width=5)
    with pytest.raises(CheckpointError, match=r"another model: 0\.weight"):
        checkpoint.load(path, other.network.state_dict(), other.optimizer)
    state = (path / "state.json").read_text()
    (path / "state.json").write_text(state.replace('"version": 1', '"version": 2'))
    with pytest.raises(CheckpointError, match="version 2"):
        checkpoint.load(path, run.network.state_dict(), run.optimizer)
    with pytest.raises(CheckpointError, match="no checkpoint"):
        checkpoint.load(tmp_path / "nowhere", run.network.state_dict(), run.optimizer)
