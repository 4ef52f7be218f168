"""Text that was met before, in one pass over a Bloom filter: the meaning of DCLM's BFF (Li et al. 2024, appendix;
Groeneveld's filter).

Parts hash their n-grams side by side; one task then walks documents in order of uid past the filter, so that neither
workers nor the order of files matter, and each part removes what is its own. Texts never leave their part: what travels
is 8 bytes an n-gram. Unlike BFF a document that goes leaves nothing in the filter: what it alone had brought is still
new when it comes again, so that a copy always stays. Figures: benchmarks/dedup/bloom.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from gristmill.kernels.base.columns import TextColumn, text_array, text_column
from gristmill.kernels.base.types import Array
from gristmill.kernels.common.settings import PLACEMENT, Bytes
from gristmill.kernels.duplicates.bloom import MOST_BLOCKS, FilterShape, empty_filter, shape_for, walk
from gristmill.kernels.duplicates.paragraphs import Units, grams_of_units, lines, whole_texts, without_units
from gristmill.stages.dedup.slices import slices
from gristmill.stages.flow import Dataset, Flow
from gristmill.stages.stage import CannotRun, Global

BYTES_A_ROW = 64  # of text for which a row is counted, so that a bucket is no more than about 32 MB of text

NEVER = 2.0  # a share that nothing exceeds


class Walked(NamedTuple):
    """The filter of a shard and how many probes it has."""

    words: Array
    probes: int


class BloomDedup(Global):
    """Remove lines, and documents, most of whose n-grams were met before.

    Documents come in order of uid. A line goes if more than `threshold` of its n-grams stand in what stayed before it;
    n-grams of a line that stays become known once the whole line was judged. A document goes if more than `threshold`
    of the n-grams of all its lines were known when their line came, but only if these lines hold `judged_share` of its
    words: BFF lets one known line take along a poem or a program whose lines are all too short to be judged. A line of
    fewer words than `ngram` is one n-gram, of fewer than `min_ngram` it always stays and is never known. Words are
    those of all deduplication here; BFF counts punctuation as words and minds case. The filter errs with a chance of
    `false_positives` for each n-gram at the end of the walk: it takes a new one for known, never a known one for new.
    So a line of `ngram` words, which is one n-gram, may go by mistake with that chance, one of a word more with its
    square; longer ones hardly ever. Documents in which n-grams were known get `bloom_lines`, the lines removed, and
    `bloom_share`, the share of known n-grams.
    """

    remove: Annotated[
        Literal["both", "lines", "documents"],
        Field(
            description=(
                "lines and documents as BFF's old-both does; lines alone; or documents, whose n-grams then "
                "cross line ends"
            )
        ),
    ] = "both"
    ngram: Annotated[int, Field(description="words in an n-gram", ge=1, le=64)] = 13
    min_ngram: Annotated[int, Field(description="words of the shortest text that is judged", ge=1, le=64)] = 13
    threshold: Annotated[float, Field(description="what goes has a larger share of known n-grams", ge=0, le=1)] = 0.8
    judged_share: Annotated[
        float,
        Field(
            description=(
                "a document goes as a whole only if lines long enough to be judged hold this share of its "
                "words; 0 is BFF"
            ),
            ge=0,
            le=1,
        ),
    ] = 0.5
    false_positives: Annotated[float, Field(description="the filter's error, for each n-gram", ge=1e-6, le=0.5)] = 0.01
    seed: Annotated[int, Field(description="of the hash", ge=0)] = 0
    shards: Annotated[
        int,
        Field(
            description="split documents by uid into so many (a power of two), each with a filter of its own",
            ge=1,
            le=1 << 16,
        ),
    ] = 1
    memory: Annotated[
        Bytes,
        Field(
            description="the largest filter, in bytes; more is an error that says what to do",
            ge=1 << 10,
            json_schema_extra=PLACEMENT,
        ),
    ] = 4 << 30

    columns: ClassVar[tuple[str, ...]] = ("uid", "text")
    signal_types: ClassVar[Mapping[str, pa.DataType]] = {
        "bloom_lines": pa.int64(),
        "bloom_share": pa.float64(),
    }
    rewrites: ClassVar[bool] = True
    expect_drops: ClassVar[float] = 0.9

    @model_validator(mode="after")
    def _settings_fit(self) -> Self:
        if self.min_ngram > self.ngram:
            raise ValueError(
                f"min_ngram {self.min_ngram} is above ngram {self.ngram}: texts between them would be "
                "neither judged nor n-grams"
            )
        if self.shards & (self.shards - 1):
            raise ValueError(f"{self.shards} shards: give a power of two")
        return self

    def run(self, docs: Dataset, flow: Flow) -> Dataset:
        fan = max(1, docs.text_bytes // BYTES_A_ROW // max(1, docs.rows))
        grams = flow.map(self.sign, docs, columns=self.columns, by="place", fan=fan)
        walked = flow.scan(self.walk, grams)
        return flow.rewrite(self.cut, walked, docs, columns=self.columns)

    def units(self, column: TextColumn) -> Units:
        return whole_texts(column) if self.remove == "documents" else lines(column)

    def places(self, uid: Array) -> Array:
        """Where documents stand in the walk: a shard after the other, in each by uid. The lowest bits of the uid say
        which shard."""
        bits = self.shards.bit_length() - 1
        return uid if bits == 0 else uid >> np.uint64(bits) | uid << np.uint64(64 - bits)

    def sign(self, docs: pa.Table) -> pa.Table:
        """A row for each document that has n-grams: those of its units one after another, where each unit's end, and
        which units these are. Before them, at the place where each shard begins, a row that says how many there are."""
        batches = [self.signed(batch) for batch in slices(docs)]
        counts = np.zeros(self.shards, np.int64)
        for table in batches:
            each = np.diff(table["grams"].combine_chunks().offsets.to_numpy()) if len(table) else np.zeros(0, np.int64)
            np.add.at(counts, (table["uid"].to_numpy() & np.uint64(self.shards - 1)).astype(np.int64), each)
        shards = np.flatnonzero(counts).astype(np.uint64)
        heads = pa.table({"place": self.places(shards), "uid": shards, "expected": counts[counts > 0]})
        return pa.concat_tables([heads, *batches], promote_options="default") if len(shards) else batches[0]

    def signed(self, docs: pa.Table) -> pa.Table:
        column = text_column(docs["text"])
        units = self.units(column)
        grams, first, words = grams_of_units(column, units, self.ngram, self.min_ngram, self.seed)
        judged = np.flatnonzero(np.diff(first))
        ends, ordinal = first[judged + 1], judged - units.first[np.searchsorted(units.first, judged, side="right") - 1]
        unit_first = np.searchsorted(judged, units.first)
        has = np.flatnonzero(np.diff(unit_first))
        begin = first[units.first[has]]  # of each document's n-grams
        unit_first = unit_first[np.append(has, len(units.first) - 1)]
        uid = docs["uid"].to_numpy()[has]
        within = ends - np.repeat(begin, np.diff(unit_first))
        rows = {
            "place": self.places(uid),
            "uid": uid,
            "expected": pa.nulls(len(has), pa.int64()),
            "whole": pa.array(self.judged(words, first, units)[has]),
            "grams": _lists(np.append(begin, first[-1]), grams),
            "ends": _lists(unit_first, within),
            "units": _lists(unit_first, ordinal),
        }
        return pa.table(rows)

    def judged(self, words: Array, first: Array, units: Units) -> Array:
        """Of each document: do its units with n-grams hold enough of its words?"""
        all_words = np.append(0, np.cumsum(words))[units.first]
        in_judged = np.append(0, np.cumsum(words * (np.diff(first) > 0)))[units.first]
        enough: Array = np.diff(in_judged) >= self.judged_share * np.diff(all_words)
        return enough

    def walk(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """All documents past the filter of their shard: those with known n-grams, and which of their units go."""
        filters: dict[int, Walked] = {}
        for table in tables:
            shard_of = (table["uid"].to_numpy() & np.uint64(self.shards - 1)).astype(np.int64)
            for shard in np.unique(shard_of).tolist():
                rows = table.filter(pa.array(shard_of == shard)) if self.shards > 1 else table
                heads = pc.is_valid(rows["expected"])
                if shard not in filters:
                    filters = {
                        shard: self.filter_for(pc.sum(rows["expected"]).as_py())
                    }  # the shard before has been walked
                yield from self.walk_rows(filters[shard], rows.filter(pc.invert(heads)))

    def filter_for(self, keys: int) -> Walked:
        shape = shape_for(keys, self.false_positives)
        if shape.bytes > self.memory or shape.blocks > MOST_BLOCKS:
            raise CannotRun(self.too_large(keys, shape))
        return Walked(empty_filter(shape), shape.probes)

    def too_large(self, keys: int, shape: FilterShape) -> str:
        of = " of a shard" if self.shards > 1 else ""
        shards = self.shards
        while shape.bytes * self.shards > self.memory * shards:
            shards *= 2
        return (
            f"a filter for the {keys:,} n-grams{of} that errs in {self.false_positives:g} takes "
            f"{shape.bytes / 1e6:,.1f} MB, and "
            f"memory allows {self.memory / 1e6:,.1f} MB. Raise memory to {shape.bytes:,} bytes, or split "
            f"the documents with shards: {shards * 2} "
            "(repeats across shards then stay), or let the filter err more often with false_positives"
        )

    def walk_rows(self, walked: Walked, rows: pa.Table) -> Iterator[pa.Table]:
        rows = rows.combine_chunks()
        if not len(rows):
            return
        grams, first = _flat(rows["grams"])
        ends, unit_first = _flat(rows["ends"])
        ordinal, _ = _flat(rows["units"])
        unit_grams = np.append(0, ends + np.repeat(first[:-1], np.diff(unit_first)))
        whole = rows["whole"].to_numpy() if self.remove != "lines" else np.zeros(len(rows), bool)
        most_of_document = np.where(whole, self.threshold, NEVER)
        result = walk(walked.words, walked.probes, grams, unit_grams, unit_first, self.threshold, most_of_document)
        has = np.flatnonzero(result.met)
        gone = np.append(0, np.cumsum(result.unit_goes))[unit_first]
        gone_first = np.append(0, np.cumsum(np.diff(gone)[has]))
        chosen = result.unit_goes & np.repeat(result.met > 0, np.diff(unit_first))
        columns = {
            "home": rows["home"].take(pa.array(has)),
            "uid": rows["uid"].take(pa.array(has)),
            "units": _lists(gone_first, ordinal[chosen]),
            "goes": result.document_goes[has],
            "known": result.met[has],
            "grams": result.keys[has],
        }
        yield pa.table(columns)

    def cut(self, rows: pa.Table, docs: pa.Table) -> pa.Table:
        """The documents of a part without what rows name."""
        rows = rows.take(pc.sort_indices(rows["uid"])).combine_chunks()
        return pa.concat_tables([self.cut_from(rows, batch) for batch in slices(docs)])

    def cut_from(self, rows: pa.Table, docs: pa.Table) -> pa.Table:
        text, uid = docs["text"].combine_chunks(), docs["uid"].to_numpy()
        named = rows["uid"].to_numpy()
        row = np.minimum(np.searchsorted(named, uid), len(named) - 1)
        has = named[row] == uid
        chosen = rows.take(pa.array(row[has])).combine_chunks()
        column = text_column(text)
        units = self.units(column)
        ordinal, first = _flat(chosen["units"])
        goes = np.zeros(len(units.starts), bool)
        removed = np.zeros(len(docs), np.int64)
        removed[has] = np.diff(first)
        goes[ordinal + np.repeat(units.first[:-1][has], np.diff(first))] = True
        if self.remove == "documents":
            goes[:] = False
        data, offsets = without_units(column, units, goes)
        drops, empty = np.zeros(len(docs), bool), (np.diff(offsets) == 0) & (removed > 0)
        drops[has] = chosen["goes"].to_numpy()
        met, grams = np.zeros(len(docs), np.int64), np.ones(len(docs), np.int64)
        met[has], grams[has] = chosen["known"].to_numpy(), chosen["grams"].to_numpy()
        details: list[str | None] = [None] * len(docs)
        for document in np.flatnonzero(drops | empty).tolist():
            details[document] = f"{met[document]:,} of {grams[document]:,} n-grams met before"
        reason = pc.if_else(pa.array(empty), pa.scalar("all_repeated"), pa.scalar(None, pa.string()))
        columns = {
            "uid": docs["uid"],
            "text": text_array(data, offsets, text).cast(text.type),
            "reason": pc.if_else(pa.array(drops), pa.scalar("repeated_document"), reason),
            "detail": pa.array(details, pa.string()),
            "bloom_lines": removed if self.remove != "documents" else np.zeros(len(docs), np.int64),
            "bloom_share": met / grams,
        }
        return pa.table(columns)


def _lists(first: Array, values: Array) -> pa.Array:
    return pa.LargeListArray.from_arrays(pa.array(first.astype(np.int64)), pa.array(values))


def _flat(column: pa.ChunkedArray) -> tuple[Array, Array]:
    """The values of all lists, and where each list begins."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # of no chunks
        return np.zeros(0, np.int64), np.zeros(1, np.int64)
    first = array.offsets.to_numpy()
    return array.values.to_numpy()[first[0] : first[-1]], first - first[0]
