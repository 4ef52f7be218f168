"""An encoder made ready to infer: fp8 on Hopper, int8, sparse weights, a GELU inside the matmul, attention by our own
kernel.

fp8 is `gristmill.classifiers.neural.fp8_linear`, int8 and sparse weights are `coded_linear`. The GELU in the matmul's
epilogue (cuBLASLt) is the one by tanh, at most 5e-4 from the exact one, which is less than the rounding of bf16 for
values above 0.13; it saves a pass over the widest activations.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gristmill.classifiers.card import JudgeError
from gristmill.classifiers.neural.coded_linear import CodedProjection, Int8Projection, SparseProjection
from gristmill.classifiers.neural.encoder import Encoder, Projection
from gristmill.classifiers.neural.error_compensation import is_two_of_four
from gristmill.classifiers.neural.fast_attention import PackedAttention, can_attend
from gristmill.classifiers.neural.fp8_linear import Fp8Gelu, Fp8Projection, can_fuse, largest_activations
from gristmill.trainer.model.attention import EVERYTHING

HALF_MOST = torch.finfo(torch.float16).max
InferencePrecision = Literal["float32", "bf16", "fp8", "int8", "sparse"]


def prepare_inference(encoder: Encoder, precision: InferencePrecision) -> Encoder:
    """The encoder as it infers in this precision: changed in place, fit for nothing else from then on.

    What only pooled tokens go through stays in float32, and where these are texts' first tokens, their own stream is
    computed beside the others', in float32 and fp16: their rounding would go straight into the scores, that of all
    others is averaged by attention (measured: docs/neural_judge.md). They are few.
    """
    encoder.eval().requires_grad_(False)
    int8 = {name: Int8Projection(plain) for name, plain in rounded_maps(encoder)} if precision == "int8" else {}
    decode(encoder)
    encoder.fix_distances()
    if precision == "sparse" and not all(is_two_of_four(plain.weight) for _, plain in rounded_maps(encoder)):
        raise JudgeError(
            "precision sparse is for judges of which two of every four weights are 0: judge compress --sparse"
        )
    if precision in ("bf16", "fp8", "sparse") or (int8 and encoder.tokens.weight.is_cuda):
        exact = {name: copy.deepcopy(encoder.get_submodule(name)) for name in _of_pooled_tokens(encoder)}
        fine = [_finer(block) for block in _wholly_used(encoder)] if encoder.reads_first_only else []
        encoder.to(torch.bfloat16)
        for name, module in exact.items():
            encoder.set_submodule(name, module)
        encoder.fine = nn.ModuleList(fine) if fine else None
    if precision == "fp8":
        if encoder.shape.family != "bert":
            raise JudgeError("fp8 is for encoders of BERT's family; others infer in bf16")
        bounds = largest_activations(encoder)
        _replace(encoder, lambda name, plain: Fp8Projection(plain, bounds[name]))
    if precision == "sparse":
        _replace(encoder, lambda name, plain: SparseProjection(plain))
    for name, module in int8.items():
        encoder.set_submodule(name, module)
    return encoder


def decode(encoder: Encoder) -> None:
    """Stored codes become float32 weights."""
    for name, module in list(encoder.named_modules()):
        if isinstance(module, CodedProjection):
            encoder.set_submodule(name, module.decoded())


def fuse(encoder: Encoder) -> None:
    """Takes what follows a matmul into it: the activation, in blocks that have a bf16 or fp8 one with bias and GELU;
    of fp8 also rounding and residual sums. Attention to whole texts is our own kernel's, in bf16, and answers in fp8
    where the matmul after it wants that."""
    gelu = encoder.shape.activation in ("gelu", "gelu_tanh")
    halves, attends = encoder.embedding_norm.weight.dtype == torch.bfloat16, can_attend(encoder.shape)
    for block in _wholly_used(encoder):
        if gelu and halves and type(block.up) is Projection and block.up.bias is not None:
            block.up, block.activation = GeluProjection(block.up), _identity
        matmuls = [getattr(block, name) for name in ("out", "up", "down")]
        if gelu and all(type(matmul) is Fp8Projection for matmul in matmuls) and can_fuse(block.up):
            block.out.fused = block.down.fused = True
            block.up, block.activation = Fp8Gelu(block.up, block.down), _identity
        if halves and attends and block.window == EVERYTHING:
            block.attention = PackedAttention(block.out.shrink if type(block.out) is Fp8Projection else None)


def _of_pooled_tokens(encoder: Encoder) -> list[str]:
    if not encoder.reads_first_only:
        return ["pooler"]
    last = f"blocks.{len(encoder.blocks) - 1}."
    norms = (
        ["output_norm"] if encoder.shape.family == "modernbert" else ["output_norm", "attention_norm"]
    )  # ModernBERT's other norm is for all tokens
    return ["pooler", "final_norm", *(last + name for name in ("out", "up", "down", *norms))]


def _wholly_used(encoder: Encoder) -> list[Any]:
    """The blocks that work on all tokens."""
    return list(encoder.blocks)[: -1 if encoder.reads_first_only else None]


def _identity(x: Tensor) -> Tensor:
    return x


def rounded_maps(encoder: Encoder) -> list[tuple[str, Projection]]:
    """The linear maps that all tokens go through, by name: those that have fewer bits where a precision has them."""
    exact = set(_of_pooled_tokens(encoder))
    return [
        (name, module)
        for name, module in encoder.blocks.named_modules(prefix="blocks")
        if isinstance(module, Projection)
        and name not in exact
        and not module.weight.shape[0] % 16
        and not module.weight.shape[1] % 16
    ]


def _replace(encoder: Encoder, made: Callable[[str, Projection], nn.Module]) -> None:
    for name, module in rounded_maps(encoder):
        encoder.set_submodule(name, made(name, module))


def _finer(block: Any) -> Any:
    """A copy for few tokens, of what follows attention."""
    fine = copy.deepcopy(block).float()
    fine.qkv = None
    for name in ("out", "up", "down"):
        setattr(fine, name, HalfProjection(getattr(fine, name)))
    return fine


class HalfProjection(nn.Module):
    """A linear map for few tokens, float32 before and behind it. Inside the matmul numbers have the 11 digits of fp16,
    where bf16 has 8 and matmuls in float32 take ten times as long."""

    def __init__(self, plain: Projection) -> None:
        super().__init__()
        self.register_buffer("weight", plain.weight.detach().half())
        self.register_buffer("bias", None if plain.bias is None else plain.bias.detach().half())

    def forward(self, x: Tensor) -> Tensor:
        x = x.clamp(-HALF_MOST, HALF_MOST).half()
        if x.is_cuda:
            answer = F.linear(x, self.weight, self.bias).float()
        else:  # the same numbers, but for the last rounding
            answer = F.linear(x.float(), self.weight.float(), None if self.bias is None else self.bias.float())
        return answer.clamp(
            -HALF_MOST, HALF_MOST
        )  # what was too large for fp16 is infinite here, and no number behind the next norm

    def added(self, x: Tensor, to: Tensor) -> Tensor:
        return to + self(x)


class GeluProjection(nn.Module):
    """GELU of a linear map, in one kernel."""

    def __init__(self, plain: Projection) -> None:
        super().__init__()
        if plain.bias is None:
            raise ValueError("a map without a bias has no kernel with GELU")
        self.register_buffer("weight", plain.weight.detach())
        self.register_buffer("bias", plain.bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        return linear_gelu(x, self.weight, self.bias)


@torch.library.custom_op("gristmill::linear_gelu", mutates_args=())
def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """An operator of its own, since torch.compile would take torch's apart again."""
    return torch._addmm_activation(bias, x, weight.t(), use_gelu=True)


@linear_gelu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])
