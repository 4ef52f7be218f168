"""The mean of the rows of a text's words and word n-grams, for models without character n-grams, such as quality
classifiers.

Such a model's matrix has gigabytes, and nearly each word n-gram is a row that no cache holds: a processor that waits
for each takes three times as long as one that prefetches some rows. So rows are collected first, prefetched, and summed
a few words later, in the same order and in double precision as in `gristmill.kernels.language.language.average_rows`:
results are equal bit for bit. Speed: benchmarks/judges/judges.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gristmill.kernels.base.bare import helper, inlined, kernel
from gristmill.kernels.base.compiled import intrinsic, ir, types
from gristmill.kernels.language.fasttext_bytes import END, LABEL_PREFIX, begins, equal, is_space, spelt
from gristmill.kernels.language.vocabulary import FNV_PRIME, FNV_START, WORD_NGRAM_FACTOR, float_at

AHEAD = 32  # rows that are prefetched at a time; with 100 numbers each they fill half of the L1 cache
REMEMBERED = 1 << 15  # words whose numbers are cached
IS_LABEL = np.int64(-2)  # in place of a word's number


@intrinsic
def prefetch(typing: Any, data: Any, at: Any) -> Any:
    """Prefetches the cache line of byte `at` of an array of any type."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.gep(builder.bitcast(array.data, ir.IntType(8).as_pointer()), [arguments[1]])
        number = ir.IntType(32)
        prefetch = builder.module.declare_intrinsic(
            "llvm.prefetch", [place.type], ir.FunctionType(ir.VoidType(), [place.type, number, number, number])
        )
        builder.call(prefetch, [place, number(0), number(3), number(1)])  # to be read, to be kept, data
        return context.get_dummy_value()

    return types.void(data, types.int64), generate


@inlined
def _hashed(hash_, byte):
    return np.uint32((hash_ ^ np.uint32(np.int32(np.int8(byte)))) * FNV_PRIME)


@helper
def _number_of(file, places, slots, words, data, start, end, hash_):
    """The number of a word; -1 for an unknown word, IS_LABEL for a label."""
    mask = np.int64(len(slots) - 1)
    slot = np.int64(hash_) & mask
    while slots[slot] >= 0:
        number = np.int64(slots[slot])
        place, i = places[number], np.int64(0)
        while i < end - start and file[place + i] == data[start + i]:
            i += 1
        if i == end - start and file[place + i] == 0:
            return number if number < words else IS_LABEL
        slot = (slot + 1) & mask
    return IS_LABEL if begins(data, start, end, LABEL_PREFIX) else np.int64(-1)


@inlined
def _ask(source, at, size):
    for byte in range(0, size, 64):
        prefetch(source, at + byte)
    prefetch(source, at + size - 1)


@helper
def _sum_rows(source, waiting, count, dim, total):
    for k in range(count):
        start = waiting[k]
        for d in range(dim):
            total[d] += float_at(source, start + 4 * d)


@kernel
def average_word_rows(model, data, offsets, wanted, starts, keys, numbers, ngrams, waiting, total, hidden, rows):
    """hidden_ND, the mean of all rows of each text, and the number of rows. `starts`, `keys` (length and hash) and
    `numbers` cache words; `ngrams` has a place for each word that an n-gram may begin with; `waiting` has room for
    AHEAD rows and those of one more word."""
    dim, words, size = np.int64(model.dim), np.int64(model.words), np.int64(model.dim) * 4
    file, places, slots, source, begin = model.file, model.places, model.slots, model.input, np.int64(model.input_at)
    buckets, end_row = np.uint64(model.buckets), np.int64(model.end_row)
    end_hash = FNV_START
    for byte in (60, 47, 115, 62):
        end_hash = _hashed(end_hash, byte)
    for document in range(len(offsets) - 1):
        rows[document] = 0
        if not wanted[document]:
            continue
        total[:] = 0
        count, held, open_ngrams = np.int64(0), np.int64(0), np.int64(0)
        i, end = offsets[document], offsets[document + 1]
        ended = False
        while not ended:
            while i < end and is_space(data[i]):
                i += 1
            start, hash_ = i, FNV_START
            while i < end and not is_space(data[i]):
                hash_ = _hashed(hash_, data[i])
                i += 1
            length = i - start
            ended = length == 0 or (hash_ == end_hash and spelt(data, start, i, END))
            if ended:  # the end of the text, or `</s>` in it, which is the end for fastText
                hash_, number = end_hash, end_row
            else:
                slot = np.int64(hash_ >> np.uint32(7)) & (len(starts) - 1)
                if not (
                    keys[slot, 0] == length and keys[slot, 1] == hash_ and equal(data, starts[slot], start, length)
                ):
                    numbers[slot] = _number_of(file, places, slots, words, data, start, i, hash_)
                    keys[slot, 0], keys[slot, 1], starts[slot] = length, hash_, start
                number = numbers[slot]
                if number == IS_LABEL:
                    continue
            if number >= 0:
                waiting[held] = begin + number * size
                _ask(source, waiting[held], size)
                held += 1
            if len(ngrams) > 0:
                signed = np.uint64(np.int64(np.int32(hash_)))
                for n in range(open_ngrams):
                    ngrams[n] = ngrams[n] * WORD_NGRAM_FACTOR + signed
                    waiting[held] = begin + (words + np.int64(ngrams[n] % buckets)) * size
                    _ask(source, waiting[held], size)
                    held += 1
                if open_ngrams == len(ngrams):
                    for n in range(1, open_ngrams):
                        ngrams[n - 1] = ngrams[n]
                    open_ngrams -= 1
                ngrams[open_ngrams] = signed
                open_ngrams += 1
            if held >= AHEAD or ended:
                _sum_rows(source, waiting, held, dim, total)
                count += held
                held = np.int64(0)
        rows[document] = count
        share = np.float32(1.0 / count) if count else np.float32(0)
        for d in range(dim):
            hidden[document, d] = np.float32(total[d]) * share
