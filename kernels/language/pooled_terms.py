"""Texts as several means and a maximum of embeddings of hashed words, word pairs and separators: what pooled judges
read.

Terms of a text, in order: for each word what separates it from the one before (unless that is one space), the word, and
the pair with the one before. Words are those of `gristmill.kernels.words.token_rules`. A term's row in the table is
given by the highest bits of its hash. A row of 64 bytes in int8 is one cache line, where fastText reads seven.

Sums are taken in text order, blocks of BLOCK terms in single precision and their totals in double: equal for any batch
and any machine.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from gristmill.kernels.base.bare import helper, inlined, kernel
from gristmill.kernels.base.columns import TextColumn
from gristmill.kernels.base.splitmix import ALL, mixed, mixed_plain
from gristmill.kernels.base.types import Array, Offsets
from gristmill.kernels.base.wide import larger
from gristmill.kernels.language.word_rows import prefetch
from gristmill.kernels.words.token_rules import SHINGLE_STEP, token_hash_plain, tokens_plain
from gristmill.kernels.words.tokens import token_column

EDGE = 64  # terms of the beginning, and of the end, that have a mean of their own
BLOCK = 32  # terms whose rows are prefetched, and then summed
POOLINGS = ("gated", "mean", "max", "first", "last")
CODES = 256  # of an int8 gate

_PAIR, _GAP = 0x8EBC6AF09C88C6E3, 0x589965CC75374CC3
_STEP, _PAIR_SALT, _GAP_SALT = np.uint64(SHINGLE_STEP), np.uint64(_PAIR), np.uint64(_GAP)
_LENGTH = 0x1D8E4E27C47D124F
_GAP_LENGTH = np.uint64(_LENGTH)
_GAP_BYTES = 8  # that tell separators apart


class TermRows(NamedTuple):
    """Text i has the terms `rows[first[i]:first[i + 1]]`, in text order, with repeats."""

    rows: Array  # int32
    first: Offsets


class Embeddings(NamedTuple):
    """table_RW, int8 or float32. Column 0 is the gate of a term, by which its other columns weigh in the gated mean: in
    float32 the gate itself, in int8 a code for one of `gates`."""

    table: Array
    gates: Array  # float32_256


def feature_count(width: int) -> int:
    """Of rows of `width` numbers: a vector of each pooling, and the logarithm of the number of terms."""
    return len(POOLINGS) * (width - 1) + 1


def beginnings(column: TextColumn, most: int) -> TextColumn:
    """The first `most` bytes of each text, cut where a character ends."""
    offsets = np.zeros_like(column.offsets)
    data = np.empty(int(np.minimum(np.diff(column.offsets), most).sum()), np.uint8)
    _beginnings(column.data, column.offsets, np.int64(most), data, offsets)
    for array in (data, offsets):
        array.flags.writeable = False
    return TextColumn(data, offsets)


def term_rows(column: TextColumn, bits: int) -> TermRows:
    """The rows, below 2**bits, of the terms of each text."""
    tokens = token_column(column)
    rows, first = np.empty(3 * len(tokens.hashes) + len(column), np.int32), np.zeros(len(column) + 1, np.int64)
    _term_rows(
        column.data,
        column.offsets,
        tokens.hashes,
        tokens.starts,
        tokens.ends,
        tokens.first,
        np.uint64(64 - bits),
        rows,
        first,
    )
    return TermRows(rows[: first[-1]], first)


def pooled(terms: TermRows, embeddings: Embeddings) -> Array:
    """float32_NP: the poolings one after the other, and ln(1 + terms). A text without terms has zeros."""
    width = embeddings.table.shape[1]
    out = np.zeros((len(terms.first) - 1, feature_count(width)), np.float32)
    sums = np.empty((3, width), np.float32)
    totals = np.empty((2, width), np.float64)
    _pooled(
        embeddings.table,
        embeddings.table.dtype == np.int8,
        embeddings.gates,
        terms.rows,
        terms.first,
        sums[0],
        sums[1],
        sums[2],
        totals,
        out,
    )
    return out


def perceptron(features: Array, weights: Array, bias: Array, last: Array, last_bias: Array) -> Array:
    """float64_NK of float32_NP: one hidden layer (weights_PH, bias_H, float32; negative values become 0), then last_HK
    and last_bias_K (float64)."""
    out = np.empty((len(features), last.shape[1]), np.float64)
    _perceptron(features, weights, bias, last, last_bias, np.empty(weights.shape[1], np.float32), out)
    return out


@kernel
def _beginnings(data, offsets, most, out, out_offsets):
    n = np.int64(0)
    for d in range(len(offsets) - 1):
        start, end = offsets[d], offsets[d + 1]
        if end - start > most:
            end = start + most
            while end > start and data[end] & 0xC0 == 0x80:
                end -= 1
        for i in range(start, end):
            out[n] = data[i]
            n += 1
        out_offsets[d + 1] = n


@helper
def _gap_row(data, start, end, shift):
    eight = np.uint64(0)
    for i in range(min(end - start, _GAP_BYTES)):
        eight |= np.uint64(data[start + i]) << np.uint64(8 * i)
    length = np.uint64(min(end - start, _GAP_BYTES + 1))
    return np.int32(mixed((eight ^ length * _GAP_LENGTH) + _GAP_SALT) >> shift)


@inlined
def _is_gap(data, start, end):
    return end - start > 1 or (end - start == 1 and data[start] != 32)


@kernel
def _term_rows(data, offsets, hashes, starts, ends, first_tokens, shift, rows, first):
    n = np.int64(0)
    for d in range(len(offsets) - 1):
        ended = offsets[d]
        begin = first_tokens[d]
        for k in range(begin, first_tokens[d + 1]):
            if _is_gap(data, ended, starts[k]):
                rows[n] = _gap_row(data, ended, starts[k], shift)
                n += 1
            rows[n] = np.int32(mixed(hashes[k]) >> shift)
            n += 1
            if k > begin:
                rows[n] = np.int32(mixed(hashes[k - 1] * _STEP + hashes[k] + _PAIR_SALT) >> shift)
                n += 1
            ended = ends[k]
        if _is_gap(data, ended, offsets[d + 1]):
            rows[n] = _gap_row(data, ended, offsets[d + 1], shift)
            n += 1
        first[d + 1] = n


@inlined
def _ask(table, row):
    size = table.strides[0]
    for byte in range(0, size, 64):
        prefetch(table, np.int64(row) * size + byte)
    prefetch(table, np.int64(row) * size + size - 1)


@inlined
def _mean_of_edge(table, rows, start, end, sums, out):
    sums[:] = 0
    for k in range(start, end):
        row = table[rows[k]]
        for c in range(len(sums)):
            sums[c] += np.float32(row[c])
    share = np.float32(1.0 / (end - start))
    for c in range(len(out)):
        out[c] = sums[c + 1] * share


@kernel
def _pooled(table, coded, gates, rows, first, gated, plain, peak, totals, out):
    """Scratch memory has a place for the gate's column too: loops over a power of two have no rest."""
    width = table.shape[1]
    dim = width - 1
    for d in range(len(first) - 1):
        start, end = first[d], first[d + 1]
        if start == end:
            continue
        totals[:] = 0
        weight = 0.0
        for c in range(width):
            peak[c] = np.float32(table[rows[start], c])
        for k in range(start, min(start + BLOCK, end)):
            _ask(table, rows[k])
        for block in range(start, end, BLOCK):
            until = min(block + BLOCK, end)
            for k in range(until, min(until + BLOCK, end)):
                _ask(table, rows[k])
            gated[:] = 0
            plain[:] = 0
            of_block = np.float32(0)
            for k in range(block, until):
                row = table[rows[k]]
                gate = gates[np.int64(row[0]) + 128] if coded else np.float32(row[0])
                of_block += gate
                for c in range(width):  # three loops, each of which the compiler makes vector instructions of
                    gated[c] += gate * np.float32(row[c])
                for c in range(width):
                    plain[c] += np.float32(row[c])
                for c in range(width):
                    peak[c] = larger(peak[c], np.float32(row[c]))
            weight += of_block
            for c in range(width):
                totals[0, c] += gated[c]
                totals[1, c] += plain[c]
        by_gate = 1.0 / weight if weight > 0 else 0.0
        for c in range(dim):
            out[d, c] = np.float32(totals[0, c + 1] * by_gate)
            out[d, dim + c] = np.float32(totals[1, c + 1] / (end - start))
            out[d, 2 * dim + c] = peak[c + 1]
        _mean_of_edge(table, rows, start, min(start + EDGE, end), gated, out[d, 3 * dim : 4 * dim])
        _mean_of_edge(table, rows, max(end - EDGE, start), end, gated, out[d, 4 * dim : 5 * dim])
        out[d, 5 * dim] = np.float32(np.log1p(float(end - start)))


