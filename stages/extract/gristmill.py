"""The engine `gristmill`: a page is cut into blocks of text, a small model says which of them are its main text, and
those are written out.

From bytes to text without a DOM library: segmentation, features and trees are kernels (kernels/html/, kernels/blocks/).
Where the page's markup holds next to nothing, the text that its head gives (JSON-LD
`articleBody`, `text`, `description`; a long meta description) stands in. How it was chosen and what it reaches:
docs/extraction.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gristmill.classifiers.blocks.model import BETA, BlockModel, MeasuredPage, load, measure_page
from gristmill.kernels.base.types import Array
from gristmill.kernels.blocks.features import CHARACTERS, FROM_JSON, FROM_META, FROM_TITLE, IN_TITLE, WORDS
from gristmill.kernels.html.hints import hints_of
from gristmill.kernels.html.names import HEAD_JSON, HEAD_TITLE, TAGS
from gristmill.kernels.html.segment import Page, segment
from gristmill.stages.extract.choices import Comments, Form
from gristmill.stages.extract.code import with_code
from gristmill.stages.extract.comments import readers_comments
from gristmill.stages.extract.formulas import with_formulas
from gristmill.stages.extract.ingredients import with_ingredients
from gristmill.stages.extract.metadata import PageHead, long_text, main_thing, read_head
from gristmill.stages.extract.render import languages, numbered, render
from gristmill.stages.extract.views import View
from gristmill.stages.extract.wholes import with_headings, with_structure
from gristmill.stages.read.charset import decode_page, is_utf8 as is_utf8

LITTLE = 200  # characters of main text in the markup; with fewer, the head's own text is used where it is longer
MOST_BLOCKS = 200_000  # the largest of 1,497 real pages has 2,641; features take 1 kB a block
MOST_HEADINGS = 50  # that may be the title of a page
MARK = b"\xef\xbb\xbf"
BETAS: dict[View, float] = {"full": BETA, "precise": 0.3}  # how many times as much as precision recall counts
LARGER = 1.1  # times the precise view's characters that the full one has where both are worth having


class TooManyBlocks(ValueError):
    """A page that would take more memory than any page is worth."""


class SegmentedPage(NamedTuple):
    """A page on its way through the engine."""

    data: bytes
    page: Page
    head: PageHead
    measured: MeasuredPage


class TextBlock(NamedTuple):
    """One block of a page and what the model made of it."""

    text: str
    tag: str
    probability: float
    kept: bool


def utf8(html: bytes | str, charset: str | None = None) -> bytes:
    """Markup as UTF-8 without NULs; a page that is valid UTF-8 is passed on as it is. What cannot be decoded becomes
    U+FFFD."""
    if isinstance(html, str):
        return html.encode("utf-8", "replace").removeprefix(MARK).replace(b"\0", b"")
    return decode_page(html, charset).utf8


def rewritten(data: bytes) -> bytes:
    """The page with its code and formulas in markup that the segmenter reads."""
    hints = hints_of(data)
    coded = with_code(data, hints)
    return with_formulas(coded, hints if coded is data else hints_of(coded))


def look_at(data: bytes) -> SegmentedPage:
    """Segments and measures a page of UTF-8."""
    data = rewritten(data)
    array = np.frombuffer(data, np.uint8)
    page = segment(array)
    if len(page.element) > MOST_BLOCKS:
        raise TooManyBlocks(f"{len(page.element):,} blocks of text, and {MOST_BLOCKS:,} at most are looked at")
    kinds, starts, ends = page.head_kind.tolist(), page.head_start.tolist(), page.head_end.tolist()
    head = read_head(data, kinds, starts, ends)
    hints = [(FROM_META, a, b) for a, b in head.hints]
    for kind, a, b in zip(kinds, starts, ends, strict=True):
        if kind == HEAD_TITLE:
            hints.append((FROM_TITLE, a, b))
        elif kind == HEAD_JSON:
            hints.append((FROM_JSON, a, b))
    table = np.array(hints, np.int64).reshape(-1, 3)
    measured = measure_page(
        array,
        page,
        table[:, 0].astype(np.uint8),
        np.ascontiguousarray(table[:, 1]),
        np.ascontiguousarray(table[:, 2]),
        head.known,
    )
    return SegmentedPage(data, page, head, measured)


def choose(seen: SegmentedPage, model: BlockModel, probability: Array, beta: float = BETA) -> Array:
    """bool[blocks]: which are kept, readers' comments among them."""
    kept = without_headline(seen, with_headings(seen.page, seen.measured, model.keep(probability, seen.measured, beta)))
    kept = with_structure(seen.page, seen.measured, probability, kept)
    if "recipe" in seen.head.kinds and kept.any():
        kept = with_ingredients(seen.page, seen.measured.counts, kept, main_thing(seen.head).get("recipeIngredient"))
    return kept


