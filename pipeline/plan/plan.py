"""Recipe to plan: legs (runs of map stages, fused) and global stages, as a DAG in the order of work.

The shared stages are cut where a global stage stands, where a source joins, and where text should lie on disk
(`signals.pieces`); the first leg of a source takes its own stages and the shared ones up to the next cut. A leg works
first and decides then: its measuring and rewriting stages see every document, and its rules decide afterwards on what
was measured, so that a new threshold is a pass over numbers. A leg that only measures lays its signals beside the
documents that it read.
"""

from __future__ import annotations

from dataclasses import dataclass

from gristmill.pipeline import fingerprint
from gristmill.pipeline.errors import Mistakes, RecipeError
from gristmill.pipeline.fingerprint import Identity
from gristmill.pipeline.plan.changes import MadeOf, made_of
from gristmill.pipeline.plan.final_stages import check_nothing_leaks
from gristmill.pipeline.plan.page_signals import with_page_signals
from gristmill.pipeline.plan.signals import (
    decides_on_the_spot,
    measured_again,
    pieces,
    seen_by,
    texts_kept,
    with_measures,
    with_rules_at_once,
)
from gristmill.pipeline.plan.sink_columns import shows_signals
from gristmill.pipeline.plan.stage_order import in_one_order
from gristmill.pipeline.plan.text_first import check_pages_become_text
from gristmill.pipeline.recipe import registry
from gristmill.pipeline.recipe.recipe import Recipe, Source, Step
from gristmill.stages.stage import Annotate, Global, Reader, Rule, Sink, Stage


@dataclass(frozen=True)
class Leg:
    """Map stages that run one after the other on each batch; fed by a source's files or by the parts of what went
    before."""

    name: str
    steps: tuple[Step, ...]
    source: Source | None
    feeds: tuple[str, ...]
    documents: bool = True  # does anything read its documents?

    @property
    def beside(self) -> bool:
        """Does it leave the text as it is? Then it only lays signals and verdicts beside it."""
        return self.source is None and all(isinstance(s.stage, Annotate | Rule) for s in self.steps)

    @property
    def decides(self) -> tuple[Step, ...]:
        """Rules that decide once everything is measured."""
        return tuple(s for s in self.steps if isinstance(s.stage, Rule) and (self.beside or not decides_on_the_spot(s)))

    @property
    def works(self) -> tuple[Step, ...]:
        """Stages that see the documents themselves."""
        decides = self.decides
        return tuple(s for s in self.steps if s not in decides)

    @property
    def in_order_of_work(self) -> tuple[Step, ...]:
        return self.works + self.decides

    def fingerprint(self, recipe: Recipe) -> str:
        """Of the work; what the rules say of it is not in it."""
        reader = [self._identity(self.source.reader, recipe).fingerprint, self.source.name] if self.source else []
        stages = [self._identity(step, recipe).fingerprint for step in self.works]
        versions = [measured_again(self.steps), texts_kept(self.steps, self.decides)]
        settings = [recipe.head.rejects.model_dump(), recipe.head.parts.batch_bytes]
        engine = [fingerprint.code_of_engine(kind) for kind in self._kinds]
        return fingerprint.digest([reader, stages, versions, self.documents, *settings, engine])

    def fingerprint_of_rules(self, recipe: Recipe) -> str:
        rules = [[self._identity(s, recipe).fingerprint, *seen_by(self.steps, self.decides, s)] for s in self.decides]
        return fingerprint.digest([rules, recipe.head.rejects.model_dump(), fingerprint.code_of_engine("rules")])

    def made_of(self, recipe: Recipe) -> MadeOf:
        """What is in these fingerprints, by name."""
        steps = [*([self.source.reader] if self.source else []), *self.steps]
        kinds = [*self._kinds, *(["rules"] if self.decides else [])]
        return made_of([self._identity(step, recipe) for step in steps], kinds)

    @property
    def _kinds(self) -> list[str]:
        return ["leg", *(["sink"] if any(isinstance(s.stage, Sink) for s in self.works) else [])]

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
        return fingerprint.digest([stage, recipe.head.rejects.model_dump(), fingerprint.code_of_engine("flow")])

    def made_of(self, recipe: Recipe) -> MadeOf:
        """What is in this fingerprint, by name."""
        return made_of([identity_of(self.step, may_hold_pdf(recipe, None))], ["flow"])


Node = Leg | GlobalNode


