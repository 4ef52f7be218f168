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
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gristmill.kernels.base.columns import text_length, value_bytes, widened
from gristmill.pipeline.errors import STAGE_ERRORS, RunFailed
from gristmill.pipeline.formatting import one_line
from gristmill.pipeline.inputs.files import open_stretch, origin_of, position_of
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
    texts_with_replacements,
    with_text_lengths,
    write_every_row,
)
from gristmill.pipeline.store.records import Files, InputSpan, MapResult, MapTask, Partition, Phase, PhaseResult
from gristmill.pipeline.store.storage import Store, open_checked
from gristmill.pipeline.tasks.bound_rule import (
    BROKE,
    ENOUGH_TO_BLAME_THE_STAGE,
    KEPT,
    BoundRule,
    RuleOutcome,
    outcome_in_task,
)
from gristmill.pipeline.tasks.isolation import CrashPolicy
from gristmill.stages.contract import check_same_types, check_table
from gristmill.stages.documents import Reading, gather, rebatch
from gristmill.stages.read.payload import MARKUP, rows_of_markup
from gristmill.stages.stage import (
    Annotate,
    CannotRun,
    Made,
    Map,
    NoSuchSignal,
    Reader,
    Rewrite,
    Rule,
    Signals,
    Sink,
    Verdict,
    with_columns,
)

Value = TypeVar("Value", bound=np.generic)
Answer: TypeAlias = tuple[pa.RecordBatch, Verdict, Made | None]


def run_map_task(task: MapTask, crash: CrashPolicy | None = None) -> MapResult:
    """Carry a partition through the phases of a task, and store what they leave."""
    with part_writers() as writers:
        return _MapTask(task, crash or CrashPolicy(), writers).run()


