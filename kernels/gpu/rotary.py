"""Rotary positions (Su et al. 2021): queries and keys rotated straight out of the matmul that makes queries, keys and
values.

A head's first half is paired with its second, as in Hugging Face's Llama. Values are copied, so that what attention
saves for the backward pass is all that is kept and the matmul's output can be freed (a sixth more to move at four
queries a key, against as much memory as queries and keys take). The backward pass rotates the other way and writes the
gradient of the matmul as one matrix.

T tokens, H query heads, K key-value heads, D head size, P rows of the tables.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


class RotaryTile(NamedTuple):
    """The pairs of numbers that one program rotates, and the warps that share them; results do not depend on either."""

    pairs: int = 2048
    warps: int = 4


TILE = RotaryTile()


def rotary_qkv(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions_T: Tensor | None,
    heads: int,
    kv_heads: int,
    head_size: int,
    tile: RotaryTile = TILE,
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries T x H x D, keys and values T x K x D, of `qkv` T x (H + 2K)D. `cos` and `sin` are P x D/2, float32; token
    t takes row `positions_T[t]`, or row t without positions. A position outside the tables gives NaN."""
    tokens = len(qkv)
    checked(qkv.shape[1], cos, sin, positions_T, tokens, heads, kv_heads, head_size)
    q, k, v = (qkv.new_empty(tokens, count, head_size) for count in (heads, kv_heads, kv_heads))
    if tokens:
        shape, programs = _shape(tokens, heads, kv_heads, head_size, tile)
        _turn[programs](
            qkv.contiguous(),
            cos.contiguous(),
            sin.contiguous(),
            positions_T,
            q,
            k,
            v,
            tokens,
            len(cos),
            **shape,
            num_warps=tile.warps,
        )
    return q, k, v


def rotary_qkv_backward(
    d_q: Tensor, d_k: Tensor, d_v: Tensor, cos: Tensor, sin: Tensor, positions_T: Tensor | None, tile: RotaryTile = TILE
) -> Tensor:
    """The gradient of `qkv`, T x (H + 2K)D."""
    (tokens, heads, head_size), kv_heads = d_q.shape, d_k.shape[1]
    d_qkv = d_q.new_empty(tokens, (heads + 2 * kv_heads) * head_size)
    if tokens:
        shape, programs = _shape(tokens, heads, kv_heads, head_size, tile)
        _turn_back[programs](
            d_qkv, cos.contiguous(), sin.contiguous(), positions_T, d_q.contiguous(), d_k.contiguous(),
            d_v.contiguous(), tokens, len(cos),
            **shape, num_warps=tile.warps,
        )  # fmt: skip
    return d_qkv


