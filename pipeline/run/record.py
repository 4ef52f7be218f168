"""run.json: the recipe as resolved, versions, the machine, and every stage with its counts, times and cost."""

from __future__ import annotations

import platform
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import psutil

from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.leg.slowest import Slowest
from gristmill.pipeline.plan.plan import Plan
from gristmill.pipeline.recipe.recipe import Prices, Recipe, Source
from gristmill.pipeline.store.counts import Account
from gristmill.pipeline.store.journal import Journal
from gristmill.pipeline.store.parts import Part
from gristmill.pipeline.store.store import Store
from gristmill.stages.stage import Annotate, Global, Reader, Rule, Sink, Stage

PACKAGES = ("gristmill", "pyarrow", "numpy", "dask", "distributed", "resiliparse", "xxhash", "pydantic")
# All of a record that a clock, a machine or a price decides.
TIMELY = {"seconds", "started", "finished", "peak_memory", "machine", "joules", "slowest", "cost"}


def record_of(
    recipe: Recipe, plan: Plan, account: Account, slowest: Slowest, workers: int, facts: dict[str, Any]
) -> dict[str, Any]:
    """The record of a run; `facts` are what only the run itself knows. One that ended before its end has the stages
    that are done."""
    prices = recipe.head.prices
    stages = []
    for name, thing in plan.stage_order():
        if facts["status"] != "done" and name not in account.stages:
            continue
        stage = thing.reader.stage if isinstance(thing, Source) else thing.stage
        stages.append(entry(name, stage, account, slowest, prices))
    return {
        "name": recipe.name,
        "status": facts["status"],
        "error": facts["error"],
        "gristmill": version("gristmill"),
        "recipe": recipe.resolved(),
        "versions": {name: version(name) for name in PACKAGES} | {"python": platform.python_version()},
        "machine": {
            "system": platform.platform(),
            "cores": psutil.cpu_count(logical=True),
            "memory": psutil.virtual_memory().total,
            "workers": workers,
        },
        **facts,
        "cost": cost_of(stages, facts["joules"], prices),
        "stages": stages,
    }


def record_up_to(name: str, record: dict[str, Any], plan: Plan, recipe: Recipe) -> dict[str, Any]:
    """The record less all that the documents of a global stage did not pass: stages after it, sinks, sources that join
    later."""
    passed = plan.leading_to(name)
    end = 1 + next(place for place, step in enumerate(recipe.steps) if step.called == name)
    part = replace(
        recipe, sources=tuple(source for source in recipe.sources if source.name in passed), steps=recipe.steps[:end]
    )
    return {
        **record,
        "recipe": part.resolved(),
        "stages": [stage for stage in record["stages"] if stage["name"] in passed],
    }


def entry(name: str, stage: Stage, account: Account, slowest: Slowest, prices: Prices | None) -> dict[str, Any]:
    """One stage. Its cost is of the seconds in which workers were at it, whenever that was."""
    total = account.total(name).plain()
    return {
        "name": name,
        "stage": stage.recipe_name(),
        "kind": kind_of(stage),
        "about": (type(stage).__doc__ or "").strip().split("\n")[0],
        "settings": stage.model_dump(mode="json", exclude_none=True),
        "adds": list(stage.added),
        **total,
        "peak_memory": account.peak_memory.get(name, 0),
        "slowest": slowest.by_stage.get(name, []),
        "cost": None
        if prices is None
        else round(total["seconds"] / 3600 * (prices.gpu_hour if stage.gpu else prices.core_hour), 6),
        "sources": {source: count.plain() for source, count in sorted(account.stages.get(name, {}).items())},
    }


def cost_of(stages: list[dict[str, Any]], joules: float | None, prices: Prices | None) -> dict[str, Any] | None:
    """What the whole cost at the recipe's prices; None where it names none."""
    if prices is None:
        return None
    energy = (joules or 0.0) / 3.6e6 * prices.kilowatt_hour
    return {"amount": round(sum(its["cost"] for its in stages) + energy, 6), "currency": prices.currency}


def without_times(data: Any) -> Any:
    """A record less what differs between two runs that did the same."""
    if isinstance(data, dict):
        return {k: without_times(v) for k, v in data.items() if k not in TIMELY}
    return [without_times(v) for v in data] if isinstance(data, list) else data


def kind_of(stage: Stage) -> str:
    for kind, name in ((Reader, "read"), (Global, "global"), (Sink, "sink"), (Rule, "rule"), (Annotate, "annotate")):
        if isinstance(stage, kind):
            return name
    return "rewrite"


def manifest_part(node: str, part: Part) -> dict[str, Any]:
    """What the manifest of a leg or global stage says of a part: the files that it made itself. No times, so that runs
    can be compared."""
    made = [part["documents"]] if part["documents"] else []
    made += [*part["verdicts"], *part["signals"]]
    own = {facts["path"].rsplit(".", 2)[1]: facts for facts in made if facts["path"].startswith(f"legs/{node}/")}
    sinks = part.get("sinks", {}) if part["leg"] == node else {}
    home = (
        {} if part["leg"] == node else {"from": part["leg"]}
    )  # the leg whose documents the rows of a global stage lie beside
    return {
        "key": part["key"],
        "source": part["source"],
        **home,
        "inputs": part["inputs"],
        "rows": part["rows"],
        "kept": part["kept"],
        "files": {name: facts["path"] for name, facts in own.items()}
        | {f"sink/{name}": path for name, path in sinks.items()},
        "checksums": {name: facts["checksum"] for name, facts in own.items()},
    }


def is_done(store: Store) -> bool:
    """Is there a finished run in a folder? The same recipe needs no workers then."""
    record = store.read_json_if_whole("run.json")
    return isinstance(record, dict) and record.get("status") == "done"


def check_folder(recipe: Recipe, store: Store, journal: Journal) -> None:
    """A folder belongs to the recipe of one name; another version of that recipe is welcome."""
    if not journal.is_as_written("run.json"):
        return  # damaged: the journal shows whose folder this is, and the record is written anew
    record = store.read_json("run.json")
    ours = isinstance(record, dict) and isinstance(record.get("name"), str)
    if ours and record["name"] != recipe.name:
        raise RecipeError(
            f"{store.address}: this folder holds a run of the recipe named {record['name']}, not {recipe.name}; choose another --out, or remove it"
        )
    if record is not None and not ours:
        raise RecipeError(
            f"{store.address}: this folder holds files that are no run of ours (its run.json is not); choose an empty one"
        )
    if (
        record is None
        and any(not p.startswith((".lock", "logs/", "journal/")) for p in store.files(""))
        and not store.exists("journal")
    ):
        raise RecipeError(f"{store.address}: this folder holds files that are no run of ours; choose an empty one")
