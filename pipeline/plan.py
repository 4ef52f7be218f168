"""Recipe to plan: legs (runs of map stages, fused) and global stages, as a DAG in the order of work.

The shared stages are cut where a global stage stands, where a source joins, and nowhere else; the first leg of a source takes its own
stages and the shared ones up to the next cut, so that a document is read, extracted and judged without touching the disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline import fingerprint
from pipeline.errors import RecipeError
from pipeline.recipe import Recipe, Source, Step
from stages.stage import Global, Sink


@dataclass(frozen=True)
class Leg:
    """Map stages that run one after the other on each batch; fed by a source's files or by the parts of what went before."""

    name: str
    steps: tuple[Step, ...]
    source: Source | None
    feeds: tuple[str, ...]
    documents: bool = True  # does anything read its documents?

    def fingerprint(self, recipe: Recipe) -> str:
        reader = [fingerprint.of_stage(self.source.reader.stage, self.source.reader.spec), self.source.name] if self.source else []
        stages = [fingerprint.of_stage(s.stage, s.spec) for s in self.steps]
        return fingerprint.digest([reader, stages, self.documents, recipe.head.rejects.model_dump(), recipe.head.parts.batch_bytes])


@dataclass(frozen=True)
class GlobalNode:
    """A stage that sees all documents of what feeds it."""

    name: str
    step: Step
    feeds: tuple[str, ...]

    def fingerprint(self, recipe: Recipe) -> str:
        return fingerprint.digest([fingerprint.of_stage(self.step.stage, self.step.spec), recipe.head.rejects.model_dump()])


Node = Leg | GlobalNode


@dataclass(frozen=True)
class Plan:
    """Nodes in an order in which each comes after what feeds it."""

    recipe: Recipe
    nodes: tuple[Node, ...]

    def node(self, name: str) -> Node:
        return next(n for n in self.nodes if n.name == name)

    def waves(self) -> list[list[Node]]:
        """Nodes that can be worked on together."""
        done: set[str] = set()
        left, waves = list(self.nodes), []
        while left:
            wave = [n for n in left if all(f in done for f in n.feeds)]
            # A global stage is a program of several rounds and has the engine for itself.
            legs: list[Node] = [n for n in wave if isinstance(n, Leg)]
            wave = legs or wave[:1]
            waves.append(wave)
            done |= {n.name for n in wave}
            left = [n for n in left if n not in wave]
        return waves

    def stage_order(self) -> list[tuple[str, Any]]:
        """(name, step or source) of everything that leaves a report: readers first, then stages as documents meet them."""
        order: list[tuple[str, Any]] = [(s.name, s) for s in self.recipe.sources]
        order += [(x.called, x) for s in self.recipe.sources for x in s.steps]
        order += [(x.called, x) for x in self.recipe.steps]
        return order


def make_plan(recipe: Recipe) -> Plan:
    steps = recipe.steps
    names = [step.called for step in steps]
    joins = {source.name: names.index(source.join) if source.join else 0 for source in recipe.sources}
    cuts = sorted(
        {0, len(steps)} | set(joins.values()) | {i + k for i, s in enumerate(steps) if isinstance(s.stage, Global) for k in (0, 1)}
    )
    for source in recipe.sources:
        for step in source.steps:
            if isinstance(step.stage, Global):
                raise RecipeError(f"{recipe.path}:{step.line}: {step.called} needs the whole data set; it belongs under the shared stages")

    nodes: list[Node] = []
    stream: tuple[str, ...] = ()  # nodes whose documents flow through the shared stages at this point
    for cut, following in zip(cuts, [*cuts[1:], None], strict=True):
        run = steps[cut:following] if following is not None else ()
        is_global = len(run) == 1 and isinstance(run[0].stage, Global)
        shared: tuple[Step, ...] = () if is_global else tuple(run)
        joining = [s for s in recipe.sources if joins[s.name] == cut]
        passed = stream
        if stream and shared:
            name = shared[0].called
            nodes.append(Leg(name, shared, None, stream))
            passed = (name,)
        for source in joining:
            nodes.append(Leg(source.name, source.steps + shared, source, ()))
            passed = (*passed, source.name)
        stream = passed
        if is_global:
            nodes.append(GlobalNode(run[0].called, run[0], stream))
            stream = (run[0].called,)
    fed = {name for node in nodes for name in node.feeds}
    ended = [Leg(n.name, n.steps, n.source, n.feeds, documents=n.name in fed or not _writes(n)) if isinstance(n, Leg) else n for n in nodes]
    return Plan(recipe, tuple(ended))


def _writes(leg: Leg) -> bool:
    """Does a leg end in a stage that writes its documents for others? Then a second copy for nobody is not made."""
    return bool(leg.steps) and isinstance(leg.steps[-1].stage, Sink)
