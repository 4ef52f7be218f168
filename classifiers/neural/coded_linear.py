"""Linear maps of compressed judges: weights as whole numbers of 8 or 4 bits, matmuls in int8, and on sparse tensor
cores those of which two of every four weights are 0.

On CPUs the int8 matmul is oneDNN's (`torch.ops.onednn.qlinear_pointwise`). Measured on one core with AVX2 (EPYC 7003,
4,096 rows, width 384): 150 billion multiplications and additions a second where float32 does 70 to 80; FBGEMM 80 to
145, `torch._int_mm` 2, since it has no kernel there. Without VNNI such a matmul adds two products in 16 bits, and what
overflows is cut; codes up to 63 never overflow, so that every CPU finds the same sums.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gristmill.classifiers.neural.encoder import Projection
from gristmill.classifiers.neural.error_compensation import LARGEST, Codes, nearest_codes

FEWEST_ROWS = 32  # of an int8 matmul on CUDA, which refuses fewer than 17


class CodedProjection(Projection):
    """A linear map as it is stored: int8 codes, or two of 4 bits in a byte, and a scale for each output."""

    def __init__(self, codes: Codes, bias: Tensor | None, four_bits: bool) -> None:
        nn.Module.__init__(self)
        whole = codes.codes_OI.detach()
        self.register_buffer(
            "codes", (whole[:, ::2] & 15 | whole[:, 1::2] << 4).view(torch.uint8) if four_bits else whole
        )
        self.register_buffer("scale", codes.scale_O1.detach().float())
        self.register_buffer("bias", None if bias is None else bias.detach().float())

    @classmethod
    def like(cls, plain: Projection, four_bits: bool) -> CodedProjection:
        """One of the same shape, to load into."""
        return cls(
            Codes(torch.zeros_like(plain.weight, dtype=torch.int8), plain.weight[:, :1].abs()), plain.bias, four_bits
        )

    @property
    def whole(self) -> Codes:
        codes: Tensor = self.codes
        if codes.dtype == torch.uint8:
            both = codes.view(torch.int8)
            codes = torch.stack([(both << 4) >> 4, both >> 4], -1).flatten(1)
        return Codes(codes, self.scale)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        return self.whole.weight

    def decoded(self) -> Projection:
        plain = Projection(self.whole.codes_OI.shape[1], len(self.scale), self.bias is not None)
        plain.weight.data = self.weight
        if self.bias is not None:
            plain.bias.data = self.bias  # type: ignore[union-attr]
        return plain.requires_grad_(False)


class Int8Projection(nn.Module):
    """A linear map in int8 with int32 sums: weights with a scale for each output, activations with one for each
    token."""

    def __init__(self, plain: Projection) -> None:
        super().__init__()
        codes = (
            plain.whole if isinstance(plain, CodedProjection) else nearest_codes(plain.weight.detach(), LARGEST["int8"])
        )
        self.register_buffer("codes", codes.codes_OI.contiguous())
        self.register_buffer("scale", codes.scale_O1[:, 0].contiguous())
        self.register_buffer("bias", None if plain.bias is None else plain.bias.detach().float())
        self.packed: dict[tuple[int, int], Tensor] = {}  # for oneDNN, by outputs

    def forward(self, x: Tensor) -> Tensor:
        return self.rows(x, 0, len(self.codes))

    def added(self, x: Tensor, to: Tensor) -> Tensor:
        return to + self(x)

    def rows(self, x: Tensor, start: int, stop: int) -> Tensor:
        rounded, scale = rounded_to_int8(x)
        if x.is_cuda:
            sums = int8_matmul(rounded, self.codes[start:stop]) * self.scale[start:stop]
        else:
            sums = self._on_cpu(rounded, start, stop)
        if self.bias is None:
            return sums.mul_(scale).to(x.dtype)
        room = None if x.is_cuda else sums  # a CPU pays for fresh memory
        return torch.addcmul(self.bias[start:stop], sums, scale, out=room).to(x.dtype)

    def _on_cpu(self, rounded: Tensor, start: int, stop: int) -> Tensor:
        if (start, stop) not in self.packed:
            self.packed[start, stop] = torch.ops.onednn.qlinear_prepack(self.codes[start:stop].contiguous(), None)
        packed, scale = self.packed[start, stop], self.scale[start:stop]
        none = torch.zeros(stop - start, dtype=torch.int32)
        # activations without a sign and with a zero point of 128 are what oneDNN has known longest
        unsigned = (rounded ^ -128).view(torch.uint8)
        sums: Tensor = torch.ops.onednn.qlinear_pointwise(
            unsigned, 1.0, 128, packed, scale, none, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return sums


def int8_matmul(x: Tensor, weight_OI: Tensor) -> Tensor:
    """float32 of exact int32 sums, as CUDA has the matmul: at least 17 rows, the weight by columns."""
    rows = len(x)
    if rows < FEWEST_ROWS:
        x = F.pad(x, (0, 0, 0, FEWEST_ROWS - rows))
    return torch._int_mm(x, weight_OI.t())[:rows].float()


def rounded_to_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    """int8, and float32 scales (rows x 1) by which it is to be multiplied."""
    x = x.float()
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
    return (x / scale).round_().to(torch.int8), scale


class SparseProjection(nn.Module):
    """A linear map in bf16 on sparse tensor cores, which skip the half of the weights that is 0. On a CPU the same
    numbers by a dense matmul."""

    def __init__(self, plain: Projection) -> None:
        super().__init__()
        self.register_buffer("weight", plain.weight.detach())
        self.register_buffer("bias", None if plain.bias is None else plain.bias.detach())
        self.packed: dict[tuple[int, int], Tensor] = {}  # by outputs

    def forward(self, x: Tensor) -> Tensor:
        return self.rows(x, 0, len(self.weight))

    def added(self, x: Tensor, to: Tensor) -> Tensor:
        return to + self(x)

    def rows(self, x: Tensor, start: int, stop: int) -> Tensor:
        weight, bias = self.weight[start:stop], None if self.bias is None else self.bias[start:stop]
        if x.is_cuda:
            if (start, stop) not in self.packed:
                self.packed[start, stop] = _sparse(weight)
            weight = self.packed[start, stop]
        return F.linear(x, weight, bias).contiguous()  # cuSPARSELt's is turned, unless it turns it back itself


def _sparse(weight_OI: Tensor) -> Any:
    packed: Any = torch.sparse.to_sparse_semi_structured(weight_OI.contiguous())
    packed.fuse_transpose_cusparselt = True  # a matmul answers row by row
    return packed
