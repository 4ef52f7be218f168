"""The text half of the reference of the HTML segmenter: references, white space, blocks, formulas."""

from __future__ import annotations

import html.entities
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from gristmill.kernels.html import names
from gristmill.kernels.html.tables import ATTRIBUTES, DROPPED, SPACES, WINDOWS

WHITE = rb"\t\n\f\r "
SPACE_BYTES = b"\t\n\v\f\r "
NAME = re.compile(rb"[^" + WHITE + rb"/>]*")
ATTRIBUTE_NAME = re.compile(rb"=?[^" + WHITE + rb"/>=]*")
EQUALS = re.compile(rb"[" + WHITE + rb"]*=[" + WHITE + rb"]*")
BETWEEN = re.compile(rb"[/" + WHITE + rb"]*")
UNQUOTED = re.compile(rb"[^" + WHITE + rb">]*")
REFERENCE = re.compile(r"&(?:#([xX])([0-9a-fA-F]+);?|#([0-9]+);?|([A-Za-z][A-Za-z0-9]*;?))")
SCRIPT = re.compile(rb"(?i)(<!--)|(-->)|(</?)script(?=[" + WHITE + rb"/>])")
DESCRIBING = ATTRIBUTES[1 : ATTRIBUTES.index("style")]


def words_of(which: str) -> frozenset[str]:
    return frozenset(which.split())


BLOCK, SPECIAL, ENDS_P, FORMATTING, UNSEEN, BREAKS_OUT, INLINE, HEADINGS, RAW, SCOPE = (
    words_of(which)
    for which in (
        names.BLOCK, names.SPECIAL, names.ENDS_P, names.FORMATTING, names.UNSEEN, names.BREAKS_OUT, names.INLINE, names.HEADINGS,
        f"{names.RAW} {names.RCDATA} plaintext", names.SCOPE,
    )
)  # fmt: skip
LEAVES = words_of(names.VOID) | RAW | {"svg"}
SECTIONS = {"tbody", "thead", "tfoot"}
PARTS_OF_TABLE = SECTIONS | {"td", "th", "tr", "caption", "colgroup", "col"}
WIDE = "[\u3000-\u9fff\uff00-\uff7f]"
WRAPPED = re.compile(f"(?<={WIDE})(?=[ \t\v\f]*[\r\n])[ \t\v\f\r\n]+(?={WIDE})")  # a line's end that is no space
POWER = re.compile(rb"((?:-|\xe2\x88\x92)?[0-9]+)(</[\s\S]{4}[/&\xe2])?")
PRICE = re.compile(r"[$£€][0-9,]{1,15}\Z")
TABLE_SCOPE = {"html", "table", "template"}


@dataclass
class Said:
    """What the attributes of a tag say."""

    bits: int = 0
    first_class: int = 0
    href: bool = False
    kind: bytes = b""
    alt: bytes = b""
    as_block: bool = False
    shadow: bool = False
    is_open: bool = False
    spans: tuple[int, int] = 0, 0  # rows, columns
    number: int | None = None  # that `value` begins with
    closed: bool = False


@dataclass(eq=False)
class Open:
    """An open element; `name` is empty once it was closed inside a block that it holds, `place` is its own or its
    parent's."""

    name: str
    place: int
    link: bool = False
    keeps_space: bool = False


@dataclass
class Text:
    """The block that is being written: its characters, and whether each is in a link."""

    characters: list[str] = field(default_factory=list)
    linked: list[bool] = field(default_factory=list)
    gap: str = ""
    holders: list[Open] | None = None  # the open elements that hold all of it

    def blank(self) -> bool:
        return not any(c not in " \t\n" for c in self.characters)


def matched(pattern: re.Pattern[bytes], data: bytes, at: int) -> bytes:
    """What stands there of a pattern that also fits nothing."""
    found = pattern.match(data, at)
    return found[0] if found else b""


