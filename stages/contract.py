"""What a stage may answer. Each answer is held against the contract by names, types and lengths, which costs
microseconds a batch.

Whoever breaks it is the stage, never a document: nothing is tried again on fewer documents, and none is quarantined.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.stages.documents import BASE, PAGE

IDENTITY = ("uid", "source")  # what no stage changes
MOST_REASONS = 64


class CannotRun(Exception):
    """A stage cannot work with what it was given; the message is for the person who wrote the recipe."""


class ContractBroken(CannotRun):
    """A stage answered with what no stage may; the message is for the person who wrote the stage."""


def signals_of(answer: Any, batch: pa.RecordBatch, declared: Iterable[str]) -> dict[str, pa.Array]:
    """What an Annotate adds to a batch: the signals that it declares, all of them, a value for each row."""
    if not isinstance(answer, dict):
        raise ContractBroken(f"annotate() answered with {kind_of(answer)}; a dict of columns was expected")
    expected = dict.fromkeys(declared)
    for name in answer:
        if name in BASE.names or name in PAGE.names:
            raise ContractBroken(
                f"annotate() answered with {name!r}, a column that every document has; give the signal another name"
            )
        if name not in expected:
            raise ContractBroken(
                f"annotate() answered with {name!r}, which `adds` does not declare (it declares {listed(expected)})"
            )
    missing = [name for name in expected if name not in answer]
    if missing:
        raise ContractBroken(f"`adds` declares {listed(missing)}, and annotate() did not answer with it")
    columns = {
        name: values if isinstance(values, pa.Array) else arrow_of(name, values) for name, values in answer.items()
    }
    for name, values in columns.items():
        if len(values) != len(batch):
            raise ContractBroken(
                f"annotate() answered with {len(values)} values of {name!r} for {len(batch)} documents"
            )
    return columns


def arrow_of(name: str, values: Any) -> pa.Array:
    """A column that was given as an array of another kind, or as a list."""
    if isinstance(values, np.ndarray | list | tuple):
        return pa.array(values)
    hint = "; call combine_chunks()" if isinstance(values, pa.ChunkedArray) else ""
    raise ContractBroken(f"annotate() answered with {kind_of(values)} for {name!r}; an Arrow array was expected{hint}")


def check_batch(before: pa.RecordBatch, after: Any, kept: Any, rewrites: bool) -> None:
    """Hold a stage's answer on a batch against what it was given; `kept` tells the rows that stay."""
    if not isinstance(after, pa.RecordBatch):
        raise ContractBroken(f"a record batch was expected, not {kind_of(after)}")
    if len(after) != len(before) or len(kept) != len(before):
        raise ContractBroken(
            f"{len(before)} documents came, and {len(after)} rows and {len(kept)} verdicts were answered"
        )
    if after is before:
        return
    if not after.schema.equals(before.schema):
        check_schema(before.schema, after.schema, rewrites)
    for name in IDENTITY:
        place = before.schema.get_field_index(name)
        if place >= 0 and not after.column(name).equals(before.column(place)):
            raise ContractBroken(
                f"`{name}` was changed, or rows have changed places; a document is who it is by its {name}"
            )
    if rewrites:
        check_texts(before, after, kept)


def check_made(answer: pa.RecordBatch, made: Any, rows: Any) -> None:
    """Documents that a stage made of others are like its answer, and each is new."""
    if not isinstance(made, pa.RecordBatch):
        raise ContractBroken(f"made: a record batch was expected, not {kind_of(made)}")
    if len(rows) != len(made) or (len(rows) and not 0 <= min(rows) <= max(rows) < len(answer)):
        raise ContractBroken(f"made: {len(made)} documents, and {len(rows)} rows that they were made of")
    if not made.schema.equals(answer.schema):
        raise ContractBroken("made: its columns are not those of the answer")
    if "uid" not in made.schema.names:
        raise ContractBroken("made: a document has a uid")
    if pc.any(pc.is_in(made.column("uid"), value_set=answer.column("uid"))).as_py():
        raise ContractBroken("made: a new document has a `uid` of its own")


def check_schema(before: pa.Schema, after: pa.Schema, rewrites: bool) -> None:
    names = after.names
    there = set(names)
    if len(there) != len(names):
        raise ContractBroken(
            f"two columns of one name: {listed(sorted(name for name in there if names.count(name) > 1))}"
        )
    given = set(before.names)
    lost = [name for name in given - there if not (rewrites and name in PAGE.names)]
    if lost:
        raise ContractBroken(f"the answer lacks {listed(sorted(lost))}; a stage keeps the columns that it was given")
    for name in sorted(
        there - given | ({"text"} & there)
    ):  # those that may be new in kind; all of them would take ten times as long
        check_type(name, after.field(name).type)


