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

from gristmill.classifiers.blocks.model import BETA, BlockModel, MeasuredPage, load, measure_page
from gristmill.kernels.base.types import Array
from gristmill.kernels.blocks.choice import APART_CODE, APART_FORMULA, HAS_TABLE, IS_CODE, left_out, mend_headings
from gristmill.kernels.blocks.columns import BIT_NAMES, FAR, KIND, KNOWN, LINK_SHARE, SAYS, TO_BIT, TO_KIND
from gristmill.kernels.blocks.features import CHARACTERS, FROM_JSON, FROM_META, FROM_TITLE, IN_TITLE, WORDS
from gristmill.kernels.html.names import HEAD_JSON, HEAD_TITLE, TAGS
from gristmill.kernels.html.paragraphs import tables_around
from gristmill.kernels.html.segment import Page, segment
from gristmill.stages.extract.choices import Comments, Form, View
from gristmill.stages.extract.ingredients import with_ingredients
from gristmill.stages.extract.metadata import PageHead, long_text, main_thing, metadata, read_head
from gristmill.stages.extract.render import languages, numbered, render
from gristmill.stages.extract.structure import rewrite_structure
from gristmill.stages.read.charset import decode_page, is_utf8 as is_utf8

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
        seen = look_at(data)
    except TooManyBlocks:
        return Extracted("", no_page="too_many_blocks")
    facts = metadata(seen.head, url, headings_of(seen))
    texts = texts_of(seen, shipped_model(), form, comments, views)
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
    return decode_page(html, charset).utf8


def look_at(data: bytes) -> SegmentedPage:
    """Segments and measures a page of UTF-8."""
    data = rewrite_structure(data)
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
    kept = with_headings(seen.page, seen.measured, model.keep(probability, seen.measured, beta))
    kept = with_structure(seen.page, seen.measured, probability, kept)
    if "recipe" in seen.head.kinds and kept.any():
        kept = with_ingredients(seen.page, seen.measured.counts, kept, main_thing(seen.head).get("recipeIngredient"))
    return kept


class Texts(NamedTuple):
    """What is taken from a page."""

    text: str
    comments: str | None = None  # where they are asked for apart
    precise: str | None = None  # the precise view beside the full one, where it is asked for and has less


def with_headings(page: Page, measured: MeasuredPage, kept: Array) -> Array:
    """The choice with the headings between its blocks, and without a first-level heading that says the page's title:
    that is `title`, and texts that are one in two templates stay one.

    Reviewers put it into the text of four pages in ten; left to the model, so did it, now here and now there (word-F1
    0.8800; always in 0.8789, never 0.8805).
    """
    counts = measured.counts
    made: Array = mend_headings(
        kept, measured.tree.heading, page.element, page.parent, counts[:, WORDS], counts[:, IN_TITLE]
    )
    return made


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


# --- what the choice may not tear apart -------------------------------------------------------------------------------

MOST_BETWEEN = 12  # blocks of code and formulas between two chosen ones
DOLLARS = b"$$"
SMALLEST_TABLE = 6  # blocks of a table
LIKELY = 0.15  # the mean probability of a table that is kept for what stands before it
MOST_LINKED = 0.3  # of its words


def with_structure(page: Page, measured: MeasuredPage, probability: Array, kept: Array) -> Array:
    """The choice, and with it the code between its blocks, the displayed formulas between or beside them, the rest of
    tables that are mostly in it, and tables of data right after its blocks."""
    there = left_out(page.tag, page.element, page.text, page.start, kept)
    if not there & (APART_CODE | APART_FORMULA | HAS_TABLE) or not kept.any():
        return kept
    if there & (APART_CODE | APART_FORMULA):
        formula = displayed(page)
        whole = (IS_CODE[page.tag[page.element]] | formula) & ~kept
        if whole.any():
            kept = with_runs(page, kept, np.flatnonzero(whole), formula)
    return with_tables(page, measured, probability, kept) if there & HAS_TABLE else kept


def with_runs(page: Page, kept: Array, places: Array, formula: Array) -> Array:
    kept = kept.copy()
    chosen = np.flatnonzero(kept)
    first, last = int(chosen[0]), int(chosen[-1])
    for run in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1):
        a, b = int(run[0]), int(run[-1])
        if len(run) > MOST_BETWEEN or b < first - 1 or a > last + 1:
            continue
        before, after = a > 0 and bool(kept[a - 1]), b + 1 < len(kept) and bool(kept[b + 1])
        element = page.element[max(a - 1, 0) : b + 2].tolist()
        beside = (before and near(page, element[0], element[1])) or (after and near(page, element[-2], element[-1]))
        if (before and after) or (beside and formula[run].all()):
            kept[run] = True
    return kept


