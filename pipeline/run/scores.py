"""What scores look like, for reports: how many documents of each source and language lie where, and examples at each
tenth. From stored signals.

At most a million documents are looked at, of parts chosen by the hash of their names, so that two runs show the same;
texts only of a few parts' first rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.pipeline.store.parts import Part, read_part
from gristmill.pipeline.store.sinks import as_lying
from gristmill.pipeline.store.store import Store
from gristmill.stages.documents import BATCH_ROWS
from gristmill.stages.stage import Stage

MOST_ROWS = 1_000_000
EXAMPLE_PARTS = 4
BINS = 20
MOST_GROUPS = 30  # of sources or languages, the largest
EACH, CHARACTERS = 2, 200


def scores_of(store: Store, stage: Stage, parts: Sequence[Part], arrived: int) -> dict[str, Any]:
    """For a stage's report; `arrived` documents came to it."""
    chosen = _chosen(parts)
    signals = stage.scored_signals
    tables = [
        batch.append_column("source", _source(part, len(batch)))
        for part in chosen
        for batch in _batches(store, part, [*signals, "language"])
    ]
    whole = len(chosen) == sum(1 for part in parts if part["rows"])
    found = [_scores(store, chosen, signal, tables) for signal in signals]
    return {
        "of": arrived,
        "whole": whole,
        "judge": stage.model_card(),
        "signals": [one for one in found if one is not None],
    }


def _chosen(parts: Sequence[Part]) -> list[Part]:
    """One of each source at least, then as many as fit."""
    ordered = sorted((part for part in parts if part["rows"]), key=lambda part: (part["home"], part["key"]))
    first = {part["source"]: part for part in reversed(ordered)}
    chosen, rows = list(first.values()), sum(part["rows"] for part in first.values())
    taken = {part["key"] for part in chosen}
    for part in ordered:
        if part["key"] not in taken and rows + part["rows"] <= MOST_ROWS:
            chosen.append(part)
            rows += part["rows"]
    return sorted(chosen, key=lambda part: (part["home"], part["key"]))


def _source(part: Part, rows: int) -> pa.Array:
    return pa.array([part["source"]], pa.string()).take(pa.array(np.zeros(rows, np.int64)))


def _batches(store: Store, part: Part, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The documents of a part, or where a leg only wrote for others, what it wrote."""
    if part["documents"] is not None:
        yield from read_part(store, part, columns)
        return
    for path in list(part.get("sinks", {}).values())[:1]:
        with store.open(as_lying(store, path)) as file:
            written = pq.ParquetFile(file)
            yield from written.iter_batches(
                BATCH_ROWS, columns=[name for name in columns if name in written.schema_arrow.names]
            )


def _scores(
    store: Store, parts: Sequence[Part], signal: str, tables: Sequence[pa.RecordBatch]
) -> dict[str, Any] | None:
    having = [table for table in tables if signal in table.schema.names]
    values = np.concatenate([_numbers(table, signal) for table in having]) if having else np.empty(0)
    known = np.isfinite(values)
    if not known.any():
        return None
    low, high = _range(values[known])
    edges = np.linspace(low, high, BINS + 1)
    deciles = np.quantile(values[known], np.linspace(0, 1, 11), method="inverted_cdf")
    groups = {}
    for name in ("source", "language"):
        labels = pa.chunked_array([_labels(table, name) for table in having], pa.string()).filter(pa.array(known))
        groups[name] = _by_group(values[known], labels.combine_chunks().dictionary_encode(), edges)
    return {
        "signal": signal,
        "documents": int(known.sum()),
        "without": int((~known).sum()),
        "mean": float(values[known].mean()),
        "low": low,
        "high": high,
        "counts": _counts(values[known], edges),
        "deciles": deciles.tolist(),
        "by": {name: counted for name, counted in groups.items() if counted},
        "examples": _examples(store, parts, signal, deciles),
    }


def _numbers(table: pa.RecordBatch, signal: str) -> np.ndarray[Any, Any]:
    return np.asarray(table.column(signal).cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)


def _labels(table: pa.RecordBatch, name: str) -> pa.Array:
    if name not in table.schema.names:
        return pa.nulls(len(table), pa.string())
    return table.column(name).cast(pa.string())


def _range(values: np.ndarray[Any, Any]) -> tuple[float, float]:
    """From 0 to 1 where all lie there, else from the lowest to the highest."""
    low, high = float(values.min()), float(values.max())
    if low >= 0 and high <= 1:
        return 0.0, 1.0
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def _counts(values: np.ndarray[Any, Any], edges: np.ndarray[Any, Any]) -> list[int]:
    counted: list[int] = np.histogram(values, edges)[0].tolist()
    return counted


def _by_group(
    values: np.ndarray[Any, Any], labels: pa.DictionaryArray, edges: np.ndarray[Any, Any]
) -> dict[str, list[int]]:
    names = labels.dictionary.to_pylist()
    which = labels.indices.fill_null(len(names)).to_numpy(zero_copy_only=False)
    counts = np.bincount(which, minlength=len(names) + 1)
    largest = sorted(range(len(names)), key=lambda i: (-counts[i], names[i]))[:MOST_GROUPS]
    return {names[i]: _counts(values[which == i], edges) for i in largest}


def _examples(store: Store, parts: Sequence[Part], signal: str, deciles: np.ndarray[Any, Any]) -> list[dict[str, Any]]:
    """Some documents of each tenth, the lowest by uid of those looked at."""
    found: list[dict[str, Any]] = []
    first = [next(_batches(store, part, ["uid", "url", "text", signal]), None) for part in _of_many_sources(parts)]
    batches = [batch for batch in first if batch is not None and {"uid", "text", signal} <= set(batch.schema.names)]
    rows = [
        (int(uid), b, row) for b, batch in enumerate(batches) for row, uid in enumerate(batch.column("uid").to_pylist())
    ]
    scores = [_numbers(batch, signal) for batch in batches]
    taken = [0] * 10
    for uid, b, row in sorted(rows):
        score = float(scores[b][row])
        if not np.isfinite(score):
            continue
        tenth = min(int(np.searchsorted(deciles[1:], score, side="left")), 9)
        if taken[tenth] == EACH:
            continue
        taken[tenth] += 1
        url = batches[b].column("url")[row].as_py() if "url" in batches[b].schema.names else None
        text = (batches[b].column("text")[row].as_py() or "")[:CHARACTERS]
        found.append({"tenth": tenth + 1, "score": score, "uid": f"{uid:016x}", "url": url, "text": text})
        if min(taken) == EACH:
            break
    return sorted(found, key=lambda one: (one["tenth"], one["score"], one["uid"]))


def _of_many_sources(parts: Sequence[Part]) -> list[Part]:
    first = {part["source"]: part for part in reversed(parts)}
    chosen = list(first.values())[:EXAMPLE_PARTS]
    return chosen + [part for part in parts if part not in chosen][: EXAMPLE_PARTS - len(chosen)]
