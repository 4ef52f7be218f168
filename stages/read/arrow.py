"""Documents from Arrow IPC, as files (Feather 2) or as streams (what Hugging Face datasets keep). A file is one span.

A file without a byte is damage: either format has a schema at least.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, ClassVar

import pyarrow as pa

from gristmill.stages.documents import EMPTY, Collector, Reading, rebatch
from gristmill.stages.read.parquet import first_line
from gristmill.stages.read.rows import RowReader
from gristmill.stages.read.tables import reading_of, why_no_text
from gristmill.stages.stage import Origin

MAGIC = b"ARROW1"


class Arrow(RowReader):
    """Documents from Arrow IPC files and streams; hf:// addresses work as any other."""

    suffixes: ClassVar[tuple[str, ...]] = (".arrow", ".feather", ".ipc", ".arrows")

    def read(self, file: BinaryIO, origin: Origin) -> Iterator[Reading]:
        account = Collector(
            origin.source, origin.path, pages=self.gives_pages, at=0
        )  # what batches took is said with each
        if not origin.size:
            account.damage(0, 0, EMPTY)
        stream = batches(file) if origin.size else iter(())
        group, begun = 0, 0
        while True:
            try:  # only the format's own errors are damage; what goes wrong after is not
                batch = next(stream, None)
            except (pa.ArrowException, OSError) as error:
                account.damage(min(file.tell(), origin.size), origin.size, f"Arrow, batch {group}: {first_line(error)}")
                break
            if batch is None:
                break
            if group == 0 and (remark := why_no_text(batch.schema, self)) is not None:
                account.remark(remark)
                yield account.take()
            batch = batch.select(
                [name for name in self.columns(batch.schema.names) if batch.schema.names.count(name) == 1]
            )
            taken, begun = max(0, file.tell() - begun), file.tell()
            first = 0
            for piece in rebatch([batch]):
                reading = reading_of(piece, group, first, self, origin)
                reading.stored = taken * piece.num_rows // batch.num_rows
                yield reading
                first += piece.num_rows
            group += 1
        yield account.take()


def batches(file: BinaryIO) -> Iterator[pa.RecordBatch]:
    """Record batches one at a time, of either format."""
    file.seek(0)
    magic = file.read(len(MAGIC))
    file.seek(0)
    if magic == MAGIC:
        reader = pa.ipc.open_file(file)
        for index in range(reader.num_record_batches):
            yield reader.get_batch(index)
    else:
        yield from pa.ipc.open_stream(file)
