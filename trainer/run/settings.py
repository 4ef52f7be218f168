"""Settings of a training run: frozen, checked at once, written as JSON and read back.

Settings are of two kinds. Those of `WAYS` say how the machine does it; another choice gives the same run to
rounding, and a run may resume with others than it began with. All the rest are what the run is (`identity`): the
folder of one run is never resumed by another. `checkpoint_every` is of the second kind where the model depends on
it: where checkpoints are averaged, and where the guard goes back to one and leaves out the batches around.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from gristmill.trainer.checked import CHECKED, Count, Number, from_json, to_json
from gristmill.trainer.run.guard import Guard
from gristmill.trainer.run.schedule import RateSchedule
from gristmill.trainer.run.unlocking import Unlocking
from gristmill.trainer.step.muon import Muon
from gristmill.trainer.step.optim import AdamW

Precision = Literal["float32", "bf16", "fp16"]
Recompute = Literal["none", "selective", "full"]
Zero = Literal[0, 1, 2, 3]
Linears = Literal["bf16", "fp8"]

OPTIMIZERS: dict[str, type[AdamW] | type[Muon]] = {"adamw": AdamW, "muon": Muon}
OPTIMIZER, SCHEDULE, GUARD = AdamW(rate=3e-4, weight_decay=0.1, betas=(0.9, 0.95)), RateSchedule(), Guard()

WAYS = (
    "rows_per_step", "recompute", "zero", "tensor", "offload", "compile", "deterministic",
    "checkpoint_every", "keep", "metrics_every", "tensorboard", "grams_per_kwh",
)  # fmt: skip


@dataclass(frozen=True, config=CHECKED)
class Training:
    """`rows_per_update` are rows of the shards, of all ranks together; `rows_per_step` the rows of one rank's
    forward pass, whose gradients are accumulated (None: the largest number that fits and is fastest, found by
    trying).

    `precision`: bf16 holds bf16 weights and float32 masters, fp16 float32 weights and scales the loss. `linears`:
    the blocks' matmuls in fp8 (gristmill.trainer.model.fp8). `zero`: what is sharded over the ranks (0 nothing, 1
    the optimiser's state and masters, 2 gradients too, 3 weights too); `tensor` ranks share each layer; `offload`
    keeps the optimiser's state on the CPU. `compile` None: on CUDA only. `deterministic`: on one GPU the same bits
    each time, at some cost in speed; on the CPU that is so anyway.

    After every `checkpoint_every` updates, and at the end, a checkpoint is made and `keep` are kept; None: only when
    the run is stopped. A checkpoint of a stop between two is kept beside them until the next. `average`: the final
    model is the mean of this many last checkpoints, without those of stops (1: the last). A line of metrics every
    `metrics_every` updates; with `grams_per_kwh` of CO2, grams too. `unlocking`: buckets are opened as the loss
    falls, by a loader whose order is `gristmill.trainer.run.unlocking.Unlocked`.
    """

    updates: Count
    rows_per_update: Count
    rows_per_step: Count | None = None
    optimizer: AdamW | Muon = OPTIMIZER
    schedule: RateSchedule = SCHEDULE
    precision: Precision = "bf16"
    linears: Linears = "bf16"
    recompute: Recompute = "none"
    zero: Zero = 0
    tensor: Count = 1
    offload: bool = False
    compile: bool | None = None
    deterministic: bool = False
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    checkpoint_every: Count | None = 500
    keep: Count = 2
    average: Count = 1
    metrics_every: Count = 10
    tensorboard: bool = False
    grams_per_kwh: Number | None = None
    guard: Guard = GUARD
    unlocking: Unlocking | None = None

    def __post_init__(self) -> None:
        if self.rows_per_step is not None and self.rows_per_step > self.rows_per_update:
            raise ValueError(
                f"rows_per_step {self.rows_per_step:,} is more than the {self.rows_per_update:,} rows of an update"
            )
        if self.average > self.keep and self.average > 1:
            raise ValueError(f"average {self.average} needs as many checkpoints; keep is {self.keep}")
        if self.checkpoint_every is None and (self.average > 1 or self.guard.action == "back"):
            raise ValueError("checkpoint_every is None, but average and guard.action 'back' need checkpoints")
        if self.checkpoint_every and self.average > -(-self.updates // self.checkpoint_every):
            raise ValueError(
                f"average {self.average}: {self.updates:,} updates leave fewer checkpoints, one every "
                f"{self.checkpoint_every:,}"
            )
        if self.linears == "fp8" and self.precision != "bf16":
            raise ValueError(f"linears 'fp8' go with precision 'bf16', not {self.precision!r}")

    def rank_rows(self, ranks: int) -> int:
        """Rows of an update for each rank that sees rows of its own."""
        if self.rows_per_update % ranks:
            near = max(1, round(self.rows_per_update / ranks)) * ranks
            raise ValueError(
                f"rows_per_update {self.rows_per_update:,} cannot be shared equally by {ranks} ranks; take {near:,}"
            )
        return self.rows_per_update // ranks

    def check_step(self, ranks: int) -> None:
        """Steps of one size: compiled code sees one shape."""
        rows = self.rank_rows(ranks)
        if self.rows_per_step is not None and rows % self.rows_per_step:
            lower = max(d for d in range(1, min(self.rows_per_step, rows) + 1) if rows % d == 0)
            upper = min(d for d in range(min(self.rows_per_step, rows), rows + 1) if rows % d == 0)
            raise ValueError(
                f"rows_per_step {self.rows_per_step:,} does not divide the {rows:,} rows that a rank has of an update; "
                f"take {lower:,} or {upper:,}"
            )

    def checkpoint_due(self, made: int) -> bool:
        """Whether a checkpoint is made after `made` updates, stopped or not."""
        return self.checkpoint_every is not None and (made == self.updates or made % self.checkpoint_every == 0)

    def facts(self) -> dict[str, Any]:
        """As JSON has it."""
        facts = to_json(self)
        return {**facts, "optimizer": {"name": type(self.optimizer).__name__.lower(), **facts["optimizer"]}}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Training:
        fields = dict(facts)
        if isinstance(optimizer := fields.get("optimizer"), Mapping):
            settings = dict(optimizer)
            name = settings.pop("name", "adamw")
            if name not in OPTIMIZERS:
                raise ValueError(f"training.optimizer.name {name!r}: there are {', '.join(OPTIMIZERS)}")
            fields["optimizer"] = from_json(OPTIMIZERS[name], settings, "training.optimizer")
        return from_json(cls, fields, "training")

    def identity(self) -> dict[str, Any]:
        """What makes two runs the same run."""
        checkpoints_tell = self.average > 1 or (self.guard.action == "back" and self.guard.around > 0)
        ways = {*WAYS} - {"checkpoint_every"} if checkpoints_tell else WAYS
        return {name: value for name, value in self.facts().items() if name not in ways}


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], before: str = "") -> list[str]:
    """One line for each difference between two sets of facts."""
    lines: list[str] = []
    for name in sorted(ours.keys() | theirs.keys()):
        value, other = ours.get(name), theirs.get(name)
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            lines += differences(value, other, f"{before}{name}.")
        elif value != other:
            lines.append(f"{before}{name} is {value!r}, there it is {other!r}")
    return lines
