"""The text of a PDF file: paragraphs in reading order, words that a line's end had cut put together, without running
heads; what the file says of itself; and which pages have no text that can be read.

Measured on 220 files of seven programs, docs/pdf.md.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

import numpy as np

from gristmill.stages.pdf.files import Opened, Page
from gristmill.stages.pdf.heads import without_heads
from gristmill.stages.pdf.layout import Line, columns_of, lines_of, runs_of

LIGATURES = {0xFB00: "ff", 0xFB01: "fi", 0xFB02: "fl", 0xFB03: "ffi", 0xFB04: "ffl", 0xFB05: "st", 0xFB06: "st"}
UNSEEN = dict.fromkeys((*range(9), *range(11, 32), 127, 65279, 8203))
CLEANED = {**UNSEEN, **LIGATURES}
HYPHEN = re.compile(r"(\w+)[-\u00ad\u2010]$")
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef]"
)  # scripts without spaces
FIRST_WORD = re.compile(r"\w+")
WORD = re.compile(r"\w+(?:[-\u2010]\w+)*")
ITEM = re.compile(r"[•◦▪‣●○■–*]\s|\(?\d{1,3}[.)]\s|\(?[a-z][.)]\s")
ENDS = tuple('.!?:;。！？…"”’»)')
# Words before a hyphen that stays where a line ends with it.
COMPOUND = {"self", "well", "half", "ill", "quasi", "vice", "high", "low", "long", "short", "twenty", "thirty", "forty",
            "fifty", "sixty", "seventy", "eighty", "ninety"}  # fmt: skip
VOWELS = frozenset("aeiouyáéíóúàèìòùâêîôûäëïöüãõåæøœąęůýāēīō")

FEW_WORDS = 8  # on a page that pictures cover: a stamp
COVERED = 0.5  # of a page, by pictures
MOST_NOISE = 0.3  # of a page's characters without a meaning
ENOUGH = 200  # characters to judge letters by
LEAST_LETTERS, LEAST_VOWELS = 0.35, 0.14
WIDE_GAP = 1.35  # of the usual distance of lines, between paragraphs
LEAST_STRETCHED = 0.72  # of a line's width, drawn: a line of text with wide gaps, and no row of a table
LARGER = 1.12  # of the usual height: a heading
SURE = 25  # letters of which some are high and some are low

Form = Literal["text", "markdown"]


@dataclass
class PdfText:
    text: str
    facts: dict[str, str]  # title, author, date of creation, producer, as the file gives them
    page_count: int
    pages_read: int
    heads: int = 0  # rows taken for running heads, which are not in the text
    unread: list[int] = field(default_factory=list)  # pages that show something, and whose text layer does not say it
    seconds: float = field(compare=False, default=0.0)  # of processor time in the child


@dataclass
class Block:
    """Lines that belong together: a paragraph, or the rows of a table."""

    lines: list[Line]
    table: bool = False
    starts_column: bool = False


def text_of(opened: Opened, form: Form = "text", given: dict[int, str] | None = None) -> PdfText:
    """`given` are texts of pages by their numbers, which stand in place of the pages' own."""
    given = given or {}
    unread = [number for number, page in enumerate(opened.pages) if number not in given and needs_ocr(page)]
    all_runs = [
        [] if number in given or number in unread else runs_of(page) for number, page in enumerate(opened.pages)
    ]
    upright, heads = without_heads(
        [turns[0] if turns else [] for turns in all_runs], [height_of(page) for page in opened.pages]
    )
    pieces: list[Piece] = []
    for number, (runs, turns) in enumerate(zip(upright, all_runs, strict=True)):
        if number in given:
            pieces += [Piece(part.strip(), []) for part in given[number].split("\n\n") if part.strip()]
        for some in (runs, *turns[1:]):
            for part in columns_of(some) if some else []:
                pieces += pieces_of(lines_of(part), form)
    words = vocabulary(pieces)
    text = "\n\n".join(piece.joined(words) for piece in merged(pieces)).translate(CLEANED)
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    text = text.replace("\u00ad", "").strip()
    return PdfText(text, facts_of(opened.facts), opened.page_count, len(opened.pages), heads, unread, opened.seconds)


