"""Which pages hold code, formulas or powers that are rewritten before segmentation, and where: one look at the tags.

Searching for each name on its own costs 0.2 ms a page and name; this costs a third of that for all of them.
"""

# ruff: noqa: SIM102 (compiled; one condition a line)

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gristmill.kernels.base.bare import inlined
from gristmill.kernels.base.compiled import helper, kernel
from gristmill.kernels.base.types import Array
from gristmill.kernels.html.compiled import first_of_words
from gristmill.kernels.html.tags import after_comment
from gristmill.kernels.html.text import TAG_CLOSES, TAG_OPENS, find_byte

# PRE, CODE, MATH, SUP, MJX: a tag of that name (`<x:math>` too; CODE of more than one line); BOX: what boxes of code
# are called, in a <div>, <td> or <table>; IMAGE: an <img> with a sign of TeX; STATED: an attribute data-math,
# data-latex, data-tex, data-formula of a <div>, <p> or <span>; SCRIPT: a <script> of "math/".
PRE, CODE, MATH, SUP, MJX, BOX, IMAGE, STATED, SCRIPT = (1 << bit for bit in range(9))
TABLE, WORD, DIV = 512, 1024, 2048  # a <table>, <code> on one line, a <div> that may be a box: nothing on their own
OF_CODE = PRE | CODE | TABLE | DIV
HINTS = 511
# Pages with one of these are rewritten, and those with WORD and TABLE.
REWRITTEN = PRE | CODE | MATH | SUP | MJX | BOX | IMAGE | STATED | SCRIPT
BITS = 12
LONGEST_WORD = 8
LONGEST_TAG = 10_000  # bytes of a <div> that may be a box
closes = first_of_words(b"</")
ends_line = first_of_words(b"\n", b"<br", b"block")  # \n is `*` too
says_code = first_of_words(b"code", b"filec", b"xhigh", b"ta-m", b"ta-l", b"ta-t", b"ta-f")
says_formula = first_of_words(b"ta-m", b"ta-l", b"ta-t", b"ta-f")
says_tex = first_of_words(b"math", b"formu", b"\\", b"$", b"%5c", b"tex")


class Hints(NamedTuple):
    """What a page holds, and the places of the tags in question, in order."""

    bits: int
    places: Array  # int64: the place of `<`, then its one bit in BITS bits

    def of(self, wanted: int) -> list[tuple[int, int]]:
        """Place and bit of each such tag."""
        found = self.places[self.places & wanted != 0]
        return list(zip((found >> BITS).tolist(), (found & ((1 << BITS) - 1)).tolist(), strict=True))


def hints_of(data: bytes) -> Hints:
    bits, places = find_hints(np.frombuffer(data, np.uint8))
    return Hints(int(bits), places)


@inlined
def is_next(data, i, n, a, b, c, d):
    """Whether these four letters, in whatever case, stand at i."""
    return (
        i + 3 < n and data[i] | 32 == a and data[i + 1] | 32 == b and data[i + 2] | 32 == c and data[i + 3] | 32 == d
    )  # fmt: skip


@inlined
def ends_name(data, i, n):
    return i < n and (data[i] == 62 or data[i] == 47 or data[i] == 32 or 9 <= data[i] <= 13)


@inlined
def next_word(data, i, end, n, search):
    """The next place that may hold one of the words of `search`; `end` or behind it: none."""
    position, last = np.uint64(i), np.uint64(end)
    while position < last and position + np.uint64(32 + LONGEST_WORD) <= np.uint64(n):
        step = search(data, position)
        position += step
        if step < np.uint64(32):
            break
    return np.int64(position)


@inlined
def states_formula(data, i, n):
    """Whether data-math, data-late, data-formu or data-tex (not data-text) is here, with its `ta-` at i."""
    if i < 2 or not (data[i - 2] | 32 == 100 and data[i - 1] | 32 == 97) or i + 7 >= n:
        return False
    i += 3
    return (
        is_next(data, i, n, 109, 97, 116, 104)
        or is_next(data, i, n, 108, 97, 116, 101)
        or (is_next(data, i, n, 102, 111, 114, 109) and data[i + 4] == 117)
        or (data[i] == 116 and data[i + 1] == 101 and data[i + 2] == 120 and data[i + 3] != 116)
    )  # fmt: skip


