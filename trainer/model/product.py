"""`x @ weight.t()` as one operator, forward and both ways back: QuACK's products where they are there and their tiles
fill the card to the end, else cuBLAS's.

Under the heat of training QuACK's need less of the card's power. On one H200 at 81,920 tokens of the shape 1.3b,
milliseconds beside cuBLAS's: queries, keys and values 1.47 beside 1.59, the slope of their input 1.53 beside 1.56, that
of their weight 1.40 beside 1.55, the slope of what `out` is given 1.03 beside 1.08. Where tiles leave multiprocessors
idle at the end cuBLAS is faster, as it cuts the sum (the slope of `out`'s weight: 0.91 beside 1.42).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gristmill.kernels.gpu.grid import processors
from gristmill.trainer.model.quack import by_quack, fits_weight, multiplies, quack, tile

ROWS, COLUMNS = 128, 192  # of a tile
FULL = 0.95  # of the multiprocessors' time, at the least


def multiplied(x: Tensor, layer: nn.Linear) -> Tensor:
    """What the layer gives. Those that do more than multiply are called."""
    if multiplies(layer) and _for_products(x, layer.weight):
        return product(x, layer.weight)
    answer: Tensor = layer(x)
    return answer


def product(x: Tensor, weight: Tensor) -> Tensor:
    answer: Tensor = _product(x, weight)
    return answer


def product_into(answer: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """The same, without a way back, where the answer is to stand."""
    if (
        by_quack(x)
        and x.dtype == weight.dtype == answer.dtype
        and fills(answer.shape[0], answer.shape[1], processors(x.device))
    ):
        x, weight = _dense(x), _dense(weight)
        if all(aligned(tensor) for tensor in (x, weight, answer)):
            chosen = tile(ROWS, COLUMNS, pingpong=True, cluster=(2, 1))
            quack().gemm_tuned.fn(x, weight.t(), answer, config=chosen)
            return answer
    return torch.mm(x, weight.t(), out=answer)


def aligned(x: Tensor) -> bool:
    """Whether its lines begin at multiples of 16 bytes, which Hopper's copies want: those of a vocabulary of 50,257 do
    not."""
    return x.data_ptr() % 16 == 0 and max(x.stride()) * x.element_size() % 16 == 0


def fills(rows: int, columns: int, multiprocessors: int) -> bool:
    """Whether tiles of an answer of this size leave no multiprocessor idle for long."""
    tiles = -(-rows // ROWS) * -(-columns // COLUMNS)
    rounds = -(-tiles // multiprocessors)
    return rounds > 1 and rows * columns >= FULL * rounds * multiprocessors * ROWS * COLUMNS


def _for_products(x: Tensor, weight: Tensor) -> bool:
    return fits_weight(x, weight)


def _dense(x: Tensor) -> Tensor:
    return x if x.is_contiguous() or x.t().is_contiguous() else x.contiguous()


@torch.library.custom_op("gristmill::product", mutates_args=())
def _product(x: Tensor, weight: Tensor) -> Tensor:
    return product_into(x.new_empty(x.shape[0], weight.shape[0]), x, weight)


@_product.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _slopes(ctx: Any, slope: Tensor) -> tuple[Tensor | None, Tensor | None]:
    x, weight = ctx.saved_tensors
    to_x, to_weight = ctx.needs_input_grad
    return product(slope, weight.t()) if to_x else None, product(slope.t(), x.t()) if to_weight else None


_product.register_autograd(_slopes, setup_context=_keep)
