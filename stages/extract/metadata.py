"""What a page says of itself in its head: title, author, date, language, canonical address, kind; and what kinds of
thing it describes.

Read from the spans that the segmenter found (`Page.head_kind`), so that nothing looks through the page again. Order of
evidence: JSON-LD of the page's main thing (schema.org), then meta tags (OpenGraph, Dublin Core, citation_*), then
elements (<title>, <time>). All is crawled text: spans are cut at a size, numbers of tags are bounded, and every pattern
is linear.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import urljoin, urlsplit

from gristmill.kernels.blocks.columns import KNOWN
from gristmill.kernels.html.names import (
    HEAD_BASE,
    HEAD_CELL,
    HEAD_HTML,
    HEAD_ITEM,
    HEAD_JSON,
    HEAD_LINK,
    HEAD_LIST,
    HEAD_META,
    HEAD_PRE,
    HEAD_TIME,
    HEAD_TITLE,
)

TAG_BYTES, JSON_BYTES = 16 << 10, 256 << 10  # of one span; longer tags are cut, longer JSON is not read
MOST_TAGS, MOST_JSON, MOST_THINGS = 400, 8, 2000
LONGEST = 1000  # characters of a value that is kept

# One attribute. The look-behind lets it begin only where a word begins: else a long word would be tried from each of
# its letters.
ATTRIBUTE = re.compile(rb"(?<![\w:.-])([A-Za-z_:][\w:.-]*+)\s*+=\s*+(?:\"([^\"]*+)\"|'([^']*+)'|([^\s\"'<>=`]++))")
TYPE = re.compile(rb"\"@type\"\s*+:\s*+(?:\[\s*+)?\"([A-Za-z:/.]{1,60}+)\"")
# A reference to no character, or with more zeros than Python reads.
LONG_REFERENCE = re.compile(r"&#(?:0*+[0-9]{9,}|0{1000,}+[0-9]*+|[xX]0*+[0-9a-fA-F]{9,});?")
TAG = re.compile(r"<[^<>]{1,300}>")
DATE = re.compile(r"[12]\d{3}-\d\d?-\d\d?|[12]\d{3}/\d\d?/\d\d?|\d\d?[./]\d\d?[./][12]\d{3}|[12]\d{3}")

OF_THE_TEXT = frozenset((HEAD_LIST, HEAD_PRE, HEAD_CELL, HEAD_ITEM))  # and not of what the page says of itself

SEPARATOR = re.compile(r" (?:[-|–—•·»«:/]|::) ")
TITLES = ("og:title", "twitter:title", "citation_title", "dc.title", "dcterms.title", "title", "headline")
AUTHORS = (
    "author",
    "article:author",
    "article:author_name",
    "citation_author",
    "dc.creator",
    "dcterms.creator",
    "parsely-author",
    "sailthru.author",
)
# What twitter:label1 and label2 call the author whose name is in data1 or data2, where they do not say a price or how
# long it takes to read.
WRITTEN_BY = (
    "written by", "author", "by", "posted by", "verfasst von", "geschrieben von", "autor", "autora", "écrit par",
    "auteur", "escrito por", "publicado por", "scritto da", "autore", "geschreven door", "napisane przez", "napisał",
    "napísal", "napsal", "skriven av", "skrevet af", "skrevet av", "kirjoittanut", "írta", "szerző", "scris de",
    "написано автором", "автор", "yazan", "yazar", "كتب بواسطة", "נכתב על ידי", "執筆者", "投稿者", "作者", "글쓴이",
    "ditulis oleh", "được viết bởi",
)  # fmt: skip
ONE_TAG_EACH = (
    "citation_author",
    "dc.creator",
    "dcterms.creator",
)  # papers name each of their authors in a tag of its own
MOST_AUTHORS = 50
NOBODY = ("undefined", "null", "none", "nan", "unknown", "n/a")
DATES = (
    "article:published_time", "og:article:published_time", "datepublished", "article:published", "date",
    "dc.date.issued", "dc.date", "dcterms.created", "dcterms.date", "citation_publication_date", "citation_date",
    "publish-date", "publishdate", "pubdate", "parsely-pub-date", "sailthru.date", "og:published_time",
    "article:modified_time", "og:updated_time",
)  # fmt: skip

# Meta tags that are looked at by name, beside those of a product and those that describe the page.
LOOKED_AT = frozenset(
    (*TITLES, *AUTHORS, *ONE_TAG_EACH, *DATES, "description", "og:description", "og:site_name", "og:locale", "og:url",
     "og:type", "twitter:label1", "twitter:label2", "twitter:data1", "twitter:data2")
)  # fmt: skip
DESCRIBING = ("description", ":title", "headline")
OF_PRODUCTS = ("product:", "og:price")
LOOKED_AT_AS_WRITTEN = frozenset(name.encode() for name in LOOKED_AT)
DESCRIBING_AS_WRITTEN = tuple(name.encode() for name in DESCRIBING)
OF_PRODUCTS_AS_WRITTEN = tuple(name.encode() for name in OF_PRODUCTS)
SIMPLE_NAME = re.compile(rb"[\w:.-]+")
# `<meta name="..." content="..." />` in three pieces, as five in six are written
PLAIN_META = (frozenset((b"<meta property=", b"<meta name=", b"<meta itemprop=")), b" content=",
              frozenset((b">", b"/>", b" />")))  # fmt: skip

# What schema.org's types and og:type say a page is; the first that is there names its kind.
KIND_OF = {
    "forum": {"discussionforumposting", "qapage", "socialmediaposting"},
    "product": {"product", "productgroup", "individualproduct", "vehicle", "car", "og:product", "product.item",
    "product.group", "og:product.item", "book.product"},
    "recipe": {"recipe"},
    "news": {"newsarticle", "reportagenewsarticle", "analysisnewsarticle", "opinionnewsarticle", "liveblogposting"},
    "article": {"article", "blogposting", "report", "scholarlyarticle", "techarticle", "advertisercontentarticle",
    "medicalscholarlyarticle", "og:article", "blog"},
    "event": {"event", "musicevent", "sportsevent", "businessevent", "educationevent", "theaterevent", "festival"},
    "video": {"videoobject", "og:video", "og:video.other", "og:video.movie", "movie", "tvseries", "tvepisode"},
    "faq": {"faqpage"},
    "list": {"itemlist", "collectionpage", "searchresultspage", "offercatalog", "og:product.group"},
    "place": {"localbusiness", "restaurant", "hotel", "store", "place", "touristattraction", "medicalclinic",
    "dentist", "homeandconstructionbusiness"},
    "website": {"og:website"},
}  # fmt: skip
KINDS = {name: kind for kind, types in KIND_OF.items() for name in types}
NAMED = {"news": "article", "list": "listing", "website": "website"}  # as `kind` calls them, where it differs


@dataclass
class PageHead:
    """The head of one page, read once: meta tags by name, other elements, JSON-LD as bytes."""

    meta: dict[str, str] = field(default_factory=dict)
    authors: dict[str, list[str]] = field(default_factory=dict)  # of the tags in ONE_TAG_EACH
    title: str | None = None
    language: str | None = None
    canonical: str | None = None
    base: str | None = None
    refresh: str | None = None
    time: str | None = None
    json: list[bytes] = field(default_factory=list)
    hints: list[tuple[int, int]] = field(default_factory=list)  # where in the page a description of it stands
    types: set[str] = field(default_factory=set)

    @cached_property
    def things(self) -> list[dict[str, Any]]:
        """What JSON-LD describes."""
        return [thing for script in self.json for thing in things(script)]

    @property
    def kinds(self) -> set[str]:
        return {KINDS[name] for name in self.types if name in KINDS}

    @property
    def known(self) -> int:
        """Bits of KNOWN."""
        return sum(1 << KNOWN.index(kind) for kind in self.kinds if kind in KNOWN)


def read_head(data: bytes | memoryview, kinds: list[int], starts: list[int], ends: list[int]) -> PageHead:
    head = PageHead()
    tags = 0
    for kind, start, end in zip(kinds, starts, ends, strict=True):
        if kind in OF_THE_TEXT:
            continue
        if kind == HEAD_JSON:
            if len(head.json) < MOST_JSON and end - start <= JSON_BYTES:
                script = bytes(data[start:end])
                head.json.append(script)
                head.types.update(types_in(script))
            continue
        tags += 1
        if tags > MOST_TAGS:
            continue
        span = bytes(data[start : min(end, start + TAG_BYTES)])
        if kind == HEAD_TITLE:
            head.title = head.title or decoded(span)
        elif kind == HEAD_META:
            read_meta(head, span, start)
        elif kind == HEAD_LINK:
            if head.canonical is None and b"canonical" in span.lower():
                values = attributes(span)
                if b"canonical" in values.get("rel", b"").lower().split():
                    head.canonical = decoded(values.get("href", b""))
        elif kind == HEAD_HTML:
            values = attributes(span)
            head.language = head.language or decoded(values.get("lang", b"") or values.get("xml:lang", b""))
        elif kind == HEAD_BASE:
            head.base = head.base or decoded(attributes(span).get("href", b""))
        elif kind == HEAD_TIME and head.time is None:
            values = attributes(span)
            head.time = decoded(values.get("datetime", b""))
    return head


def read_meta(head: PageHead, tag: bytes, start: int) -> None:
    parts = tag.split(b'"', 5)
    opens, between, ends = PLAIN_META
    is_plain = len(parts) == 5 and parts[2] == between and parts[0] in opens and parts[4] in ends
    if is_plain:
        if not may_be_looked_at(parts[1].lower()):
            return
        names, equivalent, value = [name_in(parts[1])], b"", parts[3]
    else:
        values = attributes(tag)
        names = [name_in(values[key]) for key in ("property", "name", "itemprop") if key in values]
        equivalent, value = values.get("http-equiv", b"").lower(), values.get("content", b"")
    names = [name for name in names if name in LOOKED_AT or name.endswith(DESCRIBING) or name.startswith(OF_PRODUCTS)]
    content = decoded(value) if names or equivalent else None
    if not content:
        return
    if b"refresh" in equivalent:
        head.refresh = head.refresh or content
    elif b"content-language" in equivalent:
        head.language = head.language or content
    for name in names:
        head.meta.setdefault(name, content)
        if name in ONE_TAG_EACH and (name not in head.authors or len(head.authors[name]) < MOST_AUTHORS):
            head.authors.setdefault(name, []).append(content)
        if name.endswith(DESCRIBING):
            if is_plain:
                a = len(parts[0]) + len(parts[1]) + len(between) + 3
                b = a + len(value)
            else:
                a, b = place_of(b"content", tag)
            head.hints.append((start + a, start + b))
        if name == "og:type":
            head.types.add("og:" + content.lower())
        elif name.startswith(OF_PRODUCTS):
            head.types.add("og:product")


def may_be_looked_at(name: bytes) -> bool:
    """Whether a meta tag of this name in lower case, as the source writes it, is one that is looked at."""
    return (
        name in LOOKED_AT_AS_WRITTEN
        or name.endswith(DESCRIBING_AS_WRITTEN)
        or name.startswith(OF_PRODUCTS_AS_WRITTEN)
        or SIMPLE_NAME.fullmatch(name) is None
    )


def name_in(value: bytes) -> str:
    """The name of a meta tag, in lower case."""
    return (value.decode("ascii") if SIMPLE_NAME.fullmatch(value) else decoded(value) or "").lower()


def types_in(script: bytes) -> Iterator[str]:
    """The types that a JSON-LD script names, without parsing it."""
    for seen, match in enumerate(TYPE.finditer(script)):
        if seen == MOST_THINGS:
            return
        yield match[1].decode("ascii").rsplit("/", 1)[-1].rsplit(":", 1)[-1].lower()


@dataclass(frozen=True)
class Metadata:
    title: str | None
    author: str | None
    date: str | None
    language: str | None
    canonical: str | None
    kind: str | None


def metadata(head: PageHead, url: str | None, headings: Container[str] = ()) -> Metadata:
    """`headings` are those of the page: a title that begins with one of them and goes on with the site's name is that
    one."""
    thing = main_thing(head)
    title = first(
        text_in(thing.get("headline")),
        *(head.meta.get(name) for name in TITLES),
        text_in(thing.get("name")),
        head.title,
    )  # fmt: skip
    return Metadata(
        title=without_site(title, head.meta.get("og:site_name"), headings),
        author=first(
            names_in(found_by_id(head, thing.get("author"))),
            *(
                all_of(head.authors[name]) if name in head.authors else person(head.meta[name])
                for name in AUTHORS
                if name in head.meta
            ),
            labelled_author(head),
            names_in(found_by_id(head, thing.get("creator"))),
        ),
        date=first(
            dated(thing.get("datePublished")),
            *(dated(head.meta[name]) for name in DATES if name in head.meta),
            dated(thing.get("dateCreated")),
            dated(head.time),
        ),
        language=first(head.language, head.meta.get("og:locale"), text_in(thing.get("inLanguage"))),
        canonical=absolute(first(head.canonical, head.meta.get("og:url")), head.base, url),
        kind=kind_of(head),
    )


def without_site(title: str | None, site: str | None, headings: Container[str]) -> str | None:
    """ "How mills work - The Miller" is "How mills work" where the page has that heading, or says that the site is
    called the other."""
    for parts in SEPARATOR.finditer(title or ""):
        before, after = str(title)[: parts.start()], str(title)[parts.end() :]
        if before in headings or (site and after.casefold() == site.casefold()):
            return before
    return title


def kind_of(head: PageHead) -> str | None:
    kinds = head.kinds
    for kind in KIND_OF:
        if kind in kinds:
            return NAMED.get(kind, kind)
    return first(head.meta.get("og:type"))


def main_thing(head: PageHead) -> dict[str, Any]:
    """The thing in JSON-LD that the page is about: an article, a product, a posting before the site and the
    organisation behind it."""
    best: dict[str, Any] = {}
    rank = len(KIND_OF)
    for thing in head.things:
        for kind in types_of(thing):
            place = RANK.get(KINDS.get(kind, ""), len(KIND_OF))
            if place < rank:
                best, rank = thing, place
    return best


RANK = {kind: place for place, kind in enumerate(KIND_OF)}


def things(script: bytes) -> Iterator[dict[str, Any]]:
    """The objects of a JSON-LD script that have a type, the outer ones first; a script that is no JSON has none."""
    try:
        waiting: list[Any] = [json.loads(script.decode("utf-8", "replace"), strict=False)]
    except (ValueError, RecursionError):
        return
    seen = 0
    while waiting and seen < MOST_THINGS:
        following: list[Any] = []
        for value in waiting:
            seen += 1
            if seen > MOST_THINGS:
                return
            if isinstance(value, list):
                following.extend(value[:100])
            elif isinstance(value, dict):
                if "@type" in value:
                    yield value
                following.extend(
                    value[name]
                    for name in ("@graph", "mainEntity", "mainEntityOfPage", "itemListElement", "hasPart")
                    if name in value
                )
        waiting = following


def types_of(thing: dict[str, Any]) -> list[str]:
    types = thing.get("@type")
    return [
        name.rsplit("/", 1)[-1].lower()
        for name in (types if isinstance(types, list) else [types])
        if isinstance(name, str)
    ]


def found_by_id(head: PageHead, value: Any) -> Any:
    """An author, or several, of whom the thing says only the `@id`: those that another thing on the page describes."""
    values = value[:20] if isinstance(value, list) else [value]
    if not any(is_reference(item) for item in values):
        return value
    described: dict[str, dict[str, Any]] = {}
    for thing in head.things:
        if isinstance(thing.get("@id"), str) and "name" in thing:
            described.setdefault(thing["@id"], thing)
    return [described.get(item["@id"], item) if is_reference(item) else item for item in values]


def is_reference(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("@id"), str) and "name" not in value


def all_of(names: list[str]) -> str | None:
    """Names of a paper's authors; "Last, First" among them are parted by semicolons."""
    people = [name for name in dict.fromkeys(names) if person(name)]
    return tidy(("; " if any("," in name for name in people) else ", ").join(people))


