"""What a document is: the columns that every stage may count on, how a document gets its identity, and batches of them.

A batch is one Arrow record batch of about 32 MB. Columns after the base ones are signals. `meta` is a JSON text and not
a struct: sources know different things, and a type guessed from the first file fails in the thousandth.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.base.types import Hashes, Integers
from gristmill.kernels.rows.numbered import hashes_of_numbered

BATCH_BYTES = 32 << 20
BATCH_ROWS = 8192
MAX_RECORD = 64 << 20  # bytes of a page or text that readers take, unless a recipe says otherwise
MOST_IN_COLUMN = 2**31 - 1  # bytes of a column
EMPTY = "the file is empty"
SURROGATE = re.compile("[\ud800-\udfff]")  # half of a pair, which no file can hold

BASE = pa.schema(
    [
        pa.field("uid", pa.uint64(), nullable=False),
        pa.field("source", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("id", pa.string()),  # the source's own identifier (WARC record id, JSONL `id`)
        pa.field("url", pa.string()),
        pa.field("date", pa.string()),  # ISO 8601, as the source gives it
        pa.field("text", pa.string()),
        pa.field("meta", pa.string()),  # JSON object: whatever else the reader knew
    ]
)
# Pages on their way to extraction carry these too; extraction removes them.
PAGE = pa.schema([pa.field("html", pa.binary()), pa.field("charset", pa.string())])


def uid_of(source: str, path: str, place: str | int) -> int:
    """Identity of a record: a hash of where it lies, with a place that no split or batch can change."""
    return xxhash.xxh3_64_intdigest(f"{source}\0{path}\0{place}".encode("utf-8", "surrogateescape"))


def uids_of(source: str, path: str, rows: Integers, before: str = "") -> Hashes:
    """`uid_of` of many places: numbers of rows, with what stands `before` each."""
    return hashes_of_numbered(f"{source}\0{path}\0{before}".encode("utf-8", "surrogateescape"), rows)


@dataclass(frozen=True)
class Origin:
    """Where a reader reads: the source's name, the file's path below the source's root, its size, and the span to read.

    A record belongs to the span in which it begins. `end` None reads to the end of the file. With `records` only those
    that begin at these places are read, each so many bytes long: the others are not at hand.
    """

    source: str
    path: str
    size: int
    start: int = 0
    end: int | None = None
    records: tuple[tuple[int, int], ...] | None = None
    address: str = ""  # of the input, as it was listed
    stamp: str = ""  # of the version that was listed, of an input that is no local file


@dataclass(frozen=True)
class Damage:
    """A stretch of a file that could not be read, and where reading went on."""

    path: str
    start: int
    end: int
    what: str
    records: int = 1

    def __str__(self) -> str:
        if self.start == self.end:  # a file without a byte
            return f"{self.path}: {self.what}"
        return (
            f"{self.path}: record at byte {self.start:,} is damaged ({self.what}); reading goes on at byte {self.end:,}"
        )


@dataclass(frozen=True)
class Skipped:
    """A record that was a document, but not one for us: a page not found, a picture."""

    url: str | None
    reason: str
    detail: str | None


@dataclass
class Reading:
    """What a reader hands over: documents, and an account of every record that did not become one.

    Conservation: records read = documents + all counts in `skipped` + all `records` in `damaged`. `skips` names some of
    those in `skipped` one by one; it is never longer than the counts. `remarks` are for people: what is wrong with the
    file and no record's doing. `stored` is the number of bytes of the file that hold these records, if the reader
    knows: readers read ahead.
    """

    documents: pa.RecordBatch
    skipped: dict[str, int] = field(default_factory=dict)
    skips: list[Skipped] = field(default_factory=list)
    damaged: list[Damage] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    stored: int | None = None
    nuls: int = 0  # texts that NUL characters were taken out of
    noted: Counter[str] = field(default_factory=Counter)  # documents of which there is something to say, by name


@dataclass
class Collector:
    """Gathers single documents into batches of bounded size, with the account of what was skipped beside them."""

    source: str
    path: str
    pages: bool = False  # do documents carry html and charset?
    batch_bytes: int = BATCH_BYTES
    at: int | None = (
        None  # where in the file the records so far end; a reader that sets it begins with the start of its span
    )
    _rows: list[dict[str, Any]] = field(default_factory=list)
    _bytes: int = 0
    _skipped: dict[str, int] = field(default_factory=dict)
    _skips: list[Skipped] = field(default_factory=list)
    _damaged: list[Damage] = field(default_factory=list)
    _remarks: list[str] = field(default_factory=list)
    _nuls: int = 0
    _noted: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._begun = self.at or 0

    def skip(self, reason: str, url: str | None = None, detail: str | None = None) -> None:
        """Count a record that is no document; with its url it is also put on record by name (a request record is
        not)."""
        self._skipped[reason] = self._skipped.get(reason, 0) + 1
        if url is not None:
            self._skips.append(Skipped(url, reason, detail))

    def damage(self, start: int, end: int, what: str, records: int = 1) -> None:
        self._damaged.append(Damage(self.path, start, end, what, records))

    def remark(self, what: str) -> None:
        self._remarks.append(what)

    def note(self, what: str, names: int | None = None) -> None:
        """`names`: no new name where there are that many. Names out of a file could be without number."""
        if names is None or what in self._noted or len(self._noted) < names:
            self._noted[what] += 1

    def add(
        self,
        place: str | int,
        *,
        text: str | None = None,
        html: bytes | None = None,
        charset: str | None = None,
        id: str | None = None,
        url: str | None = None,
        date: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        if text is not None and "\0" in text:
            text = text.replace("\0", "")
            self._nuls += 1
        row: dict[str, Any] = {
            "uid": uid_of(self.source, self.path, place),
            "source": self.source,
            "id": id,
            "url": url,
            "date": date,
            "text": text,
            "meta": as_json(meta) if meta else None,
        }
        if self.pages:
            row |= {"html": html, "charset": charset}
        self._rows.append(row)
        self._bytes += len(html or b"") + len(text or "")

    @property
    def full(self) -> bool:
        return self._bytes >= self.batch_bytes or len(self._rows) + len(self._skips) + len(self._damaged) >= BATCH_ROWS

    def take(self) -> Reading:
        """Everything gathered so far; the collector is empty afterwards."""
        schema = page_schema() if self.pages else BASE
        columns = [column_of([row[f.name] for row in self._rows], f.type) for f in schema]
        documents = pa.RecordBatch.from_arrays(columns, schema=schema)
        stored = None if self.at is None else max(0, self.at - self._begun)
        reading = Reading(
            documents, self._skipped, self._skips, self._damaged, self._remarks, stored, self._nuls, self._noted
        )
        self._begun = self.at or 0
        self._rows, self._skips, self._damaged, self._remarks = [], [], [], []
        self._skipped, self._noted = {}, Counter()
        self._bytes = self._nuls = 0
        return reading


def without_nuls(texts: pa.Array) -> tuple[pa.Array, int]:
    """Texts less their NUL characters, as extraction leaves them out of pages, and how many texts had any."""
    data, offsets = text_column(texts)
    if data[offsets[0] : offsets[-1]].min(initial=1):  # a hundred times faster than to look at each text
        return texts, 0
    held = pc.sum(pc.match_substring(texts, "\0")).as_py() or 0
    return (pc.replace_substring(texts, "\0", "") if held else texts), held


def page_schema() -> pa.Schema:
    return pa.schema([*BASE, *PAGE])


def column_of(values: list[Any], kind: pa.DataType) -> pa.Array:
    """An Arrow array of one column; text that is no valid Unicode (lone surrogates) is mended, not refused."""
    if pa.types.is_dictionary(kind):
        return pa.array(values, pa.string()).dictionary_encode().cast(kind)
    if pa.types.is_binary(kind):
        return binary_column(values)
    try:
        return pa.array(values, kind)
    except UnicodeEncodeError:
        return pa.array([mended(v) if isinstance(v, str) else v for v in values], kind)


def binary_column(values: list[bytes | None]) -> pa.Array:
    """The values copied once, into memory of their size: Arrow doubles its own as it goes, and touches it anew."""
    ends = np.cumsum([0, *(len(value or b"") for value in values)])
    if ends[-1] > MOST_IN_COLUMN:
        return pa.array(values, pa.binary())
    valid = pa.array([value is not None for value in values]).buffers()[1] if None in values else None
    data = b"".join(value or b"" for value in values)
    return pa.Array.from_buffers(
        pa.binary(), len(values), [valid, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data)]
    )


def mended(value: str | None) -> str | None:
    """A string that can be written down: halves of surrogate pairs become U+FFFD."""
    if value is None or value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return SURROGATE.sub("\ufffd", value)
    return value


def as_json(value: Mapping[str, Any] | list[Any]) -> str:
    """An object or a list as JSON that anything reads: NaN and infinities, which Python would write though JSON has
    none, are null."""
    try:
        return json.dumps(value, ensure_ascii=False, sort_keys=True, default=as_text, allow_nan=False)
    except ValueError:
        return json.dumps(finite(value), ensure_ascii=False, sort_keys=True, default=as_text)


def as_text(value: Any) -> str:
    """What JSON has no kind for; bytes that are no text in base64."""
    if not isinstance(value, bytes):
        return str(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()


def finite(value: Any) -> Any:
    """The same with null for every number that is none."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: finite(inner) for name, inner in value.items()}
    return [finite(inner) for inner in value] if isinstance(value, list | tuple) else value


