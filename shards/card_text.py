"""Text from outside, escaped for its place in a dataset card: Markdown, its tables and links, fenced blocks, YAML.

Names of sources, addresses, licenses and recipes are written by others. Whatever they contain, a reader sees the
characters and no markup: no HTML, link, mention, table cell or front matter. Invisible characters and those that change
the direction of a line (control and format characters, lone surrogates) are shown as U+FFFD.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

import yaml

REPLACEMENT = "\ufffd"
UNSEEN = {"Cc", "Cf", "Co", "Cs", "Cn"}  # of Unicode's categories; joiners between letters (ZWJ, ZWNJ) are text
JOINERS = {"\u200c", "\u200d"}
BEGINS_A_LIST = re.compile(r"^([-+]|\d+(?=[.)]))")
MARKED = re.compile(r"([\\`*_\[\]{}|#~$!:@^=])")
ADDRESS = "-._~:/?#=%+,;@"  # beside letters and digits, what an address may hold and Markdown leaves alone


def one_line(value: object) -> str:
    """All white space as single spaces, without invisible characters."""
    return " ".join(visible(str(value)).split())


def visible(value: str) -> str:
    return "".join(
        c
        if c in "\n\t" or c in JOINERS or unicodedata.category(c) not in UNSEEN
        else " "
        if c in "\r\v\f\x85"
        else REPLACEMENT
        for c in value
    )


def plain(value: object) -> str:
    """Text inside a line, at its start too, or in a table cell."""
    text = one_line(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"(?i)\bwww\.", lambda match: match[0][:-1] + "\\.", MARKED.sub(r"\\\1", text))
    return BEGINS_A_LIST.sub(lambda match: f"\\{match[0]}" if match[0] in "-+" else f"{match[0]}\\", text)


def link(name: object, address: object) -> str:
    """A link if it is a web address, else both as text."""
    place = one_line(address)
    if not place:
        return plain(name)
    try:
        parts = urlsplit(place)
        on_the_web = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:  # such as a bracket that opens an IPv6 address and does not close
        on_the_web = False
    if not on_the_web:
        return f"{plain(name)} ({plain(place)})"
    return f"[{plain(name) or plain(place)}](<{'&amp;'.join(quote(part, safe=ADDRESS) for part in place.split('&'))}>)"


def number(value: object) -> str:
    """Counts with commas, shares with their significant digits; anything else as text."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return plain(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def share(part: float, whole: float) -> str:
    return f"{part / whole:.2%}" if whole else "–"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are Markdown already; a header of `name:` is set to the right."""
    lines = [[name.rstrip(":") for name in header], ["--:" if name.endswith(":") else "---" for name in header], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def fenced(value: object, language: str) -> str:
    """A block of code as it is, behind a fence that is longer than any in it."""
    text = visible(str(value).replace("\r\n", "\n")).rstrip("\n")
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"


def front_matter(values: dict[str, Any]) -> str:
    """YAML between its two lines; every string on one line of its own."""
    return "---\n" + yaml.safe_dump(_on_one_line(values), sort_keys=False, allow_unicode=True, width=2**20) + "---\n"


def _on_one_line(value: Any) -> Any:
    if isinstance(value, dict):
        return {one_line(key): _on_one_line(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_on_one_line(item) for item in value]
    return one_line(value) if isinstance(value, str) else value
