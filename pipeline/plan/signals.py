"""Which signals a rule reads, who measures them, and on which version of the text.

A recipe names rules; the stages that measure what they need are put in before them, once for all rules that look at the
same text. A rewrite makes a new version of the text: what was measured on the old one is measured again if a later rule
asks for it, and stale token columns, which hold what was masked since, are not passed to sinks. Within a segment, both
versions are kept: `words@c4_lines` is the signal, and `text@c4_lines` the text, as they were before `c4_lines`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from gristmill.kernels.common.settings import nearest
from gristmill.pipeline.errors import Mistakes, RecipeError
from gristmill.pipeline.recipe import registry
from gristmill.pipeline.recipe.recipe import Recipe, Source, Step
from gristmill.stages.checks import OF_LICENSES
from gristmill.stages.documents import BASE, PAGE
from gristmill.stages.stage import Annotate, Global, Map, Reader, Rewrite, Rule, Sink, Stage

READ = {*BASE.names, *PAGE.names}  # columns that a reader fills
KNOWN_BEFORE_TEXT = READ - {"text", "html"}


def decides_on_the_spot(step: Step) -> bool:
    """A rule on what the reader knew, or any where nothing is kept: it spares all that comes after it the documents
    that it drops."""
    stage = step.stage
    return isinstance(stage, Rule) and (step.at_once or (bool(stage.needs) and set(stage.needs) <= KNOWN_BEFORE_TEXT))


def with_rules_at_once(recipe: Recipe) -> Recipe:
    """The recipe of a run that keeps no signals: nobody will decide on them again."""
    if recipe.head.keep != "nothing":
        return recipe

    def at_once(steps: Sequence[Step]) -> tuple[Step, ...]:
        return tuple(replace(step, at_once=True) for step in steps)

    sources = tuple(replace(source, steps=at_once(source.steps)) for source in recipe.sources)
    return replace(recipe, sources=sources, steps=at_once(recipe.steps))


def changes_text(stage: Stage) -> bool:
    return isinstance(stage, Rewrite) or (isinstance(stage, Global) and stage.rewrites)


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


# --- putting measuring stages in --------------------------------------------------------------------------------------


def with_measures(recipe: Recipe) -> Recipe:
    """The recipe with a measuring stage before each rule that needs one."""
    taken = (
        {s.name for s in recipe.sources}
        | {x.called for s in recipe.sources for x in s.steps}
        | {x.called for x in recipe.steps}
    )
    names = [step.called for step in recipe.steps]
    mistakes = Mistakes()
    walk = _Walk(recipe, taken, mistakes)
    sources: list[Source] = []
    arriving: dict[int, list[set[str]]] = {}
    for source in recipe.sources:
        own = _Walk(recipe, taken, mistakes)
        steps, there = own.along(source.steps, set())
        walk.configured = own.configured | walk.configured
        walk.of_text |= own.of_text
        walk.encoded |= own.encoded
        walk.outdated |= own.outdated
        walk.added |= own.added
        sources.append(replace(source, steps=steps))
        arriving.setdefault(names.index(source.join) if source.join else 0, []).append(there)
    shared: list[Step] = []
    valid: set[str] | None = None
    bounds = sorted({0, len(recipe.steps), *arriving})
    for start, end in zip(bounds, [*bounds[1:], len(recipe.steps)], strict=True):
        for there in arriving.get(start, []):
            valid = (
                there if valid is None else valid & there
            )  # a signal that one of two streams lacks is measured for both
        steps, valid = walk.along(recipe.steps[start:end], valid or set())
        # who joins at a stage joins before what measures for it
        sources = [
            replace(s, join=steps[0].called) if s.join and s.join in names and names.index(s.join) == start else s
            for s in sources
        ]
        shared += steps
    mistakes.say_all()
    return replace(recipe, sources=tuple(sources), steps=tuple(shared))


class _Walk:
    """Goes along stages and keeps account of which signals fit the text at that point."""

    def __init__(self, recipe: Recipe, taken: set[str], mistakes: Mistakes) -> None:
        self.recipe = recipe
        self.taken = taken
        self.mistakes = mistakes
        # The last measuring stage of each kind that the recipe names itself.
        self.configured: dict[type[Stage], Step] = {}
        self.of_text: set[str] = set()
        self.encoded: set[str] = set()  # that hold the text itself
        self.outdated: set[str] = set()  # of these, the ones of an older text
        self.added: set[str] = set()  # by any stage so far

    def along(self, steps: Sequence[Step], valid: set[str]) -> tuple[tuple[Step, ...], set[str]]:
        valid = set(valid)
        done: list[Step] = []
        rewritten = ""
        for place, step in enumerate(steps):
            stage = step.stage
            if isinstance(stage, Rule | Global):
                for gauges in self.mistakes.noted(self.missing, step, steps[place:], valid, rewritten):
                    done += gauges
                    for gauge in gauges:
                        self.of_text |= {*gauge.stage.added}
                        valid |= {*gauge.stage.added}
                        self.added |= {*gauge.stage.added}
            if isinstance(stage, Global):
                self.mistakes.noted(self.check_groups, step, stage)
            if changes_text(stage):
                valid -= self.of_text
                self.outdated |= self.encoded
                rewritten = step.called
            if isinstance(stage, Global) and stage.reads_text:
                self.of_text |= {*stage.added}
                self.encoded |= {*stage.added}
                self.outdated -= {*stage.added}
            if isinstance(stage, Sink) and self.outdated:
                step = replace(
                    step, stage=stage.model_copy(update={"without": tuple(sorted({*stage.without} | self.outdated))})
                )
            if isinstance(stage, Annotate):
                self.mistakes.noted(self.check_names, step, stage, valid)
                self.configured[type(stage)] = step
                if not stage.needs or "text" in stage.needs:
                    self.of_text |= {*step.stage.added}
            valid |= {*step.stage.added}
            self.added |= {*step.stage.added}
            done.append(step)
        return tuple(done), valid

    def missing(self, step: Step, ahead: Sequence[Step], valid: set[str], rewritten: str) -> list[Step]:
        """Measuring stages for what a rule or a global stage needs and nobody measured on this text; they serve the
        rules after it too."""
        wanted = [name for name in step.needs if name not in valid | READ]
        if not wanted:
            return []
        soon = list(wanted)
        for other in ahead[1:] if isinstance(step.stage, Rule) else ():
            if isinstance(other.stage, Rewrite | Global):
                break
            if isinstance(other.stage, Rule):
                soon += [name for name in other.needs if name not in valid | READ]
        by_kind: dict[type[Annotate], list[str]] = {}
        for name in wanted:
            kind = self.who_adds(name, step)
            by_kind.setdefault(kind, [n for n in dict.fromkeys(soon) if n in kind.adds])
        return [self.gauge(kind, names, step, rewritten) for kind, names in by_kind.items()]

    def check_names(self, step: Step, stage: Annotate, valid: set[str]) -> None:
        """What an input says must not pass for what is measured here, unless it may stand in for it."""
        fields = stage.from_input
        if not fields:
            return
        measured = {name: kind for kind in registry.built_in().values() for name in kind.adds}
        for name, field in fields.items():
            where = f"{self.recipe.path}:{step.line}: {step.called}: {name}"
            if name in measured and name not in stage.stand_in:
                kind = measured[name].recipe_name()
                raise RecipeError(
                    f"{where} is what {kind} measures; give the signal another name: {{input_{name}: {field}}}"
                )
            if name in valid:
                raise RecipeError(f"{where} is there already, from a stage before; give the signal another name")

    def check_groups(self, step: Step, stage: Global) -> None:
        """Columns to tell groups of documents apart by are there, measured on whichever text."""
        for name in getattr(stage, stage.groups_by) if stage.groups_by else ():
            if name not in READ | self.added:
                kind, near = (
                    registry.adds(name),
                    OF_LICENSES.get(name) or next(iter(nearest(name, sorted(READ | self.added))), ""),
                )
                hint = f"put {kind.recipe_name()} before it, which adds it" if kind else ""
                hint = hint or (f"did you mean {near}?" if near else "`from_meta` adds columns of the input")
                where = f"{self.recipe.path}:{step.line}: {step.called}: {stage.groups_by}"
                raise RecipeError(f"{where}: documents have no column {name!r} here; {hint}")

    def who_adds(self, signal: str, step: Step) -> type[Annotate]:
        kind = next((kind for kind in self.configured if signal in kind.adds), None)
        kind = kind or registry.adds_beside(step.stage, signal) or registry.adds(signal)
        where = f"{self.recipe.path}:{step.line}: {step.called} needs the signal {signal}"
        if kind is None:
            near = registry.likely_signal(signal, self.configured)
            hint = f"did you mean {near}? If not, " if near else ""
            raise RecipeError(
                f"{where}, which no stage measures; {hint}put a stage before it that adds it "
                "(`from_meta` does, of columns of the input)"
            )
        required = [name for name, field in kind.model_fields.items() if field.is_required()]
        if not issubclass(kind, Annotate) or (required and kind not in self.configured):
            raise RecipeError(f"{where}: put {address_beside(step, kind)} before it, which adds it")
        return kind

    def gauge(self, kind: type[Annotate], names: list[str], step: Step, rewritten: str) -> Step:
        base = self.configured.get(kind)
        called = kind.recipe_name()
        if called in self.taken:
            called = f"{called}_after_{rewritten}" if rewritten else f"{called}_for_{step.called}"
        return measuring(kind, names, step, called, self.taken, base)


def measuring(
    kind: type[Annotate], names: Sequence[str], asks: Step, called: str, taken: set[str], like: Step | None = None
) -> Step:
    """A stage that measures signals for one that asks, with the settings of one `like` it, under a name not `taken`."""
    number = 2
    while called in taken:
        called, number = f"{called.rstrip('0123456789_')}_{number}", number + 1
    taken.add(called)
    settings = like.stage.model_dump() if like else {}
    only = {"only": tuple(names)} if "only" in kind.model_fields else {}
    stage = kind(**{**settings, "name": called, **only})
    address = like.address if like else address_beside(asks, kind)
    return Step(stage, address, asks.folder, asks.line, asks.at_once, inserted_for=asks.called)


def address_beside(step: Step, kind: type[Stage]) -> str:
    """A stage as a recipe names it: one of ours, or of the file of a user's own that needs it."""
    if registry.comes_with_the_mill(kind):
        return kind.recipe_name()
    return f"{step.address.rpartition(':')[0]}:{kind.__name__}"


