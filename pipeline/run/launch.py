"""A run as it is asked for, by `gristmill run` and `gristmill.run`: what does not go together is refused, and what is
not given is as the recipe has it."""

from __future__ import annotations

from dataclasses import dataclass

from gristmill.pipeline.engine.budget import Budget
from gristmill.pipeline.engine.cluster import Where
from gristmill.pipeline.errors import RecipeError, RunFailed, in_words
from gristmill.pipeline.inputs.portion import Portion
from gristmill.pipeline.progress.progress import UI, Watcher
from gristmill.pipeline.recipe.recipe import Recipe
from gristmill.pipeline.run.estimate import Estimate, estimate, share_of
from gristmill.pipeline.run.run import Summary, run
from gristmill.pipeline.store.run_records import RunRecord


@dataclass(frozen=True)
class Launch:
    """Where a run goes, where it works, and on how much of the input."""

    recipe: Recipe
    out: str
    where: Where
    portion: Portion
    check_inputs: bool
    budget: float | None

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        out: str | None = None,
        *,
        workers: int | None = None,
        memory: str | None = None,
        scheduler: str | None = None,
        cluster: str | None = None,
        limit: int | None = None,
        sample: str | float | None = None,
        check_inputs: bool = False,
        budget: float | None = None,
    ) -> Launch:
        if scheduler and cluster:
            raise RecipeError("--scheduler and --cluster exclude each other")
        if (scheduler or cluster) and (workers or memory):
            reason = (
                "a cluster file says how many `jobs` and with what memory"
                if cluster
                else "a scheduler has its own workers"
            )
            raise RecipeError(f"--workers and --memory are for workers on this machine; {reason}")
        if limit is not None and sample is not None:
            raise RecipeError("--limit and --sample exclude each other")
        if limit is not None and limit < 1:
            raise RecipeError(f"--limit {limit}: at least 1 document was expected")
        if budget is not None:
            Budget(budget, recipe.head.prices)  # refuses one that would never stop a run
        portion = Portion(limit, None if sample is None else share_of(str(sample)))
        if workers is None and isinstance(recipe.head.workers, int):
            workers = recipe.head.workers
        where = Where(workers, memory or recipe.head.memory, scheduler, cluster)
        return cls(recipe, recipe.out(out) + ("" if portion.whole else "-sample"), where, portion, check_inputs, budget)

    def carry_out(self, ui: UI, metrics: Watcher | None = None) -> Summary:
        try:
            return run(self.recipe, self.out, self.where, ui, self.portion, self.check_inputs, self.budget, metrics)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise RunFailed(in_words(error, self.out)) from error

    def guess(self, record: RunRecord) -> Estimate | None:
        """What the whole comes to, of a run on a part of the input."""
        return None if self.portion.whole else estimate(record, self.where.count)
