"""What `keep: signals` leaves of a documents file: its columns without texts and lists of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.pipeline.fingerprint import digest
from gristmill.pipeline.store.lock import store_of
from gristmill.pipeline.store.partitions import PartWriter, part_writers
from gristmill.pipeline.store.records import FileRef, NumbersTask, Partition, Result
from gristmill.pipeline.store.storage import Store, open_checked

TEXTS = ("text", "html")
DOCUMENTS, NUMBERS = ".documents.parquet", ".signals.parquet"


def task_of_numbers(store: Store, part: Partition, documents: FileRef) -> NumbersTask:
    return NumbersTask(
        task=digest(["numbers", documents.path, documents.checksum]),
        node=documents.path.split("/")[1],
        key=part.key,
        cost=documents.bytes,
        out=store.anywhere,
        documents=documents,
    )


def run_numbers(task: NumbersTask) -> Result:
    store, documents = store_of(task), task.documents
    with part_writers() as writers, open_checked(store, documents) as file:
        writer = PartWriter(store, documents.path.removesuffix(DOCUMENTS) + NUMBERS)
        writers.append(writer)
        parquet = pq.ParquetFile(file, pre_buffer=False)
        columns = [field.name for field in parquet.schema_arrow if not is_text(field)]
        for group in range(parquet.num_row_groups):
            for batch in parquet.read_row_group(group, columns=columns).combine_chunks().to_batches():
                writer.write(batch)
        facts = writer.close()
    return Result(files={} if facts is None else {"numbers": facts})


def is_text(field: pa.Field) -> bool:
    return field.name.split("@")[0] in TEXTS or pa.types.is_nested(field.type)


def with_numbers(part: Partition, numbers: Mapping[str, FileRef]) -> Partition:
    """A part as it is when its texts are gone."""
    documents = part.documents
    if documents is None or documents.path not in numbers:
        return part
    return replace(part, documents=numbers[documents.path])
