"""How words and numbers are shown, in a terminal and on a page. Those that stages need too come from their floor."""

from __future__ import annotations

import base64
import difflib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gristmill.stages.formatting import (
    as_bytes,
    as_change,
    as_growth,
    as_number,
    as_percent,
    as_share,
    as_short,
    one_line,
    plain,
    with_minus,
)

__all__ = [
    "as_amount", "as_bytes", "as_change", "as_energy", "as_growth", "as_hex", "as_json", "as_moment", "as_money", "as_number",
    "as_percent", "as_rate", "as_requests", "as_seconds", "as_share", "as_short", "as_tokens", "by_size", "flat",
    "for_machines", "nearest", "one_line", "plain", "uids_meant", "with_minus",
]  # fmt: skip
HEX = re.compile("[0-9a-f]+")


def for_machines(value: object) -> str:
    """Values that JSON has no kind for: bytes in base64 (packed numbers, such as token ids), all else as `str`."""
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else str(value)


def as_json(data: object) -> str:
    """For `--json`. Every control character is escaped, so that it is safe to print too."""
    return json.dumps(data, default=for_machines).replace("\x7f", "\\u007f")


def by_size(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """The largest first, then by name."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def nearest(word: str, known: Sequence[str]) -> str:
    """The end of an error message: a likely spelling, and all there is."""
    close = difflib.get_close_matches(word, known, n=1)
    guess = f"; did you mean {one_line(close[0])}?" if close else "."
    return f"{guess} There are: {', '.join(one_line(name) for name in known) or 'none'}"


def as_hex(uid: int | None) -> str | None:
    return None if uid is None else f"{uid:016x}"


def uids_meant(text: str) -> list[int]:
    """The uids that a text may stand for: 16 hex digits, as in reports, or a decimal number, as in tables. 16 decimal
    digits without 0x may be either. Empty if the text is no uid."""
    digits = text.strip().lower()
    bare = digits.removeprefix("0x")
    is_hex = bool(HEX.fullmatch(bare)) and (bare != digits or len(bare) == 16)
    readings = [int(bare, 16)] if is_hex else []
    if digits.isascii() and digits.isdecimal():
        readings.append(int(digits))
    return [uid for uid in dict.fromkeys(readings) if uid < 1 << 64]


def as_seconds(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if 0 < seconds < 0.01:
        return f"{1000 * seconds:.1f} ms" if seconds >= 0.001 else "<1 ms"
    if seconds < 100:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def as_moment(time: str) -> str:
    """An ISO time without its fraction of a second: 2026-01-31 12:00:00 +01:00."""
    date, _, rest = time.partition("T")
    clock, zone = rest[:8], rest[8:].lstrip(".0123456789")
    return " ".join(part for part in (date, clock, "UTC" if zone in ("Z", "+00:00") else zone) if part)


def as_tokens(tokens: int | None, counted: bool) -> str:
    """Tokens that were estimated are few digits with a sign before them."""
    if tokens is None or counted:
        return as_number(tokens)
    digits = max(0, len(str(tokens)) - 3)
    return f"~{round(tokens, -digits):,}"


def as_requests(requests: Mapping[str, int]) -> str:
    """What was asked of object stores: `1,204 GET, 88 PUT, 3 sent again; 1.2 GB in, 88 MB out`."""
    kinds = [f"{requests[kind]:,} {kind}" for kind in ("GET", "HEAD", "LIST", "PUT", "DELETE") if requests.get(kind)]
    again = [f"{requests['retries']:,} sent again"] if requests.get("retries") else []
    size_in, size_out = as_bytes(requests.get("bytes_in", 0)), as_bytes(requests.get("bytes_out", 0))
    return f"{', '.join([*kinds, *again])}; {size_in} in, {size_out} out"


def as_energy(joules: float | None) -> str:
    if joules is None:
        return "–"
    return f"{joules:,.0f} J" if joules < 36_000 else f"{joules / 3.6e6:,.3g} kWh"


def as_amount(amount: float | None) -> str:
    """Money, to the cent."""
    if amount is None:
        return "–"
    return "<0.01" if 0 < amount < 0.005 else f"{amount:,.2f}"


def as_money(amount: float | None, currency: str | None) -> str:
    return "–" if amount is None else f"{as_amount(amount)} {currency}"


def as_rate(documents: int, seconds: float | None) -> str:
    return as_number(documents / seconds) if seconds else "–"


def flat(settings: Mapping[str, Any], above: str = "") -> dict[str, str]:
    """Settings by their path, as text; lists as a whole, and what is null left out."""
    texts: dict[str, str] = {}
    for key, value in settings.items():
        path = f"{above}{key}"
        if isinstance(value, Mapping) and value:
            texts |= flat(value, f"{path}.")
        elif value is not None:
            texts[path] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return texts
