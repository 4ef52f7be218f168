"""What a sink is shown of every part: the columns that any of them has, so that all files that it writes have the same.

A signal may be there for some documents alone: a deduplication tells nothing of parts without duplicates, and sources
are measured differently. What reads many Parquet files takes the columns of the first for those of all.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.pipeline.store.checksums import open_checked
from gristmill.pipeline.store.parts import TEXT_BYTES, Part
from gristmill.pipeline.store.store import Store
from gristmill.stages.documents import BASE, PAGE
from gristmill.stages.stage import Sink, Stage, with_columns


def shows_signals(stage: Stage) -> bool:
    """Is it a sink that may write signals?"""
    return isinstance(stage, Sink) and bool(getattr(stage, "signals", True))


def columns_of_all(store: Store, parts: Iterable[Part]) -> pa.Schema:
    """The signals of some parts, by name, each of the type that holds all values. One file is looked into of all that
    have the same columns."""
    looked_at: set[str] = set()
    types: dict[str, list[pa.DataType]] = {}
    for part in parts:
        for facts in [part["documents"], *part["signals"]] if part["kept"] else ():
            alike = facts.get("schema", facts["path"])
            if alike in looked_at or not store.exists(
                facts["path"]
            ):  # of a run that was cleaned there may be nothing to foresee
                continue
            looked_at.add(alike)
            with open_checked(store, facts) as file:
                for field in pq.read_schema(file):
                    types.setdefault(field.name, []).append(field.type)
    known = {*BASE.names, *PAGE.names, TEXT_BYTES}
    found = {name: together(kinds) for name, kinds in sorted(types.items()) if name not in known and "@" not in name}
    return pa.schema([(name, kind) for name, kind in found.items() if kind is not None])


def together(kinds: list[pa.DataType]) -> pa.DataType | None:
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
