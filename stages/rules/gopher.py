"""Gopher's rules (Rae et al. 2021, appendix A): documents that do not read like text, and documents that repeat
themselves.

Reasons stand in the order in which DataTrove tests, so that the first is comparable; its names and where we differ:
docs/rules.md.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gristmill.stages.rules.languages import RuleByLanguage
from gristmill.stages.stage import Signals, Verdict

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

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        """Signals; the language only where thresholds hang on it."""
        return NEEDS_OF_QUALITY + (("language",) if self.thresholds_file else ())

    def verdict(self, signals: Signals) -> Verdict:
        limit = self.limits(signals)
        return (
            Verdict.keep(len(signals))
            .drop(signals.words < limit["min_words"], "too_few_words")
            .drop(signals.words > limit["max_words"], "too_many_words")
            .drop(signals.mean_word_length < limit["min_mean_word_length"], "words_too_short")
            .drop(signals.mean_word_length > limit["max_mean_word_length"], "words_too_long")
            .drop(signals.hash_ratio > limit["max_hash_ratio"], "too_many_hashes")
            .drop(signals.ellipsis_ratio > limit["max_ellipsis_ratio"], "too_many_ellipses")
            .drop(signals.bullet_line_share > limit["max_bullet_line_share"], "too_many_bullet_lines")
            .drop(signals.ellipsis_line_share > limit["max_ellipsis_line_share"], "too_many_ellipsis_lines")
            .drop(signals.alphabetic_word_share < limit["min_alphabetic_word_share"], "too_few_alphabetic_words")
            .drop(signals.stop_words < limit["min_stop_words"], "too_few_stop_words")
        )


NEEDS_OF_QUALITY = (
    "words", "mean_word_length", "hash_ratio", "ellipsis_ratio", "bullet_line_share", "ellipsis_line_share",
    "alphabetic_word_share", "stop_words",
)  # fmt: skip


class GopherRepetition(RuleByLanguage):
    """Drop documents that repeat lines, paragraphs or runs of words too much."""

    max_duplicate_paragraph_share: Share = 0.30
    max_duplicate_paragraph_character_share: Share = 0.20
    max_duplicate_line_share: Share = 0.30
    max_duplicate_line_character_share: Share = 0.20
    max_top_2gram_share: Annotated[
        Share, Field(description="characters of the most frequent 2-gram, if it is repeated")
    ] = 0.20
    max_top_3gram_share: Share = 0.18
    max_top_4gram_share: Share = 0.16
    max_duplicate_5gram_share: Annotated[Share, Field(description="characters in 5-grams that stood before")] = 0.15
    max_duplicate_6gram_share: Share = 0.14
    max_duplicate_7gram_share: Share = 0.13
    max_duplicate_8gram_share: Share = 0.12
    max_duplicate_9gram_share: Share = 0.11
    max_duplicate_10gram_share: Share = 0.10

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        """Signals; the language only where thresholds hang on it."""
        return ("lines", *REASONS_OF_REPETITION, *(("language",) if self.thresholds_file else ()))

    def verdict(self, signals: Signals) -> Verdict:
        limit = self.limits(signals)
        verdict = Verdict.keep(len(signals)).drop(signals.lines == 0, "empty")
        for signal, reason in REASONS_OF_REPETITION.items():
            verdict.drop(getattr(signals, signal) > limit[f"max_{signal}"], reason)
        return verdict


# Signal and reason, in the order in which they are tested.
REASONS_OF_REPETITION = {
    "duplicate_paragraph_share": "duplicate_paragraphs",
    "duplicate_paragraph_character_share": "duplicate_paragraph_characters",
    "duplicate_line_share": "duplicate_lines",
    "duplicate_line_character_share": "duplicate_line_characters",
    "top_2gram_share": "top_2gram",
    "top_3gram_share": "top_3gram",
    "top_4gram_share": "top_4gram",
    "duplicate_5gram_share": "duplicate_5grams",
    "duplicate_6gram_share": "duplicate_6grams",
    "duplicate_7gram_share": "duplicate_7grams",
    "duplicate_8gram_share": "duplicate_8grams",
    "duplicate_9gram_share": "duplicate_9grams",
    "duplicate_10gram_share": "duplicate_10grams",
}
