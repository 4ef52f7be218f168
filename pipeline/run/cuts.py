"""Into how many buckets the rows of a round are cut, and which parts go together: by the data alone, never by workers.

Files times buckets are slices, and a slice costs its reader a third of a millisecond, however few bytes it has.
"""

from __future__ import annotations

import numpy as np

from gristmill.pipeline.flow.rows import StoredRows
from gristmill.pipeline.store.partitions import StoredDocuments, bucket_of, buckets_for, identity
from gristmill.pipeline.store.records import Part

ROWS_A_BUCKET = 1_000_000
MOST_BUCKETS = 1 << 14
BUCKETS_FOR_WORK = 4  # of few rows in many parts, so that more than one worker has something to do
HOMES = 64  # buckets of few rows that go home to many parts
BYTES_A_HOME = 64 << 20  # of text, which the task of a home reads
BYTES_SAVED = 256 << 20  # of a file of a saved index, which one task reads
MOST_SLICES = 1 << 16  # files times buckets, a third of a millisecond each; of more, rows are regrouped on the way
ROWS_A_GROUP = 100_000
BYTES_A_GROUP = 32 << 20
MOST_GROUPS = 1 << 14  # then groups grow: files times buckets are slices, and a slice should not be a few bytes
PARTS_ALONE = 1024  # up to so many parts, each is a task of its own


def cut_for(rows: float, by: str, parts: int, text_bytes: int) -> int:
    """Into how many buckets a round cuts its rows: few rows into few. Rows that go home to the documents of so many
    parts get more, for each part's worker wants its own."""
    homes = max(HOMES, text_bytes // BYTES_A_HOME)
    least = min(parts, homes) if by == "home" else BUCKETS_FOR_WORK if parts > 1 else 1
    return max(buckets_for(int(rows), ROWS_A_BUCKET, MOST_BUCKETS), buckets_for(least, 1, MOST_BUCKETS))


def cut_of(files: int, buckets: int) -> int:
    """Into how many buckets so many files are cut, where what comes after wants `buckets`: fewer where slices would be
    too many, and then they are regrouped."""
    return buckets if files * buckets <= MOST_SLICES else 1 << (buckets.bit_length() - 1) // 2


def files_saved(rows: StoredRows) -> int:
    """How many files hold the rows of a saved index, each with some of the buckets."""
    return min(rows.buckets, buckets_for(rows.bytes, BYTES_SAVED, MOST_BUCKETS))


def groups(documents: StoredDocuments) -> list[tuple[str, list[Part]]]:
    """Which parts are mapped together: each alone while they are few, by their home where they are many."""
    if len(documents.parts) <= PARTS_ALONE:
        return [(p["key"], [p]) for p in documents.parts if p["kept"]]
    buckets = min(
        buckets_for(documents.rows, ROWS_A_GROUP, MOST_GROUPS), buckets_for(len(documents.parts), 1, MOST_GROUPS)
    )
    buckets = max(
        buckets,
        min(
            buckets_for(documents.text_bytes, BYTES_A_GROUP, MOST_GROUPS),
            buckets_for(len(documents.parts), 1, MOST_GROUPS),
        ),
    )
    return [
        (f"group {b}", kept) for b, parts in by_bucket(documents, buckets) if (kept := [p for p in parts if p["kept"]])
    ]


def of_files(rows: StoredRows) -> list[StoredRows]:
    """Rows by groups of their files, about as many groups as files in each."""
    each = 1 << (len(rows.files).bit_length() // 2)
    return [
        StoredRows(rows.files[first : first + each], rows.buckets, rows.by) for first in range(0, len(rows.files), each)
    ]


def by_bucket(documents: StoredDocuments, buckets: int) -> list[tuple[int, list[Part]]]:
    buckets_of_parts = bucket_of(np.array([p["home"] for p in documents.parts], dtype=np.uint64), buckets)
    by_bucket: dict[int, list[Part]] = {}
    for bucket, part in zip(buckets_of_parts.tolist(), documents.parts, strict=True):
        by_bucket.setdefault(int(bucket), []).append(part)
    return sorted(by_bucket.items())


def of_parts(parts: list[Part]) -> list[str]:
    return [identity(p) for p in parts]


def bytes_of(parts: list[Part]) -> int:
    return sum(part["text_bytes"] for part in parts)
