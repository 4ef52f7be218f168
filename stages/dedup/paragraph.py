"""Paragraphs that stand in several documents: found exactly by 128 bits of hash, the first copies kept, the others cut
out.

As CCNet (Wenzek et al. 2020) did, but over all data and not shard by shard, and with a copy that stays. A first round
sends 20 bytes a paragraph (a hash, how often, where from); all that follows is only about those that repeat, and of one
that stands a million times each part sends no more than `copies`. Figures: benchmarks/dedup/bloom.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from gristmill.kernels.base.columns import TextColumn, text_array, text_column
from gristmill.kernels.base.types import Array
from gristmill.kernels.duplicates.paragraphs import (
    UnitHashes,
    Units,
    hashes_of_units,
    lines,
    paragraphs,
    without_units,
)
from gristmill.stages.dedup.policy import SurvivorPolicy
from gristmill.stages.dedup.slices import slices
from gristmill.stages.dedup.sorted_rows import begins_run
from gristmill.stages.flow import Dataset, Flow

BYTES_A_UNIT = 200  # of text, about; says how finely rows are cut


class ParagraphDedup(SurvivorPolicy):
    """Remove paragraphs that stand in the data more than once; a copy stays, in the document that the policy prefers.

    Two are the same if their words are, numbers included; case, punctuation and white space do not matter. Of the
    copies those stay that are in the document first by `prefer`, then by uid, and in a document the first. Documents of
    parts in which something repeats get `repeated_paragraphs`, how many were removed, and `repeated_share`, their share
    of the text's bytes; one of which too little is left is dropped.
    """

    unit: Annotated[
        Literal["line", "paragraph"],
        Field(description="what is compared: lines, as CCNet and DCLM have it, or what blank lines divide"),
    ] = "line"
    min_words: Annotated[
        int,
        Field(
            description="a unit of fewer words is never a duplicate: short ones are headings, list items and answers "
            "(DCLM lost 12 points of "
            "MMLU when it went from 13 to 5)",
            ge=1,
        ),
    ] = 13
    copies: Annotated[int, Field(description="how many copies of each stay", ge=1, le=1 << 30)] = 1
    min_left: Annotated[
        int, Field(description="a document that lost something and has fewer words left is dropped", ge=1)
    ] = 13

    signal_types: ClassVar[Mapping[str, pa.DataType]] = {
        "repeated_paragraphs": pa.int64(),
        "repeated_share": pa.float64(),
    }
    rewrites: ClassVar[bool] = True
    expect_drops: ClassVar[float] = 0.9

    @model_validator(mode="after")
    def _last_copies_stay(self) -> Self:
        if self.min_left > self.min_words:
            raise ValueError(
                f"min_left {self.min_left} is above min_words {self.min_words}: a document with the copy "
                "that stays could go"
            )
        return self

    def run(self, docs: Dataset, flow: Flow) -> Dataset:
        fan = max(1, docs.text_bytes // BYTES_A_UNIT // max(1, docs.rows))
        units = flow.map(
            self.sign, docs, columns=("uid", "text"), by="key", fan=fan
        )  # a hash for each unit, once a batch
        repeated = flow.reduce(self.repeated, units)  # hashes that are met too often, sent home
        candidates = flow.join(
            self.candidates, repeated, docs, columns=self.read, by="key"
        )  # the best copies of each part
        fates = flow.reduce(self.judge, candidates)  # which of them stay, sent home
        return flow.rewrite(self.remove, fates, docs, columns=("uid", "text"))

    def units(self, column: TextColumn) -> tuple[Units, UnitHashes]:
        units = lines(column) if self.unit == "line" else paragraphs(column)
        return units, hashes_of_units(column, units)

    def sign(self, docs: pa.Table) -> pa.Table:
        """The first half of each unit's hash, and how often it is here."""
        keys = [
            hashes.high[hashes.words >= self.min_words]
            for _, hashes in (self.units(text_column(b["text"])) for b in slices(docs))
        ]
        key, times = np.unique(np.concatenate(keys), return_counts=True)
        return pa.table({"key": key, "times": np.minimum(times, self.copies + 1).astype(np.uint32)})

    def repeated(self, rows: pa.Table) -> pa.Table:
        """Of hashes whose like is all here: those of more units than stay, once for each part that has them."""
        key, home = rows["key"].to_numpy(), rows["home"].to_numpy()
        order = np.lexsort((home, key))
        key, home, times = key[order], home[order], rows["times"].to_numpy()[order].astype(np.int64)
        first = np.flatnonzero(begins_run(key))
        often = np.add.reduceat(times, first) > self.copies
        chosen = np.repeat(often, np.diff(np.append(first, len(key)))) & begins_run(key, home)
        return pa.table({"home": home[chosen], "key": key[chosen]})

    def candidates(self, rows: pa.Table, docs: pa.Table) -> pa.Table:
        """Of the units of a part that may repeat: the first of their like, no more than can stay."""
        wanted = np.unique(rows["key"].to_numpy())
        units_of_batches, before = [], 0
        for batch in slices(docs):
            units, hashes = self.units(text_column(batch["text"]))
            places = np.flatnonzero((hashes.words >= self.min_words) & np.isin(hashes.high, wanted))
            document = np.searchsorted(units.first, places, side="right") - 1
            units_of_batches.append(
                (hashes.high[places], hashes.low[places], document + before, places - units.first[document])
            )
            before += len(batch)
        key, low, document, place = (np.concatenate(values) for values in zip(*units_of_batches, strict=True))
        standing = pa.table({"uid": docs["uid"], **self.policy_columns(docs)}).take(pa.array(document))
        grouped = groups(
            pa.table(
                {
                    "key": key,
                    "low": low,
                    "place": place,
                    **dict(zip(standing.column_names, standing.columns, strict=True)),
                }
            ),
            self.sorting(),
        )
        return grouped.rows.filter(pa.array(grouped.place < self.copies))

    def sorting(self) -> list[tuple[str, str]]:
        return [*self.survivor_sort_keys(), ("place", "ascending")]

    def judge(self, rows: pa.Table) -> pa.Table:
        """Of candidates whose like is all here: which stay. Those that do not are told too: their part removes all
        units that have the hash of a candidate and are not told to stay."""
        grouped = groups(rows, self.sorting())
        return grouped.rows.select(["home", "key", "uid", "place"]).append_column(
            "stays", pa.array(grouped.place < self.copies)
        )

    def remove(self, rows: pa.Table, docs: pa.Table) -> pa.Table:
        """The documents of a part without the units that rows name, but for those that stay."""
        return pa.concat_tables([self.remove_from(rows, batch) for batch in slices(docs)])

    def remove_from(self, rows: pa.Table, docs: pa.Table) -> pa.Table:
        text = docs["text"].combine_chunks()
        column = text_column(text)
        units, hashes = self.units(column)
        places = np.flatnonzero((hashes.words >= self.min_words) & np.isin(hashes.high, rows["key"].to_numpy()))
        document = np.searchsorted(units.first, places, side="right") - 1
        staying = rows.filter(rows["stays"])
        uid = docs["uid"].to_numpy()
        goes = np.zeros(len(units.starts), bool)
        goes[
            places[
                ~_pairs_in(
                    uid[document],
                    places - units.first[document],
                    staying["uid"].to_numpy(),
                    staying["place"].to_numpy(),
                )
            ]
        ] = True
        removed = _sums(goes, units.first)
        words_left = _sums(hashes.words * ~goes, units.first)
        size = pc.fill_null(pc.binary_length(text), 0).to_numpy(zero_copy_only=False)
        cut = _sums((units.ends - units.starts) * goes, units.first)
        drops = (removed > 0) & (words_left < self.min_left)
        details: list[str | None] = [None] * len(docs)
        for row in np.flatnonzero(drops).tolist():
            details[row] = (
                f"{removed[row]:,} of {units.first[row + 1] - units.first[row]:,} {self.unit}s stand "
                f"elsewhere too; {words_left[row]:,} words left"
            )
        columns = {
            "uid": docs["uid"],
            "text": text_array(*without_units(column, units, goes), text).cast(text.type),
            "reason": pc.if_else(pa.array(drops), pa.scalar("all_repeated"), pa.scalar(None, pa.string())),
            "detail": pa.array(details, pa.string()),
            "repeated_paragraphs": removed,
            "repeated_share": cut / np.maximum(size, 1),
        }
        return pa.table(columns)


