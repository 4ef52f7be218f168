"""What readers wrote below a text: told from the text by what containers call themselves, decided apart from the
choice of the main text.

A block is a comment if a container above it has a name of comments (kernels/html/names.py) and it is no code, whose
highlighters call a remark `comment` too. On a forum, in reviews of a product, or where little else is left, what
readers wrote is what the page is about, and it stays.
"""

from __future__ import annotations

import numpy as np

from gristmill.classifiers.blocks.model import MeasuredPage
from gristmill.kernels.base.types import Array
from gristmill.kernels.blocks.columns import BIT_NAMES, FAR, KIND, KNOWN, SAYS, TO_BIT, TO_KIND
from gristmill.kernels.blocks.features import WORDS

LEAST_TEXT = 100  # words beside the comments, or they are the text

TO_COMMENT, TO_FORUM, TO_REVIEW = (TO_BIT + BIT_NAMES.index(name) for name in ("comment", "forum", "review"))
TO_CODE = TO_KIND + KIND["pre"]
SAYS_FORUM, SAYS_PRODUCT = (SAYS + KNOWN.index(name) for name in ("forum", "product"))


def readers_comments(measured: MeasuredPage, kept: Array) -> Array:
    """bool[blocks]: of the kept blocks, those that are comments beside a text."""
    none = np.zeros(len(kept), np.bool_)
    rows = measured.rows
    comments = kept & (rows[:, TO_COMMENT] < FAR) & (rows[:, TO_CODE] >= FAR)
    if not comments.any() or rows[0, SAYS_FORUM] > 0 or (rows[kept, TO_FORUM] < FAR).any():
        return none
    if rows[0, SAYS_PRODUCT] > 0:
        comments &= rows[:, TO_REVIEW] >= FAR
    left = int(measured.counts[kept & ~comments, WORDS].sum())
    return comments if left >= LEAST_TEXT else none
