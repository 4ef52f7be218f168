"""Signals at their bounds, and dates with half days and zones."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pydantic import ValidationError

from gristmill.kernels.urls.urls import address
from gristmill.stages import KeepWhere
from gristmill.stages.dedup.dates import moment


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("Wed, 31 Jan 2024 10:00 PM", "2024-01-31T22:00:00Z"),
        ("Wed, 31 Jan 2024 12:05:00 a.m.", "2024-01-31T00:05:00Z"),
        ("Wed, 31 Jan 2024 10:30:00 CEST", "2024-01-31T08:30:00Z"),
        ("Wed, 31 Jan 2024 10:30:00 EST", "2024-01-31T15:30:00Z"),
        ("Wed, 31 Jan 2024 10:30:00 GMT", "2024-01-31T10:30:00Z"),
        ("Wed, 31 Jan 2024 10:30:00 +0200", "2024-01-31T08:30:00Z"),
        ("Wed, 31 Jan 2024 10:30:00", "2024-01-31T10:30:00Z"),
    ],
)
def test_half_days_and_zones(text: str, same: str) -> None:
    assert moment(text) == moment(same) is not None


def test_a_zone_that_nobody_knows_is_no_date() -> None:
    assert moment("Wed, 31 Jan 2024 10:30:00 XYZ") is None


def test_a_bound_is_rounded_as_its_signal_was() -> None:
    table = pa.table({"score": pa.array([0.7, 0.8, None], pa.float32())})
    assert KeepWhere(signal="score", at_least=0.7)(table).num_rows == 2
    assert KeepWhere(signal="score", at_most=0.7)(table).num_rows == 1
    nothing = [{"text": "a", "score": None}]
    assert KeepWhere(signal="score", at_least=0)(nothing) == []
    with pytest.raises(ValidationError, match="at_least is not a number"):
        KeepWhere(signal="score", at_least=float("nan"))


def test_ports_of_addresses_stay() -> None:
    assert address("[2001:DB8::1]:8080") == "[2001:db8::1]:8080"
    assert address("[2001:db8::1]:443") == address("2001:db8::1") == address("[2001:DB8::1]:") == "[2001:db8::1]"
