"""What the tests of layouts run on every rank: one small decoder, the same updates however they are laid out. Imported
by spawned processes."""

from __future__ import annotations

import json
import math
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from gristmill.trainer.evaluation.scoring import Continuation, score_continuations
from gristmill.trainer.model.attention import attend
from gristmill.trainer.model.model import Decoder, initialise
from gristmill.trainer.model.packed import pack_documents
from gristmill.trainer.model.shapes import DecoderShape, Mixture
from gristmill.trainer.parallel.ranks import ALONE, RankGroup, join_ranks
from gristmill.trainer.parallel.spread import SpreadStepper, spread
from gristmill.trainer.run.settings import Training
from gristmill.trainer.step import checkpoint
from gristmill.trainer.step.checkpoint import steps
from gristmill.trainer.step.muon import Muon
from gristmill.trainer.step.optim import AdamW
from tests.trainer.forked_ranks import forked

SHAPE = DecoderShape(97, 32, 2, 4, 2, 48, tied=True)
SPARSE = DecoderShape(97, 32, 3, 4, 2, 48, qk_norm="head", experts=Mixture(4, 2, 24, "sigmoid", shared=1, dense=(1,)))
SOFTMAX = DecoderShape(97, 32, 2, 4, 2, 48, tied=True, experts=Mixture(4, 2, 24, normalised=False))
ADAMW = AdamW(
    rate=0.01, weight_decay=0.1, betas=(0.9, 0.95), clip=1.0, eps=1e-4
)  # a gradient that is rounding error alone makes no step of full size
PIECES = 4  # of an update


@dataclass(frozen=True)
class Layout:
    """What `spread` is told."""

    precision: str = "float32"
    zero: int = 0
    tensor: int = 1
    context: int = 1
    pipeline: int = 1
    schedule: str = "1f1b"
    experts: int = 1
    offload: bool = False
    recompute: str = "none"
    compile: str = ""  # by which backend
    optimizer: Any = ADAMW
    shape: DecoderShape = SHAPE
    together: bool = False  # an update's pieces in one pass (of each rank)
    seed: int = 0  # of the weights
    replicas: int = 1

    @property
    def on_one(self) -> Layout:
        """The same training by one rank."""
        return replace(self, zero=0, tensor=1, context=1, replicas=1)

    @property
    def training(self) -> Training:
        same = {each.name for each in fields(Training)} & vars(self).keys() - {"schedule", "compile"}
        return Training(
            1,
            64,
            **{name: getattr(self, name) for name in same},
            pipeline_schedule=self.schedule if self.pipeline > 1 else None,
            compile=bool(self.compile),
        )

    def stepper(self, ranks: RankGroup = ALONE) -> SpreadStepper:
        model = initialise(Decoder(self.shape, attend_whole if self.compile else attend), self.seed)
        with patch.object(torch, "compile", partial(torch.compile, backend=self.compile, fullgraph=True)):
            return spread(model, self.training, ranks)


def attend_whole(q_THD: Tensor, k_THD: Tensor, v_THD: Tensor, cuts_q: Tensor, cuts_k: Tensor, *rest: Any) -> Tensor:
    """Causal attention by one mask over all tokens: torch.compile sees through it."""
    at = torch.arange(len(q_THD))
    piece = torch.searchsorted(cuts_q[1:], at, right=True)
    seen = (piece[:, None] == piece) & (at[:, None] >= at)
    q, k, v = (x.transpose(0, 1)[None] for x in (q_THD, k_THD, v_THD))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)[0].transpose(0, 1)


@dataclass
class Curve:
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)


def documents(update: int, vocabulary: int) -> list[list[list[int]]]:
    """Of each piece of an update: pieces are unequal."""
    random = np.random.default_rng(update)
    return [
        [random.integers(0, vocabulary, random.integers(2, 12)).tolist() for _ in range(1 + piece % 3)]
        for piece in range(PIECES)
    ]


