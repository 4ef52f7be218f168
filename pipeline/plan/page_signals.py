"""Signals that are measured on pages, and not on their text: who measures them stands before the stage that makes text
of pages, and readers keep headers for those that look at them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from gristmill.pipeline.plan.text_first import makes_text, on_its_way
from gristmill.pipeline.recipe import registry
from gristmill.pipeline.recipe.recipe import Recipe, Source, Step
from gristmill.stages.documents import BASE, PAGE
from gristmill.stages.stage import Annotate, Reader, Stage


def with_page_signals(recipe: Recipe) -> Recipe:
    """The recipe with stages that measure pages where any stage needs what they add: before pages become text, and of
    texts at the end of their source's own stages."""
    pages_first = sorted(recipe.sources, key=lambda source: not cast(Reader, source.reader.stage).gives_pages)
    for name in [source.name for source in pages_first]:
        recipe = _along(recipe, next(source for source in recipe.sources if source.name == name))
    return replace(recipe, sources=tuple(_with_headers(recipe, source) for source in recipe.sources))


def _along(recipe: Recipe, source: Source) -> Recipe:
    way = on_its_way(recipe, source)
    wanted = _wanted(recipe, way)
    if not wanted:
        return recipe
    needing = min(place for step_places in wanted.values() for place in step_places.values())
    own = len(source.steps)
    pages = cast(Reader, source.reader.stage).gives_pages
    text = next((place for place, step in enumerate(way) if makes_text(step.stage)), len(way))
    place = min(needing, text) if pages else min(needing, own)
    taken = {step.called for step in recipe.all_steps} | {each.name for each in recipe.sources}
    gauges = [_gauge(kind, tuple(places), way[needing], taken) for kind, places in wanted.items()]
    if place < own or (place == own and (source.join is not None or not pages)):
        steps = (*source.steps[:place], *gauges, *source.steps[place:])
        sources = [replace(each, steps=steps) if each is source else each for each in recipe.sources]
        return replace(recipe, sources=tuple(sources))
    place += len(recipe.steps) - (len(way) - own) - own
    return replace(recipe, steps=(*recipe.steps[:place], *gauges, *recipe.steps[place:]))


def _wanted(recipe: Recipe, way: Sequence[Step]) -> dict[type[Annotate], dict[str, int]]:
    """Stages that look at pages, with the signals that nobody adds before the place where they are needed first."""
    added = {name for step in way for name in step.stage.added}
    wanted: dict[type[Annotate], dict[str, int]] = {}
    for place, step in enumerate(way):
        for name in step.needs:
            if name in added or name in BASE.names or name in PAGE.names:
                continue
            kind = registry.adds(name)
            if kind is not None and issubclass(kind, Annotate) and "html" in kind.needs:
                wanted.setdefault(kind, {}).setdefault(name, place)
    return wanted


def _gauge(kind: type[Annotate], names: tuple[str, ...], asks: Step, taken: set[str]) -> Step:
    called, number = kind.recipe_name(), 2
    while called in taken:
        called, number = f"{kind.recipe_name()}_{number}", number + 1
    taken.add(called)
    stage: Stage = kind(**{"name": called, "only": tuple(name for name in kind.adds if name in names)})
    return Step(stage, kind.recipe_name(), asks.folder, asks.line, asks.at_once)


def _with_headers(recipe: Recipe, source: Source) -> Source:
    steps = on_its_way(recipe, source)
    if not any(isinstance(step.stage, Annotate) and step.stage.reads_headers for step in steps):
        return source
    reader = cast(Reader, source.reader.stage).with_headers()
    return source if reader == source.reader.stage else replace(source, reader=replace(source.reader, stage=reader))
