"""Parts of a source: large files are split, small ones grouped.

Groups are cut where the hash of a path says so, not by counting: one file more changes the group it falls into and no
other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import TypedDict

import xxhash

from gristmill.pipeline.crawls.listing import cut_by_records
from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.inputs.files import InputFile, Span
from gristmill.pipeline.inputs.opened import open_stretch
from gristmill.pipeline.recipe.recipe import Parts
from gristmill.stages.stage import Reader

SMALL_FILES = 64  # of a part, on average
FULL_WEIGHT = 64 << 10  # bytes; a smaller file counts for less, down to a sixteenth


class FileContent(TypedDict):
    """A stretch of a file as fingerprints know it. Which records of it are read is told by its content."""

    path: str
    content: str
    start: int
    end: int | None


def cut_into_parts(files: list[InputFile], reader: Reader, parts: Parts, who: str) -> Iterator[list[Span]]:
    """The spans of each part: a large file gives several, small files share one."""
    waiting: list[Span] = []
    waiting_bytes = 0
    for file in files:
        if file.records and file.size > parts.max_bytes:
            cuts = cut_by_records(file.records, parts.max_bytes)
            yield from ([Span(file, start, end, size)] for start, end, size in cuts)
        elif file.size > parts.max_bytes:
            try:
                stretch = spans_of(file)[0].plain()
                with open_stretch(reader, stretch) as stream:
                    spans = reader.spans(stream, file.path, file.size, parts.max_bytes)
            except OSError as error:
                raise RunFailed(f"sources.{who}: {file.address} cannot be read: {error.strerror or error}") from error
            yield from ([span] for span in spans_of(file, spans))
        elif file.size >= parts.small_file or parts.files == 1:
            yield spans_of(file)
        else:
            if waiting and waiting_bytes + file.size > parts.max_bytes:
                yield waiting
                waiting, waiting_bytes = [], 0
            waiting += spans_of(file)
            waiting_bytes += file.size
            if ends_group(file, parts.files):
                yield waiting
                waiting, waiting_bytes = [], 0
    if waiting:
        yield waiting


def ends_group(file: InputFile, files: int | None) -> bool:
    """Whether a part of small files ends after this one. `files` None: a tiny file counts for less, because a part
    costs as much as a hundred of them."""
    draw = xxhash.xxh3_64_intdigest(file.path.encode("utf-8", "surrogateescape"))
    if files is not None:
        return draw % files == 0
    sixteenths = min(16, max(1, 16 * file.size // FULL_WEIGHT))
    return draw % (16 * SMALL_FILES) < sixteenths


def spans_of(file: InputFile, spans: Sequence[tuple[int, int | None]] = ((0, None),)) -> list[Span]:
    """The spans of a file with the bytes of each, in proportion where a format counts in something else than bytes."""
    whole = spans[-1][1] or file.size
    ends = [file.size * (whole if end is None else end) // max(1, whole) for _, end in spans]
    return [
        Span(file, start, end, until - since)
        for (start, end), since, until in zip(spans, [0, *ends], ends, strict=False)
    ]


def key_of(source: str, spans: list[Span]) -> str:
    """A name for a part that stays as long as it reads the same stretches: what a person recognises, then a hash."""
    facts = json.dumps([source, [[s.file.path, s.start, s.end] for s in spans]], ensure_ascii=True)
    stem = "".join(
        c if c.isascii() and c.isalnum() else "-" for c in PurePosixPath(spans[0].file.path).name.split(".")[0]
    )[:40]
    return f"{stem or 'part'}-{xxhash.xxh3_64_hexdigest(facts.encode())[:12]}"


def contents_of(spans: list[Span]) -> list[FileContent]:
    return [
        {
            "path": s.file.path,
            "content": f"{s.file.content} {xxhash.xxh3_128_hexdigest(s.file.records.encode())}"
            if s.file.records
            else s.file.content,
            "start": s.start,
            "end": s.end,
        }
        for s in spans
    ]
