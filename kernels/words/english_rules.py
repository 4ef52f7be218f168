"""The rules of spaCy's blank English tokenizer: classes of characters, units of measure, exceptions; as tables for a
kernel, and as regular expressions.

Letters are those of Unicode properties, where spaCy lists ranges. `gristmill.kernels.words.english` cuts by the tables;
`english_words_plain` here is its reference implementation.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from gristmill.kernels.base.types import Array
from gristmill.kernels.base.unicode import POINTS, kept_table, mark_all
from gristmill.kernels.words.english_exceptions import exceptions
from gristmill.kernels.words.words import (
    HOLDS_LETTER,
    HOLDS_LETTER_OR_NUMBER,
    IS_LETTER,
    IS_NUMBER,
    word_hash_plain,
    word_marks,
)

# Bits of `marks()`.
BLANK, ALPHA, LOWER, UPPER = 1 << 0, 1 << 1, 1 << 2, 1 << 3  # letters without case are LOWER and UPPER both
OPENS, CLOSES, ICON, CURRENCY = 1 << 4, 1 << 5, 1 << 6, 1 << 7  # comes off the front, off the end; pictures; money
QUOTE, BEFORE_DOT, HOST, DIGIT = 1 << 8, 1 << 9, 1 << 10, 1 << 11
INNER, END_OF_UNIT, HOST_EDGE = 1 << 12, 1 << 14, 1 << 15  # may cut a middle; last of a unit of measure; label's end

SPECIAL = 1 << 16  # all but letters and digits of ASCII

_QUOTES = r"""'"”“`‘´’‚,„»«「」『』（）〔〕【】《》〈〉⟦⟧"""
_PUNCTUATION = r"…,:;!?¿؟¡()\[\]{}<>_#*&。？！，、；：～·।،۔؛٪"
_MONEY = r"$£€¥฿₽﷼₴₠-₿"
_UNIT_LIST = """
km km² km³ m m² m³ dm dm² dm³ cm cm² cm³ mm mm² mm³ ha µm nm yd in ft kg g mg µg t lb oz m/s km/h kmh mph hPa Pa mbar
mb MB kb KB gb GB tb TB T G M K % км км² км³ м м² м³ дм дм² дм³ см см² см³ мм мм² мм³ нм кг г мг м/с км/ч кПа Па мбар
Кб КБ кб Мб МБ мб Гб ГБ гб Тб ТБ كم كم² كم³ م م² م³ سم سم² سم³ مم مم² مم³ غرام جرام جم كغ ملغ كوب اكواب
"""
_UNITS = tuple(_UNIT_LIST.split())

_CLASSES = {
    BLANK: r"[\p{White_Space}\x1c-\x1f]",
    ALPHA: r"\p{L}",
    LOWER: r"[\p{L}--\p{Uppercase}]",
    UPPER: r"[\p{L}--\p{Lowercase}]",
    OPENS: rf"[§%=—–{_PUNCTUATION}{_QUOTES}{_MONEY}\p{{So}}]",
    CLOSES: rf"[—–{_PUNCTUATION}{_QUOTES}\p{{So}}]",
    ICON: r"[…\p{So}]",
    CURRENCY: rf"[{_MONEY}]",
    QUOTE: rf"[{_QUOTES}]",
    BEFORE_DOT: rf"[0-9%²\-+|{_PUNCTUATION}{_QUOTES}[\p{{L}}--\p{{Uppercase}}]]",
    HOST: r"[A-Za-z0-9\u00a1-\uffff_\-.]",
    DIGIT: r"[0-9]",
    INNER: r"[.…\p{So}+\-*\^,–—~:<>=/|]",
    END_OF_UNIT: "[" + "".join(sorted({unit[-1] for unit in _UNITS})) + "]",
    HOST_EDGE: r"[A-Za-z0-9\u00a1-\uffff]",
    SPECIAL: r"[^A-Za-z0-9]",
}  # fmt: skip
LONGEST_UNIT = 5
PLAIN_DIGITS = DIGIT | HOST | HOST_EDGE | BEFORE_DOT | IS_NUMBER


EXCEPTION, UNIT = 1 << 8, 1 << 9


class EnglishTables(NamedTuple):
    marks: Array  # uint32 by code point
    # uint64[768]: for each byte, bit n where an exception of n bytes begins with it; then a bit for 15 bits of each
    # exception's hash
    filters: Array
    # uint64[slots, 8], an open hash table: hash, bits and number of pieces, then hash and length of each piece
    words: Array


