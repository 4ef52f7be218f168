"""Rows of a global stage on disk: Arrow IPC files, one record batch a bucket, so that a reader takes its slice and no more.

Buckets are the top bits of a column, and their number a power of two; so rows that were cut into another number of buckets (those of an index
that an earlier run saved) are read as if they had been cut into ours.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np
import pyarrow as pa

from kernels.columns import widened
from pipeline.errors import RecipeError, RunFailed
from pipeline.fingerprint import digest
from pipeline.parts import bucket_of
from pipeline.recipe import Recipe, Step
from pipeline.store import HashingFile, Store
from stages.paths import located
from stages.stage import Global

FILES_IN_A_TASK = 64  # more are named in a file of their own, which every task of the round reads


@dataclass(frozen=True)
class StoredRows:
    """Rows on disk, cut into buckets; the files of one round or of several."""

    files: tuple[dict[str, Any], ...]
    buckets: int
    by: str | None

    @property
    def count(self) -> int:
        return sum(int(f["rows"]) for f in self.files)

    @property
    def bytes(self) -> int:
        return sum(int(f["bytes"]) for f in self.files)

    @property
    def identity(self) -> str:
        """Of the contents, whatever the files are called."""
        return digest([self.by, sorted(f["checksum"] for f in self.files)])


def handed_over(store: Store, folder: str, rows: StoredRows) -> dict[str, Any]:
    """How a task is told which files to read: by name, or, of many, by the name of a list."""
    if len(rows.files) <= FILES_IN_A_TASK:
        return {"files": list(rows.files), "by": rows.by}
    path = f"{folder}/{rows.identity[:16]}.files.json"
    if not store.exists(path):
        store.write(path, json.dumps(list(rows.files)).encode())
    return {"list": path, "by": rows.by}


def files_of_rows(store: Store, rows: dict[str, Any]) -> Sequence[dict[str, Any]]:
    return rows["files"] if "files" in rows else _listed(store.address, rows["list"])


@lru_cache(8)
def _listed(address: str, path: str) -> tuple[dict[str, Any], ...]:
    return tuple(json.loads(Store(address).read(path)))


def read_rows(store: Store, rows: dict[str, Any], bucket: int | None, buckets: int) -> pa.Table | None:
    """One bucket's slice of every file (all of it for None); None where there is no row. The order of rows is that of files and no promise."""
    tables = []
    for facts in files_of_rows(store, rows):
        with _opened(store, facts) as file:
            reader = pa.ipc.open_file(file)
            count = reader.num_record_batches
            if bucket is None:
                found = [reader.get_batch(i) for i in range(count)]
            elif count >= buckets:
                share = count // buckets
                found = [reader.get_batch(i) for i in range(bucket * share, (bucket + 1) * share)]
            else:
                wide = reader.get_batch(bucket * count // buckets)
                found = [wide.filter(pa.array(bucket_of(wide.column(rows["by"]).to_numpy(), buckets) == bucket))]
            found = [batch for batch in found if len(batch)]
            if found:
                tables.append(pa.Table.from_batches(found, reader.schema))
    return widened(pa.concat_tables(_alike(tables))) if tables else None


def _alike(tables: list[pa.Table]) -> list[pa.Table]:
    """Tables of one schema: where the rows of a file were so many that a column has wide offsets, that column of all has."""
    if len({table.schema for table in tables}) == 1:
        return tables
    return [
        table.cast(pa.unify_schemas([table.schema, *(other.schema for other in tables)], promote_options="permissive")) for table in tables
    ]


def _opened(store: Store, facts: dict[str, Any]) -> Any:
    """Files of this run lie below its folder; those of a saved index name their own."""
    return (Store(facts["store"]) if "store" in facts else store).open(facts["path"])


def write_rows(store: Store, path: str, table: pa.Table, by: str | None, buckets: int) -> dict[str, Any]:
    """Rows cut by the top bits of a column into one record batch a bucket."""
    with store.commit(path) as file:
        _write(file, table, by, buckets)
    return {"path": path, "bytes": file.length, "checksum": file.checksum, "rows": len(table)}


def keep_table(store: Store, beginning: str, table: pa.Table) -> dict[str, Any]:
    """A small table whole, in a file named by what is in it: one that is there already is not written again."""
    content = io.BytesIO()
    file = HashingFile(content)
    _write(file, table, None, 1)
    path = f"{beginning}-{file.checksum[:16]}.arrow"
    if not store.exists(path):
        store.write(path, content.getvalue())
    return {"path": path, "bytes": file.length, "checksum": file.checksum, "rows": len(table)}


def _write(file: HashingFile, table: pa.Table, by: str | None, buckets: int) -> None:
    table = widened(table)
    with pa.ipc.new_file(file, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        for slice_ in _cut(table, by, buckets):
            writer.write_batch(slice_)


def _cut(table: pa.Table, by: str | None, buckets: int) -> list[pa.RecordBatch]:
    if by is None or buckets == 1:
        return [one_batch(table)]
    bucket = bucket_of(table.column(by).to_numpy(), buckets).astype(
        np.uint16 if buckets <= 1 << 16 else np.uint32
    )  # of 16 bits: sorted by radix
    order = np.argsort(bucket, kind="stable")
    ends = np.searchsorted(bucket[order], np.arange(buckets), side="right")
    table = table.take(pa.array(order))
    return [one_batch(table.slice(start, end - start)) for start, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)]


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """All rows of a table that was widened; a reader takes a bucket for one batch, so that a second one would be lost."""
    batches = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
    if len(batches[0]) != len(table):
        raise RunFailed(
            f"{len(table):,} rows do not fit one record batch ({len(batches[0]):,} do): a column holds more than Arrow can count"
        )
    return batches[0]


def kept_at(address: str, step: Step) -> Store:
    """Where rows are kept for other runs: an address, or a path that is the recipe's as its other paths are."""
    return Store(located(address, step.folder.resolve()))


def owner_of(recipe: Recipe, step: Step) -> str:
    """What saved rows say that they are of: rows of another recipe's stage are never replaced."""
    return f"{recipe.name}/{step.called}"


def check_saved(recipe: Recipe, whole: bool) -> None:
    """Before any work: what global stages take from earlier runs is there, and what they leave takes no other's place."""
    leaves: set[str] = set()
    for step in recipe.all_steps:
        if not isinstance(step.stage, Global):
            continue
        where = f"{recipe.path}:{step.line}: {step.called}"
        takes = {kept_at(address, step).address for address in step.stage.loads}
        for address in sorted(takes - leaves):
            if not isinstance(Store(address).read_json("index.json"), dict):
                raise RecipeError(f"{where}: {address} holds no saved index (there is no index.json)")
        mine = {kept_at(address, step).address for address in step.stage.saves}
        for address in sorted(mine) if whole else ():
            if address in takes:
                raise RecipeError(
                    f"{where}: {address} would be replaced, and is what is compared with; save into another folder, and name both in the next run"
                )
            there = Store(address).read_json("index.json")
            owner = there.get("of") if isinstance(there, dict) else None
            if owner not in (None, owner_of(recipe, step)):
                raise RecipeError(f"{where}: {address} is of {owner}; save into another folder, or remove it")
        leaves |= mine


def saved_is_gone(step: Step) -> bool:
    """Whether something that the stage has left for later runs is not there."""
    return any(not kept_at(address, step).exists("index.json") for address in cast(Global, step.stage).saves)


def kept_before(step: Step) -> list[str]:
    """What tells the rows that a stage takes from earlier runs from others; nothing of a stage that takes none."""
    return [digest(kept_at(address, step).read_json("index.json")) for address in cast(Global, step.stage).loads]