def height_of(page: Page) -> float:
    return page.height if np.isfinite(page.height) and page.height > 0 else 792.0


# --- pages without text


def needs_ocr(page: Page) -> bool:
    """Does a page show something that its text layer does not say?"""
    codes = page.codes_N[page.codes_N > 32]
    if not len(codes):
        return page.objects > 0
    text = codes.astype("<u4").tobytes().decode("utf-32-le", "replace")
    lost = (codes == 0xFFFD) | ((codes >= 0xE000) & (codes <= 0xF8FF)) | (codes == 0xFFFF)
    if max(page.unmapped_share, float(lost.mean())) > MOST_NOISE:
        return True
    if page.image_share > COVERED and len(codes) < 5 * FEW_WORDS:
        return True
    return len(text) >= ENOUGH and is_noise(text)


def is_noise(text: str) -> bool:
    """Signs where letters should be, or letters of no language: a font whose codes mean other letters than it says."""
    if sum(map(str.isalnum, text)) < LEAST_LETTERS * len(text):
        return True
    latin = [letter for letter in text.lower() if "a" <= letter <= "z" or "à" <= letter <= "ɏ"]
    return len(latin) >= ENOUGH and sum(letter in VOWELS for letter in latin) < LEAST_VOWELS * len(latin)


# --- paragraphs


@dataclass
class Piece:
    """A paragraph: its lines' texts, or `whole` where it is made already (a table, a page from OCR)."""

    whole: str
    lines: list[str]
    first_of_part: bool = False
    last_of_part: bool = False
    height: float = 0.0
    prefix: str = ""

    def joined(self, words: set[str]) -> str:
        if not self.lines:
            return self.whole
        text = self.lines[0]
        for line in self.lines[1:]:
            text = with_line(text, line, words)
        return self.prefix + text


def pieces_of(lines: list[Line], form: Form) -> Iterator[Piece]:
    blocks = list(blocks_of(lines))
    usual = median([line.height for line in lines]) if lines else 0.0
    for number, block in enumerate(blocks):
        if block.table:
            rows = [line.cells for line in block.lines]
            yield Piece(markdown_table(rows) if form == "markdown" else "\n".join("\t".join(row) for row in rows), [])
            continue
        height = block.lines[0].height
        heading = form == "markdown" and height > LARGER * usual and len(block.lines) <= 3
        yield Piece(
            "", [line.text for line in block.lines], number == 0, number == len(blocks) - 1, height,
            "## " if heading else "",
        )  # fmt: skip


def markdown_table(rows: list[list[str]]) -> str:
    width = max(len(row) for row in rows)
    cells = [[cell.replace("|", "\\|") for cell in row] + [""] * (width - len(row)) for row in rows]
    cells.insert(1, ["---"] * width)
    return "\n".join("| " + " | ".join(row) + " |" for row in cells)


def blocks_of(lines: list[Line]) -> Iterator[Block]:
    """Lines of one column as paragraphs and tables."""
    if not lines:
        return
    left, right = min(line.left for line in lines), max(line.right for line in lines)
    gaps = [above.base - below.base for above, below in itertools.pairwise(lines)]
    usual = median(gaps) if gaps else 0.0
    rows = table_rows(lines)
    block = Block([lines[0]], rows[0])
    for number in range(1, len(lines)):
        above, line = lines[number - 1], lines[number]
        if rows[number] and rows[number - 1]:
            block.lines.append(line)
        elif rows[number] or rows[number - 1] or parts(above, line, gaps[number - 1], usual, left, right):
            yield block
            block = Block([line], rows[number])
        else:
            block.lines.append(line)
    yield block


def table_rows(lines: Sequence[Line]) -> list[bool]:
    """Lines of several cells that follow each other, three at least or two of three cells."""
    cells = [len(line.cells) if line.drawn_share < LEAST_STRETCHED else 1 for line in lines]
    found = [False] * len(lines)
    start = 0
    while start < len(lines):
        end = start
        while end < len(lines) and cells[end] > 1:
            end += 1
        if end - start >= 3 or (end - start == 2 and min(cells[start:end]) >= 3):
            found[start:end] = [True] * (end - start)
        start = max(end, start + 1)
    return found


