"""Engines that turn one page into text: gristmill (ours), resiliparse, trafilatura (an extra), and plain (all that is
visible).

Ours reads bytes of UTF-8 (stages/extract/gristmill.py). The others are functions from markup to `Extracted`, named in
`ENGINES`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from gristmill.stages.extract.choices import OURS, Comments, EngineName, Form, View, check_engine
from gristmill.stages.extract.gristmill import (
    Extracted,
    TextBlock,
    blocks_of,
    clean,
    gristmill,
    look_at,
    utf8,
)
from gristmill.stages.extract.metadata import absolute
from gristmill.stages.read.charset import decode_html

if TYPE_CHECKING:
    from gristmill.stages.pdf.files import Limits

DATES = ("article:published_time", "datepublished", "date", "dc.date", "dcterms.date")
AUTHORS = ("author", "article:author", "dc.creator")


class ExtractionEngine(Protocol):
    def __call__(self, html: str, url: str | None) -> Extracted: ...


def extract(
    html: bytes | str,
    url: str | None = None,
    engine: EngineName = OURS,
    charset: str | None = None,
    form: Form = "text",
    comments: Comments = "drop",
    views: Sequence[View] = ("full",),
) -> Extracted:
    """The text of one page and what it says of itself; `charset` is the one its HTTP header named. Only ours writes
    markdown, knows readers' comments from the text, and has views. A PDF file is read as such."""
    if not isinstance(html, bytes | str):
        raise TypeError(f"a page as bytes or str was expected, not {type(html).__name__}")
    if isinstance(html, bytes) and b"%PDF-" in html[:1100]:
        from gristmill.stages.read.payload import is_pdf  # which takes longer to import than this page

        if is_pdf(html):
            return pdf_page(html, form)
    if engine == OURS:
        return gristmill(utf8(html, charset), url, form, comments, views)
    if engine not in ENGINES:
        raise ValueError(f"no engine {engine!r}; there are {', '.join((OURS, *ENGINES))}")
    if form != "text":
        raise ValueError(f"the engine {engine} writes text alone; {form} is written by {OURS}")
    if comments != "drop":
        raise ValueError(f"comments: the engine {engine} cannot tell readers' comments; {OURS} can")
    if tuple(views) != ("full",):
        raise ValueError(f"views: the engine {engine} has one; {OURS} has more")
    return ENGINES[engine](markup(html, charset), url)


def extract_blocks(html: bytes | str, charset: str | None = None) -> list[TextBlock]:
    """Every block of text on a page: its tag, how probable it is that it belongs to the main text, and whether it was
    kept."""
    return blocks_of(look_at(utf8(html, charset)))


def pdf_page(data: bytes, form: Form, limits: Limits | None = None, most_unread: float | None = None) -> Extracted:
    """A PDF file as a page; `most_unread` is the share of pages without text beyond which it is none."""
    from gristmill.stages.pdf.files import MOST_UNREAD, USUAL
    from gristmill.stages.pdf.pages import read_page

    most = MOST_UNREAD if most_unread is None else most_unread
    made, facts, no_page = read_page(data, form, limits or USUAL, most)
    if made is None:
        return Extracted("", no_page=no_page, pdf=facts)
    return Extracted(
        clean(made.text),
        title=made.facts.get("title"),
        author=made.facts.get("author"),
        date=made.facts.get("published"),
        no_page=no_page,
        pdf=facts,
    )


def markup(html: bytes | str, charset: str | None = None) -> str:
    """Markup as engines can take it: no NULs (lxml refuses them, text should not have them), no lone surrogates."""
    text = html if isinstance(html, str) else decode_html(html, charset)
    text = text.replace("\0", "")
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-8", "replace").decode()
    return text


def resiliparse(html: str, url: str | None) -> Extracted:
    return from_tree(html, url, main_content=True)


def plain(html: str, url: str | None) -> Extracted:
    return from_tree(html, url, main_content=False)


def from_tree(html: str, url: str | None, main_content: bool) -> Extracted:
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.html import HTMLTree

    tree = HTMLTree.parse(html)
    text = extract_plain_text(tree, main_content=main_content, alt_texts=False, links=False, preserve_formatting=True)
    if tree.document is None:
        return Extracted(clean(text))
    tags = meta_tags(tree)
    root = tree.document.query_selector("html")
    link = tree.document.query_selector('link[rel="canonical"]')
    return Extracted(
        clean(text),
        title=found(tree.title),
        author=first_of(tags, AUTHORS),
        date=first_of(tags, DATES),
        language=found(root.getattr("lang") if root is not None else None),
        canonical=absolute(link.getattr("href") if link is not None else None, url),
        kind=tags.get("og:type"),
    )


def meta_tags(tree: Any) -> dict[str, str]:
    """The meta tags of a page by their name or property, the first of each."""
    tags: dict[str, str] = {}
    for tag in tree.head.get_elements_by_tag_name("meta") if tree.head is not None else ():
        name = tag.getattr("property") or tag.getattr("name") or tag.getattr("itemprop")
        content = found(tag.getattr("content"))
        if name and content:
            tags.setdefault(name.lower(), content)
    return tags


def trafilatura(html: str, url: str | None) -> Extracted:
    """Trafilatura with its documented recall settings; its own deduplication stays off, since it remembers earlier
    pages."""
    check_engine("trafilatura")
    from trafilatura import bare_extraction

    page = bare_extraction(html, url=url, favor_recall=True, with_metadata=True, deduplicate=False)
    if page is None:
        return Extracted("")
    values = page if isinstance(page, dict) else page.as_dict()
    text = "\n".join(part for part in (values.get("text"), values.get("comments")) if part)
    return Extracted(
        clean(text),
        title=found(values.get("title")),
        author=found(values.get("author")),
        date=found(values.get("date")),
        language=found(values.get("language")),
        canonical=found(values.get("url")) if values.get("url") != url else None,
        kind=found(values.get("pagetype")),
    )


ENGINES: dict[str, ExtractionEngine] = {"resiliparse": resiliparse, "trafilatura": trafilatura, "plain": plain}


def found(value: str | None) -> str | None:
    return " ".join(value.split()) or None if value else None


def first_of(values: dict[str, str], names: tuple[str, ...]) -> str | None:
    return next((values[name] for name in names if name in values), None)


__all__ = [
    "ENGINES", "TextBlock", "Extracted", "absolute", "extract", "extract_blocks", "gristmill", "markup",
    "pdf_page", "utf8",
]  # fmt: skip
