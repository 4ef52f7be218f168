"""Which parts a leg has, and the task for each: the driver's side of legs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NotRequired, TypedDict

from gristmill.pipeline import fingerprint
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.inputs.cutting import contents_of, key_of
from gristmill.pipeline.inputs.portion import Inputs, size_of
from gristmill.pipeline.json_types import StageSpec
from gristmill.pipeline.plan.plan import Leg
from gristmill.pipeline.plan.signals import measured_again, seen_by, texts_kept
from gristmill.pipeline.plan.sink_columns import as_text, columns_of_all, shows_signals
from gristmill.pipeline.recipe.recipe import Recipe, Source
from gristmill.pipeline.store.forgotten import read_list, with_list
from gristmill.pipeline.store.journal import Journal
from gristmill.pipeline.store.parts import identity
from gristmill.pipeline.store.records import LegTask, Part, PartInput, RejectsSettings, RuleSpec, RulesTask
from gristmill.pipeline.store.store import Store


def rejects_settings(recipe: Recipe) -> RejectsSettings:
    rejects = recipe.head.rejects
    return {"keep": rejects.keep, "text": rejects.text}


def tasks_of_leg(
    leg: Leg, recipe: Recipe, journal: Journal, inputs: dict[str, Inputs], upstream: Iterable[Part]
) -> list[LegTask]:
    """One task for each part of a leg: the work on its documents. A leg of rules alone has none."""
    if leg.source is not None:
        tasks = tasks_of_source(leg, leg.source, recipe, journal.store, inputs[leg.source.name])
    elif leg.works:
        tasks = tasks_on_parts(leg, recipe, journal, list(upstream))
    else:
        return []
    keys = [task["key"] for task in tasks]
    if len(set(keys)) != len(keys):
        raise RecipeError(f"{leg.name}: two parts have the same name; give the sources names of their own")
    return sorted(tasks, key=lambda task: task["key"])


def tasks_of_source(leg: Leg, source: Source, recipe: Recipe, store: Store, inputs: Inputs) -> list[LegTask]:
    """Tasks that read stretches of files."""
    base, common = leg.fingerprint(recipe), common_of(leg, recipe, store)
    forgotten = read_list(store)
    tasks: list[LegTask] = []
    for spans, limit in inputs.parts:
        key = key_of(source.name, spans)
        task = fingerprint.digest([base, key, contents_of(spans), limit])
        stretches: list[PartInput] = [
            {"source": source.name, "path": span.file.path, "start": span.start, "end": span.end} for span in spans
        ]
        tasks.append(
            {
                **common,
                "reader": source.reader.spec,
                "source": source.name,
                "part": None,
                "task": task if forgotten is None else with_list(task, forgotten.checksum),
                "key": key,
                "files": [span.plain() for span in spans],
                "inputs": stretches,
                "limit": limit,
                "cost": size_of(spans),
            }
        )
        if forgotten is not None:
            tasks[-1]["forgotten"] = forgotten.checksum
    return tasks


def tasks_on_parts(leg: Leg, recipe: Recipe, journal: Journal, parts: list[Part]) -> list[LegTask]:
    """Tasks that read the parts of earlier legs."""
    base, common = leg.fingerprint(recipe), common_of(leg, recipe, journal.store)
    columns = []  # of every file that a sink writes
    if any(shows_signals(step.stage) for step in leg.works):
        columns = [as_text(columns_of_all(journal.store, parts, journal.schemas))]
    tasks: list[LegTask] = []
    for part in parts:
        task: LegTask = {
            **common,
            "task": fingerprint.digest([base, identity(part), *columns]),
            "key": part["key"],
            "reader": None,
            "source": part["source"],
            "part": part,
            "files": [],
            "inputs": [{"from": part["leg"], "key": part["key"]}],
            "limit": None,
            "cost": part["text_bytes"],
        }
        if columns:
            task["columns"] = columns[0]
        tasks.append(task)
    return tasks


class Common(TypedDict):
    """What all tasks of a leg have alike."""

    kind: Literal["leg"]
    node: str
    out: str
    leg: str
    stages: list[StageSpec]
    documents: bool
    beside: bool
    measured_again: dict[str, list[str]]
    texts_kept: list[str]
    rejects: RejectsSettings
    batch_bytes: int
    gpu: bool
    columns: NotRequired[str]
    forgotten: NotRequired[str]


def common_of(leg: Leg, recipe: Recipe, store: Store) -> Common:
    return {
        "kind": "leg",
        "node": leg.name,
        "out": store.anywhere,
        "leg": leg.name,
        "stages": [step.spec for step in leg.works],
        "documents": leg.documents,
        "beside": leg.beside,
        "measured_again": measured_again(leg.steps),
        "texts_kept": texts_kept(leg.steps, leg.decides),
        "rejects": rejects_settings(recipe),
        "batch_bytes": recipe.head.parts.batch_bytes,
        "gpu": any(step.stage.gpu for step in leg.works),
    }


def documents_of(task: LegTask) -> str:
    """The name under which the journal knows how many documents the part of a leg's task gave, whether its files are
    there or not."""
    return counted_as(task["task"])


def counted_as(task: str) -> str:
    return fingerprint.digest(["documents", task])


def tasks_of_rules(leg: Leg, recipe: Recipe, store: Store, parts: Iterable[Part]) -> list[RulesTask]:
    """One task for each part that has documents left: what the leg's rules say of it."""
    if not leg.decides:
        return []
    rules: list[RuleSpec] = []
    for step in leg.decides:
        columns, texts = seen_by(leg.steps, leg.decides, step)
        rules.append({"stage": step.spec, "columns": columns, "texts": texts})
    base = leg.fingerprint_of_rules(recipe)
    return [
        {
            "kind": "decide",
            "node": leg.name,
            "out": store.anywhere,
            "leg": leg.name,
            "rules": rules,
            "task": fingerprint.digest([base, identity(part)]),
            "key": part["key"],
            "source": part["source"],
            "part": part,
            "rejects": rejects_settings(recipe),
            "cost": part["text_bytes"],
        }
        for part in sorted(parts, key=lambda part: part["key"])
        if part["kept"]
    ]


def global_task(stage_fingerprint: str, parts: Iterable[Part], kept: list[str]) -> str:
    """The fingerprint of a global stage on its documents and on what earlier runs have `kept` for it, under which the
    journal knows that it is done."""
    return fingerprint.digest(["global", stage_fingerprint, sorted(identity(p) for p in parts), *kept])


def begun_of(task: str) -> str:
    """The name under which the journal knows that a global stage was begun on its documents; once it has ended, as long
    as the rows between its rounds are there."""
    return fingerprint.digest(["begun", task])