@inlined
def code_hints(data, i, end, n):
    """The hints in the attributes of a <div>, <td> or <table>."""
    begin = i
    bits = np.int64(0)
    while True:
        i = next_word(data, i, end, n, says_code)
        if i >= end:
            return bits
        if is_next(data, i, n, 99, 111, 100, 101):  # code
            if i + 5 < n:
                after = data[i + 4] | 32
                if after == 45:  # code-block, code-container
                    after = data[i + 5] if data[i + 5] == 99 or data[i + 5] == 98 else 0
                before = data[i - 1] | 32  # blob-code, blockcode, sourcecode
                is_name = before == 107 or before == 101 or before == 45 or data[i - 1] == 95  # block-, bbcode_
                if (is_name or after == 98 or after == 99) and end - begin < LONGEST_TAG:
                    bits |= DIV
                if before == 45:  # blob-, lines-, source-, crayon-
                    before = (
                        107
                        if data[i - 2] == 98 or data[i - 2] == 115 or data[i - 2] == 101 or data[i - 2] == 110
                        else 0
                    )
                if after == 98 or after == 99 or before == 107 or before == 101:
                    bits |= BOX
        elif is_next(data, i, n, 102, 105, 108, 101):  # FileContents
            bits |= BOX if data[i] == 70 and i + 4 < n and data[i + 4] | 32 == 99 else 0
        elif is_next(data, i, n, 120, 104, 105, 103):  # syntaxhighlighter
            bits |= DIV if end - begin < LONGEST_TAG else 0
        elif states_formula(data, i, n):
            bits |= STATED
        i += 1


@inlined
def formula_hints(data, i, end, n):
    while True:
        i = next_word(data, i, end, n, says_formula)
        if i >= end:
            return np.int64(0)
        if states_formula(data, i, n):
            return np.int64(STATED)
        i += 1


@inlined
def says_image(data, i, end, n):
    """Whether the attributes of an <img> have a sign of TeX."""
    while True:
        i = next_word(data, i, end, n, says_tex)
        if i >= end:
            return False
        byte = data[i]
        if byte == 92 or byte == 36 or is_next(data, i, n, 109, 97, 116, 104):
            return True
        if byte == 37 and i + 2 < n and data[i + 1] == 53 and data[i + 2] | 32 == 99:
            return True
        if (byte == 116 or byte == 84) and i + 3 < n and data[i + 1] | 32 == 101 and data[i + 2] | 32 == 120:
            if not 97 <= data[i + 3] | 32 <= 122:  # tex, latex, but not text
                return True
        if is_next(data, i, n, 102, 111, 114, 109) and i + 4 < n and data[i + 4] | 32 == 117:  # formula
            return True
        i += 1


@inlined
def end_tag(data, i, n, a, b, c, d):
    """The next end tag whose name begins so; n: none."""
    while True:
        i = next_word(data, i, n, n, closes)
        if i + 5 >= n:
            return n
        if data[i] == 60 and data[i + 1] == 47 and is_next(data, i + 2, n, a, b, c, d):
            return i
        i += 1


@inlined
def has_lines(data, i, end, n):
    """Whether code from i on has several lines, or is called a block."""
    while True:
        i = next_word(data, i, end, n, ends_line)
        if i >= end:
            return False
        if data[i] != 42:
            if data[i] == 10 or is_next(data, i, n, 98, 108, 111, 99):
                return True
            if data[i] == 60 and i + 2 < n and data[i + 1] == 98 and data[i + 2] == 114:
                return True
        i += 1


@inlined
def is_power(data, i, end, n):
    """Whether a <sup> whose `<` is at i may be a power, after a letter, digit, `)` or end tag, and not a link; or the
    mark of a note behind a digit."""
    before = data[i - 1] if i > 0 else np.uint8(32)
    if not (48 <= before <= 57 or 97 <= before | 32 <= 122 or before == 41 or before == 62):
        return False
    return 48 <= before <= 57 or not (end + 2 < n and data[end + 1] == 60 and data[end + 2] == 97)


