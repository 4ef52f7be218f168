"""How a chunk (text between whitespace) is cut into English words where it is more than letters or digits with one
mark: the rules of `gristmill.kernels.words.english`."""
# ruff: noqa: SIM102, SIM110 (loops and comparisons are written out: that is what compiles to fast code)

from __future__ import annotations

import numpy as np

from gristmill.kernels.base.bare import helper, inlined, point_at
from gristmill.kernels.words.english_rules import (
    ALPHA,
    BEFORE_DOT,
    CLOSES,
    CURRENCY,
    DIGIT,
    END_OF_UNIT,
    EXCEPTION,
    HOST,
    HOST_EDGE,
    ICON,
    INNER,
    LONGEST_UNIT,
    LOWER,
    OPENS,
    QUOTE,
    UNIT,
    UPPER,
)
from gristmill.kernels.words.words import put_word, skip_letters, word_hash


@helper
def cut_chunk(data, start, end, marks, filters, known, rows, n):
    """Takes marks off both ends. Those of the end wait at the far end of the rows, last one first, where they are
    already in order."""
    far = len(rows)
    row = np.int64(-1)
    while start < end:
        row = exception_at(data, start, end, filters, known)
        if row >= 0:
            break
        front = opening(data, start, end, marks)
        if front and start + front < end:
            row = exception_at(data, start + front, end, filters, known)
            if row >= 0:
                n = put_word(data, start, start + front, marks, rows, n)
                start += front
                break
        back = closing(data, start + front, end, marks, known)
        if back and start < end - back:
            row = exception_at(data, start, end - back, filters, known)
            if row >= 0:
                far -= 1
                put_word(data, end - back, end, marks, rows, far)
                end -= back
                break
        if not front and not back:
            break
        if front:
            n = put_word(data, start, start + front, marks, rows, n)
            start += front
        if back:
            far -= 1
            put_word(data, end - back, end, marks, rows, far)
            end -= back
    if start < end:
        n = put_pieces(known, row, rows, n) if row >= 0 else cut_middle(data, start, end, marks, rows, n)
    for j in range(far, len(rows)):
        rows[n, 0], rows[n, 1] = rows[j, 0], rows[j, 1]
        n += 1
    return n


@inlined
def exception_at(data, start, end, filters, known):
    if end - start > 63 or not filters[data[start]] >> np.uint64(end - start) & np.uint64(1):
        return np.int64(-1)
    h = word_hash(data, start, end)
    return find(known, h, EXCEPTION) if may_be_exception(h, filters) else np.int64(-1)


@inlined
def may_be_exception(h, filters):
    return filters[256 + (h >> np.uint64(32) & np.uint64(511))] >> (h >> np.uint64(41) & np.uint64(63)) & np.uint64(1)


@inlined
def find(known, h, kind):
    """The row of the string with this hash, or -1."""
    last = np.uint64(known.shape[0] - 1)
    slot = h & last
    while known[slot, 1] != 0:
        if known[slot, 0] == h:
            return np.int64(slot) if known[slot, 1] & np.uint64(kind) else np.int64(-1)
        slot = (slot + np.uint64(1)) & last
    return np.int64(-1)


@inlined
def put_pieces(known, row, rows, n):
    for column in range(known[row, 1] & np.uint64(3)):
        rows[n, 0], rows[n, 1] = known[row, 2 + 2 * column], known[row, 3 + 2 * column]
        n += 1
    return n


@inlined
def opening(data, start, end, marks):
    """Bytes that come off the front."""
    byte = data[start]
    if byte == 0x2E:  # two dots or more
        i = start
        while i < end and data[i] == 0x2E:
            i += 1
        return i - start if i - start > 1 else 0
    if byte == 0x2B:  # a plus that is no sign of a number
        return 0 if start + 1 < end and 0x30 <= data[start + 1] <= 0x39 else 1
    if byte == 0x55 and start + 2 < end and data[start + 1] == 0x53 and data[start + 2] == 0x24:  # US$
        return 3
    if (byte == 0x43 or byte == 0x41) and start + 1 < end and data[start + 1] == 0x24:  # C$ A$
        return 2
    point, size = point_at(data, start, end)
    return size if marks[point] & OPENS else 0


@inlined
def before(data, start, i):
    """Where the character that ends at byte i begins."""
    i -= 1
    while i > start and data[i] & 0xC0 == 0x80:
        i -= 1
    return i


@inlined
def closing(data, start, end, marks, known):
    """Bytes that come off the end."""
    if start >= end:
        return 0
    last = before(data, start, end)
    point, _ = point_at(data, last, end)
    mark = marks[point]
    if last == start:
        return end - last if mark & CLOSES else 0
    previous_at = before(data, start, last)
    previous, _ = point_at(data, previous_at, last)
    if point == 0x2E:
        if previous == 0x2E:
            i = last
            while i > start and data[i - 1] == 0x2E:
                i -= 1
            return end - i
        if marks[previous] & BEFORE_DOT:
            return 1
        if previous_at > start:
            earlier, _ = point_at(data, before(data, start, previous_at), previous_at)
            if marks[previous] & UPPER and marks[earlier] & UPPER:
                return 1
            if earlier == 0xB0 and (
                previous == 0x46
                or previous == 0x66
                or previous == 0x43
                or previous == 0x63
                or previous == 0x4B
                or previous == 0x6B
            ):
                return 1
        return 0
    if (point == 0x73 or point == 0x53) and (previous == 0x27 or previous == 0x2019):  # 's
        return end - previous_at
    if mark & CLOSES:
        return end - previous_at if point == 0x2026 and previous == 0x2026 else end - last
    if point == 0x2B:
        return 1 if marks[previous] & DIGIT else 0
    if mark & CURRENCY:
        if marks[previous] & DIGIT:
            return end - last
        if point == 0x24:
            i = last - 1
            if data[i] == 0x53 and i - 1 > start and data[i - 1] == 0x55 and 0x30 <= data[i - 2] <= 0x39:
                return 3
            if (data[i] == 0x43 or data[i] == 0x41) and i > start and 0x30 <= data[i - 1] <= 0x39:
                return 2
        return 0
    if mark & END_OF_UNIT:
        i = last
        for _ in range(LONGEST_UNIT):
            if i <= start:
                return 0
            if 0x30 <= data[i - 1] <= 0x39:
                return end - i if find(known, word_hash(data, i, end), UNIT) >= 0 else 0
            i = before(data, start, i)
    return 0


