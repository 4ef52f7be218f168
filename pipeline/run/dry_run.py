"""`gristmill plan`: what would run, what is up to date, and why not. Nothing is changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rich.console import Group, RenderableType
from rich.text import Text

from gristmill.pipeline.errors import Mistakes
from gristmill.pipeline.inputs.notes import alarms_of_inputs, facts_of, fetches_of, notes_beside
from gristmill.pipeline.inputs.portion import Inputs, Portion, find_inputs, listings_of
from gristmill.pipeline.plan.plan import GlobalNode, MapNode, Node, make_plan, names_of
from gristmill.pipeline.recipe.fingerprint import MadeOf, changes
from gristmill.pipeline.recipe.recipe import Recipe
from gristmill.pipeline.run.estimate import costs_of_models
from gristmill.pipeline.run.map_tasks import global_task, tasks_of_node
from gristmill.pipeline.run.record import check_may_run, gone_since, manifest_before
from gristmill.pipeline.shuffle.saved_index import identities_of_loaded, saved_is_gone
from gristmill.pipeline.store.journal import Journal
from gristmill.pipeline.store.records import MapTask, Partition, VerdictsResult
from gristmill.pipeline.store.resume import resume
from gristmill.pipeline.store.run_records import RunRecord, SegmentManifest, place_in_words, read_if_whole
from gristmill.pipeline.store.storage import Store
from gristmill.pipeline.tables import TerminalTable
from gristmill.stages.tokens.folders import owner_of_set

GONE = {False: "its files are gone (cleaned?)", True: "its files are not what was written (damaged?)"}
UP_TO_DATE = "up to date"
NOT_KEPT = "done, but not kept (`keep`): repeated if a later stage reads it"
CHANGED = ("its documents changed", "its documents changed, or what earlier runs saved for it")


@dataclass(frozen=True)
class Foreseen:
    """What would happen to a map node or global stage."""

    name: str
    kind: str
    stages: list[str]
    feeds: list[str]
    fingerprint: str
    parts: int | None  # None: not known yet
    up_to_date: int | None
    why: str
    inserted: dict[str, str]  # stages that the recipe does not name, and for which of its stages each measures
    moved: dict[str, str]  # stages that documents meet after one which the recipe has after them


def foresee(
    recipe: Recipe, out: str, check_inputs: bool = False, note: Callable[[str], object] = str
) -> list[Foreseen]:
    """Every node of the plan, held against the journal. `note` gets the notes on the inputs, line by line."""
    store, mistakes = Store(out), Mistakes()
    store.check_root()
    journal = Journal(store, looks_only=True)
    check_may_run(recipe, store, journal, whole=True)
    plans = mistakes.noted(make_plan, recipe)
    if not plans:  # report paths that lead nowhere too, before any file is read
        mistakes.noted(listings_of, recipe, store)
    mistakes.say_all()
    [plan] = plans
    inputs = find_inputs(recipe, store, Portion(), remember=False, check=check_inputs)
    loud = alarms_of_inputs(inputs)
    facts = facts_of(inputs, gone_since(inputs, store, journal))
    size = sum(taken.bytes for taken in inputs.values())
    costs = costs_of_models(recipe, read_if_whole(store, "run.json", RunRecord), size)
    for line in [*loud, *fetches_of(facts), *notes_beside(loud, facts), *costs]:
        note(line)
    present = store.stamps("")
    journal.check(present)
    missed = {owner_of_set(path) for path in journal.results if path not in present}
    shown = {name: node.name for node in plan.nodes for name in names_of(node)}
    dry_run = DryRun(recipe, store, journal, inputs, missed, shown, plan.inserted(), plan.moved())
    return dry_run.without_kept_files(plan.nodes, [dry_run.foresee(node) for node in plan.nodes])


@dataclass
class DryRun:
    """Goes through the nodes in order, and knows what each would leave for those after it."""

    recipe: Recipe
    store: Store
    journal: Journal
    inputs: Mapping[str, Inputs]
    missed: set[str | None]  # stages whose shards are gone
    shown: Mapping[str, str]  # by segment and global stage, the node that it is part of
    inserted: Mapping[str, str]
    moved: Mapping[str, str]
    # By segment and global stage, the parts that it leaves; None: not known before it has run.
    after: dict[str, list[Partition] | None] = field(default_factory=dict)

    def foresee(self, node: Node) -> Foreseen:
        before = [manifest_before(self.store, self.journal, name) for name in names_of(node)]
        changed = changed_since(node, before, self.recipe)
        unknown = list(dict.fromkeys(self.shown[name] for name in node.feeds if self.after[name] is None))
        fed = [part for name in node.feeds for part in self.after[name] or []]
        is_global = isinstance(node, GlobalNode)
        feeds = list(dict.fromkeys(self.shown[name] for name in node.feeds))
        if unknown:
            self.after |= dict.fromkeys(names_of(node))
            parts, current, why = None, None, changed or f"known after {', '.join(unknown)}"
        elif isinstance(node, GlobalNode):
            parts = len(fed)
            is_current, why = self.global_stage(node, fed, changed, before[0] is not None)
            current = parts if is_current else 0
        else:
            parts, current, why = self.map_node(node, fed, changed, before[-1])
            feeds = feeds or [f"files of {node.name}"]
        kind = "global" if is_global else "map"
        names = stages(node)
        inserted, moved = ({name: of[name] for name in names if name in of} for of in (self.inserted, self.moved))
        fingerprint = node.fingerprint(self.recipe)
        return Foreseen(node.name, kind, names, feeds, fingerprint, parts, current, why, inserted, moved)

    def global_stage(self, node: GlobalNode, fed: list[Partition], changed: str, ran_before: bool) -> tuple[bool, str]:
        """Is all of it up to date? And why, or why not."""
        journal, kept = self.journal, identities_of_loaded(node.step)
        task = global_task(node.fingerprint(self.recipe), fed, kept)
        left = journal.done.get(task)
        self.after[node.name] = list(left.parts) if isinstance(left, VerdictsResult) else None
        lacks_shards = node.name in self.missed
        if left is not None and saved_is_gone(node.step):
            why = "what it keeps for later runs is gone: it is saved again"
        elif left is not None and lacks_shards:
            why = "shards are gone: they are written again"
        elif left is not None:
            why = UP_TO_DATE
        elif task in journal.gone:
            why = GONE[journal.gone[task]]
        elif changed:
            why = changed
        else:
            why = CHANGED[bool(kept)] if ran_before else "never finished"
        return left is not None and not lacks_shards, why

    def map_node(
        self, node: MapNode, fed: list[Partition], changed: str, before: SegmentManifest | None
    ) -> tuple[int, int, str]:
        """Its parts, how many of them are up to date, and why not all."""
        tasks = tasks_of_node(node, self.recipe, self.store, self.inputs, fed)
        rests = [rest for task in tasks if (rest := resume(task, self.journal.done)[1]) is not None]
        current = len(tasks) - len(rests)
        if not rests:
            for task in tasks:
                self.add_parts(task)
            self.after |= {name: self.after.get(name) or [] for name in names_of(node)}
            return len(tasks), current, UP_TO_DATE
        self.after |= dict.fromkeys(names_of(node))
        old = {part.key for part in before.parts} if before else set()
        new = sum(task.key not in old for task in tasks)
        gone = self.journal.gone
        lost = [gone[phase.task] for task in tasks for phase in task.phases if phase.task in gone]
        if before and not new and all(rest.phases[0].rules for rest in rests):
            why = f"{changed or 'its rules changed'}; decided again on stored signals"
        elif changed:
            why = changed
        elif not before:
            why = f"begun: {current:,} of {len(tasks):,} parts done" if current else "never run"
        elif new:
            why = f"{new:,} new part{'s' if new > 1 else ''}"
        else:
            why = GONE[any(lost)] if lost else "input changed"
        return len(tasks), current, why

    def add_parts(self, task: MapTask) -> None:
        """Add the partition of a finished task, as each segment left it."""
        part, results = task.part, resume(task, self.journal.done)[0]
        left: dict[str, Partition] = {}
        for phase in task.phases:
            part = results[phase.task].part if phase.task in results else part
            if part is not None:
                left[phase.segment] = part
        for name, of_segment in left.items():
            if (there := self.after.setdefault(name, [])) is not None:
                there.append(of_segment)

    def without_kept_files(self, nodes: Sequence[Node], seen: list[Foreseen]) -> list[Foreseen]:
        """Mark finished nodes whose files were not kept (`keep`) and whose readers have work to do: they may run
        again."""
        due: set[str] = set()  # nodes whose readers have work to do
        answers = []
        for node, foreseen in zip(reversed(nodes), reversed(seen), strict=True):
            names = names_of(node)
            parts = [part for name in names if name in due for part in self.after[name] or []]
            files = {facts.path for p in parts for facts in (p.documents, *p.verdicts, *p.signals) if facts}
            if foreseen.why == UP_TO_DATE and files & self.journal.retired:
                foreseen = replace(foreseen, why=NOT_KEPT)
            if foreseen.why != UP_TO_DATE or due & {*names}:
                due.update(node.feeds)
            answers.append(foreseen)
        return answers[::-1]


def changed_since(node: Node, before: Sequence[SegmentManifest | None], recipe: Recipe) -> str:
    """What differs from the last run of a node, in words; empty if nothing does or it never ran."""
    then: MadeOf = {}
    for manifest in before:
        if manifest is None:
            return ""
        then |= manifest.made_of
    now = node.made_of(recipe)
    return (
        changes(then, now)
        if then != now or fingerprints_of(node, recipe) != [m.fingerprint for m in before if m]
        else ""
    )


def fingerprints_of(node: Node, recipe: Recipe) -> list[str]:
    """As the manifests of its segments have them."""
    if isinstance(node, GlobalNode):
        return [node.fingerprint(recipe)]
    return [segment.fingerprint_with_rules(recipe) for segment in node.segments]


def stages(node: Node) -> list[str]:
    return [node.name] if isinstance(node, GlobalNode) else [s.called for s in node.in_order_of_work]


def render(seen: list[Foreseen]) -> RenderableType:
    heads = ("node", "parts", "current", "why", "and stages", "from", "fingerprint")
    rows = [
        (
            s.name,
            "?" if s.parts is None else s.parts,
            "?" if s.up_to_date is None else s.up_to_date,
            s.why,
            ", ".join(stage for stage in s.stages if stage != s.name),
            ", ".join(s.feeds),
            s.fingerprint[:8],
        )
        for s in seen
    ]
    places = {name: place_in_words(s.inserted.get(name, ""), s.moved.get(name, "")) for s in seen for name in s.stages}
    lines = [Text(f"{name} {place}", style="dim") for name, place in places.items() if place]
    return Group(TerminalTable.of("plan", heads, rows, words={0, 3, 4, 5, 6}, spared=(6, 5)), *lines)
