"""Words and numbers for a person, in a terminal and on a page: text made harmless, counts, shares and sizes.

Presentation only: fingerprints leave this module out, so no result may depend on it.
"""

from __future__ import annotations

import re

# Controls (but tab and newline), lone surrogates, line separators, and what turns the direction of the text around it.
UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


def plain(text: str) -> str:
    """Text that cannot steer a terminal or a page: control characters become visible ones, lines and tabs stay."""
    return UNPRINTABLE.sub(
        lambda found: chr(0x2400 + ord(found[0])) if ord(found[0]) < 0x20 else "\ufffd", text.replace("\r\n", "\n")
    )


def one_line(text: str) -> str:
    return plain(" ".join(text.split()))


ROUNDING = 1e-12  # a sum of shares that are all of it may come to a little less


def with_minus(text: str) -> str:
    """A number with a minus sign where it has a hyphen."""
    return f"−{text[1:]}" if text.startswith("-") else text


def as_number(value: float | None) -> str:
    return "–" if value is None else with_minus(f"{value:,.0f}")


def as_change(value: float, form: str = ",") -> str:
    """A number with its sign, none before 0."""
    return with_minus(f"{value:+{form}}") if value else f"{abs(value):{form}}"


def as_growth(before: float | None, after: float | None) -> str:
    """By how much of what it was a number has changed; from ten times on, how many times it is what it was. Nothing
    where one is not known, or nothing."""
    if not before or after is None:
        return ""
    change = after / before - 1
    return f"×{after / before:,.0f}" if change >= 9 else as_change(change if abs(change) >= 0.005 else 0, ".0%")


def as_share(part: float, whole: float) -> str:
    if not whole:
        return "–"
    share = 100 * part / whole
    return "<0.1%" if 0 < share < 0.05 else ">99.9%" if 99.95 <= share < 100 else f"{share:.1f}%"


def as_bytes(size: float | None) -> str:
    if size is None:
        return "–"
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def as_percent(share: float) -> str:
    """Two decimals; what is not quite all, or not quite nothing, never looks as if it were."""
    text = with_minus(f"{share:.2%}")
    if text == "100.00%" and share < 1 - ROUNDING:
        return ">99.99%"
    return "<0.01%" if text == "0.00%" and share > 0 else text.removeprefix("−") if text == "−0.00%" else text


def as_short(value: float) -> str:
    """Three digits that count, or whole thousands."""
    return with_minus(f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}")
