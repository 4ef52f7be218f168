"""Training sets for judges, by a recipe: trusted sources, random negatives from many corpora, marks that a language
model gave.

    read        each source's rows; of marked ones those within its marks; at most so many, drawn by hash
    copies      within a label and across labels, exact and near (classifiers/teaching/copies.py), of whole texts; then
      passages, equal ones again
    shares      each source has its share of its label's texts; the scarcest source says how many there are
    balance     each label has as many texts as the others, also in each language and each step of length, if asked
    held out    whole hosts (of texts without a url: works, then sources), on one side each

Every row that does not get in is counted, by source and reason. All draws are by hash of the seed and the text: another
order of rows or of tables gives the same set. docs/judge_training.md says what is known of published recipes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.classifiers.card import Json, JudgeError
from gristmill.classifiers.metrics import auc
from gristmill.classifiers.teaching.copies import (
    COPY,
    NEAR_COPY,
    NEARLY_UNDER_TWO,
    NO_LABEL,
    STAYS,
    UNDER_TWO,
    USUAL,
    Alike,
    fates,
)
from gristmill.classifiers.teaching.passages import passages, text_hashes
from gristmill.classifiers.teaching.seed_draws import cell_quotas, draw_places, share_quotas, smallest
from gristmill.classifiers.teaching.seed_groups import groups_of
from gristmill.classifiers.training_sets import held_out, labelled_texts
from gristmill.kernels.base.types import Array

FATES = {
    COPY: "copy",
    NEAR_COPY: "near_copy",
    UNDER_TWO: "under_two_labels",
    NEARLY_UNDER_TWO: "nearly_under_two_labels",
}
KEPT = ""
OWN_COLUMNS = ("text", "label", "source", "row", "group", "held_out")  # of the set


@dataclass(frozen=True)
class SeedSource:
    """Texts of one table that have one label. A table that a language model marked is two sources: its best and its
    worst."""

    table: str
    label: str
    share: float = 1.0  # of its label's texts, beside those of the other sources with this label
    at_least: float | None = None  # of the column `mark`, if one of these three is set: from here on,
    below: float | None = None  # less than this,
    named: tuple[str, ...] = ()  # one of these
    most: int | None = None  # rows that are looked at, drawn by hash

    def __post_init__(self) -> None:
        if not (math.isfinite(self.share) and self.share > 0):
            raise JudgeError(f"source {self.table}: a share of {self.share}; it lies above 0")
        if self.named and (self.at_least, self.below) != (None, None):
            raise JudgeError(f"source {self.table}: marks are numbers within bounds, or names; not both")
        if self.at_least is not None and self.below is not None and not self.at_least < self.below:
            raise JudgeError(f"source {self.table}: no mark is at least {self.at_least} and below {self.below}")

    @property
    def marked(self) -> bool:
        return bool(self.named) or (self.at_least, self.below) != (None, None)

    def __str__(self) -> str:
        conditions = [] if self.at_least is None else [f"mark >= {self.at_least:g}"]
        conditions += [] if self.below is None else [f"mark < {self.below:g}"]
        conditions += self.named
        return f"{self.table} as {self.label}" + (f" ({', '.join(conditions)})" if conditions else "")


@dataclass(frozen=True)
class SeedRecipe:
    sources: tuple[SeedSource, ...]
    texts: int | None = None  # at most so many in all
    balance: (
        tuple[str, ...] | None
    ) = ()  # labels are equally many, also for each value of these columns; None: as many as there are
    steps_of_length: int = 0  # to each doubling of characters, in which labels are equally many; 0: lengths as they are
    window: int | None = None  # characters of a passage; None: whole texts
    shortest: int = 1  # characters, once passages are cut
    alike: Alike = USUAL
    stays_under: str | None = None  # the label under which a text of two labels stays; None: it leaves both
    ungrouped: str = "source"  # the group of texts without url and work: their "source", or each "text" by itself
    held_out: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        labels = self.labels
        if len(labels) < 2:
            raise JudgeError(f"a training set has two labels or more, here {', '.join(labels) or 'none'}")
        if len(set(map(str, self.sources))) != len(self.sources):
            raise JudgeError("a source is there twice")
        if self.stays_under is not None and self.stays_under not in labels:
            raise JudgeError(f"stays_under: no source has the label {self.stays_under!r}")
        if self.ungrouped not in ("source", "text"):
            raise JudgeError(f"ungrouped is 'source' or 'text', not {self.ungrouped!r}")
        if self.steps_of_length and self.balance is None:
            raise JudgeError("lengths are matched among labels that are balanced: set balance=() too")
        if own := sorted({*(self.balance or ())} & {*OWN_COLUMNS}):
            raise JudgeError(f"balance: the set has a column {own[0]!r} of its own; give yours another name")
        if self.texts is not None and self.texts < len(labels):
            raise JudgeError(f"texts {self.texts:,}: fewer than the {len(labels)} labels")
        if self.steps_of_length < 0:
            raise JudgeError(f"steps_of_length {self.steps_of_length}: 0 or more")

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(source.label for source in self.sources))

    def as_json(self) -> Json:
        sources = [{"name": str(source), **asdict(source), "named": list(source.named)} for source in self.sources]
        return {**asdict(self), "balance": None if self.balance is None else list(self.balance), "sources": sources}


@dataclass(frozen=True)
class TrainingSet:
    """`table`: text, label, source, row (in its table), group, held_out, and the columns of the balance; in the order
    of a hash. `dropped`: source, row and reason of every other row."""

    table: pa.Table
    dropped: pa.Table
    report: Json


def training_set(tables: Mapping[str, pa.Table], recipe: SeedRecipe) -> TrainingSet:
    """Of tables with a column `text`; `url`, `work`, `mark` and the columns of the balance where there are such."""
    rows = _rows(tables, recipe)
    labels = recipe.labels
    label_N = np.array([labels.index(recipe.sources[i].label) for i in rows.source], np.int64)
    stays_under = NO_LABEL if recipe.stays_under is None else labels.index(recipe.stays_under)
    _drop_copies(rows, label_N, stays_under, recipe.alike)
    here = rows.kept
    if recipe.window is not None:
        rows.replace(here, passages(rows.texts.take(pa.array(here)), recipe.window, recipe.seed))
    length_N = pc.utf8_length(rows.texts).to_numpy(zero_copy_only=False)
    rows.drop(here[length_N[here] < recipe.shortest], "short")
    _drop_copies(rows, label_N, stays_under, Alike(None))  # passages, or lines, may be equal where whole texts were not
    before = _length_auc(label_N, length_N, rows.kept)
    limit = _draw_shares(rows, label_N, recipe)
    _draw_cells(rows, label_N, length_N, recipe)
    table = _table(rows, recipe)
    labelled = labelled_texts(table, group="group")
    groups = {
        label: len(
            {g for g, own in zip(table["group"].to_pylist(), table["label"].to_pylist(), strict=True) if own == label}
        )
        for label in labels
    }
    for label, count in groups.items():
        if count < 2 and recipe.held_out:
            raise JudgeError(
                f"label {label}: all its texts are of one group, and none can be held out; give a column url or work, "
                "or ungrouped='text'"
            )
    outside = held_out(labelled, recipe.held_out, recipe.seed) if recipe.held_out else np.zeros(len(labelled), np.bool_)
    table = table.append_column("held_out", pa.array(outside))
    report = {
        "recipe": recipe.as_json(),
        "fingerprint": labelled.fingerprint,
        "sources": _counts(rows, recipe),
        "labels": dict(Counter(table["label"].to_pylist())),
        "groups": groups,
        "held_out": dict(Counter(table["label"].filter(pa.array(outside)).to_pylist())),
        "scarcest": limit,
        "auc_of_length": {"before": before, "after": _length_auc(label_N, length_N, rows.kept)},
    }
    return TrainingSet(table, _dropped(rows, recipe), report)


class _Rows:
    """All rows of all sources in the order in which they are preferred, and why each is out (KEPT: it is not)."""

    def __init__(self, table: pa.Table, hashes: Array, reason: Array) -> None:
        order = np.lexsort((table["row"].to_numpy(), hashes, table["source"].to_numpy()))
        self.table = table.take(pa.array(order))
        self.texts: pa.Array = self.table["text"].combine_chunks()
        self.source: Array = self.table["source"].to_numpy()
        self.hashes, self.reason = hashes[order], reason[order]

    @property
    def kept(self) -> Array:
        return np.flatnonzero(self.reason == KEPT)

    def drop(self, rows: Array, reason: str) -> None:
        self.reason[rows] = reason

    def replace(self, rows: Array, texts: pa.Array) -> None:
        mask = np.zeros(len(self.texts), np.bool_)
        mask[rows] = True
        self.texts = pc.replace_with_mask(self.texts, pa.array(mask), texts)


def _rows(tables: Mapping[str, pa.Table], recipe: SeedRecipe) -> _Rows:
    parts, hashes, reasons = [], [], []
    for number, source in enumerate(recipe.sources):
        if source.table not in tables:
            raise JudgeError(
                f"source {source}: there is no table {source.table!r}; there are {', '.join(tables) or 'none'}"
            )
        table = tables[source.table]
        for column in ("text", *(["mark"] if source.marked else []), *(recipe.balance or ())):
            if column not in table.column_names:
                raise JudgeError(
                    f"source {source}: its table has no column {column!r}; it has {', '.join(table.column_names)}"
                )
        texts = table["text"].cast(pa.large_string()).fill_null("").combine_chunks()
        reason = np.full(len(table), KEPT, object)
        hash_N = text_hashes(texts, recipe.seed)
        reason[pc.equal(pc.utf8_trim_whitespace(texts), "").to_numpy(zero_copy_only=False)] = "empty"
        if source.marked:
            reason[(reason == KEPT) & ~_within_marks(table["mark"], source)] = "mark"
        if source.most is not None:
            some = np.flatnonzero(reason == KEPT)
            reason[np.delete(some, smallest(hash_N[some], source.most))] = "not_drawn"
        columns = {
            "text": texts,
            "source": pa.array(np.full(len(table), number, np.int64)),
            "row": pa.array(np.arange(len(table))),
            "group": groups_of(table, hash_N, source.table, recipe.ungrouped),
        }
        columns |= {name: table[name].cast(pa.large_string()).fill_null("") for name in recipe.balance or ()}
        parts.append(pa.table(columns))
        hashes.append(hash_N)
        reasons.append(reason)
    return _Rows(pa.concat_tables(parts), np.concatenate(hashes), np.concatenate(reasons))


def _within_marks(marks: pa.ChunkedArray, source: SeedSource) -> Array:
    """A text without a mark is in no source that asks for one."""
    if pa.types.is_dictionary(marks.type):
        marks = marks.cast(marks.type.value_type)
    numbers = pa.types.is_floating(marks.type) or pa.types.is_integer(marks.type) or pa.types.is_decimal(marks.type)
    if numbers == bool(source.named):
        wanted = "names" if source.named else "numbers within bounds"
        raise JudgeError(f"source {source}: asks for {wanted}, and the column mark is of type {marks.type}")
    if source.named:
        return np.asarray(
            pc.is_in(marks.cast(pa.large_string()), value_set=pa.array(source.named, pa.large_string())).to_numpy()
        )
    values = marks.cast(pa.float64()).fill_null(math.nan).to_numpy()
    low, high = (
        end if given is None else given for given, end in ((source.at_least, -math.inf), (source.below, math.inf))
    )
    return np.asarray((values >= low) & (values < high))


def _drop_copies(rows: _Rows, label_N: Array, stays_under: int, alike: Alike) -> None:
    here = rows.kept
    fate = fates(rows.texts.take(pa.array(here)), label_N[here], stays_under, alike)
    for number in np.unique(fate[fate != STAYS]):
        rows.drop(here[fate == number], FATES[int(number)])


def _draw_shares(rows: _Rows, label_N: Array, recipe: SeedRecipe) -> dict[str, str]:
    """Of each source so many that the shares hold; returns by label the source that is scarcest for its share."""
    scarcest = {}
    for number, label in enumerate(recipe.labels):
        sources_of_label = [i for i, source in enumerate(recipe.sources) if source.label == label]
        here = [rows.kept[rows.source[rows.kept] == i] for i in sources_of_label]
        for i, some in zip(sources_of_label, here, strict=True):
            if not len(some):
                reasons = Counter(rows.reason[rows.source == i].tolist())
                reasons_text = (
                    ", ".join(f"{count:,} {reason}" for reason, count in sorted(reasons.items())) or "it has no rows"
                )
                raise JudgeError(f"source {recipe.sources[i]}: no text of it is left ({reasons_text})")
        counts, shares = (
            np.array([len(some) for some in here]),
            np.array([recipe.sources[i].share for i in sources_of_label]),
        )
        for some, quota in zip(here, share_quotas(counts, shares), strict=True):
            rows.drop(np.delete(some, smallest(rows.hashes[some], int(quota))), "beyond_share")
        scarcest[recipe.labels[number]] = str(recipe.sources[sources_of_label[int(np.argmin(counts / shares))]])
    return scarcest


def _draw_cells(rows: _Rows, label_N: Array, length_N: Array, recipe: SeedRecipe) -> None:
    here = rows.kept
    columns = [rows.table[name].to_numpy()[here] for name in recipe.balance or ()]
    if recipe.steps_of_length:
        columns.append(np.floor(recipe.steps_of_length * np.log2(np.maximum(length_N[here], 1))).astype(np.int64))
    cell = np.zeros(len(here), np.int64)
    for column in columns:
        _, code = np.unique(column, return_inverse=True)
        _, cell = np.unique(np.stack([cell, code.reshape(-1)]), axis=1, return_inverse=True)
        cell = cell.reshape(-1)
    cells, labels = int(cell.max(initial=0)) + 1, len(recipe.labels)
    place = cell * labels + label_N[here]
    counts_CL = np.bincount(place, minlength=cells * labels).reshape(cells, labels)
    matched_CL = (
        counts_CL if recipe.balance is None else np.repeat(counts_CL.min(axis=1, keepdims=True), labels, axis=1)
    )
    for wanted_CL, reason in ((matched_CL, "unmatched"), (cell_quotas(matched_CL, recipe.texts), "beyond_texts")):
        leaves = ~draw_places(place, rows.source[here], rows.hashes[here], wanted_CL.reshape(-1))
        rows.drop(here[leaves], reason)
        here, place = here[~leaves], place[~leaves]
    if not len(here):
        raise JudgeError(
            "labels have no language and no length in common: balance fewer columns, or take wider steps of length"
        )


def _table(rows: _Rows, recipe: SeedRecipe) -> pa.Table:
    here = rows.kept
    here = here[np.lexsort((here, rows.hashes[here]))]
    names = [str(source) for source in recipe.sources]
    labels = [source.label for source in recipe.sources]
    chosen = rows.table.take(pa.array(here))
    columns = {
        "text": rows.texts.take(pa.array(here)),
        "label": pa.array([labels[i] for i in rows.source[here]], pa.string()),
        "source": pa.array([names[i] for i in rows.source[here]], pa.string()),
        "row": chosen["row"],
        "group": chosen["group"],
    }
    return pa.table(columns | {name: chosen[name] for name in recipe.balance or ()})


def _dropped(rows: _Rows, recipe: SeedRecipe) -> pa.Table:
    out = np.flatnonzero(rows.reason != KEPT)
    names = [str(source) for source in recipe.sources]
    columns = {
        "source": pa.array([names[i] for i in rows.source[out]], pa.string()),
        "row": rows.table["row"].take(pa.array(out)),
        "reason": pa.array(rows.reason[out].tolist(), pa.string()),
    }
    return pa.table(columns)


def _counts(rows: _Rows, recipe: SeedRecipe) -> Json:
    counts = {}
    for i, source in enumerate(recipe.sources):
        reasons = Counter(rows.reason[rows.source == i].tolist())
        kept = reasons.pop(KEPT, 0)
        counts[str(source)] = {
            "rows": int((rows.source == i).sum()),
            "kept": kept,
            "dropped": dict(sorted(reasons.items())),
        }
    return counts


def _length_auc(label_N: Array, length_N: Array, here: Array) -> list[float | None]:
    """Of the length alone, of each label against the others: 0.5 says nothing, 0 and 1 say all."""
    figures = [auc(label_N[here] == label, length_N[here]) for label in range(int(label_N.max(initial=0)) + 1)]
    return [value if math.isfinite(value) else None for value in figures]
