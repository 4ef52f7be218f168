"""Gristmill: raw crawl dumps in, packed token shards out. This is the whole public interface for Python; all else may
change.

    import gristmill

    summary = gristmill.run("recipe.yaml", "out")          # what `gristmill run` does
    shards = gristmill.open_shards("out/shards/4096")      # token shards, memory-mapped
    loader = gristmill.Loader(shards, batch_rows=8)        # batches as a pure function of seed, epoch and position
    gristmill.extract(html, url)                           # the main text of one page
    gristmill.stages.TextSignals()(table)                  # any stage, on an Arrow table

Names are imported when they are first used, so that `import gristmill` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill import stages
    from gristmill.mixing.verdicts.verdict import Verdict
    from gristmill.pipeline.recipe.recipe import Recipe
    from gristmill.pipeline.run.door import run
    from gristmill.shards.loader import Loader
    from gristmill.shards.reader import open_shards
    from gristmill.stages.extract import extract

__all__ = ["Loader", "Recipe", "Verdict", "extract", "open_shards", "run", "stages"]

HOMES = {
    "Loader": "gristmill.shards.loader",
    "Recipe": "gristmill.pipeline.recipe.recipe",
    "Verdict": "gristmill.mixing.verdicts.verdict",
    "extract": "gristmill.stages.extract",
    "open_shards": "gristmill.shards.reader",
    "run": "gristmill.pipeline.run.door",
}


def __getattr__(name: str) -> Any:
    if name == "stages":
        return import_module("gristmill.stages")
    if name not in HOMES:
        raise AttributeError(f"module 'gristmill' has no attribute {name!r}; there are {', '.join(__all__)}")
    return getattr(import_module(HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
