"""Labelled texts: from a table, with a fingerprint, and cut by group (the host of a page, the book of a passage) into
training and held-out.

Texts of one host look alike: a figure measured on hosts that were trained on is worth little. So whole groups are held
out, chosen by a hash of their name and the seed: a group keeps its side when others come or go, and where no group is
named equal texts are one.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import xxhash

from gristmill.classifiers.card import Head, Json, JudgeError
from gristmill.kernels.base.columns import text_column
from gristmill.kernels.base.types import Array


@dataclass(frozen=True)
class LabelledTexts:
    """Texts with a label each (or a number, for a regression), a weight each, and the group that each belongs to."""

    texts: pa.Array
    labels: pa.Array
    weights: Array | None = None
    groups: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def numbers(self, head: Head) -> Array:
        """int64_N: which of the head's labels each text has; every label of the head has a text, and every text one of
        them."""
        places = {label: i for i, label in enumerate(head.labels)}
        counts = Counter(self.labels.to_pylist())
        for label in counts:
            if label not in places:
                raise JudgeError(
                    f"{counts[label]:,} texts have the label {label!r}; head {head.name} has {', '.join(head.labels)}"
                )
        for label in head.labels:
            if label not in counts:
                raise JudgeError(f"no text has the label {label!r} of head {head.name}")
        return np.array([places[label] for label in self.labels.to_pylist()], np.int64)

    def take(self, mask: Array) -> LabelledTexts:
        rows = pa.array(np.flatnonzero(mask))
        return LabelledTexts(
            self.texts.take(rows),
            self.labels.take(rows),
            None if self.weights is None else self.weights[mask],
            None if self.groups is None else self.groups.take(rows),
        )

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all texts, labels and weights, in their order."""
        digest = hashlib.sha256(str(len(self)).encode())
        for column in (self.texts, self.labels.cast(pa.large_string())):
            data, offsets = text_column(column)
            digest.update(np.diff(offsets).tobytes())
            digest.update(data[offsets[0] : offsets[-1]].data)
        digest.update(b"" if self.weights is None else self.weights.tobytes())
        return digest.hexdigest()

    def as_json(self) -> Json:
        labels = sorted(Counter(self.labels.to_pylist()).items())
        named = pa.types.is_string(self.labels.type)
        return {
            "fingerprint": self.fingerprint,
            "texts": len(self),
            **({"labels": dict(labels)} if named else {"lowest": labels[0][0], "highest": labels[-1][0]}),
            "groups": None if self.groups is None else len(self.groups.unique()),
        }


def labelled_texts(
    table: pa.Table, text: str = "text", label: str = "label", weight: str | None = None, group: str | None = None
) -> LabelledTexts:
    """The columns of a table, checked. Labels are texts (whole numbers count as their digits), or floats for a
    regression."""
    for name in (text, label, weight, group):
        if name is not None and name not in table.column_names:
            raise JudgeError(f"the table has no column {name!r}; it has {', '.join(table.column_names)}")
    if not table.num_rows:
        raise JudgeError("the table has no rows")
    labels = _single_array(table[label])
    if labels.null_count:
        raise JudgeError(f"{labels.null_count:,} rows have no label")
    if pa.types.is_dictionary(labels.type):
        labels = labels.dictionary_decode()
    kind = labels.type
    if pa.types.is_floating(kind):
        labels = labels.cast(pa.float64())
        if not np.isfinite(labels.to_numpy(zero_copy_only=False)).all():
            raise JudgeError(f"column {label!r} has values that are no finite numbers")
    elif (
        pa.types.is_integer(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
    ):
        labels = labels.cast(pa.string())
    else:
        raise JudgeError(f"column {label!r} is of type {kind}; labels are texts or numbers")
    weights = None if weight is None else _single_array(table[weight]).cast(pa.float64()).to_numpy(zero_copy_only=False)
    if weights is not None and not (np.isfinite(weights).all() and (weights > 0).all()):
        raise JudgeError(f"column {weight!r} has weights that are not above 0")
    groups = None if group is None else _single_array(table[group]).cast(pa.string())
    if groups is not None and groups.null_count:
        raise JudgeError(f"{groups.null_count:,} rows have no {group}")
    return LabelledTexts(_single_array(table[text]).cast(pa.large_string()).fill_null(""), labels, weights, groups)


def balanced_weights(labelled: LabelledTexts) -> Array:
    """Weights by which all labels weigh alike, 1 in the mean; those that texts have count within a label."""
    given = np.ones(len(labelled)) if labelled.weights is None else labelled.weights
    labels, place = np.unique(labelled.labels.to_numpy(zero_copy_only=False), return_inverse=True)
    return np.asarray(given * (len(labelled) / len(labels) / np.bincount(place, given))[place])


def repeated(labelled: LabelledTexts) -> LabelledTexts:
    """Texts of rarer labels several times, so that each label has about as many as the commonest: for students without
    weights."""
    _, place, counts = np.unique(
        labelled.labels.to_numpy(zero_copy_only=False), return_inverse=True, return_counts=True
    )
    rows = pa.array(np.repeat(np.arange(len(labelled)), np.rint(counts.max() / counts).astype(np.int64)[place]))
    groups = None if labelled.groups is None else labelled.groups.take(rows)
    return LabelledTexts(labelled.texts.take(rows), labelled.labels.take(rows), None, groups)


def folds_of(labelled: LabelledTexts, folds: int, seed: int = 0) -> Array:
    """int64_N: the fold of each text, the same for all texts of a group. Groups are dealt out in the order of their
    hash, those of each label (the one that most of their texts have) by themselves, so that every fold has its share;
    one group more may move others."""
    groups, places, commonest = _groups(labelled, seed)
    fold_of_group = np.empty(len(places), np.int64)
    fold_of_group[np.lexsort((places, commonest))] = np.arange(len(places)) % folds
    return np.asarray(fold_of_group[groups])


def held_out(labelled: LabelledTexts, share: float, seed: int = 0) -> Array:
    """bool_N: the texts of groups that are held out: those whose hash is below the share, so about so many of them. Of
    the groups of a label (the one that most of their texts have) at least one is on each side, where there are two."""
    if not 0 < share < 1:
        raise JudgeError(f"a share of {share} cannot be held out: it lies between 0 and 1")
    groups, places, commonest = _groups(labelled, seed)
    outside = places < share
    for label in np.unique(commonest):
        here = np.flatnonzero(commonest == label)
        if len(here) > 1:
            outside[here[np.argmin(places[here])]] = True
            outside[here[np.argmax(places[here])]] = False
    return np.asarray(outside[groups])


def _groups(labelled: LabelledTexts, seed: int) -> tuple[Array, Array, Array]:
    """The number of each text's group; for each group a hash of its name in [0, 1), and its commonest label. Where
    there are no groups a text is its own name."""
    names = (labelled.groups if labelled.groups is not None else labelled.texts).dictionary_encode()
    places = [
        (xxhash.xxh3_64_intdigest(name.encode(), seed % (1 << 64)) >> 11) / 2.0**53
        for name in names.dictionary.to_pylist()
    ]
    groups = names.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    labels = labelled.labels.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    pairs, counts = np.unique(np.stack([groups, labels]), axis=1, return_counts=True)
    rising = np.argsort(counts, kind="stable")
    commonest = np.zeros(len(places), np.int64)
    commonest[pairs[0, rising]] = pairs[1, rising]  # of several writes the last one stays
    return groups, np.array(places, np.float64), commonest


def _single_array(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # too large for one array of its type
        array = pa.chunked_array([chunk.cast(pa.large_string()) for chunk in array.chunks]).combine_chunks()
    return array
