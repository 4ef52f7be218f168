"""The letters of a text, as evidence for its language; where its lines begin; and which languages share it."""

from __future__ import annotations

import numpy as np

from gristmill.kernels.base.compiled import kernel
from gristmill.kernels.base.types import Array, Bytes, Offsets
from gristmill.kernels.base.unicode import DENSE, LETTER, code_point, properties


def letters_of(data: Bytes, offsets: Offsets, dense: int) -> Array:
    """int64_N: letters of each text; a letter of a script without spaces (Han, kana, Thai, Khmer...) counts for
    `dense`."""
    counts = np.empty(len(offsets) - 1, np.int64)
    count_letters(data, offsets, properties(), dense, counts)
    return counts


@kernel
def count_letters(data, offsets, table, dense, counts):
    for document in range(len(offsets) - 1):
        letters = np.int64(0)
        i, end = offsets[document], offsets[document + 1]
        while i < end:
            if data[i] < 0x80:
                letters += 97 <= (data[i] | 0x20) <= 122
                i += 1
                continue
            point, size = code_point(data, i, end)
            if table[point] & LETTER:
                letters += dense if table[point] & DENSE else 1
            i += size
        counts[document] = letters


def lines_of(data: Bytes, offsets: Offsets) -> tuple[Offsets, Offsets]:
    """Where the lines of all texts begin (and the last ends), each with its newline; and the first line of each
    text."""
    start, end = int(offsets[0]), int(offsets[-1])
    breaks = np.flatnonzero(data[start:end] == 10) + start + 1
    begins = np.unique(np.concatenate([offsets, breaks]))
    return begins, np.searchsorted(begins, offsets)


@kernel
def share_lines(first, labels, letters, of_label, best, sums, counts):
    """The two labels with the most letters in each text (best_N2, -1 for none; the lower number wins a tie), their
    letters and those of all labels (sums_N3), and the number of labels. `of_label` is scratch memory: zeros, one for
    each label, before and after."""
    for document in range(len(first) - 1):
        counts[document] = 0
        best[document, :] = -1
        sums[document, :] = 0
        for line in range(first[document], first[document + 1]):
            if labels[line] >= 0:
                of_label[labels[line]] += letters[line]
        for line in range(first[document], first[document + 1]):
            label = labels[line]
            if label < 0 or of_label[label] == 0:
                continue
            here = of_label[label]
            of_label[label] = 0
            counts[document] += 1
            sums[document, 2] += here
            for place in range(2):
                if here > sums[document, place] or (here == sums[document, place] and label < best[document, place]):
                    if place == 0:
                        best[document, 1], sums[document, 1] = best[document, 0], sums[document, 0]
                    best[document, place], sums[document, place] = label, here
                    break