# --- versions of the text inside a segment ----------------------------------------------------------------------------


def measured_again(steps: Sequence[Step]) -> dict[str, list[str]]:
    """For each rewrite of a segment, the signals of which the values before it are kept beside those after it."""
    again = {}
    for place, step in enumerate(steps):
        if isinstance(step.stage, Rewrite):
            later = {
                name for other in steps[place + 1 :] if isinstance(other.stage, Annotate) for name in other.stage.added
            }
            again[step.called] = sorted(later)
    return again


def texts_kept(steps: Sequence[Step], decided: Sequence[Step]) -> list[str]:
    """Rewrites of a segment before which a rule looks at the text that they change; that text is kept, so that a reject
    shows it."""
    first = min((place for place, step in enumerate(steps) if step in decided), default=len(steps))
    return [step.called for place, step in enumerate(steps) if isinstance(step.stage, Rewrite) and place > first]


def seen_by(steps: Sequence[Step], decided: Sequence[Step], rule: Step) -> tuple[dict[str, str], list[str]]:
    """Where a rule finds the signals (name -> column, where they differ) and the text (columns, the first that is not
    null) it looks at."""
    again, kept = measured_again(steps), texts_kept(steps, decided)
    later = [step.called for step in steps[list(steps).index(rule) + 1 :] if isinstance(step.stage, Rewrite)]
    columns: dict[str, str] = {}
    for rewrite in later:
        for name in again[rewrite]:
            columns.setdefault(name, f"{name}@{rewrite}")
    return columns, [f"text@{rewrite}" for rewrite in later if rewrite in kept]


