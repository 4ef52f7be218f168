"""Gristmill: raw crawl dumps in, packed token shards out. This is the whole public interface for Python; all other
modules may change between versions.

    import gristmill

    run = gristmill.run("recipe.yaml", "out")              # what `gristmill run` does; run.record is run.json
    gristmill.plan("recipe.yaml", "out")                   # what it would do; estimate: how long the whole would take
    run = gristmill.open_run("out")                        # funnel, documents, histories, thresholds, reports
    gristmill.export("out", "rows", "hf")                  # shards or documents for other tools, or on a hub
    recipe = gristmill.Recipe(sources={...}, stages=[...]) # a recipe in code, of readers or tables: recipe.run("out")
    page = gristmill.extract(html, url)                    # the main text of one page, and its metadata
    table = gristmill.stages.TextSignals()(table)          # any stage, on a table of Arrow, pandas, polars, datasets
    shards = gristmill.open_shards("out/shards/4096")      # token shards, memory-mapped
    loader = gristmill.Loader(shards, batch_rows=8)        # batches as a pure function of seed, epoch and position
    judge = gristmill.train_judge(plan, "judges/quality")  # or open_judge(folder): figures, scores, explanations
    gristmill.label_texts("labels.yaml")                   # by a language model; rate_sources
    gristmill.train("train.yaml", "model")                 # a decoder on shards
    ablation = gristmill.ablate(plan, "ablation")          # or open_ablation(folder): verdicts on data
    gristmill.Verdict                                      # an ablation's: adopt, reject or inconclusive
    crawl = gristmill.demo_crawl("crawl")                  # a small crawl to try things on

Names are imported on first use, so `import gristmill` costs nothing. Modules lie in floors and rooms: docs/design.md.
"""

from __future__ import annotations

import gc
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill import stages
    from gristmill.mixing.verdicts.verdict import Verdict
    from gristmill.pipeline.door.ablations import Ablation, ablate, open_ablation, train
    from gristmill.pipeline.door.exports import export
    from gristmill.pipeline.door.judges import (
        TrainedJudge,
        label_texts,
        open_judge,
        rate_sources,
        train_judge,
    )
    from gristmill.pipeline.door.recipes import Recipe, Source, demo_crawl, estimate, plan, run
    from gristmill.pipeline.door.runs import Run, open_run
    from gristmill.shards.loader import Loader
    from gristmill.shards.reader import open_shards
    from gristmill.stages.extract.engines import extract

__all__ = [
    "Ablation", "Loader", "Recipe", "Run", "Source", "TrainedJudge", "Verdict", "ablate", "demo_crawl", "estimate",
    "export", "extract", "label_texts", "open_ablation", "open_judge", "open_run",
    "open_shards", "plan", "rate_sources", "run", "stages", "train", "train_judge",
]  # fmt: skip

HOMES = {
    "Ablation": "gristmill.pipeline.door.ablations",
    "Loader": "gristmill.shards.loader",
    "Recipe": "gristmill.pipeline.door.recipes",
    "Run": "gristmill.pipeline.door.runs",
    "Source": "gristmill.pipeline.door.recipes",
    "TrainedJudge": "gristmill.pipeline.door.judges",
    "Verdict": "gristmill.mixing.verdicts.verdict",
    "ablate": "gristmill.pipeline.door.ablations",
    "demo_crawl": "gristmill.pipeline.door.recipes",
    "estimate": "gristmill.pipeline.door.recipes",
    "export": "gristmill.pipeline.door.exports",
    "extract": "gristmill.stages.extract.engines",
    "label_texts": "gristmill.pipeline.door.judges",
    "open_ablation": "gristmill.pipeline.door.ablations",
    "open_judge": "gristmill.pipeline.door.judges",
    "open_run": "gristmill.pipeline.door.runs",
    "open_shards": "gristmill.shards.reader",
    "plan": "gristmill.pipeline.door.recipes",
    "rate_sources": "gristmill.pipeline.door.judges",
    "run": "gristmill.pipeline.door.recipes",
    "train": "gristmill.pipeline.door.ablations",
    "train_judge": "gristmill.pipeline.door.judges",
}


def __getattr__(name: str) -> Any:
    if name == "stages":
        return import_module("gristmill.stages")
    if name not in HOMES:
        from gristmill.kernels.common.settings import no_such_name
        from gristmill.stages import HOMES as STAGES

        raise no_such_name("gristmill", name, [*__all__, *(f"stages.{stage}" for stage in STAGES)])
    collects = gc.isenabled()
    gc.disable()  # nothing of modules is garbage, and looking for it takes a tenth of their time
    try:
        return getattr(import_module(HOMES[name]), name)
    finally:
        if collects:
            gc.enable()


def __dir__() -> list[str]:
    return sorted(__all__)