def names_in(value: Any) -> str | None:
    """Names of people: a text, a thing with a name, or a list of those."""
    if isinstance(value, list):
        names = [name for name in (names_in(item) for item in value[:20] if not isinstance(item, list)) if name]
        return ", ".join(dict.fromkeys(names)) or None
    if isinstance(value, dict):
        value = value.get("name")
        return names_in(value) if isinstance(value, list) else person(text_in(value))
    return person(text_in(value))


def labelled_author(head: PageHead) -> str | None:
    for number in "12":
        if (head.meta.get(f"twitter:label{number}") or "").casefold().rstrip(" :：") in WRITTEN_BY:
            return person(head.meta.get(f"twitter:data{number}"))
    return None


def person(value: str | None) -> str | None:
    """A name is no address of a profile and no number of one, nor what a program writes that had none."""
    if not value or len(value) > 200 or value.lower().startswith(("http://", "https://", "//", "@")):
        return None
    return value if value.lower() not in NOBODY and any(map(str.isalpha, value)) else None


def dated(value: Any) -> str | None:
    value = text_in(value)
    return value if value and DATE.search(value[:100]) else None


def long_text(value: Any) -> str | None:
    """A text of any length, its tags left out as they stand in JSON-LD."""
    if not isinstance(value, str):
        return None
    return " ".join(TAG.sub(" ", unescaped(value)).split()).encode("utf-8", "replace").decode() or None


