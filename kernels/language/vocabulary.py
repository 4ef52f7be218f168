"""The dictionary of a fastText model as arrays: words are found by hash in the mapped file itself, n-grams in a bitmap.

Hashes are those of Bojanowski et al. 2017 as fastText computes them: FNV-1a of 32 bits over signed bytes. No word
becomes an object: a word is its place in the file, 8 bytes, and a slot of 4 in a table that is at most half full.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gristmill.kernels.base.bare import inlined
from gristmill.kernels.base.compiled import helper, intrinsic, ir, kernel, types
from gristmill.kernels.base.wide import how_many

FNV_START, FNV_PRIME = np.uint32(2166136261), np.uint32(16777619)
WORD_NGRAM_FACTOR = np.uint64(116049371)
ENTRY_TAIL = 10  # after each word: a NUL, its count (int64), its kind (0 word, 1 label)
LONGEST_SEARCH = 64  # mean steps a word may cost in the table; random hashes need fewer than 3


@intrinsic
def float_at(typing: Any, data: Any, at: Any) -> Any:
    """The float32 at byte `at` of a byte array. Matrices in a model file are unaligned: they follow the dictionary."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.bitcast(builder.gep(array.data, [arguments[1]]), ir.FloatType().as_pointer())
        loaded = builder.load(place)
        loaded.align = 1
        return loaded

    return types.float32(data, types.int64), generate


@helper
def hashed(hash_, byte):
    """One step of FNV-1a. fastText takes bytes as signed, and every published model depends on it."""
    return np.uint32((hash_ ^ np.uint32(np.int32(np.int8(byte)))) * FNV_PRIME)


@kernel
def word_places(file, start, words, places, label_counts):
    """Where each entry of the dictionary at byte `start` begins, and where the dictionary ends; -1 - i where entry i is
    broken."""
    position = np.int64(start)
    size = np.int64(len(file))
    for i in range(len(places)):
        places[i] = position
        while position < size and file[position] != 0:
            position += 1
        if position + ENTRY_TAIL > size or file[position + ENTRY_TAIL - 1] != (1 if i >= words else 0):
            return np.int64(-1 - i)
        if i >= words:
            count = np.uint64(0)
            for byte in range(8):
                count |= np.uint64(file[position + 1 + byte]) << np.uint64(8 * byte)
            label_counts[i - words] = np.int64(count)
        position += ENTRY_TAIL
    return position


@kernel
def fill_slots(file, places, slots):
    """Enters the words into a table of a power of two (-1 is empty). False if so many share a hash that the file is not
    real."""
    mask = np.int64(len(slots) - 1)
    steps = np.int64(0)
    for i in range(len(places)):
        position = places[i]
        hash_ = FNV_START
        while file[position] != 0:
            hash_ = hashed(hash_, file[position])
            position += 1
        slot = np.int64(hash_) & mask
        while slots[slot] >= 0 and not _same_word(file, places[slots[slot]], file, places[i], position):
            slot = (slot + 1) & mask
            steps += 1
        slots[slot] = i  # of two that are equal the later one counts, as in fastText
        if steps > LONGEST_SEARCH * (i + 1000):
            return False
    return True


@helper
def _same_word(file, place, data, start, end):
    """Whether the word at `place`, which ends in a NUL, is the token, which does not."""
    for i in range(end - start):
        if file[place + i] != data[start + i]:
            return False
    return file[place + end - start] == 0


@inlined
def find_word(model, data, start, end, hash_):
    """The number of a word, or -1. Labels are entries too, numbered after the words."""
    mask = np.int64(len(model.slots) - 1)
    slot = np.int64(hash_) & mask
    while model.slots[slot] >= 0:
        if _same_word(model.file, model.places[model.slots[slot]], data, start, end):
            return np.int64(model.slots[slot])
        slot = (slot + 1) & mask
    return np.int64(-1)


@helper
def is_kept(model, bucket):
    """1 if the bucket of an n-gram has a row, 0 if it was pruned."""
    if not model.pruned:
        return np.int64(1)
    return np.int64((model.kept[np.uint64(bucket >> 6 << 1)] >> np.uint64(bucket & 63)) & np.uint64(1))


@helper
def row_of_kept(model, bucket):
    """The row in the input matrix of a bucket that is kept."""
    if not model.pruned:
        return model.words + bucket
    block = np.uint64(bucket >> 6 << 1)
    below = model.kept[block] & ((np.uint64(1) << np.uint64(bucket & 63)) - np.uint64(1))
    rank = np.int64(model.kept[block + np.uint64(1)]) + how_many(below)
    return model.words + (np.int64(model.kept_rows[rank]) if len(model.kept_rows) else rank)


@helper
def _remainder(model, hash_):
    """`hash_ % buckets` by a multiplication, at a third of the cost of a division; the quotient may be one off."""
    bucket = np.int64(hash_) - np.int64(np.float64(hash_) * model.per_bucket) * model.buckets
    if bucket < 0:
        return bucket + model.buckets
    return bucket - model.buckets if bucket >= model.buckets else bucket


@helper
def _byte_between_marks(data, start, length, i):
    """Byte i of the token written as `<token>`."""
    if i == 0:
        return np.uint8(60)
    if i > length:
        return np.uint8(62)
    return data[start + i - 1]


@inlined
def add_subwords(model, data, start, end, buckets, total):
    """Adds the rows of all character n-grams of `<token>` to `total`; returns their number. `buckets` is scratch
    memory. Whether a bucket is kept is unpredictable to the processor, so buckets are collected without a branch and
    looked up afterwards."""
    rows, waiting = np.int64(0), np.int64(0)
    length = np.int64(end - start)
    for first in range(length + 2):
        if _byte_between_marks(data, start, length, first) & 0xC0 == 0x80:
            continue
        if waiting + model.longest_ngram > len(buckets):
            rows += _add_found(model, buckets, waiting, total)
            waiting = np.int64(0)
        hash_ = FNV_START
        i = first
        characters = 0
        while i < length + 2 and characters < model.longest_ngram:
            hash_ = hashed(hash_, _byte_between_marks(data, start, length, i))
            i += 1
            while i <= length and data[start + i - 1] & 0xC0 == 0x80:
                hash_ = hashed(hash_, data[start + i - 1])
                i += 1
            characters += 1
            if characters >= model.shortest_ngram and not (characters == 1 and (first == 0 or i == length + 2)):
                bucket = _remainder(model, hash_)
                buckets[waiting] = bucket
                waiting += is_kept(model, bucket)
    return rows + _add_found(model, buckets, waiting, total)


@inlined
def _add_found(model, buckets, count, total):
    for i in range(count):
        add_row(model, row_of_kept(model, buckets[i]), total)
    return count


@inlined
def add_row(model, row, total):
    """Adds a row of the input matrix, plain or quantised by centroids (Jégou et al. 2011)."""
    if model.codes_each == 0:
        start = model.input_at + row * model.dim * 4
        for d in range(model.dim):
            total[d] += float_at(model.input, start + 4 * d)
        return
    norm = np.float32(1.0)
    if model.norm_codes_at >= 0:
        norm = model.norms[model.input[model.norm_codes_at + row]]
    codes = model.input_at + row * model.codes_each
    d = 0
    for part in range(model.codes_each):
        width = min(model.part_width, model.dim - d)
        centroid = part * 256 * model.part_width + np.int64(model.input[codes + part]) * width
        for i in range(width):
            total[d + i] += norm * model.centroids[centroid + i]
        d += width
