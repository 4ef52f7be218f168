"""Documents from text files in a folder, one document a file: plain, gzip or zstd.

A compressed file that breaks off is damage as a whole, for half a text is no document; so is a file of another format.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Annotated, BinaryIO, ClassVar

from pydantic import Field

from gristmill.kernels.common.settings import Bytes
from gristmill.stages.documents import EMPTY, MAX_RECORD, Collector, Reading
from gristmill.stages.read.charset import decode_labelled
from gristmill.stages.read.members import Codec, Damaged, Unpacked, Window, codec_for, plain_chunks
from gristmill.stages.read.other_formats import OTHERS, other_format
from gristmill.stages.stage import Origin, Reader


class WholeFiles(Reader):
    """Reads each file as one document; what it makes of the bytes is said by its subclasses."""

    max_record_bytes: Annotated[Bytes, Field(description="larger files are skipped, unpacked size", gt=0)] = MAX_RECORD
    holds: ClassVar[str]  # what its files hold, for people
    others: ClassVar[tuple[tuple[bytes, str, str], ...]] = OTHERS  # what they may be instead

    def read(self, file: BinaryIO, origin: Origin) -> Iterator[Reading]:
        collector = Collector(origin.source, origin.path, pages=self.gives_pages)
        window = Window(file)
        codec = codec_for(window, origin.path)
        wrong = (
            EMPTY if codec is not None and origin.size == 0 else other_format(window, codec, self.holds, self.others)
        )
        if wrong is not None:
            collector.damage(0, origin.size, wrong)
        else:
            self.add_file(window, codec, origin, collector)
        yield collector.take()

    def add_file(self, window: Window, codec: Codec | None, origin: Origin, collector: Collector) -> None:
        try:
            data = contents(window, codec, origin.size, self.max_record_bytes)
        except Damaged as damage:
            return collector.damage(0, origin.size, str(damage))
        if len(data) > self.max_record_bytes:
            collector.skip("too_large", origin.path, f"{origin.size} bytes")
        else:
            self.add(data, origin, collector)

    @abstractmethod
    def add(self, data: bytes, origin: Origin, collector: Collector) -> None:
        """Make a document of a file's bytes, or say why it is none."""


class Plain(WholeFiles):
    """Text files, one document a file; its id is its path below the source. .gz and .zst are unpacked."""

    charset: Annotated[
        str | None,
        Field(
            description=(
                "their encoding, unless their bytes are of another; absent: a byte order mark, else UTF-8, "
                "else detected"
            )
        ),
    ] = None
    suffixes: ClassVar[tuple[str, ...]] = (
        ".txt",
        ".text",
        ".md",
        ".txt.gz",
        ".text.gz",
        ".md.gz",
        ".txt.zst",
        ".text.zst",
        ".md.zst",
    )
    holds: ClassVar[str] = "text"

    def add(self, data: bytes, origin: Origin, collector: Collector) -> None:
        if data:
            decoded = decode_labelled(data, self.charset)
            if decoded.overruled:
                collector.remark(f"it is not in the encoding {decoded.declared}, and was read as {decoded.codec}")
            collector.add(0, text=decoded.text, id=origin.path)
        else:
            collector.remark(EMPTY)


def contents(window: Window, codec: Codec | None, size: int, limit: int) -> bytes:
    """All that a file holds; of more than `limit` bytes, more than `limit`."""
    chunk = plain_chunks(window, 0) if codec is None else Unpacked(codec, window, size).chunk
    parts, held = [], 0
    while held <= limit and (data := chunk()):
        parts.append(data)
        held += len(data)
    return b"".join(parts)
