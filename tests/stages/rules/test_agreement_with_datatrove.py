"""Our rules decide as DataTrove 0.10.1 does on the same texts, and for the same reason, but for faults that we do not
share (docs/rules.md)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from gristmill.stages.rules.fineweb import FinewebQuality
from gristmill.stages.rules.gopher import GopherQuality, GopherRepetition
from gristmill.stages.stage import Signals
from gristmill.stages.text.signals import TextSignals

VERDICTS = Path(__file__).parents[4] / "shared" / "data" / "rule_verdicts.parquet"

# DataTrove's name for each of our reasons.
REASONS = {
    "gopher_quality": {
        "too_few_words": "gopher_short_doc",
        "too_many_words": "gopher_long_doc",
        "words_too_short": "gopher_below_avg_threshold",
        "words_too_long": "gopher_above_avg_threshold",
        "too_many_hashes": "gopher_too_many_hashes",
        "too_many_ellipses": "gopher_too_many_ellipsis",
        "too_many_bullet_lines": "gopher_too_many_bullets",
        "too_many_ellipsis_lines": "gopher_too_many_end_ellipsis",
        "too_few_alphabetic_words": "gopher_below_alpha_threshold",
        "too_few_stop_words": "gopher_enough_stop_words",
    },
    "gopher_repetition": {
        "empty": "empty",
        "duplicate_paragraphs": "dup_para_frac",
        "duplicate_paragraph_characters": "dup_para_char_frac",
        "duplicate_lines": "dup_line_frac",
        "duplicate_line_characters": "dup_line_char_frac",
        **{f"top_{n}gram": f"top_{n}_gram" for n in (2, 3, 4)},
        **{f"duplicate_{n}grams": f"duplicated_{n}_n_grams" for n in range(5, 11)},
    },
    "fineweb": {
        "empty": "empty",
        "too_few_terminal_lines": "line_punct_ratio",
        "too_many_short_lines": "short_line_ratio",
        "duplicate_line_characters": "char_dup_ratio",
        "too_many_newlines": "list_ratio",
    },
}
RULES = {"gopher_quality": GopherQuality(), "gopher_repetition": GopherRepetition(), "fineweb": FinewebQuality()}


@pytest.fixture(scope="module")
def verdicts():
    if not VERDICTS.exists():
        pytest.skip(f"needs {VERDICTS}: DataTrove's verdicts on real pages")
    return pq.read_table(VERDICTS)


@pytest.mark.parametrize("column", RULES)
def test_agreement(verdicts, column):
    rule = RULES[column]
    batch = verdicts.select(["text"]).combine_chunks().to_batches()[0]
    verdict = rule.verdict(Signals(TextSignals(units="datatrove", only=rule.needs).apply(batch).batch))
    ours = np.array(
        [REASONS[column][reason] if (reason := verdict.reason(row)) else "keep" for row in range(len(batch))]
    )
    theirs = np.array(verdicts[column].to_pylist())
    assert len(ours) == 2973
    assert np.mean((ours == "keep") == (theirs == "keep")) >= 0.98
    assert np.mean(ours == theirs) >= 0.95
