"""fastText's predictions for a whole column of texts: labels and probabilities, without Python or the GIL for each
document.

A text is the mean of the rows of its words, their character n-grams and the n-grams of words (Joulin et al. 2017).
Words repeat, so a word's sum of rows is cached in a small table. Sums of a text are in double precision and in text
order, so that neither the cache nor other texts change a result. A newline is a space here (the package refuses it),
and the line ends with the text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gristmill.kernels.base.bare import inlined
from gristmill.kernels.base.compiled import kernel
from gristmill.kernels.base.types import Array, Bytes, Offsets
from gristmill.kernels.language.fasttext_bytes import END, LABEL_PREFIX, begins, equal, is_space, spelt
from gristmill.kernels.language.labels import best_labels
from gristmill.kernels.language.vocabulary import (
    FNV_START,
    WORD_NGRAM_FACTOR,
    add_row,
    add_subwords,
    find_word,
    hashed,
    is_kept,
    row_of_kept,
)
from gristmill.kernels.language.word_rows import AHEAD, REMEMBERED, average_word_rows

Averaging = Callable[[Offsets, Array, Array, Array], None]

REMEMBERED_BYTES = 2 << 20  # of word sums, while a column is read; more of them do not stay near the processor
LONGEST_REMEMBERED = 64  # bytes; longer tokens seldom come twice
BYTES_OF_A_WORD = 4  # at least, of most texts
SLICE = 2048  # texts whose sums are held at a time


class Model(NamedTuple):
    """A model for kernels. `file` is mapped; small tables are copies beside it."""

    file: Bytes
    places: Offsets  # of words, then labels
    slots: Array  # int32: hash table of them
    kept: Array  # uint64: for each 64 buckets a bit for each that pruning kept, and how many it kept before these
    kept_rows: Array  # int32: the row of each, in order of buckets; empty if the rows are in that order
    centroids: Array  # float32: of the input's codes; empty for a plain matrix
    norms: Array  # float32: centroids of the norms
    input: Bytes  # the file again, or float32 matrix_RD worked out of its codes where that is small
    output: Bytes  # float32 matrix_LD, unaligned
    left: Array  # int32: children of the inner nodes of the tree of labels
    right: Array
    pruned: bool
    words: int
    labels: int
    dim: int
    buckets: int
    per_bucket: float  # 1 / buckets
    shortest_ngram: int
    longest_ngram: int
    word_ngrams: int
    loss: int
    input_at: int  # where in `input` the plain matrix begins, or the codes
    codes_each: int  # 0 for a plain matrix
    part_width: int
    norm_codes_at: int  # -1 without
    end_row: int  # of the end of a line, `</s>`; -1 if the model does not know it


def predict(model: Model, data: Bytes, offsets: Offsets, wanted: Array, top: int = 1) -> tuple[Array, Array]:
    """labels int32_NK (-1 is none) and probabilities float32_NK, best first, of the texts that are `wanted`; the others
    have none."""
    count, top = len(offsets) - 1, min(top, model.labels)
    labels, scores = np.empty((count, top), np.int32), np.empty((count, top), np.float32)
    average = (
        _by_words(model, data) if only_words(model) else _by_subwords(model, data, int(np.diff(offsets)[wanted].sum()))
    )
    hidden, rows = np.empty((min(count, SLICE), model.dim), np.float32), np.empty(min(count, SLICE), np.int64)
    for start in range(0, count, SLICE):
        end = min(start + SLICE, count)
        average(offsets[start : end + 1], wanted[start:end], hidden, rows)
        best_labels(model, hidden, rows, labels[start:end], scores[start:end])
    return labels, scores


def only_words(model: Model) -> bool:
    """Whether it has a plain row for each word and each word n-gram, and none for character n-grams."""
    return model.longest_ngram == 0 and not model.codes_each and not model.pruned


def _by_words(model: Model, data: Bytes) -> Averaging:
    starts, keys = np.zeros(REMEMBERED, np.int64), np.zeros((REMEMBERED, 2), np.int64)
    numbers, ngrams = np.empty(REMEMBERED, np.int64), np.empty(max(model.word_ngrams - 1, 0), np.uint64)
    waiting, total = np.empty(AHEAD + 1 + len(ngrams), np.int64), np.empty(model.dim, np.float64)

    def average(offsets: Offsets, wanted: Array, hidden: Array, rows: Array) -> None:
        average_word_rows(model, data, offsets, wanted, starts, keys, numbers, ngrams, waiting, total, hidden, rows)

    return average


def _by_subwords(model: Model, data: Bytes, size: int) -> Averaging:
    """`size` is the bytes of the texts: of few, fewer words are remembered, for memory that is new takes time."""
    most = min(REMEMBERED_BYTES // (4 * model.dim), size // BYTES_OF_A_WORD)
    remembered = max(64, 1 << max(most, 1).bit_length() - 1)
    starts, keys = np.zeros(remembered, np.int64), np.zeros((remembered, 3), np.uint32)
    sums = np.empty((remembered, model.dim), np.float32)

    def average(offsets: Offsets, wanted: Array, hidden: Array, rows: Array) -> None:
        average_rows(model, data, offsets, wanted, starts, keys, sums, hidden, rows)

    return average


@kernel
def average_rows(model, data, offsets, wanted, starts, keys, sums, hidden, rows):
    """hidden_ND, the mean of all rows of each text, and the number of rows. `starts`, `keys` and `sums` are the cache
    of words."""
    total, word = np.empty(model.dim, np.float64), np.empty(model.dim, np.float64)
    buckets = np.empty(1024, np.int64)
    ngrams = np.empty(max(model.word_ngrams - 1, 0), np.uint64)
    end_hash = FNV_START
    for byte in (60, 47, 115, 62):
        end_hash = hashed(end_hash, byte)
    slots = len(starts)
    for document in range(len(offsets) - 1):
        rows[document] = 0
        if not wanted[document]:
            continue
        total[:] = 0
        count, open_ngrams = np.int64(0), 0
        i, end = offsets[document], offsets[document + 1]
        ended = False
        while not ended:
            while i < end and is_space(data[i]):
                i += 1
            start, hash_ = i, FNV_START
            while i < end and not is_space(data[i]):
                hash_ = hashed(hash_, data[i])
                i += 1
            length = i - start
            ended = length == 0 or (hash_ == end_hash and spelt(data, start, i, END))
            if ended:  # the end of the text, or `</s>` in it, which is the end for fastText
                hash_ = end_hash
                if model.end_row >= 0:
                    add_row(model, model.end_row, total)
                    count += 1
            elif length <= LONGEST_REMEMBERED:
                slot = np.int64(hash_ >> np.uint32(7)) & (slots - 1)
                if not (
                    keys[slot, 0] == length and keys[slot, 1] == hash_ and equal(data, starts[slot], start, length)
                ):
                    keys[slot, 2] = _sum_word(model, data, start, i, hash_, buckets, word)
                    keys[slot, 0], keys[slot, 1], starts[slot] = length, hash_, start
                    for d in range(model.dim):
                        sums[slot, d] = word[d]
                if keys[slot, 2] == LABEL:
                    continue
                for d in range(model.dim):
                    total[d] += sums[slot, d]
                count += keys[slot, 2]
            else:
                more = _sum_word(model, data, start, i, hash_, buckets, word)
                if more == LABEL:
                    continue
                for d in range(model.dim):
                    total[d] += np.float32(word[d])
                count += more
            if model.word_ngrams > 1:
                signed = np.uint64(np.int64(np.int32(hash_)))
                for n in range(open_ngrams):
                    ngrams[n] = ngrams[n] * WORD_NGRAM_FACTOR + signed
                    bucket = np.int64(ngrams[n] % np.uint64(model.buckets))
                    if is_kept(model, bucket):
                        add_row(model, row_of_kept(model, bucket), total)
                        count += 1
                if open_ngrams == len(ngrams):
                    for n in range(1, open_ngrams):
                        ngrams[n - 1] = ngrams[n]
                    open_ngrams -= 1
                ngrams[open_ngrams] = signed
                open_ngrams += 1
        rows[document] = count
        share = np.float32(1.0 / count) if count else np.float32(0)
        for d in range(model.dim):
            hidden[document, d] = np.float32(total[d]) * share


LABEL = np.uint32(0xFFFFFFFF)  # in place of a count: the token is a label, and labels in a text are passed over


@inlined
def _sum_word(model, data, start, end, hash_, buckets, word):
    """The sum of the rows of a token, and their number; LABEL for a label."""
    word[:] = 0
    number = find_word(model, data, start, end, hash_)
    if number >= model.words or (number < 0 and begins(data, start, end, LABEL_PREFIX)):
        return LABEL
    rows = np.int64(0)
    if number >= 0:
        add_row(model, number, word)
        rows += 1
    if model.longest_ngram > 0:
        rows += add_subwords(model, data, start, end, buckets, word)
    return np.uint32(rows)