def bits_of(value: bytes) -> int:
    spelled = "-" + re.sub("[^a-z]+", "-", value.decode("latin-1").lower()).strip("-") + "-"
    bits = 0
    for bit, patterns in names.WORDS.items():
        if any(pattern in spelled for pattern in patterns.split()):
            bits |= bit
    return bits


def media_type(value: bytes) -> bytes:
    return re.split(rb"[;" + WHITE + rb"]", value.lstrip(b"\t\n\f\r "), maxsplit=1)[0].lower()


def unescape(text: str, in_attribute: bool) -> str:
    def replaced(found: re.Match[str]) -> str:
        hexadecimal, digits, decimal, name = found.groups()
        if name:
            for size in range(len(name), 0, -1):
                if name[:size] in html.entities.html5:
                    after = text[found.start() + 1 + size : found.start() + 2 + size]
                    if in_attribute and name[size - 1] != ";" and re.match("[=A-Za-z0-9]", after):
                        break
                    return html.entities.html5[name[:size]] + name[size:]
            return found[0]
        point = int(digits, 16) if hexadecimal else int(decimal)
        if 0x80 <= point < 0xA0:
            return chr(WINDOWS[point - 0x80])
        return "\ufffd" if point == 0 or point > 0x10FFFF or 0xD800 <= point < 0xE000 else chr(point)

    return REFERENCE.sub(replaced, text)


class Writer:
    """Writes characters into blocks, in the element that is open."""

    def __init__(self) -> None:
        self.blocks: list[tuple[str, int, int]] = []
        self.stack = [Open("html", 0)]
        self.text = Text()
        self.skip: Open | None = None  # the one whose content is not shown

    def write(self, text: str, depth: int | None = None) -> None:
        block = self.text
        linked = any(element.link for element in self.stack)
        for character in text:
            if ord(character) in SPACES and not (character == "\xa0" and self.misread_before()):
                self.space(character)
            elif ord(character) not in DROPPED:
                for each in block.gap + character:
                    block.characters.append(each)
                    block.linked.append(linked)
                block.gap = ""
                holders = self.stack[:depth]
                shared = (
                    [a for a, b in zip(block.holders, holders, strict=False) if a is b] if block.holders else holders
                )
                block.holders = shared

    def misread_before(self) -> bool:
        last = "" if self.text.gap else "".join(self.text.characters[-1:])
        return last == "Ã" or "\x80" <= last <= "\x9f"

    def space(self, character: str) -> None:
        block = self.text
        if not self.keeps_space():
            if not block.blank() and not block.gap:
                block.gap = " "
        elif character in "\n\r" and block.blank():
            block.characters, block.linked = [], []
        else:
            block.characters.append({"\t": "\t", "\n": "\n", "\r": "\n"}.get(character, " "))
            block.linked.append(any(element.link for element in self.stack))

    def keeps_space(self) -> bool:
        return any(element.keeps_space for element in self.stack)

    def flush(self) -> None:
        block, self.text = self.text, Text()
        if not block.blank() and block.holders:
            text = "".join(block.characters)
            if self.keeps_space():
                text = text.rstrip(" \t\n")
            self.blocks.append((text, block.holders[-1].place, min(sum(block.linked), len(text))))

    def line_break(self) -> None:
        if self.skip:
            return
        if self.keeps_space():
            self.space("\n")
        elif self.text.gap == "\n":
            self.flush()
        elif not self.text.blank():
            self.text.gap = "\n"

    def formula(self, raw: bytes, twice: bool, decoded: Callable[[str], str]) -> bool:
        latex = raw.strip(SPACE_BYTES)
        if not latex:
            return False
        depth = len(self.stack)
        while depth > 1 and self.stack[depth - 1].name not in BLOCK:
            depth -= 1
        self.write("$" * (1 + twice), depth)
        self.write(decoded(self.lines(latex)), depth)
        self.text.gap = ""
        self.write("$" * (1 + twice), depth)
        return True
