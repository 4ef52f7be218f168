"""How words and numbers are shown, in a terminal and on a page: crawled text made harmless, counts, shares, times and
sizes."""

from __future__ import annotations

import base64
import difflib
import re
from collections.abc import Sequence

# Controls (but tab and newline), lone surrogates, line separators, and what turns the direction of the text around it.
UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b\u200e\u200f"
    "\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


def plain(text: str) -> str:
    """Text that cannot steer a terminal or a page: control characters become visible ones, lines and tabs stay."""
    return UNPRINTABLE.sub(
        lambda match: chr(0x2400 + ord(match[0])) if ord(match[0]) < 0x20 else "\ufffd", text.replace("\r\n", "\n")
    )


def for_machines(value: object) -> str:
    """Values that JSON has no kind for: bytes in base64 (packed numbers, such as token ids), all else as `str`."""
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else str(value)


def one_line(text: str) -> str:
    return plain(" ".join(text.split()))


def nearest(word: str, known: Sequence[str]) -> str:
    """The end of an error message: a likely spelling, and all there is."""
    close = difflib.get_close_matches(word, known, n=1)
    guess = f"; did you mean {one_line(close[0])}?" if close else "."
    return f"{guess} There are: {', '.join(one_line(name) for name in known) or 'none'}"


def as_hex(uid: int | None) -> str | None:
    return None if uid is None else f"{uid:016x}"


def as_number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def as_share(part: float, whole: float) -> str:
    if not whole:
        return "–"
    share = 100 * part / whole
    return "<0.1%" if 0 < share < 0.05 else ">99.9%" if 99.95 <= share < 100 else f"{share:.1f}%"


def as_seconds(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if 0 < seconds < 0.01:
        return f"{1000 * seconds:.1f} ms" if seconds >= 0.001 else "<1 ms"
    if seconds < 100:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def as_bytes(size: float | None) -> str:
    if size is None:
        return "–"
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def as_tokens(tokens: int | None, counted: bool) -> str:
    """Tokens that were estimated are few digits with a sign before them."""
    if tokens is None or counted:
        return as_number(tokens)
    digits = max(0, len(str(tokens)) - 3)
    return f"~{round(tokens, -digits):,}"


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


def as_percent(share: float) -> str:
    """Two decimals; what is not quite all, or not quite nothing, never looks as if it were."""
    text = f"{share:.2%}".replace("-", "−")
    if text == "100.00%" and share < 1:
        return ">99.99%"
    return "<0.01%" if text == "0.00%" and share > 0 else text.removeprefix("−") if text == "−0.00%" else text


def as_short(value: float) -> str:
    """Three digits that count, or whole thousands."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
