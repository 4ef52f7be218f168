"""QuACK's matmuls, which flash-attn-4 brings along: whether they are available, and how they are called. On Hopper
alone, in half precision."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor, nn

from gristmill.kernels.base.code_cache import cache_folder

TESTED = "0.4.1"  # of quack-kernels: what is called here is no interface that it promises to keep
HALVES = (torch.bfloat16, torch.float16)
HOPPER = 9  # compute capability, and no other: the tiles that are asked for are Hopper's
# Tiles of 128 x 256 or so, three for each multiprocessor: with fewer many stand idle at the end, and cuBLAS cuts the
# sum instead.
FEW_TILES = 400


def has_fused_linears(device: torch.device) -> bool:
    """Whether linear layers and the sums around them are single operators on this device, for weights of half
    precision."""
    return device.type == "cuda" and _available(torch.cuda.current_device() if device.index is None else device.index)


def multiplies(layer: nn.Linear) -> bool:
    """Whether the layer is a matmul and no more: layers in fp8, split over ranks, or with biases are called instead."""
    return type(layer) is nn.Linear and layer.bias is None


def fits(x: Tensor, *others: Tensor) -> bool:
    return by_quack(x) and x.ndim == 2 and x.shape[0] > 0 and all(other.dtype == x.dtype for other in others)


def fits_weight(x: Tensor, weight: Tensor, *others: Tensor) -> bool:
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
