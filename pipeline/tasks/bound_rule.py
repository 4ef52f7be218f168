"""A stage's answer on a batch, by halves where a document breaks the stage; and rules, bound to the columns that they
read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from gristmill.stages.contract import check_same_types
from gristmill.stages.stage import Applied, CannotRun, Map, NoSuchSignal, Rule, Verdict, with_columns

# When all of so many documents fail, it is the stage that is broken and not the documents.
ENOUGH_TO_BLAME_THE_STAGE = 16
KEPT, BROKE = -1, -2  # what a document came to, where it is no index of a reason
NO_DOCUMENTS_DOING = (CannotRun, ImportError, NoSuchSignal, RunFailed)

# --- the answer of any stage ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """What a stage made of a piece of a batch; or, where it is one document, why there is no answer."""

    batch: pa.RecordBatch
    applied: Applied | None
    broke: str = ""


def answers_of(
    stage: Map,
    batch: pa.RecordBatch,
    crash: CrashPolicy | None = None,
    number: int = 0,
    schemas: dict[str, pa.Schema] | None = None,
) -> list[Answer]:
    """A stage's answer on a batch, in as many pieces as it takes to leave out the documents that break it, or that
    killed a process before. `number` is that of the batch; `schemas` has the stage's first answer's."""
    answers: list[Answer] = []
    crash = crash or CrashPolicy()
    location = (number, stage.called)
    for piece, row, poison in crash.pieces(location, batch) if crash.cuts else ((batch, None, None),):
        if poison is not None:
            answers.append(Answer(piece, None, poison))
            continue
        try:
            with crash.guard(location, piece, row, stage.patience):
                applied = stage.checked(piece)
            if schemas is not None:
                check_same_types(schemas.setdefault(stage.called, applied.batch.schema), applied.batch.schema)
            answers.append(Answer(piece, applied))
        except NO_DOCUMENTS_DOING as error:
            raise RunFailed(f"{registry.named(stage)}: {error}") from error
        except STAGE_ERRORS as error:  # whatever a hostile document brings a stage to
            if len(piece) <= 1:
                answers.append(Answer(piece, None, error_detail(error)))
            else:
                whole = replace(crash, poison={}, search=None, one_by_one=frozenset())
                middle = len(piece) // 2
                for half in (piece.slice(0, middle), piece.slice(middle)):
                    answers += answers_of(stage, half, whole, number, schemas)
    return answers


# --- rules ------------------------------------------------------------------------------------------------------------


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


def outcome_of(rule: Rule, batch: pa.RecordBatch, crash: CrashPolicy | None = None, number: int = 0) -> RuleOutcome:
    """A rule's verdict on a batch, in one piece again."""
    answers = answers_of(rule, batch, crash, number)
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
