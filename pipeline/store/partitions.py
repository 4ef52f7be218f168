"""Partitions: the Parquet files of a data set; how they are written, read with what was added since, and published; and
the rejects, one file for each stage and partition, so that "why did this page go?" always has an answer.

Parquet is written with zstd, in row groups whose length depends on the rows alone, so that files are equal byte for
byte. Documents that go when the run ends may be stored without compression (`compresses` in run/map_tasks.py). What
reads documents depends on the checksum that the file has without compression, so that nothing depends on how it is
stored.

Files of a sink appear together, once all are there, so that a reader of `write/*.parquet` never sees two versions of a
part. Workers write into a hidden folder beside the sink's (`.write.new/`). When the last part is done, the parts that
stay are linked into it and the two folders are exchanged in one step of the file system. Until then, and after a run
that failed, the sink holds all files of the run before. Where there is no such step, as on object stores, the files of
the run before go first, and then the new ones get their names.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash
from numpy.typing import NDArray

from gristmill.kernels.common.files import HashingFile
from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.store.records import (
    FileRef,
    Files,
    InputSpan,
    MapTask,
    Partition,
    PhaseResult,
    RejectsSettings,
    Result,
    RoundTask,
    Task,
    VerdictsResult,
)
from gristmill.pipeline.store.storage import Store, digest, open_checked
from gristmill.stages.documents import BATCH_BYTES, BATCH_ROWS, Reading
from gristmill.stages.stage import Verdict

AnyResult = TypeVar("AnyResult", bound=Result)

TOP = 1 << 64
# Names of files of parts, and of rows that one round of a global stage leaves for another.
OF_A_PART = re.compile(
    r"-[0-9a-f]{12}\.[0-9a-f]{8}(\.documents|\.verdicts|\.signals|\.quarantined)?\.parquet$|-[0-9a-f]{16}\.arrow$"
)

ROW = "@row"  # the place of a document in its part, where a reader asks for it
# Length of its text, so that the account of a rule need not read texts; a column of documents files.
TEXT_BYTES = "@text_bytes"
AT_FDCWD, RENAME_EXCHANGE = -100, 2
NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)  # file systems that cannot, such as some of clusters


def new_part(
    key: str, source: str, rows: int, text_bytes: int, documents: FileRef | None, origin: Sequence[InputSpan]
) -> Partition:
    return Partition(
        key=key,
        source=source,
        home=xxhash.xxh3_64_intdigest(key.encode()),
        rows=rows,
        kept=rows,
        text_bytes=text_bytes,
        documents=documents,
        inputs=tuple(origin),
    )


def identity(part: Partition) -> str:
    """What a stage that reads the part depends on: contents, never where or when they were made."""
    sums = [
        None if part.documents is None else part.documents.content or part.documents.checksum,
        [verdicts.checksum for verdicts in part.verdicts],
        [signals.checksum for signals in part.signals],
    ]
    return digest([part.key, part.source, part.rows, sums])


def parts_of(task: Task) -> Sequence[Partition]:
    """The parts that a task reads."""
    if isinstance(task, MapTask):
        return [task.part] if task.part is not None else []
    return task.parts if isinstance(task, RoundTask) else []


def resting_on(result: AnyResult, given: Sequence[Partition]) -> AnyResult:
    """The result of an earlier run on the files that the given parts of its task have now. Their contents are the same,
    but an earlier stage may have been done again since, and files are named by the task that wrote them."""
    beneath = {part.key: part for part in given}
    own = {facts.path for facts in result.files.values()}

    def rebase(part: Partition) -> Partition:
        if part.documents is None or part.documents.path in own:  # written anew, with nothing beneath
            return part
        under = beneath[part.key]
        verdicts = under.verdicts + part.verdicts[len(under.verdicts) :]
        signals = under.signals + part.signals[len(under.signals) :]
        return replace(under, verdicts=verdicts, signals=signals, kept=part.kept, text_bytes=part.text_bytes)

    if isinstance(result, PhaseResult) and given:
        return replace(result, part=rebase(result.part))
    if isinstance(result, VerdictsResult):
        return replace(result, parts=tuple(map(rebase, result.parts)))
    return result


@dataclass(frozen=True)
class StoredDocuments:
    """A data set as a global stage sees it."""

    parts: tuple[Partition, ...]

    @property
    def rows(self) -> int:
        return sum(p.kept for p in self.parts)

    @property
    def text_bytes(self) -> int:
        return sum(p.text_bytes for p in self.parts)


# --- reading ----------------------------------------------------------------------------------------------------------


def read_part(
    store: Store,
    part: Partition,
    columns: Sequence[str] | None = None,
    numbered: bool = False,
    uids: NDArray[np.uint64] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The documents of a part that are still in, in batches; `columns` None reads all and adds the signals laid beside,
    but leaves out what was kept of earlier versions of the text (`words@c4_lines`). `numbered` adds the place of each
    in the part. With `uids`, which are sorted, row groups are passed over that hold none of these documents."""
    if part.documents is None or part.rows == 0:
        return
    keep = kept_mask(store, part)
    with contextlib.ExitStack() as open_files:
        beside = [
            _SideColumns(open_files.enter_context(open_checked(store, signals)), columns) for signals in part.signals
        ]
        file = open_files.enter_context(open_checked(store, part.documents))
        documents = pq.ParquetFile(file, pre_buffer=False)
        there = documents.schema_arrow.names
        wanted = [c for c in there if "@" not in c] if columns is None else [c for c in columns if c in there]
        row = 0
        for place, batch in _placed_batches(documents, wanted, uids):
            for signals in beside:
                signals.skip(place - row)
            row = place
            mask = keep[row : row + len(batch)]
            for name, values in [pair for signals in beside for pair in signals.next(len(batch))]:
                index = batch.schema.get_field_index(name)
                batch = batch.append_column(name, values) if index < 0 else batch.set_column(index, name, values)
            if numbered:
                batch = batch.append_column(ROW, pa.array(np.arange(row, row + len(batch), dtype=np.int64)))
            row += len(batch)
            if not mask.all():
                batch = batch.filter(pa.array(mask))
            if len(batch):
                yield batch


