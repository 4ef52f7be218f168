"""Parts: the files of a data set, and reading of the documents that are still in it.

A part is plain data, for it goes to workers and into the journal: its key (its name for good), home (the key's hash, by
which rows of a global stage find back), rows in its documents file, and the verdict and signal files that were laid
beside it since, row by row.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash
from numpy.typing import NDArray

from gristmill.kernels.base.columns import text_column
from gristmill.pipeline.fingerprint import digest
from gristmill.pipeline.store.checksums import open_checked
from gristmill.pipeline.store.records import FileFacts, Part, PartInput, Result, Task
from gristmill.pipeline.store.store import Store
from gristmill.stages.documents import BATCH_ROWS

TOP = 1 << 64
# Names of files of parts, and of rows that one round of a global stage leaves for another.
OF_A_PART = re.compile(
    r"-[0-9a-f]{12}\.[0-9a-f]{8}(\.documents|\.verdicts|\.signals|\.quarantined)?\.parquet$|-[0-9a-f]{16}\.arrow$"
)


def home_of(key: str) -> int:
    return xxhash.xxh3_64_intdigest(key.encode())


def new_part(
    key: str, source: str, rows: int, text_bytes: int, documents: FileFacts | None, origin: Sequence[PartInput]
) -> Part:
    return {
        "key": key,
        "source": source,
        "home": home_of(key),
        "rows": rows,
        "kept": rows,
        "text_bytes": text_bytes,
        "documents": documents,
        "verdicts": [],
        "signals": [],
        "inputs": origin,
    }


def known_as(facts: FileFacts) -> str:
    """The checksum by which tasks know a file. Where documents were forgotten it is that of the file before: what was
    made of it has lost the same documents and need not be made again."""
    return facts["was"]["checksum"] if "was" in facts else facts["checksum"]


def identity(part: Part) -> str:
    """What a stage that reads the part depends on: contents, never where or when they were made."""
    sums = [
        None if part["documents"] is None else known_as(part["documents"]),
        [known_as(v) for v in part["verdicts"]],
        [known_as(s) for s in part["signals"]],
    ]
    documents = part["documents"]
    rows = documents["was"]["rows"] if documents is not None and "was" in documents else part["rows"]
    return digest([part["key"], part["source"], rows, sums])


def parts_of(task: Task) -> list[Part]:
    """The parts that a task reads."""
    if task["kind"] == "partition" or task["kind"] == "pages":
        return [task["part"]] if task["part"] is not None else []
    if task["kind"] == "numbers" or task["kind"] == "look" or task["kind"] == "conform":
        return []
    return task.get("parts", [])


def resting_on(result: Result, given: Sequence[Part]) -> Result:
    """The result of an earlier run on the files that the given parts of its task have now. Their contents are the same,
    but an earlier stage may have been done again since, and files are named by the task that wrote them."""
    if not given or not {"part", "parts"} & result.keys():
        return result
    beneath = {part["key"]: part for part in given}
    own = {facts["path"] for facts in result["files"].values()}

    def rebased(files: list[FileFacts], under: list[FileFacts]) -> list[FileFacts]:
        return [facts if facts["path"] in own else under[i] for i, facts in enumerate(files)]

    def rebase(part: Part) -> Part:
        under = beneath[part["key"]]
        if part["documents"] is None or part["documents"]["path"] in own:  # written anew, with nothing beneath
            return part
        verdicts, signals = under["verdicts"], under["signals"]
        stays = part["verdicts"][: len(verdicts)] == verdicts and part["signals"][: len(signals)] == signals
        if part["documents"] == under["documents"] and stays:
            return part
        return {
            **under,
            "verdicts": rebased(part["verdicts"], verdicts),
            "signals": rebased(part["signals"], signals),
            "kept": part["kept"],
            "text_bytes": part["text_bytes"],
        }

    if "part" in result:
        return {**result, "part": rebase(result["part"])}
    return {**result, "parts": [rebase(part) for part in result["parts"]]}


@dataclass(frozen=True)
class StoredDocuments:
    """A data set as a global stage sees it."""

    parts: tuple[Part, ...]

    @property
    def rows(self) -> int:
        return sum(int(p["kept"]) for p in self.parts)

    @property
    def text_bytes(self) -> int:
        return sum(int(p["text_bytes"]) for p in self.parts)


ROW = "@row"  # the place of a document in its part, where a reader asks for it
# Length of its text, so that the account of a rule need not read texts; a column of documents files.
TEXT_BYTES = "@text_bytes"


def read_part(
    store: Store, part: Part, columns: Sequence[str] | None = None, numbered: bool = False
) -> Iterator[pa.RecordBatch]:
    """The documents of a part that are still in, in batches; `columns` None reads all and adds the signals laid beside,
    but leaves out what was kept of earlier versions of the text (`words@c4_lines`). `numbered` adds the place of each
    in the part."""
    if part["documents"] is None or part["rows"] == 0:
        return
    keep = kept_mask(store, part)
    with contextlib.ExitStack() as open_files:
        beside = [
            _Beside(open_files.enter_context(open_checked(store, signals)), columns) for signals in part["signals"]
        ]
        file = open_files.enter_context(open_checked(store, part["documents"]))
        documents = pq.ParquetFile(file, pre_buffer=False)
        there = documents.schema_arrow.names
        wanted = [c for c in there if "@" not in c] if columns is None else [c for c in columns if c in there]
        row = 0
        for batch in documents.iter_batches(batch_size=BATCH_ROWS, columns=wanted):
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


def text_length(batch: pa.RecordBatch | pa.Table) -> int:
    """Bytes of all texts."""
    return int(pc.sum(pc.binary_length(batch.column("text"))).as_py() or 0)


def texts_with_replacements(batch: pa.RecordBatch) -> int:
    """How many texts hold U+FFFD."""
    data, offsets = text_column(batch.column("text"))
    texts = data[offsets[0] : offsets[-1]].tobytes()
    lost = "\ufffd".encode()
    places = [match.start() for match in re.finditer(lost, texts)] if lost in texts else []
    return len(set(np.searchsorted(offsets - offsets[0], places, side="right").tolist()))


def text_lengths(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """Bytes of each text, from the column of lengths or, in documents of an earlier version, from the texts."""
    there = TEXT_BYTES in batch.schema.names
    lengths = batch.column(TEXT_BYTES) if there else pc.fill_null(pc.binary_length(batch.column("text")), 0)
    as_numbers: NDArray[np.int64] = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    return as_numbers


def with_text_lengths(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Documents as they are written: beside each text its length."""
    return batch.append_column(TEXT_BYTES, pa.array(text_lengths(batch)))


def columns_of(store: Store, part: Part) -> list[str]:
    """Names of all columns of a part and of what is laid beside it."""
    names: dict[str, None] = {}
    for facts in [part["documents"], *part["signals"]]:
        if facts is not None:
            with open_checked(store, facts) as file:
                names |= dict.fromkeys(pq.read_schema(file).names)
    return list(names)


def kept_mask(store: Store, part: Part) -> NDArray[np.bool_]:
    keep = np.ones(part["rows"], dtype=bool)
    for verdict in part["verdicts"]:
        with open_checked(store, verdict) as file:
            keep &= pq.read_table(file, columns=["kept"]).column("kept").to_numpy()
    return keep


class _Beside:
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