def with_tables(page: Page, measured: MeasuredPage, probability: Array, kept: Array) -> Array:
    """Of a table with rows of cells and no table in it: all of it, where more than half of its blocks were chosen, or
    some and what stands before and after it; or where a chosen block stands before it in the same container, it is not
    improbable and has few links."""
    table_of = tables_around(page.tag, page.parent)
    of_block = table_of[page.element]
    cells = np.flatnonzero(of_block >= 0)
    if not len(cells):
        return kept
    sizes = np.bincount(of_block[cells], minlength=len(page.tag))
    tables = np.flatnonzero(sizes)
    count, place = sizes[tables], (np.cumsum(sizes > 0) - 1)[of_block[cells]]

    def sums(values: Array) -> Array:
        return np.bincount(place, weights=values, minlength=len(tables))

    chosen = sums(kept[cells])
    whole = (chosen < count) & (count >= SMALLEST_TABLE)
    if not whole.any():
        return kept
    whole &= ~np.isin(tables, table_of[page.parent[tables]])
    if not whole.any():
        return kept
    first = np.full(len(tables), len(kept))
    np.minimum.at(first, place, cells)
    last = np.zeros(len(tables), np.int64)
    np.maximum.at(last, place, cells)
    before = (first > 0) & kept[np.maximum(first - 1, 0)]
    after = (last + 1 < len(kept)) & kept[np.minimum(last + 1, len(kept) - 1)]
    words = measured.counts[cells, WORDS] + 1.0
    likely = sums(probability[cells] * words) >= LIKELY * sums(words)
    unlinked = sums(measured.rows[cells, LINK_SHARE] * words) <= MOST_LINKED * sums(words)
    follows = before & likely & unlinked
    follows[follows] = [
        near(page, int(page.element[block - 1]), table)
        for block, table in zip(first[follows].tolist(), tables[follows].tolist(), strict=True)
    ]
    whole &= (2 * chosen > count) | ((chosen > 0) & before & after) | follows
    if not whole.any():
        return kept
    kept = kept.copy()
    kept[cells[whole[place]]] = True
    return kept


def displayed(page: Page) -> Array:
    """bool[blocks]: those that are nothing but `$$...$$`."""
    start, end = page.start[:-1], page.start[1:]
    found = np.zeros(len(start), np.bool_)
    if DOLLARS not in page.text.tobytes():
        return found
    long = np.flatnonzero(end - start > 2 * len(DOLLARS))
    dollar = ord("$")
    text = page.text
    a, b = start[long], end[long]
    found[long] = (text[a] == dollar) & (text[a + 1] == dollar) & (text[b - 1] == dollar) & (text[b - 2] == dollar)
    return found


def near(page: Page, left: int, right: int) -> bool:
    """Whether two elements stand in one container, or one of them in a child of it."""
    chains = []
    for element in (left, right):
        chain = [element]
        while len(chain) < 4 and chain[-1] > 0:
            chain.append(int(page.parent[chain[-1]]))
        chains.append(chain)
    return not set(chains[0]).isdisjoint(chains[1])


# --- readers' comments ------------------------------------------------------------------------------------------------

LEAST_TEXT = 100  # words beside the comments, or they are the text

TO_COMMENT, TO_FORUM, TO_REVIEW = (TO_BIT + BIT_NAMES.index(name) for name in ("comment", "forum", "review"))
TO_CODE = TO_KIND + KIND["pre"]
SAYS_FORUM, SAYS_PRODUCT = (SAYS + KNOWN.index(name) for name in ("forum", "product"))


def readers_comments(measured: MeasuredPage, kept: Array) -> Array:
    """bool[blocks]: of the kept blocks, those that are comments beside a text."""
    none = np.zeros(len(kept), np.bool_)
    rows = measured.rows
    comments = kept & (rows[:, TO_COMMENT] < FAR) & (rows[:, TO_CODE] >= FAR)
    if not comments.any() or rows[0, SAYS_FORUM] > 0 or (rows[kept, TO_FORUM] < FAR).any():
        return none
    if rows[0, SAYS_PRODUCT] > 0:
        comments &= rows[:, TO_REVIEW] >= FAR
    left = int(measured.counts[kept & ~comments, WORDS].sum())
    return comments if left >= LEAST_TEXT else none