@inlined
def cut_middle(data, start, end, marks, rows, n):
    """The rest between the ends: whole, or cut at inner marks where it is no address."""
    i = start
    first_at, first_size = next_inner(data, start, i, end, marks)
    while first_at == start:  # a mark in front is no cut
        first_at, first_size = next_inner(data, start, first_at + first_size, end, marks)
    if first_at >= end or is_address(data, start, end, marks):
        return put_word(data, start, end, marks, rows, n)
    inner, size, begin = first_at, first_size, start
    while inner < end:
        if inner > begin:
            n = put_word(data, begin, inner, marks, rows, n)
        n = put_word(data, inner, inner + size, marks, rows, n)
        begin = inner + size
        inner, size = next_inner(data, start, begin, end, marks)
    if begin < end:
        n = put_word(data, begin, end, marks, rows, n)
    return n


@inlined
def class_at(data, i, end, marks):
    if i >= end:
        return np.uint32(0)
    return marks[data[i]] if data[i] < 0x80 else marks[point_at(data, i, end)[0]]


@helper
def next_inner(data, start, i, end, marks):
    """The next inner mark from byte i on and its bytes; (end, 0) where there is none. Marks depend on their neighbours
    between start and end."""
    previous = np.uint32(0) if i == start else marks[point_at(data, before(data, start, i), i)[0]]
    while i < end:
        letters_end = skip_letters(data, i, end)
        if letters_end > i:
            previous = marks[data[letters_end - 1]]
            i = letters_end
            continue
        point, size = point_at(data, i, end)
        mark = marks[point]
        if mark & INNER:
            following = class_at(data, i + size, end, marks)
            if point == 0x2E:
                j = i + 1
                while j < end and data[j] == 0x2E:
                    j += 1
                if j - i > 1:
                    return i, j - i
                if previous & (LOWER | QUOTE) and following & (UPPER | QUOTE):
                    return i, 1
            elif mark & ICON:
                return i, size
            else:
                if previous & DIGIT and (point == 0x2B or point == 0x2D or point == 0x2A or point == 0x5E):
                    if i + 1 < end and (data[i + 1] == 0x2D or following & DIGIT):
                        return i, 1
                if point == 0x2C:
                    if previous & ALPHA and following & ALPHA:
                        return i, 1
                elif previous & (ALPHA | DIGIT):
                    if (
                        point == 0x3A
                        or point == 0x3C
                        or point == 0x3E
                        or point == 0x3D
                        or point == 0x2F
                        or point == 0x7E
                        or point == 0x2013
                    ):
                        if following & ALPHA:
                            return i, size
                    elif point == 0x2D or point == 0x2014:  # one, two or three hyphens; one or two dashes
                        longest = 3 if point == 0x2D else 2
                        j = i
                        for _ in range(longest):
                            if j >= end or point_at(data, j, end)[0] != point:
                                break
                            j += size
                            if class_at(data, j, end, marks) & ALPHA:
                                return i, j - i
        previous = mark
        i += size
    return end, 0


@inlined
def is_address(data, start, end, marks):
    """Whether this is a web or mail address: [scheme://] [user@] name.name.tld [:port] [/ ? # anything]."""
    dot = start
    while dot < end and data[dot] != 0x2E:
        dot += 1
    if dot == end:  # no host is without; most words with a hyphen leave here
        return False
    if is_host(data, start, end, marks):
        return True
    i = start
    while i < end and (data[i] >= 0x80 or marks[data[i]] & HOST or data[i] == 0x2B):  # + is in schemes
        i += 1
    if (
        i - start >= 2
        and i + 3 < end
        and data[i] == 0x3A
        and data[i + 1] == 0x2F
        and data[i + 2] == 0x2F
        and is_host(data, i + 3, end, marks)
    ):
        return True
    for i in range(start + 1, end - 1):
        if data[i] == 0x40 and is_host(data, i + 1, end, marks):
            return True
    return False


@helper
def is_host(data, start, end, marks):
    """Whether a host name begins here, and ends where an address may go on or end."""
    i = start
    label, labels, edge_first, edge_last, letters = 0, 0, False, False, True  # of the label we are in
    while i < end:
        point, size = point_at(data, i, end)
        mark = marks[point]
        if point == 0x2E:
            if not edge_first or not edge_last or label > 64:
                return False
            labels += 1
            label, edge_first, edge_last, letters = 0, False, False, True
        elif mark & HOST:
            if label == 0:
                edge_first = (mark & HOST_EDGE) != 0
            edge_last = (mark & HOST_EDGE) != 0
            letters = letters and (mark & LOWER) != 0
            label += 1
        else:
            break
        i += size
    if labels == 0 or not letters or label < 2 or label > 63:
        return False
    if i < end and data[i] == 0x3A:
        digits = i + 1
        while digits < end and 0x30 <= data[digits] <= 0x39:
            digits += 1
        if not 2 <= digits - i - 1 <= 5:
            return False
        i = digits
    return i >= end or data[i] == 0x2F or data[i] == 0x3F or data[i] == 0x23
