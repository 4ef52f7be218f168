"""`gristmill plan`: what would run, what is up to date, and why not. It looks, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from gristmill.pipeline.errors import Mistakes
from gristmill.pipeline.fingerprint import MadeOf, changes, made_before
from gristmill.pipeline.inputs.notes import (
    alarms_of_inputs,
    facts_of,
    fetches_of,
    gone_since,
    notes_beside,
    without_text,
)
from gristmill.pipeline.inputs.portion import Portion, find_inputs, listings_of
from gristmill.pipeline.leg.resume import resume
from gristmill.pipeline.plan.plan import GlobalNode, Node, make_plan, names_of
from gristmill.pipeline.recipe.recipe import Recipe
from gristmill.pipeline.run.estimate import costs_of_models
from gristmill.pipeline.run.map_tasks import global_task, tasks_of_node
from gristmill.pipeline.shuffle.saved_index import identities_of_loaded, saved_is_gone
from gristmill.pipeline.store.journal import Journal
from gristmill.pipeline.store.records import MapTask, Part
from gristmill.pipeline.store.run_records import Manifest
from gristmill.pipeline.store.storage import Store
from gristmill.pipeline.tables import Grid
from gristmill.stages.tokens.folders import owner_of_set

GONE = {False: "its files are gone (cleaned?)", True: "its files are not what was written (damaged?)"}
UP_TO_DATE = "up to date"
NOT_KEPT = "done, but not kept (`keep`): repeated if a later stage reads it"
CHANGED = ("its documents changed", "its documents changed, or what earlier runs saved for it")


class ForeseenRecord(TypedDict):
    """A node of the plan, as `gristmill plan --json` prints it."""

    name: str
    kind: str
    stages: list[str]
    feeds: list[str]
    fingerprint: str
    parts: int | None
    up_to_date: int | None
    why: str


@dataclass(frozen=True)
class Foreseen:
    """What would happen to a map node or global stage."""

    name: str
    kind: str
    stages: list[str]
    feeds: list[str]
    fingerprint: str
    parts: int | None
    up_to_date: int | None
    why: str

    def plain(self) -> ForeseenRecord:
        return {
            "name": self.name,
            "kind": self.kind,
            "stages": self.stages,
            "feeds": self.feeds,
            "fingerprint": self.fingerprint,
            "parts": self.parts,
            "up_to_date": self.up_to_date,
            "why": self.why,
        }


def foresee(
    recipe: Recipe, out: str, check_inputs: bool = False, note: Callable[[str], object] = str
) -> list[Foreseen]:
    """Every node of the plan, held against the journal. `note` gets the notes on the inputs, line by line."""
    store = Store(out)
    mistakes = Mistakes()
    plans = mistakes.noted(make_plan, recipe)
    if not plans:  # paths that lead nowhere are said too, before any file is read
        mistakes.noted(listings_of, recipe, store)
    mistakes.say_all()
    [plan] = plans
    inputs = find_inputs(recipe, store, Portion(), remember=False, check=check_inputs)
    loud = alarms_of_inputs(inputs)
    journal = Journal(store, looks_only=True)
    facts = facts_of(inputs, gone_since(inputs, store, journal))
    for line in [*loud, *without_text(inputs), *fetches_of(facts), *notes_beside(loud, facts)]:
        note(line)
    for line in costs_of_models(
        recipe, store.read_json_if_whole("run.json"), sum(taken.bytes for taken in inputs.values())
    ):
        note(line)
    present = store.stamps("")
    journal.check(present)
    missed = {owner_of_set(path) for path in journal.results if path not in present}
    after: dict[
        str, list[Part] | None
    ] = {}  # by segment and global stage, the parts that it leaves; None: not known yet
    seen = []
    for node in plan.nodes:
        upstream = [after[f] for f in node.feeds]
        node_fingerprint = node.fingerprint(recipe)
        before = [manifest_before(store, journal, name) for name in names_of(node)]
        changed = changed_since(node, before, recipe, store)
        fed = [p for parts in upstream if parts is not None for p in parts]
        if any(parts is None for parts in upstream):
            seen.append(
                Foreseen(
                    node.name,
                    kind(node),
                    stages(node),
                    list(node.feeds),
                    node_fingerprint,
                    None,
                    None,
                    changed or f"known once {', '.join(f for f in node.feeds if after[f] is None)} is done",
                )
            )
            after |= dict.fromkeys(names_of(node))
            continue
        if isinstance(node, GlobalNode):
            kept = identities_of_loaded(node.step)
            task = global_task(node_fingerprint, fed, kept)
            stage = journal.stage(task)
            done, begun = stage.parts is not None, stage.begun
            if done and begun and saved_is_gone(node.step):
                why = "what it keeps for later runs is gone: it is saved again"
            elif done and begun and node.name in missed:
                why = "shards are gone: they are written again"
            elif done:
                why = UP_TO_DATE if begun else "what its rounds handed on is gone (cleaned?): they are done again"
            elif begun:
                why = GONE[journal.gone.get(task, False)] if stage.ended else "begun, not finished"
            else:
                why = changed or (
                    GONE[journal.gone[task]]
                    if task in journal.gone
                    else CHANGED[bool(kept)]
                    if before[0]
                    else "never run"
                )
            seen.append(
                Foreseen(
                    node.name,
                    "global",
                    stages(node),
                    list(node.feeds),
                    node_fingerprint,
                    len(fed),
                    len(fed) if done and begun and node.name not in missed else 0,
                    why,
                )
            )
            after[node.name] = None if stage.parts is None else list(stage.parts)
            continue
        tasks = tasks_of_node(node, recipe, store, inputs, fed)
        rests = [rest for task in tasks if (rest := resume(task, journal.done)[1]) is not None]
        old = {p["key"] for p in before[-1]["parts"]} if before[-1] else set()
        new = sum(task["key"] not in old for task in tasks)
        if not rests:
            why = UP_TO_DATE
        elif before[-1] and not new and all(rest["phases"][0]["rules"] for rest in rests):
            why = f"{changed or 'its rules changed'}; decided again on stored signals"
        else:
            lost = [
                journal.gone[phase["task"]]
                for task in tasks
                for phase in task["phases"]
                if phase["task"] in journal.gone
            ]
            changed_input = GONE[any(lost)] if lost else "input changed"
            why = changed or (
                not_run(len(tasks) - len(rests), len(tasks))
                if not before[-1]
                else f"{new:,} new part{'s' if new > 1 else ''}"
                if new
                else changed_input
            )
        seen.append(
            Foreseen(
                node.name,
                "map",
                stages(node),
                list(node.feeds) or [f"files of {node.name}"],
                node_fingerprint,
                len(tasks),
                len(tasks) - len(rests),
                why,
            )
        )
        if rests:
            after |= dict.fromkeys(names_of(node))
        else:
            for map_task in tasks:
                add_parts(after, map_task, journal)
            after |= {name: after.get(name) or [] for name in names_of(node)}
    return without_kept_files(plan.nodes, seen, after, journal)


def add_parts(after: dict[str, list[Part] | None], task: MapTask, journal: Journal) -> None:
    """Add the partition of a finished task, as each segment left it."""
    part, results = task["part"], resume(task, journal.done)[0]
    left: dict[str, Part] = {}
    for phase in task["phases"]:
        part = results[phase["task"]]["part"] if phase["task"] in results else part
        if part is not None:
            left[phase["segment"]] = part
    for name, of_segment in left.items():
        if (there := after.setdefault(name, [])) is not None:
            there.append(of_segment)


def manifest_before(store: Store, journal: Journal, name: str) -> Manifest | None:
    """What the last run wrote of a segment or global stage."""
    path = f"legs/{name}/manifest.json"
    return store.read_json_if_whole(path) if journal.is_as_written(path) else None


def changed_since(node: Node, before: Sequence[Manifest | None], recipe: Recipe, store: Store) -> str:
    """What differs from the last run of a node, in words; empty if nothing does or it never ran."""
    then: MadeOf = {}
    for manifest, name in zip(before, names_of(node), strict=True):
        if manifest is None:
            return ""
        then |= made_before(manifest, store.at(f"legs/{name}/manifest.json"))
    now = node.made_of(recipe)
    return (
        changes(then, now)
        if then != now or fingerprints_of(node, recipe) != [m["fingerprint"] for m in before if m]
        else ""
    )


def fingerprints_of(node: Node, recipe: Recipe) -> list[str]:
    """As the manifests of its segments have them."""
    if isinstance(node, GlobalNode):
        return [node.fingerprint(recipe)]
    return [segment.fingerprint_with_rules(recipe) for segment in node.segments]


def without_kept_files(
    nodes: Sequence[Node], seen: list[Foreseen], after: Mapping[str, list[Part] | None], journal: Journal
) -> list[Foreseen]:
    """Mark finished nodes whose files were not kept (`keep`) and whose readers have work to do: they may run again."""
    due: set[str] = set()  # nodes whose readers have work to do
    answers = []
    for node, foreseen in zip(reversed(nodes), reversed(seen), strict=True):
        names = names_of(node)
        parts = [part for name in names if due & {name} for part in after[name] or []]
        files = {facts["path"] for p in parts for facts in (p["documents"], *p["verdicts"], *p["signals"]) if facts}
        if foreseen.why == UP_TO_DATE and files & journal.retired:
            foreseen = replace(foreseen, why=NOT_KEPT)
        if foreseen.why != UP_TO_DATE or due & {*names}:
            due.update(node.feeds)
        answers.append(foreseen)
    return answers[::-1]


def not_run(done: int, parts: int) -> str:
    """Of a node that has never come to its end."""
    return f"begun: {done:,} of {parts:,} parts done" if done else "never run"


def kind(node: Node) -> str:
    return "global" if isinstance(node, GlobalNode) else "map"


def stages(node: Node) -> list[str]:
    return [node.name] if isinstance(node, GlobalNode) else [s.called for s in node.in_order_of_work]


def render(seen: list[Foreseen]) -> Grid:
    heads = ("node", "parts", "current", "why", "and stages", "from", "fingerprint")
    table = Grid("plan", heads, words={0, 3, 4, 5, 6}, spared=(6, 5))
    for s in seen:
        table.add_row(
            s.name,
            "?" if s.parts is None else f"{s.parts:,}",
            "?" if s.up_to_date is None else f"{s.up_to_date:,}",
            s.why,
            ", ".join(stage for stage in s.stages if stage != s.name),
            ", ".join(s.feeds),
            s.fingerprint[:8],
        )
    return table
