"""Reads fastText models, `.bin` and `.ftz`, as arrays over the mapped file: all processes of a machine share one copy
of the matrices.

The format is that of fastText 0.9 (versions 11 and 12 of the file), known from its source (dictionary.cc,
densematrix.cc, quantmatrix.cc, productquantizer.cc, loss.cc; MIT). Everything that a kernel uses as a place or a row is
checked here, once.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from gristmill.kernels.base.code_cache import cache_folder
from gristmill.kernels.base.types import Array, Bytes, Offsets
from gristmill.kernels.language.fasttext_bytes import END, LABEL_PREFIX
from gristmill.kernels.language.labels import HIERARCHICAL, ONE_VS_ALL
from gristmill.kernels.language.language import Model, predict
from gristmill.kernels.language.vocabulary import ENTRY_TAIL, fill_slots, word_places

MAGIC, OLDEST, NEWEST = 793712314, 11, 12
SUPERVISED = 3
SANE_NGRAM = 100  # no model has longer n-grams, and the cost of a text grows with their length
CENTROIDS = 256
# Codes are expanded once into a matrix of at most this size, which makes prediction twice as fast.
EXPANDED_BYTES = 16 << 20


class ModelFileError(ValueError):
    """A file that is no fastText classifier, or a damaged one."""


@dataclass(frozen=True)
class FastText:
    """A classifier: its labels, without `__label__`, and what it says of a column of texts."""

    labels: tuple[str, ...]
    model: Model

    def predict(self, data: Bytes, offsets: Offsets, wanted: Array | None = None, top: int = 1) -> tuple[Array, Array]:
        """Numbers of labels (-1 is none) and probabilities, best first; `wanted` is a mask of the texts to judge (all
        of them)."""
        return predict(
            self.model, data, offsets, np.ones(len(offsets) - 1, np.bool_) if wanted is None else wanted, top
        )


def load(path: str | os.PathLike[str]) -> FastText:
    """The model of a file. A process maps a file once, and again when it has changed."""
    where = Path(path)
    try:
        facts = where.stat()
        return _load(str(where), facts.st_mtime_ns, facts.st_size)
    except OSError as error:
        if error.errno == errno.ENOSPC:  # of the kernels that read it
            raise ModelFileError(f"{cache_folder()}: no space is left for compiled code") from error
        raise ModelFileError(f"{where}: the model cannot be read ({error.strerror})") from error


def from_bytes(content: bytes, name: str) -> FastText:
    """The model of a file's content; `name` is what errors call it."""
    return _Reader(name, np.frombuffer(content, np.uint8)).classifier()


@lru_cache(maxsize=4)
def _load(path: str, stamp: int, size: int) -> FastText:
    with Path(path).open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    return _Reader(path, np.frombuffer(mapped, np.uint8)).classifier()


class _Dictionary(NamedTuple):
    words: int
    places: Offsets  # of words, then labels
    slots: Array
    label_counts: Array
    pruned: int  # how many n-grams pruning left; -1 where nothing was pruned


class _Matrix(NamedTuple):
    """Rows of floats, or of codes: a byte for each part of a row, which stands for one of 256 centroids."""

    rows: int
    dim: int
    start: int  # byte of the file
    codes_each: int = 0
    part_width: int = 0
    centroids: Array = np.zeros(0, np.float32)
    norm_codes_at: int = -1
    norms: Array = np.zeros(0, np.float32)


