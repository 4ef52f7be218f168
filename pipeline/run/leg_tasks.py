"""Which parts a leg has, and the task for each: the driver's side of legs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gristmill.pipeline import fingerprint
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.inputs.files import contents_of, key_of
from gristmill.pipeline.inputs.portion import Inputs, size_of
from gristmill.pipeline.leg.leg import Task
from gristmill.pipeline.plan.plan import Leg
from gristmill.pipeline.plan.signals import measured_again, seen_by, texts_kept
from gristmill.pipeline.plan.sink_columns import as_text, columns_of_all, shows_signals
from gristmill.pipeline.recipe.recipe import Recipe
from gristmill.pipeline.store.parts import Part, identity
from gristmill.pipeline.store.store import Store


def tasks_of_leg(
    leg: Leg, recipe: Recipe, store: Store, inputs: dict[str, Inputs], upstream: Iterable[Part]
) -> list[Task]:
    """One task for each part of a leg: the work on its documents. A leg of rules alone has none."""
    if leg.source is None and not leg.works:
        return []
    common: dict[str, Any] = {
        "kind": "leg",
        "node": leg.name,
        "out": store.anywhere,
        "leg": leg.name,
        "stages": [s.spec for s in leg.works],
        "documents": leg.documents,
        "beside": leg.beside,
        "measured_again": measured_again(leg.steps),
        "texts_kept": texts_kept(leg.steps, leg.decides),
        "rejects": recipe.head.rejects.model_dump(),
        "batch_bytes": recipe.head.parts.batch_bytes,
        "gpu": any(s.stage.gpu for s in leg.works),
    }
    base = leg.fingerprint(recipe)
    tasks = []
    if leg.source is not None:
        common |= {"reader": leg.source.reader.spec, "source": leg.source.name, "part": None}
        for spans, limit in inputs[leg.source.name].parts:
            key = key_of(leg.source.name, spans)
            tasks.append(
                common
                | {
                    "task": fingerprint.digest([base, key, contents_of(spans), limit]),
                    "key": key,
                    "files": [s.plain() for s in spans],
                    "inputs": [
                        {"source": leg.source.name, "path": s.file.path, "start": s.start, "end": s.end} for s in spans
                    ],
                    "limit": limit,
                    "cost": size_of(spans),
                }
            )
    else:
        parts = list(upstream)
        shown = []
        if any(shows_signals(s.stage) for s in leg.works):
            shown = [as_text(columns_of_all(store, parts))]
            common |= {"columns": shown[0]}
        for part in parts:
            origin = [{"from": part["leg"], "key": part["key"]}]
            tasks.append(
                common
                | {
                    "task": fingerprint.digest([base, identity(part), *shown]),
                    "key": part["key"],
                    "reader": None,
                    "source": part["source"],
                    "part": part,
                    "files": [],
                    "inputs": origin,
                    "limit": None,
                    "cost": part["text_bytes"],
                }
            )
    keys = [t["key"] for t in tasks]
    if len(set(keys)) != len(keys):
        raise RecipeError(f"{leg.name}: two parts have the same name; give the sources names of their own")
    return sorted(tasks, key=lambda t: str(t["key"]))


def documents_of(task: Task) -> str:
    """The name under which the journal knows how many documents the part of a leg's task gave, whether its files are
    there or not."""
    return fingerprint.digest(["documents", task["task"]])


def tasks_of_rules(leg: Leg, recipe: Recipe, store: Store, parts: Iterable[Part]) -> list[Task]:
    """One task for each part that has documents left: what the leg's rules say of it."""
    if not leg.decides:
        return []
    rules = []
    for step in leg.decides:
        columns, texts = seen_by(leg.steps, leg.decides, step)
        rules.append({"stage": step.spec, "columns": columns, "texts": texts})
    common = {"kind": "decide", "node": leg.name, "out": store.anywhere, "leg": leg.name, "rules": rules}
    base = leg.fingerprint_of_rules(recipe)
    return [
        common
        | {
            "task": fingerprint.digest([base, identity(part)]),
            "key": part["key"],
            "source": part["source"],
            "part": part,
            "rejects": recipe.head.rejects.model_dump(),
            "cost": part["text_bytes"],
        }
        for part in sorted(parts, key=lambda p: str(p["key"]))
        if part["kept"]
    ]


def global_task(stage_fingerprint: str, parts: Iterable[Part], kept: list[str]) -> str:
    """The fingerprint of a global stage on its documents and on what earlier runs have `kept` for it, under which the
    journal knows that it is done."""
    return fingerprint.digest(["global", stage_fingerprint, sorted(identity(p) for p in parts), *kept])


def begun_of(task: str) -> str:
    """The name under which the journal knows that a global stage was begun on its documents; once it has ended, as long
    as what its rounds handed on is there."""
    return fingerprint.digest(["begun", task])