@dataclass(frozen=True)
class Plan:
    """Nodes in an order in which each comes after what feeds it."""

    recipe: Recipe
    nodes: tuple[Node, ...]

    def node(self, name: str) -> Node:
        return next(n for n in self.nodes if n.name == name)

    def leading_to(self, name: str) -> set[str]:
        """Names of the sources and stages that documents pass on their way to the node of a stage, and the node's own;
        sinks only look on."""
        nodes = {node.name: node for node in self.nodes}
        waiting, passed, names = [name], set[str](), set[str]()
        while waiting:
            node = nodes[waiting.pop()]
            if node.name in passed:
                continue
            passed.add(node.name)
            waiting += node.feeds
            steps = node.steps if isinstance(node, Leg) else (node.step,)
            names |= {step.called for step in steps if not isinstance(step.stage, Sink)}
            if isinstance(node, Leg) and node.source is not None:
                names.add(node.source.name)
        return names

    def waves(self) -> list[list[Node]]:
        """Nodes that can be worked on together."""
        done: set[str] = set()
        waiting, waves = list(self.nodes), []
        while waiting:
            wave = [n for n in waiting if all(f in done for f in n.feeds)]
            # A global stage is a program of several rounds and has the engine for itself.
            legs: list[Node] = [n for n in wave if isinstance(n, Leg)]
            wave = legs or wave[:1]
            waves.append(wave)
            done |= {n.name for n in wave}
            waiting = [n for n in waiting if n not in wave]
        return waves

    def stage_order(self) -> list[tuple[str, Step | Source]]:
        """(name, step or source) of everything that leaves a report: readers first, then stages in the order in which
        documents meet them."""
        legs = [node.in_order_of_work if isinstance(node, Leg) else (node.step,) for node in self.nodes]
        steps = {step.called: step for leg in legs for step in leg}
        by_name: dict[str, Step | Source] = {source.name: source for source in self.recipe.sources}
        for name in in_one_order([[step.called for step in leg] for leg in legs]):
            by_name[name] = steps[name]
        return list(by_name.items())

    def to_prepare(self) -> list[Stage]:
        """Stages that have work which is worth doing once on a machine."""
        stages = [thing.stage for _, thing in self.stage_order() if isinstance(thing, Step)]
        return [stage for stage in stages if type(stage).prepare is not Stage.prepare]


def identity_of(step: Step, pdf: bool) -> Identity:
    return fingerprint.identity_of(step.stage, step.spec, step.file, pdf)


def may_hold_pdf(recipe: Recipe, source: Source | None) -> bool:
    """May documents of a source, or of all sources, be PDF files? A user's stage may make some of any pages."""
    sources = [source] if source else recipe.sources
    steps = [*recipe.steps, *(step for each in sources for step in each.steps)]
    return any(isinstance(each.reader.stage, Reader) and each.reader.stage.gives_pdf for each in sources) or any(
        not registry.comes_with_the_mill(type(step.stage)) for step in steps
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
    nodes: list[Node] = []
    stream: tuple[str, ...] = ()  # nodes whose documents flow through the shared stages at this point
    for cut, following in zip(cuts, [*cuts[1:], None], strict=True):
        run = steps[cut:following] if following is not None else ()
        is_global = len(run) == 1 and isinstance(run[0].stage, Global)
        shared = [] if is_global else pieces(run)
        feeding, taken_along = stream, []
        joining = [s for s in recipe.sources if joins[s.name] == cut]
        along = shared[0] if shared and not _must_meet(shared[0], joining, stream) else ()
        for source in joining:
            legs = _legs_of(source, along)
            nodes += legs
            if shared and legs[-1].steps[-len(shared[0]) :] == shared[0]:
                taken_along.append(legs[-1].name)
            else:
                feeding = (*feeding, legs[-1].name)
        for i, piece in enumerate(shared):
            if feeding:
                nodes.append(Leg(piece[0].called, piece, None, feeding))
                feeding = (piece[0].called,)
            if i == 0:
                feeding = (*feeding, *taken_along)
        stream = feeding if shared else (*feeding, *taken_along)
        if is_global:
            nodes.append(GlobalNode(run[0].called, run[0], stream))
            stream = (run[0].called,)
    fed = {name for node in nodes for name in node.feeds}
    ended = [
        Leg(n.name, n.steps, n.source, n.feeds, documents=n.name in fed or not _writes(n)) if isinstance(n, Leg) else n
        for n in nodes
    ]
    return Plan(recipe, tuple(ended))


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


def _must_meet(shared: tuple[Step, ...], joining: list[Source], stream: tuple[str, ...]) -> bool:
    """Is there a sink that documents with different signals come to? What it writes has the columns of all, which are
    known once all are there."""
    measured = {tuple(repr(step.stage) for step in source.steps) for source in joining}
    return any(shows_signals(step.stage) for step in shared) and len(measured) + len(stream) > 1


def _legs_of(source: Source, shared: tuple[Step, ...]) -> list[Leg]:
    """The legs of a source up to where it has met the others; the shared stages belong to its last one, if no cut lies
    between."""
    own = pieces(source.steps) or [()]
    if shared and len(pieces(own[-1] + shared)) == 1:
        own[-1] = own[-1] + shared
    legs = [Leg(source.name, own[0], source, ())]
    for piece in own[1:]:
        legs.append(Leg(piece[0].called, piece, None, (legs[-1].name,)))
    return legs


def _writes(leg: Leg) -> bool:
    """Does a leg end in a stage that writes its documents for others? Then a second copy for nobody is not made."""
    return bool(leg.steps) and isinstance(leg.steps[-1].stage, Sink)
