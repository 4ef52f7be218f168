"""Recipe to plan: map nodes (map stages fused into one pass) and global stages, as a DAG in topological order.

One task carries a partition through all segments of its map node. A segment is what is stored and resumed by itself:
its measuring and rewriting stages see every document, its rules decide afterwards on what was measured, so that a new
threshold is a pass over numbers. Segments are cut where text should be stored (`signals.pieces`); nodes at global
stages, before an expensive stage that stands behind rules, and between CPU and GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

from gristmill.pipeline.errors import Mistakes, RecipeError
from gristmill.pipeline.plan.signals import (
    changes_text,
    decides_on_the_spot,
    makes_text,
    measured_again,
    on_its_way,
    pieces,
    seen_by,
    texts_kept,
    with_measures,
    with_page_signals,
    with_rules_at_once,
)
from gristmill.pipeline.recipe import fingerprint, registry
from gristmill.pipeline.recipe.fingerprint import Identity, MadeOf, made_of
from gristmill.pipeline.recipe.recipe import Recipe, Source, Step
from gristmill.pipeline.store.storage import digest
from gristmill.stages.stage import Annotate, Global, Map, Reader, Rule, Sink, Stage


@dataclass(frozen=True)
class Segment:
    """Map stages whose output is stored together: documents, or signals and verdicts beside those of an earlier
    segment. Fed by a source's files or by the partitions of earlier segments and global stages."""

    name: str
    steps: tuple[Step, ...]
    source: Source | None
    feeds: tuple[str, ...]
    documents: bool = True  # does anything read its documents?

    @property
    def beside(self) -> bool:
        """Does it leave the text as it is? Then it stores signals and verdicts alone."""
        return self.source is None and all(isinstance(s.stage, Annotate | Rule) for s in self.steps)

    @property
    def decides(self) -> tuple[Step, ...]:
        """Rules that decide once everything is measured."""
        return tuple(s for s in self.steps if isinstance(s.stage, Rule) and (self.beside or not decides_on_the_spot(s)))

    @property
    def gpu(self) -> bool:
        return any(step.stage.gpu for step in self.steps)

    @property
    def works(self) -> tuple[Step, ...]:
        """Stages that see the documents themselves."""
        decides = self.decides
        return tuple(s for s in self.steps if s not in decides)

    @property
    def in_order_of_work(self) -> tuple[Step, ...]:
        return self.works + self.decides

    def fingerprint(self, recipe: Recipe) -> str:
        """Fingerprint of the stages that see documents; `fingerprint_of_rules` is apart."""
        reader = [self._identity(self.source.reader, recipe).fingerprint, self.source.name] if self.source else []
        stages = [self._identity(step, recipe).fingerprint for step in self.works]
        versions = [measured_again(self.steps), texts_kept(self.steps, self.decides)]
        settings = [recipe.head.rejects.model_dump(), recipe.head.parts.batch_bytes]
        engine = [fingerprint.code_of_engine(kind) for kind in self._kinds]
        return digest([reader, stages, versions, self.documents, *settings, engine])

    def fingerprint_of_rules(self, recipe: Recipe) -> str:
        rules = [[self._identity(s, recipe).fingerprint, *seen_by(self.steps, self.decides, s)] for s in self.decides]
        return digest([rules, recipe.head.rejects.model_dump(), fingerprint.code_of_engine("map")])

    def fingerprint_with_rules(self, recipe: Recipe) -> str:
        return digest([self.fingerprint(recipe), self.fingerprint_of_rules(recipe)])

    def made_of(self, recipe: Recipe) -> MadeOf:
        """The inputs of both fingerprints, by name."""
        steps = [*([self.source.reader] if self.source else []), *self.steps]
        return made_of([self._identity(step, recipe) for step in steps], self._kinds)

    @property
    def _kinds(self) -> list[str]:
        return ["map", *(["sink"] if any(isinstance(s.stage, Sink) for s in self.works) else [])]

    def _identity(self, step: Step, recipe: Recipe) -> Identity:
        return identity_of(step, may_hold_pdf(recipe, self.source))


@dataclass(frozen=True)
class GlobalNode:
    """A stage that sees all documents of what feeds it."""

    name: str
    step: Step
    feeds: tuple[str, ...]

    def fingerprint(self, recipe: Recipe) -> str:
        stage = identity_of(self.step, may_hold_pdf(recipe, None)).fingerprint
        return digest([stage, recipe.head.rejects.model_dump(), fingerprint.code_of_engine("shuffle")])

    def made_of(self, recipe: Recipe) -> MadeOf:
        """What is in this fingerprint, by name."""
        return made_of([identity_of(self.step, may_hold_pdf(recipe, None))], ["shuffle"])