@cache
def english_tables() -> EnglishTables:
    filters = np.zeros(768, np.uint64)
    table = np.zeros((8192, 8), np.uint64)
    for word, pieces in exceptions().items():
        coded = word.encode()
        filters[coded[0]] |= np.uint64(1 << len(coded))
        filters[256 + (word_hash_plain(coded) >> 32 & 511)] |= np.uint64(1 << (word_hash_plain(coded) >> 41 & 63))
        row = table[_slot(table, word_hash_plain(coded))]
        row[1] = EXCEPTION | len(pieces)
        for column, piece in enumerate(pieces):
            letter, number = any(c.isalpha() for c in piece), any(c.isnumeric() for c in piece)
            row[2 + 2 * column] = word_hash_plain(piece.encode())
            row[3 + 2 * column] = len(piece) | HOLDS_LETTER * letter | HOLDS_LETTER_OR_NUMBER * (letter or number)
    for unit in _UNITS:
        table[_slot(table, word_hash_plain(unit.encode())), 1] |= np.uint64(UNIT)
    return EnglishTables(marks(), filters, table)


def _slot(table: Array, h: int) -> int:
    slot = h % len(table)
    while table[slot, 1] and int(table[slot, 0]) != h:
        slot = (slot + 1) % len(table)
    table[slot, 0] = h
    return slot


@cache
def marks() -> Array:
    """uint32[0x110000]: the bits above, and whether a letter or a number."""

    def make() -> Array:
        table = np.zeros(POINTS, np.uint32)
        for bit, pattern in _CLASSES.items():
            mark_all(table, f"(?V1){pattern}", bit, add=True)
        table |= word_marks() & np.uint32(IS_LETTER | IS_NUMBER)
        return table

    return kept_table("english-marks", make)


def english_words_plain(text: str) -> list[str]:
    """The same by regular expressions."""
    import regex

    special, out = exceptions(), []
    front_of, back_of, inside, address = _patterns()
    for chunk in regex.split(f"{_CLASSES[BLANK]}+", text):
        end: list[str] = []
        while chunk and chunk not in special:
            front, back = front_of.match(chunk), None
            taken = front.end() if front else 0
            if taken and chunk[taken:] in special:
                out.append(chunk[:taken])
                chunk = chunk[taken:]
                break
            back = back_of.search(chunk[taken:])
            kept = len(chunk) - (len(back[0]) if back else 0)
            if back and chunk[:kept] in special:
                end.append(chunk[kept:])
                chunk = chunk[:kept]
                break
            if not front and not back:
                break
            out += [chunk[:taken]] * bool(taken)
            end += [chunk[kept:]] * bool(back)
            chunk = chunk[taken:kept]
        if chunk in special:
            out += special[chunk]
        elif chunk and address.fullmatch(chunk):
            out.append(chunk)
        elif chunk:
            begin = 0
            for cut in inside.finditer(chunk):
                if cut.start():
                    out += [piece for piece in (chunk[begin : cut.start()], cut[0]) if piece]
                    begin = cut.end()
            out.append(chunk[begin:])
        out += reversed(end)
    return [word for word in out if word]


@cache
def _patterns() -> tuple[Any, ...]:
    import regex

    c = _CLASSES
    hosts = rf"(?:{c[HOST_EDGE]}(?:[{c[HOST][1:-3]}\-]{{0,62}}{c[HOST_EDGE]})?\.)+{c[LOWER]}{{2,63}}"
    front = rf"\.\.+|\+(?![0-9])|US\$|[CA]\$|{c[OPENS]}"
    units = "|".join(sorted(map(regex.escape, _UNITS), key=len, reverse=True))
    back = rf"……$|\.\.+$|['’][sS]$|{c[CLOSES]}$|(?<=[0-9])(?:\+|US\$|[CA]\$|{c[CURRENCY]}|{units})$"
    back += rf"|(?<={c[BEFORE_DOT]}|{c[UPPER]}{{2}}|°[FfCcKk])\.$"
    inside = rf"\.\.+|{c[ICON]}|(?<=[0-9])[+\-*\^](?=[0-9\-])|(?<={c[LOWER]}|{c[QUOTE]})\.(?={c[UPPER]}|{c[QUOTE]})"
    inside += r"|(?<=\p{L}),(?=\p{L})|(?<=[\p{L}0-9])(?:-{1,3}|–|—{1,2}|[~:<>=/])(?=\p{L})"
    address = rf"(?:[{c[HOST][1:-1]}+]{{2,}}://|.+@)?{hosts}(?::[0-9]{{2,5}})?(?:[/?#].*)?"
    flags = regex.V1 | regex.DOTALL
    return tuple(regex.compile(pattern, flags) for pattern in (front, back, inside, address))
