"""The engine `gristmill`: a page is cut into blocks of text, a small model says which of them are its main text, and
those are written out.

From bytes to text without a DOM library: segmentation, features and trees are kernels (kernels/html/, kernels/blocks/).
Where the page's markup holds next to nothing, the text that its head gives (JSON-LD `articleBody`, `text`,
`description`; a long meta description) stands in. How it was chosen and what it reaches: docs/extraction.md.

What the model's choice may not tear apart is put back: headings, formulas and code between chosen blocks, rows of
chosen tables, tables of data after chosen blocks. The model sees blocks of words; a formula on a line of its own has
hardly any, and neither has a heading, code or a cell of a table, so that all were often left out of a text that goes on
around them.

What readers wrote below a text is told from it by what containers call themselves, apart from the choice. A block is a
comment if a container above it has a name of comments (kernels/html/names.py) and it is no code, whose highlighters
call a remark `comment` too. On a forum, in reviews of a product, or where little else is left, what readers wrote is
what the page is about, and it stays.

Some pages are none: a frame around other pages, a forwarding address, "not found" with status 200, a script's empty
stage, a locked door. Only a page with few words of text at all is looked at, so that an article about logins is not
taken for a login. The phrases are of the languages that most pages are in; a page in another one is judged by its
markup alone. Measured on the 1,476 reviewed pages of docs/extraction.md, all of which have text: none is called one of
these.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gristmill.classifiers.blocks.model import BETA, BlockModel, MeasuredPage, load
from gristmill.kernels.base.types import Array
from gristmill.kernels.blocks.choice import find_comments, mend
from gristmill.kernels.blocks.features import CHARACTERS, Tree
from gristmill.kernels.blocks.page import (
    HINTED,
    IS_WRITTEN,
    KEPT_CHARACTERS,
    PAGE_CHARACTERS,
    PAGE_WORDS,
    SAYS_IT_IS,
    TOO_MANY,
    Read,
    read_page,
)
from gristmill.kernels.html.hints import Hints
from gristmill.kernels.html.names import TAGS
from gristmill.kernels.html.segment import Page
from gristmill.stages.extract.choices import Comments, Form, View
from gristmill.stages.extract.ingredients import with_ingredients
from gristmill.stages.extract.metadata import REFRESH, TITLE, PageHead, long_text, metadata, read_head
from gristmill.stages.extract.render import languages, numbered, render
from gristmill.stages.extract.structure import rewrite_structure
from gristmill.stages.read.charset import decode_page, is_utf8 as is_utf8, plainly_utf8

if TYPE_CHECKING:
    from gristmill.stages.pdf.pages import PdfFacts

LITTLE = 200  # characters of main text in the markup; with fewer, the head's own text is used where it is longer
MOST_BLOCKS = 200_000  # the largest of 1,497 real pages has 2,641; features take 1 kB a block
MOST_HEADINGS = 50  # that may be the title of a page
MARK = b"\xef\xbb\xbf"
BETAS: dict[View, float] = {"full": BETA, "precise": 0.3}  # how many times as much as precision recall counts
LARGER = 1.1  # times the precise view's characters that the full one has where both are worth having


@dataclass(frozen=True)
class Extracted:
    """What an engine found on a page; None is what it did not find."""

    text: str
    title: str | None = None
    author: str | None = None
    date: str | None = None  # of publication, as the page gives it
    language: str | None = None  # as the page declares it, seldom to be trusted
    canonical: str | None = None
    kind: str | None = None  # article, product, forum, listing, website...
    comments: str | None = None  # what readers wrote, where it is asked for apart
    precise: str | None = None  # the precise view beside the full one, where it is asked for and has less
    # why this is no page with text of its own, where it is none: one of gristmill.stages.extract.choices.REASONS, or of
    # gristmill.stages.pdf.files.REASONS
    no_page: str | None = None
    pdf: PdfFacts | None = None  # what only a PDF file has


class TooManyBlocks(ValueError):
    """A page that would take more memory than any page is worth."""


class SegmentedPage(NamedTuple):
    """A page on its way through the engine."""

    data: bytes
    page: Page
    head: PageHead
    measured: MeasuredPage
    read: Read


class TextBlock(NamedTuple):
    """One block of a page and what the model made of it."""

    text: str
    tag: str
    probability: float
    kept: bool


def gristmill(
    data: bytes, url: str | None, form: Form, comments: Comments = "drop", views: Sequence[View] = ("full",)
) -> Extracted:
    """The text of a page of UTF-8, and what the page says of itself."""
    try:
        seen = look_at(data, form=form, comments=comments, view="full" if "full" in views else "precise")
    except TooManyBlocks:
        return Extracted("", no_page="too_many_blocks")
    facts = metadata(seen.head, url, lambda: headings_of(seen))
    texts = texts_of(seen, form, comments, views)
    return Extracted(
        clean(texts.text),
        comments=clean(texts.comments) if texts.comments else None,
        precise=clean(texts.precise) if texts.precise else None,
        title=facts.title,
        author=facts.author,
        date=facts.date,
        language=facts.language,
        canonical=facts.canonical,
        kind=facts.kind,
        no_page=no_page(seen),
    )


def clean(text: str) -> str:
    return text.replace("\0", "").strip()


def utf8(html: bytes | str, charset: str | None = None) -> bytes:
    """Markup as UTF-8 without NULs; a page that is valid UTF-8 is passed on as it is. What cannot be decoded becomes
    U+FFFD."""
    if isinstance(html, str):
        return html.encode("utf-8", "replace").removeprefix(MARK).replace(b"\0", b"")
    return html if plainly_utf8(html) else decode_page(html, charset).utf8


def look_at(
    data: bytes,
    model: BlockModel | None = None,
    form: Form = "text",
    comments: Comments = "drop",
    view: View = "full",
) -> SegmentedPage:
    """Reads a page of UTF-8: its blocks, what it says of itself, the blocks that the model (the shipped one) keeps, and
    their text where it has neither code nor rows of tables."""
    choosing = (model or shipped_model()).choosing(BETAS[view])
    options = (comments == "keep", form == "markdown")
    read = read_page(np.frombuffer(data, np.uint8), choosing, MOST_BLOCKS, False, *options)
    hinted = int(read.numbers[HINTED])
    if hinted:
        data = rewrite_structure(data, Hints(hinted, read.places))
        read = read_page(np.frombuffer(data, np.uint8), choosing, MOST_BLOCKS, True, *options)
    if read.numbers[TOO_MANY]:
        raise TooManyBlocks(f"{read.numbers[TOO_MANY]:,} blocks of text, and {MOST_BLOCKS:,} at most are looked at")
    head = read_head(data, read.head.tolist(), int(read.numbers[SAYS_IT_IS]))
    measured = MeasuredPage(read.rows, read.counts, Tree(*read.tree))
    return SegmentedPage(data, Page(*read.page), head, measured, read)


class Texts(NamedTuple):
    """What is taken from a page."""

    text: str
    comments: str | None = None  # where they are asked for apart
    precise: str | None = None  # the precise view beside the full one, where it is asked for and has less


def main_text(data: bytes, model: BlockModel, form: Form) -> str:
    return texts_of(look_at(data, model, form), form, "drop").text


def chosen_blocks(seen: SegmentedPage) -> tuple[Array, Array]:
    """bool[blocks]: which are kept, readers' comments among them; and these."""
    kept, comments = seen.read.kept, seen.read.comments
    if seen.head.says("recipe") and kept.any():
        more = with_ingredients(seen.page, seen.measured.counts, kept, seen.head.thing.get("recipeIngredient"))
        if more is not kept:
            return more, find_comments(more, seen.measured.counts, seen.measured.rows)
    return kept, comments