@dataclass(frozen=True)
class MapNode:
    """Segments that one task carries out on a partition, one after the other on each batch."""

    segments: tuple[Segment, ...]
    feeds: tuple[str, ...]  # segments and global stages whose partitions it reads

    @property
    def name(self) -> str:
        return self.segments[0].name

    @property
    def source(self) -> Source | None:
        return self.segments[0].source

    def fingerprint(self, recipe: Recipe) -> str:
        return digest([segment.fingerprint_with_rules(recipe) for segment in self.segments])

    def made_of(self, recipe: Recipe) -> MadeOf:
        return {name: entry for segment in self.segments for name, entry in segment.made_of(recipe).items()}

    @property
    def in_order_of_work(self) -> tuple[Step, ...]:
        return tuple(step for segment in self.segments for step in segment.in_order_of_work)


Stored = Segment | GlobalNode  # what has a folder and a manifest
Node = MapNode | GlobalNode  # what is scheduled


@dataclass(frozen=True)
class Plan:
    """Segments and global stages, each after what feeds it, and the nodes that carry them out."""

    recipe: Recipe
    stored: tuple[Stored, ...]
    nodes: tuple[Node, ...]

    @property
    def segments(self) -> list[Segment]:
        return [each for each in self.stored if isinstance(each, Segment)]

    def leading_to(self, name: str) -> set[str]:
        """Names of the sources and stages that documents pass on their way to the node of a stage, and the node's own;
        sinks only look on."""
        stored = {each.name: each for each in self.stored}
        waiting, passed, names = [name], set[str](), set[str]()
        while waiting:
            each = stored[waiting.pop()]
            if each.name in passed:
                continue
            passed.add(each.name)
            waiting += each.feeds
            steps = each.steps if isinstance(each, Segment) else (each.step,)
            names |= {step.called for step in steps if not isinstance(step.stage, Sink)}
            if isinstance(each, Segment) and each.source is not None:
                names.add(each.source.name)
        return names

    def waves(self) -> list[list[Node]]:
        """Nodes that can run together."""
        unfinished: Counter[str] = Counter(name for node in self.nodes for name in names_of(node))
        waiting, waves = list(self.nodes), []
        while waiting:
            ready = [node for node in waiting if not any(unfinished[name] for name in node.feeds)]
            # A global stage is a program of several rounds and has the workers for itself.
            maps: list[Node] = [node for node in ready if isinstance(node, MapNode)]
            wave = maps or ready[:1]
            waves.append(wave)
            unfinished -= Counter(name for node in wave for name in names_of(node))
            waiting = [node for node in waiting if node not in wave]
        return waves

    def stage_order(self) -> list[tuple[str, Step | Source]]:
        """(name, step or source) of everything that leaves a report: readers first, then stages in the order in which
        documents meet them."""
        runs = [each.in_order_of_work if isinstance(each, Segment) else (each.step,) for each in self.stored]
        steps = {step.called: step for run in runs for step in run}
        by_name: dict[str, Step | Source] = {source.name: source for source in self.recipe.sources}
        for name in in_one_order([[step.called for step in run] for run in runs]):
            by_name[name] = steps[name]
        return list(by_name.items())

    def inserted(self) -> dict[str, str]:
        """Measuring stages that the recipe does not name, and for which of its stages each was inserted."""
        steps = [thing for _, thing in self.stage_order() if isinstance(thing, Step)]
        return {step.called: step.inserted_for for step in steps if step.inserted_for}

    def moved(self) -> dict[str, str]:
        """Stages that documents meet later than the recipe has them, and the first stage of those that were moved
        before each: rules decide once everything in their segment is measured."""
        moved: dict[str, str] = {}
        for segment in self.segments:
            place = {step.called: number for number, step in enumerate(segment.in_order_of_work)}
            named = [step.called for step in segment.steps if not step.inserted_for]
            for number, name in enumerate(named):
                before = next((other for other in named[number + 1 :] if place[other] < place[name]), None)
                if before is not None:
                    moved.setdefault(name, before)
        return moved

    def to_prepare(self) -> list[Stage]:
        """Stages that have work which is worth doing once on a machine."""
        stages = [thing.stage for _, thing in self.stage_order() if isinstance(thing, Step)]
        return [stage for stage in stages if type(stage).prepare is not Stage.prepare]


def identity_of(step: Step, pdf: bool) -> Identity:
    return fingerprint.identity_of(step.stage, step.spec, step.file, pdf)


def may_hold_pdf(recipe: Recipe, source: Source | None) -> bool:
    """May documents of a source, or of all sources, be PDF files? A user's stage may make some of any pages, unless it
    only measures or decides."""
    sources = [source] if source else recipe.sources
    steps = [*recipe.steps, *(step for each in sources for step in each.steps)]
    return any(isinstance(each.reader.stage, Reader) and each.reader.stage.gives_pdf for each in sources) or any(
        not (registry.comes_with_the_mill(type(step.stage)) or isinstance(step.stage, Annotate | Rule))
        for step in steps
    )