# --- where segments are cut -------------------------------------------------------------------------------------------


def pieces(steps: Sequence[Step]) -> list[tuple[Step, ...]]:
    """A run of map stages, cut where text should lie on disk: after a costly stage, so that a new measure does not
    repeat it; before a costly stage or a sink, where rules must have decided first. Where nothing is kept, only what
    wants a GPU is apart from costly stages that do not."""
    cut: list[list[Step]] = []
    for step in steps:
        last = cut[-1] if cut else []
        undecided = any(isinstance(s.stage, Rule) and not decides_on_the_spot(s) for s in last)
        costly = any(isinstance(s.stage, Map) and s.stage.costly for s in last)
        is_costly = isinstance(step.stage, Map) and step.stage.costly
        if step.at_once:
            on_gpu = any(s.stage.gpu for s in last)
            apart = step.stage.gpu != on_gpu and (step.stage.gpu or is_costly)
        else:
            waits = isinstance(step.stage, Sink) or is_costly
            apart = (undecided and waits) or (costly and isinstance(step.stage, Annotate | Rewrite))
        if not cut or apart:
            cut.append([])
        cut[-1].append(step)
    return [tuple(piece) for piece in cut]


# --- signals that are measured on pages, not on their text ------------------------------------------------------------
# Who measures them stands before the stage that makes text of pages, and readers keep headers for those that look at
# them.


def with_page_signals(recipe: Recipe) -> Recipe:
    """The recipe with stages that measure pages where any stage needs what they add: before pages become text, and of
    texts at the end of their source's own stages."""
    pages_first = sorted(recipe.sources, key=lambda source: not cast(Reader, source.reader.stage).gives_pages)
    for name in [source.name for source in pages_first]:
        recipe = _with_gauges(recipe, next(source for source in recipe.sources if source.name == name))
    return replace(recipe, sources=tuple(_with_headers(recipe, source) for source in recipe.sources))


def _with_gauges(recipe: Recipe, source: Source) -> Recipe:
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
    gauges = [
        measuring(kind, [name for name in kind.adds if name in places], way[needing], kind.recipe_name(), taken)
        for kind, places in wanted.items()
    ]
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
            kind = registry.adds_beside(step.stage, name) or registry.adds(name)
            if kind is not None and issubclass(kind, Annotate) and "html" in kind.needs:
                wanted.setdefault(kind, {}).setdefault(name, place)
    return wanted


def _with_headers(recipe: Recipe, source: Source) -> Source:
    steps = on_its_way(recipe, source)
    if not any(isinstance(step.stage, Annotate) and step.stage.reads_headers for step in steps):
        return source
    reader = cast(Reader, source.reader.stage).with_headers()
    return source if reader == source.reader.stage else replace(source, reader=replace(source.reader, stage=reader))
