"""The language of edits: what a model may say of numbered lines, how that is read, checked and applied.

    drop 3-5
    replace 7 "teh  cat" "the cat"
    end

One command a line, and a last line `end`, without which the answer was cut. An answer that holds anything else is
refused whole. A replacement is a repair of spaces, punctuation, capitals or damaged characters. It brings no word, no
number and no character but punctuation that the line does not have, and leaves each number its signs (-3, $5, < 0.05,
10 %). So orders in a page can do no more than its author could have done: leave lines of
this page out.
"""

from __future__ import annotations

import html
import itertools
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gristmill.stages.edits.claims import ANY_LANGUAGE, negations_in, numbers_in, signed_numbers_in

DROP = re.compile(r"drop ([1-9][0-9]{0,5})(?:-([1-9][0-9]{0,5}))?")
STRING = r'("(?:[^"\\\n]|\\.)*")'
REPLACE = re.compile(rf"replace ([1-9][0-9]{{0,5}}) {STRING} {STRING}")
END = "end"
MOST_COMMANDS = 2000
GROWTH, ROOM = 1.25, 16  # of a line's characters: what repairs may add
BRACKETED = re.compile(r"\[[^\[\]\n]{0,20}\]")
WORD = re.compile(r"\w+")
BROKEN_WORD = re.compile(r"(?<=\w)[-\u00ad\u2010]\s+(?=\w)|\u00ad")
SPACED_OUT = re.compile(r"\b[^\W\d_](?: [^\W\d_]){2,}\b")


class BadProgram(ValueError):
    """An answer that is no program for these lines; the reason is one word of a report."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Program:
    """Checked against the lines that it is for. Lines are numbered from 1; replacements are spans of the line as it
    was."""

    dropped: frozenset[int]
    replaced: tuple[tuple[int, int, int, str], ...]  # line, start, end, new

    @property
    def changes(self) -> int:
        return len(self.dropped) + len(self.replaced)


def read_program(answer: str, lines: Sequence[str]) -> Program:
    """What an answer says of lines; BadProgram where it says anything that is not allowed."""
    said = [line.strip() for line in answer.strip().split("\n")]
    if not answer.strip():
        raise BadProgram("empty")
    if said[-1] != END:
        whole = all(is_command(line) for line in said[:-1] if line) and said[-1].startswith(("drop", "replace"))
        raise BadProgram("no_end" if whole else "not_edits")
    commands = [line for line in said[:-1] if line]
    if len(commands) > MOST_COMMANDS:
        raise BadProgram("too_many_edits")
    dropped: set[int] = set()
    spans: dict[int, list[tuple[int, int, str]]] = {}
    for command in commands:
        if match := DROP.fullmatch(command):
            first, last = int(match[1]), int(match[2] or match[1])
            if first > last or last > len(lines):
                raise BadProgram("wrong_line")
            numbers = set(range(first, last + 1))
            if numbers & dropped:
                raise BadProgram("overlapping_edits")
            dropped |= numbers
        elif match := REPLACE.fullmatch(command):
            number, old, new = int(match[1]), unquoted(match[2]), unquoted(match[3])
            if number > len(lines):
                raise BadProgram("wrong_line")
            places = places_of(old, lines[number - 1])
            check_replacement(old, new, lines[number - 1], places)
            spans.setdefault(number, []).extend((place, place + len(old), new) for place in places)
        else:
            raise BadProgram("not_edits")
    replaced: list[tuple[int, int, int, str]] = []
    for number, found in sorted(spans.items()):
        found.sort()
        if number in dropped or any(a[1] > b[0] for a, b in itertools.pairwise(found)):
            raise BadProgram("overlapping_edits")
        check_line(lines[number - 1], edited(lines[number - 1], found))
        replaced += [(number, *span) for span in found]
    return Program(frozenset(dropped), tuple(replaced))


def is_command(line: str) -> bool:
    return bool(DROP.fullmatch(line) or REPLACE.fullmatch(line))


def unquoted(text: str) -> str:
    """A string as JSON writes it; no line ends in it, nor what nobody sees."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise BadProgram("not_edits") from error
    if any(unicodedata.category(sign) in ("Cc", "Cs", "Zl", "Zp") and sign != "\t" for sign in value):
        raise BadProgram("control_characters")
    return str(value)


def places_of(old: str, line: str) -> list[int]:
    """Everywhere it stands, from left to right."""
    if not old:
        raise BadProgram("not_there")
    places, at = [], line.find(old)
    while at >= 0:
        places.append(at)
        at = line.find(old, at + len(old))
    if not places:
        raise BadProgram("not_there")
    return places


def check_replacement(old: str, new: str, line: str, places: Sequence[int]) -> None:
    """A repair, or a deletion of whole words that takes no number and no negation with it."""
    if new == old:
        return
    if new.strip():
        if words_of(old) == words_of(new) or repaired(old) == new:
            return
        raise BadProgram("new_words")
    gone = BRACKETED.sub("", old)  # [12], [edit]
    if numbers_in(gone) or negations_in(gone, ANY_LANGUAGE):
        raise BadProgram("meaning_removed")
    for place in places:
        end = place + len(old)
        cut_before = place > 0 and line[place - 1].isalnum() and old[0].isalnum()
        cut_after = end < len(line) and line[end].isalnum() and old[-1].isalnum()
        if cut_before or cut_after:
            raise BadProgram("new_words")


def check_line(before: str, after: str) -> None:
    """Edits that are each allowed may still join to a word or a number that was not there."""
    if before == after:
        return
    mended = repaired(before)
    if not Counter(words_of(after)) <= Counter(words_of(before)) | Counter(words_of(mended)):
        raise BadProgram("new_words")
    if not numbers_in(after) <= numbers_in(before) | numbers_in(mended):
        raise BadProgram("new_words")
    if any(unicodedata.category(sign)[0] not in "LNP" and sign != " " for sign in set(after) - {*before, *mended}):
        raise BadProgram("new_signs")
    if not signed_numbers_in(after) <= signed_numbers_in(before) | signed_numbers_in(mended):
        raise BadProgram("new_signs")
    if len(after) > GROWTH * len(before) + ROOM:
        raise BadProgram("too_long")


def words_of(text: str) -> list[str]:
    """Words as a reader takes them: in normal form, without capitals, mended where a line broke a word or letters are
    spaced out."""
    normal = BROKEN_WORD.sub("", unicodedata.normalize("NFKC", text))
    normal = SPACED_OUT.sub(lambda found: found[0].replace(" ", ""), normal)
    return WORD.findall(normal.casefold())


def repaired(text: str) -> str:
    """What the stage `repair` would make of it: entities and misread characters, as far as this line tells."""
    from gristmill.kernels.repair.mojibake import repair_mojibake_plain

    return repair_mojibake_plain(html.unescape(text))[0]


def edited(line: str, spans: Sequence[tuple[int, int, str]]) -> str:
    out, at = list[str](), 0
    for start, end, new in spans:
        out += [line[at:start], new]
        at = end
    return "".join([*out, line[at:]])


def apply_program(program: Program, lines: Sequence[str]) -> list[str | None]:
    """The lines afterwards; None for those that are dropped."""
    spans: dict[int, list[tuple[int, int, str]]] = {}
    for number, start, end, new in program.replaced:
        spans.setdefault(number, []).append((start, end, new))
    return [
        None if number in program.dropped else edited(line, spans.get(number, ()))
        for number, line in enumerate(lines, 1)
    ]
