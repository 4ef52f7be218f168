"""What happens in a run, as plain numbers: all that the time left is computed from (`time_left`), and what a log of a
run has to hold to be looked at again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, cast

from gristmill.pipeline.plan.plan import MapNode, Node
from gristmill.pipeline.store.records import Result, Task
from gristmill.stages.stage import Stage

What = Literal["connected", "expected", "began", "finished", "ended"]
ASIDE = ("pages", "numbers", "look", "conform")  # kinds of tasks that belong to no node's work


@dataclass(frozen=True)
class StageShape:
    """A stage of a node: its name in the recipe, and what it is."""

    name: str
    stage: str


@dataclass(frozen=True)
class NodeShape:
    """A leg or a global stage of a plan."""

    name: str
    feeds: tuple[str, ...]
    reads: bool  # files of a source
    works: tuple[StageShape, ...]  # stages that see the documents; of a global stage, itself
    decides: tuple[StageShape, ...] = ()  # rules, afterwards
    is_global: bool = False

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_plain(cls, row: dict[str, Any]) -> NodeShape:
        works, decides = (tuple(StageShape(**stage) for stage in row[name]) for name in ("works", "decides"))
        return cls(**{**row, "feeds": tuple(row["feeds"]), "works": works, "decides": decides})


@dataclass(frozen=True)
class Event:
    """One thing that happened, `at` seconds after the run began. What it has depends on `what`."""

    at: float
    what: What
    node: str = ""
    kind: str = ""  # of tasks: leg, decide, map, join, ...
    round: int = 0
    tasks: int = 0
    size: int = 0  # bytes that they read
    seconds: float = 0.0  # of a worker
    documents: int = 0  # that stay
    text_bytes: int = 0  # of these
    workers: int = 0
    anew: bool = True  # done now, not by an earlier run

    def plain(self) -> dict[str, Any]:
        """Without what is as it is by default, for a log."""
        values = asdict(self)
        return {f.name: values[f.name] for f in fields(self) if f.name in ("at", "what") or values[f.name] != f.default}


VARIANTS = ("engine", "tokenizer")  # settings that make another stage of it, as to its time


def variant_of(stage: Stage) -> str:
    """`extract/trafilatura`: a stage, and the setting by which its time differs most."""
    chosen = next((value for name in VARIANTS if isinstance(value := getattr(stage, name, None), str)), None)
    return stage.recipe_name() if chosen is None else f"{stage.recipe_name()}/{chosen}"


def shape_of(node: Node) -> NodeShape:
    if isinstance(node, MapNode):
        reader = () if node.source is None else (StageShape(node.source.name, variant_of(node.source.reader.stage)),)
        works, decides = (
            tuple(StageShape(step.called, variant_of(step.stage)) for step in steps)
            for steps in (
                tuple(step for segment in node.segments for step in segment.works),
                tuple(step for segment in node.segments for step in segment.decides),
            )
        )
        return NodeShape(node.name, node.feeds, node.source is not None, reader + works, decides)
    stage = StageShape(node.name, variant_of(node.step.stage))
    return NodeShape(node.name, node.feeds, False, (stage,), (), True)


def round_of(task: Task) -> int:
    number = cast(Mapping[str, object], task).get("round", 0)  # tasks of global stages have one
    return number if isinstance(number, int) else 0


def expected(at: float, tasks: Iterable[Task]) -> list[Event]:
    """Tasks that are about to be worked on, those among them that are done already too."""
    sums: dict[tuple[str, str, int], list[int]] = {}
    for task in tasks:
        if task["kind"] not in ASIDE:
            entry = sums.setdefault((task["node"], task["kind"], round_of(task)), [0, 0])
            entry[0] += 1
            entry[1] += task["cost"]
    return [
        Event(at, "expected", node, kind, round_, tasks=number, size=size)
        for (node, kind, round_), (number, size) in sums.items()
    ]


def finished(at: float, task: Task, result: Result, anew: bool) -> Event | None:
    if task["kind"] in ASIDE:
        return None
    phases = [phase for phase in result.get("phases", []) if phase]
    parts = [phases[-1]["part"]] if phases else result.get("parts", ())
    documents, text_bytes = sum(part["kept"] for part in parts), sum(part["text_bytes"] for part in parts)
    return Event(
        at, "finished", task["node"], task["kind"], round_of(task), tasks=1, size=task["cost"],
        seconds=result.get("seconds", 0.0), documents=documents, text_bytes=text_bytes, anew=anew,
    )  # fmt: skip


def replayed(rows: Sequence[dict[str, Any]]) -> list[Event]:
    return [Event(**row) for row in rows]
