"""How much of its inputs a run takes: all, some documents of each source (`--limit`), or a share of its bytes
(`--sample`).

What is taken hangs on the inputs alone, never on the workers. Parts are taken in the order of a hash, which makes them
a fair sample. How many documents a part has is known once it is read: where the first parts had too few, more are taken
(`Inputs.topped_up`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import xxhash

from gristmill.pipeline.crawls.listing import plan_of
from gristmill.pipeline.errors import Mistakes
from gristmill.pipeline.inputs.cutting import cut_into_parts, key_of
from gristmill.pipeline.inputs.estimate import Halves, halves_of
from gristmill.pipeline.inputs.files import InputFile, Listing, Span, find_files, not_in, with_contents
from gristmill.pipeline.recipe.recipe import Parts, Prices, Recipe, Source
from gristmill.pipeline.store.run_records import FetchRecord
from gristmill.pipeline.store.store import Store
from gristmill.stages.read.cc import Cc
from gristmill.stages.stage import Reader

LARGEST_PART, SMALLEST_PART = 8 << 20, 64 << 10  # bytes, of a run on a part of its inputs
FIRST_PARTS = 16  # from which documents are taken to begin with
PIECES = 8  # of which a share of a source is made, where its files can be cut so small

Chosen = tuple[list[Span], int | None]  # what a part reads, and how many documents of it at most


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

    def of(self, source: Source, files: list[InputFile], cut: list[list[Span]]) -> Inputs:
        """The inputs of a source, of its files and how they are cut."""
        if self.whole:
            return Inputs(source, tuple(files), tuple((spans, None) for spans in cut))
        halves = halves_of([size_of(spans) for spans in cut])
        by_hash = sorted(cut, key=lambda spans: xxhash.xxh3_64_intdigest(key_of(source.name, spans).encode()))
        if self.documents is None:
            chosen = by_hash[: max(1, round((self.share or 1.0) * len(by_hash)))]
            return Inputs(source, tuple(files), tuple((spans, None) for spans in chosen), halves=halves)
        few = min(FIRST_PARTS, self.documents, len(by_hash))
        return Inputs(
            source, tuple(files), tuple(shared_out(self.documents, by_hash[:few])), tuple(by_hash[few:]), halves=halves
        )


@dataclass(frozen=True)
class Inputs:
    """The files of a source, found once, how they are cut, and what is left of them."""

    source: Source
    files: tuple[InputFile, ...]
    parts: tuple[Chosen, ...]
    waiting: tuple[list[Span], ...] = ()  # parts to turn to where those have too few documents
    halves: Halves | None = None  # of all parts, of a run on some of them
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

    def topped_up(self, wanted: int | None, given: Mapping[str, int]) -> Inputs | None:
        """More parts, or more of some, where these have given fewer documents than are wanted; None where that is all.
        Those are never more than wanted: each part is asked for its share of what is missing."""
        missing = 0 if wanted is None else wanted - sum(given.values())
        if missing <= 0:
            return None
        if self.waiting:
            each = max(1, sum(given.values()) // max(1, len(given)))
            few = min(len(self.waiting), -(-missing // each))
            return replace(
                self, parts=(*self.parts, *shared_out(missing, self.waiting[:few])), waiting=self.waiting[few:]
            )
        parts: list[Chosen] = []
        for spans, limit in self.parts:  # the fewest that may have enough, for they are read again
            is_cut_off = limit is not None and given[key_of(self.source.name, spans)] >= limit
            more = min(missing, limit) if is_cut_off and limit is not None else 0
            parts.append((spans, None if limit is None else limit + more))
            missing -= more
        return replace(self, parts=tuple(parts)) if tuple(parts) != self.parts else None


def listings_of(recipe: Recipe, store: Store) -> dict[str, Listing]:
    """The files of every source, found and not read; RecipeError names every path that leads nowhere."""
    mistakes, folder = Mistakes(), Path(recipe.path).resolve().parent
    listings: dict[str, Listing] = {}
    for source in recipe.sources:
        who = f"{recipe.path}:{source.reader.line}: sources.{source.name}"
        for listing in mistakes.noted(find_files, source, folder, who):
            for outside in mistakes.noted(not_in, store, listing, who):
                listings[source.name] = outside
    mistakes.say_all()
    return listings


def listed_inputs(recipe: Recipe, store: Store) -> dict[str, Inputs]:
    """The inputs of the whole, by source, as they are listed and cut; no content is read."""
    inputs, listings = {}, listings_of(recipe, store)
    for source in recipe.sources:
        listing = listings[source.name]
        cut = cut_into_parts(listing.files, cast(Reader, source.reader.stage), recipe.head.parts, source.name)
        taken = Portion().of(source, listing.files, list(cut))
        inputs[source.name] = replace(taken, fetch=fetch_of(taken, listing, recipe.head.prices))
    return inputs


def part_sizes(inputs: Mapping[str, Inputs]) -> dict[str, list[int]]:
    """Bytes of every part, by source."""
    return {name: [size_of(spans) for spans, _ in taken.parts] for name, taken in inputs.items()}


def size_of(spans: list[Span]) -> int:
    return sum(span.bytes for span in spans)


def shared_out(documents: int, parts: tuple[list[Span], ...] | list[list[Span]]) -> list[Chosen]:
    """As many of each part; a part of which none would be read is not among them."""
    each, more = divmod(documents, max(1, len(parts)))
    return [(spans, each + (i < more)) for i, spans in enumerate(parts) if each + (i < more)]


def find_inputs(
    recipe: Recipe, store: Store, portion: Portion, remember: bool = True, check: bool = False
) -> dict[str, Inputs]:
    """The inputs of every source; RecipeError where a path leads nowhere. `remember` False leaves the run's folder as
    it is; `check` hashes every file anew."""
    path = Path(recipe.path).resolve()
    listings = listings_of(recipe, store)
    read = {file.address for listing in listings.values() for file in listing.files} | {str(path)}
    inputs = {}
    for source in recipe.sources:
        files = listings[source.name].files
        parts = portion.parts(recipe.head.parts, sum(file.size for file in files))
        cut = list(cut_into_parts(files, cast(Reader, source.reader.stage), parts, source.name))
        taken = portion.of(source, files, cut).with_contents(store, remember, check)
        passed_over = {
            address: size for address, size in listings[source.name].passed_over.items() if address not in read
        }
        fetch = fetch_of(taken, listings[source.name], recipe.head.prices)
        inputs[source.name] = replace(taken, passed_over=passed_over, fetch=fetch)
    return inputs


def fetch_of(inputs: Inputs, listing: Listing, prices: Prices | None) -> FetchRecord | None:
    """What it takes to fetch the parts of a crawl that lies elsewhere."""
    reader = inputs.source.reader.stage
    spans = [span for part, _ in inputs.parts for span in part if "://" in span.file.address]
    if not isinstance(reader, Cc) or not spans:
        return None
    stretches = ((s.file.address, s.file.stamp, s.file.size, s.file.records, s.start, s.end) for s in spans)
    record = plan_of(reader, stretches, listing.asked)
    if prices is not None:
        gets, size = record["requests"] + listing.asked[0], record["bytes"] + listing.asked[1]
        amount = prices.of_requests(0, gets) + prices.of_bytes(size)
        record["cost"] = {"amount": round(amount, 6), "currency": prices.currency}
    return record
