"""What the journal has of a map task: resume behind the longest run of phases whose results are stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from gristmill.pipeline.store.forgotten import FORGOTTEN
from gristmill.pipeline.store.partitions import identity, resting_on
from gristmill.pipeline.store.records import MapResult, MapTask, Partition, PhaseResult, Result, Task


def resume(task: MapTask, done: Mapping[str, Result]) -> tuple[dict[str, PhaseResult], MapTask | None]:
    """The results of the phases that are stored, and a task for the rest; None if nothing is left."""
    part, found = task.part, dict[str, PhaseResult]()
    for number, phase in enumerate(task.phases):
        if phase.rules and (part is None or not part.kept):
            continue  # no document came to them
        result = cast(PhaseResult | None, done.get(phase.task))
        if result is None or lacks_compression(task, result) or (part and result.rests_on != identity(part)):
            return found, task if part is None or number == 0 else resumed_behind(task, number, part)
        if part is None and lacks_documents(task, result):
            return found, task
        found[phase.task] = result if part is None else resting_on(result, [part])
        part = found[phase.task].part
    return found, None


def lacks_documents(task: MapTask, result: PhaseResult) -> bool:
    """Did the reader leave documents out for a list of forgotten documents that was deleted since? They return."""
    return not task.forgotten and FORGOTTEN in result.counts[task.source].dropped


def lacks_compression(task: MapTask, result: PhaseResult) -> bool:
    """Did a run that was broken off store documents to be removed at its end, and now they stay?"""
    documents = result.part.documents
    return task.compress and documents is not None and documents.content == documents.checksum


def resumed_behind(task: MapTask, number: int, part: Partition) -> MapTask:
    """The phases of a task from a number on, on the partition that the phases before have left."""
    return replace(
        task,
        phases=task.phases[number:],
        reader=None,
        part=part,
        files=(),
        inputs=(),
        limit=None,
        forgotten="",
        cost=part.text_bytes,
    )


def as_one(task: MapTask, found: Mapping[str, PhaseResult]) -> MapResult:
    """The result of a task from those of its phases."""
    phases = tuple(found.get(phase.task) for phase in task.phases)
    return MapResult(phases=phases, seconds=sum(phase.seconds for phase in phases if phase is not None))


def by_name(task: Task, result: Result) -> dict[str, Result]:
    """The results that the journal keeps of a task, by name."""
    if not isinstance(task, MapTask) or not isinstance(result, MapResult):
        return {task.task: result}
    named = zip((phase.task for phase in task.phases), result.phases, strict=True)
    results: dict[str, Result] = {name: phase for name, phase in named if phase is not None}
    if result.requests:
        first = task.phases[0].task
        results[first] = replace(results[first], requests=result.requests)
    return results


def names_in(task: Task) -> list[str]:
    """The names under which results of a task are known."""
    return [phase.task for phase in task.phases] if isinstance(task, MapTask) else [task.task]
