"""Distributions of scores for reports: histograms by source and language, deciles, and examples of each tenth.

Stored signals of at most a million documents are read, from parts chosen by the hash of their names, so that two runs
show the same. Texts are read of the first rows of a few parts. Each stage has one task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NotRequired, TypedDict

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gristmill.pipeline.json_types import JSONObject, StageSpec
from gristmill.pipeline.recipe import registry
from gristmill.pipeline.report_data.documents import report_task, stored_batches
from gristmill.pipeline.store.records import LookResult, LookTask, Partition, Result
from gristmill.pipeline.store.storage import Store

MOST_ROWS = 1_000_000
EXAMPLE_PARTS = 4
BINS = 20
MOST_GROUPS = 30  # of sources or languages, the largest
EACH, CHARACTERS = 2, 200


class ScoredExample(TypedDict):
    """A document with its score."""

    tenth: int
    score: float
    uid: str
    url: str | None
    text: str


class SignalScores(TypedDict):
    """How one signal is spread."""

    signal: str
    documents: int
    without: int
    mean: float
    low: float
    high: float
    counts: list[int]
    deciles: list[float]
    by: dict[str, dict[str, list[int]]]
    examples: list[ScoredExample]


class LabelCounts(TypedDict):
    """How often each label of one signal was given, the commonest first; by source too."""

    signal: str
    documents: int
    counts: dict[str, int]
    by: dict[str, dict[str, int]]


class ScoreRecord(TypedDict):
    """`scores` of a stage's report."""

    of: int
    whole: bool
    judge: JSONObject | None
    signals: list[SignalScores]
    labels: NotRequired[list[LabelCounts]]  # of signals that are texts


def task_of_scores(store: Store, called: str, spec: StageSpec, parts: Sequence[Partition]) -> LookTask:
    """The task that reads the scores of a stage's documents."""
    chosen = _chosen(parts)
    whole = len(chosen) == sum(1 for part in parts if part.rows)
    cost = sum(part.rows for part in chosen)
    return report_task(store, "scores", called, "scores", cost, {"stage": spec, "parts": chosen, "whole": whole})


def run_scores(task: LookTask) -> Result:
    store, stage, chosen = Store(task.out), registry.build(task.given["stage"]), task.given["parts"]
    signals = stage.scored_signals
    tables = [
        pa.Table.from_batches([batch]).append_column("source", pa.array([part.source] * len(batch), pa.string()))
        for part in chosen
        for batch in stored_batches(store, part, [*signals, "language"])
    ]
    record: ScoreRecord = {
        "of": 0,  # documents that came to the stage, which the driver knows
        "whole": task.given["whole"],
        "judge": stage.model_card(),
        "signals": [],
    }
    for signal in signals:
        having = [table for table in tables if signal in table.column_names]
        if not having:
            continue
        table = pa.concat_tables(having, promote_options="permissive")
        if pa.types.is_string(table.schema.field(signal).type):
            record.setdefault("labels", []).append(_label_counts(table, signal))
        elif (scores := _scores(store, chosen, signal, table)) is not None:
            record["signals"].append(scores)
    return LookResult(seen=record)


def _chosen(parts: Sequence[Partition]) -> list[Partition]:
    """One of each source at least, then as many as fit."""
    ordered = sorted((part for part in parts if part.rows), key=lambda part: (part.home, part.key))
    first = {part.source: part for part in reversed(ordered)}
    chosen, rows = list(first.values()), sum(part.rows for part in first.values())
    taken = {part.key for part in chosen}
    for part in ordered:
        if part.key not in taken and rows + part.rows <= MOST_ROWS:
            chosen.append(part)
            rows += part.rows
    return sorted(chosen, key=lambda part: (part.home, part.key))


def _scores(store: Store, parts: Sequence[Partition], signal: str, table: pa.Table) -> SignalScores | None:
    values = _numbers(table, signal)
    has_score = np.isfinite(values)
    if not has_score.any():
        return None
    scores = values[has_score]
    low, high = _range(scores)
    edges = np.linspace(low, high, BINS + 1)
    deciles = np.quantile(scores, np.linspace(0, 1, 11), method="inverted_cdf")
    scored = table.filter(pa.array(has_score))
    groups = {name: _by_group(scores, scored, name, edges) for name in ("source", "language")}
    return {
        "signal": signal,
        "documents": len(scores),
        "without": len(values) - len(scores),
        "mean": float(scores.mean()),
        "low": low,
        "high": high,
        "counts": _counts(scores, edges),
        "deciles": deciles.tolist(),
        "by": {name: counted for name, counted in groups.items() if counted},
        "examples": _examples(store, parts, signal, deciles),
    }


def _label_counts(table: pa.Table, signal: str) -> LabelCounts:
    pairs = Counter(zip(table.column("source").to_pylist(), table.column(signal).to_pylist(), strict=True))
    counts: Counter[str] = Counter()
    sources: Counter[str] = Counter()
    for (source, label), count in pairs.items():
        counts[label] += count
        sources[source] += count
    order = [label for label, _ in sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))]
    largest = sorted(sources, key=lambda source: (-sources[source], source))[:MOST_GROUPS]
    return {
        "signal": signal,
        "documents": counts.total(),
        "counts": {label: counts[label] for label in order},
        "by": {source: {label: pairs[source, label] for label in order} for source in largest},
    }


def _numbers(table: pa.Table | pa.RecordBatch, signal: str) -> NDArray[np.float64]:
    return np.asarray(table.column(signal).cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)


def _range(values: NDArray[np.float64]) -> tuple[float, float]:
    """From 0 to 1 where all lie there, else from the lowest to the highest."""
    low, high = float(values.min()), float(values.max())
    if low >= 0 and high <= 1:
        return 0.0, 1.0
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def _counts(values: NDArray[np.float64], edges: NDArray[np.float64]) -> list[int]:
    counted: list[int] = np.histogram(values, edges)[0].tolist()
    return counted


def _by_group(
    values: NDArray[np.float64], table: pa.Table, column: str, edges: NDArray[np.float64]
) -> dict[str, list[int]]:
    """The counts of each of the largest sources or languages."""
    if column not in table.column_names:
        return {}
    labels = table.column(column).cast(pa.string()).combine_chunks().dictionary_encode()
    names = labels.dictionary.to_pylist()
    which = labels.indices.fill_null(len(names)).to_numpy(zero_copy_only=False)
    counts = np.bincount(which, minlength=len(names) + 1)
    largest = sorted(range(len(names)), key=lambda i: (-counts[i], names[i]))[:MOST_GROUPS]
    return {names[i]: _counts(values[which == i], edges) for i in largest}


def _examples(
    store: Store, parts: Sequence[Partition], signal: str, deciles: NDArray[np.float64]
) -> list[ScoredExample]:
    """Documents of each tenth, those with the lowest uids."""
    examples: list[ScoredExample] = []
    first = [
        next(stored_batches(store, part, ["uid", "url", "text", signal]), None) for part in _of_many_sources(parts)
    ]
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
        examples.append({"tenth": tenth + 1, "score": score, "uid": f"{uid:016x}", "url": url, "text": text})
        if min(taken) == EACH:
            break
    return sorted(examples, key=lambda example: (example["tenth"], example["score"], example["uid"]))


def _of_many_sources(parts: Sequence[Partition]) -> list[Partition]:
    first = {part.source: part for part in reversed(parts)}
    chosen = list(first.values())[:EXAMPLE_PARTS]
    return chosen + [part for part in parts if part not in chosen][: EXAMPLE_PARTS - len(chosen)]
