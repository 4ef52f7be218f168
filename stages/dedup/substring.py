"""Runs of text that stand twice: found exactly over the whole data set, one occurrence kept, the others cut out (Lee et
al. 2022).

Documents are not brought together: what may stand twice is. A round over hashes of a few n-grams says which stretches
deserve a look (no repeat escapes it, see kernels/duplicates/anchors.py); a suffix array over these stretches of a
partition of 16 MB of text finds what stands twice in it; windows that are the first of their like in their partition
meet those of all others by 128 bits of hash. So nothing is missed at any scale, how documents lie in parts and
partitions does not matter, and a text that stands a million times is a row a partition and not a row a document. More
in docs/repeats.md; figures in benchmarks/dedup/substring.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from gristmill.kernels.base.columns import text_array, text_column
from gristmill.kernels.base.types import Array
from gristmill.kernels.duplicates.anchors import anchors, stretches, twice_at_most
from gristmill.kernels.duplicates.seams import mended
from gristmill.kernels.duplicates.suffix import merged, met_twice, repeats
from gristmill.kernels.words.tokens import token_column
from gristmill.stages.dedup.slices import slices
from gristmill.stages.dedup.sorted_rows import begins_run
from gristmill.stages.flow import Dataset, Flow
from gristmill.stages.stage import Global

# of text to a row of the largest round, where a fifth of all tokens may be repeats; says how finely rows are cut
BYTES_A_ROW = 25


class SubstringDedup(Global):
    """Cut out every run of 50 tokens or more that stands a second time, anywhere in the data set; the first occurrence
    stays.

    Tokens are words as all deduplication here counts them: case, punctuation and white space do not matter. First is
    what stands in the document of the smallest uid, there the earliest. Documents that lose something get
    `repeated_tokens`, the number of tokens cut out; one of which too little is left is dropped.
    """

    tokens: Annotated[
        int, Field(description="the shortest run that counts as a repeat, in tokens", ge=4, le=10_000)
    ] = 50
    keep: Annotated[
        Literal["first", "none"], Field(description="what stays of a repeated run: its first occurrence, or nothing")
    ] = "first"
    min_left: Annotated[
        int, Field(description="a document that lost something and has fewer tokens left goes", ge=0)
    ] = 5

    columns: ClassVar[tuple[str, ...]] = ("uid", "text")
    signal_types: ClassVar[Mapping[str, pa.DataType]] = {
        "repeated_tokens": pa.int64(),
    }
    expect_drops: ClassVar[float] = 0.9
    rewrites: ClassVar[bool] = True

    @model_validator(mode="after")
    def _first_occurrences_stay(self) -> Self:
        if self.keep == "first" and self.min_left > self.tokens:
            raise ValueError(
                f"min_left {self.min_left} is above tokens {self.tokens}: a document with the occurrence "
                "that stays could go"
            )
        return self

    def run(self, docs: Dataset, flow: Flow) -> Dataset:
        fan = max(1, docs.text_bytes // BYTES_A_ROW // max(1, docs.rows))
        chosen = flow.map(self.choose, docs, columns=self.columns, by="key", fan=fan)  # n-grams of each document
        shared = flow.reduce(self.shared, chosen)  # those that are met twice, sent home
        # windows that are the first of a partition, by their hash: as many as an anchor is apart from the next
        windows = flow.join(self.compare, shared, docs, columns=self.columns, by="key", fan=self.tokens / 2, uids="uid")
        repeated = flow.reduce(self.judge, windows)  # spans of tokens, sent home
        return flow.rewrite(self.cut, repeated, docs, columns=self.columns)

    def choose(self, docs: pa.Table) -> pa.Table:
        """A row for each n-gram that is the anchor of a window, two at most for each in a document."""
        tables = []
        for batch in slices(docs):
            keys, first = twice_at_most(anchors(token_column(text_column(batch["text"])), self.tokens))
            tables.append(pa.table({"key": keys, "uid": np.repeat(batch["uid"].to_numpy(), np.diff(first))}))
        return pa.concat_tables(tables)

    def shared(self, rows: pa.Table) -> pa.Table:
        """Of n-grams whose like is all here: those that there are two of, a row for each document that has them."""
        key, uid = rows["key"].to_numpy(), rows["uid"].to_numpy()
        order = np.flatnonzero(met_twice(key))
        order = order[np.lexsort((uid[order], key[order]))]
        order = order[in_groups(key[order])]
        order = order[begins_run(key[order], uid[order])]
        return pa.table({"home": rows["home"].take(pa.array(order)), "uid": uid[order], "key": key[order]})

    def compare(self, rows: pa.Table, docs: pa.Table) -> pa.Table:
        """What stands twice in a partition of this part, as spans to remove; and, for all other partitions, a row for
        each window that is the first of its like in this one, by its hash. A row is a span if it has an `end`; a window
        is as long as all windows."""
        shared = np.unique(rows["key"].to_numpy())
        documents = docs.select(["uid", "text"]).sort_by("uid")
        return pa.concat_tables([self.compare_partition(shared, partition) for partition in slices(documents)])

    def compare_partition(self, shared: Array, docs: pa.Table) -> pa.Table:
        tokens, uid = token_column(text_column(docs["text"])), docs["uid"].to_numpy()
        given = stretches(tokens, anchors(tokens, self.tokens), shared, self.tokens)
        del tokens  # the largest of all
        repeated = repeats(given, self.tokens, self.keep == "first")
        documents, begins, ends = merged(given, repeated.removed, self.tokens)
        of_windows = uid[given.documents[repeated.leads]]
        columns = {
            "key": np.concatenate([uid[documents], repeated.high]),
            "low": np.concatenate([np.zeros(len(documents), np.uint64), repeated.low]),
            "uid": np.concatenate([uid[documents], of_windows]),
            "start": np.concatenate([begins, given.places[repeated.leads]]),
            "end": np.concatenate([ends, np.zeros(len(of_windows), np.int32)]),
        }
        return pa.table(columns)

    def judge(self, rows: pa.Table) -> pa.Table:
        """Of windows whose like is all here: those to remove. Spans pass."""
        start, end = rows["start"].to_numpy(), rows["end"].to_numpy()
        windows = np.flatnonzero(end == 0)
        key, low, uid = (rows[name].to_numpy()[windows] for name in ("key", "low", "uid"))
        order = np.flatnonzero(met_twice(key))
        order = order[np.lexsort((uid[order], low[order], key[order]))]
        lost = in_groups(key[order], low[order]) if self.keep == "none" else ~begins_run(key[order], low[order])
        chosen = np.concatenate([np.flatnonzero(end > 0), windows[order[lost]]])
        ends = np.where(end > 0, end, start + self.tokens)[chosen]
        kept = rows.select(["home", "uid"]).take(pa.array(chosen))
        return kept.append_column("start", pa.array(start[chosen])).append_column("end", pa.array(ends))

    def cut(self, rows: pa.Table, docs: pa.Table) -> pa.Table:
        """The documents of a part without the spans that rows name."""
        spans = united(*(rows[name].to_numpy() for name in ("uid", "start", "end")))
        return pa.concat_tables([self.cut_batch(*spans, batch) for batch in slices(docs)])

    def cut_batch(self, span_uid: Array, begins: Array, ends: Array, docs: pa.Table) -> pa.Table:
        uid, text = docs["uid"].to_numpy(), docs["text"].combine_chunks()
        loses = np.isin(uid, span_uid)
        affected = np.flatnonzero(loses)
        low = np.searchsorted(span_uid, uid[affected], side="left")
        sizes = np.searchsorted(span_uid, uid[affected], side="right") - low
        documents = np.repeat(np.arange(len(affected)), sizes)
        spans = np.arange(len(documents)) + np.repeat(low - np.cumsum(sizes) + sizes, sizes)
        given = text.take(pa.array(affected))
        column = text_column(given)
        tokens = token_column(column)
        changed = text_array(*mended(column, tokens, (documents, begins[spans], ends[spans])), given)
        removed = np.zeros(len(affected), np.int64)
        np.add.at(removed, documents, ends[spans] - begins[spans])
        had = np.diff(tokens.first)
        goes = had - removed < self.min_left
        details = [
            f"{r:,} of {h:,} tokens stand elsewhere too" if g else None
            for r, h, g in zip(removed, had, goes, strict=True)
        ]
        place = np.full(len(docs), -1, np.int64)
        place[affected] = np.arange(len(affected))
        index = pa.array(place, mask=~loses)
        gone = pc.fill_null(pa.array(goes).take(index), False)
        columns = {
            "uid": docs["uid"],
            "text": pc.if_else(pa.array(loses), changed.take(index), text),
            "reason": pc.if_else(gone, "mostly_repeated", pa.scalar(None, pa.string())),
            "detail": pa.array(details, pa.string()).take(index),
            "repeated_tokens": pa.array(removed).take(index),
        }
        return pa.table(columns)


def in_groups(*columns: Array) -> Array:
    """Of sorted columns: is there another row like it?"""
    again = ~begins_run(*columns)
    again[:-1] |= again[1:]
    return again


def united(uid: Array, begins: Array, ends: Array) -> tuple[Array, Array, Array]:
    """Spans in order of uid and place; those that overlap or touch are one."""
    order = np.lexsort((begins, uid))
    uid, begins, ends = uid[order], begins[order], ends[order]
    new = begins_run(uid)
    if len(uid):
        line = np.cumsum(new) * (int(ends.max()) + 2)  # documents one after another on one line, none touching the next
        reach = np.maximum.accumulate(line + ends)
        new[1:] |= (line + begins)[1:] > reach[:-1]
        last = np.append(np.flatnonzero(new)[1:], len(uid)) - 1
        return uid[new], begins[new], reach[last] - line[last]
    return uid, begins, ends
