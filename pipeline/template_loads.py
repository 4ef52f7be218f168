"""What the template of workers loads before the first is forked from it: Dask, the engine's side of a worker, and the stages of a recipe.

Importing this module does the work, for importing is all that the standard library's fork server can be asked to do.
"""

from __future__ import annotations

import contextlib
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.lifetime import end_with_parent, ending_with_parent
from pipeline.template import RECIPE

if TYPE_CHECKING:
    from stages.stage import Stage

MODULES = ("pipeline.work", "distributed.nanny", "distributed.worker", "typer", "rich.console", "rich.markup")
UNSAFE_TO_FORK = ("torch",)  # its threads do not survive, and a GPU that was touched is lost to the workers


def load(recipe: str | None) -> None:
    """All that a worker needs, as far as it is known here."""
    with ending_with_parent():
        for name in MODULES:
            import_module(name)
        if recipe is not None:
            load_stages(Path(recipe))


def load_stages(recipe: Path) -> None:
    """The stages of a recipe, made ready. What is wrong with a recipe or a stage the driver and the workers say."""
    from pipeline import recipe as recipes
    from pipeline.plan import make_plan

    with contextlib.suppress(Exception):
        for stage in make_plan(recipes.load(recipe)).to_prepare():
            if type(stage).__module__.startswith("stages.") and not any(name in sys.modules for name in UNSAFE_TO_FORK):
                stage.prepare()
            else:
                prepare_aside(stage)


def prepare_aside(stage: Stage) -> None:
    """For what it leaves on disk alone, in a process of its own: nobody knows what the code of others leaves behind in memory."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    code = 1
    try:
        end_with_parent()
        stage.prepare()
        code = 0
    finally:
        os._exit(code)


load(os.environ.pop(RECIPE, None))
