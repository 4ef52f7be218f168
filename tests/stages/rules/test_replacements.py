"""A text of which too many characters were lost can be dropped."""

import pyarrow as pa
import pytest

from gristmill.stages import FewReplacementCharacters, TextSignals

TEXTS = ["fine", "R\ufffdkis\ufffdtvarpi\ufffd", "a" * 996 + "\ufffd" * 4, "a" * 994 + "\ufffd" * 6, "", None]


def test_the_share_of_replacement_characters_is_a_signal_and_a_rule():
    (batch,) = TextSignals(only=("replacement_share",))(pa.table({"text": TEXTS})).to_batches()
    assert batch["replacement_share"].to_pylist() == pytest.approx([0, 3 / 13, 0.004, 0.006, 0, 0])
    verdict = FewReplacementCharacters().apply(batch).verdict
    assert verdict.kept.tolist() == [True, False, True, False, True, True]
    assert {verdict.reason(row) for row in (1, 3)} == {"too_many_replacement_characters"}
    assert FewReplacementCharacters(max_share=0).apply(batch).verdict.kept.sum() == 3
