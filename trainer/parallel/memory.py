"""Predicts how much memory a rank will need.

P parameters, B those of the largest block, R ranks of a replica that shard what they hold, N ranks that share each
layer, T tokens of a rank and step, L layers; C hidden width, H heads of size D, Q and K the widths of all queries and
of all keys, M inner width, V vocabulary; w bytes of a number in matmuls (2, in float32 4). P and B are those that a
rank holds: of the layers' matrices 1 / N, of all else the whole.

    weights      P w  (fp16: 4 P)
                 stages 2, 3: 4 P / R, and gathered: w P, in stage 3 w (2 B + root)
    masters      4 P, in bf16 only
                 stage 1: / R; stages 2, 3: they are the shards
    gradients    4 P, and w P of one block on its way
                 stages 2, 3: 4 P / R, and 6 B or 8 B of a block that is being reduced
                 one rank, one pass, bf16, AdamW: w P
    optimiser    8 P with AdamW; Muon 4 for each number of a matrix
                 stages 1, 2, 3: / R
    activations  T L x
                 Q, K, M are 1 / N of a rank's layers
    backward     T (x of `none` - x + 2 w M)
                 of one block: what it recomputes, gradients of gate, up and the SwiGLU's output, which itself is
                 freed by then
    head         T h, the weight's gradient in float32, and a chunk of logits in the forward pass; it hands on w T C
                 to the blocks and w V C to a tied embedding

x is what a block saves of a token, with the operators of `gristmill.trainer.model.fused` (they save their inputs and a
number or two):

    none         w (4 C + 2 Q + 2 K + 3 M) + 4 (H + 2)
                 both norms' inputs and outputs, queries, keys, values, attention's output, gate and up, SwiGLU's output
    selective    w (3 C + 2 Q + 2 K + 2 M) + 4 H
                 the residual stream, q k v, attention's output, `out`, gate and up, `down`
    full         w 2 C
                 the residual stream and what the block before adds to it
    context      more than `none`, for shared documents (all are taken to be so): by heads w (2 Q + 2 K), what was
                 exchanged and the output in its own order; by keys w (Q + 2 K times the ranks), the gathered keys and
                 values and the output; with `selective` and `full` only while a block is recomputed

A sparse block has, for A active experts of width M and E in all, in place of 3 M, and of 2 M in `selective`:

    none         A (2 C + 2 M): rows sorted by expert, gate and up, the experts' outputs
    selective    A (C + 2 M)
                 and 4 E + 40 A bytes of the router; 3 M and 2 M of shared experts as before
    backward     A (3 M + 2 C) for 3 M

Ranks that share the experts hold a part each, and their masters and state are sharded over `R / experts` ranks.

Where a gated MLP and a sum with the residual stream are single operators (`fused_linears`; `model/matmuls.py`) it is 2
M in the first line, because SwiGLU's output is recomputed (so 3 M backward), and C less in the others, because sums
have no addend beside them. With `fp8` a linear layer saves its input in 8 bits and not in w, and its weight once more
in 8 bits; `selective` does so beside the outputs, and saves more than `none`. h: cosines and sines, and of the head
hidden states, normed, and their gradient, 4 D + 3 w C. With `offload` masters, optimiser state, and in stages 2 and 3
shards and gradients, are on the host.

In a pipeline a rank has the blocks of its stages, and activations of as many micro-batches as its schedule lets it
begin before it ends the first.

The largest of three moments counts: the end of the forward pass; the beginning of backward, when the last block's
gradients come on top of all activations, and of the head only what it hands on; its end, when all gradients are there
and the first block's activations still are. Gradients of a single pass exist only in the third. Fragmentation, the CUDA
context (about 0.5 GB) and libraries' workspaces come on top.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gristmill.trainer.model.shapes import DecoderShape
from gristmill.trainer.parallel.context import STEP, UNEVEN, way_of
from gristmill.trainer.parallel.pipeline_plan import Plan, plan_for, schedule_for
from gristmill.trainer.run.settings import SPLIT, Training
from gristmill.trainer.step.optim import AdamW
from gristmill.trainer.step.recompute import Recompute

LOGIT_ROWS = 8192
OFFLOADED = 16  # bytes of a host for each number: master, optimiser's state, gradient


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on the device, of one rank."""

    weights: int
    masters: int
    gradients: int
    optimizer: int
    activations: int
    block: int  # activations of one block
    head: int
    logits: int
    handed_on: int  # by the head, to the last block and to a tied embedding
    backward: int  # what a block recomputes, and its gradients
    accumulated: int  # gradients that are there during forward passes
    reduced: int  # gradients of a block, in stages 2 and 3, while the block before it is passed

    @property
    def peak(self) -> int:
        held = self.weights + self.masters + self.optimizer
        backward = self.handed_on + self.backward + max(0, self.reduced - self.block)
        full = self.accumulated + self.activations + max(self.head + self.logits, backward)
        return held + max(full, self.gradients + self.block + self.backward)


