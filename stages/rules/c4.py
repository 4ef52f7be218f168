"""C4's rules (Raffel et al. 2020, section 2.2): lines that go, and documents that go for what their lines were.

Thresholds and order are those of the data set's code and of DataTrove's C4QualityFilter; what differs and why:
docs/rules.md.
"""

from __future__ import annotations

import re
from typing import Annotated, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.base.unicode import properties
from gristmill.kernels.lines.c4 import CURLY, JAVASCRIPT, LOREM, LOREM_IPSUM, POLICY, REMOVED, SENTENCES, c4_lines
from gristmill.kernels.lines.phrase_blocks import blocks_of
from gristmill.kernels.lines.phrases import lower_case
from gristmill.stages.stage import Applied, Limit, Rewrite, Rule, Signals, above, below
from gristmill.stages.text.line_text import Phrases, rewritten, room_for, trie_of

NO_LIMIT = 1 << 60
POLICY_PHRASES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")


class C4Lines(Rewrite):
    """Keep the lines that read like text: ended by a mark, of three words or more, without "javascript" and policy
    phrases.

    Lines that stay are trimmed, lose citation marks ([1], [edit], [citation needed]) and are joined by single line
    breaks. What the document rules ask is counted on the way; c4_quality decides on it.
    """

    terminal_punctuation: Annotated[
        bool, Field(description="a line must end in one of the terminal marks; FineWeb sets this off")
    ] = True
    terminal_marks: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=1)], ...],
        Field(description="what ends a line well; three dots never do. C4 itself has no '", min_length=1),
    ] = (".", "?", "!", '"', "'")
    max_word_length: Annotated[int | None, Field(description="a line with a longer word goes; characters", ge=1)] = 1000
    min_words: Annotated[
        int, Field(description="a line with fewer words goes; 0, without the rule on ends, keeps empty lines", ge=0)
    ] = 3
    citations: Annotated[bool, Field(description="remove citation marks as Wikipedia has them")] = True
    javascript: Annotated[Phrases, Field(description="a line with one of these goes, in any case")] = ("javascript",)
    policy: Annotated[Phrases, Field(description="so does a line with one of these, but its { counts")] = POLICY_PHRASES

    needs: ClassVar[tuple[str, ...]] = ("text",)
    adds: ClassVar[tuple[str, ...]] = ("c4_lines_removed", "c4_lorem_ipsum", "c4_curly_brackets", "c4_sentences")

    def place(self, what: str, text: str) -> tuple[int, int] | None:
        pattern = {"c4_lorem_ipsum": r"(?i)lorem ipsum", "c4_curly_brackets": r"\{"}.get(what)
        match = None if pattern is None else re.search(pattern, text)
        return None if match is None else match.span()

    def prepare(self) -> None:
        """Compile."""
        self.rewrite(pa.record_batch({"text": pa.array(["A line of text."])}))

    def rewrite(self, batch: pa.RecordBatch) -> Applied:
        column = text_column(Signals(batch).column("text"))
        data, offsets = room_for(column)
        counts = np.zeros((len(batch), 4), np.int64)
        marks = np.array([ord(mark) for mark in self.terminal_marks] if self.terminal_punctuation else [], np.int64)
        phrases = trie_of({LOREM_IPSUM: ("lorem ipsum",), JAVASCRIPT: self.javascript, POLICY: self.policy})
        c4_lines(
            *column, marks, self.citations, self.max_word_length or NO_LIMIT, self.min_words, properties(),
            lower_case(), *phrases,
            *blocks_of(*phrases[1:]), data, offsets, counts,
        )  # fmt: skip
        columns = (REMOVED, LOREM, CURLY, SENTENCES)
        return rewritten(
            batch, data, offsets, {name: counts[:, k].copy() for name, k in zip(self.adds, columns, strict=True)}
        )


class C4Quality(Rule):
    """Drop documents that hold "lorem ipsum" or a curly bracket, or have too few sentences left after c4_lines."""

    max_lorem_ipsum: Annotated[int, Field(description="the most lines with lorem ipsum that stay", ge=0)] = 0
    max_curly_brackets: Annotated[int, Field(description="the most lines with a { that stay", ge=0)] = 0
    min_sentences: Annotated[int, Field(description="the fewest sentences in the lines that are left", ge=0)] = 5

    limits: ClassVar[tuple[Limit, ...]] = (
        above("c4_lorem_ipsum", "max_lorem_ipsum", "lorem_ipsum"),
        above("c4_curly_brackets", "max_curly_brackets", "curly_bracket"),
        below("c4_sentences", "min_sentences", "too_few_sentences"),
    )
