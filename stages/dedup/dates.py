"""Dates as sources write them, as one number that can be compared: `2024-01-01T01:00:00+02:00` is before
`2023-12-31T23:30:00Z`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

import pyarrow as pa
import pyarrow.compute as pc

WARC = "%Y-%m-%dT%H:%M:%SZ"  # what most are
BEGINS = datetime(1970, 1, 1, tzinfo=UTC)
PARTIAL = re.compile(r"(\d{4})(?:-(\d{1,2}))?")
CAPTURE = re.compile(r"\d{14}")  # as ARC files and the Wayback Machine have them
SINCE = re.compile(
    r"\d{10}(?:\d{3}|\d{6})?", re.ASCII
)  # seconds, milliseconds or microseconds since 1970: from September 2001 on
HALF_DAY = re.compile(r"\b(\d{1,2})(:\d{2}(?::\d{2})?)\s*([AaPp])\.?[Mm]\b\.?")
ZONE = re.compile(r"(\d:\d{2}(?::\d{2})?(?:\.\d+)?) ?\(?([A-Za-z]{1,5})\b\)?")
KNOWN = {"UT", "UTC", "GMT", "Z", "AST", "ADT", "EST", "EDT", "CST", "CDT", "MST", "MDT", "PST", "PDT"}  # by `email`
HOURS = {"WET": 0, "BST": 1, "WEST": 1, "CET": 1, "MEZ": 1, "CEST": 2, "MESZ": 2, "EET": 2, "EEST": 3, "MSK": 3,
         "JST": 9, "KST": 9, "AEST": 10, "AEDT": 11, "NZST": 12, "NZDT": 13}  # fmt: skip
DIGITS = re.compile(r"\d+", re.ASCII)


def moments(dates: pa.ChunkedArray | pa.Array) -> pa.Array | pa.ChunkedArray:
    """Microseconds since 1970, UTC where no zone is named; null where there is no date that can be read: ISO 8601,
    mails', a year or a month, 14 digits, seconds (or thousandths, or millionths) since 1970."""
    if dates.null_count == len(dates):
        return pa.nulls(len(dates), pa.int64())
    parsed = pc.strptime(dates, WARC, "us", error_is_null=True)
    late = pc.is_in(pc.utf8_slice_codeunits(dates, 8, 10), value_set=pa.array(["29", "30", "31"], dates.type))
    moved = pc.and_(late, pc.less(pc.day(parsed), 4))  # 31 February became 2 March
    usual = pc.if_else(pc.fill_null(moved, False), None, parsed.cast(pa.int64()))
    unread = pc.and_(pc.is_null(usual), pc.greater(pc.fill_null(pc.utf8_length(dates), 0), 0))
    if not pc.any(unread).as_py():
        return usual
    read = {text: moment(text) for text in pc.unique(pc.drop_null(pc.filter(dates, unread))).to_pylist()}
    others = pa.array([read.get(text) for text in dates.to_pylist()], pa.int64())
    return pc.coalesce(usual, others)


def moment(text: str) -> int | None:
    text = text.strip()
    try:
        parsed = _read(text)
        since = (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)) - BEGINS
    except (ValueError, TypeError, OverflowError):  # years, hours and zones may have any number of digits
        return None
    return since // timedelta(microseconds=1)


def _read(text: str) -> datetime:
    if partial := PARTIAL.fullmatch(text):
        return datetime(int(partial[1]), int(partial[2] or 1), 1)
    if CAPTURE.fullmatch(text):
        return datetime.strptime(text, "%Y%m%d%H%M%S")
    if SINCE.fullmatch(text):
        return BEGINS + timedelta(microseconds=int(text.ljust(16, "0")))
    if DIGITS.fullmatch(text) and len(text) != len(
        "20240131"
    ):  # Python would take any digit for what parts a day from its time
        raise ValueError(text)
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return parsedate_to_datetime(ZONE.sub(_offset, HALF_DAY.sub(_of_24, text)))


def _of_24(found: re.Match[str]) -> str:
    return f"{int(found[1]) % 12 + (12 if found[3] in 'Pp' else 0):02d}{found[2]}"


def _offset(found: re.Match[str]) -> str:
    """A zone by its name, of which Python would take any that it does not know as UTC."""
    name = found[2].upper()
    if name in KNOWN:
        return found[0]
    if name not in HOURS:
        raise ValueError(found[0])
    return f"{found[1]} {HOURS[name]:+03d}00"
