"""Texts to the ids of a byte-level tokenizer, with a memo of the ids of each piece: a few of a hundred pieces are new.

A memo holds the pieces themselves, not only their hashes. It begins with the tokens of the vocabulary and doubles until
it has MOST slots; then it becomes the old generation and a new one begins. A piece found in the old generation moves to
the new one, so frequent pieces stay and rare ones go. At most 192 MB, and its contents never change an id.

A slot takes 32 bytes: 16 for a piece of up to 15 bytes, and 16 for its ids. Two slots share a cache line. Longer pieces
and more ids are in an arena, and long pieces are compared byte by byte. Texts are processed CHUNK pieces at a time:
cut, hashed and prefetched, then looked up, so that the misses of the cache overlap. Pieces chosen to collide are looked
up in few places and then merged as new ones, so no text is slow.
"""

from __future__ import annotations

import mmap
from typing import NamedTuple

import numpy as np

from gristmill.kernels.base.bare import helper, inlined, kernel
from gristmill.kernels.base.types import Array, Bytes, Offsets
from gristmill.kernels.base.wide import eight_bytes, lowest, prefetch, put_16_bytes
from gristmill.kernels.bpe.byte_pairs import SCANNED, Merges, begin_row, desk_for, merge_bytes, merge_next, rows_of
from gristmill.kernels.bpe.pieces import BLOCK, Rules, cut
from gristmill.kernels.words.words import first_bytes, word_hash

LEAST, MOST = 1 << 16, 1 << 21  # slots of a generation; 32 bytes each, and ARENA
ARENA = 16  # bytes for each slot
IN_SLOT = 15  # bytes of a piece that a slot holds
LONGEST = 256  # bytes; longer pieces seldom come twice
LINES = 4  # cache lines in which a piece is looked up
CHUNK = 128  # pieces
ROWS, AHEAD = 4, 32  # new pieces that are merged in turns, and pieces among which they are looked for
HUGE_PAGE = 1 << 21
DONE, FULL = 0, -1  # results of `encode_texts`
PIECES, BYTES = 0, 1  # places in `used`

_LONG = np.uint64(1 << 63)
_IN_ARENA, _COUNT = np.int64(1 << 15), np.int64((1 << 15) - 1)  # of the upper 16 bits of a slot
NOWHERE = np.uint64((1 << 64) - 1)
_1, _2, _3, _4, _5 = (np.uint64(words) for words in range(1, 6))
_BELOW_TOP = np.uint64((1 << 48) - 1)
_LOW, _HALF, _TOP, _ODD = np.uint64((1 << 32) - 1), np.uint64(32), np.uint64(48), np.uint64(0x9E3779B97F4A7C15)
_SLACK = 32  # bytes behind ids that may be written, and behind an arena that may be read


class Generation(NamedTuple):
    """A hash table of pieces. A slot has four words, two of the piece and two of its ids. Piece: its bytes, with its
    length in the highest byte; or a hash, with the highest bit and the length. Ids: as they are written, with their
    number in the upper 16 bits; or the number with _IN_ARENA, and where the ids begin in the arena, with a long piece
    behind them."""

    slots: Array  # uint64, four each; an empty one has no length
    arena: Bytes
    used: Array  # int64[2]: pieces, bytes of the arena


class Vocabulary(NamedTuple):
    """The tables from which a tokenizer makes ids."""

    classes: Array  # uint8[0x110000], as in kernels/bpe/pieces.py
    rules: Rules
    merges: Merges
    width: int  # bytes of an id, 2 or 4
    given: Generation  # pieces whose ids are not those that merging makes


class Chunk(NamedTuple):
    """Of the pieces looked up together: where they end, their two words, and where their cache lines begin; which of
    them are new, and where these begin."""

    ends: Array  # int64
    low: Array  # uint64
    high: Array  # uint64
    lines: Array  # uint64
    new: Array  # int64
    begins: Array  # int64


