"""Where tokens begin and end, as bits of 64 bytes at a time, for `gristmill.kernels.words.tokens`, by the rules of
`gristmill.kernels.words.token_rules`.

ASCII is classified 64 bytes in one comparison, never byte by byte. Other characters are decoded and looked up one at a
time. Each block is also written in lower case to scratch memory of the document's length, so that hashing may load
eight bytes anywhere.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from gristmill.kernels.base.bare import code_point, inlined
from gristmill.kernels.base.compiled import intrinsic, ir, types
from gristmill.kernels.base.types import Array
from gristmill.kernels.base.unicode import DENSE, LETTER, MARK, NUMBER, POINTS, kept_table, properties
from gristmill.kernels.base.wide import lowest
from gristmill.kernels.words.token_rules import folded

BLOCK = 64
PAGE = 64  # code points that share an entry of the first table

# Bits of an entry of the second table; above them, from bit 8 on, what a character's bytes differ by from its lower
# case.
INSIDE, IS_MARK, IS_DENSE = 1, 2, 4

ONE, ALL = np.uint64(1), np.uint64(0xFFFFFFFFFFFFFFFF)


@cache
def character_tables() -> tuple[Array, Array]:
    """For a code point: uint32[0x110000 / 64], where its page begins in the second table, uint64."""

    def make() -> Array:
        kinds = properties()
        entries = np.zeros(POINTS, np.uint64)
        entries[(kinds & (LETTER | MARK | NUMBER)) != 0] |= np.uint64(INSIDE)
        entries[(kinds & MARK) != 0] |= np.uint64(IS_MARK)
        entries[(kinds & DENSE) != 0] |= np.uint64(IS_DENSE)
        entries[0xD800:0xE000] = 0
        for point in [*range(0x80, 0xD800), *range(0xE000, POINTS)]:
            lower = folded(chr(point))
            if lower != chr(point) and entries[point]:
                differs = int.from_bytes(chr(point).encode(), "little") ^ int.from_bytes(lower.encode(), "little")
                entries[point] |= np.uint64(differs << 8)
        pages, numbers = np.unique(entries.reshape(-1, PAGE), axis=0, return_inverse=True)
        return np.concatenate([numbers.ravel().astype(np.uint64) * np.uint64(PAGE), pages.ravel()])

    table = kept_table("token_characters", make)
    places = table[: POINTS // PAGE].astype(np.uint32)
    places.flags.writeable = False
    return places, table[POINTS // PAGE :]


def _bytes() -> Any:
    return ir.VectorType(ir.IntType(8), BLOCK)


def _loaded(context: Any, builder: Any, array_type: Any, array: Any, at: Any) -> tuple[Any, Any]:
    """The address of 64 bytes of an array, and the bytes."""
    place = builder.bitcast(
        builder.gep(context.make_array(array_type)(context, builder, array).data, [at]), _bytes().as_pointer()
    )
    return place, builder.load(place, align=1)


def _between(builder: Any, loaded: Any, first: int, last: int) -> Any:
    shifted = builder.sub(loaded, ir.Constant(_bytes(), [first] * BLOCK))
    return builder.icmp_unsigned("<=", shifted, ir.Constant(_bytes(), [last - first] * BLOCK))


@intrinsic
def ascii_inside(typing_context: Any, data: Any, i: Any) -> Any:
    """A bit for each of bytes i to i + 64, the first lowest: an ASCII letter or digit."""

    def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, loaded = _loaded(context, builder, signature.args[0], *arguments)
        letter = _between(builder, builder.or_(loaded, ir.Constant(_bytes(), [0x20] * BLOCK)), 0x61, 0x7A)
        return builder.bitcast(builder.or_(letter, _between(builder, loaded, 0x30, 0x39)), ir.IntType(BLOCK))

    return types.uint64(data, types.int64), make


@intrinsic
def beyond_ascii(typing_context: Any, data: Any, i: Any) -> Any:
    """A bit for each of bytes i to i + 64: part of a character beyond ASCII."""

    def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, loaded = _loaded(context, builder, signature.args[0], *arguments)
        return builder.bitcast(builder.icmp_signed("<", loaded, ir.Constant(_bytes(), [0] * BLOCK)), ir.IntType(BLOCK))

    return types.uint64(data, types.int64), make


@intrinsic
def write_lower(typing_context: Any, data: Any, i: Any, out: Any, at: Any) -> Any:
    """Writes bytes i to i + 64, with ASCII capitals in lower case, to `out` from byte `at` on."""

    def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, loaded = _loaded(context, builder, signature.args[0], *arguments[:2])
        place, _ = _loaded(context, builder, signature.args[2], *arguments[2:])
        capital = builder.zext(_between(builder, loaded, 0x41, 0x5A), _bytes())
        builder.store(builder.add(loaded, builder.shl(capital, ir.Constant(_bytes(), [5] * BLOCK))), place, align=1)
        return context.get_dummy_value()

    return types.void(data, types.int64, out, types.int64), make


@inlined
def mark_block(data, i, stop, places, entries, lower, at, tail, inside_before, dense_before):
    """For at most 64 bytes from i on: their number, the bits where tokens begin, the bits before which they end, and
    whether the last character is inside a token, and is dense, as 0 or 1. Writes them in lower case to `lower` from
    byte `at` on."""
    size = min(BLOCK, stop - i)
    if i + BLOCK <= len(data):
        inside, beyond = ascii_inside(data, i), beyond_ascii(data, i)
        write_lower(data, i, lower, at)
    else:
        for k in range(size):
            tail[k] = data[i + k]
        inside, beyond = ascii_inside(tail, 0), beyond_ascii(tail, 0)
        write_lower(tail, 0, lower, at)
    there = ALL >> np.uint64(BLOCK - size)
    inside &= there
    beyond &= there
    after_dense = dense_before
    begin_anew = inside & after_dense
    dense_before = np.uint64(0)
    if beyond:
        size, inside, begin_anew, dense_before = mark_characters(
            data, i, stop, size, places, entries, lower, at, inside, beyond, after_dense
        )
        there = ALL >> np.uint64(BLOCK - size)
    before = inside << ONE | inside_before
    starts = inside & (~before | begin_anew)
    ends = before & (~inside | begin_anew) & there
    return size, starts, ends, inside >> np.uint64(size - 1) & ONE, dense_before


@inlined
def mark_characters(data, i, stop, size, places, entries, lower, at, inside, beyond, after_dense):
    """Adds the bits of characters beyond ASCII to those of ASCII. A character that the block cuts is left to the next
    one."""
    whole, dense = inside, np.uint64(0)  # characters that may begin a token within a run; dense ones
    dense_before = np.uint64(0)
    while beyond:
        k = lowest(beyond)
        point, length = code_point(data, i + k, stop)
        if (length == 3 and point < 0x800) or (
            length == 4 and point < 0x10000
        ):  # more bytes than it needs: no character
            point, length = np.int64(0xFFFD), 1
        if k + length > size:
            size = k
            break
        entry = entries[np.int64(places[point >> 6]) + (point & 63)]
        first = ONE << np.uint64(k)
        taken = ((ONE << np.uint64(length)) - ONE) << np.uint64(k)
        beyond &= ~taken
        if entry & np.uint64(INSIDE):
            inside |= taken
            if not entry & np.uint64(IS_MARK):
                whole |= first
        if entry & np.uint64(IS_DENSE):
            dense |= first
            if k + length < BLOCK:
                after_dense |= ONE << np.uint64(k + length)
            else:
                dense_before = ONE
        differs = entry >> np.uint64(8)
        while differs:  # the character is a capital
            lower[at + k] ^= np.uint8(differs & np.uint64(0xFF))
            differs >>= np.uint64(8)
            k += 1
    if size < BLOCK:
        there = (ONE << np.uint64(size)) - ONE
        inside &= there
        dense_before = after_dense >> np.uint64(size) & ONE
    return size, inside, inside & whole & (dense | after_dense), dense_before
