"""Tokens of a piece of text on the GPU: where they begin, and their hashes, as defined in
`gristmill.kernels.words.token_rules`.

All kernels run flat over bytes or over tokens, never over documents, so a document of 10 MB costs as much as many small
ones. First each byte gets the properties of its character (`marks`) and its lower case; tokens then begin and end where
two neighbours differ. Only the GPU knows how many there are: the next kernels run as many programs as fill it, each of
which takes tile after tile of tokens.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl

from gristmill.kernels.words.token_marks import (
    INSIDE as _INSIDE,
    IS_DENSE as _IS_DENSE,
    IS_MARK as _IS_MARK,
    PAGE as _PAGE,
    character_tables,
)
from gristmill.kernels.words.token_rules import TOKEN_CHUNK as _TOKEN_CHUNK, TOKEN_LENGTH as _TOKEN_LENGTH

INSIDE, IS_MARK, IS_DENSE, PAGE = (
    tl.constexpr(_INSIDE),
    tl.constexpr(_IS_MARK),
    tl.constexpr(_IS_DENSE),
    tl.constexpr(_PAGE),
)
TOKEN_CHUNK, TOKEN_LENGTH = tl.constexpr(_TOKEN_CHUNK), tl.constexpr(_TOKEN_LENGTH)
LEAD, OPENS = tl.constexpr(8), tl.constexpr(16)  # the first byte of a character, of a document

PADDING = 128  # bytes behind the text that may be read: a token's hash loads whole words
WARPS = 64  # that a processor of a GPU has room for
LARGEST_PIECE = 2**31 - 2**20  # bytes that positions of 32 bits can count, with tiles that stand over


class Tiles(NamedTuple):
    """How much one program takes at a time, and how many warps share it; the fastest of those that
    benchmarks/dedup/gpu_minhash.py tries on an H200. Results do not depend on it."""

    characters: int = 128  # bytes whose characters are looked at: few, for where all are ASCII none is looked up
    character_warps: int = 1
    bytes: int = 512
    byte_warps: int = 4
    tokens: int = 256
    token_warps: int = 2


class DeviceTokens(NamedTuple):
    """Tokens `first[i]` to `first[i + 1]` are those of document i; `hashes` is undefined behind the last."""

    hashes: torch.Tensor  # int64, the bits of uint64
    first: torch.Tensor  # int32[documents + 1]


def device_tokens(data: torch.Tensor, size: int, offsets: torch.Tensor, tiles: Tiles) -> DeviceTokens:
    """The tokens of a piece: document i is `data[offsets[i]:offsets[i + 1]]`; offsets (int64) begin at 0 and end at
    `size`."""
    if size > LARGEST_PIECE:
        raise ValueError(
            f"a piece of {size:,} bytes: at most {LARGEST_PIECE:,} fit in one, so no document may be longer"
        )
    device, documents = data.device, len(offsets) - 1
    marks = torch.zeros(room(size + 1), dtype=torch.uint8, device=device)
    marks.index_fill_(0, offsets, LEAD.value | OPENS.value)
    lower = torch.empty(room(size + PADDING), dtype=torch.uint8, device=device)
    parts = triton.cdiv(size + 1, tiles.bytes)
    counts = torch.empty(parts, dtype=torch.int32, device=device)
    programs = (fill(device, triton.cdiv(size, tiles.characters), tiles.character_warps),)
    tables = device_tables(device)
    _mark_characters[programs](
        data, marks, lower, *tables, size, TILE=tiles.characters, num_warps=tiles.character_warps
    )
    shape = {"TILE": tiles.bytes, "num_warps": tiles.byte_warps}
    _count_starts[(parts,)](marks, counts, size, **shape)
    through = torch.cumsum(counts, 0, dtype=torch.int32)
    most = most_tokens(size, documents)
    starts, ends = (torch.empty(room(most), dtype=torch.int32, device=device) for _ in range(2))
    _place_tokens[(parts,)](marks, through, counts, starts, ends, size, **shape)
    hashes = torch.empty(room(most), dtype=torch.int64, device=device)
    programs = (fill(device, triton.cdiv(most, tiles.tokens), tiles.token_warps),)
    shape = {"TILE": tiles.tokens, "num_warps": tiles.token_warps}
    _hash_tokens[programs](lower.view(torch.int64), starts, ends, through, parts, hashes, **shape)
    first = torch.empty(documents + 1, dtype=torch.int32, device=device)
    _find_first[(triton.cdiv(documents + 1, 128),)](
        starts, through, parts, offsets, first, documents + 1, most.bit_length(), TILE=128
    )
    return DeviceTokens(hashes, first)


def most_tokens(size: int, documents: int) -> int:
    """No document has more tokens than half its bytes, rounded up: two adjacent tokens have three bytes in one of
    them."""
    return (size + documents) // 2 + 1


def room(size: int) -> int:
    """A little more, in coarse steps, so that pieces of similar size reuse memory."""
    step = max(1024, 1 << max(size.bit_length() - 4, 0))
    return -(-size // step) * step


def fill(device: torch.device, tiles: int, warps: int) -> int:
    """How many programs to start where each takes tile after tile: what fills a GPU, or two in the interpreter."""
    room_for = (
        torch.cuda.get_device_properties(device).multi_processor_count * WARPS // warps if device.type == "cuda" else 2
    )
    return max(min(tiles, room_for), 1)


@cache
def device_tables(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """`gristmill.kernels.words.token_marks.character_tables` on the device: the page of each code point, and the
    entries."""
    places, entries = character_tables()
    return torch.from_numpy(places.astype(np.int32)).to(device), torch.from_numpy(entries.astype(np.int64)).to(device)


@triton.jit(do_not_specialize=["size"])
def _mark_characters(data, marks, lower, places, entries, size, TILE: tl.constexpr):
    """For each byte: the properties of its character, whether it is the first byte, and the byte in lower case."""
    for tile in range(tl.program_id(0), tl.cdiv(size, TILE), tl.num_programs(0)):
        index = tile * TILE + tl.arange(0, TILE)
        there = index < size
        byte = tl.load(data + index, mask=there, other=0).to(tl.int32)
        opens = tl.load(marks + index, mask=there, other=0).to(tl.int32) & OPENS
        small = byte | 0x20
        letter = (small >= 0x61) & (small <= 0x7A)
        character_marks = tl.where(letter | ((byte >= 0x30) & (byte <= 0x39)), LEAD | INSIDE, LEAD)
        small = tl.where(letter, small, byte)
        if tl.max(byte, 0) >= 0x80:
            character_marks, small = _beyond_ascii(
                data, marks, places, entries, index, there, size, byte, character_marks, small
            )
        tl.store(marks + index, (opens | character_marks).to(tl.uint8), mask=there)
        tl.store(lower + index, small.to(tl.uint8), mask=there)


@triton.jit
def _beyond_ascii(data, marks, places, entries, index, there, size, byte, character_marks, small):
    """The same for bytes beyond ASCII. A byte of no character separates, as U+FFFD does."""
    wide = there & (byte >= 0x80)
    before = tl.load(data + index - 1, mask=wide & (index >= 1), other=0).to(tl.int32)
    before_that = tl.load(data + index - 2, mask=wide & (index >= 2), other=0).to(tl.int32)
    back = tl.where(_goes_on(before_that), 3, 2)
    back = tl.where(_goes_on(before), back, 1)
    back = tl.minimum(tl.where(_goes_on(byte), back, 0), index)
    lead = index - back
    first = tl.load(data + lead, mask=wide, other=0).to(tl.int32)
    second = tl.load(data + lead + 1, mask=wide & (lead + 1 < size), other=0).to(tl.int32)
    third = tl.load(data + lead + 2, mask=wide & (lead + 2 < size), other=0).to(tl.int32)
    fourth = tl.load(data + lead + 3, mask=wide & (lead + 3 < size), other=0).to(tl.int32)
    length = tl.where((first >= 0xF0) & (first < 0xF5), 4, 1)
    length = tl.where((first >= 0xE0) & (first < 0xF0), 3, length)
    length = tl.where((first >= 0xC2) & (first < 0xE0), 2, length)
    point = (first & 0x1F) << 6 | (second & 0x3F)
    point = tl.where(length == 3, (first & 0x0F) << 12 | (second & 0x3F) << 6 | (third & 0x3F), point)
    point = tl.where(
        length == 4, (first & 0x07) << 18 | (second & 0x3F) << 12 | (third & 0x3F) << 6 | (fourth & 0x3F), point
    )
    whole = (length >= 2) & (back < length) & _goes_on(second) & _same_document(marks, lead + 1, size, wide)
    whole &= (length < 3) | (
        _goes_on(third) & _same_document(marks, lead + 2, size, wide & (length >= 3)) & (point >= 0x800)
    )
    whole &= (length < 4) | (
        _goes_on(fourth) & _same_document(marks, lead + 3, size, wide & (length >= 4)) & (point >= 0x10000)
    )
    whole &= wide & (point < 0x110000)
    page = tl.load(places + (point // PAGE), mask=whole, other=0)
    entry = tl.load(entries + page + point % PAGE, mask=whole, other=0)
    differs = (entry >> (8 + 8 * back).to(tl.int64)).to(tl.int32) & 0xFF
    beyond = (entry & (INSIDE | IS_MARK | IS_DENSE)).to(tl.int32) | tl.where((back == 0) | (whole == 0), LEAD, 0)
    return tl.where(wide, beyond, character_marks), tl.where(wide, byte ^ differs, small)


@triton.jit
def _goes_on(byte):
    return (byte & 0xC0) == 0x80


@triton.jit
def _same_document(marks, index, size, asked):
    return (tl.load(marks + index, mask=asked & (index < size), other=OPENS).to(tl.int32) & OPENS) == 0


@triton.jit
def _edges(marks, index, size):
    """Whether a token starts at a byte, and whether one ends before it."""
    kind = tl.load(marks + index, mask=index <= size, other=0).to(tl.int32)
    before = tl.load(marks + index - 1, mask=(index >= 1) & (index <= size), other=0).to(tl.int32)
    inside, opens, was_inside = (kind & INSIDE) != 0, (kind & OPENS) != 0, (before & INSIDE) != 0
    alone = ((kind & IS_MARK) == 0) & (((kind | before) & IS_DENSE) != 0)
    starts = inside & ((kind & LEAD) != 0) & (opens | (was_inside == 0) | alone)
    return starts, was_inside & (opens | (inside == 0) | starts)


@triton.jit(do_not_specialize=["size"])
def _count_starts(marks, counts, size, TILE: tl.constexpr):
    index = tl.program_id(0) * TILE + tl.arange(0, TILE)
    starts, _ = _edges(marks, index, size)
    tl.store(counts + tl.program_id(0), tl.sum(starts.to(tl.int32), 0))


@triton.jit(do_not_specialize=["size"])
def _place_tokens(marks, through, counts, starts_out, ends_out, size, TILE: tl.constexpr):
    """Tokens in order. A token that ends is the one that started last, since tokens do not nest."""
    part = tl.program_id(0)
    index = part * TILE + tl.arange(0, TILE)
    starts, ends = _edges(marks, index, size)
    begun = starts.to(tl.int32)
    earlier = tl.load(through + part) - tl.load(counts + part) + tl.cumsum(begun, 0) - begun
    tl.store(starts_out + earlier, index, mask=starts)
    tl.store(ends_out + earlier - 1, index, mask=ends)


@triton.jit(do_not_specialize=["parts"])
def _hash_tokens(words, starts, ends, through, parts, hashes, TILE: tl.constexpr):
    count = tl.load(through + parts - 1)
    for tile in range(tl.program_id(0), tl.cdiv(count, TILE), tl.num_programs(0)):
        token = tile * TILE + tl.arange(0, TILE)
        there = token < count
        start = tl.load(starts + token, mask=there, other=0)
        length = tl.load(ends + token, mask=there, other=0) - start
        longest = tl.max(length, 0)
        word, shift = words + start // 8, (start % 8 * 8).to(tl.uint64)
        h = length.to(tl.uint64) * TOKEN_LENGTH
        lower_word = tl.load(word, mask=there, other=0).to(tl.uint64)
        done = 0
        while done < longest:  # four chunks at a time: their loads do not wait for each other
            for _ in tl.static_range(4):
                more = length > done
                upper_word = tl.load(word + done // 8 + 1, mask=more, other=0).to(tl.uint64)
                chunk = lower_word >> shift | upper_word << 1 << (63 - shift)
                lacking = (8 * (8 - tl.minimum(tl.maximum(length - done, 1), 8))).to(tl.uint64)
                mixed = (h ^ (chunk << lacking >> lacking)) * TOKEN_CHUNK
                h = tl.where(more, mixed ^ mixed >> 32, h)
                lower_word = upper_word
                done += 8
        tl.store(hashes + token, h.to(tl.int64), mask=there)


@triton.jit
def not_above(values, count, steps, wanted):
    """How many of the `count` sorted values are at most the wanted one. `steps` is the bit length of `count` or
    more."""
    low = tl.zeros_like(wanted)
    high = low + count
    for _ in range(steps):
        middle = (low + high) // 2
        open_ = low < high
        below = open_ & (tl.load(values + middle, mask=open_, other=0) <= wanted)
        high = tl.where(open_ & (below == 0), middle, high)
        low = tl.where(below, middle + 1, low)
    return low


@triton.jit(do_not_specialize=["parts", "count", "steps"])
def _find_first(starts, through, parts, offsets, first, count, steps, TILE: tl.constexpr):
    """The first token of each document: the number of tokens that start before it."""
    document = tl.program_id(0) * TILE + tl.arange(0, TILE)
    there = document < count
    offset = tl.load(offsets + document, mask=there, other=0).to(tl.int32)
    tl.store(first + document, not_above(starts, tl.load(through + parts - 1), steps, offset - 1), mask=there)
