"""Predicts how much memory a rank will need.

P parameters, B those of the largest block, R ranks that see tokens of their own, N ranks that share each layer, T
tokens a step, L layers; C hidden width, H heads of size D, Q and K the widths of all queries and of all keys, M inner
width, V vocabulary; w bytes of a number in matmuls (2, in float32 4). P and B are those that a rank holds: of the
layers' matrices 1 / N, of all else the whole.

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
    backward     T (x of `none` - x + 3 w M)
                 of one block: what it recomputes, gradients of gate, up and the SwiGLU's output
    head         T h, the weight's gradient in float32, and a chunk of logits in the forward pass

x is what a block saves of a token, with the operators of `gristmill.trainer.model.fused` (they save their inputs and a
number or two):

    none         w (4 C + 2 Q + 2 K + 3 M) + 4 (H + 2)
                 both norms' inputs and outputs, queries, keys, values, attention's output, gate and up, SwiGLU's output
    selective    w (3 C + 2 Q + 2 K + 2 M) + 4 H
                 the residual stream, q k v, attention's output, `out`, gate and up, `down`
    full         w 2 C
                 the residual stream and what the block before adds to it

Where `gristmill.trainer.model.gated_mlp` and `gristmill.trainer.model.added` are single operators (`fused_linears`) it
is 2 M in the first line, because SwiGLU's output is recomputed, and C less in the others, because sums have no addend
beside them. h: cosines and sines, and of the head hidden states, normed, and their gradient, 4 D + 3 w C. With
`offload` masters, optimiser state, and in stages 2 and 3 shards and gradients, are on the host.

The largest of three moments counts: the end of the forward pass; the beginning of backward, when the last block's
gradients come on top of all activations; its end, when all gradients are there and the first block's activations still
are. Gradients of a single pass exist only in the third. Fragmentation, the CUDA context (about 0.5 GB) and libraries'
workspaces come on top.
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
    block: int  # activations of one block
    head: int
    logits: int
    backward: int  # what a block recomputes, and its gradients
    accumulated: bool  # gradients are there during forward passes

    @property
    def peak(self) -> int:
        full = (
            self.activations + self.head + max(self.logits, self.backward) + (self.gradients if self.accumulated else 0)
        )
        return self.weights + self.masters + self.optimizer + max(full, self.gradients + self.block + self.backward)

    def facts(self) -> dict[str, int]:
        """As JSON has it."""
        return {
            "weights": self.weights,
            "masters": self.masters,
            "gradients": self.gradients,
            "optimizer": self.optimizer,
            "activations": self.activations,
            "head": self.head,
            "logits": self.logits,
            "way_back": self.backward,
            "peak": self.peak,
        }


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
    update; `fused_linears` as `gristmill.trainer.model.quack.has_fused_linears` says, of layers neither fp8 nor
    split."""
    width = 4 if precision == "float32" else 2
    held_width = 4 if precision == "fp16" else width
    matrices, vectors = matrix_numbers(shape) // tensor, 2 * shape.hidden
    block = matrices + vectors
    root = shape.vocabulary * shape.hidden * (1 if shape.tied else 2) + shape.hidden
    P = shape.layers * block + root
    state = 4 * matrices * shape.layers + 8 * (P - matrices * shape.layers) if muon else 8 * P
    zero = zero if ranks > 1 else 0
    if zero <= 1:
        share = ranks if zero == 1 else 1
        weights = held_width * P
        masters = 4 * P // share if precision == "bf16" else 0
        # gristmill.trainer.step.zero
        in_place = ranks == 1 and passes == 1 and precision == "bf16" and not muon and not offload
        gradients = held_width * P if in_place else 4 * P + held_width * max(block, root)
    else:
        share = ranks
        weights = 4 * P // share + held_width * (P if zero == 2 else 2 * block + root)
        masters = 0
        gradients = 4 * P // share + (held_width + 4) * max(block, root)
        if offload:
            weights, gradients = weights - 4 * P // share, gradients - 4 * P // share
    optimizer = 0 if offload else state // share
    masters = 0 if offload else masters
    logits = min(tokens, LOGIT_ROWS) * shape.vocabulary * width
    head = (4 * shape.head_size + 3 * width * shape.hidden) * tokens + 4 * shape.vocabulary * shape.hidden
    block = tokens * kept_of_token(shape, width, recompute, tensor, fused_linears)
    recomputed = tokens * kept_of_token(shape, width, "none", tensor, fused_linears) - block
    backward = recomputed + tokens * 3 * width * (shape.mlp // tensor)
    return MemoryEstimate(
        weights, masters, gradients, optimizer, shape.layers * block, block, head, logits, backward, passes > 1
    )


def matrix_numbers(shape: DecoderShape) -> int:
    """Numbers in the matrices of one block."""
    return shape.hidden * (shape.head_size * (2 * shape.heads + 2 * shape.kv_heads) + 3 * shape.mlp)


def kept_of_token(
    shape: DecoderShape, width: int, recompute: Recompute, tensor: int = 1, fused_linears: bool = False
) -> int:
    """Bytes that one block saves of one token between its forward and its backward pass."""
    C, M, H = shape.hidden, shape.mlp // tensor, shape.heads // tensor
    Q, K = H * shape.head_size, shape.kv_heads // tensor * shape.head_size
    if recompute == "full":
        return width * (1 if fused_linears else 2) * C
    if recompute == "selective":
        return width * ((2 if fused_linears else 3) * C + 2 * Q + 2 * K + 2 * M) + 4 * H
    return width * (4 * C + 2 * Q + 2 * K + (2 if fused_linears else 3) * M) + 4 * (H + 2)
