"""Gopher's rules as Dolma applied them to Common Crawl (Soldaini et al. 2024; configs/dolma-v1_5/mixing/cc-head.yaml).

They differ from Rae et al. in what is measured and in one threshold: the median of word lengths instead of their mean,
duplicate lines up to 30 % of the characters instead of 20 %, words by white space, one ratio for # and ellipses, no
rule on paragraphs. Dolma's use of C4 is c4_lines with settings (recipes/dolma.yaml). What we do not copy:
docs/rules.md.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gristmill.stages.stage import Limit, Range, Rule, above, below

Share = Annotated[float, Field(ge=0)]
TOP, DUPLICATE = (2, 3, 4), (5, 6, 7, 8, 9, 10)


class DolmaGopher(Rule):
    """Drop documents by Gopher's quality and repetition rules with Dolma's definitions and thresholds."""

    words: Annotated[Range, Field(description="how many words")] = Range(low=50, high=100_000)
    median_word_length: Annotated[Range, Field(description="characters")] = Range(low=3, high=10)
    max_symbol_ratio: Annotated[Share, Field(description="# and ellipses for each word")] = 0.1
    min_alphabetic_words: Annotated[float, Field(description="share of words with a letter", ge=0, le=1)] = 0.8
    min_stop_words: Annotated[int, Field(description="of: the be to of and that have with", ge=0)] = 2
    max_bullet_lines: Annotated[Share, Field(description="share of lines that begin with a bullet")] = 0.9
    max_ellipsis_lines: Annotated[Share, Field(description="share of lines that end in an ellipsis")] = 0.3
    max_duplicate_lines: Annotated[Share, Field(description="share of lines that are there more than once")] = 0.3
    max_duplicate_line_characters: Annotated[Share, Field(description="their share of the characters")] = 0.3
    max_top_grams: Annotated[
        tuple[Share, Share, Share],
        Field(description="share of the characters in the most common 2-, 3- and 4-gram of words"),
    ] = (0.2, 0.18, 0.16)
    max_duplicate_grams: Annotated[
        tuple[Share, Share, Share, Share, Share, Share],
        Field(description="share of the characters in repeated 5- to 10-grams of words"),
    ] = (0.15, 0.14, 0.13, 0.12, 0.11, 0.1)

    limits: ClassVar[tuple[Limit, ...]] = (
        below("words", "words.low", "too_few_words"),
        above("words", "words.high", "too_many_words"),
        below("median_word_length", "median_word_length.low", "median_word_length"),
        above("median_word_length", "median_word_length.high", "median_word_length"),
        above("hash_ratio + ellipsis_ratio", "max_symbol_ratio", "too_many_symbols"),
        below("alphabetic_word_share", "min_alphabetic_words", "too_few_alphabetic_words"),
        below("stop_words", "min_stop_words", "too_few_stop_words"),
        above("bullet_line_share", "max_bullet_lines", "too_many_bullets"),
        above("ellipsis_line_share", "max_ellipsis_lines", "too_many_ellipses"),
        above("duplicate_line_share", "max_duplicate_lines", "duplicate_lines"),
        above("duplicate_line_character_share", "max_duplicate_line_characters", "duplicate_line_characters"),
        *(above(f"top_{n}gram_share", f"max_top_grams.{k}", f"top_{n}gram") for k, n in enumerate(TOP)),
        *(
            above(f"duplicate_{n}gram_share", f"max_duplicate_grams.{k}", f"duplicate_{n}grams")
            for k, n in enumerate(DUPLICATE)
        ),
    )
