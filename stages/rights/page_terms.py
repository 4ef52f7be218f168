"""What a page, and the answer that brought it, say of their use: reservations of rights, and a license.

Read from the bytes of the page beside `extract`, and not in a second parse: a kernel finds the few tags and phrases
that may state terms (`kernels/html/terms.py`), and only those are read. Headers are in `meta` where the reader keeps
them (`warc` does when a stage asks, `keep_headers`).
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field, field_validator

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.blocks.heads import JSON_BYTES, TAG_BYTES
from gristmill.kernels.html.terms import JSON, LICENSES, LINK, META, RESERVATIONS, TEXT, term_places
from gristmill.stages.documents import column_of
from gristmill.stages.extract.metadata import things, types_of
from gristmill.stages.read.charset import decode_page
from gristmill.stages.rights.licenses import OTHER, SEVERAL, license_granted, license_in_words, license_of_address
from gristmill.stages.stage import Annotate

# Directives of robots tags and headers that restrict use; all others are of no account here.
RESTRICTING = ("noai", "noimageai", "noindex", "noarchive", "nocache", "nosnippet")
HARMLESS = ("all", "index", "follow", "nofollow", "archive", "snippet", "none", "noimageindex", "noodp", "noydir",
            "notranslate")  # fmt: skip
DIRECTIVE = re.compile(r"(?:([a-z][a-z0-9_-]{1,40})\s*:\s*)?([a-z]{4,12})\b", re.IGNORECASE)
AGENT = re.compile(r"[a-z][a-z0-9_-]{1,40}")
AGENTS_OF_A_TAG = 8  # that are read, of those in its name
EVERY_AGENT = ("robots", "*", "")
TRAIN = re.compile(r"(?:train-ai|ai-train|bots-train-ai)\s*=\s*\"?(n|no|y|yes)\b", re.IGNORECASE)
MOST_STATED = 20  # of a page
BEHIND, AHEAD = 600, 400  # bytes around a phrase that are read
MARKUP = re.compile(r"<[^>]{0,2000}>?")
# One attribute. The look-behind lets it begin only where a word begins: else a long word would be tried from each of
# its letters.
ATTRIBUTE = re.compile(rb"(?<![\w:.-])([A-Za-z_:][\w:.-]*+)\s*+=\s*+(?:\"([^\"]*+)\"|'([^']*+)'|([^\s\"'<>=`]++))")
MEDIA = {"imageobject", "videoobject", "audioobject", "mediaobject", "softwareapplication", "softwaresourcecode",
         "3dmodel", "mobileapplication", "webapplication"}  # fmt: skip
# In which order what is stated counts: a license of the page before one that it may only mention.
SOURCES = ("rel", "json_ld", "meta", "text", "link")
LICENSE_META = ("license", "licence", "dc.rights", "dcterms.rights", "dcterms.license", "dc.license", "rights",
                "cc:license", "dct:license", "copyright")  # fmt: skip
HEADERS = ("x_robots_tag", "tdm_reservation", "content_usage")  # in `meta`


class PageTerms(Annotate):
    """Measure what a page states of its use: `reservations` (robots directives, TDM reservations and Content-Usage, in
    headers and tags) and `license_stated` with `license_stated_in` (rel=license, JSON-LD, meta tags, phrases, links).

    It reads pages, so it stands before `extract`; the mill puts it there where a rule asks. A document without a page
    has the terms of its headers alone. Licenses are named as SPDX does, or `other`, or `several` that differ.
    """

    only: Annotated[tuple[str, ...], Field(description="signals that are wanted; none named is all")] = ()

    needs: ClassVar[tuple[str, ...]] = ("html", "charset", "meta")
    adds: ClassVar[tuple[str, ...]] = ("reservations", "license_stated", "license_stated_in")

    @field_validator("only")
    @classmethod
    def _are_its_own(cls, only: tuple[str, ...]) -> tuple[str, ...]:
        for name in only:
            if name not in cls.adds:
                raise ValueError(f"{name} is none of its signals; there are {', '.join(cls.adds)}")
        return only

    @property
    def reads_headers(self) -> bool:  # type: ignore[override]
        return "reservations" in self.added

    def prepare(self) -> None:
        term_places(np.frombuffer(b"<meta name=robots content=noai>", np.uint8), RESERVATIONS | LICENSES)

    def annotate(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        wanted = (RESERVATIONS if self.reads_headers else 0) | (
            LICENSES if {"license_stated", "license_stated_in"} & {*self.added} else 0
        )
        names = batch.schema.names
        metas = batch.column("meta").to_pylist() if "meta" in names else [None] * len(batch)
        charsets = batch.column("charset").to_pylist() if "charset" in names else [None] * len(batch)
        reservations: list[str | None] = []
        licenses: list[str | None] = []
        sources: list[str | None] = []
        for page, charset, meta in zip(pages_of(batch), charsets, metas, strict=True):
            stated = page_says(page, charset, wanted)
            reservations.append(" ".join(dict.fromkeys([*headers_say(meta), *stated.reservations])) or None)
            license, source = stated.license()
            licenses.append(license)
            sources.append(source)
        columns = {"reservations": reservations, "license_stated": licenses, "license_stated_in": sources}
        return {name: column_of(columns[name], pa.string()) for name in self.added}


class Stated:
    """What one page states: reservations in words, and licenses by where they stand."""

    def __init__(self) -> None:
        self.reservations: list[str] = []
        self.licenses: dict[str, list[str]] = {}

    def reserve(self, what: str) -> None:
        if len(self.reservations) < MOST_STATED:
            self.reservations.append(what)

    def note_license(self, source: str, name: str | None) -> None:
        if name is not None:
            self.licenses.setdefault(source, []).append(name)

    def license(self) -> tuple[str | None, str | None]:
        """The license of the surest source, and which that is. What differs only in that one is more exact
        (`CC-BY` and `CC-BY-4.0`) is the same."""
        for source in SOURCES:
            named = list(dict.fromkeys(self.licenses.get(source, ())))
            known = [name for name in named if name != OTHER]
            exact = [name for name in known if not any(o != name and o.startswith(f"{name}-") for o in known)]
            if len(exact) > 1:
                return SEVERAL, source
            if exact:
                return self.with_version(exact[0]), source
            if named:
                return named[0], source
        return None, None

    def with_version(self, name: str) -> str:
        """`CC-BY` as another place on the page states it: `CC-BY-4.0`, if all that name a version agree."""
        exact = {o for named in self.licenses.values() for o in named if re.fullmatch(re.escape(name) + r"-\d\.\d", o)}
        return exact.pop() if len(exact) == 1 else name


def pages_of(batch: pa.RecordBatch) -> Iterator[np.ndarray[Any, np.dtype[np.uint8]] | None]:
    """The bytes of each page, without a copy."""
    if "html" not in batch.schema.names:
        yield from [None] * len(batch)
        return
    column = batch.column("html")
    if column.null_count == len(column):
        yield from [None] * len(batch)
        return
    data, offsets = text_column(column)
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    for row, (start, end) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
        yield data[start:end] if valid[row] else None


def page_says(page: np.ndarray[Any, np.dtype[np.uint8]] | None, charset: str | None, wanted: int) -> Stated:
    stated = Stated()
    if page is None or not len(page):
        return stated
    if wide(bytes(page[:2]), charset):
        page = np.frombuffer(decode_page(page.tobytes(), charset).utf8, np.uint8)
    for kind, start, end in term_places(page, wanted).tolist():
        if kind == JSON:
            if end - start <= JSON_BYTES:
                json_says(page[start:end].tobytes(), stated)
            continue
        span = page[start : min(end, start + TAG_BYTES)].tobytes()
        if kind == META:
            meta_says(attributes(span), wanted, stated)
        elif kind == LINK:
            link_says(span, attributes(span), stated)
        elif kind == TEXT:
            before = shown(page[max(0, start - BEHIND) : start].tobytes())
            # the search finds the middle of `Creative Commons`
            before, phrase = joined(before, shown(page[start : start + AHEAD].tobytes()))
            stated.note_license("text", license_granted(before, phrase))
    return stated


def wide(first: bytes, charset: str | None) -> bool:
    """Is the page in an encoding whose ASCII is not single bytes?"""
    return first in (b"\xff\xfe", b"\xfe\xff") or (charset or "").lower().startswith(("utf-16", "utf-32", "utf16"))


def shown(data: bytes) -> str:
    return " ".join(html.unescape(MARKUP.sub(" ", data.decode("utf-8", "replace"))).split(" "))


def joined(before: str, phrase: str) -> tuple[str, str]:
    """The text around a hit, cut where the name of a license begins."""
    text = " ".join((before + phrase).split())
    place = len(" ".join(before.split()))
    at = text.lower().rfind("creative", 0, place + 8)
    if at < 0 or place - at > 8:
        at = place
        while at < len(text) and text[at] == " ":
            at += 1
    return text[:at], text[at:]


def attributes(tag: bytes) -> dict[str, bytes]:
    """The attributes of a tag, the first of each name."""
    values: dict[str, bytes] = {}
    for name, double, single, bare in ATTRIBUTE.findall(tag):
        values.setdefault(name.decode("latin-1").lower(), double or single or bare)
    return values


def meta_says(values: dict[str, bytes], wanted: int, stated: Stated) -> None:
    name = text_of(values.get("name") or values.get("property") or values.get("itemprop") or b"").lower()
    content = text_of(values.get("content", b""))
    if not name or not content:
        return
    if wanted & RESERVATIONS:
        if name == "tdm-reservation":
            stated.reserve(f"tdm_meta={int(content.strip() == '1')}")
        for agent in filter(None, map(str.strip, name.split(",", AGENTS_OF_A_TAG)[:AGENTS_OF_A_TAG])):
            if agent in EVERY_AGENT or (AGENT.fullmatch(agent) and all_directives(content)):
                for directive in restricting(content, agent):
                    stated.reserve(f"meta={directive}")
    if wanted & LICENSES and name in LICENSE_META:
        stated.note_license("meta", license_of_address(content) or license_in_words(content))


def link_says(tag: bytes, values: dict[str, bytes], stated: Stated) -> None:
    """A link that is a license by its `rel`, or that leads to one."""
    address = text_of(values.get("href", b""))
    known = license_of_address(address)
    words = b" ".join(values.get(name, b"") for name in ("rel", "property", "itemprop")).lower().split()
    if any(word in (b"license", b"licence", b"cc:license", b"dct:license", b"dcterms:license") for word in words):
        if address.strip():
            stated.note_license("rel", known or OTHER)
    elif not tag[:6].lower().startswith(b"<link"):
        stated.note_license("link", known)


def json_says(script: bytes, stated: Stated) -> None:
    for thing in things(script):
        if MEDIA & {*types_of(thing)}:
            continue
        value = thing.get("license")
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict):
                each = each.get("@id") or each.get("url") or each.get("name")
            if isinstance(each, str) and each.strip():
                stated.note_license("json_ld", license_of_address(each) or license_in_words(each) or OTHER)


def headers_say(meta: str | None) -> Iterator[str]:
    """What headers reserve, out of the `meta` in which a reader keeps them."""
    if meta is None or not any(f'"{name}"' in meta for name in HEADERS):
        return
    try:
        known = json.loads(meta)
    except (ValueError, RecursionError):
        return
    if not isinstance(known, dict):
        return
    if isinstance(tag := known.get("x_robots_tag"), str):
        for directive in restricting(tag, "")[:MOST_STATED]:
            yield f"header={directive}"
    if isinstance(tdm := known.get("tdm_reservation"), str):
        yield f"tdm_header={int(tdm.strip() == '1')}"
    if isinstance(usage := known.get("content_usage"), str) and (train := TRAIN.search(usage)):
        yield f"usage_header={int(train[1].lower().startswith('n'))}"


def all_directives(content: str) -> bool:
    """Does a tag hold directives and nothing else? Then its name may be that of an agent, and is not `description`."""
    said = re.split(r"[\s,;]+", content.strip(" ,;").lower()[:1000])
    return all(word in RESTRICTING or word in HARMLESS or word.startswith("max-") for word in said)


def restricting(value: str, name: str) -> list[str]:
    """Directives that restrict use, each after the agent that it is for: `noai`, `gptbot:noindex`. In a header an agent
    stands before its directives; in a tag it is the name."""
    found = []
    for part in re.split(r"[;\n]", value[:1000]):  # headers that were repeated
        agent = "" if name in EVERY_AGENT else name
        for match in DIRECTIVE.finditer(part):
            named = (match[1] or "").lower()
            if named and named not in ("max-snippet", "max-image-preview", "max-video-preview", "unavailable_after"):
                agent = "" if named in EVERY_AGENT else named
            directive = match[2].lower()
            if directive == "none" and not named.startswith("max-"):  # stands for noindex and nofollow
                directive = "noindex"
            if directive in RESTRICTING:
                found.append(f"{agent}:{directive}" if agent else directive)
    return list(dict.fromkeys(found))


def text_of(value: bytes) -> str:
    return html.unescape(value[:4000].decode("utf-8", "replace"))
