"""Checks of a recipe's stages before a plan is made of it.

Decided from what stages declare (`Global.final`, `drops`, `rewrites`, `reads_text`), so that a stage of the user's own
counts too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.plan.signals import changes_text, makes_text, on_its_way
from gristmill.pipeline.recipe import registry
from gristmill.pipeline.recipe.recipe import Recipe, Step
from gristmill.stages.stage import Annotate, Global, Map, Reader, Rule, Sink, Stage


def check_sources_see_documents(recipe: Recipe) -> None:
    """Stages of one source work document by document."""
    steps = [step for source in recipe.sources for step in source.steps if isinstance(step.stage, Global)]
    if steps:
        what = "needs the whole data set; it belongs under the shared stages"
        raise RecipeError("\n".join(f"{recipe.path}:{step.line}: {step.called} {what}" for step in steps))


def check_something_stays(recipe: Recipe) -> None:
    """A run that keeps no intermediates has to write something."""
    stages = [step.stage for step in (*(step for source in recipe.sources for step in source.steps), *recipe.steps)]
    leaves = [s for s in stages if isinstance(s, Sink) or (isinstance(s, Global) and (s.final or s.saves))]
    if recipe.head.keep == "nothing" and not leaves:
        raise RecipeError(f"{recipe.path}: keep: nothing, and no stage writes anything; add `write` or `pack`")


# --- order around a stage that writes the end product (`pack`) ------------------------------------------------------


def check_nothing_leaks(recipe: Recipe) -> None:
    """RecipeError where a stage changes or drops documents that a final stage has written, or would write as they were
    before."""
    faults = [f"{recipe.path}:{step.line}: {step.called} {what}" for step, what in order_faults(recipe.steps)]
    if faults:
        raise RecipeError("\n".join(faults))


def order_faults(steps: Sequence[Step]) -> Iterator[tuple[Step, str]]:
    """Shared stages that stand in a wrong place, and for each what is wrong and where it belongs."""
    finals = [place for place, step in enumerate(steps) if is_final(step.stage)]
    for place, step in enumerate(steps):
        before = [final for final in finals if final < place]
        after = [final for final in finals if final > place]
        rewritten = changes_text(step.stage) or is_bare(step.stage)
        if before and (
            rewritten or (drops(step.stage) and not after)
        ):  # dropping between two packs makes a second, smaller set
            final = steps[before[-1]]
            source = encoder_of(steps, before[-1])
            target = final if source is None else steps[source]
            what = "changes texts" if rewritten else "drops documents"
            yield (
                step,
                f"{what} after {at(final)}, which has written its files without that: put it before {at(target)}",
            )
        elif rewritten and after:
            source = encoder_of(steps, after[0])
            if source is not None and source < place:
                yield (
                    step,
                    f"changes texts between {at(steps[source])} and {at(steps[after[0]])}, "
                    "which would write the tokens of the old texts: "
                    f"put it before {steps[source].called}",
                )


def is_final(stage: Stage) -> bool:
    return isinstance(stage, Global) and stage.final


def is_bare(stage: Stage) -> bool:
    """A map stage of no kind that says what it does may do anything."""
    return isinstance(stage, Map) and not isinstance(stage, Annotate | Rule | Sink)


def drops(stage: Stage) -> bool:
    return isinstance(stage, Rule) or (isinstance(stage, Global) and stage.drops)


def encoder_of(steps: Sequence[Step], final: int) -> int | None:
    """The last stage before a final stage that makes, from texts, columns which the final stage reads."""
    reads = set(cast(Global, steps[final].stage).columns)
    makers = [
        place
        for place, step in enumerate(steps[:final])
        if isinstance(step.stage, Global) and step.stage.reads_text and reads & set(step.stage.added)
    ]
    return makers[-1] if makers else None


def at(step: Step) -> str:
    return f"{step.called} (line {step.line})"


# --- pages have no text until a stage makes it -----------------------------------------------------------------------


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


def reads_text(step: Step) -> bool:
    """Is a stage of no use before there is text? A user's own that says nothing of what it reads may look at html."""
    stage = step.stage
    if isinstance(stage, Global):
        return stage.needs_text
    if not isinstance(stage, Map):
        return False
    return "text" in stage.needs or (not stage.needs and step.address in registry.names())
