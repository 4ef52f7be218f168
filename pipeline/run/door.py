"""`gristmill.run`: a recipe run from Python."""

from __future__ import annotations

from pathlib import Path

from gristmill.pipeline.engine.cluster import Where
from gristmill.pipeline.progress.progress import Quiet
from gristmill.pipeline.recipe import recipe as recipes
from gristmill.pipeline.recipe.recipe import Recipe
from gristmill.pipeline.run import run as runs
from gristmill.pipeline.run.execution import Summary


def run(
    recipe: Recipe | str | Path,
    out: str | Path,
    *,
    workers: int | None = None,
    memory: str = "auto",
    scheduler: str | None = None,
    cluster: str | None = None,
) -> Summary:
    """Run a recipe into the folder `out`. Run it again to resume: finished work is not repeated.

    `workers` are processes of this machine, one a core by default, and `memory` is the limit of each; `scheduler` is
    the address of a Dask scheduler, `cluster` a YAML file for dask-jobqueue. Raises `GristmillError` with a message for
    people.
    """
    loaded = recipe if isinstance(recipe, Recipe) else recipes.load(Path(recipe))
    return runs.run(loaded, str(out), Where(workers, memory, scheduler, cluster), Quiet())
