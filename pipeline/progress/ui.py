"""What a run tells the person who started it: the one protocol that terminals, logs and files of progress follow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from gristmill.pipeline.plan.plan import Node
from gristmill.pipeline.progress.facts import ProgressFacts
from gristmill.pipeline.store.records import Result, Task


class UI(Protocol):
    """Whom a run and its engine tell what happens."""

    def follows(self, facts: Callable[[], ProgressFacts]) -> None:
        """Before anything else: where the state of the run can be asked for at any moment, from any thread."""
        ...

    def begins(self, node: Node, parts: int) -> None: ...

    def expects(self, tasks: Sequence[Task]) -> None:
        """Tasks that are worked on next, or looked up in the journal."""
        ...

    def ends(self, node: Node) -> None: ...

    def finished(self, task: Task, result: Result, anew: bool) -> None:
        """A task has its result; `anew` is False where the journal had it."""
        ...

    def connected(self, dashboard: str | None, workers: int) -> None: ...

    def stopping(self) -> None: ...

    def note(self, message: str) -> None: ...
