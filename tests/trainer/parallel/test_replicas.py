"""Two replicas of two ranks: they train as one rank, in any layout."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

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
SAVED = {
    "a": Layout(replicas=2, zero=1),
    "b": Layout(tensor=2, zero=1),
    "c": Layout(replicas=2, zero=3),
    "d": Layout(context=2, zero=2, together=True),
}
NEXT = dict(zip(SAVED, [*list(SAVED)[1:], "a"], strict=True))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("replicas")
    jobs: list[Job] = [Trained(name, layout) for name, layout in EXACT.items()]
    jobs += [Saved(name, layout) for name, layout in SAVED.items()]
    jobs += [Resumed(f"{saved} as {other}", saved, SAVED[other]) for saved, other in NEXT.items()]
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


@pytest.mark.parametrize("name", EXACT)
def test_replicas_train_as_one_rank(ranks: Path, name: str) -> None:
    layout = EXACT[name]
    stepper = layout.on_one.stepper()
    alone = go(stepper, layout.on_one, range(4)), stepper.weights()
    same(left(ranks, name), alone, 3e-6)


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
