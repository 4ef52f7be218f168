"""One part through the working stages of one leg: read, run each batch through them, write what is left, with its
reasons and its account.

A leg that changes no text writes signals alone, row by row beside the documents it read. What rules say of them comes
after (rules.py).

A stage that raises is tried on halves of the batch until the document is found that breaks it; that one is quarantined,
the rest goes on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gristmill.kernels.base.columns import value_bytes, widened
from gristmill.pipeline.errors import STAGE_ERRORS, RunFailed
from gristmill.pipeline.formatting import one_line
from gristmill.pipeline.inputs.opened import open_stretch, origin_of
from gristmill.pipeline.json_types import StageSpec
from gristmill.pipeline.leg.care import Care, SearchEnded
from gristmill.pipeline.leg.slowest import Slowest
from gristmill.pipeline.plan.sink_columns import filled, from_text
from gristmill.pipeline.processes.memory import peak_memory
from gristmill.pipeline.recipe import registry
from gristmill.pipeline.store.checksums import open_checked
from gristmill.pipeline.store.counts import Count, check_chain
from gristmill.pipeline.store.faults import Faults
from gristmill.pipeline.store.forgotten import COPY, FORGOTTEN, Forgotten, read_list
from gristmill.pipeline.store.lock import store_of
from gristmill.pipeline.store.parts import (
    ROW,
    new_part,
    read_part,
    text_length,
    texts_with_replacements,
    with_text_lengths,
)
from gristmill.pipeline.store.records import Files, LegTask, Part, Result
from gristmill.pipeline.store.rejects import RejectsWriter, error_detail
from gristmill.pipeline.store.sinks import staged
from gristmill.pipeline.store.writing import PartWriter, part_writers, write_every_row
from gristmill.stages.contract import check_same_types, check_table
from gristmill.stages.documents import Reading, gather, rebatch
from gristmill.stages.read.markup import MARKUP, rows_of_markup
from gristmill.stages.stage import (
    Annotate,
    CannotRun,
    Made,
    Map,
    NoSuchSignal,
    Reader,
    Rewrite,
    Sink,
    Verdict,
    with_columns,
)

# When all of so many documents fail, it is the stage that is broken and not the documents.
ENOUGH_TO_BLAME_THE_STAGE = 16
Answer: TypeAlias = tuple[pa.RecordBatch, Verdict, Made | None]


@dataclass(frozen=True)
class _Step:
    """A stage at work."""

    stage: Map
    called: str
    count: Count


def grind(task: LegTask, care: Care | None = None) -> Result:
    """Carry one leg out on one part."""
    with part_writers() as writers:
        return _Grinding(task, care or Care(), writers).run()


class _Grinding:
    def __init__(self, task: LegTask, care: Care, writers: list[PartWriter]) -> None:
        self.task = task
        self.care = care
        self.store = store_of(task)
        self.source: str = task["source"]
        stages = [cast(Map, registry.build(spec)) for spec in task["stages"]]
        self.steps = [_Step(stage, stage.called, Count()) for stage in stages]
        self.counts = {self.source: Count()} if task["reader"] else {}
        self.counts |= {step.called: step.count for step in self.steps}
        self.faults = Faults()
        self.log: list[str] = []
        self.file_name = file_name = f"{task['key']}.{task['task'][:8]}"
        self.rejects = RejectsWriter(self.store, file_name, self.source, task["rejects"], writers)
        self.documents = PartWriter(self.store, f"legs/{task['leg']}/{file_name}.documents.parquet")
        paths = {
            step.called: f"{step.called}/{file_name}.parquet" for step in self.steps if isinstance(step.stage, Sink)
        }
        self.sinks = {name: PartWriter(self.store, path, staged(path)) for name, path in paths.items()}
        writers += [self.documents, *self.sinks.values()]
        # Columns that every file of a sink has.
        self.columns = from_text(task["columns"]) if "columns" in task else None
        self.added = {name for step in self.steps for name in step.stage.added}
        self.forgotten = read_list(self.store, task["forgotten"]) if "forgotten" in task else None
        self.slowest = Slowest()
        self.text_bytes = 0
        self.rows_left = 0
        self.batch_number = -1
        self.measured: list[pa.Table] = []  # rows and signals of a leg that leaves the documents as they are
        self.schemas: dict[str, pa.Schema] = {}  # of each stage's answer to its first batch, and of each sink's table

    def run(self) -> Result:
        for batch in self.batches():
            self.batch_number += 1
            if not self.care.skips(self.batch_number):
                self.through_stages(batch)
        if self.care.search is not None:
            raise SearchEnded
        files: Files = {}
        documents = self.documents.close()
        if documents is not None:
            files["documents"] = documents
        for name, sink in self.sinks.items():
            facts = sink.close()
            if facts is not None:
                files[f"sink/{name}"] = facts
        files |= self.rejects.close()
        counts = {name: count.plain() for name, count in self.counts.items()}
        if self.faults.by_file:
            counts[self.source]["faults"] = self.faults.plain()
        arrived = None if self.task["part"] is None else int(self.task["part"]["kept"])
        written = self.documents.rows if self.task["documents"] and not self.task["beside"] else None
        check_chain(counts, list(self.counts), arrived, written, f"{self.task['leg']}, part {self.task['key']}")
        part: Part
        if self.task["beside"] and self.task["part"] is not None:
            part, beside = self.with_signals(self.task["part"])
            files |= beside
        else:
            part = {
                "leg": self.task["leg"],
                **new_part(
                    self.task["key"], self.source, self.rows_left, self.text_bytes, documents, self.task["inputs"]
                ),
                "sinks": {name: files[f"sink/{name}"]["path"] for name in self.sinks if f"sink/{name}" in files},
            }
        return {
            "part": part,
            "files": files,
            "counts": counts,
            "log": self.log,
            "peak_memory": peak_memory(),
            "slowest": self.slowest.by_stage,
        }

    def with_signals(self, part: Part) -> tuple[Part, Files]:
        """The part with the signals that were measured on it, and without the documents that broke a stage."""
        files: Files = {}
        part = {**part, "verdicts": [*part["verdicts"]], "signals": [*part["signals"]]}
        base = f"legs/{self.task['leg']}/{self.file_name}"
        place = np.full(part["rows"], -1, dtype=np.int64)
        if self.measured and part["documents"] is not None:
            table = widened(pa.concat_tables(self.measured)).combine_chunks()
            place[table.column(ROW).to_numpy()] = np.arange(len(table))
            scattered = table.drop_columns([ROW, "uid"]).take(pa.array(place, mask=place < 0))
            with open_checked(self.store, part["documents"]) as file:
                scattered = scattered.add_column(0, "uid", pq.read_table(file, columns=["uid"]).column("uid"))
            signals = write_every_row(self.store, f"{base}.signals.parquet", scattered)
            files["signals"] = signals
            part["signals"].append(signals)
        if self.rows_left < part["kept"]:
            quarantined = write_every_row(self.store, f"{base}.quarantined.parquet", pa.table({"kept": place >= 0}))
            files["quarantined"] = quarantined
            part["verdicts"].append(quarantined)
            part["kept"], part["text_bytes"] = self.rows_left, self.text_bytes
        return part, files

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The documents of a part, or what the reader makes of spans of files."""
        if self.task["part"] is not None:
            yield from read_part(self.store, self.task["part"], numbered=self.task["beside"])
            return
        if self.task["reader"] is None:
            return
        count = self.counts[self.source]
        batch_bytes = self.task["batch_bytes"]
        for documents in gather(self.documents_read(self.task["reader"]), batch_bytes):
            start = time.perf_counter()
            count.bytes_out += value_bytes(documents)
            count.text_bytes += text_length(documents)
            if rows := len(rows_of_markup(documents.column("text"))):
                count.noted[MARKUP] += rows
            if lossy := texts_with_replacements(documents):
                count.noted["replacement_characters"] += lossy
            count.seconds += time.perf_counter() - start
            yield from rebatch([documents], batch_bytes)

    def documents_read(self, spec: StageSpec) -> Iterator[pa.RecordBatch]:
        """The documents of each reading of each span, with the account of records that gave none."""
        reader = cast(Reader, registry.build(spec))
        count = self.counts[self.source]
        limit = self.task["limit"]
        for span in self.task["files"]:
            origin = origin_of(self.source, span)
            try:
                file = open_stretch(reader, span)
            except OSError as error:
                raise RunFailed(
                    f"{self.source}: {span['address']} cannot be read: {error.strerror or error}"
                ) from error
            with file:
                readings = reader.read(file, origin)
                begun = span["start"]  # where the next reading begins
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
                    self.faults.note(origin, reading)
                    self.rejects.unread(self.source, reading)
                    count.seconds += time.perf_counter() - start
                    yield documents
                    stored = reading.stored if reading.stored is not None else max(0, file.tell() - begun)
                    begun = file.tell()
                    if limit is not None and count.kept >= limit:
                        taken = len(documents) / max(1, len(reading.documents))
                        count.bytes_in += min(span["bytes"], round(passed + stored * taken))
                        break
                    passed += stored
                self.log += [one_line(f"{self.source}: {remark}") for remark in getattr(file, "remarks", ())]
                if limit is not None and count.kept >= limit:
                    return
            count.bytes_in += span["bytes"]

    def leave_out(self, forgotten: Forgotten, reading: Reading) -> None:
        """Take out what the run's list says is to be forgotten. Of a forgotten document its uid stays on record; a copy
        that was dropped for it stays in the rejects."""
        goes = forgotten.reasons(reading.documents)
        for reason in (FORGOTTEN, COPY):
            rows = np.flatnonzero(goes == reason)
            if len(rows):
                reading.skipped[reason] = len(rows)
                self.rejects.left_out(self.source, reading.documents.take(pa.array(rows)), reason, reason == COPY)
        reading.documents = reading.documents.filter(pa.array(goes == ""))

    def through_stages(self, batch: pa.RecordBatch) -> None:
        given = set(batch.schema.names)
        for step in self.steps:
            if len(batch) == 0:
                return
            stage, called, count = step.stage, step.called, step.count
            start = time.perf_counter()
            count.docs_in += len(batch)
            count.bytes_in += value_bytes(batch)
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
            count.bytes_out += value_bytes(batch)
            count.text_bytes += text_length(batch)
            if len(batch) and isinstance(stage, Annotate) and stage.expects_values:
                count.absent.update({name: nulls for name in stage.added if (nulls := batch.column(name).null_count)})
            if isinstance(stage, Sink):
                given_to_sink = batch if self.columns is None else filled(batch, self.columns)
                hidden = [name for name in stage.without if name in given_to_sink.schema.names]
                self.sinks[called].write(self.table(step, given_to_sink.drop_columns(hidden)))
            count.seconds += time.perf_counter() - start
        self.rows_left += len(batch)
        self.text_bytes += text_length(batch)
        if len(batch) and self.task["beside"]:
            new = [name for name in batch.schema.names if name == ROW or name in self.added or name not in given]
            self.measured.append(pa.Table.from_batches([batch.select(["uid", *new])]))
        elif len(batch) and self.task["documents"]:
            self.documents.write(with_text_lengths(batch))

    def before(self, step: _Step, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Keep what a rewrite is about to change and a rule of this leg looks at: the text, and signals that will be
        measured again."""
        if not isinstance(step.stage, Rewrite):
            return batch
        called = step.called
        again = set(self.task["measured_again"].get(called, ()))
        batch = batch.rename_columns([f"{name}@{called}" if name in again else name for name in batch.schema.names])
        return (
            with_columns(batch, {f"text@{called}": batch.column("text")})
            if called in self.task["texts_kept"]
            else batch
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
        self.care.about_to(place, batch)
        try:
            with self.care.watching(sink.patience):
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
        for piece, row, condemned in self.care.pieces(place, batch):
            if condemned is not None:
                self.quarantine(step, piece, condemned)
            else:
                yield from self.piece(step, piece, row)
        broken = step.count.quarantined - before
        if broken == len(batch) >= ENOUGH_TO_BLAME_THE_STAGE:
            raise RunFailed(
                f"{registry.named(step.stage)}: all {broken} documents of a batch of {self.task['key']} broke it; "
                f"the last: {self.log[-1]}"
            )

    def piece(self, step: _Step, batch: pa.RecordBatch, row: int | None) -> Iterator[Answer]:
        stage, called = step.stage, step.called
        self.care.about_to((self.batch_number, called), batch, row)
        try:
            with self.care.watching(stage.patience):
                applied = stage.checked(batch)
            check_same_types(self.schemas.setdefault(called, applied.batch.schema), applied.batch.schema)
        except (CannotRun, ImportError, NoSuchSignal, RunFailed) as error:  # not a document's doing
            raise RunFailed(f"{registry.named(stage)}: {error}") from error
        except STAGE_ERRORS as error:  # whatever a hostile document brings a stage to
            if len(batch) == 1:
                self.quarantine(step, batch, error_detail(error))
                return
            yield from self.halves(step, batch)
        else:
            if applied.seconds is not None:
                self.slowest.look(called, batch, applied.seconds)
            step.count.noted.update(applied.noted)
            yield applied.batch, applied.verdict, applied.made

    def halves(self, step: _Step, batch: pa.RecordBatch) -> Iterator[Answer]:
        middle = len(batch) // 2
        yield from self.piece(step, batch.slice(0, middle), None)
        yield from self.piece(step, batch.slice(middle), None)

    def quarantine(self, step: _Step, row: pa.RecordBatch, error: str) -> None:
        step.count.quarantined += 1
        self.log.append(
            f"{step.called}: document {row.column('uid')[0].as_py():016x} ({row.column('url')[0].as_py()}) "
            f"of {self.task['key']}: {error}"
        )
        self.rejects.quarantined(step.called, row, error)
