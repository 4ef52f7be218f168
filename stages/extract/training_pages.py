"""Pages that the model of blocks learns from: sets of several makers, what is known of their main text, and variants of
their markup.

| set | what its text is |
| --- | --- |
| `wcxb` | reviewed by hand (pages.parquet) |
| `scrapinghub`, `readability` | reviewed by hand (pages_more.parquet) |
| `trafilatura` | what trafilatura extracts, and what the set's snippets say against it (pages_more.parquet) |
| `wild` | what trafilatura extracts, and the ingredients and instructions of the page's JSON-LD (wild_pages.parquet) |
| `books` | made here: two to four thousand paragraphs of a novel in plain markup (prose.parquet) |

Only rows with `may_train` are read. A variant of a page loses its names, its semantic tags, its `<p>` or its head, or
has tables in place of `<div>`, so that no feature counts that one decade of markup has alone.
"""

from __future__ import annotations

import html as entities
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pyarrow.parquet as pq

from gristmill.classifiers.blocks.training import words_of
from gristmill.kernels.base.types import Array
from gristmill.stages.extract.engines import markup

SETS = ("wcxb", "scrapinghub", "readability", "trafilatura", "wild", "books")
BOOKS = 160
RECIPE_PARTS = ("recipeIngredient", "recipeInstructions")

NAMES = re.compile(
    rb"(?i)\s(?:class|id|role|itemprop|itemtype|data-[\w-]+|aria-[\w-]+)\s{0,3}=\s{0,3}"
    rb"(?:\"[^\"<>]{0,2000}\"|'[^'<>]{0,2000}'|[^\s<>\"']{1,200})"
)
SEMANTIC = re.compile(
    rb"(?i)<(/?)(?:article|main|section|nav|aside|header|footer|figure|figcaption|details|summary)(?=[\s>/])"
)
HEADING = re.compile(rb"(?i)<(/?)h[1-6](?=[\s>])")
PARAGRAPH, PARAGRAPH_END = re.compile(rb"(?i)<p(?=[\s>])"), re.compile(rb"(?i)</p\s{0,9}>")
DIV, DIV_END = re.compile(rb"(?i)<div(?=[\s>])"), re.compile(rb"(?i)</div\s{0,9}>")
LIST = re.compile(rb"(?i)<(/?)(?:ul|ol|li)(?=[\s>])")
HEAD_FACTS = re.compile(rb"(?is)<script[^>]{0,200}ld\+json.{0,200000}?</script>|<meta[^>]{0,3000}>")
JSON_LD = re.compile(rb"(?is)<script[^>]{0,300}ld\+json[^>]{0,300}>(.{0,400000}?)</script>")
MARK_UP = re.compile(r"<[^<>]*>")
BLANK_LINE = re.compile(r"\n\s*\n")
LONG = 25  # characters of a block that lies whole in a snippet


class KnownPage(NamedTuple):
    """A page and what is known of its main text."""

    set: str
    name: str
    site: str
    html: bytes
    text: str
    kind: str
    must_have: list[str]
    must_not_have: list[str]


def known_pages(data: Path, sets: tuple[str, ...] = SETS) -> Iterator[KnownPage]:
    for name in sets:
        if name == "wcxb":
            yield from _reviewed(data / "pages.parquet")
        elif name == "books":
            yield from _books(data / "prose.parquet")
        elif name == "wild":
            yield from _recipes(data / "wild_pages.parquet")
        else:
            yield from _of_other_makers(data / "pages_more.parquet", name)


def _reviewed(path: Path) -> Iterator[KnownPage]:
    for batch in pq.ParquetFile(path).iter_batches(64, columns=["page", "url", "page_type", "html", "main_content"]):
        for row in batch.to_pylist():
            if row["main_content"]:
                text, kind = row["main_content"], row["page_type"]
                yield KnownPage("wcxb", str(row["page"]), site_of(row), row["html"], text, kind, [], [])


def _books(path: Path) -> Iterator[KnownPage]:
    """No set of pages has a book, nor a page of three paragraphs and nothing else; a model that has seen none doubts
    both."""
    rows = [row for row in pq.read_table(path).to_pylist() if row["source"] == "books"]
    paragraphs = [" ".join(part.split()) for row in rows for part in BLANK_LINE.split(row["text"])]
    paragraphs = [paragraph for paragraph in paragraphs if len(paragraph) > LONG]
    for number in range(BOOKS):
        chance = random.Random(f"book {number}")
        size = int(2 * 2000 ** chance.random())
        first = chance.randrange(len(paragraphs))
        chapter = chance.choice([0, 2, 15, 40, 100])
        lines: list[tuple[str, bool]] = []  # and whether each is a heading
        for step in range(size):
            if chapter and step % chapter == 0:
                lines.append((f"Chapter {step // chapter + 1}", True))
            lines.append((paragraphs[(first + step) % len(paragraphs)], False))
        text = "\n".join(line for line, _ in lines)
        yield KnownPage("books", str(number), f"book-{number}", book(lines, chance), text, "book", [], [])


