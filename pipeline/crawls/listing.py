"""What a `cc` source reads: files of dumps, or records of them; and what fetching it takes."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from gristmill.kernels.base.types import Array
from gristmill.kernels.common.paths import located
from gristmill.pipeline.crawls.dumps import Dumps, chosen
from gristmill.pipeline.crawls.index import records_of, tables_of
from gristmill.pipeline.crawls.remote import folder_of, stretches_of
from gristmill.pipeline.crawls.spool import not_cached
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.store.run_records import FetchRecord
from gristmill.stages.read.cc import Cc

INDEX = "cc-index-table"
Records = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class CrawlFile:
    """One file of a dump. `size`: of what is read of it; `records`: where those are that are wanted, if not all are."""

    name: str
    size: int
    tag: str
    content: str  # of a file elsewhere; one of this machine is hashed like any other
    records: str = ""


@dataclass(frozen=True)
class Crawl:
    root: str
    files: list[CrawlFile]
    asked: tuple[int, int]  # requests and bytes that it took to learn this


def crawl_of(reader: Cc, folder: Path, who: str) -> Crawl:
    """The files that a source reads, in order of name; RecipeError, which begins with `who` asks, where there are
    none."""
    root = located(reader.root, folder)
    files: list[CrawlFile] = []
    with Dumps(reader, root, who) as dumps:
        for dump in reader.dumps:
            names = dumps.names(dump, "wet" if reader.kind == "wet" else "warc")
            wanted = chosen(names, reader.path, reader.sample)
            if not wanted:
                raise RecipeError(f"{who}: {dump} has {len(names):,} files in its list, and none matches {reader.path}")
            if reader.index is None:
                for name, facts in zip(wanted, dumps.facts(wanted), strict=True):
                    files.append(CrawlFile(name, facts.size, facts.tag, f"{facts.size}-{facts.tag}"))
                continue
            tables = tables_of(dumps.names(dump, INDEX))
            for name, places in records_of(dumps, tables, reader.index, wanted).items():
                digest = xxhash.xxh3_128_hexdigest(places.tobytes())
                files.append(CrawlFile(name, int(places[:, 1].sum()), "", digest, packed(places)))
        if not files:
            raise RecipeError(f"{who}: the index of {', '.join(reader.dumps)} knows no record that fits")
        asked = dumps.asked["requests"], dumps.asked["bytes"]
        return Crawl(root.rstrip("/"), sorted(files, key=lambda file: file.name), asked)


def packed(places: Array) -> str:
    """Where records begin and how long they are, as text that travels with a task."""
    steps = places.astype("<i8").copy()
    steps[1:, 0] -= places[:-1, 0]
    return base64.b85encode(zlib.compress(steps.T.tobytes(), 9)).decode()


def unpacked(records: str, start: int = 0, end: int | None = None) -> Records:
    """Those that begin from `start` on and before `end`."""
    steps = np.frombuffer(zlib.decompress(base64.b85decode(records)), "<i8").reshape(2, -1).copy()
    steps[0] = np.cumsum(steps[0])
    inside = (steps[0] >= start) & (steps[0] < (1 << 62 if end is None else end))
    return tuple(zip(steps[0][inside].tolist(), steps[1][inside].tolist(), strict=True))


def cut_by_records(records: str, target: int) -> list[tuple[int, int | None, int]]:
    """Stretches of about `target` bytes of records: where each begins and ends, and how many bytes it has."""
    cuts: list[tuple[int, int | None, int]] = []
    begun, size = 0, 0
    for start, length in unpacked(records):
        if size and size + length > target:
            cuts.append((begun, start, size))
            begun, size = start, 0
        size += length
    return [*cuts, (begun, None, size)]


Stretch = tuple[str, str, int, str, int, int | None]  # address, tag, size, records, start, end


def plan_of(reader: Cc, stretches: Iterable[Stretch], asked: tuple[int, int]) -> FetchRecord:
    """What is still to be fetched, less what the cache of this machine has. `asked`: requests and bytes so far."""
    requests = missing = whole = 0
    files = set()
    for address, tag, size, records, start, end in stretches:
        files.add(address)
        places = unpacked(records, start, end) if records else None
        wanted = stretches_of(size, start, end, places, reader.gap)
        left = not_cached(folder_of(reader) / "files", address, tag, wanted)
        whole += sum(stop - at for at, stop in wanted)
        requests += len(left)
        missing += sum(stop - at for at, stop in left)
    return {
        "root": reader.root,
        "files": len(files),
        "requests": requests,
        "bytes": missing,
        "cached_bytes": whole - missing,
        "gap": reader.gap if reader.index is not None else None,
        "listing_requests": asked[0],
        "listing_bytes": asked[1],
        "cost": None,
    }