def checked(
    width: int,
    cos: Tensor,
    sin: Tensor,
    positions_T: Tensor | None,
    tokens: int,
    heads: int,
    kv_heads: int,
    head_size: int,
) -> None:
    if width != (heads + 2 * kv_heads) * head_size or head_size % 2 or heads % kv_heads:
        raise ValueError(
            f"{heads} query heads and twice {kv_heads} others of size {head_size} do not make rows of {width}"
        )
    if cos.shape != sin.shape or cos.shape[1:] != (head_size // 2,) or not cos.dtype == sin.dtype == torch.float32:
        raise ValueError(
            f"cosines {tuple(cos.shape)} and sines {tuple(sin.shape)}: both must be float32, with {head_size // 2} "
            "columns"
        )
    if (len(cos) if positions_T is None else len(positions_T)) != tokens:
        raise ValueError(f"{tokens} tokens need as many positions, or as many rows of cosines and sines")


def _shape(
    tokens: int, heads: int, kv_heads: int, head_size: int, tile: RotaryTile
) -> tuple[dict[str, int], tuple[int]]:
    """Each program takes as many heads as there are key heads, so that all its heads are queries, keys or values."""
    block_heads, block_half = triton.next_power_of_2(kv_heads), triton.next_power_of_2(head_size // 2)
    tokens_each = triton.next_power_of_2(max(tile.pairs // (block_heads * block_half), 1))
    shape = {"HEADS": heads, "KV_HEADS": kv_heads, "SIZE": head_size, "TOKENS": tokens_each}
    return {**shape, "BLOCK_HEADS": block_heads, "BLOCK_HALF": block_half}, (
        triton.cdiv(tokens, tokens_each) * (heads // kv_heads + 2),
    )


@triton.jit
def _where(
    tokens, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr, TOKENS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):  # fmt: skip
    """Which group of heads a program has (queries, then keys, then values), and where its numbers are in a row."""
    GROUPS: tl.constexpr = HEADS // KV_HEADS + 2
    group = tl.program_id(0) % GROUPS
    token = (tl.program_id(0) // GROUPS).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    head, pair = tl.arange(0, BLOCK_HEADS), tl.arange(0, BLOCK_HALF)
    there = (token < tokens)[:, None, None] & (head < KV_HEADS)[None, :, None] & (pair < SIZE // 2)[None, None, :]
    return group, token, pair, there, head[None, :, None] * SIZE + pair[None, None, :]


@triton.jit
def _angles(cos, sin, positions, token, pair, tokens, table, SIZE: tl.constexpr):
    HALF: tl.constexpr = SIZE // 2
    if positions is None:
        row = token
    else:
        row = tl.load(positions + token, mask=token < tokens, other=0).to(tl.int64)
    index = row[:, None] * HALF + pair[None, :]
    inside = ((row >= 0) & (row < table))[:, None] & (pair < HALF)[None, :]
    c, s = tl.load(cos + index, mask=inside, other=float("nan")), tl.load(sin + index, mask=inside, other=float("nan"))
    return c[:, None, :], s[:, None, :]


@triton.jit
def _turn(
    qkv, cos, sin, positions, q, k, v, tokens, table, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr, BLOCK_HALF: tl.constexpr,
):  # fmt: skip
    HALF: tl.constexpr = SIZE // 2
    QUERIES: tl.constexpr = HEADS // KV_HEADS
    group, token, pair, there, inside = _where(tokens, HEADS, KV_HEADS, SIZE, TOKENS, BLOCK_HEADS, BLOCK_HALF)
    index = token[:, None, None] * ((HEADS + 2 * KV_HEADS) * SIZE) + group * (KV_HEADS * SIZE) + inside
    first, second = tl.load(qkv + index, mask=there, other=0), tl.load(qkv + index + HALF, mask=there, other=0)
    by_key = token[:, None, None] * (KV_HEADS * SIZE) + inside
    if group <= QUERIES:
        c, s = _angles(cos, sin, positions, token, pair, tokens, table, SIZE)
        x, y = first.to(tl.float32), second.to(tl.float32)
        new_first, new_second = (x * c - y * s).to(q.dtype.element_ty), (y * c + x * s).to(q.dtype.element_ty)
        if group < QUERIES:
            by_query = token[:, None, None] * (HEADS * SIZE) + group * (KV_HEADS * SIZE) + inside
            tl.store(q + by_query, new_first, mask=there)
            tl.store(q + by_query + HALF, new_second, mask=there)
        else:
            tl.store(k + by_key, new_first, mask=there)
            tl.store(k + by_key + HALF, new_second, mask=there)
    else:
        tl.store(v + by_key, first, mask=there)
        tl.store(v + by_key + HALF, second, mask=there)


@triton.jit
def _turn_back(
    d_qkv, cos, sin, positions, d_q, d_k, d_v, tokens, table, HEADS: tl.constexpr, KV_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    TOKENS: tl.constexpr, BLOCK_HEADS: tl.constexpr, BLOCK_HALF: tl.constexpr,
):  # fmt: skip
    HALF: tl.constexpr = SIZE // 2
    QUERIES: tl.constexpr = HEADS // KV_HEADS
    group, token, pair, there, inside = _where(tokens, HEADS, KV_HEADS, SIZE, TOKENS, BLOCK_HEADS, BLOCK_HALF)
    index = token[:, None, None] * ((HEADS + 2 * KV_HEADS) * SIZE) + group * (KV_HEADS * SIZE) + inside
    by_key = token[:, None, None] * (KV_HEADS * SIZE) + inside
    if group <= QUERIES:
        c, s = _angles(cos, sin, positions, token, pair, tokens, table, SIZE)
        if group < QUERIES:
            by_query = token[:, None, None] * (HEADS * SIZE) + group * (KV_HEADS * SIZE) + inside
            first, second = (
                tl.load(d_q + by_query, mask=there, other=0),
                tl.load(d_q + by_query + HALF, mask=there, other=0),
            )
        else:
            first, second = (
                tl.load(d_k + by_key, mask=there, other=0),
                tl.load(d_k + by_key + HALF, mask=there, other=0),
            )
        x, y = first.to(tl.float32), second.to(tl.float32)
        tl.store(d_qkv + index, (x * c + y * s).to(d_qkv.dtype.element_ty), mask=there)
        tl.store(d_qkv + index + HALF, (y * c - x * s).to(d_qkv.dtype.element_ty), mask=there)
    else:
        tl.store(d_qkv + index, tl.load(d_v + by_key, mask=there, other=0), mask=there)
        tl.store(d_qkv + index + HALF, tl.load(d_v + by_key + HALF, mask=there, other=0), mask=there)
