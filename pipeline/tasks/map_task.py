"""A map task: one partition through the phases of a map node in one pass, from its reader or a stored partition to
signals, verdicts, rejects and sinks.

Each batch goes through all phases while it is in memory. A phase stores what a later run can resume behind: the stages
of a segment (`_StagePhase`) store documents before anything is filtered, or signals beside them; its rules
(`_RulePhase`) store verdicts with every reason that held, so that a new threshold is a pass over numbers.

A stage that raises is tried on halves of the batch until the document is found that breaks it; that one is quarantined,
the rest goes on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gristmill.kernels.base.columns import text_length, texts_with, value_bytes, widened
from gristmill.pipeline.errors import STAGE_ERRORS, RunFailed
from gristmill.pipeline.formatting import one_line
from gristmill.pipeline.inputs.files import open_stretch, origin_of
from gristmill.pipeline.json_types import StageSpec
from gristmill.pipeline.processes import peak_memory
from gristmill.pipeline.recipe import registry
from gristmill.pipeline.store.counts import Counts, Slowest, check_chain
from gristmill.pipeline.store.forgotten import FORGOTTEN, Forgotten, read_list
from gristmill.pipeline.store.lock import store_of
from gristmill.pipeline.store.partitions import (
    QUARANTINED,
    ROW,
    TEXT_BYTES,
    DocumentsWriter,
    PartWriter,
    RejectsWriter,
    columns_of,
    error_detail,
    identity,
    new_part,
    part_writers,
    read_part,
    staged,
    text_lengths,
    with_text_lengths,
    write_every_row,
)
from gristmill.pipeline.store.records import Files, InputSpan, MapResult, MapTask, Partition, Phase, PhaseResult
from gristmill.pipeline.store.storage import Store, open_checked
from gristmill.pipeline.tasks.bound_rule import (
    BROKE,
    KEPT,
    BoundRule,
    RuleOutcome,
    outcome_of,
)
from gristmill.pipeline.tasks.isolation import ENOUGH_TO_BLAME_THE_STAGE, Answer, CrashPolicy, answers_of
from gristmill.stages.contract import check_same_types, check_table
from gristmill.stages.documents import Reading, gather, rebatch
from gristmill.stages.read.payload import MARKUP, rows_of_markup
from gristmill.stages.stage import (
    Annotate,
    Applied,
    CannotRun,
    Map,
    Reader,
    Rewrite,
    Rule,
    Signals,
    Sink,
    Verdict,
    with_columns,
)


def run_map_task(task: MapTask, crash: CrashPolicy | None = None) -> MapResult:
    """Carry a partition through the phases of a task, and store what they leave."""
    crash, store = crash or CrashPolicy(), store_of(task)
    begun = time.perf_counter()
    with part_writers() as writers:
        phases: list[_StagePhase | _RulePhase] = [
            (_RulePhase if phase.rules else _StagePhase)(task, phase, store, crash, writers) for phase in task.phases
        ]
        for number, batch in enumerate(batches_of(task, store, phases)):
            if crash.skips(number):
                continue
            for phase in phases:
                if len(batch):
                    start = time.perf_counter()
                    batch = phase.apply(batch, number)
                    phase.seconds += time.perf_counter() - start
        crash.end_search()
        check_conserved(phases, task.part)
        part, results = task.part, list[PhaseResult | None]()
        for phase in phases:
            if isinstance(phase, _RulePhase) and (part is None or not part.kept):
                results.append(None)  # no document came to it
                continue
            start = time.perf_counter()
            rests_on = "" if part is None else identity(part)
            result = phase.finish(part)
            part = result.part
            phase.seconds += time.perf_counter() - start
            results.append(replace(result, rests_on=rests_on, seconds=round(phase.seconds, 4)))
    peak = peak_memory()
    results = [result and replace(result, peak_memory=peak) for result in results]
    if results[0] is not None:  # it reads
        reading = time.perf_counter() - begun - sum(phase.seconds for phase in phases[1:])
        results[0] = replace(results[0], seconds=round(reading, 4))
    return MapResult(phases=tuple(results))


def check_conserved(phases: Sequence[_StagePhase | _RulePhase], part: Partition | None) -> None:
    """Hold the account of a task to the law, before anything is finished."""
    arrived = None if part is None else part.kept
    for phase in phases:
        check_chain(phase.counts, arrived, phase.left, phase.what)
        arrived = phase.left


def batches_of(task: MapTask, store: Store, phases: Sequence[_StagePhase | _RulePhase]) -> Iterator[pa.RecordBatch]:
    """Batches of the reader, or of the stored partition with the columns that the phases read."""
    first, part, columns = phases[0], task.part, None
    if part is None:
        return _Reading(task, store, first).batches()
    if isinstance(first, _RulePhase):
        there = columns_of(store, part)
        columns = first.wanted(there)
        if len(phases) > 1:
            columns = list(dict.fromkeys([*(name for name in there if "@" not in name), *columns]))
    return read_part(store, part, columns, numbered=isinstance(first, _RulePhase) or first.phase.beside)


class _Phase:
    """What the stages of a segment and its rules have in common."""

    def __init__(
        self, task: MapTask, phase: Phase, store: Store, crash: CrashPolicy, writers: list[PartWriter]
    ) -> None:
        self.task = task
        self.phase = phase
        self.store = store
        self.crash = crash
        self.file_name = f"{task.key}.{phase.task[:8]}"
        self.base = f"partitions/{phase.segment}/{self.file_name}"
        self.what = f"{phase.segment}, {'rules on ' if phase.rules else ''}part {task.key}"
        self.rejects = RejectsWriter(store, self.file_name, task.source, task.rejects, writers)
        self.counts: dict[str, Counts] = {}  # of the reader and of each stage, in order
        self.log: list[str] = []
        self.left = 0  # documents that left it, or are stored
        self.text_bytes = 0  # of their texts
        self.seconds = 0.0

    def quarantine(self, called: str, row: pa.RecordBatch, error: str) -> None:
        self.counts[called].quarantined += 1
        self.log.append(
            f"{called}: document {row.column('uid')[0].as_py():016x} ({row.column('url')[0].as_py()}) "
            f"of {self.task.key}: {error}"
        )
        self.rejects.quarantined(called, row, error)

    def check_some_lived(self, stage: Map, broken: int, batch: pa.RecordBatch) -> None:
        """RunFailed where a stage broke on a whole batch."""
        if broken == len(batch) >= ENOUGH_TO_BLAME_THE_STAGE:
            raise RunFailed(
                f"{registry.named(stage)}: all {broken} documents of a batch of {self.task.key} broke it; "
                f"the last: {self.log[-1]}"
            )


def of_all_rows(table: pa.Table, rows: int) -> pa.Table:
    """A table of some rows of the stored documents, as one of all rows; null where it has none."""
    place = np.full(rows, -1, dtype=np.int64)
    place[table.column(ROW).to_numpy()] = np.arange(len(table))
    return table.drop_columns([ROW]).combine_chunks().take(pa.array(place, mask=place < 0))


# --- reading ----------------------------------------------------------------------------------------------------------


class _Reading:
    """What the reader makes of spans of files, and its account, which is part of the first phase's."""

    def __init__(self, task: MapTask, store: Store, phase: _Phase) -> None:
        self.task = task
        self.source = task.source
        self.count = phase.counts[task.source]
        self.log = phase.log
        self.rejects = phase.rejects
        self.forgotten = read_list(store, task.forgotten) if task.forgotten else None

    def batches(self) -> Iterator[pa.RecordBatch]:
        count, batch_bytes = self.count, self.task.batch_bytes
        for documents in gather(self.documents_read(), batch_bytes):
            start = time.perf_counter()
            count.bytes_out += value_bytes(documents)
            count.text_bytes += text_length(documents)
            if lossy := texts_with(documents, "\ufffd"):
                count.noted["replacement_characters"] += lossy
            if rows := len(rows_of_markup(documents.column("text"))):
                count.noted[MARKUP] += rows
            count.seconds += time.perf_counter() - start
            yield from rebatch([documents], batch_bytes)

    def documents_read(self) -> Iterator[pa.RecordBatch]:
        """The documents of each reading of each span, with the account of records that gave none."""
        reader = cast(Reader, registry.build(cast(StageSpec, self.task.reader)))
        count, limit = self.count, self.task.limit
        for span in self.task.files:
            origin = origin_of(self.source, span)
            try:
                file = open_stretch(reader, span)
            except OSError as error:
                raise RunFailed(
                    f"{self.source}: {span.file.address} cannot be read: {error.strerror or error}"
                ) from error
            with file:
                readings = reader.read(file, origin)
                begun = span.start  # where the next reading begins
                passed = 0  # bytes of the span that earlier readings held
                while True:
                    start = time.perf_counter()
                    reading = next(readings, None)
                    if reading is None:
                        break
                    if self.forgotten is not None:
                        self.leave_out(self.forgotten, reading)
                    documents = reading.documents if limit is None else reading.documents.slice(0, limit - count.kept)
                    damaged = sum(d.records for d in reading.damaged)
                    count.dropped.update(reading.skipped)
                    count.quarantined += damaged
                    count.kept += len(documents)
                    count.docs_in += len(documents) + damaged + sum(reading.skipped.values())
                    count.noted.update(reading.noted)
                    self.log += [one_line(f"{self.source}: {d}") for d in reading.damaged]
                    self.log += [one_line(f"{self.source}: {origin.path}: {remark}") for remark in reading.remarks]
                    if reading.nuls:
                        count.nuls += reading.nuls
                        self.log.append(
                            one_line(
                                f"{self.source}: {origin.path}: texts with NUL characters, "
                                f"which are taken out: {reading.nuls:,}"
                            )
                        )
                    if reading.damaged or reading.remarks:
                        count.faults.note(origin, reading)
                    if reading.damaged or reading.skips:
                        self.rejects.unread(self.source, reading)
                    count.seconds += time.perf_counter() - start
                    yield documents
                    # all of its span, of what is no file and cannot tell
                    at = int(file.tell()) if hasattr(file, "tell") else span.start + span.bytes
                    stored = reading.stored if reading.stored is not None else max(0, at - begun)
                    begun = at
                    if limit is not None and count.kept >= limit:
                        taken = len(documents) / max(1, len(reading.documents))
                        count.bytes_in += min(span.bytes, round(passed + stored * taken))
                        break
                    passed += stored
                self.log += [one_line(f"{self.source}: {remark}") for remark in getattr(file, "remarks", ())]
                if limit is not None and count.kept >= limit:
                    return
            count.bytes_in += span.bytes

    def leave_out(self, forgotten: Forgotten, reading: Reading) -> None:
        """Leave out what the run's list names. The uid of a forgotten document stays on record."""
        goes = forgotten.matches(reading.documents)
        if goes.any():
            reading.skipped[FORGOTTEN] = int(goes.sum())
            self.rejects.left_out(self.source, reading.documents["uid"].filter(pa.array(goes)), FORGOTTEN)
        reading.documents = reading.documents.filter(pa.array(~goes))
        reading.skips = forgotten.hidden(reading.skips)


