"""Patterns of personal data, each a small state machine anchored where it begins: e-mail and IP addresses, payment
cards, IBANs.

Each takes bytes, a place and the bounds of the document, and returns where the match ends (-1: there is none). None
looks further than a bounded stretch (keys: than the key), so a scan is linear on any text. Sources: RFC 5321 (lengths),
IANA special-purpose address registries, ITU-T E.164 and E.123, ISO/IEC 7812 (card numbers), ISO 13616 and the SWIFT
IBAN registry (lengths), vendors' key formats.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import numpy as np

from gristmill.kernels.base.compiled import helper

MAX_LOCAL, MAX_DOMAIN = 64, 253


@helper
def digit(byte):
    return 48 <= byte <= 57


@helper
def letter(byte):
    return 97 <= byte | 32 <= 122


@helper
def alnum(byte):
    return 48 <= byte <= 57 or 97 <= byte | 32 <= 122


@helper
def wide_letter(data, i, end):
    """Bytes of a letter beyond ASCII, by block: no U+0080-00BF, U+2000-302F, nor anything past Hangul. 0 for anything
    else."""
    first = data[i]
    if 0xC3 <= first <= 0xDF and i + 1 < end:
        return 2
    if (
        0xE0 <= first <= 0xE1 or 0xE4 <= first <= 0xED or (first == 0xE3 and i + 1 < end and data[i + 1] > 0x80)
    ) and i + 2 < end:
        return 3
    return 0


@helper
def word_before(data, i, start):
    """The last eight ASCII letters of the word before i, packed in lower case, and where it begins; up to four of `
    :.()#` or `：` between."""
    j = i
    while (
        j > start
        and i - j < 4
        and (
            data[j - 1] == 32 or data[j - 1] == 58 or data[j - 1] == 46 or 40 <= data[j - 1] <= 41 or data[j - 1] == 35
        )
    ):
        j -= 1
    if j == i and j - 3 >= start and data[j - 1] == 0x9A and data[j - 2] == 0xBC and data[j - 3] == 0xEF:
        j -= 3
    packed, size = np.uint64(0), 0
    while j > start and size < 8 and letter(data[j - 1]):
        packed |= np.uint64(data[j - 1] | 32) << np.uint64(8 * size)
        size += 1
        j -= 1
    return packed, j


@helper
def email(data, at, start, end, free):
    """Begin and end of the address around the `@` at `at`. ASCII and European letters before it, any letters in the
    domain."""
    first = at
    while first > free and at - first < MAX_LOCAL:
        byte = data[first - 1]
        if (
            alnum(byte)
            or byte == 95
            or byte == 37
            or byte == 39
            or byte == 126
            or ((byte == 46 or byte == 45 or byte == 43) and data[first] != byte)
        ):  # _ % ' ~
            first -= 1
        elif 0x80 <= byte < 0xC0 and first - 2 >= free and 0xC3 <= data[first - 2] <= 0xD4:
            first -= 2
        else:
            break
    while first < at and not alnum(data[first]) and data[first] != 95 and data[first] < 128:
        first += 1
    if first == at:
        return -1, -1
    if (
        at - first == 3 and data[first] == 103 and data[first + 1] == 105 and data[first + 2] == 116
    ):  # git@host:path is no person
        return -1, -1
    stop, i, labels, label = -1, at + 1, 0, at + 1
    last = min(end, at + 1 + MAX_DOMAIN)
    while i < last:
        plain = True
        while i < last:
            if alnum(data[i]):
                i += 1
                continue
            if plain and labels and i > label:
                stop = _domain_end(data, label, i, last, stop)
            size = wide_letter(data, i, last)
            if size == 0 and data[i] != 45:
                break
            plain = False
            i += max(size, 1)
        if i == label:
            break
        if labels and plain:
            stop = _domain_end(data, label, i, last, stop)
        elif labels and (data[label] >= 128 or (i - label > 4 and label + 3 < end and _punycode(data, label))):
            stop = i
        labels += 1
        if i >= last or data[i] != 46:
            break
        i += 1
        label = i
    return (first, stop) if stop > 0 else (-1, -1)


@helper
def _punycode(data, i):
    return data[i] | 32 == 120 and data[i + 1] | 32 == 110 and data[i + 2] == 45 and data[i + 3] == 45


@helper
def _domain_end(data, a, b, last, before):
    """b where data[a:b] can be a top-level domain, of letters, else the end that was found before."""
    if b - a < 2 or b - a > 63:
        return before
    for i in range(a, b):
        if not letter(data[i]):
            return before
    if b < last and data[b] == 95:
        return before
    return -1 if _file_suffix(data, a, b) else b


@helper
def _file_suffix(data, a, b):
    """Whether it is a file such as icon@2x.png: png jpg jpeg gif svg webp css js html php."""
    packed = np.uint64(0)
    for i in range(a, min(b, a + 5)):
        packed = packed << np.uint64(8) | np.uint64(data[i] | 32)
    return (
        packed == np.uint64(0x706E67) or packed == np.uint64(0x6A7067) or packed == np.uint64(0x6A706567)
        or packed == np.uint64(0x676966)
        or packed == np.uint64(0x737667) or packed == np.uint64(0x77656270) or packed == np.uint64(0x637373)
        or packed == np.uint64(0x6A73)
        or packed == np.uint64(0x68746D6C) or packed == np.uint64(0x706870)
    )  # fmt: skip


@helper
def ip4(data, i, start, end):
    """Four decimal numbers that are a public address, seven digits at least: 1.2.3.4 is a version or a heading."""
    if i > start and (data[i - 1] == 46 or data[i - 1] == 95 or data[i - 1] == 45 or alnum(data[i - 1])):
        return -1
    value, digits = np.int64(0), 0
    j = i
    for part in range(4):
        if part:
            if j >= end or data[j] != 46:
                return -1
            j += 1
        number, first = 0, j
        while j < end and j - first < 3 and digit(data[j]):
            number = number * 10 + np.int64(data[j]) - 48
            j += 1
        if j == first or number > 255 or (data[first] == 48 and j - first > 1):
            return -1
        digits += j - first
        value = value << 8 | number
    if j < end and (
        alnum(data[j]) or data[j] == 95 or (j + 1 < end and (data[j] == 46 or data[j] == 45) and alnum(data[j + 1]))
    ):
        return -1
    if digits < 7 or not _public4(value) or _version_word(data, i, start):
        return -1
    return j


@helper
def _public4(value):
    a, b, c = value >> 24, value >> 16 & 255, value >> 8 & 255
    return not (
        a == 0 or a == 10 or a == 127 or a >= 224 or (a == 100 and 64 <= b < 128) or (a == 169 and b == 254)
        or (a == 172 and 16 <= b < 32)
        or (a == 192 and (b == 168 or (b == 0 and (c == 0 or c == 2))))
        or (a == 198 and (18 <= b <= 19 or (b == 51 and c == 100)))
        or (a == 203 and b == 0 and c == 113)
    )  # fmt: skip


@helper
def _version_word(data, i, start):
    """version (fileversion too), ver, v, release, build, firmware, driver, section, chapter; `=` and quotes may
    follow."""
    j = i
    while (
        j > start and i - j < 4 and (data[j - 1] == 32 or data[j - 1] == 34 or data[j - 1] == 39 or data[j - 1] == 61)
    ):
        j -= 1
    word, _ = word_before(data, j, start)
    return (
        word & np.uint64(0xFFFFFFFFFFFFFF) == np.uint64(0x76657273696F6E) or word == np.uint64(0x766572)
        or word == np.uint64(0x76) or word == np.uint64(0x72656C65617365)
        or word == np.uint64(0x6275696C64) or word == np.uint64(0x6669726D77617265) or word == np.uint64(0x647269766572)
        or word == np.uint64(0x73656374696F6E) or word == np.uint64(0x63686170746572)
        or word == np.uint64(0x76657273696F6E73)
    )  # fmt: skip


@helper
def ip6(data, colon, start, end):
    """A public IPv6 address (2000::/3) whose first colon is here: eight groups, or `::` and at least three groups."""
    first = colon
    while first > start and colon - first < 5 and alnum(data[first - 1]):
        first -= 1
    if colon - first != 4 or (data[first] != 50 and data[first] != 51):
        return -1, -1
    if first > start and (
        data[first - 1] == 58 or data[first - 1] == 46 or data[first - 1] == 95 or data[first - 1] == 45
    ):
        return -1, -1
    groups, gap, i, head, second = 0, False, first, 0, 0
    stop = -1
    while i < end:
        value, a = 0, i
        while i < end and i - a < 5:
            nibble = _nibble(data[i])
            if nibble < 0:
                break
            value = value << 4 | nibble
            i += 1
        if i == a or i - a > 4:
            break
        groups += 1
        if groups == 1:
            head = value
        elif groups == 2 and not gap:
            second = value
        stop = i
        if groups == 8 or i >= end or data[i] != 58:
            break
        i += 1
        if i < end and data[i] == 58:
            if gap:
                return -1, -1
            gap = True
            i += 1
            stop = i
    if (groups == 8 and gap) or (not gap and groups < 8) or groups < 3:
        return -1, -1
    if stop < end and (alnum(data[stop]) or data[stop] == 95):
        return -1, -1
    if (
        stop < end
        and data[stop] == 58
        and (data[stop - 1] == 58 or (stop + 1 < end and (alnum(data[stop + 1]) or data[stop + 1] == 58)))
    ):
        return -1, -1
    special = (
        (head == 0x2001 and (second < 0x200 or second == 0xDB8))
        or head == 0x2002
        or (head == 0x3FFF and second < 0x1000)
    )
    return (-1, -1) if special else (first, stop)


@helper
def _nibble(byte):
    if 48 <= byte <= 57:
        return np.int64(byte) - 48
    low = np.int64(byte | 32)
    return low - 87 if 97 <= low <= 102 else -1


@helper
def card(data, i, start, end, free):
    """A payment card: known issuer and length, a valid Luhn sum, unbroken or in its printed groups (4-4-4-4, 4-6-5,
    4-6-4). Digits before `free` belong to an earlier match."""
    if i > start:
        byte = data[i - 1]
        if alnum(byte) or 45 <= byte <= 47 or byte == 95 or byte == 43 or byte == 61 or byte == 35 or byte == 38:
            return -1
    count, j, separator, group, layout, stop = 0, i, 0, 0, 0, -1
    prefix = np.int64(0)
    luhn_even, luhn_odd = 0, 0  # sums with the digits at even and at odd places doubled
    while j < end and count < 20:
        byte = np.int64(data[j])
        if 48 <= byte <= 57:
            value = byte - 48
            doubled = value * 2 - 9 if value > 4 else value * 2
            luhn_even += doubled if count % 2 == 0 else value
            luhn_odd += value if count % 2 == 0 else doubled
            if count < 6:
                prefix = prefix * 10 + value
            count += 1
            group += 1
            j += 1
            if j < end and digit(data[j]):
                continue
        if group == 0:
            break
        shape = layout * 10 + group
        whole = (
            (separator == 0 and count > 12)
            or shape == 4444
            or shape == 44443
            or (shape == 465 and count == 15)
            or shape == 464
        )
        if (
            whole
            and (luhn_even if count % 2 == 0 else luhn_odd) % 10 == 0
            and _issuer(prefix, count)
            and _card_ends(data, j, end)
        ):
            stop = j
            if separator and (i - 2 >= free and data[i - 1] == separator and digit(data[i - 2])):  # a table of numbers
                return -1
            if (
                separator
                and j + 4 < end
                and data[j] == separator
                and digit(data[j + 1])
                and digit(data[j + 3])
                and digit(data[j + 4])
            ):
                return -1
        layout, group = shape, 0
        if separator == 0 and j < end and (data[j] == 32 or data[j] == 45):
            separator = np.int64(data[j])
        printed = layout == 4 or layout == 44 or layout == 46 or layout == 444 or layout == 4444
        if not printed or j >= end or separator == 0 or data[j] != separator:
            break
        j += 1
    return stop


@helper
def _card_ends(data, j, end):
    return not (
        j < end and (alnum(data[j]) or data[j] == 95 or (45 <= data[j] <= 47 and j + 1 < end and alnum(data[j + 1])))
    )


@helper
def _issuer(prefix, count):
    """Visa 16 and 19, Mastercard, American Express, Discover, Diners, JCB, UnionPay, Maestro; `prefix` is the first six
    digits."""
    first_1, first_2, first_3, first_4 = prefix // 100_000, prefix // 10_000, prefix // 1000, prefix // 100
    if count == 14:
        return 300 <= first_3 <= 305 or first_2 == 36 or first_2 == 38 or first_2 == 39
    if count == 15:
        return first_2 == 34 or first_2 == 37
    if count == 16 and (51 <= first_2 <= 55 or 2221 <= first_4 <= 2720):
        return True
    if count < 16:
        return count == 13 and _maestro(first_4)
    if first_1 == 4 and (count == 16 or count == 19):
        return True
    return count <= 19 and (
        first_4 == 6011
        or 644 <= first_3 <= 649
        or first_2 == 65
        or 3528 <= first_4 <= 3589
        or first_2 == 62
        or _maestro(first_4)
    )


@helper
def _maestro(four):
    return (
        four == 5018
        or four == 5020
        or four == 5038
        or four == 5893
        or four == 6304
        or four == 6759
        or 6761 <= four <= 6763
    )


@helper
def iban(data, i, start, end, lengths):
    """The end of the IBAN whose check digits begin at i. Known country and length, mod 97 is 1, unbroken or in groups
    of four."""
    if (
        i - 2 < start
        or i + 2 >= end
        or not digit(data[i + 1])
        or (i - 2 > start and (alnum(data[i - 3]) or data[i - 3] == 95))
    ):
        return -1
    a, b = np.int64(data[i - 2]) - 65, np.int64(data[i - 1]) - 65
    if a < 0 or a > 25 or b < 0 or b > 25 or lengths[a * 26 + b] == 0:
        return -1
    length = np.int64(lengths[a * 26 + b])
    spaced = data[i + 2] == 32
    rest, j = np.int64(0), i + 2
    for place in range(4, length):
        if spaced and place % 4 == 0:
            if j >= end or data[j] != 32:
                return -1
            j += 1
        if j >= end:
            return -1
        byte = np.int64(data[j])
        if 48 <= byte <= 57:
            rest = (rest * 10 + byte - 48) % 97
        elif 65 <= byte <= 90:
            rest = (rest * 100 + byte - 55) % 97
        else:
            return -1
        j += 1
    check = (np.int64(data[i]) - 48) * 10 + np.int64(data[i + 1]) - 48
    rest = (rest * 1_000_000 + (a + 10) * 10_000 + (b + 10) * 100 + check) % 97
    if rest != 1 or (j < end and (alnum(data[j]) or data[j] == 95)):
        return -1
    return j
