"""The average of checkpoints is exactly that, and only of checkpoints that belong together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from gristmill.trainer.run.averaging import average_last
from gristmill.trainer.step import checkpoint
from gristmill.trainer.step.checkpoint import CheckpointError
from gristmill.trainer.step.optim import AdamW


def run(folder: Path, count: int = 4) -> tuple[list[Path], list[dict[str, Tensor]]]:
    network = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.LayerNorm(3))
    optimizer = AdamW(rate=0.1).optimizer(network)
    weights = []
    for step in range(1, count + 1):
        torch.manual_seed(step)
        for parameter in network.parameters():
            parameter.data.normal_()
        checkpoint.save(folder, step, network.state_dict(), optimizer, {}, keep=9)
        weights.append({name: tensor.clone() for name, tensor in network.state_dict().items()})
    return checkpoint.steps(folder), weights


def test_all_weigh_alike_in_float64(tmp_path: Path) -> None:
    paths, weights = run(tmp_path)
    found = average_last(tmp_path, len(paths))
    assert found.keys() == weights[0].keys() and len(paths) == 4
    for name in ("0.weight", "0.bias", "1.weight"):
        exact = torch.stack([w[name].double() for w in weights]).mean(0)
        assert found[name].dtype == torch.float32 and torch.equal(found[name], exact.float())
    last = average_last(tmp_path, 2)
    assert torch.equal(last["0.weight"], torch.stack([w["0.weight"].double() for w in weights[2:]]).mean(0).float())
    assert torch.equal(average_last(tmp_path, 1)["0.weight"], weights[-1]["0.weight"])
    due = average_last(tmp_path, 2, due=lambda step: step != 3)
    assert torch.equal(
        due["0.weight"], torch.stack([weights[step - 1]["0.weight"].double() for step in (2, 4)]).mean(0).float()
    )
    with pytest.raises(CheckpointError, match="holds 1"):
        average_last(tmp_path, 2, due=lambda step: step == 4)


def test_what_cannot_be_averaged_is_refused(tmp_path: Path) -> None:
    paths, _ = run(tmp_path / "run", 2)
    with pytest.raises(CheckpointError, match="holds 2"):
        average_last(tmp_path / "run", 3)
    with (paths[0] / checkpoint.MODEL).open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    with pytest.raises(CheckpointError, match="bytes that were written"):
        average_last(tmp_path / "run", 2)