class PieceMemo:
    """Two generations. Look-ups prefer the young one, and only it grows."""

    def __init__(self, least: int = LEAST, most: int = MOST) -> None:
        """Slots: powers of two, 4 or more. Memory is taken when it is first written."""
        self.least, self.most = least, most
        self.old = generation_of(4)
        _double(self.old)  # it is empty: the kernel is loaded here, not in the midst of the first texts
        self._renew()

    def _renew(self) -> None:
        self._whole = generation_of(self.most)
        self.young = self._whole._replace(slots=self._whole.slots[: 4 * self.least])

    def make_room(self) -> None:
        """Doubles the young generation, or makes it the old one."""
        words = len(self.young.slots)
        if self.young.used[BYTES] <= ARENA * self.most and words < 4 * self.most:
            self.young = self.young._replace(slots=self._whole.slots[: 2 * words])
            _double(self.young)
        else:
            self.old = self.young
            self._renew()


def generation_of(slots: int) -> Generation:
    """An empty one."""
    arena = _zeros(ARENA * slots + 5 * LONGEST + _SLACK)
    return Generation(_zeros(32 * slots).view(np.uint64), arena, np.zeros(2, np.int64))


def _zeros(size: int) -> Bytes:
    """Memory on huge pages where the system has them, and from the beginning of a cache line on."""
    if size < HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        memory, unit = np.zeros(size + 64, np.uint8), 64
    else:
        pages = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        pages.madvise(mmap.MADV_HUGEPAGE)
        memory, unit = np.frombuffer(pages, np.uint8), HUGE_PAGE
    first = -memory.ctypes.data % unit
    return memory[first : first + size]


def encode(
    vocabulary: Vocabulary, memo: PieceMemo, data: Bytes, offsets: Offsets, wanted: Array
) -> tuple[Array, Array]:
    """The ids of the texts that are `wanted`, end to end, of `vocabulary.width` bytes, and the offsets of each text."""
    size = int((np.diff(offsets) * wanted).sum())
    ids, ends_of_texts = np.empty(size * vocabulary.width + _SLACK, np.uint8), np.zeros(len(offsets), np.int64)
    state, desk = np.array([0, offsets[0], 0], np.int64), desk_for(4 * LONGEST)
    ends, new, begins = np.empty((3, CHUNK + BLOCK), np.int64)
    chunk, rows = Chunk(ends, *np.empty((3, CHUNK + BLOCK), np.uint64), new, begins), rows_of(ROWS)
    while result := encode_texts(
        data, offsets, wanted, vocabulary, memo.young, memo.old, chunk, rows, desk, ids, ends_of_texts, state
    ):
        if result == FULL:
            memo.make_room()
        else:
            desk = desk_for(2 * result)
    size = ends_of_texts[-1] * vocabulary.width
    return ids[:size].view(np.uint16 if vocabulary.width == 2 else np.uint32), ends_of_texts


