"""The decoder's matmuls, with what surrounds them in their epilogues: linear layers, sums with the residual stream, and
SwiGLU. On Hopper, in half precision, by QuACK, which flash-attn-4 brings along; elsewhere plain torch computes the
same, in any precision.

Under the heat of training QuACK's matmuls need less of the GPU's power. On one H200 at 81,920 tokens of the shape 1.3b,
milliseconds against cuBLAS: queries, keys and values 1.47 against 1.59, the gradient of their input 1.53 against 1.56,
that of their weight 1.40 against 1.55, the gradient of `out`'s input 1.03 against 1.08. Where tiles leave
multiprocessors idle at the end cuBLAS is faster, because it splits the sum (the gradient of `out`'s weight: 0.91
against 1.42).

A block has two sums with the residual stream. In a matmul's epilogue they save the next norm a read and a write.
Elsewhere the layer's output is passed to the next norm beside the residual stream, and the norm adds it in its own pass
over memory (`gristmill.trainer.model.fused.add_rms_norm`). So a sum here is the residual stream and an addend that is
still to be added, or None.

A matmul with SwiGLU in its epilogue saves one read of gate and up. In backward, the gradient's matmul with SwiGLU's
backward in its epilogue saves one write and one read of the gradient between them; SwiGLU's output is recomputed there
and not saved. On one H200, 32,768 tokens of the shape 1.3b: forward 3.07 ms against 3.82 for cuBLAS and our own SwiGLU,
backward 1.98 against 2.45 (the matmuls alone: 3.11 and 1.56). QuACK wants gate and up interleaved (a gate, its up, the
next gate). The weight stays as checkpoints have it, gates first: a layout argument makes the matmuls read and write it
so, and only `both`, which nobody else sees, is interleaved.

T tokens, C hidden width, M inner width.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor, nn

from gristmill.kernels.base.code_cache import cache_folder
from gristmill.kernels.gpu import plain
from gristmill.kernels.gpu.grid import processors
from gristmill.trainer.model.fused import swiglu

Sum = tuple[Tensor, Tensor | None]

TESTED = "0.4.1"  # of quack-kernels: what is called here is no interface that it promises to keep
HALVES = (torch.bfloat16, torch.float16)
HOPPER = 9  # compute capability, and no other: the tiles that are asked for are Hopper's
# Tiles of 128 x 256 or so, three for each multiprocessor: with fewer many stand idle at the end, and cuBLAS cuts the
# sum instead.
FEW_TILES = 400
ROWS, COLUMNS = 128, 192  # of a tile
FULL = 0.95  # of the multiprocessors' time, at the least


# --- QuACK ------------------------------------------------------------------------------------------------------------


def has_fused_linears(device: torch.device) -> bool:
    """Whether linear layers and the sums around them are single operators on this device, for weights of half
    precision."""
    return device.type == "cuda" and _available(torch.cuda.current_device() if device.index is None else device.index)


def multiplies(layer: nn.Linear) -> bool:
    """Whether the layer is a matmul and no more: layers in fp8, cut into parts, or with biases are called instead."""
    return type(layer) is nn.Linear and layer.bias is None


def fits(x: Tensor, *others: Tensor) -> bool:
    return by_quack(x) and x.ndim == 2 and x.shape[0] > 0 and all(other.dtype == x.dtype for other in others)


def _fits_matmul(x: Tensor, weight: Tensor, *others: Tensor) -> bool:
    """Sizes, too, are such that lines begin at multiples of 16 bytes."""
    return weight.shape[0] % 16 == weight.shape[1] % 16 == 0 and fits(x, weight, *others)


def by_quack(x: Tensor) -> bool:
    """Otherwise plain torch computes it, in any precision: what tests on a CPU see. torch.compile takes the answer as a
    constant."""
    return x.is_cuda and x.dtype in HALVES and bool(_available_on(x.device.index))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _available_on(card: int) -> bool:
    return _available(card)


@cache
def _available(card: int) -> bool:
    try:
        return version("quack-kernels") == TESTED and torch.cuda.get_device_capability(card)[0] == HOPPER
    except PackageNotFoundError:
        return False


def many_tiles(rows: int, columns: int) -> bool:
    return (rows // 128) * (columns // 256) >= FEW_TILES


def quack() -> Any:
    """With its compiled code in this user's own folder: by default it takes one below /tmp that anyone may have created
    first."""
    import quack.gemm_interface  # type: ignore[import-not-found]
    from quack import cache_utils

    if cache_utils.CACHE_DIR is None:
        cache_utils.CACHE_DIR = str(cache_folder() / "quack")
    return quack.gemm_interface


def tile(m: int, n: int, pingpong: bool, cluster: tuple[int, int]) -> Any:
    """Chosen by measurement (docs/log.md) and not searched for at run time, because each candidate takes seconds to
    compile."""
    from quack.gemm_config import GemmConfig  # type: ignore[import-not-found]

    return GemmConfig(
        tile_m=m, tile_n=n, pingpong=pingpong, cluster_m=cluster[0], cluster_n=cluster[1], is_dynamic_persistent=False
    )


# --- linear layers ----------------------------------------------------------------------------------------------------


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


def _dense(x: Tensor) -> Tensor:
    return x if x.is_contiguous() or x.t().is_contiguous() else x.contiguous()


@torch.library.custom_op("gristmill::product", mutates_args=())
def _matmul(x: Tensor, weight: Tensor) -> Tensor:
    return matmul_into(x.new_empty(x.shape[0], weight.shape[0]), x, weight)


@_matmul.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


def _save_matmul(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _matmul_backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, Tensor | None]:
    x, weight = ctx.saved_tensors
    needs_x, needs_weight = ctx.needs_input_grad
    return matmul(grad_output, weight.t()) if needs_x else None, matmul(
        grad_output.t(), x.t()
    ) if needs_weight else None


_matmul.register_autograd(_matmul_backward, setup_context=_save_matmul)


# --- sums with the residual stream ------------------------------------------------------------------------------------


def add_linear(x: Tensor, layer: nn.Linear, residual_TC: Tensor) -> Sum:
    if multiplies(layer) and _fits_matmul(x, layer.weight, residual_TC):
        total: Tensor = _add_linear(x, layer.weight, residual_TC)
        return total, None
    return residual_TC, layer(x)


@torch.library.custom_op("gristmill::added", mutates_args=())
def _add_linear(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    return add_matmul(x, weight, residual)


@_add_linear.register_fake
def _(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    return torch.empty_like(residual, memory_format=torch.contiguous_format)


def _save_added(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])


def _added_backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, ...]:
    x, weight = ctx.saved_tensors
    return matmul(grad_output, weight.t()), matmul(grad_output.t(), x.t()), grad_output


_add_linear.register_autograd(_added_backward, setup_context=_save_added)


def add_matmul(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    """`residual + x @ weight.t()`, rounded once."""
    if not by_quack(x) or not many_tiles(x.shape[0], weight.shape[0]):
        return torch.addmm(residual, x, weight.t())
    total = torch.empty_like(residual, memory_format=torch.contiguous_format)
    chosen = tile(128, 192, pingpong=True, cluster=(2, 1))
    quack().gemm_tuned.fn(x.contiguous(), weight.t(), total, C=residual.contiguous(), config=chosen)
    return total


# --- SwiGLU between two matmuls ---------------------------------------------------------------------------------------


def gated_mlp(x_TC: Tensor, gate_up: nn.Linear, down: nn.Linear, residual_TC: Tensor) -> Sum:
    """Layers that do more than a matmul (fp8, cut into parts, biases) are called one by one."""
    if multiplies(gate_up) and multiplies(down) and _fits_gated_mlp(x_TC, gate_up.weight, down.weight, residual_TC):
        total: Tensor = _gated_mlp(x_TC, gate_up.weight, down.weight, residual_TC)[0]
        return total, None
    return residual_TC, down(swiglu(gate_up(x_TC)))


def _fits_gated_mlp(x: Tensor, gate_up: Tensor, down: Tensor, residual: Tensor) -> bool:
    return gate_up.shape[0] % 32 == 0 and gate_up.shape[1] % 16 == 0 and fits(x, gate_up, down, residual)


@torch.library.custom_op("gristmill::gated_mlp", mutates_args=())
def _gated_mlp(x: Tensor, gate_up: Tensor, down: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    """The sum, and gate and up of each token interleaved, T x 2M, for backward."""
    both, inner = _gate_up_swiglu(x, gate_up)
    return add_matmul(inner, down, residual), both


@_gated_mlp.register_fake
def _(x: Tensor, gate_up: Tensor, down: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(residual, memory_format=torch.contiguous_format), x.new_empty(x.shape[0], gate_up.shape[0])


@torch.library.custom_op("gristmill::gated_mlp_backward", mutates_args=())
def _gated_mlp_backward(
    grad_output: Tensor, x: Tensor, gate_up: Tensor, down: Tensor, both: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    grad_both, inner = _swiglu_backward(grad_output, down, both)
    grad_down = grad_output.t() @ inner
    del inner  # as large as the largest tensor here: freed before the next is allocated
    return _grad_input(grad_both, gate_up), _grad_weight(grad_both, x), grad_down


@_gated_mlp_backward.register_fake
def _(grad_output: Tensor, x: Tensor, gate_up: Tensor, down: Tensor, both: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    grad_x, grad_gate_up, grad_down = (
        torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in (x, gate_up, down)
    )
    return grad_x, grad_gate_up, grad_down


def _save_gated_mlp(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:3], output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _gated_mlp_gradients(ctx: Any, grad_output: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    return (
        (None, None, None, None)
        if grad_output is None
        else (*_gated_mlp_backward(grad_output.contiguous(), *ctx.saved_tensors), grad_output)
    )


_gated_mlp.register_autograd(_gated_mlp_gradients, setup_context=_save_gated_mlp)


def _gate_up_swiglu(x: Tensor, gate_up: Tensor) -> tuple[Tensor, Tensor]:
    """Gate and up interleaved, and SwiGLU of them."""
    x = x.contiguous()
    if not by_quack(x):
        both = x @ gate_up.t()
        return interleave(both, 1), plain.swiglu(both)
    both, inner = x.new_empty(x.shape[0], gate_up.shape[0]), x.new_empty(x.shape[0], gate_up.shape[0] // 2)
    chosen = tile(128, 192, pingpong=True, cluster=(1, 2))
    quack().gemm_gated_tuned.fn(x, gate_up.t(), both, inner, activation="swiglu", config=chosen, concat_layout=("B",))
    return both, inner


def _swiglu_backward(grad_output: Tensor, down: Tensor, both: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of gate and up, interleaved, and SwiGLU's output again."""
    if not by_quack(grad_output):
        gate, up = plain.widened(deinterleave(both, 1)).chunk(2, dim=1)
        grad_inner, sigmoid = plain.widened(grad_output @ down), torch.sigmoid(gate)
        gradients = [grad_inner * up * sigmoid * (1 + gate * (1 - sigmoid)), grad_inner * gate * sigmoid]
        return interleave(torch.cat(gradients, dim=1), 1).to(both.dtype), (gate * sigmoid * up).to(both.dtype)
    grad_both, inner = torch.empty_like(both), both.new_empty(both.shape[0], both.shape[1] // 2)
    chosen = tile(128, 160, pingpong=True, cluster=(2, 1))
    quack().gemm_dgated_tuned.fn(
        grad_output, down, both, grad_both, inner, activation="swiglu", dynamic_scheduler=False, config=chosen
    )
    return grad_both, inner


def _grad_input(grad_both: Tensor, gate_up: Tensor) -> Tensor:
    if not by_quack(grad_both):
        return grad_both @ interleave(gate_up, 0)
    grad_input = grad_both.new_empty(grad_both.shape[0], gate_up.shape[1])
    chosen = tile(128, 256, pingpong=False, cluster=(2, 1))
    quack().gemm_tuned.fn(grad_both, gate_up, grad_input, config=chosen, concat_layout=("B",))
    return grad_input


def _grad_weight(grad_both: Tensor, x: Tensor) -> Tensor:
    both, width = grad_both.shape[1], x.shape[1]
    if not by_quack(x) or not many_tiles(both, width):
        return deinterleave(grad_both.t() @ x, 0)
    grad_weight = x.new_empty(both, width)
    chosen = tile(128, 256, pingpong=False, cluster=(1, 2))
    quack().gemm_tuned.fn(grad_both.t(), x.contiguous(), grad_weight, config=chosen, concat_layout=("out",))
    return grad_weight


def interleave(x: Tensor, dim: int) -> Tensor:
    """All gates, then all ups -> a gate, its up, the next gate."""
    pairs = x.reshape(*x.shape[:dim], 2, -1, *x.shape[dim + 1 :])
    return pairs.transpose(dim, dim + 1).reshape(x.shape)


def deinterleave(x: Tensor, dim: int) -> Tensor:
    """A gate, its up, the next gate -> all gates, then all ups."""
    pairs = x.reshape(*x.shape[:dim], -1, 2, *x.shape[dim + 1 :])
    return pairs.transpose(dim, dim + 1).reshape(x.shape)
