"""What a recipe may ask of extraction, without the engines themselves, which a recipe is checked without."""

from __future__ import annotations

import importlib.util
from typing import Literal

EngineName = Literal["gristmill", "resiliparse", "trafilatura", "plain"]
OURS: EngineName = "gristmill"
Form = Literal["text", "markdown"]
Comments = Literal["drop", "keep", "apart"]
# Why a page is none with text of its own (pages.py finds out).
REASONS = ("too_many_blocks", "frames", "redirect", "not_found_page", "needs_script", "login_wall")


def check_engine(engine: EngineName) -> None:
    """Raise where an engine is not installed, with what to install; better once at the start than for each document."""
    if engine == "trafilatura" and importlib.util.find_spec("trafilatura") is None:
        raise ImportError(
            "the engine trafilatura is not installed here; it is an extra: pip install gristmill[trafilatura]"
        )
