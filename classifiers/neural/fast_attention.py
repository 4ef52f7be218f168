"""Attention for inference by a kernel of our own (`gristmill.kernels.gpu.packed_attention`): on an H200, at texts of
512 tokens, in 0.8 of `varlen_attn`'s time, and it can answer in fp8, as the matmul after it wants it."""

from __future__ import annotations

from importlib.util import find_spec

from torch import Tensor, nn

from gristmill.classifiers.neural.encoder import EncoderShape
from gristmill.kernels.gpu import plain


class PackedAttention(nn.Module):
    """From queries, keys and values as their matmul leaves them. `shrink`: of the matmul that follows, if that is in
    fp8."""

    def __init__(self, shrink: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("shrink", shrink)

    def forward(self, projected_T3HD: Tensor, cuts: Tensor, first_NHD: Tensor | None) -> Tensor:
        """`first_NHD` takes what first tokens find, not rounded."""
        q, k, v = projected_T3HD.unbind(1)
        if not q.is_cuda:
            return plain.packed_attention(q, k, v, cuts, self.shrink, first_NHD)
        from gristmill.kernels.gpu.packed_attention import packed_attention

        return packed_attention(q, k, v, cuts, self.shrink, first_NHD)


def can_attend(shape: EncoderShape) -> bool:
    """Triton is not there on every system that has CUDA. Scores of distances are not in the kernel."""
    return (
        shape.family != "deberta" and shape.width // shape.heads in plain.HEAD_SIZES and find_spec("triton") is not None
    )