def _placed_batches(
    documents: pq.ParquetFile, columns: Sequence[str], uids: NDArray[np.uint64] | None
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Batches, each with the place of its first row; with `uids` of the row groups that hold some of them."""
    row, every = 0, list(range(documents.num_row_groups))
    for groups in [every] if uids is None else [[group] for group in every]:
        if uids is not None:
            there = documents.read_row_group(groups[0], columns=["uid"]).column("uid").to_numpy()
            if not is_among(there, uids).any():
                row += len(there)
                continue
        for batch in documents.iter_batches(batch_size=BATCH_ROWS, row_groups=groups, columns=columns):
            yield row, batch
            row += len(batch)


def text_lengths(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """Bytes of each text, of stored documents."""
    lengths: NDArray[np.int64] = batch.column(TEXT_BYTES).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths


def with_text_lengths(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Documents as they are written: beside each text its length."""
    lengths = pc.fill_null(pc.binary_length(batch.column("text")), 0)
    return batch.append_column(TEXT_BYTES, lengths.cast(pa.int64()))


def columns_of(store: Store, part: Partition) -> list[str]:
    """Names of all columns of a part and of what is laid beside it."""
    names: dict[str, None] = {}
    for facts in [part.documents, *part.signals]:
        if facts is not None:
            with open_checked(store, facts) as file:
                names |= dict.fromkeys(pq.read_schema(file).names)
    return list(names)


def kept_mask(store: Store, part: Partition) -> NDArray[np.bool_]:
    keep = np.ones(part.rows, dtype=bool)
    for verdict in part.verdicts:
        with open_checked(store, verdict) as file:
            keep &= pq.ParquetFile(file).read(columns=["kept"]).column("kept").to_numpy()
    return keep


class _SideColumns:
    """A file of signals, read along with the documents that it lies beside; of its columns those that are asked for."""

    def __init__(self, file: IO[bytes], columns: Sequence[str] | None) -> None:
        signals = pq.ParquetFile(file, pre_buffer=False)
        self.names = [
            name for name in signals.schema_arrow.names if name != "uid" and (columns is None or name in columns)
        ]
        self.batches = signals.iter_batches(batch_size=BATCH_ROWS, columns=self.names) if self.names else iter(())
        self.waiting: list[pa.RecordBatch] = []

    def next(self, rows: int) -> Iterator[tuple[str, pa.Array]]:
        """The next so many rows, by column."""
        if not self.names:
            return
        while sum(len(batch) for batch in self.waiting) < rows:
            self.waiting.append(next(self.batches))
        table = pa.Table.from_batches(self.waiting)
        self.waiting = table.slice(rows).to_batches()
        taken = table.slice(0, rows).combine_chunks()
        for name in self.names:
            column = taken.column(name)
            yield name, column.chunk(0) if column.num_chunks else pa.nulls(0, column.type)

    def skip(self, rows: int) -> None:
        """Pass over the next so many rows."""
        while rows:
            some = min(rows, BATCH_ROWS)
            for _ in self.next(some):
                pass
            rows -= some


def is_among(uids: NDArray[np.uint64], named: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which uids are in a sorted list."""
    if not len(named):
        return np.zeros(len(uids), dtype=bool)
    present: NDArray[np.bool_] = named[np.minimum(np.searchsorted(named, uids), len(named) - 1)] == uids
    return present


def buckets_for(amount: int, each: int, most: int = 4096) -> int:
    """A power of two: how many buckets of about `each` hold the amount. It depends on the data alone, never on
    workers."""
    buckets = 1
    while buckets < most and buckets * each < amount:
        buckets *= 2
    return buckets


def bucket_of(values: NDArray[np.uint64], buckets: int) -> NDArray[np.uint64]:
    """The bucket of each uint64 by its top bits."""
    if buckets == 1:
        return np.zeros(len(values), dtype=np.uint64)
    return values >> np.uint64(64 - (buckets.bit_length() - 1))


# --- writing ----------------------------------------------------------------------------------------------------------


def schema_hash(schema: pa.Schema) -> str:
    """A hash of names and types of columns."""
    return xxhash.xxh3_64_hexdigest(schema.remove_metadata().serialize().to_pybytes())


def row_bytes(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """About how many bytes each row takes: a function of the row alone, so that row groups do not depend on batches."""
    size = np.full(len(batch), 8 * batch.num_columns, dtype=np.int64)
    for column in batch.columns:
        kind = column.type
        if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_string(kind):
            lengths = pc.binary_length(column)
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            lengths = pc.multiply(pc.list_value_length(column), 4)
        else:
            continue
        size += pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return size


class PartWriter:
    """Writes one Parquet file; small batches are gathered into a row group. No rows, no file."""

    def __init__(self, store: Store, path: str, written_at: str | None = None) -> None:
        self.store = store
        self.path = path
        self.written_at = written_at or path  # until it gets its name
        self.rows = 0
        self._stack = contextlib.ExitStack()
        self._file: HashingFile | None = None
        self._writers: list[pq.ParquetWriter] = []
        self._schema = pa.schema([])
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows. A row group is full at so many rows or bytes, wherever batches end."""
        ends = np.cumsum(row_bytes(batch))
        start = 0
        while start < len(batch):
            before = int(ends[start - 1]) if start else 0
            full = int(np.searchsorted(ends, before + BATCH_BYTES - self._waiting_bytes)) + 1
            end = min(len(batch), start + BATCH_ROWS - self._waiting_rows, full)
            self._waiting.append(batch.slice(start, end - start))
            self.rows += end - start
            self._waiting_rows += end - start
            self._waiting_bytes += int(ends[end - 1]) - before
            if self._waiting_rows >= BATCH_ROWS or self._waiting_bytes >= BATCH_BYTES:
                self._flush()
            start = end

    def _flush(self) -> None:
        if not self._waiting:
            return
        table = pa.Table.from_batches(self._waiting).combine_chunks()
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
        if self._file is None:
            self._file = self._stack.enter_context(self.store.commit(self.written_at))
            self._schema = table.schema
            self._writers = self._writers_to(self._file)
        for writer in self._writers:
            writer.write_table(table, row_group_size=len(table))

    def _writers_to(self, file: HashingFile) -> list[pq.ParquetWriter]:
        return [compressing_writer(file, self._schema)]

    def close(self) -> FileRef | None:
        """Commit the file; its facts, or None if there was nothing to write."""
        self._flush()
        if self._file is None:
            return None
        for writer in self._writers:
            writer.close()
        self._stack.close()
        return FileRef(
            self.path, self._file.length, self._file.checksum, rows=self.rows, schema=schema_hash(self._schema)
        )

    def abandon(self, error: BaseException) -> None:
        """Leave nothing behind."""
        for writer in self._writers:
            with contextlib.suppress(Exception):
                writer.close()
        self._stack.__exit__(type(error), error, error.__traceback__) if self._file is not None else None


class DocumentsWriter(PartWriter):
    """Writes the documents of a partition, with or without compression. Their `content` is the same both ways: to write
    without compression takes a twentieth of the time, so that it is done in any case."""

    def __init__(self, store: Store, path: str, compress: bool) -> None:
        super().__init__(store, path)
        self.compress = compress
        self._plain: HashingFile | None = None

    def _writers_to(self, file: HashingFile) -> list[pq.ParquetWriter]:
        if not self.compress:
            self._plain = file
            return [plain_writer(file, self._schema)]
        self._plain = HashingFile()
        return [compressing_writer(file, self._schema), plain_writer(self._plain, self._schema)]

    def close(self) -> FileRef | None:
        facts = super().close()
        return None if facts is None or self._plain is None else replace(facts, content=self._plain.checksum)


def compressing_writer(file: HashingFile, schema: pa.Schema) -> pq.ParquetWriter:
    return pq.ParquetWriter(file, schema, compression="zstd", compression_level=1, write_page_index=True)


def plain_writer(file: HashingFile, schema: pa.Schema) -> pq.ParquetWriter:
    return pq.ParquetWriter(file, schema, compression="none", use_dictionary=False)


@contextlib.contextmanager
def part_writers() -> Iterator[list[PartWriter]]:
    """A list to put writers in; if the block fails, none of those still open leaves a file."""
    writers: list[PartWriter] = []
    try:
        yield writers
    except BaseException as error:
        for writer in writers:
            with contextlib.suppress(Exception):
                writer.abandon(error)
        raise


def write_table(store: Store, path: str, table: pa.Table) -> FileRef | None:
    """One small table as a part file."""
    with part_writers() as writers:
        writer = PartWriter(store, path)
        writers.append(writer)
        for batch in table.combine_chunks().to_batches():
            writer.write(batch)
        return writer.close()


def write_every_row(store: Store, path: str, table: pa.Table) -> FileRef:
    """A table of rows that lie beside documents: RunFailed if not all are written."""
    facts = write_table(store, path, table)
    if facts is None or facts.rows != len(table):
        raise RunFailed(f"{path}: of {len(table):,} rows {facts.rows if facts else 0:,} were written")
    return facts


# --- sinks ------------------------------------------------------------------------------------------------------------


def staged(path: str) -> str:
    """Where a file of a sink lies until all of its sink are there."""
    sink, _, name = path.rpartition("/")
    return f".{sink}.new/{name}"


def as_lying(store: Store, path: str) -> str:
    """Where a file of a sink lies now."""
    return path if store.exists(path) else staged(path)


def waiting_for_names(present: Iterable[str]) -> dict[str, str]:
    """Of the files of a run's folder, those that wait for the others of their sink: by the name that each will have."""
    waiting = {}
    for path in present:
        folder, _, name = path.rpartition("/")
        if folder.startswith(".") and folder.endswith(".new"):
            waiting[f"{folder[1 : -len('.new')]}/{name}"] = path
    return waiting


def publish(store: Store, sink: str, wanted: Collection[str]) -> bool:
    """Make a sink hold the `wanted` files, and those of others that are in its folder; was there anything to do?"""
    hidden = PurePosixPath(staged(f"{sink}/x")).parent.name
    waiting, there = names_in(store, hidden), names_in(store, sink)
    names = {PurePosixPath(path).name for path in wanted}
    if not waiting and names >= {name for name in there if is_ours(name)}:
        return False
    stay = (there - waiting) & names | {name for name in there if not is_ours(name)}
    store.remove([f"{hidden}/{name}" for name in waiting - names])
    if store.local and _exchange(Path(store.at(sink)), Path(store.at(hidden)), stay):
        return True
    store.remove([f"{sink}/{name}" for name in there - stay])
    for name in sorted(waiting & names):
        store.check_lease()
        store.fs.mv(store.at(f"{hidden}/{name}"), store.at(f"{sink}/{name}"))
    if store.local:
        shutil.rmtree(store.at(hidden))
    return True


def names_in(store: Store, folder: str) -> set[str]:
    return {path[len(folder) + 1 :] for path in store.files(folder)}


def is_ours(name: str) -> bool:
    """Does a file bear the name of a part? Others may lie beside them (`_SUCCESS`, a README)."""
    return bool(OF_A_PART.search(name))


def _exchange(sink: Path, new: Path, stay: Collection[str]) -> bool:
    """Link what stays into the new folder, and let it take the sink's place; False where the file system cannot."""
    new.mkdir(parents=True, exist_ok=True)
    for name in stay:
        (new / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(sink / name, new / name)
        except OSError:
            return False
    if not any(new.iterdir()):  # no part has a document: no file, no folder
        new.rmdir()
        shutil.rmtree(sink, ignore_errors=True)
    elif not sink.exists():
        new.rename(sink)
    elif swap(sink, new):
        shutil.rmtree(new)
    else:
        return False
    return True


def swap(left: Path, right: Path) -> bool:
    """Let two folders change places in one step; False where the file system cannot."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(AT_FDCWD, os.fsencode(left), AT_FDCWD, os.fsencode(right), RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in NO_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), str(left))


# --- rejects ----------------------------------------------------------------------------------------------------------

SCHEMA = pa.schema(
    [
        ("uid", pa.uint64()),
        ("url", pa.string()),
        ("id", pa.string()),
        ("source", pa.string()),
        ("stage", pa.string()),
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("text", pa.string()),
    ]
)
QUARANTINED = "quarantined"
DAMAGED = "damaged"


class RejectsWriter:
    """The rejects of one part, a writer for each stage that has any."""

    def __init__(
        self, store: Store, file_name: str, source: str, settings: RejectsSettings, writers: list[PartWriter]
    ) -> None:
        self.store = store
        self.file_name = file_name
        self.source = source
        self.keep_below = int(settings.keep * 2.0**64)
        self.text = bool(settings.text)
        self._writers: dict[str, PartWriter] = {}
        self._all = writers

    def _writer(self, stage: str) -> PartWriter:
        if stage not in self._writers:
            self._writers[stage] = PartWriter(self.store, f"stages/{stage}/rejects/{self.file_name}.parquet")
            self._all.append(self._writers[stage])
        return self._writers[stage]

    def dropped(self, stage: str, batch: pa.RecordBatch, verdict: Verdict) -> None:
        rows = np.flatnonzero(~verdict.kept)
        reasons = [verdict.reason(int(r)) for r in rows]
        details = [_detail(verdict, int(r)) for r in rows]
        self.named(stage, batch.take(pa.array(rows)), pa.array(reasons, pa.string()), _texts(details))

    def quarantined(self, stage: str, row: pa.RecordBatch, error: str) -> None:
        self.named(stage, row, pa.repeat(QUARANTINED, len(row)), _texts([error] * len(row)))

    def unread(self, stage: str, reading: Reading) -> None:
        """Records that a reader skipped by name, and stretches that were damaged."""
        rows = [(None, s.url, s.reason, s.detail) for s in reading.skips] + [
            (None, None, DAMAGED, str(d)) for d in reading.damaged
        ]
        if rows and self.keep_below:
            nothing = pa.nulls(len(rows), pa.string())
            columns = [pa.array([r[0] for r in rows], pa.uint64()), _texts([r[1] for r in rows]), nothing]
            columns += [pa.array([self.source] * len(rows)), pa.array([stage] * len(rows))]
            columns += [_texts([r[2] for r in rows]), _texts([r[3] for r in rows]), nothing]
            self._writer(stage).write(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))

    def left_out(self, stage: str, uids: pa.Array, reason: str) -> None:
        """Documents of which the uid alone may be on record."""
        nothing = pa.nulls(len(uids), pa.string())
        batch = pa.RecordBatch.from_arrays([uids, nothing, nothing], names=["uid", "url", "text"])
        self.named(stage, batch, pa.repeat(reason, len(batch)), nothing)

    def named(
        self,
        stage: str,
        batch: pa.RecordBatch,
        reasons: pa.Array | pa.ChunkedArray,
        details: pa.Array | pa.ChunkedArray,
    ) -> None:
        """Rows that go, each with its reason."""
        rows = pa.table(
            {
                "uid": batch.column("uid"),
                "url": batch.column("url"),
                "id": batch.column("id") if "id" in batch.schema.names else pa.nulls(len(batch), pa.string()),
                "text": batch.column("text"),
                "reason": reasons,
                "detail": details,
            }
        )
        if self.keep_below < TOP:  # uids are hashes already: a share of them is a fair sample, the same on every run
            rows = rows.filter(pc.less(rows.column("uid"), pa.scalar(self.keep_below, pa.uint64())))
        if not self.text:
            rows = rows.set_column(rows.column_names.index("text"), "text", pa.nulls(len(rows), pa.string()))
        rows = rows.append_column("source", pa.repeat(self.source, len(rows))).append_column(
            "stage", pa.repeat(stage, len(rows))
        )
        for rejected in rows.select(SCHEMA.names).cast(SCHEMA).combine_chunks().to_batches():
            self._writer(stage).write(rejected)

    def close(self) -> Files:
        return {
            f"rejects/{stage}": facts
            for stage, writer in self._writers.items()
            if (facts := writer.close()) is not None
        }


def error_detail(error: BaseException) -> str:
    """An error as the detail of the document that caused it."""
    return f"{type(error).__name__}: {error}"[:2000]


def _detail(verdict: Verdict, row: int) -> str | None:
    """The detail that the stage gave; other reasons that held, where it gave none."""
    if row in verdict.details:
        return verdict.details[row]
    others = verdict.every_reason(row)[1:]
    return f"also {', '.join(others)}" if others else None


def _texts(values: Sequence[str | None]) -> pa.Array:
    return pa.array([v if v is None else v.encode("utf-8", "replace").decode() for v in values], pa.string())
