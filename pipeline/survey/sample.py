"""Documents of which a report shows more than counts: some of each source with all their signals, and a few that stay
with their texts.

Those of the smallest hashes of their uids are taken, so that two runs show the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from gristmill.kernels.base.splitmix import mixed_all
from gristmill.kernels.base.types import Hashes, Integers
from gristmill.pipeline.leg.bound_rule import BoundRule
from gristmill.pipeline.store.partitions import ROW, columns_of, read_part
from gristmill.pipeline.store.records import Part
from gristmill.pipeline.store.storage import Store
from gristmill.pipeline.survey.records import SampleEntry
from gristmill.pipeline.survey.thresholds import goes

SAMPLE = 2000  # documents whose signals the page carries
KEPT, CHARACTERS = 5, 600  # samples of what stays


def mixed(uids: Hashes) -> Hashes:
    """A hash of a hash, so that the sample is not the one that the stage `sample` or a mix takes (splitmix64)."""
    hashes: Hashes = mixed_all(uids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15))
    return hashes


def uids_of(store: Store, part: Part) -> Hashes:
    batches = [batch.column("uid").to_numpy() for batch in read_part(store, part, ["uid"])]
    return np.concatenate(batches) if batches else np.zeros(0, np.uint64)


def quotas(sizes: Integers) -> list[int]:
    """Equal shares of the sample; what small groups leave goes to the larger ones."""
    given, groups_to_come, room = [0] * len(sizes), len(sizes), SAMPLE
    for group in np.argsort(sizes, kind="stable").tolist():
        given[group] = min(int(sizes[group]), room // groups_to_come)
        room, groups_to_come = room - given[group], groups_to_come - 1
    return given


def rows_of(store: Store, part: Part, columns: Sequence[str], rows: Integers) -> pa.Table:
    """Some of the documents that are still in, by number; only columns of the sample."""
    tables, start = [], 0
    for batch in read_part(store, part, columns):
        in_batch = rows[(rows >= start) & (rows < start + len(batch))] - start
        tables.append(pa.Table.from_batches([batch]).take(pa.array(in_batch)))
        start += len(batch)
    return pa.concat_tables(tables) if tables else pa.table({})


def kept_samples(
    store: Store, parts: Sequence[Part], rules: Sequence[BoundRule], there: list[str]
) -> list[SampleEntry]:
    """Documents that stay: the first by uid of the first rows of the first part that has any."""
    for part in sorted(parts, key=lambda part: (part["home"], part["key"]))[:8]:
        samples = next(first_that_stay(store, part, rules, there), [])
        if samples:
            return samples
    return []


def first_that_stay(
    store: Store, part: Part, rules: Sequence[BoundRule], there: list[str]
) -> Iterator[list[SampleEntry]]:
    columns = list(dict.fromkeys(["uid", "url", "text", *(name for d in rules for name in d.reads(there))]))
    for batch in read_part(store, part, columns, numbered=True) if "text" in columns_of(store, part) else ():
        gone = np.zeros(len(batch), bool)
        for deciding in rules:
            gone |= goes(deciding.rule, deciding.view(batch))
        stays = batch.select(["uid", "url", "text", ROW]).filter(pa.array(~gone))
        chosen = stays.take(pa.array(np.argsort(stays.column("uid").to_numpy(), kind="stable")[:KEPT]))
        yield [
            {
                "uid": f"{row['uid']:016x}",
                "url": row["url"],
                "source": part["source"],
                "detail": None,
                "text": (row["text"] or "")[:CHARACTERS],
            }
            for row in chosen.to_pylist()
        ]