class Texts(NamedTuple):
    """What is taken from a page."""

    text: str
    comments: str | None = None  # where they are asked for apart
    precise: str | None = None  # the precise view beside the full one, where it is asked for and has less


def without_headline(seen: SegmentedPage, kept: Array) -> Array:
    """The choice less a first-level heading that says the page's title: that is `title`, and texts that are one in two
    templates stay one.

    Reviewers put it into the text of four pages in ten; left to the model, so did it, now here and now there (word-F1
    0.8800; always in 0.8789, never 0.8805).
    """
    counts, highest = seen.measured.counts, seen.measured.tree.heading == 1
    if not highest.any():
        return kept
    headline = highest & (2 * counts[:, IN_TITLE] >= counts[:, WORDS]) & (counts[:, WORDS] > 0)
    others = kept & ~headline
    return others if others.any() else kept


def main_text(seen: SegmentedPage, model: BlockModel, form: Form) -> str:
    return texts_of(seen, model, form, "drop").text


def texts_of(
    seen: SegmentedPage, model: BlockModel, form: Form, comments: Comments, views: Sequence[View] = ("full",)
) -> Texts:
    """The text is the full view if that is among those asked for."""
    probability = model.probabilities(seen.page, seen.measured)
    kept = choose(seen, model, probability, BETAS["full" if "full" in views else "precise"])
    theirs = np.zeros(len(kept), np.bool_) if comments == "keep" else readers_comments(seen.measured, kept)
    text = _text(seen, kept & ~theirs, form)
    apart = _rendered(seen, theirs, form) if comments == "apart" and theirs.any() else None
    if len(views) == 1:
        return Texts(text, apart)
    sure = choose(seen, model, probability, BETAS["precise"]) & ~theirs
    precise = _text(seen, sure, form)
    return Texts(text, apart, precise if len(text) >= LARGER * len(precise) > 0 else None)


def _text(seen: SegmentedPage, kept: Array, form: Form) -> str:
    characters = int(seen.measured.counts[kept, CHARACTERS].sum())
    if characters < LITTLE:
        description = head_text(seen.head)
        if description and len(description) > characters:
            return description
    return _rendered(seen, kept, form)


def head_text(head: PageHead) -> str | None:
    """The longest text that the head gives of what the page is about."""
    thing = main_thing(head)
    texts = [long_text(thing.get(name)) for name in ("articleBody", "text", "reviewBody", "description")]
    texts += [head.meta.get("og:description"), head.meta.get("description")]
    return max((text for text in texts if text), key=len, default=None)


def blocks_of(seen: SegmentedPage, model: BlockModel) -> list[TextBlock]:
    probability = model.probabilities(seen.page, seen.measured)
    kept = choose(seen, model, probability)
    kept &= ~readers_comments(seen.measured, kept)
    text, edges = seen.page.text.tobytes(), seen.page.start.tolist()
    tags = [TAGS[tag] or "?" for tag in seen.page.tag[seen.page.element].tolist()]
    return [
        TextBlock(text[a:b].decode("utf-8", "replace"), tag, round(p, 4), k)
        for a, b, tag, p, k in zip(edges, edges[1:], tags, probability.tolist(), kept.tolist(), strict=False)
    ]


def headings_of(seen: SegmentedPage) -> set[str]:
    text, edges = seen.page.text.tobytes(), seen.page.start.tolist()
    return {
        text[edges[b] : edges[b + 1]].decode("utf-8", "replace")
        for b in np.flatnonzero(seen.measured.tree.heading)[:MOST_HEADINGS].tolist()
    }


def visible_text(seen: SegmentedPage) -> str:
    return written_blocks(seen, "text")


def written_blocks(seen: SegmentedPage, form: Form) -> str:
    """All blocks of a page, chosen or not."""
    return _rendered(seen, np.ones(len(seen.page.element), np.bool_), form)


def _rendered(seen: SegmentedPage, kept: Array, form: Form) -> str:
    named = languages(seen.data, seen.page) if form == "markdown" else {}
    return render(seen.page, kept, form, numbered(seen.data, seen.page), named)


def shipped_model() -> BlockModel:
    return load()
