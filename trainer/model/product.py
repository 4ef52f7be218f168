"""`x @ weight.t()` as one operator, forward and both gradients: QuACK's matmuls where they are available and their
tiles fill the GPU to the end, else cuBLAS.

Under the heat of training QuACK's matmuls need less of the GPU's power. On one H200 at 81,920 tokens of the shape 1.3b,
milliseconds against cuBLAS: queries, keys and values 1.47 against 1.59, the gradient of their input 1.53 against 1.56,
that of their weight 1.40 against 1.55, the gradient of `out`'s input 1.03 against 1.08. Where tiles leave
multiprocessors idle at the end cuBLAS is faster, because it splits the sum (the gradient of `out`'s weight: 0.91
against 1.42).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gristmill.kernels.gpu.grid import processors
from gristmill.trainer.model.quack import by_quack, fits_weight, multiplies, quack, tile

ROWS, COLUMNS = 128, 192  # of a tile
FULL = 0.95  # of the multiprocessors' time, at the least


def apply_linear(x: Tensor, layer: nn.Linear) -> Tensor:
    """The layer's output. Layers that do more than a matmul are called."""
    if multiplies(layer) and _fits_matmul(x, layer.weight):
        return matmul(x, layer.weight)
    output: Tensor = layer(x)
    return output


def matmul(x: Tensor, weight: Tensor) -> Tensor:
    output: Tensor = _matmul(x, weight)
    return output


def matmul_into(out: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """The same without a backward, written into `out`."""
    if by_quack(x) and x.dtype == weight.dtype == out.dtype and fills(out.shape[0], out.shape[1], processors(x.device)):
        x, weight = _dense(x), _dense(weight)
        if all(aligned(tensor) for tensor in (x, weight, out)):
            chosen = tile(ROWS, COLUMNS, pingpong=True, cluster=(2, 1))
            quack().gemm_tuned.fn(x, weight.t(), out, config=chosen)
            return out
    return torch.mm(x, weight.t(), out=out)


def aligned(x: Tensor) -> bool:
    """Whether rows begin at multiples of 16 bytes, as Hopper's copies need: those of a vocabulary of 50,257 do not."""
    return x.data_ptr() % 16 == 0 and max(x.stride()) * x.element_size() % 16 == 0


def fills(rows: int, columns: int, multiprocessors: int) -> bool:
    """Whether the tiles of an output of this size leave no multiprocessor idle for long."""
    tiles = -(-rows // ROWS) * -(-columns // COLUMNS)
    rounds = -(-tiles // multiprocessors)
    return rounds > 1 and rows * columns >= FULL * rounds * multiprocessors * ROWS * COLUMNS


def _fits_matmul(x: Tensor, weight: Tensor) -> bool:
    return fits_weight(x, weight)


def _dense(x: Tensor) -> Tensor:
    return x if x.is_contiguous() or x.t().is_contiguous() else x.contiguous()


@torch.library.custom_op("gristmill::product", mutates_args=())
def _matmul(x: Tensor, weight: Tensor) -> Tensor:
    return matmul_into(x.new_empty(x.shape[0], weight.shape[0]), x, weight)


@_matmul.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, Tensor | None]:
    x, weight = ctx.saved_tensors
    needs_x, needs_weight = ctx.needs_input_grad
    return matmul(grad_output, weight.t()) if needs_x else None, matmul(
        grad_output.t(), x.t()
    ) if needs_weight else None


_matmul.register_autograd(_backward, setup_context=_setup_context)