def make_plan(recipe: Recipe) -> Plan:
    written, mistakes = recipe, Mistakes()
    in_order = mistakes.noted(check_nothing_leaks, written)
    for check in (check_something_stays, check_sources_see_documents):
        mistakes.noted(check, written)
    if in_order:  # else what lacks tokens only follows from that
        for recipe in mistakes.noted(with_measures, with_page_signals(with_rules_at_once(written))):
            mistakes.noted(check_pages_become_text, recipe, written)
    mistakes.say_all()
    steps = recipe.steps
    names = [step.called for step in steps]
    joins = {source.name: names.index(source.join) if source.join else 0 for source in recipe.sources}
    cuts = sorted(
        {0, len(steps)}
        | set(joins.values())
        | {i + k for i, s in enumerate(steps) if isinstance(s.stage, Global) for k in (0, 1)}
    )
    stored: list[Stored] = []
    stream: tuple[str, ...] = ()  # whose documents flow through the shared stages at this point
    for cut, following in zip(cuts, [*cuts[1:], None], strict=True):
        run = steps[cut:following] if following is not None else ()
        is_global = len(run) == 1 and isinstance(run[0].stage, Global)
        shared = [] if is_global else pieces(run)
        feeding, taken_along = stream, []
        joining = [s for s in recipe.sources if joins[s.name] == cut]
        for source in joining:
            own = _segments_of(source, shared[0] if shared else ())
            stored += own
            if shared and own[-1].steps[-len(shared[0]) :] == shared[0]:
                taken_along.append(own[-1].name)
            else:
                feeding = (*feeding, own[-1].name)
        for i, piece in enumerate(shared):
            if feeding:
                stored.append(Segment(piece[0].called, piece, None, feeding))
                feeding = (piece[0].called,)
            if i == 0:
                feeding = (*feeding, *taken_along)
        stream = feeding if shared else (*feeding, *taken_along)
        if is_global:
            stored.append(GlobalNode(run[0].called, run[0], stream))
            stream = (run[0].called,)
    read = {name for each in stored for name in each.feeds}
    stored = [
        replace(each, documents=each.name in read or not _writes(each)) if isinstance(each, Segment) else each
        for each in stored
    ]
    return Plan(recipe, tuple(stored), tuple(fused(stored)))


def fused(stored: Sequence[Stored]) -> Iterator[Node]:
    """The nodes that carry out segments and global stages: a segment goes on with those that feed it, as far as it
    may."""
    by_name = {each.name: each for each in stored}
    goes_on: dict[str, Segment] = {}  # by name of a segment, the one that follows in the same task
    for after in (each for each in stored if isinstance(each, Segment)):
        for name in after.feeds:
            before = by_name[name]
            if isinstance(before, Segment) and not cut_between(before, after):
                goes_on[name] = after
    for each in stored:
        if isinstance(each, GlobalNode):
            yield each
            continue
        feeds = tuple(name for name in each.feeds if name not in goes_on)
        if each.source is None and not feeds:
            continue
        chain = [each]
        while chain[-1].name in goes_on:
            chain.append(goes_on[chain[-1].name])
        yield MapNode(tuple(chain), feeds)


def cut_between(before: Segment, after: Segment) -> bool:
    """Whether two segments are worked on by tasks of their own: the second is expensive and rules stand before it, or
    one needs a GPU and the other does not."""
    costly = any(isinstance(step.stage, Map) and step.stage.costly for step in after.steps)
    return before.gpu != after.gpu or (costly and bool(before.decides))


def names_of(node: Node) -> list[str]:
    """What a node carries out."""
    return [segment.name for segment in node.segments] if isinstance(node, MapNode) else [node.name]


def names_in_recipe(stored: Stored) -> list[str]:
    """The source and stages that it runs and the recipe names."""
    if isinstance(stored, GlobalNode):
        return [stored.name]
    source = [stored.source.name] if stored.source else []
    return [*source, *(step.called for step in stored.in_order_of_work if not step.inserted_for)]


def _segments_of(source: Source, shared: tuple[Step, ...]) -> list[Segment]:
    """The segments of a source up to where it has met the others; the shared stages belong to its last one, if no cut
    lies between."""
    own = pieces(source.steps) or [()]
    if shared and len(pieces(own[-1] + shared)) == 1:
        own[-1] = own[-1] + shared
    segments = [Segment(source.name, own[0], source, ())]
    for piece in own[1:]:
        segments.append(Segment(piece[0].called, piece, None, (segments[-1].name,)))
    return segments


def _writes(segment: Segment) -> bool:
    """Whether a segment ends in a stage that writes its documents for others. A second copy for nobody is not made."""
    return bool(segment.steps) and isinstance(segment.steps[-1].stage, Sink)


def in_one_order(segments: Sequence[Sequence[str]]) -> list[str]:
    """Names of stages, each once; of those that nothing orders, the one that was named first. Segments come in an order
    of work."""
    before: dict[str, set[str]] = {}
    for names in segments:
        for place, name in enumerate(names):
            before.setdefault(name, set()).update(names[:place])
    order: dict[str, None] = {}
    while len(order) < len(before):
        waiting = [name for name in before if name not in order]
        order[next((name for name in waiting if before[name] <= order.keys()), waiting[0])] = None
    return list(order)


# --- checks -----------------------------------------------------------------------------------------------------------


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


# --- order around a stage that writes the end product (`pack`) --------------------------------------------------------


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


# --- pages have no text until a stage makes it ------------------------------------------------------------------------


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
