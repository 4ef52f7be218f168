"""Gopher's rules (Rae et al. 2021, appendix A): documents that do not read like text, and documents that repeat
themselves.

Reasons stand in the order in which DataTrove tests, so that the first is comparable; its names and where we differ:
docs/rules.md.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gristmill.stages.rules.languages import RuleByLanguage
from gristmill.stages.stage import Limit, above, below

Share = Annotated[float | None, Field(ge=0)]
Count = Annotated[int | None, Field(ge=0)]


class GopherQuality(RuleByLanguage):
    """Drop documents that are too short or long, of odd words, of symbols and bullets, or without words that any text
    has."""

    min_words: Annotated[Count, Field(description="words that hold a letter or a number")] = 50
    max_words: Annotated[Count, Field(description="the same")] = 100_000
    min_mean_word_length: Annotated[Share, Field(description="characters")] = 3
    max_mean_word_length: Annotated[Share, Field(description="characters")] = 10
    max_hash_ratio: Annotated[Share, Field(description="# for each unit")] = 0.1
    max_ellipsis_ratio: Annotated[Share, Field(description="... and … for each unit")] = 0.1
    max_bullet_line_share: Annotated[Share, Field(description="lines that begin with • or -")] = 0.9
    max_ellipsis_line_share: Annotated[Share, Field(description="lines that end in ... or …")] = 0.3
    min_alphabetic_word_share: Annotated[Share, Field(description="units that hold a letter")] = 0.8
    min_stop_words: Annotated[Count, Field(description="different stop words of the language")] = 2

    limits: ClassVar[tuple[Limit, ...]] = (
        below("words", "min_words", "too_few_words"),
        above("words", "max_words", "too_many_words"),
        below("mean_word_length", "min_mean_word_length", "words_too_short"),
        above("mean_word_length", "max_mean_word_length", "words_too_long"),
        above("hash_ratio", "max_hash_ratio", "too_many_hashes"),
        above("ellipsis_ratio", "max_ellipsis_ratio", "too_many_ellipses"),
        above("bullet_line_share", "max_bullet_line_share", "too_many_bullet_lines"),
        above("ellipsis_line_share", "max_ellipsis_line_share", "too_many_ellipsis_lines"),
        below("alphabetic_word_share", "min_alphabetic_word_share", "too_few_alphabetic_words"),
        below("stop_words", "min_stop_words", "too_few_stop_words"),
    )


class GopherRepetition(RuleByLanguage):
    """Drop documents that repeat lines, paragraphs or runs of words too much."""

    max_duplicate_paragraph_share: Annotated[Share, Field(description="paragraphs that stood before")] = 0.30
    max_duplicate_paragraph_character_share: Annotated[Share, Field(description="characters in them")] = 0.20
    max_duplicate_line_share: Annotated[Share, Field(description="lines that stood before")] = 0.30
    max_duplicate_line_character_share: Annotated[Share, Field(description="characters in them")] = 0.20
    max_top_2gram_share: Annotated[
        Share, Field(description="characters of the most frequent 2-gram, if it is repeated")
    ] = 0.20
    max_top_3gram_share: Annotated[Share, Field(description="the same of 3-grams")] = 0.18
    max_top_4gram_share: Annotated[Share, Field(description="the same of 4-grams")] = 0.16
    max_duplicate_5gram_share: Annotated[Share, Field(description="characters in 5-grams that stood before")] = 0.15
    max_duplicate_6gram_share: Annotated[Share, Field(description="the same of 6-grams")] = 0.14
    max_duplicate_7gram_share: Annotated[Share, Field(description="the same of 7-grams")] = 0.13
    max_duplicate_8gram_share: Annotated[Share, Field(description="the same of 8-grams")] = 0.12
    max_duplicate_9gram_share: Annotated[Share, Field(description="the same of 9-grams")] = 0.11
    max_duplicate_10gram_share: Annotated[Share, Field(description="the same of 10-grams")] = 0.10

    limits: ClassVar[tuple[Limit, ...]] = (
        below("lines", 1, "empty"),
        above("duplicate_paragraph_share", "max_duplicate_paragraph_share", "duplicate_paragraphs"),
        above(
            "duplicate_paragraph_character_share",
            "max_duplicate_paragraph_character_share",
            "duplicate_paragraph_characters",
        ),
        above("duplicate_line_share", "max_duplicate_line_share", "duplicate_lines"),
        above("duplicate_line_character_share", "max_duplicate_line_character_share", "duplicate_line_characters"),
        *(above(f"top_{n}gram_share", f"max_top_{n}gram_share", f"top_{n}gram") for n in (2, 3, 4)),
        *(
            above(f"duplicate_{n}gram_share", f"max_duplicate_{n}gram_share", f"duplicate_{n}grams")
            for n in (5, 6, 7, 8, 9, 10)
        ),
    )
