"""The columns that every file of a sink has: all that any part has.

A signal may be there for some documents alone, since sources are measured differently. Readers of many Parquet files
take the columns of the first for those of all.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.pipeline.store.checksums import open_checked
from gristmill.pipeline.store.parts import TEXT_BYTES
from gristmill.pipeline.store.records import FileFacts, Part
from gristmill.pipeline.store.store import Store
from gristmill.stages.documents import BASE, PAGE
from gristmill.stages.stage import Sink, Stage, with_columns


def shows_signals(stage: Stage) -> bool:
    """Is it a sink that may write signals?"""
    return isinstance(stage, Sink) and bool(getattr(stage, "signals", True))


def columns_of_all(store: Store, parts: Iterable[Part], known: Mapping[str, str]) -> pa.Schema:
    """The signals of some parts, by name, each of the type that holds all values. One file is looked into of all that
    have the same columns, and none of columns that are `known` by their hash."""
    looked_at: set[str] = set()
    types: dict[str, list[pa.DataType]] = {}
    for part in parts:
        for facts in [part["documents"], *part["signals"]] if part["kept"] else ():
            if facts is None:
                continue
            alike = facts.get("schema", facts["path"])
            # A run that was cleaned may have no file left.
            if alike in looked_at or (alike not in known and not store.exists(facts["path"])):
                continue
            looked_at.add(alike)
            for field in from_text(known[alike]) if alike in known else schema_of(store, facts):
                types.setdefault(field.name, []).append(field.type)
    of_readers = {*BASE.names, *PAGE.names, TEXT_BYTES}
    signals = [name for name in sorted(types) if name not in of_readers and "@" not in name]
    columns = [(name, common_type(types[name])) for name in signals]
    return pa.schema([(name, kind) for name, kind in columns if kind is not None])


def schema_of(store: Store, facts: FileFacts) -> pa.Schema:
    with open_checked(store, facts) as file:
        return pq.read_schema(file).remove_metadata()


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


def as_text(columns: pa.Schema) -> str:
    """As a task carries it."""
    return base64.b64encode(columns.serialize()).decode("ascii")


def from_text(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def filled(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """The batch with all of these columns, null where it had none."""
    there = {field.name: field.type for field in batch.schema}
    absent = {field.name: pa.nulls(len(batch), field.type) for field in columns if field.name not in there}
    other = {f.name: batch.column(f.name).cast(f.type) for f in columns if f.name in there and there[f.name] != f.type}
    return with_columns(batch, absent | other)
