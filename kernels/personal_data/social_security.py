"""US social security numbers: three, two and four digits in the issued ranges, close behind a word that names them.

Without such a word the digits are a product code or a contract number as often (measured on real pages:
docs/personal_data.md).
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from gristmill.kernels.base.compiled import helper
from gristmill.kernels.personal_data.patterns import alnum, digit, letter

REACH = 48  # bytes before the number in which the word is looked for
SIZE = 11


@helper
def social_security(data, i, start, end):
    """The end of the number that begins at i, or -1. Area 001 to 899 except 666, group 01 to 99, serial 0001 to 9999
    (SSA, since 2011)."""
    stop = i + SIZE
    if stop > end or not (data[i + 3] == 45 or data[i + 3] == 32) or data[i + 6] != data[i + 3]:
        return -1
    for k in range(SIZE):
        if k != 3 and k != 6 and not digit(data[i + k]):
            return -1
    if (
        data[i] == 57
        or _same(data, i, 3, 48)
        or _same(data, i, 3, 54)
        or _same(data, i + 4, 2, 48)
        or _same(data, i + 7, 4, 48)
    ):
        return -1
    if i > start and (alnum(data[i - 1]) or data[i - 1] == 43 or 45 <= data[i - 1] <= 47 or data[i - 1] == 95):
        return -1
    if stop < end and (
        alnum(data[stop]) or data[stop] == 95 or (45 <= data[stop] <= 47 and stop + 1 < end and alnum(data[stop + 1]))
    ):
        return -1
    return stop if _named(data, i, start) else -1


@helper
def _same(data, i, count, byte):
    same = True
    for k in range(i, i + count):
        same &= data[k] == byte
    return same


@helper
def _named(data, i, start):
    """Whether `SSN` (or SSNs), `SS#` or `social security` is among the bytes before i, in any case."""
    first = max(start, i - REACH)
    for j in range(first, i - 2):
        if data[j] | 32 != 115 or (j > start and letter(data[j - 1])):  # s, where a word begins
            continue
        if data[j + 1] | 32 == 115:
            after = j + 3
            if after < i and data[j + 2] | 32 == 110 and data[after] | 32 == 115:
                after += 1
            if data[j + 2] == 35 or (data[j + 2] | 32 == 110 and not (after < i and letter(data[after]))):
                return True
        elif _lower_is(data, j, i, b"social security"):
            return True
    return False


@helper
def _lower_is(data, i, end, text):
    if i + len(text) > end:
        return False
    same = True
    for k in range(len(text)):
        same &= data[i + k] | 32 == text[k]
    return same
