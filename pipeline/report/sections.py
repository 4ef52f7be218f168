"""Sections of a stage's part of the report.

What a stage shows of itself are its `figures` (`gristmill.stages.stage`), which `blocks` makes markup of. A maker adds
a section that a stage does not know of: it gets the stage's entry of run.json and its report.json, and returns a
section, or None where there is nothing to show. It is found by the stage's kind, or by its name in recipes. All markup
is made by `fragment`, a jinja2 template in which every value is escaped; never put crawled text into Markup.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from gristmill.pipeline.formatting import (
    as_amount,
    as_bytes,
    as_number,
    as_rate,
    as_seconds,
    as_share,
    as_tokens,
    plain,
)
from gristmill.pipeline.look.run_folder import Told
from gristmill.pipeline.store.run_records import StageRecord


@dataclass(frozen=True)
class Section:
    """A titled piece of the report, made by `fragment`. It stands with its stage, or, where it names a topic, in that
    topic's own part of the page."""

    title: str
    html: Markup
    unfolded: bool = False  # a stage with such a section is open from the start
    topic: str = ""  # a key of `TOPICS`


TOPICS = {  # in the order of the page: title, and what it is about
    "languages": (
        "Languages",
        "What the language model says of the documents that came to the rules, and how many of each stay.",
    ),
    "duplicates": (
        "Duplicates",
        "How large clusters of equal and near-equal documents are, and pairs with their differences marked.",
    ),
    "judges": ("Judges", "What judges are, how their scores lie in each source, and documents at each tenth."),
    "mix": ("Mix", "How much is drawn from each source, how often it repeats, and what that is good for."),
    "curriculum": ("Curriculum", "In which order training sees the documents."),
    "packing": ("Packing", "How documents fill rows, which of them were cut, and what lies in the shards."),
    "tokens": ("Tokens", "What the tokenizer makes of each language and source."),
    "ablations": ("Ablations", "Whether models that learned from this data got better, arm by arm, beside a control."),
}


SectionMaker = Callable[[StageRecord, Told], Section | None]  # from the entry of run.json and report.json


def sections_of(stage: StageRecord, report: Told, makers: Mapping[str, SectionMaker]) -> list[Section]:
    """What the makers of this stage have to show, by its name in recipes, its own name, and its kind."""
    names = dict.fromkeys(name for name in (stage.stage, stage.name, stage.kind) if name)
    sections = [makers[name](stage, report) for name in names if name in makers]
    return [section for section in sections if section is not None]


def fragment(template: str, values: Mapping[str, object]) -> Markup:
    """Markup from a jinja2 template; every value in it is escaped."""
    return Markup(compiled(template).render(values))


@cache
def compiled(template: str) -> Template:
    """jinja2 remembers files only, and a report draws a histogram of each signal."""
    return environment().from_string(template)


@cache
def environment(templates: Path = Path(__file__).parent) -> Environment:
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
        "money": as_amount,
        "moment": moment,
        "ticked": ticked,
        "breakable": breakable,
    }
    jinja.tests |= {"web": is_web}
    jinja.globals |= {"share": as_share, "rate": as_rate}
    return jinja


def harmless(value: object) -> object:
    return plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def ticked(text: str) -> Markup:
    """A sentence in which `names` stand as code; all else of it is escaped."""
    parts = plain(text).split("`")
    if len(parts) % 2 == 0:  # a tick that nothing closes
        return Markup.escape(plain(text))
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if k % 2 else Markup.escape(part) for k, part in enumerate(parts)
    )


def breakable(name: str) -> Markup:
    """A long name that may go to the next line behind a dot or an underscore."""
    return Markup("").join(
        Markup("{}<wbr>").format(part) if part in "._" else Markup.escape(part)
        for part in re.split("([._])", plain(name))
        if part
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


def moment(time: str) -> str:
    """An ISO time without its fraction of a second: 2026-01-31 12:00:00 +00:00."""
    date, _, rest = time.partition("T")
    clock, zone = rest[:8], rest[8:].lstrip(".0123456789")
    return " ".join(part for part in (date, clock, "UTC" if zone in ("Z", "+00:00") else zone) if part)


def reading(stage: StageRecord, report: Told) -> Section | None:
    """How fast a source was read."""
    count = stage.count
    if not count.bytes_in or not count.seconds or not count.docs_in:
        return None
    template = (
        "<p>{{ size | bytes }} read, {{ (size / seconds) | bytes }} a second; a record has"
        " {{ (size / records) | bytes }} on average.</p>"
    )
    values = {"size": count.bytes_in, "seconds": count.seconds, "records": count.docs_in}
    return Section("Volume", fragment(template, values))


def writing(stage: StageRecord, report: Told) -> Section | None:
    """How much a sink wrote."""
    size, kept = stage.count.bytes_out, stage.count.kept
    if not size or not kept:
        return None
    template = (
        "<p>{{ size | bytes }} written below <code>{{ name }}/</code>, {{ (size / kept) | bytes }} a document.</p>"
    )
    return Section("Files", fragment(template, {"size": size, "kept": kept, "name": stage.name}))


# Sections beside the figures that a stage makes itself, by kind or name of stages.
MAKERS: Mapping[str, SectionMaker] = {"read": reading, "sink": writing}
