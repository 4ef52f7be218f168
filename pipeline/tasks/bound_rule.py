"""Rules bound to the columns that they read, and their outcome on a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gristmill.pipeline.errors import STAGE_ERRORS, RunFailed
from gristmill.pipeline.recipe import registry
from gristmill.pipeline.store.partitions import error_detail
from gristmill.pipeline.store.records import Partition, Result, RuleSpec
from gristmill.pipeline.tasks.isolation import CrashPolicy
from gristmill.stages.stage import CannotRun, NoSuchSignal, Rule, Verdict, with_columns

# When all of so many documents fail, it is the stage that is broken and not the documents.
ENOUGH_TO_BLAME_THE_STAGE = 16
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
        back = {column: name for name, column in self.columns.items()}
        old = {name: batch.column(column) for column, name in back.items() if column in batch.schema.names}
        view = with_columns(batch.select([name for name in batch.schema.names if "@" not in name]), old)
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


def outcome_of(rule: Rule, batch: pa.RecordBatch, crash: CrashPolicy | None = None) -> RuleOutcome:
    """A rule's verdict on a batch. A document that breaks the rule is found by halving."""
    crash = crash or CrashPolicy()
    try:
        with crash.watching(rule.patience):
            verdict = rule.checked(batch).verdict
        return RuleOutcome(verdict.first.copy(), verdict)
    except (CannotRun, ImportError, NoSuchSignal, RunFailed) as error:  # not a document's doing
        raise RunFailed(f"{registry.named(rule)}: {error}") from error
    except STAGE_ERRORS as error:  # whatever a hostile document brings a rule to
        if len(batch) <= 1:
            return (
                broken(error_detail(error)) if len(batch) else RuleOutcome(np.zeros(0, dtype=np.int16), Verdict.keep(0))
            )
    middle = len(batch) // 2
    return _joined(outcome_of(rule, batch.slice(0, middle), crash), outcome_of(rule, batch.slice(middle), crash))


def outcome_in_task(rule: Rule, batch: pa.RecordBatch, crash: CrashPolicy, number: int) -> RuleOutcome:
    """The outcome in a process that documents may kill: with breadcrumbs, and without rows that killed one before."""
    place = (number, rule.called)
    outcomes = []
    for piece, row, condemned in crash.pieces(place, batch):
        if condemned is None:
            crash.about_to(place, piece, row)
        outcomes.append(outcome_of(rule, piece, crash) if condemned is None else broken(condemned))
    return reduce(_joined, outcomes)


def broken(how: str) -> RuleOutcome:
    """What becomes of one document that broke a rule."""
    return RuleOutcome(np.full(1, BROKE, dtype=np.int16), Verdict.keep(1), {0: how})


def _joined(a: RuleOutcome, b: RuleOutcome) -> RuleOutcome:
    verdict = Verdict.keep(len(a.first) + len(b.first))
    start = 0
    for half in (a.verdict, b.verdict):
        for bit, reason in enumerate(half.reasons):
            mask = np.zeros(len(verdict), dtype=bool)
            mask[start : start + len(half)] = (half.all >> np.uint64(bit)) & np.uint64(1) == 1
            if reason not in verdict.reasons:
                verdict.reasons.append(reason)
            verdict.all[mask] |= np.uint64(1 << verdict.reasons.index(reason))
        names = np.array([verdict.reasons.index(r) for r in half.reasons] + [KEPT], dtype=np.int16)
        verdict.first[start : start + len(half)] = names[half.first]
        verdict.details |= {start + row: detail for row, detail in half.details.items()}
        start += len(half)
    first = verdict.first.copy()
    broke = a.broke | {len(a.first) + row: error for row, error in b.broke.items()}
    first[list(broke)] = BROKE
    return RuleOutcome(first, verdict, broke)


def without_poison(part: Partition, result: Result) -> Partition:
    """A partition as its rules may see it again: without the documents that killed them."""
    facts = result.files.get("condemned")
    return part if facts is None else replace(part, verdicts=(*part.verdicts, facts))