# --- pages that are none ----------------------------------------------------------------------------------------------

FEW, SHORT = 60, 800  # words and characters on the whole page: a notice and some menu; a page with more is a page
FEWEST = 12  # words: not even a notice
SCRIPT_BYTES = 2000  # of markup at least, before its emptiness is laid to scripts
FRAMES = tuple(TAGS.index(name) for name in ("frameset", "frame"))

REFRESH = re.compile(r"\s*\d*+(?:\.\d*+)?\s*+[;,]?\s*+(?:url\s*+=)?\s*+['\"]?\S")
SCRIPT_MOVES = re.compile(
    rb"(?:window|document|top|self)?\.?location(?:\.href)?\s{0,4}=\s{0,4}[\"'][^\"']|location\.(?:replace"
    rb"|assign)\s{0,4}\("
)
NOT_FOUND = re.compile(
    r"\b404\b|not found|page (?:you|doesn.t|does not|isn.t|cannot|can.t)|no longer (?:exists|available)"
    r"|no encontrad|no existe|introuvable|n.existe pas"
    r"|nicht gefunden|existiert nicht|não encontrad|nao encontrad|non trovat|niet gevonden|nie znaleziono|не найден"
    r"|не знайден|не существует|bulunamad"
    r"|hittades inte|ikke fundet|ei löydy|nenalezen|nem található|nu a fost găsit|δεν βρέθηκε|見つかりません|找不到|不存在|未找到"
    r"|찾을 수 없|لم يتم العثور|לא נמצא|tidak ditemukan"
    r"|không tìm thấy|ไม่พบ",
    re.IGNORECASE,
)
SCRIPT_NAMED = re.compile(r"java\s?script|ジャバスクリプト", re.IGNORECASE)
EMPTY_STAGE = re.compile(
    rb"<(?:div|main|section|app-root|[a-z]+-app)\b[^<>]{0,200}\bid\s{0,4}=\s{0,4}[\"']?(?:root|app|__next|__nuxt"
    rb"|___gatsby|main|mount|react-root|app-root)[\"'\s>]|<app-root\b"
)
PASSWORD = re.compile(rb"<input\b[^<>]{0,1000}?\btype\s{0,4}=\s{0,4}[\"']?password\b", re.IGNORECASE)
LOCKED = re.compile(
    r"\b(?:log|sign)[ -]?in\b|\blogin\b|iniciar sesi|inicia sesi|connexion|se connecter|connectez|anmelden"
    r"|einloggen|entrar\b|fazer login|accedi\b|inloggen|zaloguj"
    r"|войти|войдите|вход\b|увійти|giriş yap|logga in|logg inn|log ind|kirjaudu|přihlá|bejelentkez|autentific"
    r"|σύνδεση|ログイン|登录|登入|로그인|تسجيل الدخول|התחבר|đăng nhập"
    r"|เข้าสู่ระบบ",
    re.IGNORECASE,
)


def no_page(seen: SegmentedPage) -> str | None:
    """Why this is no page with text of its own, in one of REASONS; None where it may be one."""
    words = int(seen.measured.counts[:, WORDS].sum())
    if words > FEW or int(seen.measured.counts[:, CHARACTERS].sum()) > SHORT:
        return None
    if any((seen.page.tag == frame).any() for frame in FRAMES):
        return "frames"
    if moved(seen, words):
        return "redirect"
    text = "\n".join([seen.head.title or "", *texts_of_blocks(seen, range(len(seen.page.element)))])
    if NOT_FOUND.search(text):
        return "not_found_page"
    if LOCKED.search(text) and PASSWORD.search(seen.data):
        return "login_wall"
    if needs_script(seen, words, text):
        return "needs_script"
    return None


def moved(seen: SegmentedPage, words: int) -> bool:
    """By a meta tag that names an address, or by a script on a page that has nothing else."""
    refresh = seen.head.refresh
    if refresh and "=" in refresh and REFRESH.match(refresh):
        return True
    return words <= FEWEST and len(seen.data) < SCRIPT_BYTES and SCRIPT_MOVES.search(seen.data) is not None


def needs_script(seen: SegmentedPage, words: int, text: str) -> bool:
    """It says so itself, or it is an empty stage with a program beside it."""
    if b"<script" not in seen.data.lower():
        return False
    if SCRIPT_NAMED.search(text):
        return True
    return words <= FEWEST and len(seen.data) >= SCRIPT_BYTES and EMPTY_STAGE.search(seen.data) is not None
