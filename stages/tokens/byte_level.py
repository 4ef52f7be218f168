"""Byte-level BPE by kernels of our own, with the ids of the package `tokenizers`: which tokenizers they can stand in
for, and what they need of one.

Everything that can change an id is looked at; what is not known is left to the package (`Unfit` says why). At last both
encode a sample in many scripts with thousands of the vocabulary's own tokens in it, and one difference sends all texts
to the package. What is a letter is what the package holds to be one.
"""

from __future__ import annotations

import json
import threading
import unicodedata
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.kernels.base.columns import TextColumn, text_column
from gristmill.kernels.base.types import Array
from gristmill.kernels.base.unicode import POINTS, kept_table
from gristmill.kernels.bpe.byte_pairs import LARGEST_ID, LARGEST_RANK, desk_for, merges_of
from gristmill.kernels.bpe.piece_memo import LEAST, PieceMemo, Vocabulary, encode, generation_of, remember_tokens
from gristmill.kernels.bpe.pieces import (
    BREAK,
    GPT2,
    GPT4,
    LETTER,
    MARK,
    NUMBER,
    QWEN2,
    QWEN3_5,
    SPACE,
    Rules,
    ascii_is_as_masks_have_it,
    pattern_of,
)
from gristmill.kernels.repair.normal_form import CHANGES, find_unnormal, normal_form
from gristmill.stages.tokens.training import rules_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FAMILIES = {pattern_of(rules): rules for rules in (GPT2, GPT4, QWEN2, QWEN3_5, *map(rules_of, (1, 2, 3)))}
CHECKED_TOKENS = 4096
SAMPLE = (
    "It's the miller's, they'll say; DON'T we'Ve I'M 'tis 'ſong x'd\r\n\r\n  Größe 1234567 ٣٤٥ ½² x\t\ty   "
    "\n \n z\u00a0 \u2003w\u3000"
    " पनचक्की e\u0301te\u0301 水車、小麦粉。 מִלָּה كِتَابٌ ไทยแลนด์ 한국어 ДОМ дом ŉ ﬁ 🙂👨\u200d👩\u200d👧 "
    "…—«»!?\n\n\n#### a_b.c(d)[0]; https://x.y/z?q=1&r=%20 \x00\x1f\x85\u2028 "
)


class Unfit(ValueError):
    """Why a tokenizer is left to the package."""


class ByteLevel:
    """A tokenizer as kernels have it, what this process remembers of its pieces, and the ids that a text may yield."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises Unfit."""
        settings = json.loads(tokenizer.to_str())
        rules = _rules_of(settings["pre_tokenizer"])
        self.must_be_normal = _asks_for_nfc(settings["normalizer"])
        self.literals = _literals(settings["added_tokens"])
        self.vocabulary, self.memo, self.yields = _vocabulary_of(settings["model"], rules)
        self.one_at_a_time = threading.Lock()  # the memo is written to without the GIL
        _check(self, tokenizer, settings)

    def can(self, texts: pa.ChunkedArray, column: TextColumn) -> Array:
        """Which texts the kernels may encode: not those that a normalizer may change, or with a token in them that was
        added to the model's."""
        able = np.ones(len(column), bool)
        if self.must_be_normal:
            unnormal = np.zeros(len(column), np.uint8)
            find_unnormal(*column, np.ones(len(column), np.uint8), _normal_to_all(), unnormal)
            able &= unnormal == 0
        if self.literals is not None:
            able &= ~pc.match_substring_regex(texts, self.literals).to_numpy(zero_copy_only=False)
        return able

    def encode(self, column: TextColumn, wanted: Array) -> tuple[Array, Array]:
        """Ids, uint16 if they fit, and offsets of the texts that are wanted; the others have none."""
        with self.one_at_a_time:
            return encode(self.vocabulary, self.memo, *column, wanted)


def _rules_of(pre_tokenizer: dict[str, Any] | None) -> Rules:
    match pre_tokenizer:
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}:
            return GPT2
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        } if pattern in FAMILIES:
            return FAMILIES[pattern]
    raise Unfit("its pre-tokenizer is of another kind")


def _asks_for_nfc(normalizer: dict[str, Any] | None) -> bool:
    if normalizer not in (None, {"type": "NFC"}):
        raise Unfit("its normalizer is of another kind")
    return normalizer is not None


def _literals(added_tokens: list[dict[str, Any]]) -> str | None:
    """A pattern (of RE2) for the tokens that are cut out of a text before all else. Special ones are not: in a text
    they are text."""
    contents = [token["content"] for token in added_tokens if not token["special"]]
    if any(not unicodedata.is_normalized("NFC", content) for content in contents):
        raise Unfit("it has an added token that is not in NFC")
    pattern = "|".join(map(_escaped, contents))
    try:
        pc.match_substring_regex(pa.array([""]), pattern)
    except pa.ArrowInvalid:
        raise Unfit("the tokens added to it are too many to look for") from None
    return pattern or None


def _escaped(content: str) -> str:
    return "".join(c if c.isalnum() or ord(c) > 0x7F else rf"\x{{{ord(c):x}}}" for c in content)


