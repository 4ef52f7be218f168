"""Stretches of input files, opened for the reader that reads them; one of a crawl elsewhere is fetched as it is
read."""

from __future__ import annotations

from typing import Any, BinaryIO, cast

from gristmill.pipeline.crawls.listing import unpacked
from gristmill.pipeline.crawls.remote import Place, RemoteFile, stretches_of
from gristmill.pipeline.crawls.wires import tag_of
from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.inputs.files import open_input
from gristmill.pipeline.store.records import FileStretch, PagesFile
from gristmill.stages.documents import Origin
from gristmill.stages.read.cc import Cc
from gristmill.stages.stage import Reader

S3 = ("s3://", "s3a://")


def origin_of(source: str, stretch: FileStretch | PagesFile, end: int | None = None) -> Origin:
    """What a reader is told of a stretch of a file, which may be read up to an earlier end."""
    start, end = stretch["start"], stretch["end"] if end is None else end
    records = unpacked(stretch["records"], start, end) if "records" in stretch else None
    return Origin(source, stretch["path"], stretch["size"], start, end, records)


def open_stretch(reader: Reader, stretch: FileStretch | PagesFile, end: int | None = None) -> BinaryIO:
    """The file of a stretch, opened for this reader."""
    address, origin = stretch["address"], origin_of("", stretch, end)
    if not isinstance(reader, Cc) or "://" not in address:
        return open_listed(address, stretch.get("stamp", "")) if address.startswith(S3) else open_input(address)
    root = address.removesuffix(f"/{origin.path}")
    wanted = stretches_of(origin.size, origin.start, origin.end, origin.records, reader.gap)
    size = origin.size if origin.records is None else None
    return cast(BinaryIO, RemoteFile(reader, Place(root, origin.path, stretch.get("stamp", "")), wanted, size))


def open_listed(address: str, tag: str) -> BinaryIO:
    """Open an object on s3:// in the version that was listed; RunFailed if it was replaced."""
    for _ in range(2):
        file: Any = open_input(address)
        if tag_of(file.details) == tag:
            return cast(BinaryIO, file)
        file.close()
        file.fs.invalidate_cache()  # this process may remember an older one
    raise RunFailed(f"{address}: the object was replaced since it was listed; run the same command again")