def parts(above: Line, line: Line, gap: float, usual: float, left: float, right: float) -> bool:
    """Does a paragraph begin with a line?"""
    if HYPHEN.search(above.text) and line.text[:1].islower():
        return gap > 3 * usual
    if not alike(above.height, line.height, min(len(above.text), len(line.text))):
        return True
    if (
        gap > 3.5 * line.height
        or gap > max(WIDE_GAP * usual, 1.6 * line.height)
        or (gap > WIDE_GAP * usual and gap > 1.3 * line.height)
    ):
        return True
    if ITEM.match(line.text):
        return True
    indent = line.left - left > 0.6 * line.height
    if indent and above.left - left < 0.4 * line.height:
        return True
    first = len(line.text.split(" ", 1)[0])
    letter = (line.right - line.left) / max(1, len(line.text))
    return above.right + (first + 1) * letter < right - 0.5 * line.height


def alike(one: float, other: float, letters: int) -> bool:
    """Are two heights of one size of type? PDFium gives the height of the letters themselves where a font does not say
    its own, and few letters may all be low."""
    most = LARGER if letters >= SURE else LARGER * 1.3
    return 1 / most < other / max(one, 0.1) < most


def merged(pieces: list[Piece]) -> Iterator[Piece]:
    """A paragraph that a column's or page's end has cut is one again."""
    held: Piece | None = None
    for piece in pieces:
        if held is not None and goes_on(held, piece):
            held = Piece("", held.lines + piece.lines, held.first_of_part, piece.last_of_part, held.height, held.prefix)
            continue
        if held is not None:
            yield held
        held = piece
    if held is not None:
        yield held


def goes_on(above: Piece, below: Piece) -> bool:
    if not (above.lines and below.lines and above.last_of_part and below.first_of_part) or above.prefix or below.prefix:
        return False
    if not alike(above.height, below.height, min(len(above.lines[-1]), len(below.lines[0]))):
        return False
    if HYPHEN.search(above.lines[-1]):
        return below.lines[0][:1].islower()
    return not above.lines[-1].endswith(ENDS) and not ITEM.match(below.lines[0])


# --- hyphens


def vocabulary(pieces: list[Piece]) -> set[str]:
    """Words that stand inside lines, whole."""
    words: set[str] = set()
    for piece in pieces:
        for line in piece.lines:
            words.update(word.lower() for word in WORD.findall(line)[1:-1])
    return words


def with_line(text: str, line: str, words: set[str]) -> str:
    """A line put behind a text, and a word together that was cut between them."""
    if UNSPACED.match(text[-1:]) and UNSPACED.match(line):
        return text + line
    cut, first = HYPHEN.search(text), FIRST_WORD.match(line)
    if cut is None or first is None:
        return f"{text} {line}"
    start, end = cut[1].lower(), first[0].lower()
    if not line[0].islower() or not text[cut.end(1) - 1].isalpha():
        stays = True
    elif start + end in words:
        stays = False
    else:
        both_are_words = min(len(start), len(end)) > 3 and start in words and end in words
        stays = f"{start}-{end}" in words or start in COMPOUND or len(start) == 1 or both_are_words
    return (text[: cut.end(1)] + "-" if stays else text[: cut.end(1)]) + line


# --- what the file says of itself


DATE = re.compile(r"(?:D:)?(\d{4})(\d\d)?(\d\d)?")
NAMES = {"Title": "title", "Author": "author", "Producer": "producer"}


def facts_of(facts: dict[str, str]) -> dict[str, str]:
    found = {}
    for given, name in NAMES.items():
        text = " ".join(facts.get(given, "").translate(UNSEEN).split())[:1000]
        if text and text.lower() not in ("untitled", "anonymous", "unspecified"):
            found[name] = text
    date = DATE.match(facts.get("CreationDate", ""))
    if date and "1980" <= date[1] <= "2100":
        found["published"] = "-".join(part for part in date.groups() if part)
    return found
