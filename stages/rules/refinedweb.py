"""RefinedWeb's line rules (Penedo et al. 2023, appendix G.2) as DCLM orders and sets them
(dclm_baseline_refinedweb.yaml).

What differs and why: docs/rules.md.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.base.unicode import properties
from gristmill.kernels.lines.phrases import lower_case
from gristmill.kernels.lines.refinedweb import (
    ANYWHERE,
    COUNTER,
    LINES_CHANGED,
    LINES_REMOVED,
    PREFIX,
    SUFFIX,
    WORDS_AFTER,
    WORDS_BEFORE,
    refinedweb_lines,
)
from gristmill.stages.stage import Applied, Limit, Rewrite, Rule, Signals, above
from gristmill.stages.text.line_text import Phrases, rewritten, room_for, trie_of

Share = Annotated[float, Field(ge=0, le=1)]
COUNTED = (
    "likes", "shares", "comments", "retweets", "reposts", "quotes", "bookmarks", "upvotes", "downvotes", "downloads",
    "views", "followers",
)  # fmt: skip


class RefinedwebLines(Rewrite):
    """Remove lines of upper case, numbers, counters and single words, and phrases of menus out of short lines.

    All other lines, and empty ones, stay as they are. refinedweb_quality decides on how much went.
    """

    max_upper_share: Annotated[Share, Field(description="a line with a larger share of upper-case characters goes")] = (
        0.5
    )
    max_digit_share: Annotated[Share, Field(description="a line with a larger share of digits goes")] = 0.999999
    counted: Annotated[Phrases, Field(description="a line that is a number of these goes: 3 likes, 1.2k views")] = (
        COUNTED
    )
    min_words: Annotated[int, Field(description="a line with fewer words goes", ge=0)] = 2
    short_line: Annotated[int, Field(description="lines of so many words lose the phrases below", ge=0)] = 10
    anywhere: Annotated[Phrases, Field(description="taken out of a short line")] = ("items in cart",)
    endings: Annotated[Phrases, Field(description="taken off the end of a short line")] = ("Read more...", "Read more…")
    beginnings: Annotated[Phrases, Field(description="taken off the beginning of a short line")] = ("Sign-in",)

    needs: ClassVar[tuple[str, ...]] = ("text",)
    adds: ClassVar[tuple[str, ...]] = (
        "refinedweb_lines_removed",
        "refinedweb_lines_changed",
        "refinedweb_words_removed_share",
    )

    def prepare(self) -> None:
        """Compile."""
        self.rewrite(pa.record_batch({"text": pa.array(["A line of text."])}))

    def rewrite(self, batch: pa.RecordBatch) -> Applied:
        column = text_column(Signals(batch).column("text"))
        data, offsets = room_for(column)
        counts = np.zeros((len(batch), 4), np.int64)
        phrases = trie_of(
            {COUNTER: self.counted, ANYWHERE: self.anywhere, SUFFIX: self.endings, PREFIX: self.beginnings}
        )
        refinedweb_lines(
            *column, self.max_upper_share, self.max_digit_share, self.min_words, self.short_line, properties(),
            lower_case(), *phrases,
            data, offsets, counts,
        )  # fmt: skip
        before, after = counts[:, WORDS_BEFORE], counts[:, WORDS_AFTER]
        measured = (
            counts[:, LINES_REMOVED].copy(),
            counts[:, LINES_CHANGED].copy(),
            (before - after) / np.maximum(before, 1),
        )
        return rewritten(batch, data, offsets, dict(zip(self.adds, measured, strict=True)))


class RefinedwebQuality(Rule):
    """Drop documents of which the line rules had to remove too many words."""

    max_words_removed_share: Annotated[
        Share, Field(description="the largest share of its words that a document may lose")
    ] = 0.05

    limits: ClassVar[tuple[Limit, ...]] = (
        above("refinedweb_words_removed_share", "max_words_removed_share", "too_many_words_removed"),
    )
