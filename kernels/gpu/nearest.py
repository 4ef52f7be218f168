"""The nearest centre of each vector of 8-bit numbers on the GPU, with the answer of `gristmill.kernels.vectors.int8`.

A program holds some vectors and goes over all centres: integer products in tensor cores, the best so far in registers,
so that no matrix of cosines is ever written. Products and their sums are whole numbers, and each is scaled by one
rounding, so places equal those of the CPU bit for bit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from gristmill.kernels.base.types import Array
from gristmill.kernels.gpu.transfer import default_device
from gristmill.kernels.vectors.int8 import inverse_lengths


class NearestTile(NamedTuple):
    """Vectors and centres of a step of a program, numbers of a vector at a time, and warps."""

    rows: int = 128
    centres: int = 128
    numbers: int = 128
    warps: int = 8
    stages: int = 3


TILE = NearestTile()
PIECE = 1 << 20  # vectors that are on the device at a time
FEWEST = 32  # numbers of an integer product in tensor cores


def nearest(vectors_NW: Array, centres_KW: Array, device: torch.device | None = None) -> tuple[Array, Array]:
    """As `gristmill.kernels.vectors.int8.nearest`."""
    device = device or default_device()
    centres = torch.from_numpy(np.ascontiguousarray(centres_KW)).to(device)
    inverse = torch.from_numpy(inverse_lengths(centres_KW)).to(device)
    place, best = np.zeros(len(vectors_NW), np.int32), np.zeros(len(vectors_NW), np.float32)
    for start in range(0, len(vectors_NW), PIECE):
        piece = torch.from_numpy(np.ascontiguousarray(vectors_NW[start : start + PIECE])).to(device)
        places, scaled = nearest_on_device(piece, centres, inverse)
        place[start : start + len(piece)] = places.cpu().numpy()
        best[start : start + len(piece)] = scaled.cpu().numpy()
    return place, (best * inverse_lengths(vectors_NW)).astype(np.float32)


def nearest_on_device(
    vectors_NW: Tensor, centres_KW: Tensor, inverse_K: Tensor, tile: NearestTile = TILE
) -> tuple[Tensor, Tensor]:
    """int32_N: places; float32_N: the product with that centre over the centre's length."""
    count, width = vectors_NW.shape
    place = torch.empty(count, dtype=torch.int32, device=vectors_NW.device)
    best = torch.empty(count, dtype=torch.float32, device=vectors_NW.device)
    if count:
        _nearest[(triton.cdiv(count, tile.rows),)](
            vectors_NW,
            centres_KW,
            inverse_K,
            place,
            best,
            count,
            len(centres_KW),
            WIDTH=width,
            ROWS=tile.rows,
            CENTRES=tile.centres,
            NUMBERS=min(tile.numbers, max(FEWEST, triton.next_power_of_2(width))),
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
    return place, best


@triton.jit
def _nearest(
    vectors,
    centres,
    inverse,
    place,
    best,
    count,
    of,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    CENTRES: tl.constexpr,
    NUMBERS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    number = tl.arange(0, NUMBERS)
    highest = tl.full((ROWS,), float("-inf"), tl.float32)
    found = tl.zeros((ROWS,), tl.int32)
    for start in range(0, of, CENTRES):
        centre = start + tl.arange(0, CENTRES)
        dots = tl.zeros((ROWS, CENTRES), tl.int32)
        for low in tl.static_range(0, WIDTH, NUMBERS):
            there = low + number < WIDTH
            x = tl.load(
                vectors + row[:, None].to(tl.int64) * WIDTH + low + number[None, :],
                mask=(row[:, None] < count) & there[None, :],
                other=0,
            )
            c = tl.load(
                centres + centre[None, :] * WIDTH + low + number[:, None],
                mask=(centre[None, :] < of) & there[:, None],
                other=0,
            )
            dots = tl.dot(x, c, dots, out_dtype=tl.int32)
        scale = tl.load(inverse + centre, mask=centre < of, other=0.0)
        scaled = tl.where(centre[None, :] < of, dots.to(tl.float32) * scale[None, :], float("-inf"))
        value, at = tl.max(scaled, 1, return_indices=True)
        larger = value > highest
        highest = tl.where(larger, value, highest)
        found = tl.where(larger, start + at.to(tl.int32), found)
    tl.store(place + row, found, mask=row < count)
    tl.store(best + row, highest, mask=row < count)