def texts_of(seen: SegmentedPage, form: Form, comments: Comments, views: Sequence[View] = ("full",)) -> Texts:
    """The text is the full view if that is among those asked for."""
    kept, theirs = chosen_blocks(seen)
    if comments == "keep":
        theirs = np.zeros(len(kept), np.bool_)
    if kept is seen.read.kept and seen.read.numbers[IS_WRITTEN]:
        text = _described(seen, int(seen.read.numbers[KEPT_CHARACTERS]))
        if text is None:
            text = seen.read.written.tobytes().decode("utf-8", "replace")
    else:
        text = _text(seen, kept & ~theirs, form)
    apart = _rendered(seen, theirs, form) if comments == "apart" and theirs.any() else None
    if len(views) == 1:
        return Texts(text, apart)
    sure = _precise(seen) & ~theirs
    precise = _text(seen, sure, form)
    return Texts(text, apart, precise if len(text) >= LARGER * len(precise) > 0 else None)


def _precise(seen: SegmentedPage) -> Array:
    """bool[blocks]: what the precise view keeps."""
    page, measured, probability = seen.page, seen.measured, seen.read.probability
    kept: Array = mend(
        shipped_model().keep(probability, measured, BETAS["precise"]), probability, page.tag, page.parent, page.element,
        page.text, page.start, measured.counts, measured.rows, measured.tree.heading,
    )  # fmt: skip
    if seen.head.says("recipe") and kept.any():
        kept = with_ingredients(page, measured.counts, kept, seen.head.thing.get("recipeIngredient"))
    return kept


