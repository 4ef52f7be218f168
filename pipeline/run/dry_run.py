"""`gristmill plan`: what would run, what is up to date, and why not. It looks, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from gristmill.pipeline import fingerprint
from gristmill.pipeline.errors import Mistakes
from gristmill.pipeline.flow.saved import kept_before, saved_is_gone
from gristmill.pipeline.formatting import as_bytes
from gristmill.pipeline.inputs.notes import (
    alarms_of_inputs,
    facts_of,
    fetches_of,
    gone_since,
    notes_beside,
    without_text,
)
from gristmill.pipeline.inputs.portion import Inputs, Portion, find_inputs, listings_of
from gristmill.pipeline.plan.changes import changes, made_before
from gristmill.pipeline.plan.plan import GlobalNode, Leg, Node, make_plan
from gristmill.pipeline.recipe.recipe import Recipe
from gristmill.pipeline.run.forecast import asked_of_models
from gristmill.pipeline.run.leg_tasks import begun_of, global_task, tasks_of_leg, tasks_of_rules
from gristmill.pipeline.store.journal import Journal
from gristmill.pipeline.store.records import Part
from gristmill.pipeline.store.run_records import Manifest, RunRecord
from gristmill.pipeline.store.store import Store
from gristmill.pipeline.tables import Grid
from gristmill.stages.judge.cost import Asks
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
    """What would happen to one leg or global stage."""

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
    for line in costs_ahead(recipe, store, inputs):
        note(line)
    present = store.stamps("")
    journal.check(present)
    missed = {owner_of_set(path) for path in journal.results if path not in present}
    after: dict[str, list[Part] | None] = {}  # by node, the parts that it leaves; None: not known yet
    seen = []
    for node in plan.nodes:
        upstream = [after[f] for f in node.feeds]
        node_fingerprint = node.fingerprint(recipe)
        if isinstance(node, Leg):
            node_fingerprint = fingerprint.digest([node_fingerprint, node.fingerprint_of_rules(recipe)])
        path = f"legs/{node.name}/manifest.json"
        before: Manifest | None = store.read_json_if_whole(path) if journal.is_as_written(path) else None
        changed = (
            changes(made_before(before, store.at(path)), node.made_of(recipe))
            if before and before["fingerprint"] != node_fingerprint
            else ""
        )
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
            after[node.name] = None
            continue
        if isinstance(node, GlobalNode):
            kept = kept_before(node.step)
            task = global_task(node_fingerprint, fed, kept)
            done, begun = journal.done.get(task), journal.done.get(begun_of(task))
            if done and begun and saved_is_gone(node.step):
                why = "what it keeps for later runs is gone: it is saved again"
            elif done and begun and node.name in missed:
                why = "shards are gone: they are written again"
            elif done:
                why = UP_TO_DATE if begun else "what its rounds handed on is gone (cleaned?): they are done again"
            elif begun:
                why = GONE[journal.gone.get(task, False)] if begun["ended"] else "begun, not finished"
            else:
                why = changed or (
                    GONE[journal.gone[task]] if task in journal.gone else CHANGED[bool(kept)] if before else "never run"
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
            after[node.name] = done["parts"] if done else None
            continue
        tasks = tasks_of_leg(node, recipe, journal, inputs, fed)
        results = [journal.done.get(t["task"]) for t in tasks]
        worked = [r["part"] for r in results if r is not None] if tasks else fed
        rules = tasks_of_rules(node, recipe, store, worked)
        decided = {t["key"]: journal.done.get(t["task"]) for t in rules}
        waiting = sum(r is None for r in results)
        undecided = sum(r is None for r in decided.values())
        old = {p["key"] for p in before["parts"]} if before else set()
        new = sum(t["key"] not in old for t in tasks)
        parts = len(tasks or rules)
        fresh = parts - (waiting or undecided)
        if not waiting and not undecided:
            why = UP_TO_DATE
        elif not waiting and before and not new:
            why = f"{changed or 'its rules changed'}; decided again on stored signals"
        else:
            gone = [journal.gone[t["task"]] for t in [*tasks, *rules] if t["task"] in journal.gone]
            changed_input = GONE[any(gone)] if gone else "input changed"
            why = changed or (
                not_run(fresh, parts)
                if not before
                else f"{new:,} new part{'s' if new > 1 else ''}"
                if new
                else changed_input
            )
        seen.append(
            Foreseen(
                node.name,
                "leg",
                stages(node),
                list(node.feeds) or [f"files of {node.name}"],
                node_fingerprint,
                parts,
                fresh,
                why,
            )
        )
        by_key = {key: r["part"] for key, r in decided.items() if r is not None}
        after[node.name] = None if waiting or undecided else [by_key.get(p["key"], p) for p in worked]
    return without_kept_files(plan.nodes, seen, after, journal)


def without_kept_files(
    nodes: Sequence[Node], seen: list[Foreseen], after: Mapping[str, list[Part] | None], journal: Journal
) -> list[Foreseen]:
    """Mark finished nodes whose files were not kept (`keep`) and whose readers have work to do: they may run again."""
    due: set[str] = set()  # nodes whose readers have work to do
    answers = []
    for node, foreseen in zip(reversed(nodes), reversed(seen), strict=True):
        parts = after[node.name] or [] if node.name in due else []
        files = {facts["path"] for p in parts for facts in (p["documents"], *p["verdicts"], *p["signals"]) if facts}
        if foreseen.why == UP_TO_DATE and files & journal.retired:
            foreseen = replace(foreseen, why=NOT_KEPT)
        if foreseen.why != UP_TO_DATE or node.name in due:
            due.update(node.feeds)
        answers.append(foreseen)
    return answers[::-1]


def costs_ahead(recipe: Recipe, store: Store, inputs: Mapping[str, Inputs]) -> list[str]:
    """What stages that ask a language model will cost: by the documents that came to them in the run before, else at
    most, if all bytes of the inputs were text that comes to them."""
    record: RunRecord | None = store.read_json_if_whole("run.json")
    before = asked_of_models(recipe, record) if record and record.get("stages") else []  # none while a run is at work
    lines = [f"{name}: {cost}, for the {documents:,} documents of the run before" for name, cost, documents in before]
    known, size = {name for name, _, _ in before}, sum(taken.bytes for taken in inputs.values())
    for step in recipe.all_steps:
        if isinstance(step.stage, Asks) and step.called not in known:
            cost = step.stage.cost_ahead(0, size)
            lines.append(f"{step.called}: {cost}, if all {as_bytes(size)} of inputs are text")
    return lines


def not_run(done: int, parts: int) -> str:
    """Of a leg that has never come to its end."""
    return f"begun: {done:,} of {parts:,} parts done" if done else "never run"


def kind(node: Node) -> str:
    return "global" if isinstance(node, GlobalNode) else "leg"


def stages(node: Node) -> list[str]:
    return [node.name] if isinstance(node, GlobalNode) else [s.called for s in node.in_order_of_work]


def render(seen: list[Foreseen]) -> Grid:
    heads = ("leg", "parts", "current", "why", "and stages", "from", "fingerprint")
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
