"""Which words are common: learned from texts, or read from a list; what `rare_word_share` is measured against.

    python -m gristmill.stages.text.common_words common.npz SAMPLE.parquet ... [--most 100000]

Learned ones are kept as hashes of words, the most frequent first: no text of the sample is in the file. Nothing comes
with us, for what is rare is a question of the corpus, and lists of others have licenses of theirs.
"""

from __future__ import annotations

import argparse
import zipfile
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.kernels.base.columns import TextColumn, text_column
from gristmill.kernels.base.types import Array
from gristmill.kernels.measures.diversity import common_table, word_hash_plain, words_of, words_plain
from gristmill.stages.text.signals import slices

_AT_ONCE = 1 << 22  # words gathered before they are counted together


def learn_common_words(texts: Iterable[pa.Array], most: int = 100_000) -> Array:
    """The hashes of the most frequent words, most frequent first, those of equal frequency by hash. Words that begin
    with a digit are left out."""
    kept, counts, waiting, size = np.zeros(0, np.uint64), np.zeros(0, np.int64), list[Array](), 0
    for hashes in _word_hashes(texts):
        waiting.append(hashes)
        size += len(hashes)
        if size >= _AT_ONCE:
            kept, counts = _added_up(kept, counts, waiting)
            waiting, size = [], 0
    kept, counts = _added_up(kept, counts, waiting)
    return kept[np.lexsort((kept, -counts))][:most]


def _word_hashes(texts: Iterable[pa.Array]) -> Iterator[Array]:
    for array in texts:
        column = text_column(array)
        for start, stop in slices(column.offsets):
            words = words_of(TextColumn(column.data, column.offsets[start : stop + 1]))
            count = words.first[-1]
            first = column.data[words.starts[:count]]
            yield words.hashes[:count][(first < ord("0")) | (first > ord("9"))]


def _added_up(kept: Array, counts: Array, more: list[Array]) -> tuple[Array, Array]:
    new, again = np.unique(np.concatenate([np.zeros(0, np.uint64), *more]), return_counts=True)
    together, place = np.unique(np.concatenate([kept, new]), return_inverse=True)
    sums = np.zeros(len(together), np.int64)
    np.add.at(sums, place, np.concatenate([counts, again]))
    return together, sums


def common_words_of(path: str | None, common: int) -> Array:
    """The table that kernels look the first `common` words of a file up in; without a file no word is common."""
    if path is None:
        return common_table(np.zeros(0, np.uint64))
    try:
        stamp = Path(path).stat()
    except OSError as error:
        raise ValueError(f"common_words: no file {path}") from error
    return _read(path, common, stamp.st_mtime_ns, stamp.st_size)


@lru_cache(4)
def _read(path: str, common: int, _changed: int, _size: int) -> Array:
    if path.endswith(".npz"):
        try:
            with np.load(path, allow_pickle=False) as file:
                hashes = file["hashes"]
        except (ValueError, KeyError, OSError, EOFError, TypeError, zipfile.BadZipFile) as error:
            raise ValueError(
                f"common_words: {path} is none that `python -m gristmill.stages.text.common_words` made: {error}"
            ) from error
        if hashes.dtype != np.uint64 or hashes.ndim != 1:
            raise ValueError(
                f"common_words: {path} holds {hashes.dtype} of {hashes.ndim} dimensions; expected a row of uint64"
            )
    else:
        lines = Path(path).read_text("utf-8-sig").splitlines()
        hashes = np.array([word_hash_plain(words[0]) for line in lines if (words := words_plain(line))], np.uint64)
    if not len(hashes):
        raise ValueError(f"common_words: {path} holds no word")
    return common_table(hashes[:common])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", help="the file to make, .npz")
    parser.add_argument("tables", nargs="+", help="Parquet files with a column `text`")
    parser.add_argument("--most", type=int, default=100_000, help="how many words to keep")
    given = parser.parse_args()
    texts = (
        batch.column(0)
        for table in given.tables
        for batch in pq.ParquetFile(table).iter_batches(batch_size=1000, columns=["text"])
    )
    np.savez(given.out, hashes=learn_common_words(texts, given.most))


if __name__ == "__main__":
    main()
