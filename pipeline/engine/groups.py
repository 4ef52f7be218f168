"""Tasks that travel together: a round trip through the scheduler costs about a millisecond."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.leg.care import Place
from gristmill.pipeline.store.records import Result, Task

TOGETHER_BYTES = 32 << 20
TOGETHER_TASKS = 256
TRIES = 5  # of a group that is lost for no reason that is known
# Of a group that stood in the queue of a worker that others killed: where many documents kill, that is often.
QUEUED_TRIES = 100


def answered(group: list[Task], results: list[Result]) -> list[tuple[Task, Result]]:
    """Tasks with their results; after one that failed a worker leaves the rest undone, and nowhere else."""
    if len(results) != len(group) and not (results and len(results) < len(group) and "failed" in results[-1]):
        raise RunFailed(
            f"{group[0]['node']}: a worker was given {len(group)} tasks and answered with {len(results)} results"
        )
    return list(zip(group, results, strict=False))


@dataclass(frozen=True)
class Group:
    """Tasks that travel together, and how often that went wrong."""

    tasks: list[Task]
    careful: bool = False
    place: Place | None = None  # where a worker died over the only one
    tries: int = 1
    queued: int = 1

    def __str__(self) -> str:
        more = f" and {len(self.tasks) - 1} more" if len(self.tasks) > 1 else ""
        return f"{self.tasks[0]['node']}, {self.tasks[0]['key']}{more}"

    def again(self, failure: str, most: int = TRIES) -> Group:
        if self.tries >= most:
            raise RunFailed(f"{self} {failure}")
        return replace(self, tries=self.tries + 1)

    def queued_again(self, failure: str) -> Group:
        if self.queued == QUEUED_TRIES:
            raise RunFailed(f"{self} {failure}")
        return replace(self, queued=self.queued + 1)


def together(tasks: list[Task], slots: int) -> list[list[Task]]:
    """Small tasks in groups, so that the scheduler sees few and yet every worker gets its share."""
    total = sum(task["cost"] for task in tasks)
    bytes_each = min(TOGETHER_BYTES, max(1, total // (slots * 8)))
    tasks_each = max(1, min(TOGETHER_TASKS, -(-len(tasks) // (slots * 8))))
    groups: list[list[Task]] = [[]]
    size = 0
    for task in tasks:
        if groups[-1] and (
            size + task["cost"] > bytes_each
            or len(groups[-1]) >= tasks_each
            or groups[-1][-1].get("gpu") != task.get("gpu")
        ):
            groups.append([])
            size = 0
        groups[-1].append(task)
        size += task["cost"]
    return [g for g in groups if g]
