"""Which pages hold code, formulas or powers that are rewritten before segmentation: one look at the tags of a page.

Searching for each name on its own costs 0.2 ms a page and name; this costs as much for all of them.
"""

# ruff: noqa: SIM102 (compiled; one condition a line)

from __future__ import annotations

import numpy as np

from gristmill.kernels.base.compiled import kernel
from gristmill.kernels.html.compiled import inner
from gristmill.kernels.html.text import TAG_OPENS, find_byte

# PRE, CODE, MATH, SUP, MJX: a tag of that name (`<x:math>` too); BOX: what boxes of code are called, in a <div>,
# <td> or <table>; IMAGE: an <img> with a sign of TeX; STATED: an attribute data-math, data-latex, data-tex, data-formula;
# SCRIPT: a <script> of "math/".
PRE, CODE, MATH, SUP, MJX, BOX, IMAGE, STATED, SCRIPT = (1 << bit for bit in range(9))


def hints_of(data: bytes) -> int:
    return int(find_hints(np.frombuffer(data, np.uint8)))


@inner
def is_next(data, i, n, a, b, c, d):
    """Whether these four letters, in whatever case, stand at i."""
    return (
        i + 3 < n and data[i] | 32 == a and data[i + 1] | 32 == b and data[i + 2] | 32 == c and data[i + 3] | 32 == d
    )  # fmt: skip


@inner
def said_in_tag(data, i, n, is_box, is_image):
    """The hints in the attributes of a tag, and where it ends."""
    bits = np.int64(0)
    while i < n and data[i] != 62:
        byte = data[i]
        if byte == 100:  # d
            if is_next(data, i, n, 100, 97, 116, 97) and i + 9 < n and data[i + 4] == 45:
                if (
                    is_next(data, i + 5, n, 109, 97, 116, 104)
                    or is_next(data, i + 5, n, 108, 97, 116, 101)
                    or (is_next(data, i + 5, n, 102, 111, 114, 109) and data[i + 9] == 117)
                    or (data[i + 5] == 116 and data[i + 6] == 101 and data[i + 7] == 120 and data[i + 8] != 116)
                ):  # fmt: skip
                    bits |= STATED
        elif byte == 99 or byte == 67:  # c
            if is_box and is_next(data, i, n, 99, 111, 100, 101) and i + 5 < n:
                after = data[i + 4] | 32
                if after == 45:  # code-block, code-container
                    after = data[i + 5] if data[i + 5] == 99 else 98 if data[i + 5] == 98 else 0
                before = data[i - 1] | 32  # blob-code, blockcode, sourcecode
                if before == 45:  # blob-, lines-, source-
                    before = 107 if data[i - 2] == 98 or data[i - 2] == 115 or data[i - 2] == 101 else 0
                if after == 98 or after == 99 or before == 107 or before == 101:
                    bits |= BOX
        elif byte == 70:  # F
            if is_box and is_next(data, i, n, 102, 105, 108, 101):
                bits |= BOX
        elif byte == 109:  # m
            if is_next(data, i, n, 109, 97, 116, 104):
                bits |= SCRIPT if i + 4 < n and data[i + 4] == 47 else 0
                bits |= IMAGE if is_image else 0
        elif is_image:
            if byte == 92 or byte == 36 or (byte == 37 and i + 2 < n and data[i + 1] == 53 and data[i + 2] | 32 == 99):
                bits |= IMAGE
            elif (byte == 116 or byte == 84) and i + 2 < n and data[i + 1] | 32 == 101 and data[i + 2] | 32 == 120:
                if i + 3 < n and not 97 <= data[i + 3] | 32 <= 122:  # tex, latex, but not text
                    bits |= IMAGE
            elif is_next(data, i, n, 102, 111, 114, 109) and i + 4 < n and data[i + 4] == 117:  # formula
                bits |= IMAGE
        i += 1
    return bits, i


@kernel
def find_hints(data):
    bits, i, n = np.int64(0), np.int64(0), len(data)
    while True:
        i = find_byte(data, i, n, TAG_OPENS) + 1
        if i >= n:
            return bits
        first = data[i] | 32
        is_box = first == 100 or first == 116
        is_image = is_next(data, i, n, 105, 109, 103, 32) or is_next(data, i, n, 105, 109, 103, 42)
        if first < 97 or first > 122:
            continue
        if (
            is_next(data, i, n, 112, 114, 101, 62)
            or is_next(data, i, n, 112, 114, 101, 32)
            or is_next(data, i, n, 108, 105, 115, 116)
        ):
            bits |= PRE
        elif is_next(data, i, n, 99, 111, 100, 101):
            bits |= CODE
        elif is_next(data, i, n, 109, 97, 116, 104):
            bits |= MATH
        elif is_next(data, i, n, 109, 106, 120, 45):
            bits |= MJX
        elif first == 115 and i + 2 < n and data[i + 1] | 32 == 117 and data[i + 2] | 32 == 112:
            bits |= SUP
        elif first == 109:  # mml:math, m:math
            j = i
            while j < n and j < i + 10 and data[j] != 58 and data[j] != 62 and data[j] != 32:
                j += 1
            if j < n and data[j] == 58 and is_next(data, j + 1, n, 109, 97, 116, 104):
                bits |= MATH
        more, i = said_in_tag(data, i, n, is_box, is_image)
        bits |= more
