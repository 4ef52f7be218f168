"""Texts to the ids of a byte-level tokenizer, with a memo of the ids of each piece: three of a hundred pieces are new.

A memo is a hash table that holds the piece itself, not only its hash: a row of 32 bytes holds a piece of up to 15 bytes
and up to three ids; longer pieces are in an arena and are compared byte by byte. A full memo is emptied; its contents
never change an id. Pieces chosen to collide are looked up in few places and then merged as new ones, so no text is
slow. 50 times as fast as the package `tokenizers` (benchmarks/tokens/tokenization.py).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gristmill.kernels.base.bare import helper, inlined, kernel
from gristmill.kernels.base.splitmix import mixed
from gristmill.kernels.base.types import Array, Bytes, Offsets
from gristmill.kernels.base.wide import eight_bytes
from gristmill.kernels.bpe.byte_pairs import Merges, desk_for, merge_bytes
from gristmill.kernels.bpe.pieces import Rules, piece_end
from gristmill.kernels.words.words import first_bytes, word_hash

SLOTS = 1 << 19
IN_ROW, IDS_IN_ROW = 15, 3  # bytes and ids that a row holds
LONGEST = 256  # bytes; longer pieces seldom come twice
PROBES = 16
PIECES, BYTES, IDS = 0, 1, 2  # places in `used`

_LONG = np.uint64(1 << 63)
_LOW, _HALF = np.uint64((1 << 32) - 1), np.uint64(32)


class Memo(NamedTuple):
    """Rows of four words: two of the piece, two of its ids. Piece: its bytes, with its length in the highest byte; or a
    hash, with the highest bit and the length. Ids: three of them, with their number in the upper half of the last word;
    or, for a long piece or more ids, where they begin in the arenas."""

    rows: Array  # uint64 slots_4; an empty one has no length
    bytes: Array  # uint8
    ids: Array  # uint32
    used: Array  # int64[3]


class Vocabulary(NamedTuple):
    """The tables from which a tokenizer makes ids."""

    classes: Array  # uint8[0x110000], as in kernels/bpe/pieces.py
    rules: Rules
    merges: Merges
    given: Memo  # pieces whose ids are not those that merging makes


def empty_memo(slots: int = SLOTS) -> Memo:
    """Room for half as many pieces as slots, a power of two. Unused slots take no memory."""
    return Memo(
        np.zeros((slots, 4), np.uint64),
        np.empty(16 * slots + LONGEST, np.uint8),
        np.empty(8 * slots + LONGEST, np.uint32),
        np.zeros(3, np.int64),
    )


def encode(vocabulary: Vocabulary, memo: Memo, data: Bytes, offsets: Offsets, wanted: Array) -> tuple[Array, Array]:
    """ids uint32 of the texts that are `wanted`, end to end, and the offsets of each text's."""
    size = int((np.diff(offsets) * wanted).sum())
    ids, ends = np.empty(size + IDS_IN_ROW, np.uint32), np.zeros(len(offsets), np.int64)
    state, longest = np.array([0, offsets[0], 0], np.int64), 4 * LONGEST
    while (needed := encode_texts(data, offsets, wanted, vocabulary, memo, desk_for(longest), ids, ends, state)) > 0:
        longest = 2 * needed
    return ids[: ends[-1]], ends


@kernel
def encode_texts(data, offsets, wanted, vocabulary, memo, desk, ids, ends, state):
    """Continues at `state` (text, byte, ids so far). Returns 0 at the end, or the desk size that the next piece
    needs."""
    n = state[2]
    i = state[1]
    for d in range(state[0], len(offsets) - 1):
        i, stop = max(i, offsets[d]), offsets[d + 1]
        if not wanted[d]:
            i = stop
        while i < stop:
            end = piece_end(data, i, stop, vocabulary.classes, vocabulary.rules)
            low, high = _key(data, i, end)
            slot = _find(memo, data, i, end, low, high)
            if slot >= 0 and not high & _LONG and memo.rows[slot, 3] >> _HALF <= IDS_IN_ROW:
                first, second = memo.rows[slot, 2], memo.rows[slot, 3]
                ids[n] = np.uint32(first & _LOW)
                ids[n + 1] = np.uint32(first >> _HALF)
                ids[n + 2] = np.uint32(second & _LOW)
                n += np.int64(second >> _HALF)
            elif slot >= 0:
                n = _recalled(memo, slot, ids, n)
            else:
                if end - i > len(desk.ids):
                    state[0], state[1], state[2] = d, i, n
                    return end - i
                n = _new(data, i, end, low, high, vocabulary, memo, desk, ids, n)
            i = end
        ends[d + 1] = n
    return np.int64(0)


