"""Words and phrases that a list of the user's own calls bad, counted; and the rule that drops documents with too many.

C4 (Raffel et al. 2020) dropped every page with a word of the List of Dirty, Naughty, Obscene or Otherwise Bad Words.
The list is the work of others and does not come with this package: `words_path` names a copy of that repository, or any
list of one phrase a line.
"""

from __future__ import annotations

import gzip
import re
from functools import lru_cache
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.base.unicode import properties
from gristmill.kernels.common.paths import RecipePath
from gristmill.kernels.lines.phrases import Trie, count_phrases, lower_case, phrase_within, trie
from gristmill.stages.stage import Annotate, Limit, Rule, Signals, above
from gristmill.stages.text.stop_words import plain_name

# Common parts of harmless words in scripts without spaces; each would drop more than a tenth of its language (C4's own
# exceptions).
ALLOWED = ("sm", "グロ", "女の子", "性")


class BadWords(Annotate):
    """Count the places of a document where a word or phrase of a list stands: `bad_words`.

    Whole words in any case; what lies between the words of a phrase does not matter, so that `two words` is found in
    "Two-words". In scripts without spaces a phrase is found anywhere. A list named `en` is for `eng_Latn` too; a
    document in a language without a list has none.
    """

    words_path: Annotated[
        RecipePath,
        Field(
            description=(
                "a list, one phrase a line, plain or .gz; or a folder of lists, each named by its language: "
                "en, de, ja.txt"
            )
        ),
    ]
    default_language: Annotated[
        str, Field(description="which list of a folder judges documents without a `language`")
    ] = "en"
    allowed: Annotated[tuple[str, ...], Field(description="entries of the lists that do not count")] = ALLOWED

    needs: ClassVar[tuple[str, ...]] = ("text", "language")  # of these, language may be missing
    adds: ClassVar[tuple[str, ...]] = ("bad_words",)

    @model_validator(mode="after")
    def _lists_are_there(self) -> BadWords:
        path = Path(self.words_path)
        if not path.exists():
            raise ValueError(f"words_path: no list at {path}")
        if path.is_dir() and not files_by_language(path):
            raise ValueError(f"words_path: no file in {path} is named by a language, as en or de.txt")
        return self

    def prepare(self) -> None:
        """Compile, and read the lists."""
        self.annotate(pa.record_batch({"text": pa.array(["text"])}))

    def annotate(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        column = text_column(Signals(batch).column("text"))
        counts = np.zeros(len(batch), np.int64)
        for path, rows in self.judged_by(batch).items():
            words = list_of(str(path), path.stat().st_mtime_ns, self.allowed)
            count_phrases(*column, rows, properties(), lower_case(), *words, counts)
        return {"bad_words": pa.array(counts)}

    def place(self, what: str, text: str) -> tuple[int, int] | None:
        path = Path(self.words_path)
        file = files_by_language(path).get(self.default_language) if path.is_dir() else path
        match = None if file is None else pattern_of(str(file), file.stat().st_mtime_ns, self.allowed).search(text)
        return None if match is None else match.span()

    def judged_by(self, batch: pa.RecordBatch) -> dict[Path, np.ndarray[tuple[int], np.dtype[np.int64]]]:
        """Each list with the rows that it judges."""
        path = Path(self.words_path)
        if not path.is_dir():
            return {path: np.arange(len(batch))}
        files = files_by_language(path)
        languages = [self.default_language] * len(batch)
        if "language" in batch.schema.names:
            languages = [value or self.default_language for value in Signals(batch).column("language").to_pylist()]
        rows: dict[Path, list[int]] = {}
        for row, language in enumerate(languages):
            file = files.get(language) or files.get(plain_name(language))
            if file is not None:
                rows.setdefault(file, []).append(row)
        return {file: np.array(value, np.int64) for file, value in sorted(rows.items())}


class FewBadWords(Rule):
    """Drop documents with more bad words than this; C4 keeps none."""

    at_most: Annotated[int, Field(description="the most places with a bad word that a document may have", ge=0)] = 0

    limits: ClassVar[tuple[Limit, ...]] = (above("bad_words", "at_most", "bad_words"),)


def files_by_language(folder: Path) -> dict[str, Path]:
    """`en`, `en.txt` and `en.txt.gz` are lists for English; a README or LICENSE is for nobody."""
    endings = {"", ".txt", ".gz"}
    files = [
        path
        for path in sorted(folder.iterdir())
        if path.is_file() and not path.name.startswith(".") and set(path.suffixes) <= endings
    ]
    return {path.name.split(".")[0]: path for path in files if path.name[0].islower()}


@lru_cache(maxsize=64)
def list_of(path: str, stamp: int, allowed: tuple[str, ...]) -> Trie:
    """The trie of a list; `stamp` is its file's time, so that a changed list is read again."""
    return trie({key: 1 for line in entries_of(path, allowed) if (key := phrase_within(line))})


@lru_cache(maxsize=4)
def pattern_of(path: str, stamp: int, allowed: tuple[str, ...]) -> re.Pattern[str]:
    """The entries of a list, to find one in a text that holds some; nearly as the trie reads them."""
    phrases = [r"\W+".join(map(re.escape, re.findall(r"\w+", line))) for line in entries_of(path, allowed)]
    whole = [rf"(?<!\w){phrase}(?!\w)" if phrase.isascii() else phrase for phrase in phrases if phrase]
    return re.compile("|".join(whole) or "(?!)", re.IGNORECASE)


def entries_of(path: str, allowed: tuple[str, ...]) -> list[str]:
    content = gzip.decompress(Path(path).read_bytes()) if path.endswith(".gz") else Path(path).read_bytes()
    lines = (line.strip() for line in content.decode("utf-8-sig").splitlines())
    return [line for line in lines if line and line not in allowed]
