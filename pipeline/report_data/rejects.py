"""Why documents were dropped, in numbers, and a few rejects for each reason.

A reason that a limit of its rule gave (`Rule.limits`) comes with the signal, its value, the bound and the setting.
Rules are asked on stored signals. Samples are the first by uid in the first files of rejects, so that two runs show the
same; where the stage itself gave no detail, the detail says in numbers what the document was beyond.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.formatting import one_line
from gristmill.pipeline.json_types import StageSpec
from gristmill.pipeline.recipe import registry
from gristmill.pipeline.report_data.documents import Places, Row, SampleEntry, Value, report_task, sample_entry
from gristmill.pipeline.store.records import LookResult, LookTask, Partition, Result
from gristmill.pipeline.store.run_records import SegmentRules
from gristmill.pipeline.store.storage import Store
from gristmill.pipeline.tasks.bound_rule import BoundRule, outcome_of
from gristmill.stages.contract import Limit, as_numpy, setting_at
from gristmill.stages.stage import Rule, Signals

Opened = Callable[[str], AbstractContextManager[IO[bytes]]]
CANNOT_ASK = (OSError, LookupError, ValueError, TypeError, ValidationError, RunFailed, pa.ArrowException)
FEW = 4  # signals that are shown where no limit explains a reason
SIGNS = {"low": "<", "high": ">"}
FILES, EACH = 32, 5  # of rejects: files that are read, and samples of a reason
NAMED = 4  # signals beyond their thresholds as well


@dataclass(frozen=True)
class Held:
    """A reason that held for a document. With a threshold: the signal stands `sign` of it; without one, what the rule
    saw is in `seen`."""

    stage: str
    reason: str | None
    signal: str | None = None
    value: float | None = None
    sign: str | None = None
    threshold: float | None = None
    field: str | None = None  # of the rule's settings
    column: str | None = None  # where the signal is stored: `words@c4_lines` is what it was before c4_lines
    seen: Row = dataclasses.field(default_factory=dict)

    @property
    def words(self) -> str:
        if self.signal is not None and self.value is not None and self.threshold is not None:
            value, threshold = telling_digits(self.value, self.threshold)
            return f"{self.signal} {value} {self.sign} {threshold}"
        return ", ".join(f"{name} {as_value(value)}" for name, value in self.seen.items())


def telling_digits(a: float, b: float) -> tuple[str, str]:
    """Two numbers in four digits; in as many as it takes to tell them apart."""
    for digits in range(4, 18):
        both = as_value(a, digits), as_value(b, digits)
        if both[0] != both[1]:
            break
    return both


def as_value(value: Value, digits: int = 4) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "unknown"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return one_line(str(value))[:80]
    if abs(value) >= 1000:
        return f"{value:,.{0 if float(value).is_integer() else max(0, digits - 4)}f}"
    return f"{value:.{digits}g}"


# --- asking a rule ----------------------------------------------------------------------------------------------------


def reasons_held(rule: Rule, view: pa.RecordBatch) -> list[Held]:
    """Every reason that holds for the one document of a batch, in the rule's order, with its number where a limit of
    the rule gave it."""
    verdict, signals = outcome_of(rule, view).verdict, Signals(view)
    values = {name: view.column(name)[0].as_py() for name in rule.needs if name in view.schema.names}
    reasons = []
    for reason in verdict.every_reason(0):
        passed = [limit for limit in rule.limits if limit.reason == reason and is_beyond(rule, limit, signals)]
        if passed:
            limit = next((limit for limit in passed if rule.governed(limit, signals)[0]), passed[0])
            reasons.append(in_numbers(rule, limit, signals))
        else:
            names = list(values if len(values) <= FEW else {})
            reasons.append(Held(rule.called, reason, seen={name: values[name] for name in names}))
    return reasons


def is_beyond(rule: Rule, limit: Limit, signals: Signals) -> bool:
    return bool(limit.beyond(rule.values([limit], signals)[0], rule.bounds([limit], signals)[0]).all())


def in_numbers(rule: Rule, limit: Limit, signals: Signals) -> Held:
    own = bool(rule.governed(limit, signals)[0])
    bound = setting_at(rule, limit.setting) if own else np.ravel(rule.bounds([limit], signals)[0])[0].item()
    value = rule.values([limit], signals)[0][0].item()
    setting = limit.setting if own and isinstance(limit.setting, str) else None
    return Held(rule.called, limit.reason, limit.signal, value, SIGNS[limit.side], bound, setting)


# --- documents of a part ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RuleReasons:
    """What the rules of a segment say of one document."""

    held: list[Held]
    details: dict[str, str]  # by stage: its own detail of the reason for which it drops the document


def reasons_in_part(
    opened: Opened, rules: Sequence[BoundRule], part: Partition, rows: Sequence[int]
) -> list[RuleReasons]:
    """What the rules say of some documents of a part, by their rows in growing order. Rules that read texts are not
    asked again."""
    paths = [file.path for file in [part.documents, *part.signals] if file is not None]
    deciding = [d for d in rules if d.rule.needs and "text" not in d.rule.needs]
    columns = {
        name for d in deciding for name in (*d.rule.needs, *(d.columns.get(need, need) for need in d.rule.needs))
    }
    by_name: dict[str, pa.ChunkedArray] = {}
    for path in paths:
        taken = rows_of(opened, path, rows, columns)
        by_name |= {name: taken.column(name) for name in taken.column_names}
    reasons = [RuleReasons([], {}) for _ in rows]
    whole = pa.table(by_name).combine_chunks().to_batches() if by_name and rows else []
    for d in deciding if whole else []:
        view = d.view(whole[0])
        view = view.select([name for name in view.schema.names if name in d.rule.needs])
        verdict = outcome_of(d.rule, view).verdict
        for row in np.flatnonzero(verdict.all).tolist():
            reasons[row].held.extend(stored_as(d, held) for held in reasons_held(d.rule, view.slice(row, 1)))
            if verdict.details.get(row):
                reasons[row].details[d.rule.called] = verdict.details[row]
    return reasons


def reasons_by_uid(
    opened: Opened, rules: Sequence[BoundRule], part: Partition, uids: Sequence[int]
) -> Iterator[tuple[int, RuleReasons]]:
    """The same of documents by their uids; nothing of a part of which a file is gone."""
    if not uids or part.documents is None:
        return
    try:
        with opened(part.documents.path) as file:
            there = as_numpy(pq.ParquetFile(file).read(columns=["uid"]).column("uid").combine_chunks())
        rows = np.flatnonzero(np.isin(there, np.array(uids, np.uint64))).tolist()
        yield from zip(there[rows].tolist(), reasons_in_part(opened, rules, part, rows), strict=True)
    except CANNOT_ASK:
        return


def stored_as(deciding: BoundRule, held: Held) -> Held:
    if held.signal is None:
        return held
    return dataclasses.replace(held, column=deciding.columns.get(held.signal, held.signal))


def rows_of(opened: Opened, path: str, rows: Sequence[int], columns: set[str] | None = None) -> pa.Table:
    """Rows of a Parquet file, by number in growing order; only their row groups are read, and of these columns those
    that it has, or all."""
    tables, first = [], 0
    with opened(path) as file:
        parquet = pq.ParquetFile(file, pre_buffer=False)
        names = [name for name in parquet.schema_arrow.names if columns is None or name in columns]
        for group in range(parquet.num_row_groups if names else 0):
            size = parquet.metadata.row_group(group).num_rows
            in_group = [row - first for row in rows if first <= row < first + size]
            if in_group:
                table = parquet.read_row_group(group, columns=names)
                tables += [table.slice(row, 1) for row in in_group]  # `take` of a list imports pandas
            first += size
    return pa.concat_tables(tables) if tables else pa.table({})


# --- samples of rejects -----------------------------------------------------------------------------------------------


def task_of_samples(
    store: Store, stage: str, rejects: Iterable[str], segments: Iterable[SegmentRules], stages: Sequence[StageSpec]
) -> LookTask:
    """The task that reads rejected documents of a stage in the first of its files. `stages` can name the places in
    their texts."""
    paths = sorted(path for path in rejects if path.endswith(".parquet"))[:FILES]
    keys = {key_of(path) for path in paths}
    of_stage = [
        replace(segment, parts=tuple(part for part in segment.parts if part.key in keys)) for segment in segments
    ]
    given = {
        "stage": stage,
        "paths": paths,
        "segments": [segment for segment in of_stage if segment.parts],
        "stages": stages if paths else [],
    }
    return report_task(store, "samples", stage, "samples", 1 << 20, given)


def key_of(path: str) -> str:
    """The part that a file of rejects is of."""
    return path.rsplit("/", 1)[-1].split(".")[0]


def run_samples(task: LookTask) -> Result:
    """By reason, rejected documents with what they went for, or the beginning of their texts."""
    store, given = Store(task.out), task.given
    places = Places(registry.build(spec) for spec in given["stages"])
    samples: dict[str, list[SampleEntry]] = {}
    counts: Counter[str] = Counter()
    by_part: dict[str, list[SampleEntry]] = {}
    for path in given["paths"]:
        with store.open(path) as file:
            table = pq.ParquetFile(file)
            for group in range(min(2, table.num_row_groups)):
                reasons = table.read_row_group(group, columns=["reason"]).column("reason").to_pylist()
                wanted = []
                for row, reason in enumerate(reasons):
                    if counts[reason] < EACH:
                        counts[reason] += 1
                        wanted.append(row)
                if not wanted:
                    continue
                for document in table.read_row_group(group).take(wanted).to_pylist():
                    place = places.of(given["stage"], document["reason"], document["text"] or "")
                    sample = sample_entry(document, document["source"], document["detail"], place)
                    samples.setdefault(document["reason"], []).append(sample)
                    by_part.setdefault(key_of(path), []).append(sample)
    if by_part:
        give_numbers(store, given["stage"], given["segments"], by_part)
    return LookResult(seen=dict(sorted(samples.items())))


def give_numbers(
    store: Store, stage: str, segments: Sequence[SegmentRules], by_part: dict[str, list[SampleEntry]]
) -> None:
    """Add details to samples of what a rule took by stored signals."""
    for segment in segments:
        try:
            rules = [BoundRule.of(rule) for rule in segment.rules]
        except CANNOT_ASK:
            continue
        for part in segment.parts if any(bound.rule.called == stage for bound in rules) else ():
            samples = {
                int(sample["uid"], 16): sample for sample in by_part.get(part.key, []) if sample["uid"] is not None
            }
            for uid, answer in reasons_by_uid(store.open, rules, part, list(samples)):
                detail = detail_of(stage, answer)
                if detail is not None:
                    samples[uid]["detail"] = detail


def detail_of(stage: str, answer: RuleReasons) -> str | None:
    """`top_2gram_share 0.5003 > 0.2; also duplicate_line_share, words`: the first reason of the stage in numbers, and
    what else the document is beyond. If the stage gave a detail, that and the number, unless the detail has it. None
    where there is nothing to add."""
    first = next((held for held in answer.held if held.stage == stage), None)
    if first is None or not first.words:
        return None
    if stage in answer.details:
        own = answer.details[stage]
        return f"{own}; {first.words}" if first.threshold is not None and as_value(first.value) not in own else None
    also = dict.fromkeys(named(held) for held in answer.held if held is not first)
    also.pop(named(first), None)
    more = f" and {len(also) - NAMED} more" if len(also) > NAMED else ""
    return first.words + (f"; also {', '.join(list(also)[:NAMED])}{more}" if also else "")


def named(held: Held) -> str:
    return held.signal or f"{held.stage}: {held.reason}"