@kernel
def find_hints(data):
    return hints_in(data)


@helper
def hints_in(data):
    """The fields of `Hints`."""
    bits, i, n, count = np.int64(0), np.int64(0), np.int64(len(data)), 0
    places = np.empty(16, np.int64)
    in_word, no_script, no_code = np.int64(0), False, False
    while True:
        i = find_byte(data, i, n, TAG_OPENS) + 1
        if i + 1 >= n:
            return bits, places[:count]
        at, here = i - 1, np.int64(0)
        first = data[i] | 32
        if first == 33 and is_next(data, i, n, 33, 45, 45, data[min(i + 3, n - 1)] | 32):
            i = after_comment(data, i + 3, n)
            continue
        if first < 97 or first > 122:
            continue
        end = find_byte(data, i, n, TAG_CLOSES)
        if first == 100 or first == 116:  # d, t
            here = code_hints(data, i, end, n)
            if is_next(data, i, n, 116, 97, 98, 108):
                here |= TABLE
            elif not (is_next(data, i, n, 100, 105, 118, 32) or is_next(data, i, n, 100, 105, 118, 42)):
                here &= ~DIV
        elif first == 115:  # s
            if is_next(data, i, n, 115, 117, 112, data[min(i + 3, n - 1)] | 32) and ends_name(data, i + 3, n):
                here = np.int64(SUP if is_power(data, at, end, n) else 0)
            elif is_next(data, i, n, 115, 112, 97, 110):
                here = formula_hints(data, i, end, n)
            elif is_next(data, i, n, 115, 99, 114, 105):
                for j in range(i, min(end, i + 200)):
                    if data[j] == 47 and data[j - 1] == 104 and is_next(data, j - 4, n, 109, 97, 116, 104):
                        bits |= SCRIPT
                if not no_script:
                    after = end_tag(data, end, n, 115, 99, 114, 105)
                    no_script = after >= n
                    end = end if no_script else after
        elif first == 112:  # p
            if ends_name(data, i + 1, n):
                here = formula_hints(data, i, end, n)
            elif is_next(data, i, n, 112, 114, 101, data[min(i + 3, n - 1)] | 32) and ends_name(data, i + 3, n):
                here = np.int64(PRE)
        elif first == 105:  # i
            if is_next(data, i, n, 105, 109, 103, data[min(i + 3, n - 1)] | 32) and ends_name(data, i + 3, n):
                here = np.int64(IMAGE if says_image(data, i, end, n) else 0)
        elif first == 108:  # l
            here = np.int64(PRE if is_next(data, i, n, 108, 105, 115, 116) else 0)
        elif first == 99:  # c
            if is_next(data, i, n, 99, 111, 100, 101) and ends_name(data, i + 4, n):
                here = np.int64(CODE)
                if at >= in_word and not no_code:
                    after = end_tag(data, end, n, 99, 111, 100, 101)
                    no_code = after >= n
                    if not no_code and not has_lines(data, i, after, n):
                        in_word, here = after, np.int64(WORD)
        elif first == 109:  # m
            if is_next(data, i, n, 109, 97, 116, 104):
                bits |= MATH
            elif is_next(data, i, n, 109, 106, 120, 45):
                bits |= MJX
            else:  # mml:math, m:math
                j = i
                while j < n and j < i + 10 and data[j] != 58 and data[j] != 62 and data[j] != 32:
                    j += 1
                if j < n and data[j] == 58 and is_next(data, j + 1, n, 109, 97, 116, 104):
                    bits |= MATH
        i = end
        if at < in_word and here & OF_CODE:
            here &= ~(OF_CODE | BOX)
        bits |= here
        here &= OF_CODE | IMAGE | SUP
        if here:
            if count == len(places):
                larger = np.empty(2 * count, np.int64)
                larger[:count] = places
                places = larger
            places[count] = at << BITS | here
            count += 1
