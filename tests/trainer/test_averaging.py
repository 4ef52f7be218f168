"""The average of checkpoints is exactly that, and only of checkpoints that belong together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from gristmill.trainer.run.averaging import average_checkpoints, average_last, weights_of
from gristmill.trainer.step import checkpoint
from gristmill.trainer.step.checkpoint import CheckpointError
from gristmill.trainer.step.optim import AdamW


def run(folder: Path, count: int = 4) -> tuple[list[Path], list[dict[str, Tensor]]]:
    network = torch.nn.Sequential(
        torch.nn.Linear(5, 3), torch.nn.BatchNorm1d(3)
    )  # which counts its batches in an int64
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
    found = average_checkpoints(paths)
    assert found.keys() == weights[0].keys() and len(paths) == 4
    for name in ("0.weight", "0.bias", "1.weight"):
        exact = torch.stack([w[name].double() for w in weights]).mean(0)
        assert found[name].dtype == torch.float32 and torch.equal(found[name], exact.float())
    assert int(found["1.num_batches_tracked"]) == 0
    last = average_last(tmp_path, 2)
    assert torch.equal(last["0.weight"], torch.stack([w["0.weight"].double() for w in weights[2:]]).mean(0).float())
    assert torch.equal(average_last(tmp_path, 1)["0.weight"], weights[-1]["0.weight"])
    due = average_last(tmp_path, 2, due=lambda step: step != 3)
    assert torch.equal(
        due["0.weight"], torch.stack([weights[step - 1]["0.weight"].double() for step in (2, 4)]).mean(0).float()
    )
    with pytest.raises(CheckpointError, match="holds 1"):
        average_last(tmp_path, 2, due=lambda step: step == 4)


def test_an_exponential_average_is_that_of_the_recurrence(tmp_path: Path) -> None:
    paths, weights = run(tmp_path)
    moving = weights[0]["0.weight"].double()
    for later in weights[1:]:
        moving = 0.7 * moving + 0.3 * later["0.weight"].double()
    assert torch.allclose(average_checkpoints(paths, decay=0.7)["0.weight"].double(), moving, atol=1e-7)
    assert weights_of(3, 0.5) == [0.25, 0.25, 0.5] and sum(weights_of(9, 0.9)) == pytest.approx(1)
    assert weights_of(1, 0.9) == [1.0]


def test_half_precision_is_not_summed_in_half_precision(tmp_path: Path) -> None:
    for i in range(64):
        save_file({"w": torch.tensor([1.0 + 2**-7 * (i % 2)], dtype=torch.bfloat16)}, tmp_path / f"{i}.safetensors")
    found = average_checkpoints([tmp_path / f"{i}.safetensors" for i in range(64)])
    assert found["w"].dtype == torch.bfloat16 and float(found["w"]) == float(torch.tensor(1.0 + 2**-8).bfloat16())


def test_what_does_not_belong_together_is_refused(tmp_path: Path) -> None:
    paths, _ = run(tmp_path / "run", 2)
    others = {
        "name": {"a": torch.ones(2), "b": torch.ones(2)},
        "shape": {"a": torch.ones(3)},
        "type": {"a": torch.ones(2, dtype=torch.float16)},
        "number": {"a": torch.ones(2), "n": torch.tensor(1)},
    }
    save_file({"a": torch.ones(2)}, tmp_path / "first.safetensors")
    save_file({"a": torch.ones(2), "n": torch.tensor(0)}, tmp_path / "counted.safetensors")
    for what, tensors in others.items():
        save_file(tensors, tmp_path / f"{what}.safetensors")
        first = "counted" if what == "number" else "first"
        with pytest.raises(CheckpointError, match="averaged" if what == "number" else "another model"):
            average_checkpoints([tmp_path / f"{first}.safetensors", tmp_path / f"{what}.safetensors"])
    with pytest.raises(CheckpointError, match="twice"):
        average_checkpoints([paths[0], paths[1], paths[0]])
    with pytest.raises(CheckpointError, match="no checkpoint"):
        average_checkpoints([])
    with pytest.raises(CheckpointError, match="holds 2"):
        average_last(tmp_path / "run", 3)
    with pytest.raises(CheckpointError, match="can be read"):
        average_checkpoints([tmp_path])
    with (paths[0] / checkpoint.MODEL).open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    with pytest.raises(CheckpointError, match="bytes that were written"):
        average_checkpoints(paths)
    with pytest.raises(ValueError, match="decay"):
        average_checkpoints(paths, decay=1.0)
