"""Dolma's Gopher rules: each threshold drops for a reason of its own, and the published values are the defaults."""

from __future__ import annotations

import pyarrow as pa
import pytest

from gristmill.stages.rules.dolma import DUPLICATE, TOP, DolmaGopher

GOOD = {
    "words": 50, "median_word_length": 3.0, "hash_ratio": 0.05, "ellipsis_ratio": 0.05, "alphabetic_word_share": 0.8, "stop_words": 2,
    "bullet_line_share": 0.9, "ellipsis_line_share": 0.3, "duplicate_line_share": 0.3, "duplicate_line_character_share": 0.3,
    **{f"top_{n}gram_share": most for n, most in zip(TOP, (0.2, 0.18, 0.16), strict=True)},
    **{f"duplicate_{n}gram_share": most for n, most in zip(DUPLICATE, (0.15, 0.14, 0.13, 0.12, 0.11, 0.1), strict=True)},
}  # fmt: skip
BAD = {
    "words": [(49, "too_few_words"), (100_001, "too_many_words")], "median_word_length": [(2.5, "median_word_length"), (10.5, "median_word_length")],
    "hash_ratio": [(0.06, "too_many_symbols")], "alphabetic_word_share": [(0.79, "too_few_alphabetic_words")], "stop_words": [(1, "too_few_stop_words")],
    "bullet_line_share": [(0.91, "too_many_bullets")], "ellipsis_line_share": [(0.31, "too_many_ellipses")],
    "duplicate_line_share": [(0.31, "duplicate_lines")], "duplicate_line_character_share": [(0.31, "duplicate_line_characters")],
    "top_2gram_share": [(0.21, "top_2gram")], "top_4gram_share": [(0.17, "top_4gram")], "duplicate_5gram_share": [(0.16, "duplicate_5grams")],
    "duplicate_10gram_share": [(0.11, "duplicate_10grams")],
}  # fmt: skip


def reason(**changed) -> str | None:
    batch = pa.record_batch({name: [value] for name, value in (GOOD | changed).items()})
    return DolmaGopher().apply(batch).verdict.reason(0)


def test_a_document_at_every_threshold_stays():
    assert reason() is None and set(GOOD) == set(DolmaGopher.needs)


@pytest.mark.parametrize(("name", "value", "why"), [(name, *case) for name, cases in BAD.items() for case in cases])
def test_past_a_threshold_it_goes_for_that_reason(name, value, why):
    assert reason(**{name: value}) == why
