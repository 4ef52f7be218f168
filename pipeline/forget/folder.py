"""The files of a run's folder by what they are, and the rows of those that are tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gristmill.classifiers.artifact import DESCRIPTION as JUDGE
from gristmill.kernels.base.types import Array
from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.store.storage import Store
from gristmill.pipeline.summary.files import CROISSANT, FOLDER as SUMMARY
from gristmill.shards.index import FORMAT, NAME

OWN = ("journal/", "forgotten/", ".lock")
TEXTS = (".json", ".jsonl", ".txt", ".log", ".md", ".html", ".csv", ".tsv", ".yaml", ".yml", ".prom")
PACKED = (".gz", ".zst")
FIND_INDEX = "index/find-"  # and the name of a set of shards
WHOLE = ("flow/", FIND_INDEX, f"{SUMMARY}/")  # rows between rounds, search indexes, the public summary
ROWS = 8192


@dataclass
class Files:
    """Paths by kind."""

    tables: list[str] = field(default_factory=list)  # Parquet
    whole: list[str] = field(default_factory=list)  # what goes whole and can be made again
    sets: list[str] = field(default_factory=list)  # folders of token shards
    indexes: list[str] = field(default_factory=list)  # folders of rows for later runs
    texts: list[str] = field(default_factory=list)  # lines
    judges: list[str] = field(default_factory=list)  # folders of judges
    others: list[str] = field(default_factory=list)


def files_of(store: Store, skipped: Sequence[str] = ()) -> Files:
    """All files below a folder but those of the journal and of this work; none below the folders `skipped`."""
    files, paths = Files(), sorted(store.files(""))
    paths = [path for path in paths if not path.startswith((*OWN, *(f"{folder}/" for folder in skipped)))]
    owned = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        if name == NAME:
            facts = _facts(store, path)
            if facts.get("format") == FORMAT:
                owned[folder] = files.sets
            elif isinstance(facts.get("files"), list) and "buckets" in facts and "of" in facts:
                owned[folder] = files.indexes
        elif name == JUDGE:
            owned[folder] = files.judges
    for folder, kind in sorted(owned.items()):
        kind.append(folder)
    for path in paths:
        folder = path.rpartition("/")[0]
        above = {folder, folder.rpartition("/")[0]} & owned.keys()
        if path.startswith(WHOLE) or path == CROISSANT:
            files.whole.append(path)
        elif above:
            continue  # token shards with their tokenizer, an index, a judge
        elif path.endswith(".parquet"):
            files.tables.append(path)
        elif path.removesuffix(".gz").removesuffix(".zst").endswith(TEXTS):
            files.texts.append(path)
        else:
            files.others.append(path)
    return files


def _facts(store: Store, path: str) -> dict[str, object]:
    try:
        facts = json.loads(store.read(path))
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def open_table(store: Store, path: str) -> tuple[IO[bytes], pq.ParquetFile]:
    file = store.open(path)
    try:
        return file, pq.ParquetFile(file, pre_buffer=False)
    except pa.ArrowException as error:
        file.close()
        raise RunFailed(
            f"{store.at(path)}: cannot be read as Parquet, so it is not known what is in it; repair or remove it"
        ) from error


def batches(store: Store, path: str, columns: Iterable[str] | None = None) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Record batches of a table with the number of their first row; of the columns those that are there."""
    file, table = open_table(store, path)
    with file:
        there = table.schema_arrow.names
        wanted = None if columns is None else [name for name in columns if name in there]
        row = 0
        for batch in table.iter_batches(batch_size=ROWS, columns=wanted):
            yield row, batch
            row += len(batch)


def uids_of(batch: pa.RecordBatch) -> Array:
    """The uid of each row; 0 where it is of no document."""
    uids: Array = pc.fill_null(batch.column("uid"), 0).to_numpy(zero_copy_only=False)
    return uids


def columns_of(store: Store, path: str) -> pa.Schema:
    file, table = open_table(store, path)
    with file:
        return table.schema_arrow


def text_columns(schema: pa.Schema) -> list[str]:
    """Columns with what documents say: texts of any version, and markup."""
    return [name for name in schema.names if name == "html" or name.split("@")[0] == "text"]


def string_columns(schema: pa.Schema) -> list[str]:
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_binary)
    return [column.name for column in schema if any(is_kind(column.type) for is_kind in kinds)]