def book(lines: list[tuple[str, bool]], chance: random.Random) -> bytes:
    """A page of nothing but text, or with little beside it, as books and old pages are."""
    opening, closing = chance.choice([("<p>", "</p>"), ("<p>", ""), ("<div>", "</div>"), ("", "<br><br>")])
    heading = chance.choice(["h2", "h3", "b", "center"])
    before, after = chance.choice(
        [
            ("", ""),
            ("<div id=content>", "</div>"),
            ("<article>", "</article>"),
            ("<table><tr><td>", "</td></tr></table>"),
        ]
    )
    links = "".join(f"<li><a href=/{word}>{word}</a></li>" for word in ("Home", "Contents", "About", "Search"))
    around = chance.choice(["", "", f"<ul>{links}</ul>"])
    parts = [f"<html><head><title>A book</title></head><body>{around}<h1>A book</h1>{before}"]
    for line, is_heading in lines:
        if is_heading:
            parts.append(f"<{heading}>{line}</{heading}>\n")
        else:
            parts.append(f"{opening}{entities.escape(line)}{closing}\n")
    return "".join([*parts, after, around, "</body></html>"]).encode("utf-8", "replace")


def site_of(row: dict[str, Any]) -> str:
    """Of a page of `wcxb`."""
    return urlsplit(row["url"] or "").hostname or str(row["page"])


def _of_other_makers(path: Path, name: str) -> Iterator[KnownPage]:
    for batch in pq.ParquetFile(path).iter_batches(64):
        for row in batch.to_pylist():
            if row["set"] == name and row["may_train"]:
                text = row["text"] or trafilatura_text(row["html"])
                site = urlsplit(row["id"]).hostname or row["id"]
                snippets = row["must_have"] or [], row["must_not_have"] or []
                yield KnownPage(name, row["id"], site, row["html"], text, name, *snippets)


def _recipes(path: Path) -> Iterator[KnownPage]:
    for batch in pq.ParquetFile(path).iter_batches(64):
        for row in batch.to_pylist():
            text = "\n".join([trafilatura_text(row["html"]), *recipe_lines(row["html"])])
            yield KnownPage("wild", row["id"], row["host"], row["html"], text, "recipe", [], [])


def trafilatura_text(html: bytes) -> str:
    """The main text by another engine, without readers' comments."""
    from trafilatura import extract

    return extract(markup(html), include_comments=False) or ""


def recipe_lines(html: bytes) -> list[str]:
    """Ingredients and instructions as the page's JSON-LD has them."""
    recipes = [thing for thing in _things(html) if "recipeIngredient" in thing]
    return [text for thing in recipes for part in RECIPE_PARTS for text in _texts(thing.get(part))]


def _things(html: bytes) -> Iterator[dict[str, Any]]:
    for found in JSON_LD.finditer(html):
        try:
            waiting = [json.loads(found[1].decode("utf-8", "replace"), strict=False)]
        except (ValueError, RecursionError):
            continue
        while waiting:
            thing = waiting.pop()
            if isinstance(thing, dict):
                yield thing
                waiting.extend(thing.values())
            elif isinstance(thing, list):
                waiting.extend(thing)


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [entities.unescape(MARK_UP.sub(" ", value))]
    if isinstance(value, list):
        return [text for one in value for text in _texts(one)]
    if isinstance(value, dict):
        return _texts(value.get("text") or value.get("name")) + _texts(value.get("itemListElement"))
    return []


def mark_snippets(page: KnownPage, words: list[list[str]], labels: Array) -> None:
    """Blocks that hold a snippet, or lie in one, are labelled as the snippet is."""
    blocks = [" ".join(block) for block in words]
    for snippets, label in ((page.must_have, 1.0), (page.must_not_have, 0.0)):
        for snippet in filter(None, (" ".join(words_of(text)) for text in snippets)):
            for b, block in enumerate(blocks):
                if snippet in block or (len(block) > LONG and block in snippet):
                    labels[b] = label


def variant(data: bytes, seed: str) -> bytes:
    """The same text in other markup; the seed decides in which."""
    chance = random.Random(seed)
    if chance.random() < 0.6:
        data = NAMES.sub(b"", data)
    if chance.random() < 0.6:
        data = SEMANTIC.sub(rb"<\1div", data)
    if chance.random() < 0.35:
        data = HEADING.sub(rb"<\1" + chance.choice([b"p", b"b", b"div"]), data)
    paragraphs = chance.random()
    if paragraphs < 0.2:
        data = PARAGRAPH_END.sub(b"</div>", PARAGRAPH.sub(b"<div", data))
    elif paragraphs < 0.4:
        data = PARAGRAPH_END.sub(b"", PARAGRAPH.sub(b"<br><br><span", data))
    if chance.random() < 0.3:
        data = DIV_END.sub(b"</td></tr></table>", DIV.sub(b"<table><tr><td", data))
    if chance.random() < 0.2:
        data = LIST.sub(rb"<\1div", data)
    if chance.random() < 0.5:
        data = HEAD_FACTS.sub(b"", data)
    return data
