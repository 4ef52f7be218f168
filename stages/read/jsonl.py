"""Documents from JSON lines: plain, gzip or zstd.

A plain file is cut at any byte: a line belongs to the span in which it begins. A compressed file is cut between frames
that state their lengths (`frames.py`), or else is one span; places in it count decompressed bytes. A line that is no
JSON object is damage to that line alone. When a frame breaks, the lines before the break stay, the frame is one stretch
of damage, in bytes of the file, and reading goes on at the first line that begins behind it; in a file whose frames do
not tell, the rest is damaged. A wrong checksum is one damage too, and costs no line. A file that holds another format,
packed or not, or a JSON array, is damaged as a whole, for its lines would be thousands of damages that do not say so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, ClassVar

from pydantic import Field

from gristmill.kernels.common.paths import RecipePath
from gristmill.stages.documents import EMPTY, Collector, Reading
from gristmill.stages.read.frames import FrameReader, frames_of, spans_of_frames
from gristmill.stages.read.members import Chunks, Damaged, Unpacked, Window, WrongChecksum, codec_for, plain_chunks
from gristmill.stages.read.other_formats import NO_ROWS, OTHERS, other_format
from gristmill.stages.read.rows import RowReader, add_row, why_no_content
from gristmill.stages.stage import CannotRun, Origin


class Jsonl(RowReader):
    """Documents from JSON lines, one object a line; .gz and .zst are unpacked."""

    suffixes: ClassVar[tuple[str, ...]] = (
        ".jsonl",
        ".jsonl.gz",
        ".jsonl.zst",
        ".ndjson",
        ".ndjson.gz",
        ".ndjson.zst",
        ".json.gz",
        ".json.zst",
    )

    attributes: list[RecipePath] = Field(
        default=[],
        description=(
            "folders of Dolma's attributes, with a file beside each of the documents; scores go into `meta`, "
            "for `from_meta`, as `attributes.NAME`. Files are then read whole"
        ),
    )

    def spans(self, file: BinaryIO, path: str, size: int, target: int) -> list[tuple[int, int | None]]:
        if self.attributes:  # which go line by line with the documents
            return [(0, None)]
        if codec_for(Window(file), path) is not None:
            frames = frames_of(file, size)
            return [(0, None)] if frames is None else spans_of_frames(frames, size, target)
        return [(start, min(start + target, size)) for start in range(0, size, target)] or [(0, None)]

    def read(self, file: BinaryIO, origin: Origin) -> Iterator[Reading]:
        collector = Collector(origin.source, origin.path, pages=self.gives_pages, at=origin.start)
        frames = None if codec_for(Window(file), origin.path) is None else frames_of(file, origin.size)
        window = Window(file)
        codec = codec_for(window, origin.path)
        paths = self.paths()
        whole = (
            EMPTY
            if codec is not None and origin.size == 0
            else other_format(window, codec, "JSON lines", OTHERS + NO_ROWS)
        )
        if whole is not None:
            if origin.start == 0:
                collector.damage(0, origin.size, whole)
            yield collector.take()
            return
        if origin.size == 0:
            collector.remark(EMPTY)
        unpacked: Unpacked | FrameReader | None = None
        begin = 0  # of the span, as places count
        if codec is not None and frames is not None:
            unpacked = framed = FrameReader(codec, window, frames, origin.start, origin.end)
            begin, end = framed.place, framed.end if framed.last < len(frames) else -1
            rows = lines_of_frames(framed, self.max_record_bytes, collector)
        elif codec is not None:
            unpacked = whole_stream = Unpacked(codec, window, origin.size)
            end = -1
            rows = lines(unpacked_chunks(whole_stream, collector), 0, self.max_record_bytes)
        else:
            end = origin.size if origin.end is None else min(origin.end, origin.size)
            rows = lines(
                plain_chunks(window, max(origin.start - 1, 0)), max(origin.start - 1, 0), self.max_record_bytes
            )
            if origin.start > 0:
                next(rows, None)  # a line that began before, or the line end just before the span
        beside = [Attributes(folder, origin.path, self) for folder in self.attributes]
        filled = 0  # rows with text, or a page
        without: str | None = None  # what is wrong with the first row that cannot have any
        for place, line in rows:
            if 0 <= end <= place:
                break
            if place < begin:
                continue
            if line is None:
                collector.skip("too_large")
            elif (row := self.row_of(line, place, collector)) is not None:
                for attributes in beside:
                    attributes.add_to(row)
                try:
                    filled += add_row(row, place, self, paths, collector)
                    if not filled and without is None:
                        without = why_no_content(row, self, paths[self.content])
                except RecursionError:
                    collector.damage(place, place + len(line), "nested too deeply")
            if collector.full:
                after = place + len(line or b"") + 1
                collector.at = after if unpacked is None else unpacked.reached(after)
                yield collector.take()
        collector.at = origin.size if end < 0 else end if unpacked is None else origin.end
        if without is not None and not filled:
            collector.remark(without)
        yield collector.take()

    def row_of(self, line: bytes, place: int, collector: Collector) -> dict[str, object] | None:
        if place == 0:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line or line.isspace():
            return None
        try:
            row = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            collector.damage(place, place + len(line), f"no JSON: {error}")
            return None
        if isinstance(row, dict):
            return row
        collector.damage(place, place + len(line), f"no JSON object but {type(row).__name__}")
        return None


def unpacked_chunks(unpacked: Unpacked, collector: Collector) -> Chunks:
    """Chunks of all members one after the other; damage is noted and ends them, less the line that it cut. A wrong
    checksum is noted and ends nothing."""

    def chunk() -> bytes:
        while True:
            try:
                return unpacked.chunk()
            except WrongChecksum as damage:
                collector.damage(*unpacked.broken, str(damage))
            except Damaged as damage:
                collector.damage(*unpacked.broken, str(damage))
                raise

    return chunk


def lines_of_frames(unpacked: FrameReader, max_bytes: int, collector: Collector) -> Iterator[tuple[int, bytes | None]]:
    """Lines of each stretch that can be read, less the one that a stretch begins within."""
    for place in unpacked.stretches(collector.damage):
        rows = lines(unpacked.chunk, place, max_bytes)
        if place > 0:
            next(rows, None)
        yield from rows


def lines(chunk: Chunks, place: int, max_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """Lines with the places where they begin; None for one that is too long. What a damaged stream cut off is no
    line."""
    parts: list[bytes] = []
    held = 0  # bytes of the line so far, kept or not
    try:
        while data := chunk():
            start = 0
            while (line_end := data.find(b"\n", start)) >= 0:
                length = held + line_end - start
                if length > max_bytes:
                    yield place, None
                else:
                    yield place, b"".join((*parts, data[start:line_end])) if parts else data[start:line_end]
                place += length + 1
                start = line_end + 1
                parts, held = [], 0
            held += len(data) - start
            parts = [*parts, data[start:]] if held <= max_bytes else []
    except Damaged:
        return
    if held:
        yield place, b"".join(parts) if held <= max_bytes else None


class Attributes:
    """Attributes of Dolma for the documents of one file, in their order: each line names its document."""

    def __init__(self, folder: str, path: str, reader: RowReader) -> None:
        self.place = Path(folder) / path
        self.ids = reader.paths()["id"]
        if not self.place.is_file():
            raise CannotRun(f"{self.place}: there are no attributes for {path}; the files of both have the same names")
        self.lines = self.read(reader.max_record_bytes)

    def read(self, most: int) -> Iterator[tuple[int, bytes | None]]:
        with self.place.open("rb") as file:
            window, size = Window(file), self.place.stat().st_size
            codec = codec_for(window, str(self.place))
            yield from lines(
                plain_chunks(window, 0) if codec is None else Unpacked(codec, window, size).chunk, 0, max(most, 1 << 24)
            )

    def add_to(self, row: dict[str, object]) -> None:
        """Puts the scores of this document into its row: a number where an attribute has one span, else its spans.
        Lines of documents that are not there are passed over."""
        wanted = next((row[path] for path in self.ids if row.get(path) is not None), None)
        if wanted is None:
            raise CannotRun(f"{self.place}: a document without an id cannot have attributes")
        for _, line in self.lines:
            try:
                entry = json.loads(line or b"null")
                if entry["id"] == wanted:
                    scores = {str(name): score_of(spans) for name, spans in entry["attributes"].items()}
                    row["attributes"] = (
                        {**held, **scores} if isinstance(held := row.get("attributes"), dict) else scores
                    )
                    return
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                raise CannotRun(f"{self.place}: not attributes as Dolma writes them ({error})") from error
        raise CannotRun(
            f"{self.place}: it has no attributes for document {wanted!r}, or not in the order of the documents"
        )


def score_of(spans: object) -> object:
    """The score of [[begin, end, score]]; several spans, and none, as they are."""
    if isinstance(spans, list) and len(spans) == 1 and isinstance(spans[0], list) and len(spans[0]) == 3:
        return spans[0][2]
    return spans