class Groups(NamedTuple):
    """Rows sorted by key and then by the policy, and the place of each in its group."""

    rows: pa.Table
    place: Array


def groups(rows: pa.Table, order: Sequence[tuple[str, str]]) -> Groups:
    """`rows` have `key` and `low`, the halves of 128 bits, and what `order` sorts by."""
    rows = rows.take(pc.sort_indices(rows, sort_keys=[("key", "ascending"), ("low", "ascending"), *order]))
    begins = begins_run(rows["key"].to_numpy(), rows["low"].to_numpy())
    group = np.cumsum(begins) - 1
    return Groups(rows, np.arange(len(rows)) - np.flatnonzero(begins)[group])


def _pairs_in(a: Array, b: Array, wanted_a: Array, wanted_b: Array) -> Array:
    """Which of the pairs (a, b) are among those wanted."""
    asked = np.concatenate([np.zeros(len(wanted_a), bool), np.ones(len(a), bool)])
    a, b = np.concatenate([wanted_a, a]), np.concatenate([wanted_b, b])
    order = np.lexsort((asked, b, a))
    first = np.flatnonzero(begins_run(a[order], b[order]))
    is_wanted = np.empty(len(order), bool)
    is_wanted[order] = np.repeat(~asked[order[first]], np.diff(np.append(first, len(order))))
    asked_for: Array = is_wanted[len(wanted_a) :]
    return asked_for


def _sums(values: Array, first: Array) -> Array:
    """Of the units of each document."""
    running = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
    sums: Array = running[first[1:]] - running[first[:-1]]
    return sums
