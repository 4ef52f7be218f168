"""What an update of a layout takes: the memory of a rank (`gristmill.trainer.parallel.memory`), and seconds.

Seconds are a model, to compare layouts by, and not a promise. It counts

- matmuls at a share of the card's peak: 0.70 w / (w + 370) of matrices of width w, fitted to the shapes 1.3b and 124m
  on one H200 (docs/training.md), less with few tokens a step; 1.27 times that in fp8. Attention at half of the peak
  with flash-attn-4, at 0.3 without. Recomputation comes on top
- exchanges by the bytes that a rank sends over the slowest link on their way. Those inside layers (tensor, context) are
  waited for, and of those between experts a half: tokens travel in two parts, one beside the work on the other. Those
  of gradients and weights hide behind the work beside them, as far as there is any
- waiting for the slowest rank: 5 %, as H200s measured, and what rows of unequal documents add: attention's work
  grows with the square of a document, and of ranks with rows of their own one has most (`DocumentLengths.uneven`). Of a
  context 1 % more (its parts are even to that)
- a pipeline by its simulation (`pipeline_plan.py`), experts over ranks by what two H200s measured
- the optimiser by the bytes it moves, with `offload` over PCIe and in the processor's memory (in stages 2 and 3 of ZeRO
  weights and gradients cross PCIe in every pass)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import NormalDist

import numpy as np

from gristmill.kernels.base.types import Array
from gristmill.trainer.model.flops import Lengths, flops_of
from gristmill.trainer.model.shapes import DecoderShape
from gristmill.trainer.parallel.cards import PCIE, Cards
from gristmill.trainer.parallel.context import STEP, UNEVEN, way_of
from gristmill.trainer.parallel.memory import MemoryEstimate, memory_of
from gristmill.trainer.parallel.pipeline_plan import TAKES, TWO_STAGES, plan_for
from gristmill.trainer.run.settings import Training

PEAK_SHARE, HALF_WIDTH = 0.70, 370
ATTENTION_SHARE, FLASH4_SHARE = 0.3, 0.5  # rows of one document of 65,536; documents of 4,096
HALF_TOKENS = 500  # of a step, at which half the rate is lost
FP8 = 1.27
RECOMPUTED = {"none": 0.0, "selective": 0.03, "full": 1 / 3}  # of an update's FLOP
WAITING, WAITING_CONTEXT = 0.05, 0.01
LINK_SHARE = 0.75  # of what makers state, that an exchange reaches
LATENCY = 10e-6  # seconds of an exchange, for each of its ranks on a host, or each of its hosts
APART = 0.14  # of the work, that experts over ranks add: the card waits for sizes, and for the most loaded rank
TRAVELLING = 0.5  # of an exchange between experts, that nothing hides
VISIBLE = 0.05  # of an exchange that could hide: the last bucket, the first block
MEMORY_BANDWIDTH = 3.4e9  # bytes a second for each TFLOP/s, as an H100 has
HOST_BANDWIDTH = 100e9  # bytes a second of a host's memory, which its ranks share
OFFLOADED = 16  # bytes of a host for each number: master, optimiser's state, gradient
STEPPED = 28  # bytes that AdamW reads and writes for each number
NARROW = {"float32": 4.0, "bf16": 2.0, "int8": 1 + 4 / 256}


@dataclass(frozen=True)
class Seconds:
    """Of an update: work, exchanges that are waited for, those that hide behind work, and the optimiser."""

    work: float
    exchanges: float
    hidden: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.work + self.exchanges + self.optimizer


@dataclass(frozen=True, eq=False)
class DocumentLengths:
    """`rows`: the lengths of the documents' pieces in each of some rows of the data."""

    rows: Sequence[Lengths]

    @classmethod
    def of_mean(cls, length: float, row_length: int) -> DocumentLengths:
        """All equal."""
        each = max(1, min(row_length, round(length)))
        return cls([np.full(max(1, row_length // each), each)])

    @cached_property
    def mean(self) -> float:
        return float(np.concatenate(self.rows).mean())

    def seconds_of_token(self, shape: DecoderShape, rate: float, attention_rate: float) -> float:
        tokens, matmul, attention = _flops_of_rows(self, shape)
        return float((matmul.sum() / rate + attention.sum() / attention_rate) / tokens.sum())

    def uneven(self, shape: DecoderShape, rate: float, attention_rate: float, rows: float, ranks: int) -> float:
        """What of a rank's work the slowest of so many does more, where each has so many rows: as of normal sums."""
        if ranks == 1 or len(self.rows) == 1:
            return 0.0
        _, matmul, attention = _flops_of_rows(self, shape)
        seconds = matmul / rate + attention / attention_rate
        most = NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))  # Blom 1958
        return most * float(seconds.std() / seconds.mean()) / math.sqrt(max(1.0, rows))


@lru_cache(maxsize=64)
def _flops_of_rows(documents: DocumentLengths, shape: DecoderShape) -> tuple[Array, Array, Array]:
    """Tokens, and operations of matmuls and of attention, of each row."""
    flops = [flops_of(shape, lengths) for lengths in documents.rows]
    return (
        np.array([lengths.sum() for lengths in documents.rows], np.float64),
        np.array([each.matmul for each in flops], np.float64),
        np.array([each.attention for each in flops], np.float64),
    )


def ranks_of_data(training: Training, ranks: int) -> int:
    return ranks // (training.tensor * training.pipeline)


def numbers_held(shape: DecoderShape, training: Training) -> float:
    """Of a rank that shards nothing."""
    own = None if shape.experts is None else shape.experts.number // training.experts
    matrices = sum(shape.matrices(layer, own) for layer in range(shape.layers)) // training.tensor
    return (matrices + shape.vocabulary * shape.hidden * (1 if shape.tied else 2)) / training.pipeline


def host_memory(shape: DecoderShape, training: Training, cards: Cards) -> float:
    """Bytes that `offload` takes of a host."""
    shards = ranks_of_data(training, cards.count) // training.replicas if training.zero else 1
    return OFFLOADED * numbers_held(shape, training) / shards * cards.per_host if training.offload else 0.0


def step_tokens(training: Training, row_length: int, rows: int) -> int:
    """Of a rank."""
    tokens = -(-rows * row_length // training.context)
    return tokens if training.context == 1 else -(-round(tokens * (1 + UNEVEN)) // STEP) * STEP


def rank_memory(
    shape: DecoderShape, training: Training, ranks: int, row_length: int, rows: int, fused_linears: bool = False
) -> MemoryEstimate:
    """With steps of `rows` rows."""
    data = ranks_of_data(training, ranks)
    pipeline = training.pipeline
    plan = plan_for(shape, pipeline, training.schedule_for(shape, ranks)) if pipeline > 1 else None
    return memory_of(
        shape,
        step_tokens(training, row_length, rows),
        precision=training.precision,
        zero=training.zero,
        recompute=training.recompute,
        ranks=data,
        tensor=training.tensor,
        context=training.context,
        experts=training.experts,
        replicas=training.replicas,
        narrow=training.replica_gradients != "float32",
        passes=max(1, training.rows_per_update * training.context // (data * rows)),
        offload=training.offload,
        muon=type(training.optimizer).__name__ == "Muon",
        fused_linears=fused_linears
        and training.precision == "bf16"
        and training.linears == "bf16"
        and training.tensor == 1,
        fp8=training.linears == "fp8",
        plan=plan,
    )


def update_seconds(
    shape: DecoderShape,
    training: Training,
    cards: Cards,
    row_length: int,
    documents: DocumentLengths,
    rows: int,
    fused_linears: bool = False,
) -> Seconds:
    """With steps of `rows` rows. `fused_linears`: with flash-attn-4 and QuACK, which are installed together."""
    data, stages = ranks_of_data(training, cards.count), training.pipeline
    passes = training.rows_per_update * training.context // (data * rows)
    tokens = rows * row_length / training.context
    rate, attention_rate = _rates(shape, training, cards, tokens, fused_linears)
    work = documents.seconds_of_token(shape, rate, attention_rate) * tokens / (training.tensor * stages)
    work *= 1 + RECOMPUTED[training.recompute] + (APART if training.experts > 1 else 0.0)
    if cards.count > 1:
        summed = rows if training.zero >= 2 else rows * passes  # before ranks wait for each other
        readers = data // training.context
        work *= 1 + WAITING + (WAITING_CONTEXT if training.context > 1 else 0.0)
        work *= 1 + documents.uneven(shape, rate, attention_rate, summed, readers)
    length = min(row_length, documents.mean)
    inside = _inside_layers(shape, training, cards, tokens, min(1.0, training.context * length / (rows * row_length)))
    held = numbers_held(shape, training)
    sent, waited = _gradients(training, cards, held, shape.layers // stages, passes)
    window = work * (passes if training.zero >= 2 and data > training.replicas else 2 / 3)
    visible = max(VISIBLE * sent, sent - window) + waited
    if stages > 1:  # what it took more than the simulation has the waiting in it
        schedule = training.schedule_for(shape, cards.count)
        work *= plan_for(shape, stages, schedule).idle(passes) * TAKES[schedule] / (1 + WAITING)
    return Seconds(
        work=passes * work,
        exchanges=passes * inside + visible,
        hidden=sent + waited - visible,
        optimizer=_optimizer(training, cards, held, data // training.replicas, passes),
    )


def _rates(
    shape: DecoderShape, training: Training, cards: Cards, tokens: float, fused_linears: bool
) -> tuple[float, float]:
    """FLOP/s of a card, in matmuls and in attention."""
    width, peak = shape.hidden / math.sqrt(training.tensor), cards.tflops * 1e12
    share = PEAK_SHARE * width / (width + HALF_WIDTH) * tokens / (tokens + HALF_TOKENS)
    attention = FLASH4_SHARE if fused_linears else ATTENTION_SHARE
    return peak * share * (FP8 if training.linears == "fp8" else 1.0), peak * min(attention, share)


def _speed(cards: Cards, ranks: int, apart: int) -> float:
    """Bytes a second that each of `ranks`, which stand `apart`, gets through in an exchange: those of a host leave it
    by as many ways as they are."""
    here = max(1, min(ranks, cards.per_host // apart))
    link = cards.link_gb_s if ranks <= here else min(cards.link_gb_s if here > 1 else 1e9, here * cards.network_gb_s)
    return link * 1e9 * LINK_SHARE


def _latency(cards: Cards, ranks: int, apart: int) -> float:
    here = max(1, min(ranks, cards.per_host // apart))
    return LATENCY * (here + ranks // here)


def _inside_layers(shape: DecoderShape, training: Training, cards: Cards, tokens: float, shared: float) -> float:
    """Of one pass."""
    N, C = training.tensor, training.context
    width, again = 4 if training.precision == "float32" else 2, training.recompute != "none"
    seconds = 0.0
    if N > 1:  # sums are in float32
        times = 4 + (2 if training.recompute == "full" else 0)
        sent = times * 2 * (N - 1) / N * tokens * shape.hidden * 4
        seconds += sent / _speed(cards, N, 1) + times * _latency(cards, N, 1)
    if C > 1:
        Q, K = shape.heads * shape.head_size // N, shape.kv_heads * shape.head_size // N
        if way_of(shape, C, N) == "heads":
            numbers = (2 * Q + 2 * K * max(1, C * N // shape.kv_heads)) * (C - 1) / C
            sent = (2 + again) * width * numbers
        else:
            sent = 2 * K * (C - 1) * ((1 + again) * width + 4)
        times = 8
        seconds += shared * tokens * sent / _speed(cards, C, N) + times * _latency(cards, C, N)
    seconds *= shape.layers
    E, mixture = training.experts, shape.experts
    if E > 1 and mixture is not None:  # out and back, forward and backward, and again for what is recomputed
        here = min(E, cards.per_host)
        slowest = max((here - 1) / cards.link_gb_s, (E - here) / cards.network_gb_s) / (E * 1e9 * LINK_SHARE)
        times = 6 if again else 4
        each = TRAVELLING * times * tokens * mixture.active * shape.hidden * width * slowest
        seconds += (each + 2 * times * LATENCY * -(-E // here)) * (shape.layers - len(mixture.dense))
    seconds /= training.pipeline
    if training.pipeline > 1:  # what a stage hands on, forward and back; farthest apart are stages
        schedule = training.schedule_for(shape, cards.count)
        handed = 2 * (2 if schedule in TWO_STAGES else 1) * tokens * shape.hidden * width
        seconds += handed / _speed(cards, training.pipeline, cards.count // training.pipeline)
    return seconds


def _gradients(training: Training, cards: Cards, held: float, blocks: int, passes: float) -> tuple[float, float]:
    """Seconds that exchanges of an update take beside its work, and after it."""
    N, R = training.tensor, training.replicas
    data = ranks_of_data(training, cards.count)
    S = data // R
    width = 4 if training.precision == "float32" else 2
    speed, latency = _speed(cards, S, N), _latency(cards, S, N)
    part = (S - 1) / S / speed if S > 1 else 0.0
    between = 0.0
    if R > 1:
        share = held / S * NARROW[training.replica_gradients]
        between = 2 * (R - 1) / R * share / _speed(cards, R, S * N) + blocks * _latency(cards, R, S * N)
    if S == 1:
        return between, 0.0
    if training.zero == 0:
        return 2 * part * 4 * held + between + blocks * latency, 0.0
    if training.zero == 1:
        return part * 4 * held + between + blocks * latency, part * width * held + S * latency
    gathers = 2 if training.zero == 3 else 1
    each = part * held * (4 + gathers * width) + (1 + gathers) * blocks * latency
    return passes * each + between, 0.0


def _optimizer(training: Training, cards: Cards, held: float, shards: int, passes: float) -> float:
    stepped = held / shards if training.zero else held
    if training.offload:
        width = 4 if training.precision == "float32" else 2
        fully = training.zero >= 2 and shards > 1
        crossing = passes * (12 if training.zero == 3 else 8) if fully else 4 + width
        over_pcie = crossing * stepped / (PCIE * 1e9 * LINK_SHARE)
        return over_pcie + STEPPED * stepped * cards.per_host / HOST_BANDWIDTH
    moved = STEPPED * stepped + (12 * held * passes if passes > 1 and training.zero < 2 else 0.0)
    return moved / max(HOST_BANDWIDTH / cards.per_host, MEMORY_BANDWIDTH * cards.tflops)
