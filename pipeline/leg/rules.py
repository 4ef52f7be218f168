"""What the rules of a leg say of one part, from the signals that were measured on it: a pass over numbers.

Every rule looks at every document that came in, so that all reasons are on record; a document goes by the first rule
that drops it. The verdicts lie row by row beside the documents; the texts of those that go are copied into the rejects.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gristmill.pipeline.errors import STAGE_ERRORS, RunFailed
from gristmill.pipeline.leg.care import Care, SearchEnded
from gristmill.pipeline.leg.leg import ENOUGH_TO_BLAME_THE_STAGE
from gristmill.pipeline.processes.memory import peak_memory
from gristmill.pipeline.recipe import registry
from gristmill.pipeline.store.counts import Count, check_chain
from gristmill.pipeline.store.lock import store_of
from gristmill.pipeline.store.parts import ROW, TEXT_BYTES, columns_of, read_part, text_lengths
from gristmill.pipeline.store.records import Files, Part, Result, RuleSpec, RulesTask
from gristmill.pipeline.store.rejects import QUARANTINED, RejectsWriter, error_detail
from gristmill.pipeline.store.writing import PartWriter, part_writers, write_every_row
from gristmill.stages.stage import CannotRun, NoSuchSignal, Rule, Signals, Verdict, with_columns

KEPT, BROKE = -1, -2  # what a document came to, where it is no index of a reason


@dataclass(frozen=True)
class Deciding:
    """A rule, and where it finds what it looks at: signals under other names, earlier versions of the text."""

    rule: Rule
    columns: Mapping[str, str]
    texts: tuple[str, ...]

    @classmethod
    def of(cls, data: RuleSpec) -> Deciding:
        return cls(cast(Rule, registry.build(data["stage"])), data["columns"], tuple(data["texts"]))

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


def outcome_of(rule: Rule, batch: pa.RecordBatch, care: Care | None = None) -> RuleOutcome:
    """A rule's verdict on a batch. A document that breaks the rule is found by halving."""
    care = care or Care()
    try:
        with care.watching(rule.patience):
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
    return _joined(outcome_of(rule, batch.slice(0, middle), care), outcome_of(rule, batch.slice(middle), care))


def outcome_with_care(rule: Rule, batch: pa.RecordBatch, care: Care, number: int) -> RuleOutcome:
    """The same, in a process that documents may kill: it leaves a trail, and leaves out what killed it before."""
    place = (number, rule.called)
    outcomes = []
    for piece, row, condemned in care.pieces(place, batch):
        if condemned is None:
            care.about_to(place, piece, row)
        outcomes.append(outcome_of(rule, piece, care) if condemned is None else broken(condemned))
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


def without_condemned(part: Part, result: Result) -> Part:
    """A part as its rules may see it again: without the documents that killed them."""
    facts = result["files"].get("condemned")
    return part if facts is None else {**part, "verdicts": [*part["verdicts"], facts]}


def run_decide(task: RulesTask, care: Care | None = None) -> Result:
    """The verdicts of a leg's rules on one part, its rejects, and the account."""
    with part_writers() as writers:
        return _Decision(task, care or Care(), writers).run()


