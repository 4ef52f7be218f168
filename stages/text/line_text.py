"""What stages that rewrite lines share: their phrases as a trie, and a batch with the text that a kernel wrote."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from gristmill.kernels.base.columns import TextColumn, text_array
from gristmill.kernels.base.types import Array
from gristmill.kernels.lines.phrases import Trie, lower, trie
from gristmill.stages.stage import Applied, Signals, Verdict, with_columns

Phrase = Annotated[str, Field(min_length=1)]
Phrases = tuple[Phrase, ...]


def trie_of(groups: Mapping[int, Phrases]) -> Trie:
    """A trie of groups of phrases, found letter by letter in any case; the key of a group is the bits that its phrases
    stand for."""
    return trie_of_pairs(tuple((lower(phrase), bits) for bits, phrases in groups.items() for phrase in phrases))


@lru_cache(maxsize=32)
def trie_of_pairs(pairs: tuple[tuple[str, int], ...]) -> Trie:
    merged: dict[str, int] = {}
    for phrase, bits in pairs:
        merged[phrase] = merged.get(phrase, 0) | bits
    return trie(merged)


def room_for(column: TextColumn) -> tuple[Array, Array]:
    """Bytes and offsets for a text that is no longer than that of the column."""
    return np.empty(int(column.offsets[-1] - column.offsets[0]), np.uint8), np.empty(len(column.offsets), np.int64)


def is_blank(text: pa.Array) -> pa.Array:
    """True of texts of no character but spaces and line breaks; false of nulls."""
    if pa.types.is_string_view(text.type):  # for which Arrow has neither function
        text = text.cast(pa.large_string())
    return pc.fill_null(pc.or_(pc.equal(pc.binary_length(text), 0), pc.utf8_is_space(text)), False)


def rewritten(batch: pa.RecordBatch, data: Array, offsets: Array, signals: Mapping[str, Array]) -> Applied:
    """The batch with new text, of which nulls stay null, and signals. A document of which nothing is left is dropped,
    with the text that it had."""
    given = Signals(batch).column("text")
    text = text_array(data, offsets, given)
    emptied = is_blank(text)
    if pc.any(emptied).as_py():
        emptied = pc.and_not(emptied, is_blank(given))
        text = pc.if_else(emptied, given.cast(pa.large_string()), text.cast(pa.large_string())).cast(text.type)
    return Applied(
        with_columns(batch, {"text": text, **{name: pa.array(values) for name, values in signals.items()}}),
        Verdict.keep(len(batch)).drop(emptied, "nothing_left"),
    )
