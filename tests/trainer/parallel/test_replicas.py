"""Two replicas of two ranks: they train as one rank, in any layout, and narrow gradients lose nothing for good."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from gristmill.trainer.parallel.ranks import RankGroup, grid_of
from gristmill.trainer.parallel.replicas import BLOCK, ReplicaSum, _decode, _encode
from gristmill.trainer.step import checkpoint
from tests.trainer.parallel.layouts import Curve, Job, Layout, Resumed, Saved, Trained, go, together

pytestmark = pytest.mark.run

EXACT = {
    "zero 0": Layout(replicas=2),
    "zero 1": Layout(replicas=2, zero=1),
    "zero 2": Layout(replicas=2, zero=2),
    "zero 3, full": Layout(replicas=2, zero=3, recompute="full"),
    "each rank a replica": Layout(replicas=4, zero=3),
    "tensor": Layout(replicas=2, tensor=2, zero=1),
    "context": Layout(replicas=2, context=2, zero=3, together=True),
    "context over replicas": Layout(replicas=4, context=2, zero=1),
}
NARROW = {
    f"{gradients}, zero {zero}": Layout(replicas=2, zero=zero, replica_gradients=gradients, together=together)
    for gradients, zero, together in (("bf16", 0, True), ("int8", 1, False), ("int8", 2, False))
}
SAVED = {
    "a": Layout(replicas=2, zero=1),
    "b": Layout(tensor=2, zero=1),
    "c": Layout(replicas=2, zero=3),
    "d": Layout(context=2, zero=2, together=True),
}
NEXT = dict(zip(SAVED, [*list(SAVED)[1:], "a"], strict=True))
INT8 = Layout(replicas=2, zero=3, replica_gradients="int8")


@dataclass(frozen=True)
class Summed:
    """A job: the same vectors summed many times, with what rounding loses kept or not."""

    name: str

    def __call__(self, folder: Path, ranks: RankGroup) -> None:
        grid = grid_of(ranks, replicas=2)
        x = torch.randn(1000, generator=torch.Generator().manual_seed(ranks.rank))
        x[::BLOCK] *= 1000  # a block's largest number makes its scale
        wanted = grid.replicas.total(x.clone())
        errors = {}
        for feedback in (True, False):
            sums = ReplicaSum(grid.replicas, "int8", feedback=feedback)
            total = torch.zeros_like(x)
            for _ in range(50):
                each = x.clone()
                sums(each, 0)
                total += each
            errors[str(feedback)] = float((total / 50 - wanted).abs().max())
            others = [torch.empty_like(total) for _ in range(2)]
            torch.distributed.all_gather(others, total, group=grid.replicas.group)
            assert torch.equal(*others)  # replicas never drift apart
        sums = ReplicaSum(grid.replicas, "int8")
        sums(torch.full_like(x, torch.inf if ranks.rank == 0 else 1.0), 0)
        sums(again := torch.ones_like(x), 0)
        errors["after infinity"] = float((again - 2).abs().max())
        (folder / f"{self.name}.{ranks.rank}.json").write_text(json.dumps(errors))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("replicas")
    jobs: list[Job] = [Summed("summed")]
    jobs += [Trained(name, layout) for name, layout in (EXACT | NARROW).items()]
    jobs += [Saved(name, layout) for name, layout in (SAVED | {"int8": INT8}).items()]
    jobs += [Resumed(f"{saved} as {other}", saved, SAVED[other]) for saved, other in NEXT.items()]
    jobs += [Resumed("int8 as int8", "int8", INT8), Resumed("int8 as zero 1", "int8", replace(INT8, zero=1))]
    assert together(tuple(jobs), folder, 4) == [0] * 4
    yield folder
    shutil.rmtree(folder)


def left(folder: Path, name: str) -> tuple[Curve, dict[str, Tensor]]:
    curve = json.loads((folder / f"{name}.json").read_text())
    return Curve(curve["losses"], curve["norms"]), load_file(folder / f"{name}.safetensors")


def same(found: tuple[Curve, dict[str, Tensor]], wanted: tuple[Curve, dict[str, Tensor]], most: float) -> None:
    assert len(found[0].losses) == len(wanted[0].losses) > 0 and len(wanted[1]) > 10
    assert found[0].losses == pytest.approx(wanted[0].losses, abs=most)
    assert found[0].norms == pytest.approx(wanted[0].norms, abs=4 * most)
    assert max(float((found[1][name] - tensor).abs().max()) for name, tensor in wanted[1].items()) <= 4 * most


@pytest.mark.parametrize("name", EXACT | NARROW)
def test_replicas_train_as_one_rank(ranks: Path, name: str) -> None:
    layout = (EXACT | NARROW)[name]
    stepper = layout.on_one.stepper()
    alone = go(stepper, layout.on_one, range(4)), stepper.weights()
    same(left(ranks, name), alone, 3e-6 if name in EXACT else 5e-3 if "bf16" in name else 0.03)


@pytest.mark.parametrize("saved", SAVED)
def test_any_layout_goes_on_from_any_other(ranks: Path, saved: str) -> None:
    """Each goes on from the one before it; and what they write is the same, so each goes on from all."""
    same(left(ranks, f"{saved} as {NEXT[saved]}"), left(ranks, saved), 3e-6)
    for name in (checkpoint.MODEL, checkpoint.OPTIMIZER):
        wrote, others = (
            {key: tensor for key, tensor in load_file(path).items() if not key.startswith(checkpoint.RANDOM)}
            for path in (ranks / f"{run}.checkpoints" / "step-00000002" / name for run in (saved, NEXT[saved]))
        )
        assert wrote.keys() == others.keys() and len(wrote) > 10
        assert all(torch.allclose(wrote[key], others[key], atol=1e-5) for key in wrote)


def test_what_rounding_took_is_in_the_checkpoint(ranks: Path) -> None:
    same(left(ranks, "int8 as int8"), left(ranks, "int8"), 0)
    same(left(ranks, "int8 as zero 1"), left(ranks, "int8"), 0.03)
    path = ranks / "int8.checkpoints" / "step-00000002" / checkpoint.OPTIMIZER
    own = {name: tensor for name, tensor in load_file(path).items() if name.startswith(checkpoint.OWN)}
    assert len(own) == 4 * (INT8.shape.layers + 1) and all(float(tensor.abs().max()) > 0 for tensor in own.values())


def test_error_feedback_makes_good_what_rounding_takes(ranks: Path) -> None:
    found = [json.loads((ranks / f"summed.{rank}.json").read_text()) for rank in range(4)]
    for errors in found:
        assert errors["False"] > 0.3 and errors["True"] < errors["False"] / 10
        assert errors["after infinity"] < 0.02


@pytest.mark.parametrize(("precision", "share", "bytes_each"), [("bf16", 2**-8, 2.0), ("int8", 1 / 254, 1 + 4 / BLOCK)])
def test_narrow_numbers_are_near_and_small(precision: str, share: float, bytes_each: float) -> None:
    x = torch.randn(3, 4 * BLOCK, generator=torch.Generator().manual_seed(0))
    x[0, :BLOCK] = 0
    sent = _encode(x, precision)
    assert sent.shape == (3, int(4 * BLOCK * bytes_each))
    back = _decode(sent, precision)
    assert (back - x).abs().max() <= share * x.abs().max() * 1.01 and torch.equal(back[0, :BLOCK], x[0, :BLOCK])


def test_a_loss_scale_goes_with_whole_gradients() -> None:
    with pytest.raises(ValueError, match="replica_gradients 'int8' do not go with precision 'fp16'"):
        Layout("fp16", replica_gradients="int8").stepper()
