"""Common Crawl's columnar index: which records of which files fit, read by ranges of the Parquet files that may know.

Of each file the footer is read first. Row groups whose statistics rule out all that is asked for are left alone; of the
others the columns that are compared and those that say where a record lies are fetched, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gristmill.kernels.base.types import Array
from gristmill.pipeline.crawls.dumps import Dumps
from gristmill.pipeline.errors import RunFailed
from gristmill.stages.read.cc import CrawlIndex

FOOTER = 256 << 10  # bytes of a file's end that are fetched for its footer; one that is longer costs a request more
WHERE = ("warc_filename", "warc_record_offset", "warc_record_length")
SUBSET = "subset"
THREADS = 8
Rows = tuple[Array, Array, Array]  # file, offset, length


class Asked(NamedTuple):
    """What a column has to be: one of these, or (of languages) begin with one of them."""

    column: str
    values: tuple[str, ...]
    begins: bool = False


def asked_of(index: CrawlIndex) -> list[Asked]:
    wanted = [
        Asked("content_languages", index.languages, True),
        Asked("url_host_name", index.hosts),
        Asked("url_host_registered_domain", index.domains),
        Asked("content_mime_detected", index.mime),
    ]
    return [asked for asked in wanted if asked.values]


def tables_of(names: Iterable[str]) -> list[str]:
    """Of the index's files those that know pages: those of robots.txt and of failed requests are others."""
    return [name for name in names if name.endswith(".parquet") and ("/subset=" not in name or "/subset=warc/" in name)]


def records_of(dumps: Dumps, tables: Sequence[str], index: CrawlIndex, files: Sequence[str]) -> dict[str, Array]:
    """By file, where records that fit begin and how long they are, in order of place. Of other files than those given
    none is taken."""
    asked, names = asked_of(index), pa.array(files, pa.string())
    with ThreadPoolExecutor(THREADS) as threads:
        found = [
            rows for some in threads.map(lambda name: list(rows_in(dumps, name, asked, names)), tables) for rows in some
        ]
    if not found:
        return {}
    file, offset, length = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.lexsort((offset, file))
    file, places = file[order], np.stack([offset[order], length[order]], axis=1)
    once = np.ones(len(file), bool)
    once[1:] = (file[1:] != file[:-1]) | (places[1:, 0] != places[:-1, 0])  # two tables may list one record
    file, places = file[once], places[once]
    cuts = np.flatnonzero(np.diff(file)) + 1
    return {
        files[int(one[0])]: some
        for one, some in zip(np.split(file, cuts), np.split(places, cuts), strict=True)
        if len(one)
    }


def rows_in(dumps: Dumps, name: str, asked: Sequence[Asked], files: pa.Array) -> Iterable[Rows]:
    try:
        with dumps.tail(name, FOOTER) as tail:
            metadata = pq.read_metadata(tail)
        groups = [group for group in range(metadata.num_row_groups) if may_fit(metadata.row_group(group), asked)]
        columns = columns_wanted(metadata, name, asked)
        if not groups:
            return
        wanted = [stretch for group in groups for stretch in chunks_of(metadata.row_group(group), columns)]
        with dumps.opened(name, wanted) as file:
            table = pq.ParquetFile(file, metadata=metadata, pre_buffer=False)
            for group in groups:
                yield from fitting(table.read_row_group(group, columns, use_threads=False), asked, files)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise RunFailed(f"{dumps.root}/{name}: {error.strerror}") from error
        raise RunFailed(
            f"{dumps.root}/{name}: this is no Parquet file of the index, or a damaged one: {error}"
        ) from error


def columns_wanted(metadata: Any, name: str, asked: Sequence[Asked]) -> list[str]:
    there = set(metadata.schema.to_arrow_schema().names)
    wanted = [*(one.column for one in asked), *WHERE]
    if lacking := [column for column in wanted if column not in there]:
        raise RunFailed(f"{name}: the index has no column {', '.join(lacking)}")
    return wanted + ([SUBSET] if SUBSET in there and "/subset=" not in name else [])


def may_fit(group: Any, asked: Sequence[Asked]) -> bool:
    """Could a row group hold a row that fits, by the least and largest values of its columns?"""
    columns = {group.column(number).path_in_schema: group.column(number) for number in range(group.num_columns)}
    for column, values, begins in asked:
        facts = columns[column].statistics if column in columns else None
        if facts is None or not facts.has_min_max or not isinstance(facts.min, str):
            continue
        if not any(facts.min <= (value + "-" if begins else value) and value <= facts.max for value in values):
            return False
    return True


def chunks_of(group: Any, columns: Sequence[str]) -> Iterable[tuple[int, int]]:
    """Where the columns of a row group lie."""
    for number in range(group.num_columns):
        chunk = group.column(number)
        if chunk.path_in_schema in columns:
            start = chunk.data_page_offset
            if chunk.has_dictionary_page and chunk.dictionary_page_offset:
                start = min(start, chunk.dictionary_page_offset)
            yield start, start + chunk.total_compressed_size


def fitting(table: pa.Table, asked: Sequence[Asked], files: pa.Array) -> Iterable[Rows]:
    fits = None
    checks = [*asked, *([Asked(SUBSET, ("warc",))] if SUBSET in table.column_names else [])]
    for column, values, begins in checks:
        given = table[column].cast(pa.string())
        given = pc.utf8_slice_codeunits(given, 0, 3) if begins else given
        one = pc.is_in(given, value_set=pa.array(values, pa.string()))
        fits = one if fits is None else pc.and_(fits, one)
    rows = table.select(WHERE).filter(fits)
    places = pc.index_in(rows["warc_filename"].cast(pa.string()), value_set=files)
    rows, places = rows.filter(pc.is_valid(places)), places.drop_null()
    if len(rows):
        offset, length = (rows[name].cast(pa.int64()).to_numpy() for name in WHERE[1:])
        yield places.to_numpy(), offset, length
