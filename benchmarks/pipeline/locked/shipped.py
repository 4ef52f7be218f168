"""Every shipped recipe on small inputs: the demo's crawl, and texts of its pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from benchmarks.pipeline.locked.inputs import crawl, documents, judge, own, texts, write_source
from benchmarks.pipeline.locked.lock import RECIPES, Lock

SMALL = {
    "mix": {"budget": 60_000, "max_epochs": 1000},
    "tokenize": {"vocab_size": 600},
    "pack": {"row_length": 512},
}


def take(lock: Lock) -> None:
    for recipe in sorted(RECIPES.glob("*.yaml")):
        lock.run(recipe.stem, lock.recipe(recipe.stem, small(lock, recipe)))
    if lock.crawl is not None:
        plan = yaml.safe_load((RECIPES / "fineweb.yaml").read_text())
        plan["sources"]["crawl"]["warc"]["path"] = str(lock.crawl.resolve())
        lock.run("crawl", lock.recipe("crawl", plan))


def small(lock: Lock, recipe: Path) -> dict[str, Any]:
    """The recipe with sources of ours, small tokenizers and budgets, and judges that are trained here."""
    plan: dict[str, Any] = yaml.safe_load(recipe.read_text())
    plan["parts"] = {"files": 1}
    for name, source in plan["sources"].items():
        kind = next(key for key in source if key != "stages")
        if kind == "warc":
            source[kind]["path"] = str(crawl(lock.folder))
        else:
            rows = documents(own(texts(lock.folder), name), len(name))
            source[kind]["path"] = str(write_source(lock.folder / recipe.stem / name, rows, kind))
    for step in plan["stages"]:
        for name, settings in step.items() if isinstance(step, dict) else ():
            settings.update(SMALL.get(name, {}))
            if "least_tokens" in settings:
                settings |= {"least_tokens": 2_000, "max_epochs": {"quality_tier=low": 1, "others": 100}}
            if "thresholds_file" in settings:
                settings["thresholds_file"] = str(RECIPES / settings["thresholds_file"])
            if "judge_path" in settings:
                settings["judge_path"] = str(judge(lock.folder, Path(settings["judge_path"]).name))
    plan["stages"] = [{"tokenize": SMALL["tokenize"]} if step == "tokenize" else step for step in plan["stages"]]
    return plan
