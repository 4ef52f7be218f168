"""Views of a page: the full one, which is its main text as well as the model can tell, and a precise one of what is
sure to be. Which of them becomes training text is better asked after the filters than before them: a page with a menu
in its full view may pass with the precise one.

`extract` makes a document of each view, and `one_view` keeps one of those that are left. Their uids say that they
belong together: a precise view's is the full one's with some bits turned.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from gristmill.kernels.base.types import Array

View = Literal["full", "precise"]
TURNED = np.uint64(0x9E3779B97F4A7C15)


def other_uids(uids: Array) -> Array:
    """Of precise views, from those of the full ones; and the other way round."""
    others: Array = uids ^ TURNED
    return others


def each_once(views: list[View]) -> list[View]:
    if len(set(views)) < len(views):
        raise ValueError("a view may be named once")
    return views
