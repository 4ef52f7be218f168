"""Gristmill: raw crawl dumps in, packed token shards out. This is the whole public interface for Python; all other
modules may change between versions.

    import gristmill

    summary = gristmill.run("recipe.yaml", "out")          # what `gristmill run` does; summary.record is run.json
    recipe = gristmill.Recipe                              # the type of a loaded recipe, which `run` takes too
    page = gristmill.extract(html, url)                    # the main text of one page, and its metadata
    table = gristmill.stages.TextSignals()(table)          # any stage, on an Arrow table
    shards = gristmill.open_shards("out/shards/4096")      # token shards, memory-mapped
    loader = gristmill.Loader(shards, batch_rows=8)        # batches as a pure function of seed, epoch and position
    gristmill.Verdict                                      # an ablation's: adopt, reject or inconclusive

Names are imported on first use, so `import gristmill` costs nothing. Modules lie in floors and rooms: docs/design.md.
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
