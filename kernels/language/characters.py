"""The characters of texts, 64 bytes at a time: how many letters they have, whether a model must read them otherwise
than they are written, and symbols and characters that are signs of no language.

Bytes of ASCII are told apart by comparing all 64 at once; only others are decoded.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gristmill.kernels.base.bare import code_point, inlined
from gristmill.kernels.base.compiled import kernel
from gristmill.kernels.base.types import Array, Bytes, Offsets
from gristmill.kernels.base.unicode import DENSE, LETTER, LOWER, UPPER, properties
from gristmill.kernels.base.wide import bits_of, how_many, lowest
from gristmill.kernels.repair.normal_form import BEGINS, CHANGES, MAY_COMPOSE, normal_form

# What `changes` say of a text.
COMPOSABLE, SHOUTED = 1, 2

BLOCK = 64
_high, _lower, _upper = bits_of(BLOCK, (0x80, 0xFF)), bits_of(BLOCK, (97, 122)), bits_of(BLOCK, (65, 90))
_blank, _digit = bits_of(BLOCK, (0, 32), (127, 127)), bits_of(BLOCK, (48, 57))
# What code is full of, #$%& *+ ;<=> @ [\]^_` {|}~, and what is a sign of it between other characters: "(),./:
_symbol = bits_of(BLOCK, (35, 38), (42, 43), (59, 62), (64, 64), (91, 96), (123, 126))
_joint = bits_of(BLOCK, (34, 34), (40, 41), (44, 44), (46, 47), (58, 58))


class Characters(NamedTuple):
    """Of each text, N of them."""

    letters: Array  # int64; of a script without spaces (Han, kana, Thai, Khmer...) each counts `dense` times
    changes: Array  # uint8: COMPOSABLE and SHOUTED, which is letters in capitals and none in lower case
    code: Array  # float32: of the characters that are no blanks, the share of symbols as code has them
    # float32, of the same: those that a wrong decoding leaves (U+FFFD, C1 controls, private use, and U+00A1 to U+00FF,
    # of which no language has half of its characters)
    broken: Array


def characters(data: Bytes, offsets: Offsets, dense: int) -> Characters:
    count = len(offsets) - 1
    found = Characters(
        np.empty(count, np.int64), np.empty(count, np.uint8), np.zeros(count, np.float32), np.zeros(count, np.float32)
    )
    count_characters(data, offsets, properties(), normal_form("NFC"), dense, *found)
    return found


@inlined
def masks_at(data, i):
    """Bytes i to i + 64 as bits: beyond ASCII, lower case, upper case, blanks, digits, symbols, joints."""
    return (
        _high(data, i),
        _lower(data, i),
        _upper(data, i),
        _blank(data, i),
        _digit(data, i),
        _symbol(data, i),
        _joint(data, i),
    )


@kernel
def count_characters(data, offsets, table, of_form, dense, letters_N, changes_N, code_N, broken_N):
    last_block = np.zeros(BLOCK, np.uint8)
    one = np.uint64(1)
    for d in range(len(offsets) - 1):
        begin, end = offsets[d], offsets[d + 1]
        letters, visible, symbols, wrong = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
        small, large, composable = np.uint64(0), np.uint64(0), False
        seen_before, digit_before = np.uint64(0), np.uint64(0)  # of the last byte of the block before: 0 or 1
        decoded, starter, last_class = begin, 0, 0  # the end of the last character beyond ASCII, as in `find_unnormal`
        i = begin
        while i < end:
            size = min(end - i, np.int64(BLOCK))
            if i + BLOCK <= len(data):
                high, lower, upper, blank, digit, symbol, joint = masks_at(data, i)
            else:
                for k in range(size):
                    last_block[k] = data[i + k]
                high, lower, upper, blank, digit, symbol, joint = masks_at(last_block, 0)
            inside = ~np.uint64(0) >> np.uint64(BLOCK - size)
            high, lower, upper, digit = high & inside, lower & inside, upper & inside, digit & inside
            seen = inside & ~blank
            seen_after, digit_after = np.uint64(0), np.uint64(0)
            if i + BLOCK < end:
                byte = data[i + BLOCK]
                seen_after = np.uint64(byte > 32 and byte != 127)
                digit_after = np.uint64(48 <= byte <= 57)
            top = np.uint64(BLOCK - 1)
            between = (seen << one | seen_before) & (seen >> one | seen_after << top)
            of_number = (digit << one | digit_before) & (digit >> one | digit_after << top)
            symbols += how_many((symbol | joint & between & ~of_number) & inside)
            visible += how_many(seen & ~high)
            letters += how_many(lower | upper)
            small |= lower
            large |= upper
            seen_before, digit_before = seen >> top, digit >> top
            at = max(i, decoded)
            while at < i + size:
                ahead = high >> np.uint64(at - i)
                if ahead == 0:
                    break
                at += lowest(ahead)
                if at != decoded:  # ASCII is between
                    starter, last_class = BEGINS, 0
                point, length = code_point(data, at, end)
                at += length
                decoded = at
                visible += 1
                wrong += point <= 0xFF or 0xE000 <= point <= 0xF8FF or point == 0xFFFD
                known, form = table[point], np.int64(of_form[point])
                if known & LETTER:
                    letters += dense if known & DENSE else 1
                small |= np.uint64(known & LOWER)
                large |= np.uint64(known & UPPER)
                order = form & 0xFF
                composable |= (form & CHANGES) != 0 or 0 < order < last_class
                composable |= (form & MAY_COMPOSE) != 0 and starter != 0
                last_class = order
                if order == 0:
                    starter = form & BEGINS
            i += size
        letters_N[d] = letters
        changes_N[d] = (COMPOSABLE if composable else 0) | (SHOUTED if large != 0 and small == 0 else 0)
        code_N[d] = np.float32(symbols / visible) if visible else np.float32(0)
        broken_N[d] = np.float32(wrong / visible) if visible else np.float32(0)
