"""128 bits of each text of a column: of its bytes, or of what is left of them where case, white space and the way in
which accents are written do not count.

Normalised texts are equal if they are a canonical caseless match (Unicode, D145: NFD, full case folding, NFD) once runs
of white space, as `str.split` knows it, are a space each and none is left at the ends. Both are one pass: 32 bytes of
ASCII at a time are lowered into a buffer that stays in the cache, every other character is replaced by what a table has
for it, marks are put in order where they are not, and 64 bytes at a time are hashed. What is no UTF-8 stands for
itself. No text is copied, wherever Arrow holds it.

The hash: four pairs of lanes, each pair fed with 16 of 64 bytes, each lane a product of 64 by 64 bits folded to 64 (as
wyhash's). Every byte goes into two lanes, so that texts that differ in one word alone differ in 128 bits too. It is no
secret: someone who tries can make two texts that have the same 128 bits, as with any fast hash.
Measured: benchmarks/dedup/exact_dedup.py.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import ctypes
import unicodedata
from functools import cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from gristmill.kernels.base.bare import code_point, helper, inlined, kernel
from gristmill.kernels.base.compiled import intrinsic, ir, types
from gristmill.kernels.base.folded import folded
from gristmill.kernels.base.splitmix import mixed
from gristmill.kernels.base.types import Array, Hashes, Mask, Offsets
from gristmill.kernels.base.unicode import POINTS, kept_table
from gristmill.kernels.base.wide import eight_bytes, lowest

# Entries of the table of characters; any other is a place in `pieces()`.
ITSELF, WHITE = 0, 1
IOTA = 240  # the class of the one mark that folds to a letter (U+0345), which is where NFD puts it
BLOCK = 64  # bytes that are hashed at a time
WIDE = 32  # bytes that are lowered at a time
FLUSH = 1 << 14  # bytes of normalised text after which they are hashed, so that they stay in the cache
ROOM = FLUSH + 4 * BLOCK
MOST_GROWTH = 3  # bytes of normalised text that a byte of text may become: U+0390

# No word of UTF-8 equals one of these, whose bytes 0xFF it never has; a lane that is multiplied by 0 forgets its text.
_KEY_A, _KEY_B = np.uint64(0x9FB2_FF65_1E98_DFC5), np.uint64(0xD6E8_FEB8_66FF_D9A3)
_LANE = [np.uint64(number * 0x9E37_79B9_7F4A_7C15 % (1 << 64)) for number in range(1, 9)]
_LANE_0, _LANE_1, _LANE_2, _LANE_3, _LANE_4, _LANE_5, _LANE_6, _LANE_7 = _LANE
_LENGTH = np.uint64(0xBF58_476D_1CE4_E5B9)
_ONE, _THIRTY_TWO = np.uint64(1), np.uint64(32)


class Signatures(NamedTuple):
    """Of each text the two halves of its 128 bits, and whether it has any character but white space."""

    high: Hashes
    low: Hashes
    with_text: Mask


class Spans(NamedTuple):
    """Texts by where they begin and end in the memory of this process; a null is empty."""

    starts: Offsets
    ends: Offsets


def signatures(texts: pa.Array | pa.ChunkedArray, normalise: bool) -> Signatures:
    """Of a column of strings or string views."""
    count = len(texts)
    found = Signatures(np.zeros(count, np.uint64), np.zeros(count, np.uint64), np.zeros(count, np.bool_))
    row = 0
    for chunk in texts.chunks if isinstance(texts, pa.ChunkedArray) else [texts]:
        spans, part = spans_of(chunk), Signatures(*(values[row : row + len(chunk)] for values in found))
        if normalise:
            longest = int((spans.ends - spans.starts).max(initial=0))
            room = MOST_GROWTH * longest + ROOM  # of which only what a run of marks fills is ever touched
            buffers = (np.empty(room, np.uint8), np.empty(room, np.uint8))
            _sign_normalised(memory(), *spans, characters(), pieces(), *buffers, *part)
        else:
            _sign_bytes(memory(), *spans, characters(), np.zeros(BLOCK, np.uint8), *part)
        row += len(chunk)
    return found


MEMORY_BEGINS = 4096  # no object is below


def memory() -> Array:
    """All of it as one array, so that texts that lie in many buffers need not be copied into one."""
    everything = (ctypes.c_uint8 * (1 << 62)).from_address(MEMORY_BEGINS)
    whole = np.frombuffer(everything, np.uint8)
    whole.flags.writeable = False
    return whole


def spans_of(array: pa.Array) -> Spans:
    """Valid as long as the array is there."""
    if pa.types.is_dictionary(array.type) or pa.types.is_null(array.type):
        raise TypeError(f"strings were expected, not {array.type}")
    count = len(array)
    _, *buffers = array.buffers()
    if count == 0 or buffers[0] is None:
        return Spans(np.zeros(count, np.int64), np.zeros(count, np.int64))
    if pa.types.is_string_view(array.type) or pa.types.is_binary_view(array.type):
        views = np.frombuffer(buffers[0], np.int32).reshape(-1, 4)[array.offset : array.offset + count]
        size = views[:, 0].astype(np.int64)
        inside = buffers[0].address + 16 * (array.offset + np.arange(count)) + 4
        bases = np.array([0, *(0 if data is None else data.address for data in buffers[1:])], np.int64)
        long = size > 12
        elsewhere = bases[np.where(long, views[:, 2] + 1, 0)] + views[:, 3]
        starts = np.where(long, elsewhere, inside)
        ends = starts + size
    else:
        wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
        offsets = np.frombuffer(buffers[0], np.int64 if wide else np.int32)[array.offset : array.offset + count + 1]
        base = 0 if buffers[1] is None else buffers[1].address
        places = offsets.astype(np.int64) + base
        starts, ends = places[:-1], places[1:]
    if array.null_count:
        null = array.is_null().to_numpy(zero_copy_only=False)
        starts, ends = np.where(null, MEMORY_BEGINS, starts), np.where(null, MEMORY_BEGINS, ends)
    return Spans(starts - MEMORY_BEGINS, ends - MEMORY_BEGINS)


# --- what characters become -------------------------------------------------------------------------------------------


@cache
def characters() -> Array:
    """uint32[0x110000]: ITSELF, WHITE, or where `pieces()` begins to say what the character becomes."""
    return kept_table(f"same-text-{unicodedata.unidata_version}", lambda: _tables()[0])


@cache
def pieces() -> Array:
    """uint8: of each character that changes, or is a mark, the number of its pieces; of each piece its combining class,
    the number of its bytes, and these."""
    return kept_table(f"same-text-pieces-{unicodedata.unidata_version}", lambda: _tables()[1])


def _tables() -> tuple[Array, Array]:
    table, found = np.zeros(POINTS, np.uint32), bytearray(2)
    for point in range(0x80, POINTS):
        character = chr(point)
        if character.isspace():
            table[point] = WHITE
            continue
        apart = unicodedata.normalize("NFD", character)
        if apart == character and not unicodedata.combining(character) and character.casefold() == character:
            continue
        table[point] = len(found)
        becomes = _pieces_of(apart)
        found.append(len(becomes))
        for order, content in becomes:
            found += bytes([order, len(content)]) + content
    return table, np.frombuffer(bytes(found), np.uint8)


def _pieces_of(apart: str) -> list[tuple[int, bytes]]:
    """What a character that was taken apart folds to: letters that follow each other together, each mark alone."""
    becomes: list[tuple[int, bytes]] = []
    for each in apart:
        if order := unicodedata.combining(each):
            becomes.append((order, each.casefold().encode()))
            continue
        for letter in unicodedata.normalize("NFD", each.casefold()):
            order = unicodedata.combining(letter)
            if becomes and not order and not becomes[-1][0]:
                becomes[-1] = (0, becomes[-1][1] + letter.encode())
            else:
                becomes.append((order, letter.encode()))
    return becomes


# --- kernels ----------------------------------------------------------------------------------------------------------


@intrinsic
def lowered(typing_context, data, i, out, at):
    """Writes 32 bytes of `data` from i on to `out`, lowered, each byte of white space as a space; returns a bit for
    each byte of white space, and above these 32 one for each that is not ASCII."""

    def write(context, builder, signature, arguments):
        source, start, target, place = arguments
        kind, bits = ir.VectorType(ir.IntType(8), WIDE), ir.IntType(WIDE)

        def every(value):
            return ir.Constant(kind, [value] * WIDE)

        def between(first, last):
            return builder.icmp_unsigned("<=", builder.sub(loaded, every(first)), every(last - first))

        def address(kind_of_array, array, offset):
            begin = context.make_array(kind_of_array)(context, builder, array).data
            return builder.bitcast(builder.gep(begin, [offset]), kind.as_pointer())

        loaded = builder.load(address(signature.args[0], source, start), align=1)
        white = builder.or_(between(0x09, 0x0D), between(0x1C, 0x20))
        small = builder.select(between(ord("A"), ord("Z")), builder.add(loaded, every(0x20)), loaded)
        builder.store(builder.select(white, every(0x20), small), address(signature.args[2], target, place), align=1)
        other = builder.icmp_signed("<", loaded, every(0))
        word = ir.IntType(64)
        low, high = (builder.zext(builder.bitcast(mask, bits), word) for mask in (white, other))
        return builder.or_(low, builder.shl(high, ir.Constant(word, WIDE)))

    return types.uint64(data, types.int64, out, types.int64), write


@inlined
def absorb(data, i, lanes):
    """The lanes after 64 bytes more."""
    a0, b0, a1, b1, a2, b2, a3, b3 = lanes
    left, right = eight_bytes(data, i), eight_bytes(data, i + 8)
    a0, b0 = folded(left ^ _KEY_A, right ^ a0), folded(right ^ _KEY_B, left ^ b0)
    left, right = eight_bytes(data, i + 16), eight_bytes(data, i + 24)
    a1, b1 = folded(left ^ _KEY_A, right ^ a1), folded(right ^ _KEY_B, left ^ b1)
    left, right = eight_bytes(data, i + 32), eight_bytes(data, i + 40)
    a2, b2 = folded(left ^ _KEY_A, right ^ a2), folded(right ^ _KEY_B, left ^ b2)
    left, right = eight_bytes(data, i + 48), eight_bytes(data, i + 56)
    a3, b3 = folded(left ^ _KEY_A, right ^ a3), folded(right ^ _KEY_B, left ^ b3)
    return a0, b0, a1, b1, a2, b2, a3, b3


@inlined
def first_lanes():
    return _LANE_0, _LANE_1, _LANE_2, _LANE_3, _LANE_4, _LANE_5, _LANE_6, _LANE_7


@inlined
def halves(lanes, length):
    """The 128 bits: of the first lane of each pair 64, of the second 64."""
    a0, b0, a1, b1, a2, b2, a3, b3 = lanes
    mark = np.uint64(length) * _LENGTH
    high = mixed(folded(a0 ^ _KEY_A, a1 ^ mark) ^ mixed(folded(a2 ^ _KEY_B, a3 ^ mark)))
    low = mixed(folded(b0 ^ _KEY_B, b1 ^ mark) ^ mixed(folded(b2 ^ _KEY_A, b3 ^ mark)))
    return high, low


@inlined
def character_at(data, i, end):
    """As `code_point`, without a call for most of those of two and three bytes."""
    first = np.int64(data[i])
    if i + 2 < end and data[i + 1] & 0xC0 == 0x80:
        if 0xC2 <= first < 0xE0:
            return (first & 0x1F) << 6 | np.int64(data[i + 1] & 0x3F), 2
        if 0xE0 <= first < 0xF0 and data[i + 2] & 0xC0 == 0x80:
            return (first & 0x0F) << 12 | np.int64(data[i + 1] & 0x3F) << 6 | np.int64(data[i + 2] & 0x3F), 3
    return code_point(data, i, end)


@inlined
def is_white(byte):
    return 0x09 <= byte <= 0x0D or 0x1C <= byte <= 0x20


@kernel
def _sign_bytes(data, starts, ends, table, last_block, high, low, with_text):
    for row in range(len(starts)):
        start, end = starts[row], ends[row]
        i = start
        while i < end:
            if data[i] < 0x80:
                if not is_white(data[i]):
                    break
                i += 1
            else:
                point, size = code_point(data, i, end)
                if table[point] != WHITE:
                    break
                i += size
        with_text[row] = i < end
        if i >= end:
            continue
        lanes, i = first_lanes(), start
        while end - i >= BLOCK:
            lanes = absorb(data, i, lanes)
            i += BLOCK
        if i < end and end - start >= BLOCK:
            lanes = absorb(data, end - BLOCK, lanes)
        elif i < end:
            last_block[:] = 0
            for k in range(end - i):
                last_block[k] = data[i + k]
            lanes = absorb(last_block, 0, lanes)
        high[row], low[row] = halves(lanes, end - start)


@helper
def sort_marks(out, begin, end, spare, table, pieces):
    """Puts a run of marks into the order of their classes, equal ones as they are. There are 55 classes: linear."""
    size = end - begin
    for k in range(size):
        spare[k] = out[begin + k]
    at, order = begin, 0
    while at < end:
        following, i = 256, 0
        while i < size:
            point, length = code_point(spare, i, size)
            entry = table[point]
            its = np.int64(pieces[entry + 1]) if entry > WHITE else IOTA
            if its == order:
                for k in range(length):
                    out[at + k] = spare[i + k]
                at += length
            elif order < its < following:
                following = its
            i += length
        order = following


@kernel
def _sign_normalised(data, starts, ends, table, pieces, out, spare, high, low, with_text):
    for row in range(len(starts)):
        i, end = starts[row], ends[row]
        lanes = first_lanes()
        at, hashed = 0, 0  # bytes in `out`, and those that were there before
        white = 1  # does what is out end with white space, or is nothing out yet?
        run, order, disordered = 0, 0, False  # marks at the end of what is out: where, the last one's class
        while i < end:
            if at >= FLUSH and order == 0:
                done = 0
                while at - done > BLOCK:  # a byte at least is left: a space at the end goes
                    lanes = absorb(out, done, lanes)
                    done += BLOCK
                for k in range(at - done):
                    out[k] = out[done + k]
                at, hashed = at - done, hashed + done
            if data[i] < 0x80:
                if disordered:
                    sort_marks(out, run, at, spare, table, pieces)
                    disordered = False
                order = 0
                if i + WIDE <= end and data[i + 1] < 0x80:
                    found = lowered(data, i, out, at)
                    count = np.int64(lowest(found >> _THIRTY_TWO | _ONE << _THIRTY_TWO))
                    spaces = found & ((_ONE << np.uint64(count)) - _ONE)
                    more = spaces & (spaces << _ONE | np.uint64(white))  # white space after white space
                    before = np.int64(lowest(more | _ONE << np.uint64(count)))
                    at += before
                    i += before
                    if before < count:
                        i += np.int64(lowest(~(spaces >> np.uint64(before))))
                        white = 1
                    else:
                        white = np.int64(spaces >> np.uint64(count - 1) & _ONE)
                    continue
                byte = data[i]
                i += 1
                if is_white(byte):
                    if not white:
                        out[at] = 0x20
                        at += 1
                    white = 1
                else:
                    out[at] = byte | 0x20 if 0x41 <= byte <= 0x5A else byte
                    at += 1
                    white = 0
                continue
            point, size = character_at(data, i, end)
            entry = np.int64(table[point])
            if entry <= WHITE:
                if disordered:
                    sort_marks(out, run, at, spare, table, pieces)
                    disordered = False
                order = 0
                if entry == WHITE:
                    if not white:
                        out[at] = 0x20
                        at += 1
                    white = 1
                else:
                    for k in range(size):
                        out[at + k] = data[i + k]
                    at += size
                    white = 0
                i += size
                continue
            i += size
            white = 0
            place = entry + 1
            for _ in range(pieces[entry]):
                its, length = np.int64(pieces[place]), np.int64(pieces[place + 1])
                if its == 0:
                    if disordered:
                        sort_marks(out, run, at, spare, table, pieces)
                        disordered = False
                elif order == 0:
                    run = at
                elif its < order:
                    disordered = True
                order = its
                for k in range(length):
                    out[at + k] = pieces[place + 2 + k]
                at += length
                place += 2 + length
        if disordered:
            sort_marks(out, run, at, spare, table, pieces)
        if white and at > 0:
            at -= 1
        with_text[row] = hashed + at > 0
        out[at : at + BLOCK] = 0
        done = 0
        while done < at:
            lanes = absorb(out, done, lanes)
            done += BLOCK
        high[row], low[row] = halves(lanes, hashed + at)
