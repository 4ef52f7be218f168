"""What a recipe may ask of extraction, without the engines themselves, which a recipe is checked without.

Views of a page: the full one is its main text as well as the model can tell, the precise one what is sure to be. Which
of them becomes training text is better asked after the filters than before them: a page with a menu in its full view
may pass with the precise one. `extract` makes a document of each view, and `one_view` keeps one of those that are left.
Their uids say that they belong together: a precise view's is the full one's with some bits turned.
"""

from __future__ import annotations

import importlib.util
from typing import Literal

import numpy as np

from gristmill.kernels.base.types import Array
from gristmill.kernels.common.extras import install

EngineName = Literal["gristmill", "resiliparse", "trafilatura", "plain"]
OURS: EngineName = "gristmill"
Form = Literal["text", "markdown"]
Comments = Literal["drop", "keep", "apart"]
# Why a page is none with text of its own (`gristmill.no_page` finds out).
REASONS = ("too_many_blocks", "frames", "redirect", "not_found_page", "needs_script", "login_wall")


def check_engine(engine: EngineName) -> None:
    """Raise where an engine is not installed, with what to install; better once at the start than for each document."""
    if engine == "trafilatura" and importlib.util.find_spec("trafilatura") is None:
        raise ImportError(f"the engine trafilatura is not installed here; it is an extra: {install('trafilatura')}")


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
