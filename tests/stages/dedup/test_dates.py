"""Dates of any form become numbers that say which is earlier."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from gristmill.stages.dedup.dates import BEGINS, moment, moments


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("2024-01-01T01:00:00+02:00", "2023-12-31T23:00:00Z"), ("Tue, 15 Nov 1994 08:12:31 GMT", "1994-11-15T08:12:31Z"), ("20130518054854", "2013-05-18T05:48:54Z"),
        ("2024", "2024-01-01"), ("2024-03", "2024-03-01T00:00:00Z"), (" 2024-03-05 ", "2024-03-05T00:00:00"), ("2024-03-05 10:00:00.5", "2024-03-05T10:00:00.500000Z"),
        ("1610101500", "2021-01-08T10:25:00Z"), ("1610101500123", "2021-01-08T10:25:00.123Z"), ("1610101500123456", "2021-01-08T10:25:00.123456Z"), ("20240131", "2024-01-31"),
    ],
)  # fmt: skip
def test_forms_of_one_moment(text: str, same: str) -> None:
    assert moment(text) == moment(same) is not None


def test_before_1970_and_what_is_no_date() -> None:
    texts = [
        "1969-12-31T23:59:59Z",
        "1970-01-01T00:00:00Z",
        "",
        None,
        "soon",
        "2024-13-45",
        "9" * 400,
        "0000",
        "1905-02-03",
        "2024-02-31T00:00:00Z",
        "2024-02-29T00:00:00Z",
        "161010150012",
    ]
    found = moments(pa.chunked_array([texts[:4], texts[4:]], pa.string())).to_pylist()
    assert found[:2] == [-1_000_000, 0] and found[2:8] == [None] * 6 and found[8] < found[0]
    assert found[9] is None and found[10] == 1_709_164_800_000_000 and found[11] is None
    assert moments(pa.chunked_array([texts[:2]], pa.string())).to_pylist() == found[:2]
    assert moments(pa.chunked_array([[]], pa.string())).to_pylist() == []


@given(st.datetimes(timezones=st.none() | st.timezones()))
def test_isoformat_comes_back(date: datetime) -> None:
    aware = date if date.tzinfo else date.replace(tzinfo=UTC)
    offset = aware.utcoffset()
    assert offset is not None
    try:
        since = aware - BEGINS
    except OverflowError:
        return
    assert moment(date.isoformat()) == (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


@given(st.text(max_size=40))
def test_no_text_raises(text: str) -> None:
    found = moment(text)
    assert found is None or abs(found) < 10**18


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