def go(stepper: SpreadStepper, layout: Layout, updates: range, poison: int | None = None) -> Curve:
    """`poison`: the update whose loss is not finite, on the first rank that sees it."""
    curve = Curve()
    for update in updates:
        found = documents(update, layout.shape.vocabulary)
        counted = pack_documents([document for piece in found for document in piece]).counted
        mine = found[stepper.ranks.data.rank // layout.context :: stepper.ranks.readers]
        passes = [[document for piece in mine for document in piece]] if layout.together else list(mine)
        poisoned = update == poison and stepper.ranks.data.first
        parts = [stepper.part_of(pack_documents(piece)) for piece in passes]
        steps = [(part, number == len(parts)) for number, part in enumerate(parts, 1)]
        if stepper.pipeline is not None and not curve.losses:
            stepper.pipeline.load(parts[0])  # as on GPUs: it changes nothing
        total = stepper.accumulate(steps, torch.tensor(math.nan if poisoned else counted))
        norm = stepper.step(1.0)
        curve.losses.append(float(total) / counted)
        curve.norms.append(float(norm))
    return curve


def keep(path: Path, name: str, curve: Curve, weights: dict[str, Tensor], first: bool) -> None:
    if first:
        save_file(weights, path / f"{name}.safetensors")
        (path / f"{name}.json").write_text(json.dumps({"losses": curve.losses, "norms": curve.norms}))


Job = Callable[[Path, RankGroup], None]


def on_rank(rank: int, count: int, folder: str, jobs: tuple[Job, ...]) -> None:
    """What each process does: the jobs in turn, over gloo."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(count), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1")
    os.environ["MASTER_PORT"] = (Path(folder) / "port").read_text()
    torch.set_num_threads(1)
    with join_ranks("cpu") as (ranks, _):
        for job in jobs:
            job(Path(folder), ranks)


def together(jobs: tuple[Job, ...], folder: Path, count: int = 2) -> list[int | None]:
    """Runs them on so many ranks; how each process ended."""
    folder.mkdir(exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        (folder / "port").write_text(str(free.getsockname()[1]))
    return forked(count, on_rank, count, str(folder), jobs)


@dataclass(frozen=True)
class Trained:
    """A job: some updates from the start, curve and weights kept under a name."""

    name: str
    layout: Layout
    updates: int = 4

    def __call__(self, folder: Path, ranks: RankGroup) -> None:
        stepper = self.layout.stepper(ranks)
        curve = go(stepper, self.layout, range(self.updates))
        keep(folder, self.name, curve, stepper.weights(), ranks.first)


@dataclass(frozen=True)
class Poisoned:
    """A job: says whether an update whose gradients are not finite left weights and the optimiser's state as they were,
    and what comes after moves."""

    name: str
    layout: Layout

    def __call__(self, folder: Path, ranks: RankGroup) -> None:
        (folder / f"{self.name}.{ranks.rank}.json").write_text(json.dumps(poisoned(self.layout, ranks)))


def poisoned(layout: Layout, ranks: RankGroup = ALONE) -> dict[str, Any]:
    stepper = layout.stepper(ranks)
    go(stepper, layout, range(1))
    before, state = stepper.weights(), state_of(stepper)
    curve = go(stepper, layout, range(1, 2), poison=1)
    after, same_state = stepper.weights(), all(torch.equal(a, b) for a, b in zip(state, state_of(stepper), strict=True))
    same = all(torch.equal(before[name], after[name]) for name in before)
    limited = stepper_norm_above(stepper, layout)
    same = same and all(torch.equal(before[name], tensor) for name, tensor in stepper.weights().items())
    go(stepper, layout, range(1, 3))
    moved = stepper.weights()
    return {
        "norm": str(curve.norms[0]),
        "limited": limited,
        "same": same,
        "same_state": same_state,
        "numbers": sum(tensor.numel() for tensor in state),
        "moves": not before or any(not torch.equal(before[name], moved[name]) for name in before),
    }


def stepper_norm_above(stepper: SpreadStepper, layout: Layout) -> float:
    """A step that a limit on the norm refuses."""
    mine = stepper.ranks.data.own_share(documents(1, layout.shape.vocabulary))
    packed = pack_documents([document for piece in mine for document in piece])
    stepper.accumulate([(packed, True)], torch.tensor(100))
    return float(stepper.step(1.0, limit=torch.tensor(1e-3)))


def state_of(stepper: SpreadStepper) -> list[Tensor]:
    optimizer = stepper.optimizer
    return [
        value.clone()
        for group in optimizer.param_groups
        for parameter in group["params"]
        for _, value in sorted(optimizer.state[parameter].items())
        if isinstance(value, Tensor)
    ]


@dataclass(frozen=True)
class Saved:
    """A job: two updates, a checkpoint, and two more in the same run."""

    name: str
    layout: Layout

    def __call__(self, folder: Path, ranks: RankGroup) -> None:
        stepper = self.layout.stepper(ranks)
        go(stepper, self.layout, range(2))
        torch.manual_seed(1000 + ranks.rank)
        stepper.save(folder / f"{self.name}.checkpoints", 2, {"run": 1})
        drawn = torch.rand(1).item()
        curve = go(stepper, self.layout, range(2, 4))
        keep(folder, self.name, curve, stepper.weights(), ranks.first)
        (folder / f"{self.name}.drawn.{ranks.rank}").write_text(str(drawn))


@dataclass(frozen=True)
class Resumed:
    """A job: goes on from what `saved` has written, perhaps laid out otherwise."""

    name: str
    saved: str
    layout: Layout

    def __call__(self, folder: Path, ranks: RankGroup) -> None:
        curve, weights, drawn = resumed(folder / f"{self.saved}.checkpoints", self.layout, ranks)
        keep(folder, self.name, curve, weights, ranks.first)
        (folder / f"{self.name}.drawn.{ranks.rank}").write_text(str(drawn))


def resumed(checkpoints: Path, layout: Layout, ranks: RankGroup = ALONE) -> tuple[Curve, dict[str, Tensor], float]:
    stepper = replace(layout, seed=9).stepper(ranks)  # other weights, and another state of the optimiser
    go(stepper, layout, range(7, 8))
    restored = stepper.load(steps(checkpoints)[-1])
    assert (restored.step, restored.facts) == (2, {"run": 1})
    saved, loaded = load_file(steps(checkpoints)[-1] / checkpoint.MODEL), stepper.weights()
    assert all(torch.equal(loaded[name], saved[name]) for name in (saved if ranks.first else ()))
    drawn = torch.rand(1).item()
    return go(stepper, layout, range(2, 4)), stepper.weights(), drawn


@dataclass(frozen=True)
class Killed:
    """A job: dies while the second checkpoint's files are written, the first rank between two of them."""

    name: str

    def __call__(self, folder: Path, ranks: RankGroup) -> None:
        stepper = Layout(zero=1).stepper(ranks)
        go(stepper, Layout(zero=1), range(1))
        stepper.save(folder / self.name, 1, {})
        go(stepper, Layout(zero=1), range(1, 2))
        written = checkpoint.write_safetensors

        def dies(path: Path, *rest: Any) -> str:
            digest = written(path, *rest)
            if path.name == checkpoint.MODEL:
                os._exit(9)
            return digest

        checkpoint.write_safetensors = dies
        try:
            stepper.save(folder / self.name, 2, {})
        except RuntimeError as error:
            (folder / f"{self.name}.{ranks.rank}.error").write_text(f"{type(error).__name__}: {error}")
            raise


@dataclass(frozen=True)
class Gathered:
    """A job: what ranks tell each other."""

    name: str

    def __call__(self, folder: Path, ranks: RankGroup) -> None:
        said = ranks.gather({"rank": ranks.rank, "text": "ü" * (1 + 50 * ranks.rank)})
        assert said == [{"rank": rank, "text": "ü" * (1 + 50 * rank)} for rank in range(ranks.count)], said
        for wrong, match in (
            (Layout(tensor=3), "cannot be cut into groups of 3"),
            (Layout(tensor=2, zero=2), "take zero 1, or tensor 1"),
            (Layout(zero=3, optimizer=Muon()), "which Muon needs whole"),
            (Layout(tensor=2, shape=DecoderShape(97, 32, 1, 4, 1, 48)), "cannot share 1 kv_heads equally"),
            (Layout(pipeline=2, zero=2), "zero 0 or 1 in its stages, not 2"),
            (Layout("fp16", pipeline=2, schedule="zb1p"), "which neither fp8, fp16 nor compiled"),
            (Layout(pipeline=2, schedule="zbv"), "has 4 stages, the model 2 blocks"),
        ):
            with pytest.raises(ValueError, match=match):
                wrong.stepper(ranks)
        (folder / f"{self.name}.{ranks.rank}").write_text("all")


@dataclass(frozen=True)
class Counted:
    """A job: how many bytes of each kind this rank has after an update."""

    name: str
    layout: Layout

    def __call__(self, folder: Path, ranks: RankGroup) -> None:
        stepper = self.layout.stepper(ranks)
        go(stepper, self.layout, range(1))
        local = [p.to_local() if isinstance(p, DTensor) else p for p in stepper.model.parameters()]
        beside = {tensor.data_ptr() for tensor in local}
        stepped = [p for group in stepper.optimizer.param_groups for p in group["params"]]
        found = {
            "weights": size_of(local),
            "masters": size_of([p for p in stepped if p.data_ptr() not in beside]),
            "optimizer": size_of([tensor for tensor in state_of(stepper) if tensor.ndim]),
        }
        (folder / f"{self.name}.{ranks.rank}.json").write_text(json.dumps(found))


@dataclass(frozen=True)
class Evaluated:
    """A job: what some texts cost a model, by all ranks together, and how many passes this one made."""

    name: str
    layout: Layout

    def __call__(self, folder: Path, ranks: RankGroup) -> None:
        found = evaluated(self.layout, ranks)
        (folder / f"{self.name}.{ranks.rank}.json").write_text(json.dumps(found))


def evaluated(layout: Layout, ranks: RankGroup = ALONE) -> dict[str, Any]:
    stepper = layout.stepper(ranks)
    random = np.random.default_rng(3)
    pieces = [
        Continuation(random.integers(0, 97, int(length)), 1 + int(length) // 3) for length in random.integers(2, 60, 40)
    ]
    passes, hidden = [0], stepper.model.hidden

    def counted(packed: Any) -> Tensor:
        passes[0] += 1
        found: Tensor = hidden(packed)
        return found

    stepper.model.hidden = counted  # type: ignore[method-assign]
    with torch.no_grad(), stepper.computing():
        found = score_continuations(stepper.model, pieces, "cpu", 100, stepper.ranks.data)
        few = score_continuations(stepper.model, pieces[:1], "cpu", 100, stepper.ranks.data)
    return {"nats": found.tolist(), "few": few.tolist(), "passes": passes[0]}


def size_of(tensors: list[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
