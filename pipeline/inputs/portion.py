"""Parts of the inputs: how files are split and grouped, and how many of the parts a run takes.

Large files are split, small ones grouped. Groups end where the hash of a path says so, not by counting: one file more
changes the group it falls into and no other.

A run takes all of its inputs, at most so many documents of each source (`--limit`), or a share of its bytes
(`--sample`). What is taken depends on the inputs alone, never on the workers: parts are taken in the order of a hash,
which makes them a fair sample. How many documents a part has is known once it is read: a limit is shared over as many
parts as should hold enough, and parts that have fewer give what they have.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import cast

import xxhash

from gristmill.pipeline.errors import Mistakes, RunFailed
from gristmill.pipeline.inputs.files import find_files, not_in, open_stretch, with_contents
from gristmill.pipeline.recipe.recipe import Parts, Prices, Recipe, Source
from gristmill.pipeline.store.records import FileSpan
from gristmill.pipeline.store.run_records import FetchRecord
from gristmill.pipeline.store.storage import Store
from gristmill.stages.inputs import InputFile, InputFiles
from gristmill.stages.stage import Reader

SMALL_FILES = 64  # of a part, on average
FULL_WEIGHT = 64 << 10  # bytes; a smaller file counts for less, down to a sixteenth
LARGEST_PART, SMALLEST_PART = 8 << 20, 64 << 10  # bytes, of a run on a part of its inputs
FEWEST_PARTS = 16  # over which a limit is shared, if there are as many
LARGE_DOCUMENT = 64 << 10  # bytes: more parts are taken where these could not hold as many documents of that size
PIECES = 8  # of which a share of a source is made, where its files can be cut so small

Chosen = tuple[list[FileSpan], int | None]  # what a part reads, and how many documents of it at most


# --- splitting --------------------------------------------------------------------------------------------------------


def cut_into_parts(files: Sequence[InputFile], reader: Reader, parts: Parts, who: str) -> Iterator[list[FileSpan]]:
    """The spans of each part: a large file gives several, small files share one."""
    waiting: list[FileSpan] = []
    waiting_bytes = 0
    for file in files:
        if file.records and file.size > parts.max_bytes:
            from gristmill.pipeline.crawls.listing import cut_by_records  # with an HTTP client

            cuts = cut_by_records(file.records, parts.max_bytes)
            yield from ([FileSpan(file, start, end, size)] for start, end, size in cuts)
        elif file.size > parts.max_bytes:
            try:
                with open_stretch(reader, spans_of(file)[0]) as stream:
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


def spans_of(file: InputFile, spans: Sequence[tuple[int, int | None]] = ((0, None),)) -> list[FileSpan]:
    """The spans of a file with the bytes of each, in proportion where a format counts in something else than bytes."""
    whole = spans[-1][1] or file.size
    ends = [file.size * (whole if end is None else end) // max(1, whole) for _, end in spans]
    return [
        FileSpan(file, start, end, until - since)
        for (start, end), since, until in zip(spans, [0, *ends], ends, strict=False)
    ]


def key_of(source: str, spans: list[FileSpan]) -> str:
    """A name for a part that stays as long as it reads the same stretches: what a person recognises, then a hash."""
    facts = json.dumps([source, [[s.file.path, s.start, s.end] for s in spans]], ensure_ascii=True)
    stem = "".join(
        c if c.isascii() and c.isalnum() else "-" for c in PurePosixPath(spans[0].file.path).name.split(".")[0]
    )[:40]
    return f"{stem or 'part'}-{xxhash.xxh3_64_hexdigest(facts.encode())[:12]}"


def contents_of(spans: list[FileSpan]) -> list[tuple[str, str, str, int, int | None]]:
    """The spans as fingerprints know them. Which records of a file are read is told by its content."""
    return [
        (s.file.path, s.file.content, xxhash.xxh3_128_hexdigest(s.file.records.encode()), s.start, s.end) for s in spans
    ]


# --- how much a run takes ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Portion:
    """How much of the inputs to take: all of them, unless one is trying things out."""

    documents: int | None = None  # at most so many of each source
    share: float | None = None  # or about this share of its bytes

    @property
    def whole(self) -> bool:
        return self.documents is None and self.share is None

    def parts(self, parts: Parts, size: int) -> Parts:
        """How a source of `size` bytes is cut: small where a part of it is to be tried."""
        if self.whole:
            return parts
        piece = (
            LARGEST_PART
            if self.share is None
            else max(SMALLEST_PART, min(LARGEST_PART, int(self.share * size / PIECES)))
        )
        return parts.model_copy(update={"max_bytes": min(parts.max_bytes, piece), "files": 1})

    def of(self, source: Source, files: Sequence[InputFile], cut: list[list[FileSpan]]) -> Inputs:
        """The inputs of a source, of its files and how they are cut."""
        if self.whole:
            return Inputs(source, tuple(files), tuple((spans, None) for spans in cut))
        sizes = tuple(size_of(spans) for spans in cut)
        by_hash = sorted(cut, key=lambda spans: xxhash.xxh3_64_intdigest(key_of(source.name, spans).encode()))
        if self.documents is None:
            chosen = by_hash[: max(1, round((self.share or 1.0) * len(by_hash)))]
            return Inputs(source, tuple(files), tuple((spans, None) for spans in chosen), sizes=sizes)
        held = list(accumulate(size_of(spans) for spans in by_hash))
        enough = bisect_left(held, self.documents * LARGE_DOCUMENT) + 1
        few = by_hash[: min(self.documents, max(FEWEST_PARTS, enough))]
        each, more = divmod(self.documents, max(1, len(few)))
        limited = tuple((spans, each + (number < more)) for number, spans in enumerate(few))
        return Inputs(source, tuple(files), limited, sizes=sizes)


@dataclass(frozen=True)
class Inputs:
    """The files of a source, found once, how they are cut, and what is left of them."""

    source: Source
    files: tuple[InputFile, ...]
    parts: tuple[Chosen, ...]
    sizes: tuple[int, ...] = ()  # bytes of all parts, of a run on some of them
    passed_over: Mapping[str, int] = field(
        default_factory=dict
    )  # address -> size, of files in its folders that no source reads
    fetch: FetchRecord | None = None  # of a crawl that lies elsewhere

    @property
    def bytes(self) -> int:
        return sum(f.size for f in self.files)

    @property
    def read(self) -> list[InputFile]:
        """The files of which parts are taken."""
        return [*{span.file.path: span.file for spans, _ in self.parts for span in spans}.values()]

    def with_contents(self, store: Store, remember: bool = True, check: bool = False) -> Inputs:
        """What is taken, with the hashes of its contents. Of a large crawl of which little is tried, the rest need not
        be read for that."""
        unknown = [file for file in self.read if not file.content]
        if not unknown:
            return self
        hashed = {file.path: file for file in with_contents(unknown, store, self.source.name, remember, check)}
        parts = tuple(
            ([replace(span, file=hashed.get(span.file.path, span.file)) for span in spans], limit)
            for spans, limit in self.parts
        )
        return replace(self, parts=parts)


def listings_of(recipe: Recipe, store: Store) -> dict[str, InputFiles]:
    """The files of every source, found and not read; RecipeError names every path that leads nowhere."""
    mistakes, folder = Mistakes(), Path(recipe.path).resolve().parent
    listings: dict[str, InputFiles] = {}
    for source in recipe.sources:
        who = f"{recipe.path}:{source.reader.line}: sources.{source.name}"
        for listing in mistakes.noted(find_files, source, folder, who):
            for outside in mistakes.noted(not_in, store, listing, who):
                listings[source.name] = outside
    mistakes.say_all()
    return listings


def part_sizes(inputs: Mapping[str, Inputs]) -> dict[str, list[int]]:
    """Bytes of every part, by source."""
    return {name: [size_of(spans) for spans, _ in taken.parts] for name, taken in inputs.items()}


def size_of(spans: list[FileSpan]) -> int:
    return sum(span.bytes for span in spans)


def find_inputs(
    recipe: Recipe,
    store: Store,
    portion: Portion,
    remember: bool = True,
    check: bool = False,
    contents: bool = True,
) -> dict[str, Inputs]:
    """The inputs of every source; RecipeError where a path leads nowhere. `remember` False leaves the run's folder as
    it is; `check` hashes every file anew, `contents` False none."""
    listings = listings_of(recipe, store)
    read = {file.address for listing in listings.values() for file in listing.files}
    read.add(str(Path(recipe.path).resolve()))
    inputs = {}
    for source in recipe.sources:
        listing = listings[source.name]
        parts = portion.parts(recipe.head.parts, sum(file.size for file in listing.files))
        cut = list(cut_into_parts(listing.files, cast(Reader, source.reader.stage), parts, source.name))
        taken = portion.of(source, listing.files, cut)
        if contents:
            taken = taken.with_contents(store, remember, check)
        passed_over = {address: size for address, size in listing.passed_over.items() if address not in read}
        fetch = fetch_of(taken, listing, recipe.head.prices)
        inputs[source.name] = replace(taken, passed_over=passed_over, fetch=fetch)
    return inputs


def fetch_of(inputs: Inputs, listing: InputFiles, prices: Prices | None) -> FetchRecord | None:
    """What it takes to fetch the parts of a source that is elsewhere, and what that costs."""
    spans = [(span.file, span.start, span.end) for part, _ in inputs.parts for span in part]
    record = cast(FetchRecord | None, listing.fetch_plan(spans))
    if record is not None and prices is not None:
        gets, size = record["requests"] + record["listing_requests"], record["bytes"] + record["listing_bytes"]
        amount = prices.of_requests({"GET": gets}) + prices.of_bytes(size)
        record["cost"] = {"amount": round(amount, 6), "currency": prices.currency}
    return record
