"""Settings of a training run: frozen, checked at once, written as JSON and read back.

Settings are of two kinds. Those of `WAYS` say how the machine does it; another choice gives the same run to
rounding, and a run may resume with others than it began with. All the rest are what the run is (`identity`): the
folder of one run is never resumed by another. `checkpoint_every` is of the second kind where checkpoints are averaged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import gcd
from typing import Annotated, Any, Literal, get_args

from pydantic import Field
from pydantic.dataclasses import dataclass

from gristmill.trainer.checked import CHECKED, Count, Number, from_json, to_json
from gristmill.trainer.model.shapes import DecoderShape
from gristmill.trainer.run.guard import Guard
from gristmill.trainer.run.schedule import RateSchedule
from gristmill.trainer.run.unlocking import Unlocking
from gristmill.trainer.step.balance import Balance
from gristmill.trainer.step.muon import Muon
from gristmill.trainer.step.optim import AdamW

Precision = Literal["float32", "bf16", "fp16"]
Recompute = Literal["none", "selective", "full"]
Zero = Literal[0, 1, 2, 3]
Linears = Literal["bf16", "fp8"]
Schedule = Literal["1f1b", "interleaved", "zb1p", "zbv"]  # of a pipeline

SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)
TWO_STAGES = ("interleaved", "zbv")  # schedules that give each rank two stages
SPLIT = ("zb1p", "zbv")  # schedules whose backward passes compute weight gradients later
Seed = Annotated[int, Field(ge=0, lt=1 << 63)]

OPTIMIZERS: dict[str, type[AdamW] | type[Muon]] = {"adamw": AdamW, "muon": Muon}
OPTIMIZER, SCHEDULE, GUARD = AdamW(rate=3e-4, weight_decay=0.1, betas=(0.9, 0.95)), RateSchedule(), Guard()

MICROS = 4  # micro-batches for each stage of a pipeline, where rows_per_step is not given

WAYS = (
    "rows_per_step", "recompute", "zero", "tensor", "context", "replicas", "pipeline", "pipeline_schedule", "experts",
    "offload", "compile", "deterministic",
    "checkpoint_every", "keep", "metrics_every", "grams_per_kwh",
)  # fmt: skip


@dataclass(frozen=True, config=CHECKED)
class Training:
    """`rows_per_update` are rows of the shards, of all ranks together; `rows_per_step` the rows of one rank's
    forward pass, whose gradients are accumulated (None: the largest number that is predicted to fit).

    `precision`: bf16 holds bf16 weights and float32 masters, fp16 float32 weights and scales the loss. `linears`: the
    blocks' matmuls in fp8 (gristmill.trainer.model.fp8). `zero`: what is sharded over the ranks (0 nothing, 1 the
    optimiser's state and masters, 2 gradients too, 3 weights too); `tensor` ranks share each layer, `context` ranks
    each row; in each of `replicas` groups of neighbours, one a host, the same is sharded. The blocks are cut into
    `pipeline` parts, which work on micro-batches of `rows_per_step` rows in the order of `pipeline_schedule` (None: by
    the number of parts). `experts` ranks share the experts, whose loads `balance` keeps even (None: its defaults).
    `offload` keeps the optimiser's state on the CPU. All of it is in `gristmill.trainer.parallel`.
    `compile` None: on CUDA only. `deterministic`: on one GPU the same bits each time, at some cost in speed; on the CPU
    that is so anyway.

    After every `checkpoint_every` updates, and at the end, a checkpoint is made and `keep` are kept; None: only when
    the run is stopped. A checkpoint of a stop between two is kept beside them until the next. `average`: the final
    model is the mean of this many last checkpoints, without those of stops (1: the last). A line of metrics every
    `metrics_every` updates; with `grams_per_kwh` of CO2, grams too. `unlocking`: buckets are opened as the loss
    falls, by a loader whose order is `gristmill.trainer.run.unlocking.Unlocked`. `patience`: the run ends when the
    evaluation's target has not improved for so many measurements.
    """

    updates: Count  # in all
    rows_per_update: Count  # rows of the shards, of all ranks together
    rows_per_step: Count | None = None  # of one rank's forward pass; the most that fits unless given
    optimizer: AdamW | Muon = OPTIMIZER  # and its settings
    schedule: RateSchedule = SCHEDULE  # of the learning rate
    precision: Precision = "bf16"  # fp16 scales the loss; bf16 keeps float32 masters
    linears: Linears = "bf16"  # the blocks' matmuls
    recompute: Recompute = "none"  # activations in the backward pass: slower, less memory
    zero: Zero = 0  # sharded: 1 optimiser, 2 gradients too, 3 weights too
    tensor: Count = 1  # ranks that share each layer
    context: Count = 1  # ranks that share each row
    replicas: Count = 1  # groups of neighbours, one a host, that shard the same
    pipeline: Count = 1  # parts into which the blocks are cut
    pipeline_schedule: Schedule | None = None  # by the number of parts unless given
    experts: Count = 1  # ranks that share the experts
    balance: Balance | None = None  # how experts' loads are kept even
    offload: bool = False  # keeps the optimiser's state on the CPU
    compile: bool | None = None  # on CUDA only unless given
    deterministic: bool = False  # the same bits each time on one GPU, at some cost
    seed: Seed = 0  # of the initial weights
    data_seed: Seed | None = None  # of the order of rows; as `seed` unless given
    checkpoint_every: Count | None = 500  # so many updates; null: only when stopped
    keep: Count = 2  # so many last checkpoints
    average: Count = 1  # the final model is the mean of so many last checkpoints
    metrics_every: Count = 10  # a line after so many updates
    grams_per_kwh: Number | None = None  # of CO2; metrics then have grams
    guard: Guard = GUARD  # against updates that are not finite or far off
    unlocking: Unlocking | None = None  # opens buckets of a curriculum as the loss falls
    patience: Count | None = None  # ends when so many measurements brought nothing better

    def __post_init__(self) -> None:
        if self.rows_per_step is not None and self.rows_per_step > self.rows_per_update:
            raise ValueError(
                f"rows_per_step {self.rows_per_step:,} is more than the {self.rows_per_update:,} rows of an update"
            )
        if self.average > self.keep and self.average > 1:
            raise ValueError(f"average {self.average} needs as many checkpoints; keep is {self.keep}")
        if self.patience is not None and self.average > 1:
            raise ValueError(
                f"patience {self.patience} goes with average 1: a run that ends early has fewer checkpoints"
            )
        if self.checkpoint_every is None and self.average > 1:
            raise ValueError("checkpoint_every is None, but average needs checkpoints")
        if self.checkpoint_every and self.average > -(-self.updates // self.checkpoint_every):
            raise ValueError(
                f"average {self.average}: {self.updates:,} updates leave fewer checkpoints, one every "
                f"{self.checkpoint_every:,}"
            )
        if self.linears == "fp8" and self.precision != "bf16":
            raise ValueError(f"linears 'fp8' go with precision 'bf16', not {self.precision!r}")
        if self.pipeline > 1 and self.zero >= 2:
            raise ValueError(f"pipeline {self.pipeline} goes with zero 0 or 1 in its stages, not {self.zero}")
        if self.pipeline > 1 and self.replicas > 1:
            raise ValueError(
                f"pipeline {self.pipeline} does not go with replicas: stages are what hosts exchange least"
            )
        if self.pipeline_schedule is not None and self.pipeline == 1:
            raise ValueError(f"pipeline_schedule {self.pipeline_schedule!r}, but pipeline is 1")
        if self.pipeline > 1 and self.pipeline_schedule not in (None, *self.schedules_allowed):
            raise ValueError(
                f"pipeline_schedule {self.pipeline_schedule!r} computes weight gradients later, which neither fp8, "
                "fp16 nor compiled blocks can: take '1f1b' or 'interleaved'"
            )

    @property
    def order_seed(self) -> int:
        return self.seed if self.data_seed is None else self.data_seed

    @property
    def ranks_of_a_row(self) -> int:
        """Ranks that read the same rows."""
        return self.tensor * self.context * self.pipeline

    def reader(self, rank: int, ranks: int) -> tuple[int, int]:
        """Whose rows a rank reads, of how many: stages of a pipeline are farthest apart, as `grid_of` has them."""
        of_stage = ranks // self.pipeline
        return rank % of_stage // (self.tensor * self.context), ranks // self.ranks_of_a_row

    @property
    def schedules_allowed(self) -> tuple[Schedule, ...]:
        whole = self.linears == "fp8" or self.precision == "fp16" or self.compile is True
        return tuple(name for name in SCHEDULES if not (whole and name in SPLIT))

    def most_step_rows(self, ranks: int) -> int:
        """A pipeline is idle less with many micro-batches."""
        rows = self.rank_rows(ranks)
        return rows if self.pipeline == 1 else max(1, rows // (MICROS * self.pipeline))

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
        if "optimizer" in fields and not isinstance(fields["optimizer"], Mapping | AdamW | Muon):
            raise ValueError(
                f"training.optimizer: a mapping was expected, such as {{name: adamw, rate: 0.001}}, not "
                f"{fields['optimizer']!r}"
            )
        if isinstance(optimizer := fields.get("optimizer"), Mapping):
            settings = dict(optimizer)
            name = settings.pop("name", "adamw")
            if name not in OPTIMIZERS:
                raise ValueError(f"training.optimizer.name {name!r}: there are {', '.join(OPTIMIZERS)}")
            fields["optimizer"] = from_json(OPTIMIZERS[name], settings, "training.optimizer")
        return from_json(cls, fields, "training")

    def identity(self) -> dict[str, Any]:
        """What makes two runs the same run."""
        ways = {*WAYS} - ({"checkpoint_every"} if self.average > 1 else set())
        return {name: value for name, value in self.facts().items() if name not in ways}


def layout_faults(
    training: Training, shape: DecoderShape, ranks: int, row_length: int | None = None
) -> Iterator[tuple[str, str]]:
    """Why no run of these settings over so many ranks begins: the field, and what to take instead. What is wrong
    whatever the shape and the ranks, `Training` refuses itself. Rows are looked at where their length is given."""
    N, C, E, P, R = training.tensor, training.context, training.experts, training.pipeline, training.replicas
    muon = not isinstance(training.optimizer, AdamW)
    of_stage = ranks // P
    if ranks % P:
        yield "pipeline", f"{ranks} ranks cannot be cut into {P} stages; {_take('pipeline', ranks)}"
        return
    if of_stage % N:
        yield (
            "tensor",
            f"{of_stage} ranks cannot be cut into groups of {N} that share each layer; {_take('tensor', of_stage)}",
        )
        return
    data = of_stage // N
    for name, count, what in (
        ("context", C, f"groups of {C} that share each row"),
        ("experts", E, f"groups of {E} that share the experts"),
        ("replicas", R, f"{R} replicas"),
    ):
        if data % count:
            yield name, f"{data} ranks cannot be cut into {what}; {_take(name, data)}"
            return
    if row_length is not None:
        try:
            training.check_step(data // C)
        except ValueError as error:
            yield str(error).split(" ")[0], str(error)
            return
    if N > 1:
        if training.zero >= 2:
            yield "zero", f"zero {training.zero} does not go with tensor {N}: take zero 1, or tensor 1"
        if training.linears == "fp8":
            yield "linears", f"linears 'fp8' do not go with tensor {N}: take 'bf16', or tensor 1"
        if muon:
            yield "optimizer", f"Muon needs whole matrices, which tensor {N} cuts: take adamw, or tensor 1"
        if shape.experts is not None or shape.qk_norm is not None:
            what = "experts" if shape.experts is not None else "normed queries and keys"
            yield "tensor", f"a model with {what} is not cut: take tensor 1"
        for name, number in (("heads", shape.heads), ("kv_heads", shape.kv_heads), ("mlp", shape.mlp)):
            if number % N:
                yield (
                    "tensor",
                    f"{N} ranks cannot share {number:,} {name} equally; {_take('tensor', gcd(number, of_stage))}",
                )
    if P > 1:
        if shape.experts is not None:
            yield "pipeline", "does not go with a mixture of experts: take pipeline 1, and experts for its ranks"
        elif shape.layers < P:
            yield (
                "pipeline",
                f"{P} stages need a block each, and the model has {shape.layers}; {_take('pipeline', gcd(ranks, shape.layers))}",
            )
        elif training.pipeline_schedule in TWO_STAGES and shape.layers < 2 * P:
            yield (
                "pipeline_schedule",
                f"{training.pipeline_schedule!r} has {2 * P} stages, the model {shape.layers} blocks: take '1f1b' or 'zb1p'",
            )
    if E > 1:
        if shape.experts is None:
            yield "experts", f"{E} ranks are to share the experts, and the model has none: take experts 1"
        elif shape.experts.number % E:
            yield (
                "experts",
                f"{E} ranks cannot share {shape.experts.number} experts equally; {_take('experts', gcd(shape.experts.number, data))}",
            )
        for name, wrong in (("zero", training.zero >= 2), ("tensor", N > 1), ("replicas", R > 1)):
            if wrong:
                yield (
                    name,
                    f"{name} {getattr(training, name)} does not go with experts {E}: take {name} 1, or experts 1",
                )
    if muon and training.zero >= 2 and ranks > 1:
        yield "zero", f"zero {training.zero} cuts matrices, which Muon needs whole: take zero 1, or adamw"
    if training.linears == "fp8" and row_length is not None and row_length % 16:
        yield (
            "linears",
            f"linears 'fp8' need rows of a multiple of 16 tokens, and these have {row_length:,}: take 'bf16'",
        )


def _take(name: str, ranks: int) -> str:
    """The counts that divide so many ranks, up to 64."""
    counts = [count for count in range(1, min(ranks, 64) + 1) if ranks % count == 0]
    return f"take {name} {', '.join(map(str, counts[:-1]))} or {counts[-1]}" if len(counts) > 1 else f"take {name} 1"


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
