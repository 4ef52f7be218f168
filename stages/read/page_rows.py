"""Rows of web archives by the block: a kernel appends plain pages to columns, and odd records come between them one by
one, in the order of the file.

A block is a stretch of a file that is not compressed, or members of one that is, inflated one behind the other. What it
cannot take, a member that is damaged or large or a record that is cut, is read from its start by the reader of single
records, which knows what is wrong with it. So a block changes no result, and where blocks do not help, few are tried.

The kernel (`kernels/archives/pages.py`) only copies bytes. What is made of them is made here, once for a batch: a
Content-Type is parsed once for each that occurs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.kernels.archives import pages
from gristmill.kernels.base.types import Array, Offsets
from gristmill.stages.documents import BATCH_ROWS, Collector, Reading, as_json, column_of, page_schema, uids_at
from gristmill.stages.read.charset import charset_in
from gristmill.stages.read.members import CHUNK, Codec, Window
from gristmill.stages.read.payload import kind_of
from gristmill.stages.read.records import Record, fields_of

MEMBERS = 1 << 20  # inflated bytes after which a block of members ends
STRETCH = 1 << 22  # bytes of a file that is not compressed
LARGEST = 1 << 22  # inflated bytes of a member of a block
FIRST_FEED, FEEDS = 1 << 13, 4  # bytes for one call of inflate: at first, and how many times the mean of members so far
MOST_SINGLY = 1024
SPARE = 1 << 21  # bytes of payloads for which there is room behind a full batch
TEXT_BYTES = 1 << 17  # of a column of text, to begin with
NO_BOUNDS = np.zeros(0, np.int64)


@dataclass
class Block:
    """Records behind each other from the first byte on, and how far they have been read. In a block of members each
    record is one of them."""

    data: memoryview  # read-only
    starts: list[int]  # of members in the archive; else of the data alone
    ends: list[int]  # of members in the archive
    bounds: Offsets  # of members in the data; none without members
    stop: int  # no record may begin from here on
    last: bool = False  # is the archive's end that of the data?
    at: int = 0
    number: int = 0  # of records so far

    @property
    def reached(self) -> int:
        """The place in the archive up to which it was read."""
        if not len(self.bounds):
            return self.starts[0] + self.at
        return self.ends[self.number - 1] if self.number else self.starts[0]

    def places(self, records: Array) -> list[int]:
        """Where in the archive records begin: members by number, others by their places in the data."""
        return [self.starts[n] for n in records.tolist()] if len(self.bounds) else (records + self.starts[0]).tolist()


class Blocks:
    """The blocks of an archive. Behind one that was left early, some records are to be read one by one, twice as many
    each time."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._memory = np.empty(2 * MEMBERS, np.uint8).data
        self._singly, self._next = 0, 1

    def due(self) -> bool:
        """Is the next record to be read in a block?"""
        self._singly -= 1
        return self._singly <= 0

    def left(self, block: Block) -> bool:
        """To be called behind a block; was most of it read?"""
        if 2 * block.at > len(block.data):
            self._next = 1
            return True
        self._next = self._singly = min(2 * self._next, MOST_SINGLY)
        return False

    def stretch(self, at: int, end: int, size: int) -> Block:
        """A block from a place of an archive on; records of the span begin before `end`."""
        data = self._window.stretch(at, min(STRETCH, end - at + CHUNK))
        return Block(memoryview(data), [at], [], NO_BOUNDS, end - at, last=at + len(data) >= size)

    def members(self, codec: Codec, at: int, end: int) -> tuple[Block, int]:
        """A block of the members from a place on that begin before `end`, and where the last one ends; those that are
        empty are passed over."""
        starts: list[int] = []
        ends: list[int] = []
        bounds, held, begin, feed = [0], 0, at, FIRST_FEED
        while at < end and held < MEMBERS:
            inflated = codec.whole(self._window, at, feed, LARGEST)
            if inflated is None:
                break
            start, (parts, at) = at, inflated
            for data in parts:
                self._memory = with_room(self._memory, held, len(data))
                self._memory[held : held + len(data)] = data
                held += len(data)
            if held > bounds[-1]:
                starts.append(start)
                ends.append(at)
                bounds.append(held)
                feed = max(FIRST_FEED, FEEDS * (at - begin) // len(starts))
        return Block(self._memory[:held].toreadonly(), starts, ends, np.array(bounds), held), at


def with_room(memory: memoryview, held: int, more: int) -> memoryview:
    """Memory with what it holds, and room for more behind that."""
    if held + more <= len(memory):
        return memory
    larger = np.empty(2 * (held + more), np.uint8).data
    larger[:held] = memory[:held]
    return larger


class Columns:
    """What the kernel writes to, for a batch."""

    def __init__(self, payload_bytes: int) -> None:
        texts = len(pages.COLUMNS)
        self.state = np.zeros(pages.STATE, np.int64)
        self.found = np.zeros((2, len(pages.TEXTS)), np.int64)
        # Arrow keeps what is freed, and the next batch does not touch new memory.
        self.payloads = np.frombuffer(pa.allocate_buffer(payload_bytes), np.uint8)
        self.payload_ends = np.zeros(BATCH_ROWS + 1, np.int32)
        self.texts = np.empty((texts, TEXT_BYTES), np.uint8)
        self.text_ends = np.zeros((texts, BATCH_ROWS + 1), np.int32)
        self.records = np.empty(BATCH_ROWS, np.int64)

    def take_pages(self, block: Block) -> int:
        """Append the plain pages of a block; why the kernel stopped."""
        state = self.state
        state[pages.AT], state[pages.NUMBER], state[pages.STOP], state[pages.LAST] = (
            block.at, block.number, block.stop, block.last,
        )  # fmt: skip
        data = np.frombuffer(block.data, np.uint8)
        while True:
            why: int = pages.take_pages(
                data, block.bounds, *pages.tables(), state, *self.found, self.payloads, self.payload_ends, self.texts,
                self.text_ends, self.records,
            )  # fmt: skip
            if why != pages.ROOM:
                break
            self.payloads = larger(self.payloads, int(state[pages.HELD]), len(data))
            self.texts = larger(self.texts, self.texts.shape[1], pages.LONGEST_HEADER)
        block.at, block.number = int(state[pages.AT]), int(state[pages.NUMBER])
        return why

    def append(self, payload: bytes) -> None:
        """The payload of an odd row."""
        row, held = self.state[[pages.TAKEN, pages.HELD]].tolist()
        end = held + len(payload)
        if end > len(self.payloads):
            self.payloads = larger(self.payloads, held, len(payload))
        self.payloads[held:end] = np.frombuffer(payload, np.uint8)
        self.payload_ends[row + 1] = end
        self.state[pages.TAKEN], self.state[pages.HELD] = row + 1, end

    def html(self, without: list[int]) -> pa.Array:
        """The payloads of all rows; some rows have none."""
        rows, held = self.state[[pages.TAKEN, pages.HELD]].tolist()
        valid = None
        if without:
            there = np.ones(rows, np.bool_)
            there[without] = False
            valid = pa.py_buffer(np.packbits(there, bitorder="little"))
        ends, data = pa.py_buffer(self.payload_ends[: rows + 1]), pa.py_buffer(self.payloads[:held])
        return pa.Array.from_buffers(pa.binary(), rows, [valid, ends, data], len(without))

    def texts_of_rows(self) -> dict[str, pa.Array]:
        """The other columns that the kernel fills, of plain rows."""
        text = {name: self._text(k) for k, name in enumerate(pages.COLUMNS)}
        id = pc.replace_substring_regex(pc.ascii_trim(text["id"], "<>"), "^urn:uuid:", "")
        url = text["url"]
        angles = pc.and_(pc.starts_with(url, "<"), pc.ends_with(url, ">"))
        if pc.any(angles).as_py():
            url = pc.if_else(angles, pc.utf8_slice_codeunits(url, 1, -1), url)
        types = text["type"].dictionary_encode()
        names = [value.encode() for value in types.dictionary.to_pylist()]
        charsets = pa.array([charset_in(name.decode()) for name in names], pa.string())
        kinds = [kind_of(name) for name in names]
        return {
            "id": present(id),
            "url": present(url),
            "date": present(text["date"]),
            "meta": meta_column(kinds, types.indices, text["ip"]),
            "charset": charsets.take(types.indices),
        }

    def _text(self, k: int) -> pa.Array:
        ends = self.text_ends[k, : self.state[pages.PLAIN] + 1]
        return pa.StringArray.from_buffers(len(ends) - 1, pa.py_buffer(ends), pa.py_buffer(self.texts[k, : ends[-1]]))


def present(texts: pa.Array) -> pa.Array:
    """Texts, null where they are empty."""
    empty = pc.equal(texts, "")
    return pc.if_else(empty, None, texts) if pc.any(empty).as_py() else texts


def meta_column(kinds: list[str], numbers: pa.Array, ip: pa.Array) -> pa.Array:
    """`meta` of plain rows: their types, by number, and the addresses of their servers, where there are any."""
    alone = pa.array([as_json({"content_type": kind}) for kind in kinds], pa.string()).take(numbers)
    if not pc.any(pc.not_equal(ip, "")).as_py():
        return alone
    if pc.any(pc.match_substring_regex(ip, r'["\\\\]')).as_py():  # what JSON escapes
        rows = zip(numbers.to_pylist(), ip.to_pylist(), strict=True)
        return pa.array(
            [as_json({"content_type": kinds[k]} | ({"ip": ip} if ip else {})) for k, ip in rows], pa.string()
        )
    begin = pa.array([as_json({"content_type": kind, "ip": ""}).removesuffix('"}') for kind in kinds], pa.string())
    with_ip = pc.binary_join_element_wise(begin.take(numbers), ip, '"}', "")
    return pc.if_else(pc.equal(ip, ""), alone, with_ip)


def larger(array: Array, held: int, more: int) -> Array:
    """An array with what it holds, and room for more behind that."""
    new = np.empty((*array.shape[:-1], max(2 * array.shape[-1], held + more)), array.dtype)
    new[..., :held] = array[..., :held]
    return new


class PageCollector(Collector):
    """A collector that takes plain pages by the block too; the records between them are odd rows."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._clear()

    def _clear(self) -> None:
        self._columns = Columns(self.batch_bytes + SPARE)
        self._uids: list[int] = []  # of plain rows
        self._odd: list[int] = []  # which rows are odd
        self._without: list[int] = []  # which have no payload

    def take_pages(self, block: Block, most: int, odd_fields: int) -> int:
        """Append the plain pages of a block, up to the first record that is none; why the kernel stopped."""
        columns, state = self._columns, self._columns.state
        state[pages.MOST], state[pages.PAGES], state[pages.ODD_FIELDS] = most, self.pages, odd_fields
        state[pages.ROWS] = BATCH_ROWS - len(self._skips) - len(self._damaged)
        state[pages.BYTES] = self.batch_bytes - self._bytes
        state[pages.OTHERS] = 0
        why = columns.take_pages(block)
        if others := int(state[pages.OTHERS]):
            self._skipped["not_a_page"] = self._skipped.get("not_a_page", 0) + others
        return why

    def odd_record(self, block: Block) -> tuple[int, Record]:
        """The record at which the kernel stopped, with its place in the file; the block goes on behind it."""
        body, body_end, after = self._columns.state[[pages.BODY, pages.BODY_END, pages.NEXT]].tolist()
        (place,) = block.places(np.array([block.number if len(block.bounds) else block.at]))
        record = Record(
            place, fields_of(bytes(block.data[block.at : body])), bytes(block.data[body:body_end]), body_end - body
        )
        block.at, block.number = after, block.number + 1
        return place, record

    def new_records(self) -> Array:
        """The records of plain rows that have no uid yet."""
        return self._columns.records[len(self._uids) : self._columns.state[pages.PLAIN]]

    def give_uids(self, places: Iterable[str]) -> None:
        self._uids += uids_at(self.source, self.path, places)

    def add(self, place: str | int, *, html: bytes | None = None, **values: Any) -> None:
        super().add(place, **values)
        if self.pages:
            row = int(self._columns.state[pages.TAKEN])
            self._odd.append(row)
            if html is None:
                self._without.append(row)
            self._columns.append(html or b"")

    @property
    def full(self) -> bool:
        state = self._columns.state
        rows = len(self._rows) + int(state[pages.PLAIN]) + len(self._skips) + len(self._damaged)
        return self._bytes + int(state[pages.HELD]) >= self.batch_bytes or rows >= BATCH_ROWS

    def take(self) -> Reading:
        reading = super().take()
        if self._columns.state[pages.TAKEN]:
            self._clear()
        return reading

    def documents(self) -> pa.RecordBatch:
        if not self.pages:
            return super().documents()
        schema = page_schema()
        plain, odd = int(self._columns.state[pages.PLAIN]), len(self._rows)
        columns: dict[str, pa.Array] = {}
        if plain:
            columns = self._columns.texts_of_rows()
            columns |= {"uid": pa.array(self._uids, pa.uint64()), "text": pa.nulls(plain, pa.string())}
            columns["source"] = column_of([self.source] * plain, schema.field("source").type)
        if odd or not plain:
            order = np.empty(plain + odd, np.int64)
            order[self._odd] = np.arange(plain, plain + odd)
            order[np.delete(np.arange(plain + odd), self._odd)] = np.arange(plain)
            for each in schema:
                of_odd = column_of([row[each.name] for row in self._rows], each.type)
                if plain and each.name != "html":
                    of_odd = pa.concat_arrays([columns[each.name], of_odd]).take(pa.array(order))
                columns[each.name] = of_odd
        columns["html"] = self._columns.html(self._without)
        return pa.RecordBatch.from_arrays([columns[each.name] for each in schema], schema=schema)
