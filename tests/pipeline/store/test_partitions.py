"""Documents of a partition: written with and without compression, read whole and in part."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.pipeline.store import partitions
from gristmill.pipeline.store.partitions import (
    ROW,
    DocumentsWriter,
    identity,
    new_part,
    read_part,
    write_every_row,
)
from gristmill.pipeline.store.records import Partition
from gristmill.pipeline.store.storage import Store

ROWS, GROUP = 100, 8


@pytest.fixture(autouse=True)
def small_row_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "BATCH_ROWS", GROUP)


def part_with_all_beside(store: Store, compress: bool) -> Partition:
    """Documents in 13 row groups, every seventh out, with signals beside."""
    uids = np.random.default_rng(0).permutation(ROWS).astype(np.uint64)
    texts = [f"text {uid}" * 9 for uid in uids]
    writer = DocumentsWriter(store, f"{compress}.documents.parquet", compress)
    for batch in pa.table({"uid": uids, "text": texts}).to_batches(max_chunksize=11):
        writer.write(batch)
    documents = writer.close()
    verdicts = write_every_row(store, f"{compress}.verdicts.parquet", pa.table({"kept": uids % 7 > 0}))
    signals = write_every_row(store, f"{compress}.signals.parquet", pa.table({"uid": uids, "twice": uids * 2}))
    return replace(new_part("a", "a", ROWS, 0, documents, []), verdicts=(verdicts,), signals=(signals,))


def test_nothing_depends_on_how_documents_are_stored(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    plain, compressed = (part_with_all_beside(store, compress) for compress in (False, True))
    assert plain.documents is not None and compressed.documents is not None
    assert plain.documents.content == plain.documents.checksum == compressed.documents.content
    assert compressed.documents.checksum != plain.documents.checksum
    assert compressed.documents.bytes < plain.documents.bytes
    assert identity(plain) == identity(compressed)
    assert list(read_part(store, plain)) == list(read_part(store, compressed))


@pytest.mark.parametrize("named", [[], [3], [50], [0, 1, 2, 98, 99], range(ROWS)])
def test_row_groups_without_the_documents_are_passed_over(tmp_path: Path, named: list[int]) -> None:
    store = Store(str(tmp_path))
    part = part_with_all_beside(store, compress=False)
    wanted = np.array(list(named), np.uint64)
    whole = pa.Table.from_batches(list(read_part(store, part, ["uid", "text", "twice"], numbered=True)))
    found = [
        row
        for batch in read_part(store, part, ["uid", "text", "twice"], numbered=True, uids=wanted)
        for row in batch.to_pylist()
    ]
    groups = {place // GROUP for place, uid in enumerate(all_uids(store)) if uid in named}
    assert found == [row for row in whole.to_pylist() if row[ROW] // GROUP in groups]
    assert (len(found) < len(whole)) == (len(named) < ROWS)


def all_uids(store: Store) -> list[int]:
    uids: list[int] = pq.read_table(store.at("False.documents.parquet")).column("uid").to_pylist()
    return uids
