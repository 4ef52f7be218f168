"""`--budget`: the most that a run may cost, at the prices of its recipe.

Counted like the cost in run.json: seconds of workers at work, whenever that was, so that a run that is resumed goes on
counting. A task is sent only if it fits beside all that is spent and in flight, at the mean price of its kind so far.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from gristmill.pipeline.errors import OverBudget, RecipeError
from gristmill.pipeline.formatting import as_money
from gristmill.pipeline.recipe.recipe import Prices
from gristmill.pipeline.store.records import Result, RoundTask, Task

Kind = tuple[str, str]


class Budget:
    """Money of one run: spent, in flight, and what is left."""

    def __init__(self, amount: float, prices: Prices | None) -> None:
        if prices is None:
            raise RecipeError("--budget is in the currency of the recipe's `prices`, and it has none")
        if not amount:
            raise RecipeError("--budget 0 pays for no task; give more than 0, or leave it out")
        if not (prices.core_hour or prices.gpu_hour):
            raise RecipeError(
                "--budget counts hours of workers, and the recipe's `prices` have neither core_hour nor gpu_hour, so it "
                "would never stop a run"
            )
        self.amount = amount
        self.prices = prices
        self.spent = 0.0
        self._in_flight: dict[str, float] = {}
        self._known: dict[Kind, tuple[int, float]] = {}  # how many tasks of a kind cost how much together

    def counts(self, task: Task, result: Result) -> None:
        """A task is done, by this run or by one that it resumes."""
        cost = self.prices.of_seconds(result.seconds, task.gpu)
        number, before = self._known.get(kind_of(task), (0, 0.0))
        self._known[kind_of(task)] = number + 1, before + cost
        self._in_flight.pop(task.task, None)
        self.spent += cost

    def room_for(self, groups: Iterable[Iterable[Task]]) -> int:
        """How many of some groups of tasks, one after another, may be sent."""
        return sum(1 for _ in takewhile(self.allows, groups))

    def allows(self, tasks: Iterable[Task]) -> bool:
        """Whether some tasks may be sent; they are in flight then."""
        expected = {task.task: self.mean(task) for task in tasks}
        others = sum(cost for name, cost in self._in_flight.items() if name not in expected)
        if not self._known and self._in_flight.keys() - expected.keys():
            return False  # the first group tells what tasks cost
        if self.spent + others + sum(expected.values()) > self.amount:
            return False
        self._in_flight |= expected
        return True

    def mean(self, task: Task) -> float:
        """Of the task's kind so far; of one of which nothing is known, that of all."""
        number, cost = self._known.get(kind_of(task), (0, 0.0))
        if not number:
            number, cost = (sum(each) for each in zip((0, 0.0), *self._known.values(), strict=True))
        return cost / number if number else 0.0

    def exceeded(self, left: int) -> OverBudget:
        spent, amount = (as_money(money, self.prices.currency) for money in (self.spent, self.amount))
        return OverBudget(
            f"stopped: {spent} of the budget of {amount} are spent, and the next of {left:,} groups of tasks would "
            "exceed it; finished work is kept, the same command with a higher --budget resumes"
        )


def kind_of(task: Task) -> Kind:
    return task.node, f"{task.kind} {task.round if isinstance(task, RoundTask) else ''}"
