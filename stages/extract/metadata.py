"""What a page says of itself in its head: title, author, date, language, canonical address, kind; and what kinds of
thing it describes.

Read from what the kernel cut from the page's tags (kernels/blocks/heads.py), so that nothing looks through the page
again. Order of evidence: JSON-LD of the page's main thing (schema.org), then meta tags (OpenGraph, Dublin Core,
citation_*), then elements (<title>, <time>). All is crawled text: spans are cut at a size, numbers of tags are bounded,
and every pattern is linear.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import urljoin, urlsplit

from gristmill.kernels.blocks import heads
from gristmill.kernels.html.names import KIND_OF, KNOWN, META_NAMES

MOST_THINGS = 2000
LONGEST = 1000  # characters of a value that is kept

# A reference to no character, or with more zeros than Python reads.
LONG_REFERENCE = re.compile(r"&#(?:0*+[0-9]{9,}|0{1000,}+[0-9]*+|[xX]0*+[0-9a-fA-F]{9,});?")
TAG = re.compile(r"<[^<>]{1,300}>")
DATE = re.compile(r"[12]\d{3}-\d\d?-\d\d?|[12]\d{3}/\d\d?/\d\d?|\d\d?[./]\d\d?[./][12]\d{3}|[12]\d{3}")

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

SIMPLE_NAME = re.compile(rb"[\w:.-]+")
NAMES = frozenset(META_NAMES)
META, JSON, TITLE, CANONICAL_LINK, LANGUAGE, BASE, TIME, REFRESH = (  # what a row of the head is
    int(fact)
    for fact in (
        heads.META, heads.JSON, heads.TITLE, heads.CANONICAL_LINK, heads.LANGUAGE, heads.BASE, heads.TIME, heads.REFRESH,
    )
)  # fmt: skip

KINDS = {name: kind for kind, types in KIND_OF.items() for name in types}
NAMED = {"news": "article", "list": "listing", "website": "website"}  # as `kind` calls them, where it differs


@dataclass
class PageHead:
    """The head of one page, read once: what it has by name, and JSON-LD as bytes. Values are decoded when asked for."""

    data: bytes = b""
    known: int = 0  # bits of KNOWN: what the page says it is
    named: dict[str, list[tuple[int, int]]] = field(default_factory=dict)  # meta tags: where the values are
    others: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # the same by TITLE, LANGUAGE and so on
    scripts: list[tuple[bytes, bool]] = field(default_factory=list)  # JSON-LD, and whether it may name a type of KINDS
    parsed: dict[int, list[dict[str, Any]]] = field(default_factory=dict)  # what a script describes, by its number

    def meta(self, name: str) -> str | None:
        return self.first_of(self.named.get(name, ()))

    def other(self, fact: int) -> str | None:
        return self.first_of(self.others.get(fact, ()))

    def every(self, name: str) -> list[str]:
        """The values of all meta tags of a name."""
        values = [decoded(self.data[first:last]) for first, last in self.named[name]]
        return [value for value in values if value][:MOST_AUTHORS]

    def first_of(self, spans: Iterable[tuple[int, int]]) -> str | None:
        for first, last in spans:
            if value := decoded(self.data[first:last]):
                return value
        return None

    def things_in(self, number: int) -> list[dict[str, Any]]:
        if number not in self.parsed:
            self.parsed[number] = list(things(self.scripts[number][0]))
        return self.parsed[number]

    def says(self, kind: str) -> bool:
        return self.known >> KNOWN.index(kind) & 1 == 1

    @cached_property
    def thing(self) -> dict[str, Any]:
        """The thing in JSON-LD that the page is about: an article, a product, a posting before the site and the
        organisation behind it."""
        best: dict[str, Any] = {}
        rank = len(KIND_OF)
        for number, (_, matters) in enumerate(self.scripts):
            for thing in self.things_in(number) if matters else ():
                for kind in types_of(thing):
                    place = RANK.get(KINDS.get(kind, ""), len(KIND_OF))
                    if place < rank:
                        best, rank = thing, place
        return best


def read_head(data: bytes, rows: Iterable[list[int]], known: int) -> PageHead:
    """The head of a page from the rows of `kernels/blocks/heads.py`, and the bits of what the page says it is."""
    head = PageHead(data, known)
    for fact, says, first, last, name_from, name_to in rows:
        if fact == META:
            name = META_NAMES[says] if says >= 0 else name_in(data[name_from:name_to])
            if name in NAMES:
                head.named.setdefault(name, []).append((first, last))
        elif fact == JSON:
            head.scripts.append((data[first:last], says != 0))
        else:
            head.others.setdefault(fact, []).append((first, last))
    return head


def name_in(value: bytes) -> str:
    """The name of a meta tag, in lower case."""
    return (value.decode("ascii") if SIMPLE_NAME.fullmatch(value) else decoded(value) or "").lower()


@dataclass(frozen=True)
class Metadata:
    title: str | None
    author: str | None
    date: str | None
    language: str | None
    canonical: str | None
    kind: str | None


def metadata(head: PageHead, url: str | None, headings: Callable[[], Container[str]]) -> Metadata:
    """`headings` gives those of the page: a title that begins with one of them and goes on with the site's name is that
    one."""
    thing, named = head.thing, head.named
    authors = (
        all_of(head.every(name)) if name in ONE_TAG_EACH else person(head.meta(name))
        for name in AUTHORS
        if name in named
    )
    return Metadata(
        title=without_site(
            text_in(thing.get("headline"))
            or first(head.meta(name) for name in TITLES if name in named)
            or text_in(thing.get("name"))
            or head.other(TITLE),
            head,
            headings,
        ),
        author=names_in(found_by_id(head, thing.get("author")))
        or first(authors)
        or labelled_author(head)
        or names_in(found_by_id(head, thing.get("creator")))
        or None,
        date=dated(thing.get("datePublished"))
        or first(dated(head.meta(name)) for name in DATES if name in named)
        or dated(thing.get("dateCreated"))
        or dated(head.other(TIME)),
        language=head.other(LANGUAGE) or head.meta("og:locale") or text_in(thing.get("inLanguage")),
        canonical=absolute(head.other(CANONICAL_LINK) or head.meta("og:url"), head.other(BASE), url),
        kind=kind_of(head),
    )


def without_site(title: str | None, head: PageHead, headings: Callable[[], Container[str]]) -> str | None:
    """ "How mills work - The Miller" is "How mills work" where the page has that heading, or says that the site is
    called the other."""
    ends = list(SEPARATOR.finditer(title)) if title else []
    if not title or not ends:
        return title
    site, shown = head.meta("og:site_name"), headings()
    for parts in ends:
        before, after = title[: parts.start()], title[parts.end() :]
        if before in shown or (site and after.casefold() == site.casefold()):
            return before
    return title


def kind_of(head: PageHead) -> str | None:
    for kind in KIND_OF if head.known else ():
        if head.says(kind):
            return NAMED.get(kind, kind)
    return head.meta("og:type")


RANK = {kind: place for place, kind in enumerate(KIND_OF)}
JSON_LD = json.JSONDecoder(strict=False)


def things(script: bytes) -> Iterator[dict[str, Any]]:
    """The objects of a JSON-LD script that have a type, the outer ones first; a script that is no JSON has none."""
    try:
        waiting: list[Any] = [JSON_LD.decode(script.decode("utf-8", "replace"))]
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
    every = (thing for number in range(len(head.scripts)) for thing in head.things_in(number))
    for thing in every:
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
    for label, data in (("twitter:label1", "twitter:data1"), ("twitter:label2", "twitter:data2")):
        if label in head.named and (head.meta(label) or "").casefold().rstrip(" :：") in WRITTEN_BY:
            return person(head.meta(data))
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


def decoded(value: bytes) -> str | None:
    return tidy(unescaped(value.decode("utf-8", "replace"))) if value else None


def tidy(value: str) -> str | None:
    text = " ".join(value[: 8 * LONGEST].replace("\0", "").split())[:LONGEST]
    return (text if text.isascii() else text.encode("utf-8", "replace").decode()) or None


def first(values: Iterable[str | None]) -> str | None:
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