def _described(seen: SegmentedPage, characters: int) -> str | None:
    """What the head gives of the page, where the markup has little text and the head more."""
    if characters >= LITTLE:
        return None
    description = head_text(seen.head)
    return description if description and len(description) > characters else None


def _text(seen: SegmentedPage, kept: Array, form: Form) -> str:
    described = _described(seen, int(seen.measured.counts[kept, CHARACTERS].sum()))
    return _rendered(seen, kept, form) if described is None else described


def head_text(head: PageHead) -> str | None:
    """The longest text that the head gives of what the page is about."""
    texts = [long_text(head.thing.get(name)) for name in ("articleBody", "text", "reviewBody", "description")]
    texts += [head.meta("og:description"), head.meta("description")]
    return max((text for text in texts if text), key=len, default=None)


def blocks_of(seen: SegmentedPage) -> list[TextBlock]:
    kept, comments = chosen_blocks(seen)
    kept, probability = kept & ~comments, seen.read.probability
    text, edges = seen.page.text.tobytes(), seen.page.start.tolist()
    tags = [TAGS[tag] or "?" for tag in seen.page.tag[seen.page.element].tolist()]
    return [
        TextBlock(text[a:b].decode("utf-8", "replace"), tag, round(p, 4), k)
        for a, b, tag, p, k in zip(edges, edges[1:], tags, probability.tolist(), kept.tolist(), strict=False)
    ]


def headings_of(seen: SegmentedPage) -> set[str]:
    return set(texts_of_blocks(seen, np.flatnonzero(seen.measured.tree.heading)[:MOST_HEADINGS].tolist()))


def texts_of_blocks(seen: SegmentedPage, blocks: Iterable[int]) -> Iterator[str]:
    text, start = seen.page.text.data, seen.page.start
    return (str(text[start[b] : start[b + 1]], "utf-8", "replace") for b in blocks)


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


# --- pages that are none ----------------------------------------------------------------------------------------------

FEW, SHORT = 60, 800  # words and characters on the whole page: a notice and some menu; a page with more is a page
FEWEST = 12  # words: not even a notice
SCRIPT_BYTES = 2000  # of markup at least, before its emptiness is laid to scripts
FRAMES = tuple(TAGS.index(name) for name in ("frameset", "frame"))

