"""Tasks that write a stored file again: files of a sink, each with the columns of all; documents, without their texts.

A signal may be there for some documents alone, since sources are measured differently, and a user's stage may answer
with other types for other documents. Readers of many Parquet files take the columns of the first for those of all. Map
tasks write what they have; where that differs, files that lack columns are rewritten before the sink is published.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias, cast

import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.pipeline.store.lock import store_of
from gristmill.pipeline.store.partitions import PartWriter, part_writers, schema_hash, staged
from gristmill.pipeline.store.records import ConformTask, FileRef, NumbersTask, Partition, Result
from gristmill.pipeline.store.storage import Store, digest, open_checked

Columns: TypeAlias = Mapping[str, pa.DataType | None]  # in order; None where no type holds the values of all


def conform_tasks(store: Store, sink: str, files: Sequence[FileRef]) -> list[ConformTask]:
    """A task for each file of a sink that has not the columns that it should have."""
    if len({file.schema for file in files}) < 2 and not any(file.own_columns for file in files):
        return []
    own_by_hash: dict[str, pa.Schema] = {}
    for facts in files:
        if own_hash(facts) not in own_by_hash:
            own_by_hash[own_hash(facts)] = own_columns(store, facts)
    columns = columns_of_all(own_by_hash.values())
    tasks: list[ConformTask] = []
    for facts in files:
        own = own_by_hash[own_hash(facts)]
        wanted = conformed(own, columns)
        if schema_hash(wanted) != facts.schema:
            tasks.append(
                ConformTask(
                    task=digest(["conform", facts.path, facts.checksum, as_text(wanted)]),
                    node=sink,
                    key=facts.path,
                    cost=facts.bytes,
                    out=store.anywhere,
                    file=facts,
                    columns=as_text(wanted),
                    own_columns=as_text(own),
                )
            )
    return tasks


def run_conform_task(task: ConformTask) -> Result:
    """Rewrite a file with the columns of its task, row group by row group."""
    store, facts, columns = store_of(task), task.file, from_text(task.columns)
    with part_writers() as writers, store.open(where_it_is(store, facts)) as file:
        writer = PartWriter(store, facts.path, staged(facts.path))
        writers.append(writer)
        parquet = pq.ParquetFile(file, pre_buffer=False)
        for group in range(parquet.num_row_groups):
            for batch in parquet.read_row_group(group).combine_chunks().to_batches():
                writer.write(filled(batch, columns))
        rewritten = writer.close()
    return Result(files={f"sink/{task.node}": replace(cast(FileRef, rewritten), own_columns=task.own_columns)})


def where_it_is(store: Store, facts: FileRef) -> str:
    """A file of a sink, which may wait for the others of its sink."""
    waiting = staged(facts.path)
    return waiting if store.exists(waiting) else facts.path


def own_hash(facts: FileRef) -> str:
    return facts.own_columns or facts.schema or facts.path


def own_columns(store: Store, facts: FileRef) -> pa.Schema:
    """The columns that a map task wrote into a file."""
    if facts.own_columns:
        return from_text(facts.own_columns)
    with store.open(where_it_is(store, facts)) as file:
        return pq.read_schema(file).remove_metadata()


def columns_of_all(schemas: Iterable[pa.Schema]) -> Columns:
    """All columns by name, each of the type that holds all values. Each comes after those that any file has before it;
    of those that nothing orders, the first by name."""
    types: dict[str, list[pa.DataType]] = {}
    before: dict[str, set[str]] = {}
    for schema in schemas:
        for place, field in enumerate(schema):
            types.setdefault(field.name, []).append(field.type)
            before.setdefault(field.name, set()).update(schema.names[:place])
    columns: dict[str, pa.DataType | None] = {}
    while len(columns) < len(types):
        waiting = [name for name in types if name not in columns]
        free = [name for name in waiting if before[name] <= columns.keys()]
        name = min(free or waiting)
        columns[name] = common_type(types[name])
    return columns


def common_type(kinds: list[pa.DataType]) -> pa.DataType | None:
    """The type that holds values of all; None where there is none."""
    try:
        return (
            pa.unify_schemas([pa.schema([("one", kind)]) for kind in kinds], promote_options="permissive")
            .field("one")
            .type
        )
    except pa.ArrowException:
        return None


def conformed(own: pa.Schema, columns: Columns) -> pa.Schema:
    """The columns of a file as they should be. It keeps a type of its own for a column that has none for all."""
    typed = [(name, kind or (own.field(name).type if name in own.names else None)) for name, kind in columns.items()]
    return pa.schema([(name, kind) for name, kind in typed if kind is not None])


def filled(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """A batch with exactly these columns, null where it had none."""
    arrays = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(len(batch), field.type)
        for field in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def as_text(columns: pa.Schema) -> str:
    return base64.b64encode(columns.serialize()).decode("ascii")


def from_text(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


# --- documents without their texts ------------------------------------------------------------------------------------

TEXTS = ("text", "html")
DOCUMENTS, NUMBERS = ".documents.parquet", ".signals.parquet"


def task_of_numbers(store: Store, part: Partition, documents: FileRef) -> NumbersTask:
    return NumbersTask(
        task=digest(["numbers", documents.path, documents.checksum]),
        node=documents.path.split("/")[1],
        key=part.key,
        cost=documents.bytes,
        out=store.anywhere,
        documents=documents,
    )


def run_numbers(task: NumbersTask) -> Result:
    store, documents = store_of(task), task.documents
    with part_writers() as writers, open_checked(store, documents) as file:
        writer = PartWriter(store, documents.path.removesuffix(DOCUMENTS) + NUMBERS)
        writers.append(writer)
        parquet = pq.ParquetFile(file, pre_buffer=False)
        columns = [field.name for field in parquet.schema_arrow if not is_text(field)]
        for group in range(parquet.num_row_groups):
            for batch in parquet.read_row_group(group, columns=columns).combine_chunks().to_batches():
                writer.write(batch)
        facts = writer.close()
    return Result(files={} if facts is None else {"numbers": facts})


def is_text(field: pa.Field) -> bool:
    return field.name.split("@")[0] in TEXTS or pa.types.is_nested(field.type)


def with_numbers(part: Partition, numbers: Mapping[str, FileRef]) -> Partition:
    """A part as it is when its texts are gone."""
    documents = part.documents
    if documents is None or documents.path not in numbers:
        return part
    return replace(part, documents=numbers[documents.path])
