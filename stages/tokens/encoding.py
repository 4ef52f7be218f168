"""Texts to token ids: by kernels of our own where the tokenizer is one that they know (byte_level.py), else by the
package, on Rust's threads.

The package takes about 100 bytes of memory for each byte of a text, 1 GB for 10 MB. So a long text is cut for it, but
only where the tokenizer itself splits: before a space, a line end or a comma of CJK between two letters, at a place
where it makes the same pieces of what lies on both sides, apart and together. Ids are those of the whole text
(tests/stages/tokens/test_tokenize.py). Where it never splits (SentencePiece models without a pre-tokenizer) texts stay
whole.

How many threads the package takes is for the environment to say (TOKENIZERS_PARALLELISM, RAYON_NUM_THREADS), and
changes no id. Kernels take one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.base.types import Array
from gristmill.stages.tokens.byte_level import ByteLevel, Unfit
from gristmill.stages.tokens.vocabulary import dtype_of, size_of, tokenizer_from

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PIECE = 1 << 17  # characters; longer texts are cut
AT_ONCE = 1 << 20  # characters handed over together
WINDOW = 200  # characters on each side of a cut that are looked at
TRIES = 32  # places looked at before the piece grows by another PIECE
_PLACE = re.compile(r"[^\W\d_](?=[ \n，。、][^\W\d_])")
_ACROSS = re.compile(r"[^\W\d_][ \n，。、]")


class Encoded(NamedTuple):
    """Text i has ids[offsets[i]:offsets[i + 1]]; `special` marks those in which special tokens were left."""

    ids: Array
    offsets: Array
    special: Array


class TextEncoder:
    """A tokenizer at work. Special tokens are for the caller to add: one that stands in a text is encoded as the text
    it is."""

    def __init__(self, tokenizer_text: str) -> None:
        self.tokenizer = tokenizer_from(tokenizer_text, "tokenizer")
        self.size = size_of(self.tokenizer)
        self.dtype = dtype_of(self.size)
        self.literals, self.is_special = _specials(self.tokenizer, tokenizer_text, self.size)
        self.cuts = _may_cut(self.tokenizer)
        self.kernels: ByteLevel | None = None
        self.by = "kernels"
        try:
            self.kernels = ByteLevel(self.tokenizer)
        except Unfit as reason:
            self.by = f"tokenizers ({reason})"

    def encode(self, texts: pa.ChunkedArray) -> Encoded:
        """A null is an empty text."""
        texts = pc.fill_null(texts.cast(pa.large_string()), "")
        if self.kernels is None:
            return self.by_package(texts.to_pylist())
        column = text_column(texts)
        able = self.kernels.can(texts, column)
        ids, ends = self.kernels.encode(column, able)
        if self.is_special[self.kernels.yields].any():
            able &= ~_any_in(self.is_special[ids], ends)
        done = Encoded(ids.astype(self.dtype, copy=False), ends, np.zeros(len(able), bool))
        if able.all():
            return done
        return _woven(done, self.by_package(texts.filter(pa.array(~able)).to_pylist()), able)

    def by_package(self, texts: list[str]) -> Encoded:
        pieces: list[str] = []
        count = np.zeros(len(texts), np.int64)
        for i, text in enumerate(texts):
            parts = list(self.pieces(text))
            count[i] = len(parts)
            pieces += parts
        ids, lengths = self._encoded(pieces)
        ends = np.concatenate([[0], np.cumsum(lengths)])[np.concatenate([[0], np.cumsum(count)])]
        hit = self.is_special[ids]
        if not hit.any():
            return Encoded(ids, ends, np.zeros(len(texts), bool))
        return self._without_specials(texts, Encoded(ids, ends, _any_in(hit, ends)))

    def pieces(self, text: str) -> Iterator[str]:
        """The text, cut where that changes no id."""
        start = 0
        while self.cuts and len(text) - start > PIECE:
            stop = self._cut_behind(text, start + PIECE)
            if stop is None:
                break
            yield text[start:stop]
            start = stop
        yield text[start:]

    def _cut_behind(self, text: str, place: int) -> int | None:
        while place < len(text):
            for match, _ in zip(_PLACE.finditer(text, place, place + PIECE), range(TRIES), strict=False):
                if self._splits_at(text, match.end()):
                    return match.end()
            place += PIECE
        return None

    def _splits_at(self, text: str, place: int) -> bool:
        left, right = text[max(0, place - WINDOW) : place], text[place : place + WINDOW]
        return self._split(left + right) == self._split(left) + self._split(right)

    def _split(self, text: str) -> list[str]:
        normalizer = self.tokenizer.normalizer
        normal = text if normalizer is None else normalizer.normalize_str(text)
        return [piece for piece, _ in self.tokenizer.pre_tokenizer.pre_tokenize_str(normal)]

    def _encoded(self, pieces: list[str]) -> tuple[Array, Array]:
        """The ids of all, one after another, and how many each has."""
        ids, lengths = [np.zeros(0, self.dtype)], np.zeros(len(pieces), np.int64)
        for start, stop in _runs(pieces):
            for i, encoding in enumerate(
                self.tokenizer.encode_batch_fast(pieces[start:stop], add_special_tokens=False), start
            ):
                ids.append(np.array(encoding.ids, self.dtype))
                lengths[i] = len(ids[-1])
        return np.concatenate(ids), lengths

    def _without_specials(self, texts: list[str], done: Encoded) -> Encoded:
        """Some models (Unigram) know their special tokens as pieces of text. Texts that got one are encoded in two
        halves of what spells it."""
        each = [done.ids[a:b] for a, b in zip(done.offsets[:-1], done.offsets[1:], strict=True)]
        special = done.special.copy()
        for i in np.flatnonzero(done.special).tolist():
            cuts = [0, *(match.start() + 1 for match in self.literals.finditer(texts[i])), len(texts[i])]
            each[i], _ = self._encoded([texts[i][a:b] for a, b in pairwise(cuts)])
            special[i] = self.is_special[each[i]].any()
        return Encoded(np.concatenate(each), np.concatenate([[0], np.cumsum([len(ids) for ids in each])]), special)


@lru_cache(maxsize=2)
def encoder_of(tokenizer_text: str) -> TextEncoder:
    """One for each tokenizer that a process works with: to read one takes a twentieth of a second and more."""
    return TextEncoder(tokenizer_text)


def _runs(pieces: list[str]) -> Iterator[tuple[int, int]]:
    """Runs of about AT_ONCE characters."""
    start, size = 0, 0
    for i, piece in enumerate(pieces):
        size += len(piece)
        if size >= AT_ONCE:
            yield start, i + 1
            start, size = i + 1, 0
    if start < len(pieces):
        yield start, len(pieces)


def _woven(some: Encoded, rest: Encoded, of_some: Array) -> Encoded:
    """The texts of `some` that it is of, and in the gaps those of `rest`, in order."""
    lengths, special = np.diff(some.offsets), some.special.copy()
    kept = np.repeat(of_some, lengths)
    lengths[~of_some], special[~of_some] = np.diff(rest.offsets), rest.special
    from_some = np.repeat(of_some, lengths)
    ids = np.empty(len(from_some), some.ids.dtype)
    ids[from_some], ids[~from_some] = some.ids[kept], rest.ids
    return Encoded(ids, np.concatenate([[0], np.cumsum(lengths)]), special)


def _any_in(hit: Array, offsets: Array) -> Array:
    before = np.concatenate([[0], np.cumsum(hit)])
    return before[offsets[1:]] > before[offsets[:-1]]


def _specials(tokenizer: Tokenizer, tokenizer_text: str, size: int) -> tuple[re.Pattern[str], Array]:
    """What spells a special token, and a table that tells their ids; the token for what is unknown is no secret, and
    text may come to it."""
    model = json.loads(tokenizer_text)["model"]
    unknown = (model.get("unk_id"), model.get("unk_token"))
    added = tokenizer.get_added_tokens_decoder()
    contents = {
        i: token.content
        for i, token in added.items()
        if token.special and i != unknown[0] and token.content != unknown[1]
    }
    table = np.zeros(size, bool)
    table[list(contents)] = True
    longest_first = sorted(contents.values(), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)"), table


def _may_cut(tokenizer: Tokenizer) -> bool:
    """Is it enough to look at the pre-tokenizer? Not where added tokens swallow the space beside them, or go across
    one."""
    plain = [token for token in tokenizer.get_added_tokens_decoder().values() if not token.special]
    loose = any(token.lstrip or token.rstrip or _ACROSS.search(token.content) for token in plain)
    counts = '"type":"FixedLength"' in tokenizer.to_str().replace(" ", "")  # from the beginning of the text on
    return tokenizer.pre_tokenizer is not None and not loose and not counts
