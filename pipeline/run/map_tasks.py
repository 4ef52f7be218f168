"""Which partitions a map node has, and the task for each, with what is stored of it already."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.inputs.portion import Inputs, contents_of, key_of, size_of
from gristmill.pipeline.plan.plan import MapNode, Segment
from gristmill.pipeline.plan.signals import measured_again, seen_by, texts_kept
from gristmill.pipeline.recipe.recipe import Recipe, Source
from gristmill.pipeline.store.forgotten import read_list
from gristmill.pipeline.store.partitions import identity
from gristmill.pipeline.store.records import (
    InputSpan,
    MapTask,
    Partition,
    Phase,
    RejectsSettings,
    RuleSpec,
)
from gristmill.pipeline.store.storage import Store, digest

LITTLE_INPUT = 512 << 20  # bytes of all files
FEW_PARTS = 16  # of inputs that are no bytes, such as a database's


def rejects_settings(recipe: Recipe) -> RejectsSettings:
    rejects = recipe.head.rejects
    return RejectsSettings(rejects.keep, rejects.text)


def tasks_of_node(
    node: MapNode, recipe: Recipe, store: Store, inputs: Mapping[str, Inputs], parts: Iterable[Partition]
) -> list[MapTask]:
    """One task for each partition of a map node, with all its phases."""
    plan = PhasePlan.of(node, recipe)
    if node.source is not None:
        tasks = tasks_of_source(node, plan, node.source, recipe, store, inputs[node.source.name])
    else:
        tasks = [task_on_part(node, plan, recipe, store, part) for part in parts]
    compress = compresses(recipe, store, inputs)
    tasks = [replace(task, compress=compress) for task in tasks]
    keys = [task.key for task in tasks]
    if len(set(keys)) != len(keys):
        raise RecipeError(f"{node.name}: two parts have the same name; give the sources names of their own")
    return sorted(tasks, key=lambda task: task.key)


def compresses(recipe: Recipe, store: Store, inputs: Mapping[str, Inputs]) -> bool:
    """Whether stored documents are compressed. Where nothing is kept, they are read by each round of a global stage and
    gone when the run ends: compression costs more than it saves while memory holds them."""
    size = sum(each.bytes for each in inputs.values())  # of all, for a sample too: it foretells the whole
    parts = sum(len(each.parts) for each in inputs.values())
    return recipe.head.keep != "nothing" or not store.local or size > LITTLE_INPUT or parts > FEW_PARTS


@dataclass(frozen=True)
class PhasePlan:
    """The phases of a map node, each with the fingerprint of its own code and settings."""

    phases: tuple[tuple[str, Phase], ...]

    @classmethod
    def of(cls, node: MapNode, recipe: Recipe) -> PhasePlan:
        phases: list[tuple[str, Phase]] = []
        for segment in node.segments:
            phase = Phase(
                task="",
                segment=segment.name,
                stages=tuple(step.spec for step in segment.works),
                rules=(),
                documents=segment.documents,
                beside=segment.beside,
                measured_again=measured_again(segment.steps),
                texts_kept=texts_kept(segment.steps, segment.decides),
            )
            if segment.works or segment.source is not None:
                phases.append((segment.fingerprint(recipe), phase))
            if segment.decides:
                rules = replace(phase, stages=(), rules=tuple(rules_of(segment)))
                phases.append((segment.fingerprint_of_rules(recipe), rules))
        return cls(tuple(phases))

    def on(self, first: str) -> tuple[Phase, ...]:
        """The phases on a partition, each named by all before it. `first` names the first phase on this partition."""
        phases: list[Phase] = []
        name = first
        for number, (fingerprint_, phase) in enumerate(self.phases):
            name = digest([fingerprint_, name]) if number else name
            phases.append(replace(phase, task=name))
        return tuple(phases)

    @property
    def first(self) -> str:
        return self.phases[0][0]


def rules_of(segment: Segment) -> list[RuleSpec]:
    rules: list[RuleSpec] = []
    for step in segment.decides:
        columns, texts = seen_by(segment.steps, segment.decides, step)
        rules.append(RuleSpec(step.spec, columns, texts))
    return rules


def tasks_of_source(
    node: MapNode, plan: PhasePlan, source: Source, recipe: Recipe, store: Store, inputs: Inputs
) -> list[MapTask]:
    """Tasks that read spans of files."""
    forgotten = read_list(store)
    tasks: list[MapTask] = []
    for spans, limit in inputs.parts:
        key = key_of(source.name, spans)
        first = digest([plan.first, key, contents_of(spans), limit])
        phases = plan.on(first)
        task = replace(
            task_of(node, recipe, store, phases),
            key=key,
            reader=source.reader.spec,
            source=source.name,
            files=tuple(spans),
            inputs=tuple(InputSpan(source.name, span.file.path, span.start, span.end) for span in spans),
            limit=limit,
            cost=size_of(spans),
            forgotten="" if forgotten is None else forgotten.checksum,
        )
        tasks.append(task)
    return tasks


def task_on_part(node: MapNode, plan: PhasePlan, recipe: Recipe, store: Store, part: Partition) -> MapTask:
    """A task that reads a partition which an earlier node stored."""
    phases = plan.on(digest([plan.first, identity(part)]))
    task = task_of(node, recipe, store, phases)
    return replace(task, key=part.key, source=part.source, part=part, cost=part.text_bytes)


def task_of(node: MapNode, recipe: Recipe, store: Store, phases: tuple[Phase, ...]) -> MapTask:
    """What all tasks of a map node have in common."""
    return MapTask(
        task=phases[-1].task,
        node=node.name,
        key="",
        cost=0,
        out=store.anywhere,
        gpu=any(segment.gpu for segment in node.segments),
        phases=phases,
        rejects=rejects_settings(recipe),
        batch_bytes=recipe.head.parts.batch_bytes,
        source="",
    )


def global_task(stage_fingerprint: str, parts: Iterable[Partition], kept: list[str]) -> str:
    """The fingerprint of a global stage on its documents and on what earlier runs have `kept` for it, under which the
    journal knows that it is done."""
    return digest(["global", stage_fingerprint, sorted(identity(p) for p in parts), *kept])
