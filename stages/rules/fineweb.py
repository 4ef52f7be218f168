"""FineWeb's own rules (Penedo et al. 2024, section 3.6): lists, menus and repeated lines. Where we differ from
DataTrove: docs/rules.md."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gristmill.stages.rules.gopher import Share
from gristmill.stages.rules.languages import RuleByLanguage
from gristmill.stages.stage import Limit, above, below


class FinewebQuality(RuleByLanguage):
    """Drop documents with few lines that end in punctuation, or many that are short, repeated, or of few words."""

    min_terminal_line_share: Annotated[
        Share, Field(description="lines that end in terminal punctuation of any script")
    ] = 0.12
    max_short_line_share: Annotated[
        Share, Field(description="lines of at most `short_line` characters, a setting of text_signals")
    ] = 0.67
    max_duplicate_line_characters: Annotated[
        Share, Field(description="characters of lines that stood before, over all characters but newlines")
    ] = 0.01
    max_newlines_per_word: Annotated[Share, Field(description="ends of lines for each word")] = 0.3

    limits: ClassVar[tuple[Limit, ...]] = (
        below("lines", 1, "empty"),
        below("terminal_line_share", "min_terminal_line_share", "too_few_terminal_lines"),
        above("short_line_share", "max_short_line_share", "too_many_short_lines"),
        above("duplicate_line_share_of_line_characters", "max_duplicate_line_characters", "duplicate_line_characters"),
        above("newlines_per_word", "max_newlines_per_word", "too_many_newlines"),
    )
