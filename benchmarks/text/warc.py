#!/usr/bin/env python3
"""How fast pages come out of gzipped WARC files, and out of the same files unpacked, into Arrow batches, beside fastwarc
doing the same work: one JSON line each.

    python -m benchmarks.text.warc FILE.warc.gz... [--times N]

Both sides find the records, check the checksums of gzip, parse the headers of HTTP answers, and make batches of 32 MB
with id, url, date, type, charset and payload of each page; no side checks digests of WARC. Before they are timed, their
tables are compared. Ours also counts the other records, gives uids, of which the cost is told too, and survives damage,
at which fastwarc stops. Time is that of the processor, on one core, in turns.
"""

import argparse
import gzip
import json
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
from fastwarc.warc import ArchiveIterator, WarcRecordType

from gristmill.stages.documents import BATCH_BYTES, uids_of
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


def seconds(batches: Callable[[Path], Iterator[pa.RecordBatch]], path: Path) -> float:
    start = time.process_time()
    for _ in batches(path):
        pass
    return time.process_time() - start


def seconds_of_uids(path: Path, pages: int) -> float:
    """Of as many uids as there are pages."""
    places = [f"{number * 5000}:0" for number in range(pages)]
    start = time.process_time()
    uids_of("s", path.name, places)
    return time.process_time() - start


def race(path: Path, what: str, times: int) -> dict[str, object]:
    pages, bytes_of_pages = 0, 0
    for mine, theirs in zip(rows(ours, path), rows(fastwarc, path), strict=True):
        if mine != theirs:
            raise SystemExit(f"{path}: ours and fastwarc differ\n{str(mine)[:500]}\n{str(theirs)[:500]}")
        pages, bytes_of_pages = pages + 1, bytes_of_pages + len(mine[-1])
    timed = [(seconds(ours, path), seconds(fastwarc, path), seconds_of_uids(path, pages)) for _ in range(times)]
    mine, theirs, uids = (list(values) for values in zip(*timed, strict=True))
    size = path.stat().st_size
    return {
        "what": f"pages from {what} to Arrow batches, MB of file a second, one core",
        "machine": processor(),
        "versions": {name: version(name) for name in ("isal", "numba", "pyarrow")},
        "sizes": {"bytes": size, "pages": pages, "bytes of pages": bytes_of_pages},
        "median": round(size / 1e6 / statistics.median(mine), 1),
        "spread": [round(size / 1e6 / max(mine), 1), round(size / 1e6 / min(mine), 1)],
        "pages a second": round(pages / statistics.median(mine)),
        "peer": {
            "name": f"fastwarc {version('fastwarc')}",
            "median": round(size / 1e6 / statistics.median(theirs), 1),
            "pages a second": round(pages / statistics.median(theirs)),
        },
        "ratio": round(statistics.median(b / a for a, b in zip(mine, theirs, strict=True)), 2),
        "share of uids": round(statistics.median(uids) / statistics.median(mine), 3),
    }


def rows(batches: Callable[[Path], Iterator[pa.RecordBatch]], path: Path) -> Iterator[tuple[object, ...]]:
    fields = fields_of_ours if batches is ours else fields_of_fastwarc
    for batch in batches(path):
        yield from fields(batch)


def processor() -> str:
    facts = dict(re.findall(r"(model name|cpu family|model)\s*: (.*)", Path("/proc/cpuinfo").read_text()))
    return f"{facts.get('model name')} (family {facts.get('cpu family')}, model {facts.get('model')})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE.warc.gz")
    parser.add_argument("--times", type=int, default=9)
    arguments = parser.parse_args()
    for path in arguments.files:
        print(json.dumps({"file": path.name, **race(path, "a gzipped WARC", arguments.times)}), flush=True)
        with tempfile.TemporaryDirectory() as folder:
            unpacked = Path(folder) / path.name.removesuffix(".gz")
            with gzip.open(path) as packed, unpacked.open("wb") as file:
                shutil.copyfileobj(packed, file)
            print(json.dumps({"file": unpacked.name, **race(unpacked, "a plain WARC", arguments.times)}), flush=True)


if __name__ == "__main__":
    main()
