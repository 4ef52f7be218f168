"""Settings of a training run: frozen, checked at once, written as JSON and read back.

Settings are of two kinds. Those of `WAYS` say how the machine does it; another choice gives the same run to
rounding, and a run may resume with others than it began with. All the rest are what the run is (`identity`): the
folder of one run is never resumed by another. `checkpoint_every` is of the second kind where the model depends on
it: where checkpoints are averaged, and where the guard goes back to one and leaves out the batches around.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from gristmill.trainer.run.guard import Guard
from gristmill.trainer.run.schedule import RateSchedule
from gristmill.trainer.run.unlocking import Unlocking
from gristmill.trainer.step.optim import AdamW, check_numbers

Precision = Literal["float32", "bf16", "fp16"]
Recompute = Literal["none", "selective", "full"]
Zero = Literal[0, 1, 2, 3]
Linears = Literal["bf16", "fp8"]

OPTIMIZER, SCHEDULE, GUARD = AdamW(rate=3e-4, weight_decay=0.1, betas=(0.9, 0.95)), RateSchedule(), Guard()

WAYS = (
    "rows_per_step", "recompute", "zero", "tensor", "offload", "compile", "deterministic",
    "checkpoint_every", "keep", "metrics_every", "tensorboard", "grams_per_kwh",
)  # fmt: skip

COUNTS = (
    "updates",
    "rows_per_update",
    "rows_per_step",
    "tensor",
    "checkpoint_every",
    "keep",
    "average",
    "metrics_every",
)
CHOICES = {"precision": Precision, "recompute": Recompute, "zero": Zero, "linears": Linears}
NESTED: dict[str, type] = {"schedule": RateSchedule, "guard": Guard, "unlocking": Unlocking}


@dataclass(frozen=True)
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

    updates: int
    rows_per_update: int
    rows_per_step: int | None = None
    optimizer: Any = OPTIMIZER
    schedule: RateSchedule = SCHEDULE
    precision: Precision = "bf16"
    linears: Linears = "bf16"
    recompute: Recompute = "none"
    zero: Zero = 0
    tensor: int = 1
    offload: bool = False
    compile: bool | None = None
    deterministic: bool = False
    seed: int = 0
    checkpoint_every: int | None = 500
    keep: int = 2
    average: int = 1
    metrics_every: int = 10
    tensorboard: bool = False
    grams_per_kwh: float | None = None
    guard: Guard = GUARD
    unlocking: Unlocking | None = None

    def __post_init__(self) -> None:
        self._check_counts()
        self._check_choices()
        self._check_flags()
        self._check_nested()
        self._check_together()

    def _check_counts(self) -> None:
        for name in COUNTS:
            number = getattr(self, name)
            if number is None and name in ("rows_per_step", "checkpoint_every"):
                continue
            if type(number) is not int or number < 1:
                raise ValueError(f"{name} must be a whole number above 0, not {number!r}")

    def _check_choices(self) -> None:
        for name, kind in CHOICES.items():
            if getattr(self, name) not in get_args(kind):
                raise ValueError(f"{name} {getattr(self, name)!r}: there are {', '.join(map(str, get_args(kind)))}")

    def _check_flags(self) -> None:
        for name in ("offload", "deterministic", "tensorboard", "compile"):
            flag = getattr(self, name)
            if not (isinstance(flag, bool) or (flag is None and name == "compile")):
                raise ValueError(f"{name} {flag!r}: True or False")

    def _check_nested(self) -> None:
        for name, kind in NESTED.items():
            if not (isinstance(getattr(self, name), kind) or (name == "unlocking" and self.unlocking is None)):
                raise ValueError(f"{name} {getattr(self, name)!r}: its settings by name are expected")

    def _check_together(self) -> None:
        if self.grams_per_kwh is not None:
            check_numbers(self, "grams_per_kwh")
        if type(self.seed) is not int or not 0 <= self.seed < 1 << 63:
            raise ValueError(f"seed {self.seed!r}: a whole number between 0 and 2**63 - 1")
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
        if type(self.optimizer).__name__.lower() not in _OPTIMIZERS:
            raise ValueError(f"optimizer {self.optimizer!r}: there are {', '.join(_OPTIMIZERS)}")
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
        facts = {field.name: _to_json(getattr(self, field.name)) for field in dataclasses.fields(self)}
        return {**facts, "optimizer": {"name": type(self.optimizer).__name__.lower(), **facts["optimizer"]}}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Training:
        fields = _check_names(cls, facts, "training")
        if isinstance(optimizer := fields.get("optimizer"), Mapping):
            name = optimizer.get("name", "adamw")
            if name not in _OPTIMIZERS:
                raise ValueError(f"training.optimizer.name {name!r}: there are {', '.join(_OPTIMIZERS)}")
            fields["optimizer"] = _build(
                _OPTIMIZERS[name](), {k: v for k, v in optimizer.items() if k != "name"}, "training.optimizer"
            )
        for name, kind in NESTED.items():
            if isinstance(fields.get(name), Mapping):
                fields[name] = _build(kind, fields[name], f"training.{name}")
        return cls(**fields)

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


def _muon() -> Any:
    from gristmill.trainer.step.muon import Muon

    return Muon


_OPTIMIZERS = {"adamw": lambda: AdamW, "muon": _muon}


def _check_names(kind: Any, facts: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The facts as a dict; refuses names that are no fields of `kind`."""
    names = [field.name for field in dataclasses.fields(kind)]
    for name in facts:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            raise ValueError(
                f"{where}.{name}: no such field"
                + (f"; did you mean {near[0]}?" if near else f"; there are {', '.join(names)}")
            )
    return dict(facts)


def _build(kind: Any, facts: Mapping[str, Any], where: str) -> Any:
    """A frozen dataclass from JSON: lists become tuples, and objects become a dataclass where the default is one."""
    nested = {
        field.name: type(field.default) for field in dataclasses.fields(kind) if dataclasses.is_dataclass(field.default)
    }
    values = _check_names(kind, facts, where)
    return kind(
        **{
            name: _build(nested[name], value, f"{where}.{name}")
            if name in nested and isinstance(value, Mapping)
            else _to_tuples(value)
            for name, value in values.items()
        }
    )


def _to_tuples(value: Any) -> Any:
    return tuple(_to_tuples(item) for item in value) if isinstance(value, list) else value


def _to_json(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return [_to_json(item) for item in value] if isinstance(value, tuple) else value