class _Reader:
    """A place in the file, moved on by what is read; nothing is read beyond the end."""

    def __init__(self, path: str, file: Bytes) -> None:
        self.path, self.file, self.position = path, file, 0

    def fail(self, what: str) -> NoReturn:
        raise ModelFileError(
            f"{self.path}: not a fastText classifier, or a damaged one: {what} (byte {self.position:,} of "
            f"{len(self.file):,})"
        )

    def skip(self, size: int, what: str) -> int:
        """Where a stretch begins that is `size` bytes long."""
        start = self.position
        if size < 0 or size > len(self.file) - start:
            self.fail(f"{what} would take {size:,} bytes, and {len(self.file) - start:,} are left")
        self.position += size
        return start

    def numbers(self, layout: str, what: str) -> tuple[Any, ...]:
        start = self.skip(struct.calcsize(layout), what)
        return struct.unpack(layout, self.file[start : self.position].tobytes())

    def array(self, kind: str, count: int, what: str) -> Array:
        dtype = np.dtype(kind)
        start = self.skip(count * dtype.itemsize, what)
        return np.frombuffer(self.file[start : self.position].tobytes(), dtype)  # a copy, aligned

    def classifier(self) -> FastText:
        mark, version = self.numbers("<2i", "the header")
        if mark != MAGIC:
            self.fail("it does not begin with fastText's mark")
        if not OLDEST <= version <= NEWEST:
            self.fail(f"the format is version {version}, and {OLDEST} to {NEWEST} can be read")
        dim, _, _, _, _, word_ngrams, loss, kind, buckets, shortest, longest, _, _ = self.numbers(
            "<12id", "the settings"
        )
        if kind != SUPERVISED:
            self.fail("it holds word vectors and no labels")
        if not HIERARCHICAL <= loss <= ONE_VS_ALL:
            self.fail(f"there is no loss of number {loss}")
        # Older classifiers had no character n-grams.
        longest = 0 if version == OLDEST or longest < shortest else longest
        if not (dim > 0 and buckets >= 0 and word_ngrams <= SANE_NGRAM and longest <= SANE_NGRAM):
            self.fail(f"dimension {dim}, {buckets} buckets, n-grams of {word_ngrams} words and {longest} characters")
        hashes = longest > 0 or word_ngrams > 1
        if hashes and not buckets:
            self.fail("it has n-grams and no buckets for them")
        dictionary = self.dictionary()
        kept, kept_rows = self.pruning(dictionary.pruned, buckets)
        (quantised,) = self.numbers("<?", "the kind of the input matrix")
        rows = self.codes("the input matrix") if quantised else self.plain("the input matrix")
        if dictionary.pruned >= 0 and not quantised:
            self.fail("the dictionary is pruned and the matrix is not (fastText's issue 332)")
        (quantised_output,) = self.numbers("<?", "the kind of the output matrix")
        outputs = self.codes("the output matrix") if quantised and quantised_output else self.plain("the output matrix")
        labels = len(dictionary.label_counts)
        if rows.dim != dim or outputs.dim != dim or outputs.rows != labels:
            self.fail(
                f"{labels} labels and dimension {dim}, but matrices of {rows.rows} x {rows.dim} and {outputs.rows} x "
                f"{outputs.dim}"
            )
        highest = dictionary.words + (
            0 if not hashes else int(kept_rows.max(initial=-1)) + 1 if dictionary.pruned >= 0 else buckets
        )
        if highest > rows.rows:
            self.fail(f"its dictionary points to row {highest - 1:,} of {rows.rows:,}")
        source = self.file
        if quantised and rows.rows * dim * 4 <= EXPANDED_BYTES:
            source, rows = self.floats(rows), _Matrix(rows.rows, dim, 0)
            if hashes and dictionary.pruned >= 0 and (dictionary.words + len(kept_rows)) * dim * 4 <= EXPANDED_BYTES:
                order = np.concatenate([np.arange(dictionary.words), dictionary.words + kept_rows])
                source, kept_rows = source.reshape(-1, dim * 4)[order].reshape(-1), kept_rows[:0]
        left_children, right_children = (
            self.tree(dictionary.label_counts.tolist()) if loss == HIERARCHICAL else ([], [])
        )
        return FastText(
            tuple(
                self.word(place).decode("utf-8", "replace").removeprefix(LABEL_PREFIX.decode())
                for place in dictionary.places[dictionary.words :]
            ),
            Model(
                file=_fixed(self.file),
                places=_fixed(dictionary.places),
                slots=_fixed(dictionary.slots),
                kept=_fixed(kept),
                kept_rows=_fixed(kept_rows),
                centroids=_fixed(rows.centroids),
                norms=_fixed(rows.norms),
                input=_fixed(source),
                output=_fixed(self.floats(outputs)),
                left=_fixed(np.array(left_children, np.int32)),
                right=_fixed(np.array(right_children, np.int32)),
                pruned=dictionary.pruned >= 0,
                words=dictionary.words,
                labels=labels,
                dim=dim,
                buckets=buckets,
                per_bucket=1 / buckets if buckets else 0.0,
                shortest_ngram=shortest,
                longest_ngram=longest,
                word_ngrams=max(word_ngrams, 1),
                loss=loss,
                input_at=rows.start,
                codes_each=rows.codes_each,
                part_width=rows.part_width,
                norm_codes_at=rows.norm_codes_at,
                end_row=self.row_of(END, dictionary),
            ),
        )

    def dictionary(self) -> _Dictionary:
        entries, words, labels, _, pruned = self.numbers("<3i2q", "the header of the dictionary")
        if not (words >= 0 and labels > 0 and words + labels == entries):
            self.fail(f"{words:,} words and {labels:,} labels do not make {entries:,} entries")
        if entries > (len(self.file) - self.position) // ENTRY_TAIL:
            self.fail(f"{entries:,} entries do not fit into the file")
        places, label_counts = np.empty(entries, np.int64), np.empty(labels, np.int64)
        end = word_places(self.file, self.position, words, places, label_counts)  # type: ignore[no-untyped-call]
        if end < 0:
            self.fail(f"entry {-1 - end:,} of the dictionary is cut off or of the wrong kind")
        slots = np.full(1 << (2 * entries - 1).bit_length(), -1, np.int32)
        if not fill_slots(self.file, places, slots):  # type: ignore[no-untyped-call]
            self.fail("too many words of the dictionary share a hash")
        self.position = int(end)
        return _Dictionary(words, places, slots, label_counts, pruned)

    def pruning(self, pruned: int, buckets: int) -> tuple[Array, Array]:
        """The buckets that pruning kept as bits, with how many are kept before each 64 of them, and the row of each."""
        if pruned < 0:
            return np.zeros(0, np.uint64), np.zeros(0, np.int32)
        pairs = self.array("<i4", 2 * pruned, "the table of what pruning kept").reshape(-1, 2)[
            ::-1
        ]  # the last of equals counts
        bucket, first = np.unique(pairs[:, 0], return_index=True)
        rows = np.ascontiguousarray(pairs[first, 1])
        if pruned and not (bucket[0] >= 0 and bucket[-1] < buckets and rows.min() >= 0):
            self.fail("the table of what pruning kept points outside the buckets")
        bits = np.zeros((buckets // 64 + 1) * 8, np.uint8)
        np.bitwise_or.at(bits, bucket >> 3, (1 << (bucket & 7)).astype(np.uint8))
        in_block = np.bincount(bucket >> 6, minlength=len(bits) // 8)
        before = (np.cumsum(in_block) - in_block).astype(np.uint64)
        return np.stack([bits.view("<u8"), before], axis=1).reshape(-1), rows

    def plain(self, what: str) -> _Matrix:
        rows, dim = self.numbers("<2q", what)
        if rows < 0 or dim < 0:
            self.fail(f"{what} has {rows} x {dim} numbers")
        return _Matrix(rows, dim, self.skip(rows * dim * 4, what))

    def codes(self, what: str) -> _Matrix:
        has_norms, rows, dim, size = self.numbers("<?2qi", what)
        codes_at = self.skip(size, f"the codes of {what}")
        pq_dim, parts, width, last_width = self.numbers("<4i", f"the quantiser of {what}")
        if not (
            rows >= 0
            and 0 < dim == pq_dim
            and width > 0
            and parts == -(-dim // width)
            and last_width == dim - (parts - 1) * width
        ):
            self.fail(f"{what}: {parts} parts of {width}, the last of {last_width}, do not make {dim}, {pq_dim}")
        if size != rows * parts:
            self.fail(f"{what}: {size:,} codes for {rows:,} rows of {parts}")
        centroids = self.array("<f4", dim * CENTROIDS, f"the centroids of {what}")
        if not has_norms:
            return _Matrix(rows, dim, codes_at, parts, width, centroids)
        norms_at = self.skip(rows, f"the norms of {what}")
        if self.numbers("<4i", f"the quantiser of the norms of {what}") != (1, 1, 1, 1):
            self.fail(f"{what}: norms are not single numbers")
        return _Matrix(
            rows,
            dim,
            codes_at,
            parts,
            width,
            centroids,
            norms_at,
            self.array("<f4", CENTROIDS, f"the centroids of norms of {what}"),
        )

    def floats(self, matrix: _Matrix) -> Bytes:
        """A matrix as bytes of floats: a view into the file, or worked out where it is one of codes."""
        if not matrix.codes_each:
            return self.file[matrix.start : matrix.start + matrix.rows * matrix.dim * 4]
        codes = self.file[matrix.start : matrix.start + matrix.rows * matrix.codes_each].reshape(matrix.rows, -1)
        whole = np.empty((matrix.rows, matrix.dim), np.float32)
        for part in range(matrix.codes_each):
            start = part * matrix.part_width
            end = min(start + matrix.part_width, matrix.dim)
            whole[:, start:end] = matrix.centroids[start * CENTROIDS : end * CENTROIDS].reshape(CENTROIDS, -1)[
                codes[:, part]
            ]
        if matrix.norm_codes_at >= 0:
            # A damaged file may hold any number; texts it touches get no label.
            with np.errstate(over="ignore", invalid="ignore"):
                whole *= matrix.norms[self.file[matrix.norm_codes_at : matrix.norm_codes_at + matrix.rows]][:, None]
        return whole.reshape(-1).view(np.uint8)

    def tree(self, counts: list[int]) -> tuple[list[int], list[int]]:
        """Children of the inner nodes of the Huffman tree over labels; node i below `len(counts)` is label i."""
        weights, left_children, right_children = [*counts], [], []
        leaf, inner = len(counts) - 1, len(counts)
        never = 10**15  # the weight of a node that is not made yet

        def lightest() -> int:
            nonlocal leaf, inner
            if leaf >= 0 and weights[leaf] < (weights[inner] if inner < len(weights) else never):
                leaf -= 1
                return leaf + 1
            if inner == len(weights):
                self.fail("the counts of its labels make no tree")
            inner += 1
            return inner - 1

        for _ in range(len(counts) - 1):
            left_children.append(lightest())
            right_children.append(lightest())
            weights.append(weights[left_children[-1]] + weights[right_children[-1]])
        return left_children, right_children

    def word(self, place: int) -> bytes:
        end = place
        while self.file[end]:
            end += 1
        return self.file[place:end].tobytes()

    def row_of(self, word: bytes, dictionary: _Dictionary) -> int:
        """The row of a word, -1 where the model does not have it."""
        hash_ = 2166136261
        for byte in word:
            hash_ = (hash_ ^ byte) * 16777619 % 2**32
        slot = hash_ % len(dictionary.slots)
        while (number := int(dictionary.slots[slot])) >= 0:
            place = int(dictionary.places[number])
            if self.file[place : place + len(word) + 1].tobytes() == word + b"\0":
                return number if number < dictionary.words else -1
            slot = (slot + 1) % len(dictionary.slots)
        return -1


def _fixed(array: Array) -> Array:
    """Contiguous and read-only, so that kernels are compiled once for all models."""
    array = np.ascontiguousarray(array)
    array.flags.writeable = False
    return array
