"""One page of HTML that works offline: sections in one skeleton, with one style sheet. The report, the comparison of
two runs, ablations and the public summary are lists of sections.

Crawled text on a page is hostile: all markup is made by `fragment`, a jinja2 template in which every value loses its
control characters and is escaped. Never put crawled text into `Markup`.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from gristmill.pipeline.formatting import as_bytes, as_moment, as_number, as_seconds, as_share, as_tokens, plain
from gristmill.pipeline.tables import Table, as_html

HERE = Path(__file__).parent
STYLE = HERE / "style.css"  # colors, type and spacing of every page, those of `explore` too


@dataclass(frozen=True)
class Section:
    """A part of a page, with its entry in the navigation."""

    key: str  # its id
    title: str
    html: Markup
    menu: str = ""  # its name in the navigation, where that is shorter
    look: str = ""  # alarms: a box that stands out
    entries: Sequence[tuple[str, str]] = ()  # below it in the navigation: id, name


@dataclass(frozen=True)
class Page:
    """What stands around the sections."""

    kind: str  # report, ablation, ...
    name: str
    head: Markup  # below the name
    footer: Markup
    script: str = ""
    data: Markup | str = ""  # JSON for the script
    after: Markup | str = ""  # behind the last section


def page_of(page: Page, sections: Iterable[Section | None]) -> str:
    """The whole file; the caller writes it."""
    there = [section for section in sections if section is not None]
    digest = base64.b64encode(hashlib.sha256(page.script.encode()).digest()).decode()
    values = {"page": page, "sections": there, "script": Markup(page.script), "script_hash": digest}
    return environment().get_template("page.html").render(values)


def fragment(template: str, values: Mapping[str, object]) -> Markup:
    """Markup from a jinja2 template; every value in it is escaped."""
    return Markup(compiled(template).render(values))


@cache
def compiled(template: str) -> Template:
    """jinja2 remembers files only, and a report draws a histogram of each signal."""
    return environment().from_string("{% import 'parts.html' as parts %}" + template)


@cache
def environment(templates: Path = HERE) -> Environment:
    """Every value is escaped, and loses its control characters before that; a name that is not there is an error."""
    jinja = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        loader=FileSystemLoader(templates),
        finalize=harmless,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters |= {
        "number": as_number,
        "seconds": as_seconds,
        "bytes": as_bytes,
        "tokens": as_tokens,
        "moment": as_moment,
        "ticked": ticked,
    }
    jinja.tests |= {"web": is_web}
    jinja.globals |= {"share": as_share}
    return jinja


def harmless(value: object) -> object:
    return plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value


# --- pieces that several pages have -----------------------------------------------------------------------------------


def facts(pairs: Iterable[tuple[str, str | None]], missing: str = "not measured") -> Markup:
    """A grid of large values; a part of one in parentheses stands small below it."""
    return fragment("{{ parts.facts(pairs, missing) }}", {"pairs": list(pairs), "missing": missing})


def settings(pairs: Iterable[tuple[str, str]], look: str = "mono") -> Markup:
    """Names and values in two columns."""
    return fragment("{{ parts.settings(pairs, look) }}", {"pairs": list(pairs), "look": look})


def fold(title: str, content: Markup, is_open: bool = False) -> Markup:
    """Content behind a line that unfolds it."""
    template = '<details class="fold"{{ " open" if is_open }}><summary dir="auto">{{ title }}</summary>{{ content }}</details>\n'
    return fragment(template, {"title": title, "content": content, "is_open": is_open})


def tables(*found: Table) -> Markup:
    """Those that have rows."""
    return Markup("").join(as_html(table) for table in found if table.rows)


def paragraphs(lines: Iterable[str], look: str = "") -> Markup:
    template = '{% for line in lines %}<p dir="auto"{% if look %} class="{{ look }}"{% endif %}>{{ line | ticked }}</p>\n{% endfor %}'
    return fragment(template, {"lines": list(lines), "look": look})


def alarms(key: str, title: str, lines: Sequence[str], menu: str = "") -> Section | None:
    """A box with a line for each; nothing without lines."""
    html = fragment('<ul>{% for line in lines %}<li dir="auto">{{ line }}</li>{% endfor %}</ul>', {"lines": lines})
    return Section(key, title, html, menu, look="alarms") if lines else None


# --- words as markup --------------------------------------------------------------------------------------------------


def ticked(text: str) -> Markup:
    """A sentence in which `names` stand as code; all else of it is escaped."""
    parts = plain(text).split("`")
    if len(parts) % 2 == 0:  # a tick that nothing closes
        return Markup.escape(plain(text))
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if k % 2 else Markup.escape(part) for k, part in enumerate(parts)
    )


def is_web(url: object) -> bool:
    """May this be a link? Only a plain http(s) address."""
    if not isinstance(url, str) or plain(url) != url or any(letter.isspace() for letter in url):
        return False
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False
