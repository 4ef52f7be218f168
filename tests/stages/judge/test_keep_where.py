"""A rule on any signal, at its bounds."""

from __future__ import annotations

import pyarrow as pa
import pytest

from gristmill.kernels.common.settings import SettingsError
from gristmill.stages import KeepWhere


def test_a_bound_is_rounded_as_its_signal_was() -> None:
    table = pa.table({"score": pa.array([0.7, 0.8, None], pa.float32())})
    assert KeepWhere(signal="score", at_least=0.7)(table).num_rows == 2
    assert KeepWhere(signal="score", at_most=0.7)(table).num_rows == 1
    nothing = [{"text": "a", "score": None}]
    assert KeepWhere(signal="score", at_least=0)(nothing) == []
    with pytest.raises(SettingsError, match="at_least is not a number"):
        KeepWhere(signal="score", at_least=float("nan"))
