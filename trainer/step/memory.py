"""How much memory a rank will need, before it is tried.

P parameters, B those of the largest block, R ranks that see tokens of their own, N ranks that share each layer, T
tokens a step, L layers; C hidden width, H heads of size D, Q and K the widths of all queries and of all keys, M inner
width, V vocabulary; w bytes of a number that products take (2, in float32 4). P and B are those that a rank holds: of
the layers' matrices 1 / N, of all else the whole.

    weights      P w                    (fp16: 4 P)                  stages 2, 3: 4 P / R, and put together w P, stage
      3: w (2 B + root)
    masters      4 P, in bf16 only                                   stage 1: / R; stages 2, 3: they are the slices
    gradients    4 P, and w P of one block's on their way            stages 2, 3: 4 P / R, and 6 B or 8 B of a block
      that is being summed;
                 one rank, one pass, bf16, AdamW: w P
    optimiser    8 P with AdamW; Muon 4 for each number of a matrix  stages 1, 2, 3: / R
    activations  T L x                                               Q, K, M are 1 / N of a rank's layers
    way back     T (x of `none` - x + 3 w M)                         of one block: what it makes anew, slopes of gate,
      up and their product
    head         T h, the weight's gradient in float32, and a chunk of logits in the forward pass

What a block keeps of a token, x, with the operators of `gristmill.trainer.model.fused` (they keep their inputs and a
number or two):

    none         w (4 C + 2 Q + 2 K + 3 M) + 4 (H + 2)    both norms' inputs and answers, queries, keys, values,
      attention's answer, gate and up, their product
    selective    w (3 C + 2 Q + 2 K + 2 M) + 4 H          the residual stream, q k v, attention's answer, `out`, gate
      and up, `down`
    full         w 2 C                                    the residual stream and what the block before adds to it

Where `gristmill.trainer.model.gated_mlp` and `gristmill.trainer.model.added` are single operators (`fused_linears`) it is 2 M
in the first line, as SwiGLU's product is made anew, and C less in the others, as sums have nothing beside them. h:
cosines and sines, and of the head hidden states, normed, and their gradient, 4 D + 3 w C. With `offload` masters,
optimiser state, and in stages 2 and 3 slices and gradients, are on the host. The largest of three moments counts: the
end of the forward pass; the beginning of the way back, when the last block's slopes come on top of all activations; its
end, when all gradients are there and the first block's activations still are. Gradients of a lone pass are not there
before the third. What allocators lose to gaps, the CUDA context (about 0.5 GB) and libraries' workspaces come on top.
"""

from __future__ import annotations

from dataclasses import dataclass

from gristmill.trainer.model.shapes import DecoderShape
from gristmill.trainer.step.precision import Precision
from gristmill.trainer.step.recompute import Recompute

LOGIT_ROWS = 8192


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on the device, of one rank."""

    weights: int
    masters: int
    gradients: int
    optimizer: int
    activations: int
    block: int  # one of them
    head: int
    logits: int
    way_back: int
    accumulated: bool  # gradients are there during forward passes

    @property
    def peak(self) -> int:
        full = (
            self.activations + self.head + max(self.logits, self.way_back) + (self.gradients if self.accumulated else 0)
        )
        return self.weights + self.masters + self.optimizer + max(full, self.gradients + self.block + self.way_back)

    def facts(self) -> dict[str, int]:
        """As JSON has it."""
        names = ("weights", "masters", "gradients", "optimizer", "activations", "head", "logits", "way_back", "peak")
        return {name: getattr(self, name) for name in names}


def memory_of(
    shape: DecoderShape,
    tokens: int,
    *,
    precision: Precision = "bf16",
    zero: int = 0,
    recompute: Recompute = "none",
    ranks: int = 1,
    tensor: int = 1,
    passes: int = 1,
    offload: bool = False,
    muon: bool = False,
    fused_linears: bool = False,
) -> MemoryEstimate:
    """`ranks` see tokens of their own, `tensor` share each layer; `tokens` of one pass of one rank, `passes` of an
    update; `fused_linears` as `quack_products.fused_linears` says, of layers that are neither fp8 nor cut."""
    wide = 4 if precision == "float32" else 2
    held = 4 if precision == "fp16" else wide
    matrices, vectors = matrix_numbers(shape) // tensor, 2 * shape.hidden
    block = matrices + vectors
    root = shape.vocabulary * shape.hidden * (1 if shape.tied else 2) + shape.hidden
    P = shape.layers * block + root
    state = 4 * matrices * shape.layers + 8 * (P - matrices * shape.layers) if muon else 8 * P
    zero = zero if ranks > 1 else 0
    if zero <= 1:
        share = ranks if zero == 1 else 1
        weights = held * P
        masters = 4 * P // share if precision == "bf16" else 0
        as_they_come = (
            ranks == 1 and passes == 1 and precision == "bf16" and not muon and not offload
        )  # gristmill.trainer.step.zero
        gradients = held * P if as_they_come else 4 * P + held * max(block, root)
    else:
        share = ranks
        weights = 4 * P // share + held * (P if zero == 2 else 2 * block + root)
        masters = 0
        gradients = 4 * P // share + (held + 4) * max(block, root)
        if offload:
            weights, gradients = weights - 4 * P // share, gradients - 4 * P // share
    optimizer = 0 if offload else state // share
    masters = 0 if offload else masters
    logits = min(tokens, LOGIT_ROWS) * shape.vocabulary * wide
    head = (4 * shape.head_size + 3 * wide * shape.hidden) * tokens + 4 * shape.vocabulary * shape.hidden
    block = tokens * kept_of_token(shape, wide, recompute, tensor, fused_linears)
    made_anew = tokens * kept_of_token(shape, wide, "none", tensor, fused_linears) - block
    way_back = made_anew + tokens * 3 * wide * (shape.mlp // tensor)
    return MemoryEstimate(
        weights, masters, gradients, optimizer, shape.layers * block, block, head, logits, way_back, passes > 1
    )


def matrix_numbers(shape: DecoderShape) -> int:
    """Of one block."""
    return shape.hidden * (shape.head_size * (2 * shape.heads + 2 * shape.kv_heads) + 3 * shape.mlp)


def kept_of_token(
    shape: DecoderShape, wide: int, recompute: Recompute, tensor: int = 1, fused_linears: bool = False
) -> int:
    """Bytes that one block keeps of one token between its forward and its backward pass."""
    C, M, H = shape.hidden, shape.mlp // tensor, shape.heads // tensor
    Q, K = H * shape.head_size, shape.kv_heads // tensor * shape.head_size
    if recompute == "full":
        return wide * (1 if fused_linears else 2) * C
    if recompute == "selective":
        return wide * ((2 if fused_linears else 3) * C + 2 * Q + 2 * K + 2 * M) + 4 * H
    return wide * (4 * C + 2 * Q + 2 * K + (2 if fused_linears else 3) * M) + 4 * (H + 2)