class _Decision:
    def __init__(self, task: RulesTask, care: Care, writers: list[PartWriter]) -> None:
        self.task = task
        self.care = care
        self.batch_number = -1
        self.part: Part = task["part"]
        self.store = store_of(task)
        self.rules = [Deciding.of(data) for data in task["rules"]]
        self.counts = {d.rule.called: Count() for d in self.rules}
        self.file_name = f"{self.part['key']}.{task['task'][:8]}"
        self.rejects = RejectsWriter(self.store, self.file_name, self.part["source"], task["rejects"], writers)
        rows = int(self.part["rows"])
        self.kept = np.ones(rows, dtype=bool)
        self.stage = np.full(rows, -1, dtype=np.int8)
        self.reason: list[str | None] = [None] * rows
        self.detail: list[str | None] = [None] * rows
        self.uid = np.zeros(rows, dtype=np.uint64)
        self.failed = {d.rule.called: np.zeros(rows, dtype=np.uint64) for d in self.rules}
        self.reasons: dict[str, list[str]] = {d.rule.called: [] for d in self.rules}
        self.condemned = np.zeros(rows, dtype=bool)  # what kills a rule: nobody asks one of it again
        self.log: list[str] = []
        self.alive = 0
        self.text_bytes = 0

    def run(self) -> Result:
        there = columns_of(self.store, self.part)
        wanted = [
            "uid",
            "url",
            TEXT_BYTES if TEXT_BYTES in there else "text",
            *(name for d in self.rules for name in d.reads(there)),
        ]
        if self.task["rejects"]["keep"]:
            wanted.append("id")
        if self.task["rejects"]["text"] and self.task["rejects"]["keep"]:
            wanted += ["text", *(name for d in self.rules for name in d.texts)]
        for batch in read_part(self.store, self.part, list(dict.fromkeys(wanted)), numbered=True):
            self.batch_number += 1
            if not self.care.skips(self.batch_number):
                self.judge(batch)
        if self.care.search is not None:
            raise SearchEnded
        names = [d.rule.called for d in self.rules]
        counts = {name: count.plain() for name, count in self.counts.items()}
        check_chain(
            counts, names, self.part["kept"], self.alive, f"{self.task['leg']}, rules on part {self.part['key']}"
        )
        part: Part = {**self.part, "verdicts": [*self.part["verdicts"]]}
        files: Files = {**self.rejects.close()}
        if self.alive < self.part["kept"] or any(bits.any() for bits in self.failed.values()):
            facts = write_every_row(
                self.store, f"legs/{self.task['leg']}/{self.file_name}.verdicts.parquet", self.verdicts(names)
            )
            files["verdicts"] = facts
            part["verdicts"].append(facts)
        part["kept"], part["text_bytes"] = self.alive, self.text_bytes
        if self.condemned.any():
            path = f"legs/{self.task['leg']}/{self.file_name}.condemned.parquet"
            files["condemned"] = write_every_row(self.store, path, pa.table({"kept": ~self.condemned}))
        return {"part": part, "files": files, "counts": counts, "log": self.log, "peak_memory": peak_memory()}

    def judge(self, batch: pa.RecordBatch) -> None:
        rows = batch.column(ROW).to_numpy()
        self.uid[rows] = batch.column("uid").to_numpy()
        alive = np.ones(len(batch), dtype=bool)
        lengths = text_lengths(batch)
        self.condemned[rows[[row for spot, _, row in self.care.condemned if spot == self.batch_number]]] = True
        for number, deciding in enumerate(self.rules):
            start = time.perf_counter()
            called, view = deciding.rule.called, deciding.view(batch)
            outcome = outcome_with_care(deciding.rule, view, self.care, self.batch_number)
            count = self.counts[called]
            count.docs_in += int(alive.sum())
            if type(deciding.rule).tally is not Rule.tally:
                came = alive & (outcome.first != BROKE)
                count.noted.update(deciding.rule.tally(Signals(view), outcome.verdict, came))
            count.bytes_in += view.nbytes - (view.column("text").nbytes if "text" in view.schema.names else 0)
            self.note_all(called, outcome.verdict, rows)
            gone = alive & (outcome.first != KEPT)
            if gone.any():
                self.send_off(number, view, outcome, gone, rows)
                alive &= ~gone
            count.kept += int(alive.sum())
            count.text_bytes += int(lengths[alive].sum())
            count.seconds += time.perf_counter() - start
        self.alive += int(alive.sum())
        self.text_bytes += int(lengths[alive].sum())

    def note_all(self, called: str, verdict: Verdict, rows: NDArray[np.int64]) -> None:
        """Every reason that held, as a bit of its own."""
        names, bits = self.reasons[called], self.failed[called]
        for bit, reason in enumerate(verdict.reasons):
            if reason not in names:
                names.append(reason)
            held = (verdict.all >> np.uint64(bit)) & np.uint64(1)
            bits[rows] |= held << np.uint64(names.index(reason))

    def send_off(
        self,
        number: int,
        view: pa.RecordBatch,
        outcome: RuleOutcome,
        gone: NDArray[np.bool_],
        rows: NDArray[np.int64],
    ) -> None:
        """The documents of which this rule is the first to drop them."""
        called = self.rules[number].rule.called
        count = self.counts[called]
        verdict = outcome.verdict
        first_to_drop = Verdict.keep(len(view))  # the verdict on the documents that no earlier rule dropped
        first_to_drop.reasons, first_to_drop.details = verdict.reasons, verdict.details
        first_to_drop.all = verdict.all
        first_to_drop.first = np.where(gone & (outcome.first >= 0), outcome.first, np.int16(-1))
        if "text" not in view.schema.names:
            view = with_columns(view, {"text": pa.nulls(len(view), pa.string())})
        if (first_to_drop.first >= 0).any():
            self.rejects.dropped(called, view, first_to_drop)
        for row in np.flatnonzero(gone).tolist():
            place = int(rows[row])
            if outcome.first[row] == BROKE:
                reason, detail = QUARANTINED, outcome.broke[row]
                count.quarantined += 1
                self.rejects.quarantined(called, view.slice(row, 1), detail)
                self.log.append(
                    f"{called}: document {int(self.uid[place]):016x} ({view.column('url')[row].as_py()}): {detail}"
                )
            else:
                reason, detail = verdict.reasons[outcome.first[row]], verdict.details.get(row, "")
                count.dropped[reason] += 1
            self.reason[place], self.detail[place] = reason, detail or None
            self.stage[place], self.kept[place] = number, False
        if count.quarantined == len(view) >= ENOUGH_TO_BLAME_THE_STAGE:
            named = registry.named(self.rules[number].rule)
            raise RunFailed(
                f"{named}: all {len(view)} documents of a batch of {self.part['key']} broke it; "
                f"the last: {self.log[-1]}"
            )

    def verdicts(self, names: list[str]) -> pa.Table:
        """One row a document: kept or not, by which stage and why; and for each rule a bit for each of its reasons that
        held."""
        stage = pa.DictionaryArray.from_arrays(pa.array(self.stage, mask=self.stage < 0), pa.array(names)).cast(
            pa.string()
        )
        columns: dict[str, NDArray[np.generic] | pa.Array] = {
            "uid": self.uid,
            "kept": self.kept,
            "stage": stage,
            "reason": pa.array(self.reason, pa.string()),
            "detail": pa.array(self.detail, pa.string()),
        }
        columns |= {f"failed:{name}": bits for name, bits in self.failed.items()}
        return pa.table(columns).replace_schema_metadata({"gristmill.reasons": json.dumps(self.reasons)})
