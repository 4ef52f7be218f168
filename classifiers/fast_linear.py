"""Linear maps for inference: fp8 on Hopper, int8 on CPUs, and a GELU inside the matrix product.

fp8: weights are rounded once, activations each time, with scales from bounds that the weights give, so that a token's numbers never depend on its
neighbours. (A scale for each row is more to work out: measured, 2.4 million tokens a second where bf16 does 2.7.) torch.compile fuses the rounding into what comes before. The GELU in the product's epilogue (cuBLASLt) is the one by
tanh, at most 5e-4 from the exact one, which is less than the rounding of bf16 for values above 0.13; it saves a pass over the widest activations.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from classifiers.card import JudgeError
from classifiers.encoder import BertBlock, Encoder, Projection

InferencePrecision = Literal["float32", "bf16", "fp8", "int8"]
LARGEST_FP8 = 448.0  # of e4m3


def prepared(encoder: Encoder, precision: InferencePrecision) -> Encoder:
    """The encoder as it infers in this precision: changed in place, fit for nothing else from then on.

    What only pooled tokens go through stays in float32: their rounding would go straight into the scores (measured on a judge trained on
    prose.parquet against page texts: docs/neural_judge.md), and they are few.
    """
    encoder.eval().requires_grad_(False)
    if precision in ("bf16", "fp8"):
        exact = {name: copy.deepcopy(encoder.get_submodule(name)) for name in _of_pooled_tokens(encoder)}
        encoder.to(torch.bfloat16)
        for name, module in exact.items():
            encoder.set_submodule(name, module)
    if precision == "fp8":
        if encoder.shape.family != "bert":
            raise JudgeError("fp8 is for encoders of BERT's family; others infer in bf16")
        bounds = largest_activations(encoder)
        _replace(encoder, lambda name, plain: Fp8Projection(plain, bounds[name]))
    if precision == "int8":
        _replace(encoder, lambda name, plain: Int8Projection(plain))
    return encoder


def fuse_gelu(encoder: Encoder) -> None:
    """Takes the activation into the product before it, in the blocks that have a bf16 one with bias and GELU."""
    for block in _wholly_used(encoder):
        if encoder.shape.activation in ("gelu", "gelu_tanh") and type(block.up) is Projection and block.up.bias is not None:
            block.up, block.activation = GeluProjection(block.up), _as_it_is


def _of_pooled_tokens(encoder: Encoder) -> list[str]:
    if not encoder.reads_first_only:
        return ["pooler"]
    last = f"blocks.{len(encoder.blocks) - 1}."
    norms = (
        ["output_norm", "attention_norm"] if encoder.shape.family == "bert" else ["output_norm"]
    )  # ModernBERT's other norm is for all tokens
    return ["pooler", "final_norm", *(last + name for name in ("out", "up", "down", *norms))]


def _wholly_used(encoder: Encoder) -> list[Any]:
    """The blocks that work on all tokens."""
    return list(encoder.blocks)[: -1 if encoder.reads_first_only else None]


def _as_it_is(x: Tensor) -> Tensor:
    return x


def _replace(encoder: Encoder, made: Callable[[str, Projection], nn.Module]) -> None:
    exact = set(_of_pooled_tokens(encoder))
    for name, module in list(encoder.blocks.named_modules(prefix="blocks")):
        if isinstance(module, Projection) and name not in exact and not module.weight.shape[0] % 16 and not module.weight.shape[1] % 16:
            encoder.set_submodule(name, made(name, module))


class GeluProjection(nn.Module):
    """GELU of a linear map, in one kernel."""

    def __init__(self, plain: Projection) -> None:
        super().__init__()
        assert plain.bias is not None
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


class Fp8Projection(nn.Module):
    """A linear map in e4m3, accumulated in float32, answered in bf16.

    One scale for all weights and one for all activations, both from the weights alone: no activation is larger than `bound`. e4m3 is a floating format, so that a wide bound costs
    no digits (values below 1e-5 of it are lost), and nothing has to be measured: a token's numbers never depend on its neighbours.
    """

    def __init__(self, plain: Projection, bound: float) -> None:
        super().__init__()
        weight = plain.weight.detach().float()
        weight_scale = weight.abs().amax().clamp(min=1e-12) / LARGEST_FP8
        rounded = (weight / weight_scale).to(torch.float8_e4m3fn)
        bias = None if plain.bias is None else plain.bias.detach().to(torch.bfloat16)
        outputs, inputs = rounded.shape
        self.keys = (
            (inputs, outputs) if outputs == 3 * inputs else None
        )  # of queries, keys and values in one, what a last layer asks of all tokens
        self.register_buffer("weight", rounded)
        self.register_buffer("bias", bias)
        self.register_buffer("weight_scale", weight_scale.reshape(1))
        self.register_buffer("scale", torch.tensor([bound / LARGEST_FP8], dtype=torch.float32, device=weight.device))
        self.register_buffer(
            "shrink", torch.tensor([LARGEST_FP8 / bound], dtype=torch.float32, device=weight.device)
        )  # no number: one compiled part for all layers
        if self.keys is not None:  # buffers of their own: the compiler does not take a part of one into this product
            self.register_buffer("keys_weight", rounded[inputs:].clone())
            self.register_buffer("keys_bias", None if bias is None else bias[inputs:].clone())

    def forward(self, x: Tensor) -> Tensor:
        return self.rows(x, 0, len(self.weight))

    def rows(self, x: Tensor, start: int, stop: int) -> Tensor:
        rounded = (x.float() * self.shrink).clamp(-LARGEST_FP8, LARGEST_FP8).to(torch.float8_e4m3fn)
        if (start, stop) == (0, len(self.weight)):
            weight, bias = self.weight, self.bias
        elif (start, stop) == self.keys:
            weight, bias = self.keys_weight, self.keys_bias
        else:
            weight, bias = self.weight[start:stop], None if self.bias is None else self.bias[start:stop]
        if not x.is_cuda:  # the same numbers, slowly
            answer = F.linear(rounded.float() * self.scale, weight.float() * self.weight_scale, None if bias is None else bias.float())
            return answer.to(torch.bfloat16)
        return torch._scaled_mm(
            rounded, weight.t(), scale_a=self.scale, scale_b=self.weight_scale, bias=bias, out_dtype=torch.bfloat16, use_fast_accum=True
        )


def largest_activations(encoder: Encoder) -> dict[str, float]:
    """By the name of each linear map of a BERT: what no number that goes into it can exceed. What a norm gives is at most as large as its gains allow, and of a vector of
    known length no product is longer than the rows it meets (Cauchy and Schwarz); attention only averages."""
    found = {}
    before = encoder.embedding_norm
    for number, block in enumerate(encoder.blocks):
        width = encoder.shape.width
        assert isinstance(block, BertBlock)
        values = _largest_answer(before, block.qkv.weight[2 * width :], block.qkv.bias[2 * width :])
        inner = _largest_answer(block.attention_norm, block.up.weight, block.up.bias)
        bounds = {"qkv": _largest_of(before), "out": values, "up": _largest_of(block.attention_norm), "down": inner}
        found |= {f"blocks.{number}.{name}": bound for name, bound in bounds.items()}
        before = block.output_norm
    return found


def _largest_of(norm: nn.LayerNorm) -> float:
    return float((norm.weight.detach().float().abs() * len(norm.weight) ** 0.5 + norm.bias.detach().float().abs()).max())


def _largest_answer(norm: nn.LayerNorm, weight: Tensor, bias: Tensor | None) -> float:
    length = norm.weight.detach().float().abs().max() * len(norm.weight) ** 0.5 + norm.bias.detach().float().norm()
    lengths = length * weight.detach().float().norm(dim=1)
    return float((lengths if bias is None else lengths + bias.detach().float().abs()).max())


class Int8Projection(nn.Module):
    """A linear map in int8 with int32 sums, for CPUs: weights with a scale for each output, activations with one for each token."""

    def __init__(self, plain: Projection) -> None:
        super().__init__()
        rounded, scale = rounded_to_int8(plain.weight.detach())
        self.register_buffer("weight", rounded.t().contiguous())
        self.register_buffer("scale", scale.t().contiguous())
        self.register_buffer("bias", None if plain.bias is None else plain.bias.detach().float())

    def forward(self, x: Tensor) -> Tensor:
        return self.rows(x, 0, self.weight.shape[1])

    def rows(self, x: Tensor, start: int, stop: int) -> Tensor:
        rounded, scale = rounded_to_int8(x)
        answer = torch._int_mm(rounded, self.weight[:, start:stop]).float().mul_(scale).mul_(self.scale[:, start:stop])
        return answer if self.bias is None else answer.add_(self.bias[start:stop])


def rounded_to_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    """int8, and float32 scales (rows x 1) by which it is to be multiplied."""
    x = x.float()
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
    return (x / scale).round_().to(torch.int8), scale
