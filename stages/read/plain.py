"""Documents from text files in a folder, one document a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, BinaryIO, ClassVar

from pydantic import Field

from stages.documents import EMPTY, Collector, Reading
from stages.read.charset import decode_text
from stages.read.warc import MAX_RECORD
from stages.stage import Origin, Reader


class Plain(Reader):
    """Text files, one document a file; its id is its path below the source."""

    charset: Annotated[str | None, Field(description="their encoding; absent: a byte order mark, else UTF-8, else detected")] = None
    max_record_bytes: Annotated[int, Field(description="larger files are skipped", gt=0)] = MAX_RECORD
    suffixes: ClassVar[tuple[str, ...]] = (".txt", ".text", ".md")

    def read(self, file: BinaryIO, origin: Origin) -> Iterator[Reading]:
        collector = Collector(origin.source, origin.path)
        data = file.read(self.max_record_bytes + 1)
        if len(data) > self.max_record_bytes:
            collector.skip("too_large", origin.path, f"{origin.size} bytes")
        elif data:
            collector.add(0, text=decode_text(data, self.charset), id=origin.path)
        else:
            collector.remark(EMPTY)
        yield collector.take()