@kernel
def encode_texts(data, offsets, wanted, vocabulary, young, old, chunk, rows, desk, ids, ends, state):
    """Continues at `state` (text, byte, bytes of ids so far). Returns DONE at the end, FULL, or the desk size that the
    next piece needs."""
    i, n, width = state[1], np.uint64(state[2]), np.uint64(vocabulary.width)
    slots, in_slot = young.slots, np.uint64(_ids_in_slot(vocabulary.width))
    for d in range(state[0], len(offsets) - 1):
        i, stop = max(i, offsets[d]), offsets[d + 1]
        if not wanted[d]:
            i = stop
        while i < stop:
            if _is_full(young):
                state[0], state[1], state[2] = d, i, n
                return FULL
            count = cut(data, i, stop, vocabulary.classes, vocabulary.rules, chunk.ends, CHUNK)
            start = i
            for k in range(np.uint64(count)):
                end = chunk.ends[k]
                low, high = _key(data, start, end)
                line = _line(slots, low, high)
                prefetch(slots, line)
                chunk.low[k], chunk.high[k], chunk.lines[k] = low, high, line
                start = end
            looked_ahead = np.int64(0)
            for k in range(np.uint64(count)):
                low, high, place = chunk.low[k], chunk.high[k], chunk.lines[k]
                first = (slots[place] == low) & (slots[place + _1] == high)
                second = (slots[place + _4] == low) & (slots[place + _5] == high)
                place += np.uint64(0) if first else _4
                number = slots[place + _3] >> _TOP
                end = chunk.ends[k]
                if (first | second) & (number <= in_slot):
                    put_16_bytes(ids, n, slots[place + _2], slots[place + _3])
                    n += number * width
                elif _is_in(young, data, i, end, low, high):
                    n = _recall_from(young, data, i, end, low, high, ids, n, vocabulary.width)
                else:
                    if end - i > len(desk.ids):
                        state[0], state[1], state[2] = d, i, n
                        return end - i
                    if np.int64(k) >= looked_ahead:
                        looked_ahead = min(np.int64(k) + AHEAD, np.int64(count))
                        _merge_new(data, i, np.int64(k), looked_ahead, vocabulary, young, old, chunk, rows, ids, n)
                    n = _encode_piece(data, i, end, low, high, vocabulary, young, old, desk, ids, n)
                i = end
        ends[d + 1] = np.int64(n // width)
    return np.int64(DONE)


@inlined
def _ids_in_slot(width):
    return 7 if width == 2 else 3


@inlined
def _is_full(generation):
    slots = len(generation.slots) // 4
    return 4 * generation.used[PIECES] >= 3 * slots or generation.used[BYTES] > ARENA * slots


@inlined
def _key(data, start, end):
    """The two words of a piece."""
    length = end - start
    if length > IN_SLOT:
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
def _line(slots, low, high):
    """The first word of the cache line in which a piece is looked up first."""
    mixed = (high ^ high >> np.uint64(29)) * _ODD
    mixed = (low ^ mixed ^ mixed >> _HALF) * _ODD
    return (mixed ^ mixed >> _HALF) << np.uint64(3) & np.uint64(len(slots) - 1)


@inlined
def _find(generation, data, start, end, low, high):
    """The first word of a piece's slot, and of the slot that it would get; NOWHERE if there is none."""
    slots = generation.slots
    line = _line(slots, low, high)
    for _ in range(LINES):
        for place in (line, line + _4):
            if slots[place + _1] == 0:
                return NOWHERE, place
            if (
                slots[place] == low
                and slots[place + _1] == high
                and (not high & _LONG or _same(generation, place, data, start, end))
            ):
                return place, NOWHERE
        line = (line + np.uint64(8)) & np.uint64(len(slots) - 1)
    return NOWHERE, NOWHERE


@inlined
def _same(generation, place, data, start, end):
    """Compares a long piece byte by byte."""
    there = np.int64(generation.slots[place + _2] >> _HALF)
    for i in range(start, end - 8, 8):
        if eight_bytes(generation.arena, there + i - start) != eight_bytes(data, i):
            return False
    return eight_bytes(generation.arena, there + end - 8 - start) == eight_bytes(data, end - 8)


@helper
def _is_in(generation, data, start, end, low, high):
    place, _ = _find(generation, data, start, end, low, high)
    return place != NOWHERE


@helper
def _recall_from(generation, data, start, end, low, high, ids, n, width):
    """Writes the ids of a piece that is there; returns where the next ones go."""
    place, _ = _find(generation, data, start, end, low, high)
    return _recall(generation, place, ids, n, width)


@helper
def _merge_new(data, start, first, count, vocabulary, young, old, chunk, rows, spare, n):
    """Merges pieces `first` to `count` of a chunk, if they are nowhere, and adds them to `young`. The ids are written
    to `spare` from byte n on, which is not used yet, and copied from there."""
    new, given, width = 0, vocabulary.given, vocabulary.width
    for k in range(first, count):
        end, low, high, line = chunk.ends[k], chunk.low[k], chunk.high[k], chunk.lines[k]
        at_first = (young.slots[line] == low) & (young.slots[line + _1] == high)
        at_second = (young.slots[line + _4] == low) & (young.slots[line + _5] == high)
        known = at_first | at_second | (end - start > SCANNED)  # a hash alone is checked by `_encode_piece`
        if not known and young.slots[line + _5] != 0:
            known = _is_in(young, data, start, end, low, high)
        if not known and old.used[PIECES]:
            known = _is_in(old, data, start, end, low, high)
        if not known and given.used[PIECES]:
            known = _is_in(given, data, start, end, low, high)
        if not known:
            chunk.new[new], chunk.begins[new] = k, start
            new += 1
        start = end
    started, active = 0, 0
    while active > 0 or started < new:
        row = 0
        while row < len(rows.pieces):
            if row >= active:
                if started == new:
                    break
                active += 1
            else:
                symbols = merge_next(vocabulary.merges, rows.ids, rows.ranks, rows.begins[row], rows.symbols[row])
                if symbols != rows.symbols[row]:
                    rows.symbols[row] = symbols
                    row += 1
                    continue
                _add_row(data, chunk, rows, row, young, spare, n, width)
            if started < new:
                begin, end = chunk.begins[started], chunk.ends[chunk.new[started]]
                rows.pieces[row] = started
                rows.symbols[row] = begin_row(
                    data, begin, end - begin, vocabulary.merges, rows.ids, rows.ranks, rows.begins[row]
                )
                started += 1
                row += 1
            else:
                active -= 1
                rows.pieces[row], rows.symbols[row] = rows.pieces[active], rows.symbols[active]
                rows.begins[row], rows.begins[active] = rows.begins[active], rows.begins[row]


@helper
def _add_row(data, chunk, rows, row, young, spare, n, width):
    """Adds a piece that is merged."""
    k, start = chunk.new[rows.pieces[row]], chunk.begins[rows.pieces[row]]
    end, low, high, symbols, stop = chunk.ends[k], chunk.low[k], chunk.high[k], rows.symbols[row], n
    while symbols:
        _put_id(spare, stop, rows.ids[rows.begins[row] + lowest(symbols)], width)
        symbols &= symbols - _1
        stop += np.uint64(width)
    place, free = _find(young, data, start, end, low, high)
    if place == NOWHERE:
        _remember(young, free, data, start, end, low, high, spare, n, stop, width)


@helper
def _encode_piece(data, start, end, low, high, vocabulary, young, old, desk, ids, n):
    """Writes the ids of a piece, and adds it to `young` if it is not there; returns where the next ones go."""
    width, begin = vocabulary.width, n
    place, free = _find(young, data, start, end, low, high)
    if place != NOWHERE:
        return _recall(young, place, ids, n, width)
    if old.used[PIECES]:
        place, _ = _find(old, data, start, end, low, high)
        if place != NOWHERE:
            n = _recall(old, place, ids, n, width)
    if place == NOWHERE and vocabulary.given.used[PIECES]:
        place, _ = _find(vocabulary.given, data, start, end, low, high)
        if place != NOWHERE:
            n = _recall(vocabulary.given, place, ids, n, width)
    if place == NOWHERE:
        count = merge_bytes(data, start, end, vocabulary.merges, desk)
        for i in range(count):
            _put_id(ids, n, desk.ids[i], width)
            n += np.uint64(width)
    if end - start <= LONGEST:
        _remember(young, free, data, start, end, low, high, ids, begin, n, width)
    return n


@inlined
def _put_id(ids, n, value, width):
    ids[n], ids[n + _1] = np.uint8(value & 0xFF), np.uint8(value >> 8 & 0xFF)
    if width == 4:
        ids[n + _2], ids[n + _3] = np.uint8(value >> 16 & 0xFF), np.uint8(value >> 24 & 0xFF)


@inlined
def _recall(generation, place, ids, n, width):
    """Copies the ids of a piece from its slot or the arena."""
    first, second = generation.slots[place + _2], generation.slots[place + _3]
    count = np.int64(second >> _TOP)
    if not count & _IN_ARENA:
        put_16_bytes(ids, n, first, second)
        return n + np.uint64(count * width)
    size, there = (count & _COUNT) * width, np.int64(first & _LOW)
    for i in range(0, size, 16):
        low, high = eight_bytes(generation.arena, there + i), eight_bytes(generation.arena, there + i + 8)
        put_16_bytes(ids, n + np.uint64(i), low, high)
    return n + np.uint64(size)


@inlined
def _remember(generation, place, data, start, end, low, high, ids, begin, stop, width):
    """Adds a piece in a slot that is free, with bytes begin to stop of `ids`; returns 0 where there is no room."""
    slots, there, first, size = generation.slots, generation.used[BYTES], np.int64(begin), np.int64(stop - begin)
    in_arena = (high & _LONG) != 0 or size > _ids_in_slot(width) * width
    if place == NOWHERE or (in_arena and there + size + end - start + _SLACK > len(generation.arena)):
        return 0
    if in_arena:
        for i in range(size):
            generation.arena[there + i] = ids[first + i]
        slots[place + _2] = np.uint64(there) | np.uint64(there + size) << _HALF
        slots[place + _3] = np.uint64(size // width | _IN_ARENA) << _TOP
        if high & _LONG:
            for i in range(end - start):
                generation.arena[there + size + i] = data[start + i]
            size += end - start
        generation.used[BYTES] += size
    else:  # what stands behind the ids is never read
        slots[place + _2] = eight_bytes(ids, first)
        slots[place + _3] = eight_bytes(ids, first + 8) & _BELOW_TOP | np.uint64(size // width) << _TOP
    slots[place], slots[place + _1] = low, high
    generation.used[PIECES] += 1
    return 1


@kernel
def _double(generation):
    """Spreads the pieces of the first half over the whole. In order of lines, each takes its pieces out and puts them
    where they belong; a line behind may get some that it moves again, so no gap remains before a piece."""
    slots, half = generation.slots, np.uint64(len(generation.slots) // 2)
    for line in range(np.uint64(0), half + np.uint64(8 * LINES), np.uint64(8)):
        at = line & np.uint64(len(slots) - 1)
        first = slots[at], slots[at + _1], slots[at + _2], slots[at + _3]
        second = slots[at + _4], slots[at + _5], slots[at + np.uint64(6)], slots[at + np.uint64(7)]
        slots[at + _1], slots[at + _5] = np.uint64(0), np.uint64(0)
        for low, high, ids, more in (first, second):
            if high == 0:
                continue
            place = _free(slots, low, high)
            if place == NOWHERE:
                generation.used[PIECES] -= 1
            else:
                slots[place], slots[place + _1], slots[place + _2], slots[place + _3] = low, high, ids, more


@inlined
def _free(slots, low, high):
    line = _line(slots, low, high)
    for _ in range(LINES):
        for place in (line, line + _4):
            if slots[place + _1] == 0:
                return place
        line = (line + np.uint64(8)) & np.uint64(len(slots) - 1)
    return NOWHERE


@kernel
def remember_tokens(data, offsets, tokens, vocabulary, young, whole, desk, ids):
    """Adds the tokens of a vocabulary, whose bytes are the texts, to `young` if merging yields them. Others, if
    `whole`, are added to `vocabulary.given`; returns how many did not fit there. `ids` is for a piece's ids."""
    left_out, zero, width = 0, np.uint64(0), np.uint64(vocabulary.width)
    for t in range(len(tokens)):
        start, end = offsets[t], offsets[t + 1]
        count = merge_bytes(data, start, end, vocabulary.merges, desk)
        merged = count == 1 and desk.ids[0] == tokens[t]
        if end - start > LONGEST:
            left_out += 0 if merged or not whole else 1
            continue
        low, high = _key(data, start, end)
        _put_id(ids, zero, tokens[t], vocabulary.width)
        if merged:
            _, place = _find(young, data, start, end, low, high)
            _remember(young, place, data, start, end, low, high, ids, zero, width, vocabulary.width)
        elif whole:
            _, place = _find(vocabulary.given, data, start, end, low, high)
            left_out += 1 - _remember(
                vocabulary.given, place, data, start, end, low, high, ids, zero, width, vocabulary.width
            )
    return left_out