def text_in(value: Any) -> str | None:
    return tidy(unescaped(value)) if isinstance(value, str) else None


def unescaped(value: str) -> str:
    """Without character references. Python's own function fails where one has thousands of digits."""
    return html.unescape(LONG_REFERENCE.sub("\ufffd", value)) if "&" in value else value


def attributes(tag: bytes) -> dict[str, bytes]:
    """The attributes of a tag, the first of each name."""
    values: dict[str, bytes] = {}
    for name, double, single, bare in ATTRIBUTE.findall(tag):
        values.setdefault(name.decode("latin-1").lower(), double or single or bare)
    return values


def place_of(name: bytes, tag: bytes) -> tuple[int, int]:
    """Where in a tag the value of its first attribute of this name is."""
    for match in ATTRIBUTE.finditer(tag):
        if match[1].lower() == name:
            return match.span(match.lastindex or 1)
    return 0, 0


def decoded(value: bytes) -> str | None:
    return tidy(unescaped(value.decode("utf-8", "replace"))) if value else None


def tidy(value: str) -> str | None:
    text = " ".join(value[: 8 * LONGEST].replace("\0", "").split())[:LONGEST]
    return (text if text.isascii() else text.encode("utf-8", "replace").decode()) or None


def first(*values: str | None) -> str | None:
    return next((value for value in values if value), None)


def absolute(link: str | None, *bases: str | None) -> str | None:
    """A link as seen from the page; a broken one (`http://[`) is none, nor is what leads to no page (`javascript:`)."""
    if not link:
        return None
    try:
        for base in bases:
            link = urljoin(base or "", link.strip())
        return link if link and urlsplit(link).scheme in ("", "http", "https") else None
    except ValueError:
        return None
