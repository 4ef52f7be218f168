"""Documents from Parquet. A span's numbers are the format's own: row groups, the first and the one after the last.

A row group that cannot be read is damage to its rows; the others are read. A footer that cannot be read is damage to
the file, and so is a file without a byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.stages.documents import BATCH_BYTES, BATCH_ROWS, EMPTY, Collector, Reading
from gristmill.stages.read.rows import RowReader
from gristmill.stages.read.tables import reading_of, why_no_text
from gristmill.stages.stage import Origin


class Parquet(RowReader):
    """Documents from Parquet files; text may be any string or binary type."""

    suffixes: ClassVar[tuple[str, ...]] = (".parquet", ".parq")

    def spans(self, file: BinaryIO, path: str, size: int, target: int) -> list[tuple[int, int | None]]:
        """Groups of row groups, (first, one after the last), of about `target` bytes as stored."""
        try:
            footer = pq.ParquetFile(file).metadata
        except (pa.ArrowException, OSError):
            return [(0, None)]  # what is wrong is said by the span that reads it
        spans: list[tuple[int, int | None]] = []
        first, held = 0, 0
        for group in range(footer.num_row_groups):
            held += stored_bytes(footer.row_group(group))
            if held >= target or group + 1 == footer.num_row_groups:
                spans.append((first, group + 1))
                first, held = group + 1, 0
        return spans or [(0, None)]

    def read(self, file: BinaryIO, origin: Origin) -> Iterator[Reading]:
        account = Collector(
            origin.source, origin.path, pages=self.gives_pages, at=0
        )  # what batches took is said with each
        table = None
        try:
            if origin.size:
                table = pq.ParquetFile(file)
            else:
                account.damage(0, 0, EMPTY)
        except (pa.ArrowException, OSError) as error:
            account.damage(0, origin.size, f"Parquet: {first_line(error)}")
        if table is not None:
            remark = why_no_text(table.schema_arrow, self) if table.metadata.num_rows else None
            if remark is not None:
                account.remark(remark)
                yield account.take()
            last = table.num_row_groups if origin.end is None else min(origin.end, table.num_row_groups)
            for group in range(origin.start, last):
                yield from self.read_group(table, group, origin, account)
        yield account.take()

    def read_group(self, table: pq.ParquetFile, group: int, origin: Origin, account: Collector) -> Iterator[Reading]:
        info = table.metadata.row_group(group)
        rows = max(1, min(BATCH_ROWS, BATCH_BYTES * info.num_rows // max(1, info.total_byte_size)))
        columns = self.columns(table.schema_arrow.names)
        batches = table.iter_batches(batch_size=rows, row_groups=[group], columns=columns, use_threads=False)
        row = 0
        while True:
            try:  # only the format's own errors are damage; what goes wrong after is not
                batch = next(batches, None)
            except (pa.ArrowException, OSError) as error:
                start = min(
                    info.column(c).dictionary_page_offset or info.column(c).data_page_offset
                    for c in range(info.num_columns)
                )
                account.damage(
                    start, start + stored_bytes(info), f"row group {group}: {first_line(error)}", info.num_rows - row
                )
                return
            if batch is None:
                return
            reading = reading_of(batch, group, row, self, origin)
            reading.stored = stored_bytes(info) * batch.num_rows // info.num_rows
            yield reading
            row += batch.num_rows


def stored_bytes(group: Any) -> int:
    return sum(group.column(column).total_compressed_size for column in range(group.num_columns))


def first_line(error: Exception) -> str:
    return str(error).split("\n")[0][:200]
