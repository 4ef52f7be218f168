"""What a tokenizer makes of each source and language, added up over batches: documents, bytes, tokens, and whether
texts come back from their ids."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from gristmill.kernels.base.types import Array

COUNTS = ("documents", "bytes", "tokens", "checked", "restored")
KEYS = [
    "source",
    "language",
    "changed",
]  # `changed` is null, or the uid of a document that did not come back: a row of its own that counts nothing
GROUPS = ["all", *KEYS, *COUNTS]
EXAMPLES = 5
UNKNOWN = "unknown"


class Checked(NamedTuple):
    """Which documents were decoded, and which of them came back as they were."""

    checked: Array
    restored: Array


def rows_of(docs: pa.Table, size: Array, checked: Checked) -> pa.Table:
    """Of a batch, whose texts are of these sizes in bytes."""
    n = len(docs)
    language = docs["language"].cast(pa.string()) if "language" in docs.column_names else pa.nulls(n, pa.string())
    common: dict[str, Any] = {
        "all": np.zeros(n, np.uint64),
        "source": docs["source"].cast(pa.string()),
        "language": language.fill_null(UNKNOWN) if n else language,
    }
    counts = (
        np.ones(n, np.int64),
        size,
        docs["tokens"].to_numpy().astype(np.int64),
        *(c.astype(np.int64) for c in checked),
    )
    counted = pa.table(common | {"changed": pa.nulls(n, pa.uint64())} | dict(zip(COUNTS, counts, strict=True)))
    zero = {name: np.zeros(n, np.int64) for name in COUNTS}
    changed = pa.table(common | {"changed": docs["uid"]} | zero).filter(pa.array(checked.checked & ~checked.restored))
    return added_up([counted.select(GROUPS), changed.select(GROUPS)])


def added_up(tables: list[pa.Table]) -> pa.Table:
    """One row for each source and language, and the few lowest uids of documents that did not come back."""
    rows = pa.concat_tables(tables).group_by(["all", *KEYS]).aggregate([(name, "sum") for name in COUNTS])
    rows = rows.rename_columns([name.removesuffix("_sum") for name in rows.column_names]).select(GROUPS)
    whole = rows["changed"].is_null()
    examples = rows.filter(rows["changed"].is_valid()).sort_by("changed").slice(0, EXAMPLES)
    return pa.concat_tables([rows.filter(whole), examples]).sort_by([(name, "ascending") for name in KEYS])


def facts_of(rows: pa.Table, around: int) -> dict[str, Any]:
    """For the report. Bytes per token are of the tokens of the text, less `around` a document."""
    given = rows.to_pylist()
    counted = [row for row in given if row["changed"] is None]
    total = {name: sum(row[name] for row in counted) for name in COUNTS}
    by = {key: _by(counted, key, around) for key in ("language", "source")}
    if list(by["language"]) == [UNKNOWN]:  # nobody measured it
        del by["language"]
    return {
        "tokens": total["tokens"],
        "bytes_per_token": _per_token(total, around),
        **{f"bytes_per_token_by_{key}": counts for key, counts in by.items()},
        "round_trip": {
            "checked": total["checked"],
            "restored": total["restored"],
            "changed": [f"{uid:016x}" for uid in sorted(row["changed"] for row in given if row["changed"] is not None)],
        },
    }


def _by(rows: list[dict[str, Any]], key: str, around: int) -> dict[str, dict[str, Any]]:
    """Largest first."""
    sums_by_value: dict[str, dict[str, int]] = {}
    for row in rows:
        sums = sums_by_value.setdefault(row[key] or UNKNOWN, dict.fromkeys(COUNTS, 0))
        for name in COUNTS:
            sums[name] += row[name]
    ordered = sorted(sums_by_value.items(), key=lambda item: (-item[1]["tokens"], item[0]))
    return {
        name: {"documents": sums["documents"], "tokens": sums["tokens"], "bytes_per_token": _per_token(sums, around)}
        for name, sums in ordered
    }


def _per_token(sums: dict[str, int], around: int) -> float | None:
    tokens = sums["tokens"] - around * sums["documents"]
    return round(sums["bytes"] / tokens, 3) if tokens > 0 else None
