"""Rules bound to the columns that they read, and their outcome on a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gristmill.pipeline.recipe import registry
from gristmill.pipeline.store.records import Partition, Result, RuleSpec
from gristmill.pipeline.tasks.isolation import BatchLocation, CrashPolicy, answers_of
from gristmill.stages.stage import Rule, Verdict, with_columns

KEPT, BROKE = -1, -2  # what a document came to, where it is no index of a reason


@dataclass(frozen=True)
class BoundRule:
    """A rule, and where it finds what it looks at: signals under other names, earlier versions of the text."""

    rule: Rule
    columns: Mapping[str, str]
    texts: tuple[str, ...]

    @classmethod
    def of(cls, data: RuleSpec) -> BoundRule:
        return cls(cast(Rule, registry.build(data.stage)), data.columns, tuple(data.texts))

    def reads(self, there: list[str]) -> list[str]:
        """Columns of a part that it has to be shown."""
        needs = list(self.rule.needs) or [name for name in there if "@" not in name]
        wanted = [self.columns.get(name, name) for name in needs] + (list(self.texts) if "text" in needs else [])
        return [name for name in dict.fromkeys(wanted) if name in there]

    def view(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch as it was when the recipe comes to this rule."""
        names = batch.schema.names
        view = batch.select([name for name in names if "@" not in name])
        if self.columns:
            old = {name: batch.column(column) for name, column in self.columns.items() if column in names}
            view = with_columns(view, old)
        return with_columns(view, {"text": self.text(batch)}) if self.texts and "text" in view.schema.names else view

    def text(self, batch: pa.RecordBatch) -> pa.Array:
        """The text that it looked at; a version that is null was not changed by the rewrite it is named for."""
        there = [batch.column(name) for name in (*self.texts, "text") if name in batch.schema.names]
        return pc.coalesce(*there) if there else pa.nulls(len(batch), pa.string())  # texts were not kept


@dataclass
class RuleOutcome:
    """One rule's answer on a batch. `first` is, of each document, the index of the first reason, KEPT, or BROKE."""

    first: NDArray[np.int16]
    verdict: Verdict
    broke: dict[int, str] = field(default_factory=dict)


def outcome_of(
    rule: Rule, batch: pa.RecordBatch, crash: CrashPolicy | None = None, location: BatchLocation = (0, "")
) -> RuleOutcome:
    """A rule's verdict on a batch, in one piece again."""
    answers = answers_of(rule, batch, crash or CrashPolicy(), location)
    verdict = joined([Verdict.keep(len(a.batch)) if a.applied is None else a.applied.verdict for a in answers])
    starts = np.cumsum([0, *(len(answer.batch) for answer in answers)]).tolist()
    broke = {start: a.broke for start, a in zip(starts, answers, strict=False) if a.applied is None and len(a.batch)}
    first = verdict.first.copy()
    first[list(broke)] = BROKE
    return RuleOutcome(first, verdict, broke)


def joined(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict on a batch, of those on its pieces."""
    if len(verdicts) == 1:
        return verdicts[0]
    whole, start = Verdict.keep(sum(map(len, verdicts))), 0
    for verdict in verdicts:
        rows = slice(start, start + len(verdict))
        whole.reasons += [reason for reason in verdict.reasons if reason not in whole.reasons]
        numbers = [whole.reasons.index(reason) for reason in verdict.reasons]
        for bit, number in enumerate(numbers):
            whole.all[rows] |= verdict.held(bit).astype(np.uint64) << np.uint64(number)
        whole.first[rows] = np.array([*numbers, KEPT], dtype=np.int16)[verdict.first]
        whole.details |= {start + row: detail for row, detail in verdict.details.items()}
        start = rows.stop
    return whole


def without_poison(part: Partition, result: Result) -> Partition:
    """A partition as its rules may see it again: without the documents that killed them."""
    facts = result.files.get("condemned")
    return part if facts is None else replace(part, verdicts=(*part.verdicts, facts))