@kernel
def _perceptron(features, weights, bias, last, last_bias, hidden, out):
    for d in range(len(features)):
        for j in range(len(hidden)):
            hidden[j] = bias[j]
        for i in range(features.shape[1]):
            value = features[d, i]
            for j in range(len(hidden)):
                hidden[j] += value * weights[i, j]
        for c in range(last.shape[1]):
            out[d, c] = last_bias[c]
        for j in range(len(hidden)):
            if hidden[j] > 0:
                for c in range(last.shape[1]):
                    out[d, c] += np.float64(hidden[j]) * np.float64(last[j, c])


def term_rows_plain(text: str, bits: int) -> list[int]:
    content = text.encode()
    terms: list[int] = []
    ended, before = 0, -1
    for start, end, token in tokens_plain(text):
        terms += _gap_plain(content[ended:start])
        hash_ = token_hash_plain(token)
        terms.append(mixed_plain(hash_))
        if before >= 0:
            terms.append(mixed_plain(before * SHINGLE_STEP + hash_ + _PAIR & ALL))
        ended, before = end, hash_
    terms += _gap_plain(content[ended:])
    return [term >> (64 - bits) for term in terms]


def _gap_plain(gap: bytes) -> list[int]:
    if gap in (b"", b" "):
        return []
    eight = int.from_bytes(gap[:_GAP_BYTES], "little")
    length = min(len(gap), _GAP_BYTES + 1)
    return [mixed_plain((eight ^ length * _LENGTH & ALL) + _GAP & ALL)]


def pooled_plain(rows: list[int], embeddings: Embeddings) -> Array:
    """In double precision: the kernel's numbers to about seven digits."""
    table = embeddings.table.astype(np.float64)
    if not rows:
        return np.zeros(feature_count(table.shape[1]))
    vectors = table[rows, 1:]
    codes = embeddings.table[rows, 0]
    gates = embeddings.gates[codes.astype(np.int64) + 128] if codes.dtype == np.int8 else codes
    gates = gates.astype(np.float64)
    gated = gates @ vectors / gates.sum() if gates.sum() > 0 else np.zeros(vectors.shape[1])
    poolings = [gated, vectors.mean(0), vectors.max(0), vectors[:EDGE].mean(0), vectors[-EDGE:].mean(0)]
    return np.concatenate([*poolings, [math.log1p(len(rows))]])
