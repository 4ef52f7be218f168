"""Files of sites, by host and date, in a table that is built once a machine and mapped by all its workers.

Rows come from JSON lines (`.gz` and `.zst` too) or Parquet, a file or a folder of them: `url` of the file, or `host`
(a robots.txt then), `date` and `body` (or `text`, as the reader `site_files` gives it). Bodies that are equal are kept
once. Measured: 50,000 files in 1 s (benchmarks/text/opt_out.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np
import pyarrow.parquet as pq
import xxhash

from gristmill.kernels.base.code_cache import cache_folder
from gristmill.kernels.base.types import Array
from gristmill.kernels.urls.urls import address, punycode
from gristmill.stages.dedup.dates import moment
from gristmill.stages.mapped import mapped, publish
from gristmill.stages.rights.policies import LARGEST, PATHS, ROBOTS
from gristmill.stages.text.url_lists import lines_of

ENDINGS = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".ndjson", ".parquet")
HAS_HOST = re.compile(r"\s*(?:[A-Za-z][\w+.-]*:)?//")
NO_DATE = np.int64(np.iinfo(np.int64).min)
LATEST = int(np.iinfo(np.int64).max)


class SiteTable(NamedTuple):
    """Rows sorted by key (of host and kind) and date; row i's body is `bodies[starts[i]:ends[i]]`."""

    keys: Array
    dates: Array
    starts: Array
    ends: Array
    bodies: Array

    def body(self, key: int, date: int) -> bytes | None:
        """The file as it was at a moment: the last one up to then, or else the first one after."""
        first = int(np.searchsorted(self.keys, np.uint64(key)))
        if first == len(self.keys) or int(self.keys[first]) != key:
            return None
        last = int(np.searchsorted(self.keys, np.uint64(key), side="right"))
        row = max(first, first + int(np.searchsorted(self.dates[first:last], date, side="right")) - 1)
        return bytes(self.bodies[self.starts[row] : self.ends[row]])


def key_of(host: str, kind: int) -> int:
    return xxhash.xxh3_64_intdigest(f"{kind} {host}".encode("utf-8", "surrogateescape"))


def addressed(url: str) -> str:
    """An address of a page without a scheme, as one that has a host."""
    return url if HAS_HOST.match(url) else f"//{url}"


def host_of(url: str) -> str:
    """Host and port as robots.txt counts them: in lower case, without the usual ports; empty where there is none."""
    try:
        parts = urlsplit(addressed(url))
        port = parts.port
    except ValueError:
        return ""
    host = (parts.hostname or "").rstrip(".")
    host = address(host) or host if ":" in host else host if host.isascii() else punycode(host)
    return host if port in (None, 80, 443) or not host else f"{host}:{port}"


def site_table(paths: tuple[str, ...]) -> SiteTable:
    """The table of these files, out of the cache where it was built before. Files that changed are read again."""
    files = tuple(file for path in paths for file in files_of(path))
    return _as_stamped(tuple((str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files))


def files_of(path: str) -> list[Path]:
    place = Path(path)
    if not place.is_dir():
        return [place]
    return sorted(file for file in place.rglob("*") if file.name.endswith(ENDINGS) and file.is_file())


@lru_cache(maxsize=4)
def _as_stamped(stamped: tuple[tuple[str, int, int], ...]) -> SiteTable:
    digest = xxhash.xxh3_128(Path(__file__).read_bytes())
    for path, size, _ in stamped:
        digest.update(f"{Path(path).name} {size}\0".encode())
        with Path(path).open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    folder = cache_folder() / f"site-files-{digest.hexdigest()}"
    if not folder.is_dir():
        publish(folder, built(stamped_rows(stamped))._asdict())
    return SiteTable(*(mapped(folder, name) for name in SiteTable._fields))


def stamped_rows(stamped: tuple[tuple[str, int, int], ...]) -> Iterator[tuple[str, int, int, bytes]]:
    for path, _, _ in stamped:
        for number, row in rows_of(path):
            yield row_of(row, f"{path}: row {number:,}")


def rows_of(path: str) -> Iterator[tuple[int, dict[str, object]]]:
    if path.endswith(".parquet"):
        table = pq.ParquetFile(path)
        names = [name for name in ("url", "host", "date", "body", "text") if name in table.schema_arrow.names]
        number = 0
        for batch in table.iter_batches(columns=names):
            for row in batch.to_pylist():
                number += 1
                yield number, row
        return
    for number, line in enumerate(lines_of(path), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}: line {number:,} is no JSON") from error
            if not isinstance(row, dict):
                raise ValueError(f"{path}: line {number:,} is no object of host (or url), date and body")
            yield number, row


def row_of(row: dict[str, object], where: str) -> tuple[str, int, int, bytes]:
    """Host, kind, date and body of a row."""
    url, host = row.get("url"), row.get("host")
    body = row.get("body", row.get("text"))
    body = body.encode("utf-8", "replace") if isinstance(body, str) else body
    if not isinstance(body, bytes) or not isinstance(url or host, str):
        raise ValueError(f"{where} needs `url` or `host`, and `body`")
    kind: int | None = ROBOTS
    name = host_of(str(url or host))
    if url is not None:
        try:
            kind = PATHS.get(urlsplit(str(url)).path.lower())
        except ValueError:
            kind = None
        if kind is None:
            raise ValueError(f"{where}: {str(url)[:200]} is no file of a site; there are {', '.join(PATHS)}")
    date = row.get("date")
    read = moment(date if isinstance(date, str) else str(date)) if date is not None else None
    if date is not None and read is None:
        raise ValueError(f"{where}: {str(date)[:60]!r} is no date")
    return name, kind or ROBOTS, int(NO_DATE) if read is None else read, body[:LARGEST]


def built(rows: Iterator[tuple[str, int, int, bytes]]) -> SiteTable:
    """The table; of two files of one moment the one with the larger hash stays, whatever the order of rows."""
    place: dict[int, tuple[int, int]] = {}
    bodies: list[bytes] = []
    size = 0
    keys, dates, hashes = [], [], []
    for host, kind, date, body in rows:
        digest = xxhash.xxh3_64_intdigest(body)
        if digest not in place:
            place[digest] = (size, size + len(body))
            bodies.append(body)
            size += len(body)
        keys.append(key_of(host, kind))
        dates.append(date)
        hashes.append(digest)
    key, when, hashed = np.array(keys, np.uint64), np.array(dates, np.int64), np.array(hashes, np.uint64)
    order = np.lexsort((hashed, when, key))
    key, when, hashed = key[order], when[order], hashed[order]
    stays = np.ones(len(key), bool)
    stays[:-1] = (key[1:] != key[:-1]) | (when[1:] != when[:-1])
    spans = np.array([place[each] for each in hashed[stays].tolist()], np.int64).reshape(-1, 2)
    return SiteTable(key[stays], when[stays], spans[:, 0], spans[:, 1], np.frombuffer(b"".join(bodies), np.uint8))


def moments_of(dates: list[str | None]) -> list[int]:
    """The moment of each crawl; LATEST where nobody knows it."""
    read = {text: moment(text) for text in {date for date in dates if date}}
    return [LATEST if (found := read.get(date or "")) is None else found for date in dates]


__all__ = ["ENDINGS", "LATEST", "SiteTable", "addressed", "files_of", "host_of", "key_of", "moments_of", "site_table"]
