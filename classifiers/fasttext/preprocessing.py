"""What is done to a text before fastText sees it, as named steps that a judge carries: the same function at training
and at scoring.

Published classifiers were served with other steps than they were trained with (a lower-cased, tokenised model behind a
plain reader), and nobody noticed, because any text gets some score. Here the steps are in the judge's card, and a name
that is unknown is refused.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pyarrow as pa

from gristmill.classifiers.card import JudgeError
from gristmill.kernels.base.columns import TextColumn, text_column
from gristmill.kernels.language.fasttext_words import only_words

TOKENIZER_FILE = "tokenizer.json"
WORDS = (
    "words are what stands between ASCII whitespace or ends of lines (as Python's str.splitlines has them); "
    "the word </s> and words that begin with __label__ are left out"
)


def without_marks(text: str) -> str:
    """NFKD of each character, less nonspacing marks. By character: the order of marks in a whole text takes time
    quadratic in their number."""
    return text if text.isascii() else text.translate(_unmarked())


STEPS: dict[str, Callable[[str], str]] = {
    "squeeze": lambda text: re.sub(
        " {2,}", " ", re.sub("\n{3,}", "\n\n", text)
    ),  # at most one empty line, and one space
    "lower": str.lower,
    "without_marks": without_marks,
    "escapes": lambda text: (
        text.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")
    ),  # so that they are part of words
    "escapes_apart": lambda text: (
        text.replace("\n", " \\n ").replace("\t", " \\t ").replace("\r", " \\r ")
    ),  # words by themselves
}
PIECES = "pieces"  # the pieces of a tokenizer, each decoded by itself, with spaces between


@dataclass(frozen=True)
class TextSteps:
    """Steps in their order; `tokenizer` is the content of a tokenizer.json where one of them is `pieces`."""

    names: tuple[str, ...] = ()
    tokenizer: str | None = None
    _pieces: Pieces | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        for name in self.names:
            if name not in STEPS and name != PIECES:
                raise JudgeError(f"there is no step {name!r} before fastText; known are {', '.join([*STEPS, PIECES])}")
        if (PIECES in self.names) != (self.tokenizer is not None):
            raise JudgeError(f"the step {PIECES!r} and {TOKENIZER_FILE} go together; one of them is missing")
        if self.tokenizer is not None:
            object.__setattr__(self, "_pieces", Pieces(self.tokenizer))

    def column(self, texts: pa.Array | pa.ChunkedArray) -> TextColumn:
        """As fastText sees them: one line each."""
        if not self.names:
            return only_words(text_column(texts))
        prepared = [text or "" for text in texts.to_pylist()]
        for name in self.names:
            prepared = (
                self._pieces(prepared) if name == PIECES and self._pieces else [STEPS[name](text) for text in prepared]
            )
        return only_words(text_column(pa.array(prepared, pa.large_string())))

    def text(self, text: str) -> str:
        column = self.column(pa.array([text], pa.large_string()))
        return column.data.tobytes().decode()

    def as_json(self) -> dict[str, Any]:
        return {"steps": list(self.names), "words": WORDS, "unicode": unicodedata.unidata_version}


class Pieces:
    def __init__(self, tokenizer: str) -> None:
        from tokenizers import Tokenizer

        try:
            self.tokenizer = Tokenizer.from_str(tokenizer)
        except Exception as error:  # tokenizers raises nothing more special
            raise JudgeError(f"{TOKENIZER_FILE} is none that the tokenizers package reads: {error}") from error
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.decoded: dict[int, str] = {}

    def __call__(self, texts: Sequence[str]) -> list[str]:
        return [
            " ".join(map(self.piece, encoding.ids))
            for encoding in self.tokenizer.encode_batch(list(texts), add_special_tokens=False)
        ]

    def piece(self, number: int) -> str:
        if number not in self.decoded:
            self.decoded[number] = self.tokenizer.decode([number], skip_special_tokens=False)
        return self.decoded[number]


@cache
def _unmarked() -> dict[int, str]:
    table = {}
    for point in range(0x80, 0x110000):
        character = chr(point)
        if unicodedata.category(character) == "Mn":
            table[point] = ""
        elif (
            unicodedata.decomposition(character) or 0xAC00 <= point < 0xD7A4
        ):  # syllables of Hangul are taken apart by rule
            table[point] = "".join(
                c for c in unicodedata.normalize("NFKD", character) if unicodedata.category(c) != "Mn"
            )
    return table
