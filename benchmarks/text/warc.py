#!/usr/bin/env python3
"""How fast pages come out of gzipped WARC files, and out of the same files unpacked, into Arrow batches, beside fastwarc
doing the same work.

    python -m benchmarks.text.warc FILE.warc.gz... [--wheels WHEELS] [--rounds 3]

Races as `benchmarks.races` runs them. Both sides find the records, check the checksums of gzip, parse the headers of
HTTP answers, and make batches of 32 MB with id, url, date, type, charset and payload of each page; no side checks
digests of WARC. Before they are timed, their tables are compared. Ours also counts the other records, gives uids, and
survives damage, at which fastwarc stops.
"""

import argparse
import gzip
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from benchmarks.races import OF_OURS, Side, Work, race
from gristmill.stages.documents import BATCH_BYTES
from gristmill.stages.read.warc import Warc
from gristmill.stages.stage import Origin


def ours(path: Path) -> Iterator[pa.RecordBatch]:
    size = path.stat().st_size
    with path.open("rb") as file:
        for reading in Warc(path=str(path)).read(file, Origin("s", path.name, size)):
            if reading.damaged:
                raise SystemExit(f"{path} is damaged, and fastwarc would stop there")
            yield reading.documents


def fastwarc(path: Path) -> Iterator[pa.RecordBatch]:
    from fastwarc.warc import ArchiveIterator, WarcRecordType

    columns: tuple[list, ...] = ([], [], [], [], [], [])
    held = 0
    for record in ArchiveIterator(str(path), record_types=WarcRecordType.response, parse_http=True):
        payload, headers = record.reader.read(), record.headers
        values = (
            headers.get("WARC-Record-ID"),
            headers.get("WARC-Target-URI"),
            headers.get("WARC-Date"),
            record.http_content_type,
            record.http_charset,
            payload,
        )
        for column, value in zip(columns, values, strict=True):
            column.append(value)
        held += len(payload)
        if held >= BATCH_BYTES:
            yield batch_of(columns)
            columns, held = ([], [], [], [], [], []), 0
    yield batch_of(columns)


def batch_of(columns: tuple[list, ...]) -> pa.RecordBatch:
    arrays = [pa.array(values, pa.string()) for values in columns[:-1]] + [pa.array(columns[-1], pa.binary())]
    return pa.RecordBatch.from_arrays(arrays, ["id", "url", "date", "type", "charset", "html"])


def fields_of_ours(batch: pa.RecordBatch) -> list[tuple[object, ...]]:
    types = [json.loads(meta)["content_type"] for meta in batch["meta"].to_pylist()]
    id, url, date, charset, html = (batch[name].to_pylist() for name in ("id", "url", "date", "charset", "html"))
    return list(zip(id, url, date, types, charset, html, strict=True))


def fields_of_fastwarc(batch: pa.RecordBatch) -> list[tuple[object, ...]]:
    return [
        (id.strip("<>").removeprefix("urn:uuid:"), url, date, kind, charset, html)
        for id, url, date, kind, charset, html in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    ]


def check(path: Path) -> None:
    for mine, theirs in zip(rows(ours, path), rows(fastwarc, path), strict=True):
        if mine != theirs:
            raise SystemExit(f"{path}: ours and fastwarc differ\n{str(mine)[:500]}\n{str(theirs)[:500]}")


def pages_of(batches: Iterator[pa.RecordBatch]) -> int:
    return sum(len(batch) for batch in batches)


def of_ours(file: str) -> Work:
    return Work(lambda: pages_of(ours(Path(file))), pages_of(fastwarc(Path(file))), int)


def of_fastwarc(file: str) -> Work:
    return Work(lambda: pages_of(fastwarc(Path(file))), pages_of(fastwarc(Path(file))), int)


SIDES = {"ours": Side(of_ours, ("isal", *OF_OURS)), "fastwarc": Side(of_fastwarc, ("fastwarc",))}


def rows(batches: Callable[[Path], Iterator[pa.RecordBatch]], path: Path) -> Iterator[tuple[object, ...]]:
    fields = fields_of_ours if batches is ours else fields_of_fastwarc
    for batch in batches(path):
        yield from fields(batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE.warc.gz")
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.wheels:
        sys.path.append(str(arguments.wheels))
    for path in arguments.files:
        with tempfile.TemporaryDirectory() as folder:
            unpacked = Path(folder) / path.name.removesuffix(".gz")
            with gzip.open(path) as packed, unpacked.open("wb") as file:
                shutil.copyfileobj(packed, file)
            for what, where in (("gzipped", path.resolve()), ("plain", unpacked)):
                check(where)
                race(
                    f"WARC, {what}, {where.name}",
                    "pages",
                    SIDES,
                    {"file": str(where)},
                    arguments.rounds,
                    arguments.wheels,
                )


if __name__ == "__main__":
    main()
