"""Views of a page: the precise one, and a full one that has more of it. Which of them becomes training text is better
asked after the filters than before them: a page whose precise text is too short may pass with the full one, and one
whose full text is too noisy with the precise one.

`extract` makes a document of each view, and `one_view` keeps one of those that are left. Their uids say that they belong
together: a full view's is the other's with the bits of `FULL` turned.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from gristmill.kernels.base.types import Array

View = Literal["precise", "full"]
FULL = np.uint64(0x9E3779B97F4A7C15)


def full_uids(precise: Array) -> Array:
    """Of full views, from those of the precise ones; and the other way round."""
    uids: Array = precise ^ FULL
    return uids


def each_once(views: list[View]) -> list[View]:
    if len(set(views)) < len(views):
        raise ValueError("a view may be named once")
    return views
