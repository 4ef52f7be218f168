"""What the journal has of a map task: resume behind the longest run of phases whose results are stored."""

from __future__ import annotations

from collections.abc import Mapping

from gristmill.pipeline.store.forgotten import FORGOTTEN
from gristmill.pipeline.store.partitions import identity, resting_on
from gristmill.pipeline.store.records import MapTask, Part, Result, Task, counts_by_stage


def resume(task: MapTask, done: Mapping[str, Result]) -> tuple[dict[str, Result], MapTask | None]:
    """The results of the phases that are stored, and a task for the rest; None if nothing is left."""
    part, found = task["part"], dict[str, Result]()
    for number, phase in enumerate(task["phases"]):
        if phase["rules"] and (part is None or not part["kept"]):
            continue  # no document came to them
        result = done.get(phase["task"])
        if result is None or (part is not None and result.get("rests_on") != identity(part)):
            return found, task if part is None or number == 0 else resumed_behind(task, number, part)
        if part is None and lacks_documents(task, result):
            return found, task
        found[phase["task"]] = result if part is None else resting_on(result, [part])
        part = found[phase["task"]]["part"]
    return found, None


def lacks_documents(task: MapTask, result: Result) -> bool:
    """Did the reader leave documents out for a list of forgotten documents that was deleted since? They return."""
    return "forgotten" not in task and FORGOTTEN in counts_by_stage(result)[task["source"]]["dropped"]


def resumed_behind(task: MapTask, number: int, part: Part) -> MapTask:
    """The phases of a task from a number on, on the partition that the phases before have left."""
    rest: MapTask = {
        **task,
        "phases": task["phases"][number:],
        "reader": None,
        "part": part,
        "files": [],
        "inputs": [],
        "limit": None,
        "cost": part["text_bytes"],
    }
    rest.pop("forgotten", None)
    return rest


def as_one(task: MapTask, found: Mapping[str, Result]) -> Result:
    """The result of a task from those of its phases."""
    phases = [found.get(phase["task"], Result()) for phase in task["phases"]]
    return {"phases": phases, "seconds": sum(phase.get("seconds", 0.0) for phase in phases)}


def by_name(task: Task, result: Result) -> dict[str, Result]:
    """The results that the journal keeps of a task, by name."""
    if task["kind"] != "partition" or "phases" not in result:
        return {task["task"]: result}
    named = zip((phase["task"] for phase in task["phases"]), result["phases"], strict=True)
    results = {name: phase for name, phase in named if phase}
    first = task["phases"][0]["task"]
    if "requests" in result:
        results[first] = {**results[first], "requests": result["requests"]}
    return results


def names_in(task: Task) -> list[str]:
    """The names under which results of a task are known."""
    return [phase["task"] for phase in task["phases"]] if task["kind"] == "partition" else [task["task"]]
