"""Linear maps in fp8 for inference, of BERT's family: weights are rounded once, activations each time, with scales from
bounds that the weights give.

A token's numbers never depend on its neighbours then. (A scale for each row is more to work out: measured, 2.4 million
tokens a second where bf16 does 2.7.) torch.compile fuses the rounding into what comes before; where cuBLASLt can be
called directly (`gristmill.kernels.gpu.cublaslt`), the widest matmul ends in GELU and in the rounding for the next,
and matmuls that go into the residual stream begin with it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gristmill.classifiers.neural.encoder import BertBlock, Encoder, Projection
from gristmill.kernels.gpu import cublaslt, plain
from gristmill.kernels.gpu.plain import FP8, LARGEST


class Fp8Projection(nn.Module):
    """A linear map in e4m3, accumulated in float32, answered in bf16.

    One scale for all weights and one for all activations, both from the weights alone: no activation is larger than
    `bound`. e4m3 is a floating format, so that a wide bound costs no digits (values below 1e-5 of it are lost), and
    nothing has to be measured: a token's numbers never depend on its neighbours.
    """

    def __init__(self, exact: Projection, bound: float) -> None:
        super().__init__()
        weight = exact.weight.detach().float()
        weight_scale = weight.abs().amax().clamp(min=1e-12) / LARGEST
        rounded = (weight / weight_scale).to(FP8)
        bias = None if exact.bias is None else exact.bias.detach().to(torch.bfloat16)
        self.fused = False  # whether matmuls end in what comes after them
        outputs, inputs = rounded.shape
        self.keys = (
            (inputs, outputs) if outputs == 3 * inputs else None
        )  # of queries, keys and values in one, what a last layer asks of all tokens
        self.register_buffer("weight", rounded)
        self.register_buffer("bias", bias)
        self.register_buffer("weight_scale", weight_scale.reshape(1))
        self.register_buffer("scale", torch.tensor([bound / LARGEST], dtype=torch.float32, device=weight.device))
        self.register_buffer(
            "shrink", torch.tensor([LARGEST / bound], dtype=torch.float32, device=weight.device)
        )  # no number: one compiled part for all layers
        if self.keys is not None:  # buffers of their own: the compiler does not take a part of one into this matmul
            self.register_buffer("keys_weight", rounded[inputs:].clone())
            self.register_buffer("keys_bias", None if bias is None else bias[inputs:].clone())

    def forward(self, x: Tensor) -> Tensor:
        return self.rows(x, 0, len(self.weight))

    def added(self, x: Tensor, to: Tensor) -> Tensor:
        """`to` and the answer."""
        if not self.fused:
            return to + self(x)
        total: Tensor = fp8_added(self.rounded(x), self.weight, self.bias, self.scale, self.weight_scale, to)
        return total

    def rounded(self, x: Tensor) -> Tensor:
        """In fp8, unless the matmul before has seen to that."""
        return x if x.dtype == FP8 else plain.rounded(x, self.shrink)

    def rows(self, x: Tensor, start: int, stop: int) -> Tensor:
        rounded = self.rounded(x)
        if (start, stop) == (0, len(self.weight)):
            weight, bias = self.weight, self.bias
        elif (start, stop) == self.keys:
            weight, bias = self.keys_weight, self.keys_bias
        else:
            weight, bias = self.weight[start:stop], None if self.bias is None else self.bias[start:stop]
        if not x.is_cuda:  # the same numbers, slowly
            answer = F.linear(
                rounded.float() * self.scale, weight.float() * self.weight_scale, None if bias is None else bias.float()
            )
            return answer.to(torch.bfloat16)
        return torch._scaled_mm(
            rounded,
            weight.t(),
            scale_a=self.scale,
            scale_b=self.weight_scale,
            bias=bias,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )


class Fp8Gelu(nn.Module):
    """GELU (by tanh) of a linear map, rounded for the next one, in one kernel."""

    def __init__(self, up: Fp8Projection, down: Fp8Projection) -> None:
        super().__init__()
        self.up = up
        self.register_buffer("to_shrink", down.shrink)

    def forward(self, x: Tensor) -> Tensor:
        up = self.up
        rounded: Tensor = fp8_gelu(up.rounded(x), up.weight, up.bias, up.scale, up.weight_scale, self.to_shrink)
        return rounded


def can_fuse(up: Fp8Projection) -> bool:
    """On a CPU the reference implementations do, for tests."""
    (inner, width), device = up.weight.shape, up.weight.device
    return device.type == "cpu" or cublaslt.works(device.index, width, inner)


@torch.library.custom_op("gristmill::fp8_gelu", mutates_args=())
def fp8_gelu(
    x8: Tensor, weight8: Tensor, bias: Tensor, x_scale: Tensor, weight_scale: Tensor, shrink: Tensor
) -> Tensor:
    matmul = cublaslt.gelu_rounded if x8.is_cuda else cublaslt.gelu_rounded_plain
    return matmul(x8, weight8, bias, x_scale, weight_scale, shrink)


@fp8_gelu.register_fake
def _(x8: Tensor, weight8: Tensor, *others: Tensor) -> Tensor:
    return x8.new_empty(x8.shape[0], weight8.shape[0])


@torch.library.custom_op("gristmill::fp8_added", mutates_args=())
def fp8_added(x8: Tensor, weight8: Tensor, bias: Tensor, x_scale: Tensor, weight_scale: Tensor, to: Tensor) -> Tensor:
    matmul = cublaslt.linear_added if x8.is_cuda else cublaslt.linear_added_plain
    return matmul(x8, weight8, bias, x_scale, weight_scale, to)


@fp8_added.register_fake
def _(x8: Tensor, weight8: Tensor, bias: Tensor, x_scale: Tensor, weight_scale: Tensor, to: Tensor) -> Tensor:
    return torch.empty_like(to, memory_format=torch.contiguous_format)


def largest_activations(encoder: Encoder) -> dict[str, float]:
    """By the name of each linear map of a BERT: what no number that goes into it can exceed. What a norm gives is at
    most as large as its gains allow, and of a vector of known length no matmul is longer than the rows it meets
    (Cauchy and Schwarz); attention only averages."""
    bounds_by_name = {}
    before = encoder.embedding_norm
    for number, block in enumerate(encoder.blocks):
        width = encoder.shape.width
        if not isinstance(block, BertBlock):
            raise TypeError(f"blocks.{number} is a {type(block).__name__}; bounds are known of a BERT's alone")
        values = _largest_answer(before, block.qkv.weight[2 * width :], block.qkv.bias[2 * width :])
        inner = _largest_answer(block.attention_norm, block.up.weight, block.up.bias)
        bounds = {"qkv": _largest_of(before), "out": values, "up": _largest_of(block.attention_norm), "down": inner}
        bounds_by_name |= {f"blocks.{number}.{name}": bound for name, bound in bounds.items()}
        before = block.output_norm
    return bounds_by_name


def _largest_of(norm: nn.LayerNorm) -> float:
    return float(
        (norm.weight.detach().float().abs() * len(norm.weight) ** 0.5 + norm.bias.detach().float().abs()).max()
    )


def _largest_answer(norm: nn.LayerNorm, weight: Tensor, bias: Tensor | None) -> float:
    length = norm.weight.detach().float().abs().max() * len(norm.weight) ** 0.5 + norm.bias.detach().float().norm()
    lengths = length * weight.detach().float().norm(dim=1)
    return float((lengths if bias is None else lengths + bias.detach().float().abs()).max())