def strings_in(value: Any) -> Iterator[str]:
    """All strings of plain data in order, names of fields included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, bytes):
        yield value.decode("utf-8", "replace")
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from strings_in(name)
            yield from strings_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from strings_in(inner)


def gather(
    batches: Iterable[pa.RecordBatch], batch_bytes: int = BATCH_BYTES, rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Join neighboring small batches: work on a batch costs a millisecond however few its rows are."""
    waiting: list[pa.RecordBatch] = []
    size = length = 0
    for batch in batches:
        if len(batch) == 0:
            continue
        full = size + batch.nbytes > batch_bytes or length + len(batch) > rows
        if waiting and (full or batch.schema != waiting[0].schema):
            yield waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)
            waiting, size, length = [], 0, 0
        waiting.append(batch)
        size, length = size + batch.nbytes, length + len(batch)
    if waiting:
        yield waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)


def rebatch(
    batches: Iterable[pa.RecordBatch], batch_bytes: int = BATCH_BYTES, rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Cut batches that are too large; the cut depends on the contents alone."""
    for batch in batches:
        start = 0
        while start < len(batch):
            length = min(rows, len(batch) - start)
            while length > 1 and batch.slice(start, length).nbytes > 2 * batch_bytes:
                length = (length + 1) // 2
            yield batch.slice(start, length)
            start += length