class _MapTask:
    def __init__(self, task: MapTask, crash: CrashPolicy, writers: list[PartWriter]) -> None:
        self.task = task
        self.crash = crash
        self.store = store_of(task)
        self.reading = None if task.reader is None else _Reading(task, task.reader, self.store, writers)
        self.phases: list[_StagePhase | _RulePhase] = []
        for phase in task.phases:
            if phase.rules:
                self.phases.append(_RulePhase(task, phase, self.store, crash, writers))
            else:
                reading = None if self.phases else self.reading
                self.phases.append(_StagePhase(task, phase, self.store, crash, writers, reading))

    def run(self) -> MapResult:
        begun = time.perf_counter()
        seconds = [0.0] * len(self.phases)
        for number, batch in enumerate(self.batches()):
            if self.crash.skips(number):
                continue
            for place, phase in enumerate(self.phases):
                if len(batch):
                    start = time.perf_counter()
                    batch = phase.apply(batch, number)
                    seconds[place] += time.perf_counter() - start
        self.crash.end_search()
        part, results = self.task.part, list[PhaseResult | None]()
        for place, phase in enumerate(self.phases):
            if isinstance(phase, _RulePhase) and (part is None or not part.kept):
                results.append(None)  # no document came to it
                continue
            start = time.perf_counter()
            result = phase.finish(part) if isinstance(phase, _StagePhase) else phase.finish(cast(Partition, part))
            rests_on = "" if part is None else identity(part)
            part = result.part
            seconds[place] += time.perf_counter() - start
            results.append(replace(result, rests_on=rests_on, seconds=round(seconds[place], 4)))
        if results[0] is not None:  # it reads
            reading = time.perf_counter() - begun - sum(seconds[1:])
            results[0] = replace(results[0], seconds=round(reading, 4))
        return MapResult(phases=tuple(results))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Batches of the reader, or of the stored partition with the columns that the phases read."""
        if self.reading is not None:
            return self.reading.batches()
        part, phases = self.task.part, self.phases
        if part is None:
            return iter(())
        numbered = isinstance(phases[0], _RulePhase) or phases[0].phase.beside
        columns = None
        if isinstance(phases[0], _RulePhase):
            there = columns_of(self.store, part)
            columns = phases[0].wanted(there)
            if len(phases) > 1:
                columns = list(dict.fromkeys([*(name for name in there if "@" not in name), *columns]))
        return read_part(self.store, part, columns, numbered)


# --- reading ----------------------------------------------------------------------------------------------------------


class _Reading:
    """What the reader makes of spans of files, and its account."""

    def __init__(self, task: MapTask, spec: StageSpec, store: Store, writers: list[PartWriter]) -> None:
        self.task = task
        self.spec = spec
        self.source = task.source
        self.count = Counts()
        self.log: list[str] = []
        file_name = f"{task.key}.{task.phases[0].task[:8]}"
        self.rejects = RejectsWriter(store, file_name, self.source, task.rejects, writers)
        self.forgotten = read_list(store, task.forgotten) if task.forgotten else None

    def batches(self) -> Iterator[pa.RecordBatch]:
        count, batch_bytes = self.count, self.task.batch_bytes
        for documents in gather(self.documents_read(), batch_bytes):
            start = time.perf_counter()
            count.bytes_out += value_bytes(documents)
            count.text_bytes += text_length(documents)
            if rows := len(rows_of_markup(documents.column("text"))):
                count.noted[MARKUP] += rows
            if lossy := texts_with_replacements(documents):
                count.noted["replacement_characters"] += lossy
            count.seconds += time.perf_counter() - start
            yield from rebatch([documents], batch_bytes)

    def documents_read(self) -> Iterator[pa.RecordBatch]:
        """The documents of each reading of each span, with the account of records that gave none."""
        reader = cast(Reader, registry.build(self.spec))
        count = self.count
        limit = self.task.limit
        for span in self.task.files:
            origin = origin_of(self.source, span)
            try:
                file = open_stretch(reader, span)
            except OSError as error:
                raise RunFailed(f"{self.source}: {span.address} cannot be read: {error.strerror or error}") from error
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
                    count.faults.note(origin, reading)
                    self.rejects.unread(self.source, reading)
                    count.seconds += time.perf_counter() - start
                    yield documents
                    at = position_of(file, span)
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


@dataclass(frozen=True)
class _Step:
    """A stage at work."""

    stage: Map
    called: str
    count: Counts


class _StagePhase:
    """Measuring and rewriting stages, rules that decide at once, and sinks."""

    def __init__(
        self,
        task: MapTask,
        phase: Phase,
        store: Store,
        crash: CrashPolicy,
        writers: list[PartWriter],
        reading: _Reading | None,
    ) -> None:
        self.task = task
        self.phase = phase
        self.store = store
        self.crash = crash
        self.reading = reading
        stages = [cast(Map, registry.build(spec)) for spec in phase.stages]
        self.steps = [_Step(stage, stage.called, Counts()) for stage in stages]
        self.log: list[str] = [] if reading is None else reading.log
        self.file_name = file_name = f"{task.key}.{phase.task[:8]}"
        self.rejects = (
            RejectsWriter(store, file_name, task.source, task.rejects, writers) if reading is None else reading.rejects
        )
        path = f"partitions/{phase.segment}/{file_name}.documents.parquet"
        self.documents = DocumentsWriter(store, path, task.compress)
        paths = {
            step.called: f"{step.called}/{file_name}.parquet" for step in self.steps if isinstance(step.stage, Sink)
        }
        self.sinks = {name: PartWriter(store, path, staged(path)) for name, path in paths.items()}
        writers += [self.documents, *self.sinks.values()]
        self.added = {name for step in self.steps for name in step.stage.added}
        self.slowest = Slowest()
        self.text_bytes = 0
        self.rows_left = 0
        self.batch_number = 0
        self.bytes_held = self.text_held = 0  # of the batch at hand: all values, its texts
        self.measured: list[pa.Table] = []  # rows and signals, of a phase that leaves the documents as they are
        self.schemas: dict[str, pa.Schema] = {}  # of each stage's answer to its first batch, and of each sink's table

    def apply(self, batch: pa.RecordBatch, number: int) -> pa.RecordBatch:
        self.batch_number = number
        beside = self.phase.beside
        batch = batch.select([n for n in batch.schema.names if "@" not in n or (beside and n == ROW)])
        given = set(batch.schema.names)
        self.bytes_held, self.text_held = value_bytes(batch), 0 if self.steps else text_length(batch)
        for step in self.steps:
            if len(batch) == 0:
                return batch
            batch = self.through(step, batch)
        self.rows_left += len(batch)
        self.text_bytes += self.text_held
        if len(batch) == 0:
            return batch
        if beside:
            new = [name for name in batch.schema.names if name == ROW or name in self.added or name not in given]
            self.measured.append(pa.Table.from_batches([batch.select(["uid", *new])]))
        elif self.phase.documents:
            first = self.documents.rows
            batch = with_text_lengths(batch)
            self.documents.write(batch)
            batch = batch.append_column(ROW, pa.array(np.arange(first, first + len(batch), dtype=np.int64)))
        return batch

    def through(self, step: _Step, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch through one stage; what it drops goes to the rejects."""
        stage, called, count = step.stage, step.called, step.count
        start = time.perf_counter()
        count.docs_in += len(batch)
        count.bytes_in += self.bytes_held
        batch = self.before(step, batch)
        kept = []
        for done, verdict, made in self.pieces(step, batch):
            if made is not None:
                count.made += len(made.batch)
            elif verdict.kept.all():
                kept.append(done)
                continue
            self.rejects.dropped(called, done, verdict)
            for index, times in enumerate(
                np.bincount(verdict.first[verdict.first >= 0], minlength=len(verdict.reasons)).tolist()
            ):
                if times:
                    count.dropped[verdict.reasons[index]] += times
            if made is None:
                kept.append(done.filter(pa.array(verdict.kept)))
            else:
                kept.append(made.between(done, verdict.kept))
        if not kept:
            batch = batch.slice(0, 0)
        else:
            batch = kept[0] if len(kept) == 1 else pa.concat_batches(kept)
        batch = self.after(called, batch)
        count.kept += len(batch)
        self.bytes_held, self.text_held = value_bytes(batch), text_length(batch)
        count.bytes_out += self.bytes_held
        count.text_bytes += self.text_held
        if len(batch) and isinstance(stage, Annotate) and stage.expects_values:
            count.absent.update({name: nulls for name in stage.added if (nulls := batch.column(name).null_count)})
        if isinstance(stage, Sink):
            hidden = [name for name in stage.without if name in batch.schema.names]
            self.sinks[called].write(self.table(step, batch.drop_columns(hidden)))
        count.seconds += time.perf_counter() - start
        return batch

    def before(self, step: _Step, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Keep what a rewrite is about to change and a rule of this segment looks at: the text, and signals that will
        be measured again."""
        if not isinstance(step.stage, Rewrite):
            return batch
        called = step.called
        again = set(self.phase.measured_again.get(called, ()))
        batch = batch.rename_columns([f"{name}@{called}" if name in again else name for name in batch.schema.names])
        return (
            with_columns(batch, {f"text@{called}": batch.column("text")}) if called in self.phase.texts_kept else batch
        )

    def after(self, called: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A text that was not changed is kept once."""
        name = f"text@{called}"
        if len(batch) == 0 or name not in batch.schema.names:
            return batch
        old, new = batch.column(name), batch.column("text")
        same = pc.fill_null(pc.equal(old, new), False)
        return with_columns(batch, {name: pc.if_else(same, pa.scalar(None, old.type), old)})

    def table(self, step: _Step, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What a sink writes of a batch. No document is to blame if it cannot: the run stops."""
        sink = cast(Sink, step.stage)
        place = (self.batch_number, step.called)
        self.crash.about_to(place, batch)
        try:
            with self.crash.watching(sink.patience):
                table = sink.table(batch)
            check_table(batch, table)
            check_same_types(self.schemas.setdefault(f"{step.called}: table", table.schema), table.schema)
        except STAGE_ERRORS as error:
            raise RunFailed(
                f"{registry.named(sink)}: {error if isinstance(error, CannotRun) else error_detail(error)}"
            ) from error
        return table

    def pieces(self, step: _Step, batch: pa.RecordBatch) -> Iterator[Answer]:
        """The stage's answer on a batch, in as many pieces as it takes to leave out the documents that break it."""
        before = step.count.quarantined
        place = (self.batch_number, step.called)
        for piece, row, condemned in self.crash.pieces(place, batch):
            if condemned is not None:
                self.quarantine(step, piece, condemned)
            else:
                yield from self.piece(step, piece, row)
        broken = step.count.quarantined - before
        if broken == len(batch) >= ENOUGH_TO_BLAME_THE_STAGE:
            raise RunFailed(
                f"{registry.named(step.stage)}: all {broken} documents of a batch of {self.task.key} broke it; "
                f"the last: {self.log[-1]}"
            )

    def piece(self, step: _Step, batch: pa.RecordBatch, row: int | None) -> Iterator[Answer]:
        stage, called = step.stage, step.called
        self.crash.about_to((self.batch_number, called), batch, row)
        try:
            with self.crash.watching(stage.patience):
                applied = stage.checked(batch)
            check_same_types(self.schemas.setdefault(called, applied.batch.schema), applied.batch.schema)
        except (CannotRun, ImportError, NoSuchSignal, RunFailed) as error:  # not a document's doing
            raise RunFailed(f"{registry.named(stage)}: {error}") from error
        except STAGE_ERRORS as error:  # whatever a hostile document brings a stage to
            if len(batch) == 1:
                self.quarantine(step, batch, error_detail(error))
                return
            middle = len(batch) // 2
            yield from self.piece(step, batch.slice(0, middle), None)
            yield from self.piece(step, batch.slice(middle), None)
        else:
            if applied.seconds is not None:
                self.slowest.look(called, batch, applied.seconds)
            step.count.noted.update(applied.noted)
            yield applied.batch, applied.verdict, applied.made

    def quarantine(self, step: _Step, row: pa.RecordBatch, error: str) -> None:
        step.count.quarantined += 1
        self.log.append(
            f"{step.called}: document {row.column('uid')[0].as_py():016x} ({row.column('url')[0].as_py()}) "
            f"of {self.task.key}: {error}"
        )
        self.rejects.quarantined(step.called, row, error)

    def finish(self, part: Partition | None) -> PhaseResult:
        files: Files = {}
        documents = self.documents.close()
        if documents is not None:
            files["documents"] = documents
        for name, sink in self.sinks.items():
            facts = sink.close()
            if facts is not None:
                files[f"sink/{name}"] = facts
        files |= self.rejects.close()
        counts = {} if self.reading is None else {self.task.source: self.reading.count}
        counts |= {step.called: step.count for step in self.steps}
        arrived = None if part is None else part.kept
        written = self.documents.rows if self.phase.documents and not self.phase.beside else None
        segment = self.phase.segment
        check_chain(counts, list(counts), arrived, written, f"{segment}, part {self.task.key}")
        if self.phase.beside and part is not None:
            after, beside = self.with_signals(part)
            files |= beside
        else:
            origin = self.task.inputs if part is None else (InputSpan(node=part.node, key=part.key),)
            after = replace(
                new_part(self.task.key, self.task.source, self.rows_left, self.text_bytes, documents, origin),
                node=segment,
                sinks={name: files[f"sink/{name}"].path for name in self.sinks if f"sink/{name}" in files},
            )
        return PhaseResult(
            part=after,
            files=files,
            counts=counts,
            log=tuple(self.log),
            peak_memory=peak_memory(),
            slowest=self.slowest.by_stage,
        )

    def with_signals(self, part: Partition) -> tuple[Partition, Files]:
        """The partition with the signals that were measured on it, and without the documents that broke a stage."""
        files: Files = {}
        base = f"partitions/{self.phase.segment}/{self.file_name}"
        place = np.full(part.rows, -1, dtype=np.int64)
        if self.measured and part.documents is not None:
            table = widened(pa.concat_tables(self.measured)).combine_chunks()
            place[table.column(ROW).to_numpy()] = np.arange(len(table))
            scattered = table.drop_columns([ROW, "uid"]).take(pa.array(place, mask=place < 0))
            with open_checked(self.store, part.documents) as file:
                scattered = scattered.add_column(0, "uid", pq.read_table(file, columns=["uid"]).column("uid"))
            signals = write_every_row(self.store, f"{base}.signals.parquet", scattered)
            files["signals"] = signals
            part = replace(part, signals=(*part.signals, signals))
        if self.rows_left < part.kept:
            quarantined = write_every_row(self.store, f"{base}.quarantined.parquet", pa.table({"kept": place >= 0}))
            files["quarantined"] = quarantined
            verdicts = (*part.verdicts, quarantined)
            part = replace(part, verdicts=verdicts, kept=self.rows_left, text_bytes=self.text_bytes)
        return part, files


# --- the rules of a segment -------------------------------------------------------------------------------------------


@dataclass
class _Judged:
    """What the rules came to on a batch, by row."""

    rows: NDArray[np.int64]  # in the stored documents
    uid: NDArray[np.uint64]
    kept: NDArray[np.bool_]
    stage: NDArray[np.int16]  # the number of the rule that dropped it, or -1
    reason: NDArray[np.object_]
    detail: NDArray[np.object_]
    poison: NDArray[np.bool_]  # killed a rule: no rule sees it again
    failed: dict[str, NDArray[np.uint64]]  # by rule, a bit for each of its reasons that held


class _RulePhase:
    """The rules of a segment, from the signals that were measured on it.

    Every rule looks at every document that came in, so that all reasons are on record; a document goes by the first
    rule that drops it. The verdicts are stored row by row beside the documents; the texts of those that go are copied
    into the rejects."""

    def __init__(
        self, task: MapTask, phase: Phase, store: Store, crash: CrashPolicy, writers: list[PartWriter]
    ) -> None:
        self.task = task
        self.phase = phase
        self.store = store
        self.crash = crash
        self.rules = [BoundRule.of(spec) for spec in phase.rules]
        self.names = [bound.rule.called for bound in self.rules]
        self.file_name = f"{task.key}.{phase.task[:8]}"
        self.rejects = RejectsWriter(store, self.file_name, task.source, task.rejects, writers)
        self.counts = {name: Counts() for name in self.names}
        self.reasons: dict[str, list[str]] = {name: [] for name in self.names}
        self.judged: list[_Judged] = []
        self.log: list[str] = []
        self.alive = 0
        self.text_bytes = 0

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
        judged = self.no_verdicts(batch, number)
        alive = np.ones(len(batch), dtype=bool)
        lengths = text_lengths(batch if TEXT_BYTES in names else with_text_lengths(batch))
        for place, bound in enumerate(self.rules):
            start = time.perf_counter()
            called, view = bound.rule.called, bound.view(shown)
            outcome = outcome_in_task(bound.rule, view, self.crash, number)
            count = self.counts[called]
            count.docs_in += int(alive.sum())
            if type(bound.rule).tally is not Rule.tally:
                came = alive & (outcome.first != BROKE)
                count.noted.update(bound.rule.tally(Signals(view), outcome.verdict, came))
            count.bytes_in += value_bytes(view.select([name for name in view.schema.names if name != "text"]))
            self.note_all(called, outcome.verdict, judged)
            gone = alive & (outcome.first != KEPT)
            if gone.any():
                self.send_off(place, view, outcome, gone, judged)
                alive &= ~gone
            count.kept += int(alive.sum())
            count.text_bytes += int(lengths[alive].sum())
            count.seconds += time.perf_counter() - start
        self.judged.append(judged)
        self.alive += int(alive.sum())
        self.text_bytes += int(lengths[alive].sum())
        return batch if alive.all() else batch.filter(pa.array(alive))

    def no_verdicts(self, batch: pa.RecordBatch, number: int) -> _Judged:
        length = len(batch)
        poison = np.zeros(length, dtype=bool)
        poison[[row for spot, stage, row in self.crash.poison if spot == number and stage in self.names]] = True
        return _Judged(
            batch.column(ROW).to_numpy(),
            batch.column("uid").to_numpy(),
            np.ones(length, dtype=bool),
            np.full(length, -1, dtype=np.int16),
            np.full(length, None, dtype=object),
            np.full(length, None, dtype=object),
            poison,
            {name: np.zeros(length, dtype=np.uint64) for name in self.names},
        )

    def note_all(self, called: str, verdict: Verdict, judged: _Judged) -> None:
        """Note every reason that held, as a bit of its own."""
        names, bits = self.reasons[called], judged.failed[called]
        for bit, reason in enumerate(verdict.reasons):
            if reason not in names:
                names.append(reason)
            held = (verdict.all >> np.uint64(bit)) & np.uint64(1)
            bits |= held << np.uint64(names.index(reason))

    def send_off(
        self, place: int, view: pa.RecordBatch, outcome: RuleOutcome, gone: NDArray[np.bool_], judged: _Judged
    ) -> None:
        """Account for the documents of which this rule is the first to drop them."""
        called = self.names[place]
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
            if outcome.first[row] == BROKE:
                reason, detail = QUARANTINED, outcome.broke[row]
                count.quarantined += 1
                self.rejects.quarantined(called, view.slice(row, 1), detail)
                self.log.append(
                    f"{called}: document {int(judged.uid[row]):016x} ({view.column('url')[row].as_py()}): {detail}"
                )
            else:
                reason, detail = verdict.reasons[outcome.first[row]], verdict.details.get(row, "")
                count.dropped[reason] += 1
            judged.reason[row], judged.detail[row] = reason, detail or None
            judged.stage[row], judged.kept[row] = place, False
        if count.quarantined == len(view) >= ENOUGH_TO_BLAME_THE_STAGE:
            named = registry.named(self.rules[place].rule)
            raise RunFailed(
                f"{named}: all {len(view)} documents of a batch of {self.task.key} broke it; the last: {self.log[-1]}"
            )

    def finish(self, part: Partition) -> PhaseResult:
        segment = self.phase.segment
        check_chain(self.counts, self.names, part.kept, self.alive, f"{segment}, rules on part {self.task.key}")
        after = replace(part, kept=self.alive, text_bytes=self.text_bytes)
        files: Files = {**self.rejects.close()}
        if self.alive < part.kept or any(bits.any() for each in self.judged for bits in each.failed.values()):
            path = f"partitions/{segment}/{self.file_name}.verdicts.parquet"
            files["verdicts"] = write_every_row(self.store, path, self.verdicts(part))
            after = replace(after, verdicts=(*part.verdicts, files["verdicts"]))
        if any(each.poison.any() for each in self.judged):
            path = f"partitions/{segment}/{self.file_name}.condemned.parquet"
            kept = self.of_all_rows("poison", np.zeros(part.rows, dtype=bool))
            files["condemned"] = write_every_row(self.store, path, pa.table({"kept": ~kept}))
        return PhaseResult(part=after, files=files, counts=self.counts, log=tuple(self.log), peak_memory=peak_memory())

    def verdicts(self, part: Partition) -> pa.Table:
        """One row a document: kept or not, by which stage and why; and for each rule a bit for each of its reasons that
        held. A row that was out before is kept by these rules."""
        rows = part.rows
        stage = self.of_all_rows("stage", np.full(rows, -1, dtype=np.int16))
        named = pa.DictionaryArray.from_arrays(pa.array(stage, mask=stage < 0), pa.array(self.names)).cast(pa.string())
        texts = {
            name: pa.array(self.of_all_rows(name, np.full(rows, None, dtype=object)), pa.string())
            for name in ("reason", "detail")
        }
        columns: dict[str, NDArray[np.generic] | pa.Array] = {
            "uid": self.of_all_rows("uid", np.zeros(rows, dtype=np.uint64)),
            "kept": self.of_all_rows("kept", np.ones(rows, dtype=bool)),
            "stage": named,
            **texts,
        }
        for name in self.names:
            bits = np.zeros(rows, dtype=np.uint64)
            for each in self.judged:
                bits[each.rows] = each.failed[name]
            columns[f"failed:{name}"] = bits
        return pa.table(columns).replace_schema_metadata({"gristmill.reasons": json.dumps(self.reasons)})

    def of_all_rows(self, name: str, values: NDArray[Value]) -> NDArray[Value]:
        """The values of a field by row of the stored documents, over those given."""
        for each in self.judged:
            values[each.rows] = getattr(each, name)
        return values
