"""Where the lines of texts begin, and which languages share a text by the letters of its lines."""

from __future__ import annotations

import numpy as np

from gristmill.kernels.base.compiled import kernel
from gristmill.kernels.base.types import Bytes, Offsets


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