def check_type(name: str, kind: pa.DataType) -> None:
    """Texts are strings, and pyarrow cannot filter views."""
    if name == "text" and kind not in (pa.string(), pa.large_string()):
        raise ContractBroken(f"`text` became {kind}; a text is a string")
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        raise ContractBroken(
            f"{name!r} is {kind}, which cannot be filtered; cast it to large_{str(kind).removesuffix('_view')}"
        )


def check_texts(before: pa.RecordBatch, after: pa.RecordBatch, kept: Any) -> None:
    """A text may be empty, or its document dropped; where one was, and once a page is extracted, it is never null in a
    document that stays."""
    text = after.column("text") if "text" in after.schema.names else None
    if text is None or not text.null_count:
        return
    null = pc.is_null(text).to_numpy(zero_copy_only=False) & np.asarray(kept)
    if any(name in after.schema.names for name in PAGE.names) or not any(
        name in before.schema.names for name in PAGE.names
    ):
        null &= pc.is_valid(before.column("text")).to_numpy(zero_copy_only=False)
    if null.any():
        raise ContractBroken(
            f"{int(null.sum())} of {len(before)} texts became null; a rewrite drops a document whose text "
            "it cannot make, or leaves it empty"
        )


def check_same_types(earlier: pa.Schema, now: pa.Schema) -> None:
    """All batches of a part have columns of the same names and types; a list of nothing but None has no type of its
    own."""
    if earlier.equals(now):
        return
    types = {field.name: field.type for field in earlier}
    for field in now:
        if field.name not in types:
            raise ContractBroken(f"{field.name!r} is in the answer on this batch, and was not on one before it")
        if field.type != types[field.name]:
            raise ContractBroken(
                f"{field.name!r} is {field.type} here, and was {types[field.name]} in a batch before; name "
                "the type, as in pa.array(values, pa.float64())"
            )
    absent = [name for name in types if name not in now.names]
    if absent:
        raise ContractBroken(f"{listed(absent)} was in the answer on a batch before, and is not on this one")
    if now.names != earlier.names:
        raise ContractBroken(
            f"columns changed places between batches: {listed(earlier.names)}, then {listed(now.names)}"
        )


def check_table(batch: pa.RecordBatch, table: Any) -> None:
    """What a sink writes of a batch: a row for each document that passes."""
    if not isinstance(table, pa.RecordBatch):
        raise ContractBroken(f"table() answered with {kind_of(table)}; a record batch was expected")
    if len(table) != len(batch):
        raise ContractBroken(
            f"table() answered with {len(table)} rows for {len(batch)} documents; a sink writes what passes through it"
        )


def kind_of(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "nothing"


def check_rows(function: str, made: Any, by: str | None) -> None:
    """Rows that a method of a global stage makes, cut by the values of a column; a table without rows need have
    none."""
    if not isinstance(made, pa.Table):
        raise ContractBroken(f"{function}() answered with {kind_of(made)}; a table was expected")
    if by is None or not len(made):
        return
    if by not in made.column_names:
        raise ContractBroken(
            f"{function}() answered without {by!r}, by which its rows are cut; it has {listed(made.column_names)}"
        )
    column = made.column(by)
    if column.type != pa.uint64() or column.null_count:
        raise ContractBroken(
            f"{function}() answered with {by!r} of "
            f"{column.type}{' with nulls' if column.null_count else ''}; rows are cut by a uint64"
        )


def check_verdicts(function: str, made: Any, changes: Iterable[str] = ()) -> None:
    """Rows that say of documents whether they go, and bring signals; `changes` are columns of documents that they may
    bring too."""
    check_rows(function, made, "uid")
    missing = [name for name in ("uid", "reason", "detail") if name not in made.column_names]
    if missing:
        raise ContractBroken(f"{function}() answered without {listed(missing)}; a document with a null reason stays")
    for name in ("reason", "detail"):
        kind = made.schema.field(name).type
        if kind not in (pa.string(), pa.large_string(), pa.null()):
            raise ContractBroken(
                f"{function}() answered with {name!r} of {kind}; strings were expected, null for documents that stay"
            )
    reason = made.column("reason")
    if reason.null_count < len(reason) and pc.any(pc.equal(pc.utf8_trim_whitespace(reason), "")).as_py():
        raise ContractBroken(f"{function}() dropped a document without a reason; name one, or leave it null")
    for field in made.schema:
        if field.name != "uid" and field.name not in changes and (field.name in BASE.names or field.name in PAGE.names):
            raise ContractBroken(
                f"{function}() answered with {field.name!r}, a column that every document has; give the "
                "signal another name"
            )
        check_type(field.name, field.type)


def check_documents(function: str, made: pa.Table, documents: pa.Table) -> None:
    """Rows that are to lie beside documents, one for each and in their order."""
    if len(made) != len(documents):
        raise ContractBroken(f"{function}() answered with {len(made)} rows for {len(documents)} documents")
    if not made.column("uid").equals(documents.column("uid")):
        raise ContractBroken(f"{function}() answered with other uids than it was given, or in another order")