def ranks_of_data(training: Training, ranks: int) -> int:
    return ranks // (training.tensor * training.pipeline)


def rank_memory(
    shape: DecoderShape, training: Training, ranks: int, row_length: int, rows: int, fused_linears: bool = False
) -> MemoryEstimate:
    """Of a run over so many ranks with steps of `rows` rows."""
    data, context = ranks_of_data(training, ranks), training.context
    tokens = -(-rows * row_length // context)
    if context > 1:
        tokens = -(-round(tokens * (1 + UNEVEN)) // STEP) * STEP
    passes = max(1, training.rows_per_update * context // (data * rows))
    return memory_of(shape, training, tokens, data, passes, fused_linears)


def host_memory(shape: DecoderShape, training: Training, ranks: int, per_host: int) -> float:
    """Bytes that `offload` takes of a host."""
    if not training.offload:
        return 0.0
    own = None if shape.experts is None else shape.experts.number // training.experts
    matrices = sum(shape.matrices(layer, own) for layer in range(shape.layers)) // training.tensor
    numbers = (matrices + shape.vocabulary * shape.hidden * (1 if shape.tied else 2)) / training.pipeline
    shards = ranks_of_data(training, ranks) // training.replicas if training.zero else 1
    return OFFLOADED * numbers / shards * per_host


def memory_of(
    shape: DecoderShape,
    training: Training,
    tokens: int,
    ranks: int = 1,
    passes: int = 1,
    fused_linears: bool = False,
    place: int | None = None,
) -> MemoryEstimate:
    """`ranks` see tokens of their own (or some of them parts of the same rows), of a pipeline those of a stage;
    `tokens` of one pass of a rank, `passes` of an update; `fused_linears` as
    `gristmill.trainer.model.matmuls.has_fused_linears` says. Of the pipeline's rank at this place (None: that which
    needs most)."""
    parts, fp8 = training.pipeline, training.linears == "fp8"
    plan = plan_for(shape, parts, schedule_for(training, shape)) if parts > 1 else None
    tensor, context, width = training.tensor, training.context, 4 if training.precision == "float32" else 2
    if training.precision != "bf16" or fp8 or tensor > 1 or (plan is not None and plan.schedule in SPLIT):
        fused_linears = False
    kept, whole = (
        [
            tokens * kept_of_token(shape, width, way, tensor, fused_linears, context, layer, fp8)
            + (shape.matrices(layer, 0) if fp8 and way != "full" else 0)
            for layer in range(shape.layers)
        ]
        for way in (training.recompute, "none")
    )
    table = shape.vocabulary * shape.hidden
    if plan is None:
        root = table * (1 if shape.tied else 2) + shape.hidden
        held_by = [_Held(list(range(shape.layers)), root, sum(kept), True, 0)]
    else:
        held_by = [
            _held(shape, plan, rank, passes, tokens, width, kept[0], whole[0])
            for rank in range(plan.ranks)
            if place in (None, rank)
        ]
    backward = max(
        max(0, more - less) + tokens * _gradients_of_token(shape, width, layer, tensor, fused_linears, fp8)
        for layer, (more, less) in enumerate(zip(whole, kept, strict=True))
    )
    estimates = [_estimate(shape, training, tokens, ranks, passes, held, max(kept), backward) for held in held_by]
    return max(estimates, key=lambda estimate: estimate.peak)


class _Held(NamedTuple):
    """Of one rank: its blocks, the numbers of embedding, norm and head, the bytes of its blocks' activations when they
    are most, whether it has the head, and what a pipeline needs beside."""

    layers: Sequence[int]
    root: int
    activations: int
    head: bool
    beside: int


def _held(
    shape: DecoderShape, plan: Plan, rank: int, passes: int, tokens: int, width: int, block: int, whole: int
) -> _Held:
    stages, table = plan.stages(rank), shape.vocabulary * shape.hidden
    first, last = 0 in stages, plan.last in stages
    # Four messages, a tied head's float32 gradients, and its copy where the embedding is elsewhere.
    beside = 4 * tokens * width * shape.hidden
    if shape.tied and last:
        beside += 4 * table + (0 if first else width * table)
    most = max(blocks * block + waiting * whole for blocks, waiting in plan.kept(passes)[rank])
    root = table * (first + (last and not shape.tied)) + shape.hidden * last
    return _Held(plan.held(rank), root, most, last, beside)


def _estimate(
    shape: DecoderShape,
    training: Training,
    tokens: int,
    ranks: int,
    passes: int,
    held: _Held,
    block: int,
    backward: int,
) -> MemoryEstimate:
    precision, tensor, experts, offload = training.precision, training.tensor, training.experts, training.offload
    muon, alone = not isinstance(training.optimizer, AdamW), training.pipeline == 1
    width = 4 if precision == "float32" else 2
    held_width = 4 if precision == "fp16" else width
    own = None if shape.experts is None else shape.experts.number // experts
    matrices = [shape.matrices(layer, own) // tensor for layer in held.layers]
    vectors, root = 2 * shape.hidden + sum(shape.qk_norm_widths), held.root
    of_block = max(matrices) + vectors
    P = sum(matrices) + len(matrices) * vectors + root
    of_experts = sum(matrices) - sum(shape.matrices(layer, 0) for layer in held.layers) if experts > 1 else 0
    state = 4 * sum(matrices) + 8 * (P - sum(matrices)) if muon else 8 * P
    in_place = alone and ranks == 1 and passes == 1 and precision == "bf16" and not muon and not offload
    ranks //= training.replicas

    def sharded(size: int) -> int:
        """Of a number of bytes about all parameters, a rank's."""
        more = size * of_experts // P  # sharded over fewer ranks
        return (size - more) // ranks + more * experts // ranks

    zero = training.zero if ranks > 1 else 0
    if zero <= 1:
        weights = held_width * P
        masters = 4 * P if precision == "bf16" else 0
        gradients = held_width * P if in_place else 4 * P + held_width * max(of_block, root)
        accumulated, reduced = gradients, 0
    else:
        accumulated = 0 if offload else 4 * P // ranks
        weights = accumulated + held_width * (P if zero == 2 else 2 * of_block + root)
        masters = 0
        reduced = (held_width + 4) * of_block
        gradients = accumulated + max(reduced, (held_width + 4) * root)
    if zero >= 1:
        masters, state = sharded(masters), sharded(state)
    optimizer = 0 if offload else state
    masters = 0 if offload else masters
    logits = min(tokens, LOGIT_ROWS) * shape.vocabulary * width if held.head else 0
    head = handed_on = 4 * shape.head_size * tokens + held.beside
    if held.head:
        head += 3 * width * shape.hidden * tokens + 4 * shape.vocabulary * shape.hidden
        handed_on += width * shape.hidden * (tokens + shape.vocabulary * shape.tied)
    return MemoryEstimate(
        weights, masters, gradients, optimizer, held.activations, block, head, logits, handed_on, backward,
        accumulated if not alone or passes > 1 else 0, reduced,
    )  # fmt: skip


def _gradients_of_token(
    shape: DecoderShape, width: int, layer: int, tensor: int, fused_linears: bool, fp8: bool
) -> int:
    """Bytes of the gradients inside an MLP, or inside the experts, less what is freed before the last of them."""
    if (experts := shape.experts_of(layer)) is not None:
        return width * experts.active * (3 * experts.width + 2 * shape.hidden)
    freed = 0 if fused_linears else 1 if fp8 else width
    return (3 * width - freed) * shape.mlp // tensor


def kept_of_token(
    shape: DecoderShape,
    width: int,
    recompute: Recompute,
    tensor: int = 1,
    fused_linears: bool = False,
    context: int = 1,
    layer: int = 0,
    fp8: bool = False,
) -> int:
    """Bytes that a block saves of one token between its forward and its backward pass."""
    C, M, H = shape.hidden, shape.mlp // tensor, shape.heads // tensor
    Q, K = H * shape.head_size, shape.kv_heads // tensor * shape.head_size
    experts, routed, router = shape.experts_of(layer), 0, 0
    if experts is not None:
        M, A = experts.shared * experts.width, experts.active
        routed = A * ((1 if recompute == "selective" else 2) * C + 2 * experts.width)
        router = 4 * experts.number + 40 * A
    dense = 2 * C + M if experts is None else C + M  # inputs of linear layers alone: norms' outputs, SwiGLU's
    in_fp8 = dense + Q + (C if experts is not None and M else 0) if fp8 else 0
    if recompute == "full":
        return width * (1 if fused_linears and experts is None else 2) * C
    if recompute == "selective":
        sums = (2 if fused_linears else 3) + (1 if experts is not None and experts.shared else 0)
        return width * (sums * C + 2 * Q + 2 * K + 2 * M + routed) + 4 * H + router + in_fp8
    exchanged = 0
    if context > 1 and way_of(shape, context, tensor) == "heads":
        exchanged = 2 * Q + 2 * K * max(1, context * tensor // shape.kv_heads)
    elif context > 1:
        exchanged = Q + 2 * K * context
    inner = (2 if fused_linears else 3) * M
    whole = 4 * C + 2 * Q + 2 * K + inner + routed + exchanged - (dense if fp8 else 0)
    return width * whole + 4 * (H + 2) + router + in_fp8
