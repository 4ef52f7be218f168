"""UTF-8 that was read as Windows-1252 or Latin-1 (`â€™` for `’`, `Ã©` for `é`), found and read again, once for each
time it was misread.

The idea is ftfy's (Speer 2019): every character of such text stands for a byte, and bytes that form UTF-8 characters
one after the other do not come about by chance. Real text must not be harmed, so a sequence is weighed before it is
read again:

- *strong*: no text would have it (`Ã©`, `â€™`, a C1 control), and what it stands for is written somewhere. It is
  repaired.
- *weak*: real text may have it (`NÃO` has none, but `É™`, `é »`, `Ø±` are). It is repaired beside a strong one without
  a gap, as in a word of
  mojibake, or where all characters of its line that are not ASCII form such sequences, one of them strong or three or
  more of them weak and side by side.

Beside that, C1 controls that are left in Latin-1 text are what Windows-1252 has in their place (`don\x92t`), and `â€`
with a lost third byte is `”`, the only common character whose third byte Windows-1252 does not have.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import groupby

import numpy as np

from gristmill.kernels.base.bare import code_point, helper, kernel
from gristmill.kernels.base.types import Array
from gristmill.kernels.base.unicode import LETTER, LOWER, POINTS, UNASSIGNED, UPPER, properties, script
from gristmill.kernels.repair.entities import WINDOWS, put

NONE, WEAK, STRONG = 0, 1, 2
# How a byte's character behaves after a letter: cannot stand there, closes a word or phrase, opens or joins one, is a
# gap, is a letter.
ALIEN, CLOSING, JOINING, GAP, LETTERLIKE = 1, 2, 3, 4, 5
_BEHAVIOUR = {
    CLOSING: "”›»…™®©°²³¹ªº†‡•·",
    JOINING: "’‘“‹«–—´\xad",
    GAP: "\xa0",
    LETTERLIKE: "ŠšŒœŽž",
}
_ISO = {0xE2: "тقβגโā", 0xF0: "đğš№πנ๐"}  # only before C1 controls, which all parts have
ENOUGH = 3  # weak sequences that carry a line
FOREIGN = 0x370  # Greek and the scripts after it


@cache
def byte_of() -> Array:
    """uint8[0x110000]: the byte that Windows-1252 (Latin-1 where that has none) reads as this character; 0 below 0x80
    and for all others. Past U+00FF two more bytes: what the other parts of ISO 8859 read for the first byte of
    punctuation and of emoji."""
    table = np.zeros(POINTS, np.uint8)
    for byte, readings in _ISO.items():
        table[list(map(ord, readings))] = byte
    table[0x80:0x100] = np.arange(0x80, 0x100)
    for byte, point in enumerate(WINDOWS, 0x80):
        table[point] = byte
    table.flags.writeable = False
    return table


@cache
def behaviours() -> Array:
    """uint8[256]: how the character of each byte behaves after a letter."""
    table = np.zeros(256, np.uint8)
    table[0x80:0xC0] = ALIEN
    for behaviour, characters in _BEHAVIOUR.items():
        table[list(characters.encode("cp1252"))] = behaviour
    table.flags.writeable = False
    return table


@helper
def _sequence(data, i, end, bytes_of):
    """The character of the misread bytes at i, or -1; their end; the two bytes after the first (0 for none); whether
    one was a C1 control."""
    point, length = code_point(data, i, end)
    lead = np.int64(bytes_of[point])
    if lead < 0xC2 or lead > 0xF4:
        return np.int64(-1), i, np.int64(0), np.int64(0), False
    size = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
    value = lead & (0x1F if size == 2 else 0x0F if size == 3 else 0x07)
    stop, other = i + length, point >= 0x100
    first, second, control = np.int64(0), np.int64(0), False
    for k in range(1, size):
        if stop >= end:
            return np.int64(-1), i, first, second, False
        point, length = code_point(data, stop, end)
        if point == 0xFFFD and k == 2 and not other and lead == 0xE2 and first == 0x80:
            return np.int64(0x201D), stop + length, first, second, True
        byte = np.int64(bytes_of[point])
        if byte < 0x80 or byte >= 0xC0 or (other and not 0x80 <= point < 0xA0):
            return np.int64(-1), i, first, second, False
        if k == 1:
            if (
                (lead == 0xE0 and byte < 0xA0)
                or (lead == 0xED and byte >= 0xA0)
                or (lead == 0xF0 and byte < 0x90)
                or (lead == 0xF4 and byte >= 0x90)
            ):
                return np.int64(-1), i, first, second, False
            first = byte
        elif k == 2:
            second = byte
        control |= 0x80 <= point < 0xA0
        value = value << 6 | byte & 0x3F
        stop += length
    return value, stop, first, second, control


@helper
def _weight(value, lead, first, second, control, before, after, properties, behaviours):
    """STRONG, WEAK, or NONE for a sequence that is no character. `before` and `after` are the neighbouring
    characters."""
    if properties[value] & UNASSIGNED and not 0xE000 <= value < 0xF900:  # fonts of some languages use the private area
        return NONE
    if control:
        return STRONG
    if lead == 0xE2 and first == 0x80:
        return STRONG  # the quotes, dashes and ellipsis of every word processor
    behaviour, then = behaviours[first], behaviours[second]
    if lead >= 0xF0:
        return STRONG if behaviour != GAP and (lead == 0xF0 and first >= 0x9D) else WEAK
    if lead >= 0xE0:
        if behaviour == GAP:
            return WEAK
        if behaviour == ALIEN or then == ALIEN:
            return STRONG
        if lead == 0xE1 and 0x1E00 <= value < 0x1F00 and properties[after] & LETTER:
            return STRONG  # the letters of Vietnamese and Yoruba, inside a word; `«está»…` ends one
        if lead == 0xE2 and 0x2100 <= value < 0x2C00 and not properties[before] & LETTER:
            return STRONG  # arrows, ticks and stars
        return WEAK
    if value >= FOREIGN:
        return WEAK  # words of these hold together, see `_run`
    if not (
        value < 0x180 or 0x1A0 <= value <= 0x1A1 or 0x1AF <= value <= 0x1B0 or 0x218 <= value <= 0x21B or value == 0x259
    ):
        return WEAK  # no letter that is common: only Latin to Vietnamese Ơ and Ư, Romanian Ș and Ț, Azerbaijani ə are
    if behaviour == ALIEN or (behaviour == LETTERLIKE and 0xC3 <= lead <= 0xC5):
        return STRONG
    if before < 0x80 and properties[before] & LOWER:
        return STRONG  # a capital after a small letter, and then no letter
    small = properties[after] & LOWER != 0
    quoted = after == 0x22 or after == 0x27 or after == 0xBB or after == 0x201D or after == 0x2019
    capitals = properties[before] & UPPER != 0 and not small
    if lead == 0xC2:
        if behaviour == CLOSING and value >= 0xA9:
            return STRONG  # a sign that Latin-1 has: `Â®`
        return WEAK if capitals or quoted else STRONG
    if behaviour == CLOSING and small:
        return STRONG  # a closing mark between letters
    if capitals or quoted:
        return WEAK  # NÃO, “Ã”
    if lead == 0xC3 and first >= 0xA0:
        return STRONG  # small letters of Western Europe, `Ã\xa0` among them
    if lead <= 0xC5 and behaviour == JOINING and first >= 0xA0:
        return STRONG  # `Å«`, but not `Å²`, a square of angstroms
    return (
        STRONG if small and (first == 0x8B or first == 0x91 or first == 0x93) else WEAK
    )  # an opening quote in a word: `Å“uvre`


@helper
def _run(data, i, end, before, bytes_of, properties, behaviours, script):
    """Adjacent sequences from i on: their end, how many are strong, and how many are weak evidence (`é »` is none, `Ø½`
    alone neither). A word of another script is strong as a whole: two sequences of one script with a character that
    occurs in no text, or three."""
    strong, weak, count, alike, alien, last = 0, 0, 0, 0, False, -1
    while i < end:
        value, after, first, second, control = _sequence(data, i, end, bytes_of)
        if value < 0:
            break
        point, _ = code_point(data, i, end)
        lead = np.int64(bytes_of[point])
        following = np.int64(10)
        if after < end:
            following, _ = code_point(data, after, end)
        weight = _weight(value, lead, first, second, control, before, following, properties, behaviours)
        if weight == NONE:
            break
        if weight == STRONG:
            strong += 1
        elif behaviours[first] != GAP:
            weak += 1
        written = np.int64(script[value]) if value >= FOREIGN else -1
        if written != last:
            alike, alien, last = 0, False, written
        alike += 1
        alien |= behaviours[first] == ALIEN
        if written >= 0 and (alike >= 3 or (alike == 2 and alien)):
            strong += 1
        before = value
        i = after
        count += 1
    return i, strong, weak if count > 1 else 0


@helper
def _line_is_misread(data, i, end, bytes_of, properties, behaviours, script):
    """Whether every character that is not ASCII is part of a sequence, with enough evidence."""
    strong, weak, before = 0, 0, np.int64(10)
    while i < end:
        if data[i] < 0x80:
            before = np.int64(data[i])
            i += 1
            continue
        after, more_strong, more_weak = _run(data, i, end, before, bytes_of, properties, behaviours, script)
        if after == i:
            return False
        strong += more_strong
        weak += more_weak
        i = after
    return strong > 0 or weak >= ENOUGH


@kernel
def repair_mojibake(data, offsets, wanted, bytes_of, properties, behaviours, script, windows, out, ends, counts):
    """Repairs documents with `wanted` line by line, once, and copies the others. `out` is half as long again, since a
    C1 control grows."""
    o = 0
    ends[0] = 0
    for row in range(len(offsets) - 1):
        i, end = offsets[row], offsets[row + 1]
        counts[row] = 0
        while i < end:
            stop, foreign = i, False
            if wanted[row]:
                while stop < end and data[stop] != 10:
                    foreign |= data[stop] >= 0x80
                    stop += 1
            else:
                stop = end
            if not foreign:
                stop = min(stop + 1, end)
                while i < stop:
                    out[o] = data[i]
                    o += 1
                    i += 1
                continue
            whole = _line_is_misread(data, i, stop, bytes_of, properties, behaviours, script)
            before, latin = np.int64(10), True
            while i < stop:
                if data[i] < 0x80:
                    before, latin = np.int64(data[i]), True
                    out[o] = data[i]
                    o += 1
                    i += 1
                    continue
                after, strong, _ = _run(data, i, stop, before, bytes_of, properties, behaviours, script)
                if after > i and (whole or strong):
                    while i < after:
                        value, i, _, _, _ = _sequence(data, i, stop, bytes_of)
                        o = put(out, o, value)
                        counts[row] += 1
                    latin = True
                    continue
                copied = False
                while i < after or not copied:  # a run that stays as it is, or the one character that begins none
                    point, length = code_point(data, i, stop)
                    copied = True
                    control = 0x80 <= point < 0xA0
                    latin = (
                        latin if control else point < 0x100
                    )  # after a character of another code page a control is what is left of it
                    if control and latin and windows[point - 0x80] != point:
                        o = put(out, o, windows[point - 0x80])
                        counts[row] += 1
                    else:
                        for j in range(i, i + length):
                            out[o] = data[j]
                            o += 1
                    i += length
                    before = point
        ends[row + 1] = o


def repair_mojibake_plain(text: str) -> tuple[str, int]:
    """The same, one text at a time; with the number of characters decoded."""
    lines = [_line_plain(line) for line in text.split("\n")]
    return "\n".join(line for line, _ in lines), sum(count for _, count in lines)


def _line_plain(line: str) -> tuple[str, int]:
    pieces: list[
        list[tuple[str, str, int]]
    ] = []  # runs of (as it stands, what it stands for, weight); or one character without a reading
    i = 0
    while i < len(line):
        run: list[tuple[str, str, int]] = []
        while sequence := _sequence_plain(line[i : i + 4]):
            seen, meant = sequence
            end = i + len(seen)
            weight = _weight_plain(seen, meant, run[-1][1] if run else line[max(i - 1, 0) : i], line[end : end + 1])
            if weight == NONE:
                break
            run.append((seen, meant, weight))
            i = end
        pieces.append(run or [(line[i], line[i], NONE)])
        i += not run
    runs = [piece for piece in pieces if piece[0][2]]
    evidence = sum(_strong_plain(run) for run in runs)
    whole = all(piece[0][2] or piece[0][0].isascii() for piece in pieces) and (
        evidence
        or sum(weight == WEAK and seen[1] != "\xa0" for run in runs if len(run) > 1 for seen, _, weight in run)
        >= ENOUGH
    )
    written, count, latin = [], 0, True
    for piece in pieces:
        if piece[0][2] and (whole or _strong_plain(piece)):
            written += [meant for _, meant, _ in piece]
            count += len(piece)
            latin = True
            continue
        for character in "".join(seen for seen, _, _ in piece):
            control = "\x80" <= character <= "\x9f"
            latin = latin if control else character < "\u0100"
            written.append(chr(WINDOWS[ord(character) - 0x80]) if control and latin else character)
            count += written[-1] != character
    return "".join(written), count


def _sequence_plain(characters: str) -> tuple[str, str] | None:
    data = bytes(int(byte_of()[ord(c)]) for c in characters)
    if characters[:1] > "\xff":
        size = 3 if data[0] == 0xE2 else 4
        return (
            (characters[:size], data[:size].decode())
            if data[0] and re.fullmatch("[\x80-\x9f]{2,3}", characters[1:size]) and _valid(data[:size])
            else None
        )
    if data.startswith("”".encode()[:2]) and characters[2:3] == "\ufffd":
        return characters[:3], "”"
    for size in (2, 3, 4):
        try:
            if len(meant := data[:size].decode()) == 1 and ord(meant) >= 0x80:
                return characters[:size], meant
        except UnicodeDecodeError:
            continue
    return None


def _valid(data: bytes) -> bool:
    try:
        return len(data.decode()) == 1
    except UnicodeDecodeError:
        return False


def _weight_plain(seen: str, meant: str, before: str, after: str) -> int:
    if properties()[ord(meant)] & UNASSIGNED and not "\ue000" <= meant < "\uf900":
        return NONE
    if any("\x80" <= c <= "\x9f" for c in seen) or seen.startswith("â€"):
        return STRONG
    return STRONG if _strong_alone_plain(seen, meant, before, after) else WEAK


def _strong_alone_plain(seen: str, meant: str, before: str, after: str) -> bool:
    def behaves(character: str) -> int:
        return next((kind for kind, members in _BEHAVIOUR.items() if character in members), ALIEN)

    def has(character: str, bit: int) -> bool:
        return bool(character) and bool(properties()[ord(character)] & bit)

    first = behaves(seen[1])
    if len(seen) == 4:
        return seen[0] == "ð" and first != GAP and byte_of()[ord(seen[1])] >= 0x9D
    if len(seen) == 3:
        inside = "\u1e00" <= meant < "\u1f00" and has(after, LETTER)
        symbol = seen[0] == "â" and "\u2100" <= meant < "\u2c00" and not has(before, LETTER)
        return first != GAP and (ALIEN in (first, behaves(seen[2])) or symbol or inside)
    if not (meant < "\u0180" or meant in "ƠơƯưəȘșȚț"):
        return False
    if first == ALIEN or (first == LETTERLIKE and seen[0] in "ÃÄÅ") or (has(before, LOWER) and before.isascii()):
        return True
    guarded = (has(before, UPPER) and not has(after, LOWER)) or (after != "" and after in "\"'»”’")
    if seen[0] == "Â":
        return (first == CLOSING and meant >= "©") or not guarded
    if first == CLOSING and has(after, LOWER):
        return True
    if guarded:
        return False
    if seen[1] >= "\xa0" and seen[1] < "\u0100" and (seen[0] == "Ã" or (seen[0] in "ÄÅ" and first == JOINING)):
        return True
    return seen[1] in "‹‘“" and has(after, LOWER)


def _strong_plain(run: list[tuple[str, str, int]]) -> bool:
    if any(weight == STRONG for _, _, weight in run):
        return True
    words = groupby(run, lambda sequence: int(script()[ord(sequence[1])]) if ord(sequence[1]) >= FOREIGN else -1)
    for written, word in words:
        beside = [behaviours()[byte_of()[ord(seen[1])]] for seen, _, _ in word]
        if written >= 0 and (len(beside) >= 3 or (len(beside) == 2 and ALIEN in beside)):
            return True
    return False