def _vocabulary_of(model: dict[str, Any], rules: Rules) -> tuple[Vocabulary, PieceMemo, Array]:
    """With a memo of the tokens, and the ids that a text may yield."""
    if model["type"] != "BPE":
        raise Unfit(f"its model is {model['type']}")
    for setting in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model[setting] not in (None, ""):
            raise Unfit(f"its model has a {setting}")
    ids, alphabet = model["vocab"], byte_of()
    if not alphabet.keys() <= ids.keys():
        raise Unfit("it has no token for some bytes")
    if len(set(ids.values())) < len(ids) or max(ids.values()) > LARGEST_ID:
        raise Unfit("two of its tokens share an id, or one is too large")
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
    if len(pairs) > LARGEST_RANK:
        raise Unfit("it has too many merges")
    merges = merges_of(
        np.array([(ids[left], ids[right]) for left, right in pairs], np.uint32).reshape(-1, 2),
        np.array([ids[left + right] for left, right in pairs], np.uint32),
        np.array([ids[character] for character in alphabet], np.uint32),
    )
    if not ascii_is_as_masks_have_it(classes()):
        raise Unfit("its regular expressions have other letters in ASCII")
    width = 2 if max(ids.values()) <= 0xFFFF else 4
    return _with_tokens(Vocabulary(classes(), rules, merges, width, generation_of(4)), ids, model["ignore_merges"])


def _with_tokens(
    vocabulary: Vocabulary, ids: dict[str, int], ignore_merges: bool
) -> tuple[Vocabulary, PieceMemo, Array]:
    """A memo with the tokens in it that merging yields. Where merges are ignored, a piece that is a token is that
    token, also if merging gives others: those few are looked up."""
    alphabet, merges = byte_of(), vocabulary.merges
    spelt = {
        token: number for token, number in ids.items() if token and all(character in alphabet for character in token)
    }
    contents = [bytes(map(alphabet.__getitem__, token)) for token in spelt]
    column = text_column(pa.array(contents, pa.large_binary()))
    tokens, desk = np.array([*spelt.values()], np.uint32), desk_for(max(map(len, contents)))
    yields = np.concatenate([merges.results, merges.bytes, *([tokens] if ignore_merges else [])])
    slots, least = 4, max(LEAST, 1 << (2 * len(tokens) - 1).bit_length())
    while slots <= 1 << 22:
        vocabulary, memo = vocabulary._replace(given=generation_of(slots)), PieceMemo(least)
        if remember_tokens(*column, tokens, vocabulary, memo.young, ignore_merges, desk, np.zeros(16, np.uint8)) == 0:
            return vocabulary, memo, yields
        slots = max(1 << 10, slots << 1)
    raise Unfit("too many of its tokens are not what merging gives")


def byte_of() -> dict[str, int]:
    """Which byte a character of a token stands for, in order of bytes (Radford et al. 2019): itself where it is seen,
    else they count on from U+0100."""
    seen = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in seen]
    return {chr(byte) if byte in seen else chr(0x100 + hidden.index(byte)): byte for byte in range(256)}


@cache
def classes() -> Array:
    """uint8[0x110000]: letter, mark, number, space, line end, as the regular expressions of the package have them."""

    def make() -> Array:
        from tokenizers import Regex, pre_tokenizers

        points = [point for point in range(POINTS) if not 0xD800 <= point < 0xE000]
        text, place = "".join(map(chr, points)), np.array(points)
        table = np.zeros(POINTS, np.uint8)
        for bit, pattern in ((LETTER, r"\p{L}+"), (MARK, r"\p{M}+"), (NUMBER, r"\p{N}+"), (SPACE, r"\s+")):
            for _, (start, end) in pre_tokenizers.Split(Regex(pattern), "removed", invert=True).pre_tokenize_str(text):
                table[place[start:end]] |= bit
        table[[0x0A, 0x0D]] |= BREAK
        return table

    return kept_table(f"tokenizers-{version('tokenizers')}", make)


@cache
def _normal_to_all() -> Array:
    """As `normal_form`, but what this Python's Unicode does not know may be changed by that of the package."""
    table = normal_form("NFC").copy()
    table[[point for point in range(POINTS) if unicodedata.category(chr(point)) == "Cn"]] |= CHANGES
    table.flags.writeable = False
    return table


def _check(ours: ByteLevel, tokenizer: Tokenizer, settings: dict[str, Any]) -> None:
    alphabet, ids = byte_of(), [*settings["model"]["vocab"]]
    some = ids[:: max(1, len(ids) // CHECKED_TOKENS)]
    tokens = [bytes(alphabet.get(character, 0x3F) for character in token).decode(errors="replace") for token in some]
    specials = [token["content"] for token in settings["added_tokens"] if token["special"]]
    texts = [
        SAMPLE,
        "".join(tokens),
        " ".join(tokens),
        *(f"{a}{b}" for a, b in zip(specials, ("", " ", "'s", "\n"), strict=False)),
    ]
    texts += [text[i:] for text in (SAMPLE, SAMPLE[::-1]) for i in range(0, len(SAMPLE), 7)]
    if ours.must_be_normal:
        texts = [unicodedata.normalize("NFC", text) for text in texts]
    column = text_column(pa.array(texts, pa.large_string()))
    wanted = ours.can(pa.chunked_array([pa.array(texts, pa.large_string())]), column)
    encoded, ends = ours.encode(column, wanted)
    for i in np.flatnonzero(wanted).tolist():
        if encoded[ends[i] : ends[i + 1]].tolist() != tokenizer.encode(texts[i], add_special_tokens=False).ids:
            raise Unfit("on a sample its ids are others")