REFRESH_MOVES = re.compile(r"\s*\d*+(?:\.\d*+)?\s*+[;,]?\s*+(?:url\s*+=)?\s*+['\"]?\S")
SCRIPT_MOVES = re.compile(
    rb"(?:window|document|top|self)?\.?location(?:\.href)?\s{0,4}=\s{0,4}[\"'][^\"']|location\.(?:replace"
    rb"|assign)\s{0,4}\("
)
NOT_FOUND = re.compile(  # of small letters, as are the phrases
    r"\b404\b|page (?:you|doesn.t|does not|isn.t|cannot|can.t)|no longer (?:exists|available)|n.existe pas"
)
PHRASES_OF_NOT_FOUND = (
    "not found", "no encontrad", "no existe", "introuvable", "nicht gefunden", "existiert nicht", "não encontrad",
    "nao encontrad", "non trovat", "niet gevonden", "nie znaleziono", "не найден", "не знайден", "не существует",
    "bulunamad", "hittades inte", "ikke fundet", "ei löydy", "nenalezen", "nem található", "nu a fost găsit",
    "δεν βρέθηκε", "見つかりません", "找不到", "不存在", "未找到", "찾을 수 없", "لم يتم العثور", "לא נמצא",
    "tidak ditemukan", "không tìm thấy", "ไม่พบ",
)  # fmt: skip
SCRIPT_NAMED = re.compile(r"java\s?script|ジャバスクリプト")
EMPTY_STAGE = re.compile(
    rb"<(?:div|main|section|app-root|[a-z]+-app)\b[^<>]{0,200}\bid\s{0,4}=\s{0,4}[\"']?(?:root|app|__next|__nuxt"
    rb"|___gatsby|main|mount|react-root|app-root)[\"'\s>]|<app-root\b"
)
PASSWORD = re.compile(rb"<input\b[^<>]{0,1000}?\btype\s{0,4}=\s{0,4}[\"']?password\b", re.IGNORECASE)
LOCKED = re.compile(r"\b(?:log|sign)[ -]?in\b|\blogin\b|entrar\b|accedi\b|вход\b")
PHRASES_OF_LOCKED = (
    "iniciar sesi", "inicia sesi", "connexion", "se connecter", "connectez", "anmelden", "einloggen", "fazer login",
    "inloggen", "zaloguj", "войти", "войдите", "увійти", "giriş yap", "logga in", "logg inn", "log ind",
    "kirjaudu", "přihlá", "bejelentkez", "autentific", "σύνδεση", "ログイン", "登录", "登入", "로그인", "تسجيل الدخول",
    "התחבר", "đăng nhập", "เข้าสู่ระบบ",
)  # fmt: skip


def has_phrase(text: str, phrases: tuple[str, ...], pattern: re.Pattern[str]) -> bool:
    """Whether a text of small letters has one of these phrases, or the pattern."""
    return any(phrase in text for phrase in phrases) or pattern.search(text) is not None


def no_page(seen: SegmentedPage) -> str | None:
    """Why this is no page with text of its own, in one of REASONS; None where it may be one."""
    words = int(seen.read.numbers[PAGE_WORDS])
    if words > FEW or seen.read.numbers[PAGE_CHARACTERS] > SHORT:
        return None
    if any((seen.page.tag == frame).any() for frame in FRAMES):
        return "frames"
    if moved(seen, words):
        return "redirect"
    shown = texts_of_blocks(seen, range(len(seen.page.element)))
    text = "\n".join([seen.head.other(TITLE) or "", *shown]).lower()
    if has_phrase(text, PHRASES_OF_NOT_FOUND, NOT_FOUND):
        return "not_found_page"
    if has_phrase(text, PHRASES_OF_LOCKED, LOCKED) and PASSWORD.search(seen.data):
        return "login_wall"
    if needs_script(seen, words, text):
        return "needs_script"
    return None


def moved(seen: SegmentedPage, words: int) -> bool:
    """By a meta tag that names an address, or by a script on a page that has nothing else."""
    refresh = seen.head.other(REFRESH)
    if refresh and "=" in refresh and REFRESH_MOVES.match(refresh):
        return True
    return words <= FEWEST and len(seen.data) < SCRIPT_BYTES and SCRIPT_MOVES.search(seen.data) is not None


def needs_script(seen: SegmentedPage, words: int, text: str) -> bool:
    """It says so itself, or it is an empty stage with a program beside it."""
    if b"<script" not in seen.data.lower():
        return False
    if SCRIPT_NAMED.search(text):
        return True
    return words <= FEWEST and len(seen.data) >= SCRIPT_BYTES and EMPTY_STAGE.search(seen.data) is not None
