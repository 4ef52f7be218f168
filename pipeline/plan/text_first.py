"""Pages have no text until a stage makes it: a recipe that reads their text before is wrong, and its run would be full
of empty documents."""

from __future__ import annotations

from typing import cast

from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.recipe import registry
from gristmill.pipeline.recipe.recipe import Recipe, Source, Step
from gristmill.stages.stage import Global, Map, Reader, Rewrite, Stage


def check_pages_become_text(recipe: Recipe, written: Recipe) -> None:
    """RecipeError where a stage reads text that the pages of a source do not have yet. `recipe` is `written` with its
    measuring stages put in."""
    names = {step.called for step in written.all_steps}
    for source in recipe.sources:
        reader = cast(Reader, source.reader.stage)
        if not reader.gives_pages:
            continue
        steps = on_its_way(recipe, source)
        makes = next((i for i, step in enumerate(steps) if makes_text(step.stage)), len(steps))
        reads = next((i for i, step in enumerate(steps[:makes]) if reads_text(step)), None)
        if reads is not None:
            step = next(
                step for step in steps[reads:] if step.called in names
            )  # who asked, where the mill measures for it
            raise RecipeError(
                f"{recipe.path}:{step.line}: {step.called} reads text, but {source.name} gives pages (HTML): "
                f"put `extract` before it; {reader.instead_for_text}"
            )


def on_its_way(recipe: Recipe, source: Source) -> tuple[Step, ...]:
    """The stages that a source's documents meet, in order."""
    names = [step.called for step in recipe.steps]
    return (*source.steps, *recipe.steps[names.index(source.join) if source.join else 0 :])


def makes_text(stage: Stage) -> bool:
    """A stage that writes text and reads html, or says nothing of what it reads, as stages from outside may."""
    read = (
        stage.needs
        if isinstance(stage, Rewrite)
        else stage.columns
        if isinstance(stage, Global) and stage.rewrites
        else None
    )
    return read is not None and (not read or "html" in read)


def reads_text(step: Step) -> bool:
    """Is a stage of no use before there is text? A user's own that says nothing of what it reads may look at html."""
    stage = step.stage
    if isinstance(stage, Global):
        return stage.needs_text
    if not isinstance(stage, Map):
        return False
    return "text" in stage.needs or (not stage.needs and step.address in registry.names())
