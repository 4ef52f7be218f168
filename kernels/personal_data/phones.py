"""Telephone numbers: international forms by E.164, national ones only in shapes that little else has, or after a word
such as `tel`.

    +44 (0)20 7946 0958   (212) 555-0123   212-555-0123   1-800-555-0199   01 23 45 67 89   (030) 123 4567   Phone no.:
      7946 0958

Each function is anchored where the number begins and says where it ends, or -1; none looks further than about 60 bytes.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import numpy as np

from gristmill.kernels.base.compiled import helper
from gristmill.kernels.personal_data.patterns import alnum, digit, letter, word_before


@helper
def _gap(data, i, end):
    """Bytes of a separator at i, 0 where there is none: space - . / ( ) no-break space, U+2010 to U+2013."""
    byte = data[i]
    if byte == 32 or 45 <= byte <= 47 or 40 <= byte <= 41:
        return 1
    if byte == 0xC2 and i + 1 < end and data[i + 1] == 0xA0:
        return 2
    if byte == 0xE2 and i + 2 < end and data[i + 1] == 0x80 and 0x90 <= data[i + 2] <= 0x93:
        return 3
    return 0


@helper
def _over_gap(data, i, end):
    """The next digit, past one separator, up to three without dots and slashes, or ` / `; -1 where there is none."""
    j, count, lone = i, 0, False
    while j < end and count < 3:
        size = _gap(data, j, end)
        if size == 0:
            break
        lone |= 46 <= data[j] <= 47
        j += size
        count += 1
    lone &= not (count == 3 and data[i] == 32 and data[i + 1] == 47 and data[i + 2] == 32)
    return j if count and (count == 1 or not lone) and j < end and digit(data[j]) else -1


@helper
def _ends(data, j, end):
    """Whether a number can end here: not before a letter or digit (an extension `x12` may follow), nor inside something
    longer."""
    if j >= end:
        return True
    byte = data[j]
    if (byte | 32) == 120 and j + 1 < end and digit(data[j + 1]):
        return True
    if alnum(byte) or byte == 95 or byte == 37 or byte == 64:
        return False
    return not ((45 <= byte <= 47 or byte == 44 or byte == 58) and j + 1 < end and alnum(data[j + 1]))


@helper
def _begins(data, i, start):
    if i == start:
        return True
    byte = data[i - 1]
    return not (
        alnum(byte)
        or 43 <= byte <= 47
        or byte == 95
        or byte == 61
        or byte == 35
        or byte == 36
        or byte == 38
        or byte == 37
    )


@helper
def international(data, plus, start, end):
    """`+`, a country code in use, 9 to 15 digits in all; 11 for North America and Russia."""
    if plus > start and (alnum(data[plus - 1]) or data[plus - 1] == 43 or data[plus - 1] == 95):
        return -1
    i = plus + 1
    if i < end and data[i] == 40:
        i += 1
    total, stop, groups = 0, -1, 0
    head = np.int64(0)
    while i >= 0 and i < end and digit(data[i]):
        while i < end and digit(data[i]) and total <= 15:
            if total < 5:
                head = head * 10 + np.int64(data[i]) - 48
            total += 1
            i += 1
        groups += 1
        if total > 15:
            break
        if total >= 9 and _ends_group(data, i, end) and _country(head, total):
            stop = i
        i = _over_gap(data, i, end)
    return stop


@helper
def _ends_group(data, j, end):
    """As `_ends`, but more digits may follow after a separator."""
    return j >= end or _ends(data, j, end) or _over_gap(data, j, end) >= 0


# Country codes in use, ITU-T E.164, by three digits; those that begin with 1 and 7 have lengths of their own.
IN_USE = np.zeros(1000, np.bool_)
for _code in (
    *(20, 27, *range(30, 35), 36, 39, 40, 41, *range(43, 50), *range(51, 59), *range(60, 67)),
    *(81, 82, 84, 86, *range(90, 96), 98),
):
    IN_USE[10 * _code : 10 * _code + 10] = True
IN_USE[
    [
        *(211, 212, 213, 216, 218, *range(220, 259), *range(260, 270), 290, 291, 297, 298, 299),
        *(*range(350, 360), *range(370, 379), 380, 381, 382, 383, 385, 386, 387, 389, 420, 421, 423),
        *(*range(500, 510), *range(590, 600), 670, *range(672, 684), *range(685, 693)),
        *(800, 808, 850, 852, 853, 855, 856, 870, 878, 880, 881, 882, 883, 886),
        *(*range(960, 969), *range(970, 978), 979, 992, 993, 994, 995, 996, 998),
    ]
] = True


@helper
def _country(head, total):
    """`head` is the first five digits."""
    if head // 10_000 == 1:
        return total == 11 and head // 1000 >= 12
    if head // 10_000 == 7:
        return total == 11
    return IN_USE[head // 100]


@helper
def _digits(data, i, end):
    """The number of digits from i, up to 13."""
    j = i
    while j < end and j - i < 13 and digit(data[j]):
        j += 1
    return j - i


@helper
def north_american(data, i, start, end):
    """ddd-ddd-dddd or ddd.ddd.dddd or (ddd) ddd-dddd, with or without `1`; area and exchange begin with 2 to 9."""
    if not (_begins(data, i, start) or (data[i] == 40 and letter(data[i - 1]))):
        return -1
    j = i
    if data[j] == 49 and j + 2 < end and (data[j + 1] == 32 or 45 <= data[j + 1] <= 46):
        j += 2
    elif data[j] == 49 and j + 1 < end and data[j + 1] == 40:
        j += 1
    bracket = data[j] == 40
    if bracket:
        j += 1
    if j + 3 >= end or _digits(data, j, end) != 3 or data[j] < 50:
        return -1
    j += 3
    separator = data[j]
    if bracket:
        if separator != 41:
            return -1
        j += 1
        if j < end and (data[j] == 32 or data[j] == 45):
            j += 1
    elif separator == 45 or separator == 46:
        j += 1
    else:
        return -1
    if j + 3 >= end or _digits(data, j, end) != 3 or data[j] < 50:
        return -1
    j += 3
    if (not bracket and data[j] != separator) or not (data[j] == 45 or data[j] == 46 or data[j] == 32):
        return -1
    j += 1
    if _digits(data, j, end) != 4 or not _ends(data, j + 4, end):
        return -1
    return j + 4


@helper
def bracketed(data, i, start, end):
    """An area code in brackets that begins with 0, and 9 to 12 digits in all; or (ddd) ddd-dd-dd."""
    if not _begins(data, i, start):
        return -1
    area = _digits(data, i + 1, end)
    j = i + 1 + area
    if area < 2 or area > 5 or j >= end or data[j] != 41:
        return -1
    j += 1
    if j < end and (data[j] == 32 or data[j] == 45):
        j += 1
    if data[i + 1] != 48:
        russian = area == 3 and j + 9 <= end and _digits(data, j, end) == 3 and data[j + 3] == 45
        russian = russian and _digits(data, j + 4, end) == 2 and data[j + 6] == 45 and _digits(data, j + 7, end) == 2
        return j + 9 if russian and _ends(data, j + 9, end) else -1
    total, stop = area, -1
    while j >= 0 and j < end and digit(data[j]) and total < 13:
        size = _digits(data, j, end)
        total += size
        j += size
        if 9 <= total <= 12 and _ends(data, j, end):
            stop = j
        j = _over_gap(data, j, end)
    return stop


@helper
def in_pairs(data, i, start, end):
    """French: 0d dd dd dd dd, with equal separators."""
    if not _begins(data, i, start) or data[i] != 48 or _digits(data, i, end) != 2 or data[i + 1] == 48 or i + 2 >= end:
        return -1
    separator, size = data[i + 2], _gap(data, i + 2, end)
    if size == 0 or 40 <= separator <= 41 or separator == 47:
        return -1
    j = i + 2
    for _ in range(4):
        if j >= end or data[j] != separator or _gap(data, j, end) != size:
            return -1
        j += size
        if _digits(data, j, end) != 2:
            return -1
        j += 2
    return j if _ends(data, j, end) else -1


@helper
def after_cue(data, i, start, end):
    """7 to 12 digits in groups after `tel`, `phone` and the like; no date, no span of years."""
    if not _begins(data, i, start) and data[i - 1] != 46:
        return -1
    word, before = word_before(data, i, start)
    if word == np.uint64(0x6E6F) or word == np.uint64(0x6E72) or word == np.uint64(0x6E756D626572):  # no, nr, number
        word, before = word_before(data, before, start)
    if not _cue(word) and not (word == 0 and _cue_of_another_script(data, before, start)):
        return -1
    total, stop, groups, first, last, longest_of_others = 0, -1, 0, 0, 0, 0
    j = i
    years = True
    while j >= 0 and j < end and digit(data[j]) and total < 13:
        size = _digits(data, j, end)
        years &= size == 4 and ((data[j] == 49 and data[j + 1] == 57) or (data[j] == 50 and data[j + 1] == 48))
        if groups:
            longest_of_others = max(longest_of_others, last if groups > 1 else 0)
        else:
            first = size
        last = size
        groups += 1
        total += size
        j += size
        date = groups == 3 and longest_of_others <= 2 and ((first == 4 and last <= 2) or (last == 4 and first <= 2))
        if (
            7 <= total <= 12
            and total >= 2 * groups - 1
            and not date
            and not (years and groups == 2)
            and _ends(data, j, end)
        ):
            stop = j
        j = _over_gap(data, j, end)
    return stop


@helper
def _cue_of_another_script(data, i, start):
    """Whether a cue ends at i: 電話 电话 手机 手機 携帯 传真 傳真 전화, Тел тел ТЕЛ моб as whole words, телефон факс by their last
    letters."""
    if i - 6 < start or data[i - 1] < 0x80:
        return False
    packed = np.uint64(0)
    for j in range(i - 6, i):
        packed = packed << np.uint64(8) | np.uint64(data[j])
    if packed == np.uint64(0xD184D0BED0BD):
        return i - 8 >= start and data[i - 8] == 0xD0 and data[i - 7] == 0xB5
    if packed == np.uint64(0xD0B0D0BAD181):
        return i - 8 >= start and data[i - 8] == 0xD1 and data[i - 7] == 0x84
    short = (
        packed == np.uint64(0xD182D0B5D0BB)
        or packed == np.uint64(0xD0A2D0B5D0BB)
        or packed == np.uint64(0xD0A2D095D09B)
    )
    if short or packed == np.uint64(0xD0BCD0BED0B1):
        return i - 6 == start or data[i - 7] < 0x80
    return (
        packed == np.uint64(0xE99BBBE8A9B1) or packed == np.uint64(0xE794B5E8AF9D)
        or packed == np.uint64(0xE6898BE69CBA)
        or packed == np.uint64(0xE6898BE6A99F) or packed == np.uint64(0xE690BAE5B8AF)
        or packed == np.uint64(0xE4BCA0E79C9F)
        or packed == np.uint64(0xE582B3E79C9F) or packed == np.uint64(0xECA084ED9994)
    )  # fmt: skip


@helper
def _cue(word):
    """tel phone (tele)phone fax mobile mob cell call whatsapp ph telefon telefono (tel)éfono handy gsm tlf."""
    return (
        word == np.uint64(0x74656C) or word == np.uint64(0x70686F6E65) or word == np.uint64(0x656C6570686F6E65)
        or word == np.uint64(0x666178)
        or word == np.uint64(0x6D6F62696C65) or word == np.uint64(0x6D6F62) or word == np.uint64(0x63656C6C)
        or word == np.uint64(0x63616C6C)
        or word == np.uint64(0x7768617473617070) or word == np.uint64(0x7068) or word == np.uint64(0x74656C65666F6E)
        or word == np.uint64(0x74656C65666F6E6F) or word == np.uint64(0x666F6E6F) or word == np.uint64(0x68616E6479)
        or word == np.uint64(0x67736D) or word == np.uint64(0x746C66)
    )  # fmt: skip