@inlined
def _key(data, start, end):
    """The two words of a piece."""
    length = end - start
    if length > IN_ROW:
        return word_hash(data, start, end), _LONG | np.uint64(length)
    if start + 16 <= len(data):
        low, high = first_bytes(eight_bytes(data, start), length), first_bytes(eight_bytes(data, start + 8), length - 8)
    else:
        low, high = np.uint64(0), np.uint64(0)
        for i in range(length):
            byte = np.uint64(data[start + i])
            if i < 8:
                low |= byte << np.uint64(8 * i)
            else:
                high |= byte << np.uint64(8 * i - 64)
    return low, high | np.uint64(length) << np.uint64(56)


@inlined
def _home(memo, low, high):
    return np.int64(mixed(low ^ mixed(high)) & np.uint64(len(memo.rows) - 1))


@inlined
def _find(memo, data, start, end, low, high):
    """The slot of a piece, or -1."""
    slot = _home(memo, low, high)
    for _ in range(PROBES):
        if (
            memo.rows[slot, 1] == high
            and memo.rows[slot, 0] == low
            and (not high & _LONG or _same(memo, slot, data, start, end))
        ):
            return slot
        if memo.rows[slot, 1] == 0:
            break
        slot = (slot + 1) & (len(memo.rows) - 1)
    return np.int64(-1)


@helper
def _same(memo, slot, data, start, end):
    """Compares a long piece byte by byte."""
    first, same = np.int64(memo.rows[slot, 2] >> _HALF), True
    for i in range(end - start):
        same &= memo.bytes[first + i] == data[start + i]
    return same


@helper
def _recalled(memo, slot, ids, n):
    """Copies the ids of a known piece from the row or the arena."""
    first, second = memo.rows[slot, 2], memo.rows[slot, 3]
    count = np.int64(second >> _HALF)
    if count <= IDS_IN_ROW and not memo.rows[slot, 1] & _LONG:
        ids[n], ids[n + 1], ids[n + 2] = np.uint32(first & _LOW), np.uint32(first >> _HALF), np.uint32(second & _LOW)
        return n + count
    arena = np.int64(first & _LOW)
    for i in range(count):
        ids[n + i] = memo.ids[arena + i]
    return n + count


@helper
def _new(data, start, end, low, high, vocabulary, memo, desk, ids, n):
    """Merges a piece that is not in the memo, and adds it."""
    given = _find(vocabulary.given, data, start, end, low, high)
    if given >= 0:
        return _recalled(vocabulary.given, given, ids, n)
    count = merge_bytes(data, start, end, vocabulary.merges, desk)
    for i in range(count):
        ids[n + i] = desk.ids[i]
    if end - start <= LONGEST:
        if _full(memo):
            memo.rows[:] = 0
            memo.used[:] = 0
        _remember(memo, data, start, end, low, high, desk.ids, count)
    return n + count


@inlined
def _full(memo):
    no_room = memo.used[BYTES] + LONGEST > len(memo.bytes) or memo.used[IDS] + LONGEST > len(memo.ids)
    return 2 * memo.used[PIECES] >= len(memo.rows) or no_room


@inlined
def _remember(memo, data, start, end, low, high, ids, count):
    """Adds a piece that is not in the memo; returns 0 where all its places are taken."""
    slot, probes = _home(memo, low, high), 0
    while memo.rows[slot, 1] != 0:
        slot = (slot + 1) & (len(memo.rows) - 1)
        probes += 1
        if probes == PROBES:
            return 0
    if high & _LONG or count > IDS_IN_ROW:
        memo.rows[slot, 2] = np.uint64(memo.used[IDS]) | np.uint64(memo.used[BYTES]) << _HALF
        memo.rows[slot, 3] = np.uint64(count) << _HALF
        for i in range(count):
            memo.ids[memo.used[IDS] + i] = ids[i]
        memo.used[IDS] += count
        if high & _LONG:
            for i in range(end - start):
                memo.bytes[memo.used[BYTES] + i] = data[start + i]
            memo.used[BYTES] += end - start
    else:
        first, second, third = np.uint64(ids[0]), np.uint64(0), np.uint64(0)
        if count > 1:
            second = np.uint64(ids[1])
        if count > 2:
            third = np.uint64(ids[2])
        memo.rows[slot, 2] = first | second << _HALF
        memo.rows[slot, 3] = third | np.uint64(count) << _HALF
    memo.rows[slot, 0] = low
    memo.rows[slot, 1] = high
    memo.used[PIECES] += 1
    return 1


@kernel
def remember_tokens(data, offsets, tokens, vocabulary, desk):
    """Adds to `given` the tokens that merging their bytes does not yield; returns how many did not fit. Texts are the
    bytes of one token each."""
    left_out = 0
    for t in range(len(tokens)):
        start, end = offsets[t], offsets[t + 1]
        count = merge_bytes(data, start, end, vocabulary.merges, desk)
        if count == 1 and desk.ids[0] == tokens[t]:
            continue
        if end - start > LONGEST:
            left_out += 1
            continue
        low, high = _key(data, start, end)
        left_out += 1 - _remember(vocabulary.given, data, start, end, low, high, tokens[t : t + 1], 1)
    return left_out