# --- the stages of a segment ------------------------------------------------------------------------------------------


class _StagePhase(_Phase):
    """Measuring and rewriting stages, rules that decide at once, and sinks."""

    def __init__(
        self, task: MapTask, phase: Phase, store: Store, crash: CrashPolicy, writers: list[PartWriter]
    ) -> None:
        self.stages: dict[str, Map] = {}
        self.added: set[str] = set()
        for spec in phase.stages:
            stage = cast(Map, registry.build(spec))
            self.stages[stage.called] = stage
            self.added.update(stage.added)
        super().__init__(task, phase, store, crash, writers)
        self.documents = DocumentsWriter(store, f"{self.base}.documents.parquet", task.compress)
        self.sinks: dict[str, PartWriter] = {}
        for name, stage in self.stages.items():
            if isinstance(stage, Sink):
                path = f"{name}/{self.file_name}.parquet"
                self.sinks[name] = PartWriter(store, path, staged(path))
        writers += [self.documents, *self.sinks.values()]
        if task.part is None and phase is task.phases[0]:
            self.counts[task.source] = Counts()
        self.counts |= {name: Counts() for name in self.stages}
        self.slowest = Slowest()
        self.measured: list[pa.Table] = []  # rows and signals, of a phase that leaves the documents as they are
        self.schemas: dict[str, pa.Schema] = {}  # of each stage's answer to its first batch, and of each sink's table

    def apply(self, batch: pa.RecordBatch, number: int) -> pa.RecordBatch:
        """A batch through the stages, one after another."""
        batch = batch.select([n for n in batch.schema.names if "@" not in n or (self.phase.beside and n == ROW)])
        given, bytes_held, text_held = set(batch.schema.names), value_bytes(batch), text_length(batch)
        for called, stage in self.stages.items():
            if not len(batch):
                break
            start, count, before = time.perf_counter(), self.counts[called], batch
            count.docs_in += len(batch)
            count.bytes_in += bytes_held
            shown = self.with_versions(called, batch) if isinstance(stage, Rewrite) else batch
            batch = self.kept_of(
                called, stage, shown, answers_of(stage, shown, self.crash, (number, called), self.schemas)
            )
            if batch is not before:  # a sink leaves it as it is
                bytes_held, text_held = value_bytes(batch), text_length(batch)
            count.kept += len(batch)
            count.bytes_out += bytes_held
            count.text_bytes += text_held
            if isinstance(stage, Sink):
                hidden = [name for name in stage.without if name in batch.schema.names]
                self.sinks[called].write(self.table(called, stage, batch.drop_columns(hidden), number))
            count.seconds += time.perf_counter() - start
        self.text_bytes += text_held if len(batch) else 0
        return self.stored(batch, given)

    def stored(self, batch: pa.RecordBatch, given: set[str]) -> pa.RecordBatch:
        """What left the stages, after the phase has stored it: documents, or signals that were not `given`."""
        first, self.left = self.left, self.left + len(batch)
        if self.phase.beside and len(batch):
            new = [name for name in batch.schema.names if name == ROW or name in self.added or name not in given]
            self.measured.append(pa.Table.from_batches([batch.select(new)]))
        elif self.phase.documents and len(batch):
            batch = with_text_lengths(batch)
            self.documents.write(batch)
            self.left = self.documents.rows
            batch = batch.append_column(ROW, pa.array(np.arange(first, first + len(batch), dtype=np.int64)))
        return batch

    def kept_of(self, called: str, stage: Map, batch: pa.RecordBatch, answers: list[Answer]) -> pa.RecordBatch:
        """What stays of a batch by a stage's answers; what breaks it or is dropped goes to the rejects."""
        count, kept = self.counts[called], [batch.slice(0, 0)]
        for answer in answers:
            if answer.applied is None or answer.kept is None:
                self.quarantine(called, answer.batch, answer.broke)
            else:
                kept.append(self.kept_of_piece(called, answer.batch, answer.applied, answer.kept))
        self.check_some_lived(stage, sum(answer.applied is None for answer in answers), batch)
        batch = kept[-1] if len(kept) <= 2 else pa.concat_batches(kept[1:])
        if called in self.phase.texts_kept:
            batch = without_same_texts(called, batch)
        if len(batch) and isinstance(stage, Annotate) and stage.expects_values:
            count.absent.update({name: nulls for name in stage.added if (nulls := batch.column(name).null_count)})
        return batch

    def kept_of_piece(
        self, called: str, given: pa.RecordBatch, applied: Applied, kept: NDArray[np.bool_]
    ) -> pa.RecordBatch:
        """What stays of a stage's answer, and what it made besides."""
        count, made = self.counts[called], applied.made
        if applied.seconds is not None:
            self.slowest.look(called, given, applied.seconds)
        count.noted.update(applied.noted)
        if kept.all() and made is None:
            return applied.batch
        verdict = applied.verdict
        self.rejects.dropped(called, applied.batch, verdict)
        count.dropped.update(verdict.reasons[index] for index in verdict.first[~kept].tolist())
        if made is None:
            return applied.batch.filter(pa.array(kept))
        count.made += len(made.batch)
        return made.between(applied.batch, kept)

    def with_versions(self, called: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Keep what a rewrite is about to change and a rule of this segment looks at: the text, and signals that will
        be measured again."""
        again = self.phase.measured_again.get(called, ())
        batch = batch.rename_columns([f"{name}@{called}" if name in again else name for name in batch.schema.names])
        return (
            with_columns(batch, {f"text@{called}": batch.column("text")}) if called in self.phase.texts_kept else batch
        )

    def table(self, called: str, sink: Sink, batch: pa.RecordBatch, number: int) -> pa.RecordBatch:
        """What a sink writes of a batch. No document is to blame if it cannot: the run stops."""
        try:
            with self.crash.guard((number, called), batch, None, sink.patience):
                table = sink.table(batch)
                check_table(batch, table)
                check_same_types(self.schemas.setdefault(f"{called}: table", table.schema), table.schema)
        except STAGE_ERRORS as error:
            raise RunFailed(
                f"{registry.named(sink)}: {error if isinstance(error, CannotRun) else error_detail(error)}"
            ) from error
        return table

    def finish(self, part: Partition | None) -> PhaseResult:
        files: Files = {}
        sinks = {f"sink/{name}": sink for name, sink in self.sinks.items()}
        for role, writer in {"documents": self.documents, **sinks}.items():
            if (facts := writer.close()) is not None:
                files[role] = facts
        files |= self.rejects.close()
        if self.phase.beside and part is not None:
            after = self.with_signals(part, files)
        else:
            origin = self.task.inputs if part is None else (InputSpan(node=part.node, key=part.key),)
            after = replace(
                new_part(self.task.key, self.task.source, self.left, self.text_bytes, files.get("documents"), origin),
                node=self.phase.segment,
                sinks={name: files[f"sink/{name}"].path for name in self.sinks if f"sink/{name}" in files},
            )
        return PhaseResult(
            part=after, files=files, counts=self.counts, log=tuple(self.log), slowest=self.slowest.by_stage
        )

    def with_signals(self, part: Partition, files: Files) -> Partition:
        """The partition with the signals that were measured on it, and without the documents that broke a stage."""
        kept = np.zeros(part.rows, dtype=bool)
        if self.measured and part.documents is not None:
            table = widened(pa.concat_tables(self.measured)).combine_chunks()
            kept[table.column(ROW).to_numpy()] = True
            signals = of_all_rows(table, part.rows)
            with open_checked(self.store, part.documents) as file:
                signals = signals.add_column(0, "uid", pq.ParquetFile(file).read(columns=["uid"]).column("uid"))
            files["signals"] = write_every_row(self.store, f"{self.base}.signals.parquet", signals)
            part = replace(part, signals=(*part.signals, files["signals"]))
        if self.left < part.kept:
            path = f"{self.base}.quarantined.parquet"
            files["quarantined"] = write_every_row(self.store, path, pa.table({"kept": kept}))
            verdicts = (*part.verdicts, files["quarantined"])
            part = replace(part, verdicts=verdicts, kept=self.left, text_bytes=self.text_bytes)
        return part


def without_same_texts(called: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    """A text that a rewrite did not change is kept once."""
    name = f"text@{called}"
    old, new = batch.column(name), batch.column("text")
    same = pc.fill_null(pc.equal(old, new), False)
    return with_columns(batch, {name: pc.if_else(same, pa.scalar(None, old.type), old)})


# --- the rules of a segment -------------------------------------------------------------------------------------------


class _RulePhase(_Phase):
    """The rules of a segment, from the signals that were measured on it.

    Every rule looks at every document that came in, so that all reasons are on record; a document goes by the first
    rule that drops it. The verdicts are stored row by row beside the documents; the texts of those that go are copied
    into the rejects."""

    def __init__(
        self, task: MapTask, phase: Phase, store: Store, crash: CrashPolicy, writers: list[PartWriter]
    ) -> None:
        self.rules = [BoundRule.of(spec) for spec in phase.rules]
        names = [bound.rule.called for bound in self.rules]
        super().__init__(task, phase, store, crash, writers)
        self.counts = {name: Counts() for name in names}
        self.reasons: dict[str, list[str]] = {name: [] for name in self.counts}
        self.verdicts: list[pa.Table] = []
        self.poison: list[int] = []  # rows of the stored documents that killed a rule: no rule sees them again
        self.held = False  # any reason, of any document

    def wanted(self, there: list[str]) -> list[str]:
        """Columns of a stored partition that the rules, the account and the rejects read."""
        wanted = ["uid", "url", TEXT_BYTES if TEXT_BYTES in there else "text"]
        wanted += [name for bound in self.rules for name in bound.reads(there)]
        rejects = self.task.rejects
        if rejects.keep:
            wanted.append("id")
        if rejects.text and rejects.keep:
            wanted += ["text", *(name for bound in self.rules for name in bound.texts)]
        return list(dict.fromkeys(wanted))

    def apply(self, batch: pa.RecordBatch, number: int) -> pa.RecordBatch:
        names = batch.schema.names
        shown = batch.select([name for name in self.wanted(names) if name in names])
        lengths = text_lengths(batch if TEXT_BYTES in names else with_text_lengths(batch))
        alive = np.ones(len(batch), dtype=bool)
        why = {name: np.full(len(batch), None, dtype=object) for name in ("stage", "reason", "detail")}
        failed: dict[str, NDArray[np.uint64]] = {}
        for (called, count), bound in zip(self.counts.items(), self.rules, strict=True):
            start = time.perf_counter()
            view = bound.view(shown)
            outcome = outcome_of(bound.rule, view, self.crash, (number, called))
            count.docs_in += int(alive.sum())
            if type(bound.rule).tally is not Rule.tally:
                came = alive & (outcome.first != BROKE)
                count.noted.update(bound.rule.tally(Signals(view), outcome.verdict, came))
            count.bytes_in += value_bytes(view.select([name for name in view.schema.names if name != "text"]))
            failed[f"failed:{called}"] = self.reasons_as_bits(called, outcome.verdict)
            gone = alive & (outcome.first != KEPT)
            if gone.any():
                self.send_off(called, view, outcome, gone, why)
                self.check_some_lived(bound.rule, int((gone & (outcome.first == BROKE)).sum()), view)
                alive &= ~gone
            count.kept += int(alive.sum())
            count.text_bytes += int(lengths[alive].sum())
            count.seconds += time.perf_counter() - start
        texts = {name: pa.array(values, pa.string()) for name, values in why.items()}
        facts = {ROW: batch.column(ROW), "uid": batch.column("uid"), "kept": alive}
        self.verdicts.append(pa.table({**facts, **texts, **failed}))
        rows = [row for spot, stage, row in self.crash.poison if spot == number and stage in self.counts]
        self.poison += batch.column(ROW).take(pa.array(rows, pa.int64())).to_pylist()
        self.left += int(alive.sum())
        self.text_bytes += int(lengths[alive].sum())
        return batch if alive.all() else batch.filter(pa.array(alive))

    def reasons_as_bits(self, called: str, verdict: Verdict) -> NDArray[np.uint64]:
        """Every reason that held, as a bit of its own, the same in all batches."""
        names, bits = self.reasons[called], np.zeros(len(verdict), dtype=np.uint64)
        for bit, reason in enumerate(verdict.reasons):
            if reason not in names:
                names.append(reason)
            bits |= verdict.held(bit).astype(np.uint64) << np.uint64(names.index(reason))
        self.held |= bool(bits.any())
        return bits

    def send_off(
        self,
        called: str,
        view: pa.RecordBatch,
        outcome: RuleOutcome,
        gone: NDArray[np.bool_],
        why: dict[str, NDArray[np.object_]],
    ) -> None:
        """Account for the documents of which this rule is the first to drop them."""
        verdict = outcome.verdict
        if "text" not in view.schema.names:
            view = with_columns(view, {"text": pa.nulls(len(view), pa.string())})
        drops = gone & (outcome.first >= 0)
        if drops.any():
            first_to_drop = copy(verdict)
            first_to_drop.first = np.where(drops, outcome.first, np.int16(KEPT))
            self.rejects.dropped(called, view, first_to_drop)
        for row in np.flatnonzero(gone).tolist():
            if outcome.first[row] == BROKE:
                reason, detail = QUARANTINED, outcome.broke[row]
                self.quarantine(called, view.slice(row, 1), detail)
            else:
                reason, detail = verdict.reasons[outcome.first[row]], verdict.details.get(row, "")
                self.counts[called].dropped[reason] += 1
            why["stage"][row], why["reason"][row], why["detail"][row] = called, reason, detail or None

    def finish(self, part: Partition | None) -> PhaseResult:
        part = cast(Partition, part)  # rules on nothing are not finished
        after = replace(part, kept=self.left, text_bytes=self.text_bytes)
        files = self.rejects.close()
        if self.left < part.kept or self.held:
            table = self.verdicts_of_all(part.rows)
            files["verdicts"] = write_every_row(self.store, f"{self.base}.verdicts.parquet", table)
            after = replace(after, verdicts=(*part.verdicts, files["verdicts"]))
        if self.poison:
            kept = np.ones(part.rows, dtype=bool)
            kept[self.poison] = False
            path = f"{self.base}.condemned.parquet"
            files["condemned"] = write_every_row(self.store, path, pa.table({"kept": kept}))
        return PhaseResult(part=after, files=files, counts=self.counts, log=tuple(self.log))

    def verdicts_of_all(self, rows: int) -> pa.Table:
        """One row a document: kept or not, by which stage and why; and for each rule a bit for each of its reasons that
        held. A row that was out before is kept by these rules."""
        table = of_all_rows(pa.concat_tables(self.verdicts), rows)
        for place, name in enumerate(table.column_names):
            if name not in ("stage", "reason", "detail"):
                values = pc.fill_null(table.column(name), True if name == "kept" else 0)
                table = table.set_column(place, name, values)
        return table.replace_schema_metadata({"gristmill.reasons": json.dumps(self.reasons)})
