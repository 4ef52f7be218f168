"""MinHash signatures of documents for datasketch and DataTrove, in their own families of hash functions.

Both are over the shingles of `minhash_dedup` (five words), not over theirs: signatures of one set compare with each
other, and with a text whose signature is made from `gristmill.stages.others.indexes.shingles_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gristmill.shards.export.export import Options
from gristmill.stages.others.indexes import LEAN, shingles_of
from gristmill.stages.others.signatures import datasketch_places, datatrove_places, lean_minhashes, signatures_of

NGRAM = 5
PLACES = 128  # datasketch's own default
BUCKETS, ROWS = 14, 8  # DataTrove's
AT_ONCE = 1000


def batches(path: Path) -> Iterator[pa.RecordBatch]:
    names = [name for name in ("uid", "id", "url", "text") if name in pq.read_schema(path).names]
    with pq.ParquetFile(path) as file:
        yield from file.iter_batches(AT_ONCE, columns=names)


def write_datasketch(files: list[Path], folder: Path, options: Options, progress: Callable[[int], None]) -> int:
    """Parquet with `uid`, `id` and `url` of each document that has words, and `lean_minhash`."""
    places, done, written = datasketch_places(PLACES), 0, 0
    for number, path in enumerate(files):
        tables = []
        for batch in batches(path):
            hashes, first = shingles_of(batch.column("text"), NGRAM)
            there = np.flatnonzero(np.diff(first))
            signatures = signatures_of(hashes, first, places)[there]
            rest = pa.Table.from_batches([batch]).drop_columns("text").take(pa.array(there))
            if not rest.column_names:
                rest = pa.table({"key": [f"{number:06}-{done + row:08}" for row in there.tolist()]})
            tables.append(rest.append_column(LEAN, pa.array(lean_minhashes(signatures), pa.binary())))
            done += len(batch)
        if tables:
            table = pa.concat_tables(tables)
            pq.write_table(table, folder / f"{number:05}.parquet", compression="zstd")
            written += len(table)
        progress(done)
    return written


def write_datatrove_minhash(files: list[Path], folder: Path, options: Options, progress: Callable[[int], None]) -> int:
    """`bucket_BBB/RRRRR.minhash.sig` with the settings of `MinhashConfig()`. R is the number of the file, and documents
    are numbered as DataTrove's ParquetReader gives them: those with a text, in the order of the file."""
    places, done, written = datatrove_places(BUCKETS * ROWS), 0, 0
    record = np.dtype([(f"field{at}", "<u8") for at in range(ROWS)] + [("document", "<u4")])
    for bucket in range(BUCKETS):
        (folder / f"bucket_{bucket:03d}").mkdir()
    for number, path in enumerate(files):
        signatures, documents, seen = [np.zeros((0, BUCKETS * ROWS), np.uint64)], [np.zeros(0, np.int64)], 0
        for batch in batches(path):
            texts = batch.column("text").filter(pc.not_equal(pc.fill_null(batch.column("text"), ""), ""))
            hashes, first = shingles_of(texts, NGRAM)
            there = np.flatnonzero(np.diff(first))
            signatures.append(signatures_of(hashes, first, places)[there])
            documents.append(seen + there)
            seen += len(texts)
            done += len(batch)
        values, numbers = np.concatenate(signatures), np.concatenate(documents)
        for bucket in range(BUCKETS):
            rows = np.empty(len(values), record)
            for at in range(ROWS):
                rows[f"field{at}"] = values[:, bucket * ROWS + at]
            rows["document"] = numbers
            rows.sort(order=record.names)
            (folder / f"bucket_{bucket:03d}" / f"{number:05}.minhash.sig").write_bytes(rows.tobytes())
        written += len(values)
        progress(done)
    return written
