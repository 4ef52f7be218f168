"""A recipe carried out in a folder: legs and global stages in order, manifests, the account, alarms, and the report."""

from __future__ import annotations

import time
import traceback
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Protocol, cast

from gristmill.pipeline import fingerprint
from gristmill.pipeline.engine.cluster import Where
from gristmill.pipeline.engine.engine import Engine, Watcher
from gristmill.pipeline.errors import DamagedFile, GristmillError, NotConserved, RecipeError, RunFailed, of_storage
from gristmill.pipeline.flow.rows import check_saved, kept_before, owner_of
from gristmill.pipeline.flow.verdicts import untouched
from gristmill.pipeline.formatting import one_line, plain
from gristmill.pipeline.inputs.estimate import PartRead, documents_in_all
from gristmill.pipeline.inputs.notes import alarms_of_changes, alarms_of_inputs, facts_of, gone_since, notes_of
from gristmill.pipeline.inputs.portion import Inputs, Portion, find_inputs
from gristmill.pipeline.leg.leg import Result, Task
from gristmill.pipeline.leg.rules import harmless
from gristmill.pipeline.leg.side_by_side import task_of_pages
from gristmill.pipeline.leg.slowest import Slowest
from gristmill.pipeline.plan.plan import GlobalNode, Leg, Node, Plan, make_plan
from gristmill.pipeline.processes import template
from gristmill.pipeline.processes.interrupts import one_is_enough
from gristmill.pipeline.progress.progress_file import OnRecord, on_record
from gristmill.pipeline.recipe import registry
from gristmill.pipeline.recipe.recipe import Recipe, Step
from gristmill.pipeline.run.alarms import alarms, alarms_of_stages
from gristmill.pipeline.run.flow import DaskFlow
from gristmill.pipeline.run.leg_tasks import begun_of, documents_of, global_task, tasks_of_leg, tasks_of_rules
from gristmill.pipeline.run.record import check_folder, is_done, manifest_part, record_of, record_up_to, without_times
from gristmill.pipeline.run.scores import scores_of, signals_of
from gristmill.pipeline.run.stale import alarms_of_unused, stale_files
from gristmill.pipeline.store.counts import Account
from gristmill.pipeline.store.faults import NAMED, few
from gristmill.pipeline.store.journal import Journal
from gristmill.pipeline.store.parts import Documents, Part
from gristmill.pipeline.store.sinks import publish
from gristmill.pipeline.store.store import Store, json_bytes, one_run_at_a_time
from gristmill.stages.contract import kind_of
from gristmill.stages.stage import CannotRun, Global, Sink, Stage
from gristmill.trainer.run.energy import Machine

SLOW_PREPARATION = 3.0  # seconds worth a word


class Face(Watcher, Protocol):
    """What a run tells the person who started it."""

    def begins(self, node: Node, parts: int) -> None: ...

    def ends(self, node: Node) -> None: ...


@dataclass
class Summary:
    """What a run came to."""

    out: str
    record: dict[str, Any]
    worked: int
    alarms: list[str] = field(default_factory=list)


def run(
    recipe: Recipe, out: str, where: Where, face: Face, portion: Portion | None = None, check_inputs: bool = False
) -> Summary:
    """Carry a recipe out; what is finished already is not done again. `check_inputs` hashes all inputs anew, whatever
    their times say."""
    store = Store(out)
    where.check()
    store.make_root()
    with one_is_enough(), one_run_at_a_time(store):
        journal = Journal(store)
        check_folder(recipe, store, journal)
        check_saved(recipe, portion is None or portion.whole)
        store.remove_temporary()
        try:
            if where.forked and not is_done(store):
                template.begin(recipe.path)
            while True:
                try:
                    return on_its_record(_Run(recipe, store, where, face, portion or Portion(), journal, check_inputs))
                except DamagedFile as error:
                    journal.suspect(error)
                    face.note(f"{error.path}: its content is not what was written; what made it is done again")
        finally:
            template.end()


def on_its_record(running: _Run) -> Summary:
    """Carry a run out, and let other processes see how far it is."""
    recording = OnRecord(
        running.face, running.recipe.name, running.plan.nodes, lambda account: alarms_of_stages(running.plan, account)
    )
    with on_record(recording, running.store) as running.face:
        return running.carry_out()


class _Run:
    def __init__(
        self,
        recipe: Recipe,
        store: Store,
        where: Where,
        face: Face,
        portion: Portion,
        journal: Journal,
        check_inputs: bool,
    ) -> None:
        self.recipe = recipe
        self.store = store
        self.journal = journal
        self.face = face
        self.portion = portion
        self.plan: Plan = make_plan(recipe)
        self.where = replace(
            where, gpus=any(thing.stage.gpu for _, thing in self.plan.stage_order() if isinstance(thing, Step))
        )
        self.began = time.time()
        self.meter = Machine.here()
        self.check_inputs = check_inputs
        self.inputs: dict[str, Inputs] = find_inputs(recipe, store, portion, check=check_inputs)
        self.input_facts = facts_of(self.inputs, gone_since(self.inputs, store))
        self.account = Account()
        self.slowest = Slowest()
        self.documents: dict[str, Documents] = {}
        self.told: dict[str, dict[str, Any]] = {}  # what global stages have for their reports
        self.handed_on: dict[str, Any] = {}  # from one global stage to the next
        self.heard: dict[str, dict[str, Any]] = {}  # by global stage: what it and those before it said
        self.mine: set[str] = set()  # files that belong to this version of the run
        self.cards: set[str] = set()  # of data sets; written last, out of the record
        self.sunk: set[str] = set()  # files of sinks among them
        self.log: list[str] = []
        self.start_seconds = 0.0
        self.begun = False
        self.at_work: dict[str, Task] = {}  # of the wave at hand, those whose results are not taken yet
        self.pages: dict[str, list[Task]] = {}  # for each stage that extracts, the look at a few of its pages
        self.scored: dict[
            str, tuple[Stage, list[Part]]
        ] = {}  # stages that score or cut by scores, and the documents they had

    def carry_out(self) -> Summary:
        gone = {name: {"gone": entry["gone"]} for name, entry in self.input_facts.items() if "gone" in entry}
        for line in [*alarms_of_inputs(self.inputs), *notes_of(gone)]:
            self.face.note(line)  # before the work, which may be in vain
        journal = self.journal
        journal.check(self.store.stamps(""))
        journal.gather()
        if journal.damaged:
            self.face.note(
                f"{few(journal.damaged[:NAMED], len(journal.damaged))}: not what was written; what made them is done again"
            )
        if self.store.read_json_if_whole("run.json") is None:
            self.begin()
        prepare = None if self.where.forked else self.prepare  # workers that are forked have a template, which does it
        engine = Engine(journal, self.where, self.face, self.recipe.path, prepare, self.begin)
        try:
            with self.meter, engine:
                for wave in self.plan.waves():
                    self.work(wave, engine)
                engine.finish_along()
            self.start_seconds = engine.start_seconds
        except DamagedFile:  # made anew at once
            raise
        except BaseException as error:
            if self.begun or not isinstance(error, RecipeError):
                self.break_off(error, journal)
            raise
        self.store.remove_temporary()  # of workers that were killed
        self.store.remove(
            stale_files(self.store, self.plan, journal, self.mine | self.cards)
        )  # even if nothing was worked on: an input that is gone leaves outputs and no work
        changed = alarms_of_changes(self.inputs) if engine.worked else []
        record = self.record(more_alarms=[*changed, *alarms_of_unused(self.store, self.plan)])
        before = self.store.read_json_if_whole("run.json") or {}
        if (
            engine.worked
            or journal.damaged
            or before.get("status") != "done"
            or without_times(before) != without_times(record)
        ):
            from gristmill.pipeline.survey.survey import survey_legs

            survey_legs(self.store, journal.keep)
            pages = {
                name: [page for t in tasks for page in engine.result_along(t)["pages"]]
                for name, tasks in self.pages.items()
            }
            self.write_reports(record, pages)
        else:
            record = before
        journal.flush()
        return Summary(self.store.address, record, engine.worked, record["alarms"])

    def begin(self) -> None:
        """What the folder says of itself from here on is of this run, and no more of one before it."""
        self.begun = True
        self.keep_json("run.json", {"name": self.recipe.name, "status": "running", "recipe": self.recipe.resolved()})
        self.journal.flush()

    def break_off(self, error: BaseException, journal: Journal) -> None:
        """The record and report of what is there, for a run that ends before its end; why it did is said by whoever
        catches the error."""
        try:
            self.taken([task for task in self.at_work.values() if task["task"] in journal.done], journal.done)
            status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            record = self.record(status, None if status == "interrupted" else f"{error}" or type(error).__name__)
            self.write_reports(record, {})
        except Exception as also:  # a full disk, say, which may be the error itself: that one is to be heard
            self.face.note(f"no report of what there is: {f'{also}' or type(also).__name__}")

    def prepare(self) -> None:
        """What stages like to have done once on a machine, before many workers do it at once."""
        stages = self.plan.to_prepare()
        if stages:
            start = time.monotonic()
            for stage in stages:
                registry.prepare(stage)
            if time.monotonic() - start > SLOW_PREPARATION:
                self.face.note(
                    f"kernels and tables made ready in {time.monotonic() - start:.0f} s; the next run finds them"
                )

    def work(self, wave: list[Node], engine: Engine) -> None:
        """One wave: all its legs together, or one global stage."""
        if isinstance(wave[0], GlobalNode):
            self.work_global(wave[0], engine)
            return
        legs = [n for n in wave if isinstance(n, Leg)]
        tasks, results = self.work_legs(legs, engine)
        for source in (leg.source.name for leg in legs if leg.source is not None):
            self.extrapolate(source, tasks[source], results)
        worked = {leg.name: self.taken(tasks[leg.name], results) if tasks[leg.name] else self.fed(leg) for leg in legs}
        rules = {leg.name: tasks_of_rules(leg, self.recipe, self.store, worked[leg.name]) for leg in legs}
        results = self.results(engine, rules)
        for leg in legs:
            decided = {p["key"]: p for p in self.taken(rules[leg.name], results)}
            parts = [decided.get(p["key"], p) for p in worked[leg.name]]
            self.publish_sinks(leg)
            self.note_rules(leg, rules[leg.name], results)
            self.finish(
                leg, parts, fingerprint.digest([leg.fingerprint(self.recipe), leg.fingerprint_of_rules(self.recipe)])
            )
            self.look_at_pages(leg, parts, engine)
            for step in leg.works:
                self.look_at_scores(step.called, step.stage, worked[leg.name])

    def work_legs(self, legs: list[Leg], engine: Engine) -> tuple[dict[str, list[Task]], dict[str, Result]]:
        """The work of legs, and what came of it. Where some documents of a source are asked for and its parts have too
        few, more are read."""
        tasks: dict[str, list[Task]] = {}
        results: dict[str, Result] = {}
        ever: dict[str, set[str]] = {leg.name: set() for leg in legs}  # those that gave way to others are done too
        left = legs
        while left:
            for leg in left:
                tasks[leg.name] = tasks_of_leg(leg, self.recipe, self.store, self.inputs, self.fed(leg))
                ever[leg.name].update(task["task"] for task in tasks[leg.name])
                self.face.begins(leg, len(ever[leg.name]))
            counted = [t["task"] for its in tasks.values() for t in its if documents_of(t) in engine.journal.done]
            results |= self.results(engine, tasks, {*results, *counted})
            left = [
                leg
                for leg in legs
                if leg.source is not None and self.takes_more(leg.source.name, tasks[leg.name], results, engine.journal)
            ]
        return tasks, results | self.results(engine, tasks, results)

    def extrapolate(self, source: str, tasks: list[Task], results: dict[str, Result]) -> None:
        """Of a run on some parts of a source: how many documents the whole has."""
        halves = self.inputs[source].halves
        if halves is not None:
            parts = [PartRead.of(task, results[task["task"]]["counts"][source]) for task in tasks]
            self.input_facts[source]["estimate"] = documents_in_all(parts, halves).plain()

    def takes_more(self, source: str, tasks: list[Task], results: dict[str, Result], journal: Journal) -> bool:
        """Have the parts of a source given fewer documents than are asked for, and are there more? How many they gave
        stays known when those files are not used, so that the same command finds the same parts again without reading.
        """
        given = {}
        for task in tasks:
            result = results.get(task["task"])
            given[task["key"]] = (
                journal.done[documents_of(task)]["documents"] if result is None else result["counts"][source]["kept"]
            )
        more = self.inputs[source].topped_up(self.portion.documents, given)
        if more is None:
            return False
        for task in tasks:
            if documents_of(task) not in journal.done:
                journal.add(documents_of(task), {"documents": given[task["key"]]})
        self.inputs[source] = more.with_contents(self.store, check=self.check_inputs)
        return True

    def results(self, engine: Engine, tasks: dict[str, list[Task]], known: Container[str] = ()) -> dict[str, Result]:
        """Of the tasks of some legs, less those that are known."""
        self.at_work = {task["task"]: task for its in tasks.values() for task in its}
        return engine.run(task for name, task in self.at_work.items() if name not in known)

    def publish_sinks(self, leg: Leg) -> None:
        """The sinks of a leg appear, each when the last leg that writes into it has been worked."""
        for sink in [step.called for step in leg.works if isinstance(step.stage, Sink)]:
            others = [
                n
                for n in self.plan.nodes
                if isinstance(n, Leg) and n is not leg and sink in [step.called for step in n.works]
            ]
            if all(n.name in self.documents for n in others):
                wanted = {path for path in self.sunk if path.startswith(f"{sink}/")}
                if publish(self.store, sink, wanted):
                    self.journal.named(wanted)

    def look_at_scores(self, called: str, stage: Stage, parts: list[Part]) -> None:
        """Note the documents whose scores the report shows: those that were scored, or that are to be cut by score;
        rules come after."""
        if signals_of(stage):
            known = self.scored.get(called, (stage, []))[1]
            self.scored[called] = (stage, known + parts)

    def look_at_pages(self, leg: Leg, parts: list[Part], engine: Engine) -> None:
        """Have some pages, extracted and whole, looked at for the report, of a leg that extracts what it reads."""
        stages = [s.called for s in leg.steps if s.stage.recipe_name() == "extract"]
        if leg.source is not None and stages:
            files = {file.path: file for file in self.inputs[leg.source.name].files}
            task = task_of_pages(leg, self.recipe, self.store, parts, files)
            if task is not None:
                self.pages.setdefault(stages[0], []).append(task)
                engine.along(task)

    def note_rules(self, leg: Leg, tasks: list[Task], results: dict[str, Result]) -> None:
        """What the rules of a leg decide on, and where it lies, for `tune` and the report; without what kills a rule."""
        path = f"legs/{leg.name}/rules.json"
        if tasks:
            self.keep_json(
                path, {"rules": tasks[0]["rules"], "parts": [harmless(t["part"], results[t["task"]]) for t in tasks]}
            )
        elif self.store.exists(path):
            self.store.remove([path])

    def taken(self, tasks: list[Task], results: dict[str, Result]) -> list[Part]:
        """The parts that tasks made, their files and counts noted."""
        for task in tasks:
            result = results[task["task"]]
            self.at_work.pop(task["task"], None)
            self.account.add(task["source"], result["counts"], result["peak_memory"])
            self.slowest.add(result.get("slowest", {}))
            self.log += result["log"]
            self.remember(result["files"])
            self.sunk |= {facts["path"] for name, facts in result["files"].items() if name.startswith("sink/")}
        return [results[task["task"]]["part"] for task in tasks]

    def work_global(self, node: GlobalNode, engine: Engine) -> None:
        docs = Documents(tuple(self.fed(node)))
        self.face.begins(node, len(docs.parts))
        self.look_at_scores(node.name, node.step.stage, list(docs.parts))
        print_ = node.fingerprint(self.recipe)
        task = global_task(print_, docs.parts, kept_before(node.step))
        if not {task, begun_of(task)} & engine.journal.done.keys():
            engine.journal.add(begun_of(task), {"ended": False})
        flow = DaskFlow(
            engine,
            self.store,
            node.step,
            node.name,
            print_,
            self.recipe.head.rejects.model_dump(),
            self.account,
            self.handed_on,
            not self.portion.whole,
            owner_of(self.recipe, node.step),
        )
        stage = cast(Global, node.step.stage)
        try:
            after = stage.run(docs, flow)
        except (GristmillError, OSError):
            raise
        except Exception as error:
            if of_storage(error):
                raise
            raise RunFailed(self.said_of(stage, error)) from error
        if not isinstance(after, Documents):
            raise RunFailed(
                f"{registry.named(stage)}: run() answered with {kind_of(after)}; the documents were expected"
            )
        self.told[node.name] = flow.told
        self.handed_on |= flow.handed_on
        self.heard[node.name] = dict(self.handed_on)
        if "packing" in flow.told:
            self.cards.add(f"{flow.told['packing']['folder']}/README.md")
        count = self.account.total(node.name)
        if node.name not in self.account.stages:  # a stage that only looks: all stay
            for part in docs.parts:
                self.account.of(node.name, part["source"]).add(untouched(part))
            count = self.account.total(node.name)
        mine = self.account.stages.get(node.name, {})
        for each in mine.values():  # rounds before the last one cost too
            each.seconds += max(0.0, flow.seconds - count.seconds) / len(mine)
        self.account.peak_memory[node.name] = max(self.account.peak_memory.get(node.name, 0), flow.peak_memory)
        count.check(node.name)
        if count.docs_in != docs.rows or count.kept != after.rows:
            raise NotConserved(
                f"{node.name}: {docs.rows:,} documents were handed over and {after.rows:,} are left, but it says {count.docs_in:,} and {count.kept:,}"
            )
        if count.kept < count.docs_in and not stage.drops:
            raise RunFailed(
                f"{node.name} dropped {count.docs_in - count.kept:,} documents, and it declares that it drops none (`drops = False`)"
            )
        for task_files in flow.files:
            self.remember(task_files)
        beside = [f for p in after.parts for f in [*p["verdicts"], *p["signals"]]]
        ended = {"parts": list(after.parts), "files": {f["path"]: f for f in beside}}
        if (
            engine.journal.done.get(task) != ended
        ):  # for `plan`, which looks a global stage up without going through its rounds
            engine.journal.add(task, ended)
        if not engine.journal.done.get(begun_of(task), {}).get("ended"):
            engine.journal.add(begun_of(task), {"ended": True, "files": flow.between_rounds})
        self.finish(node, list(after.parts), print_)

    def said_of(self, stage: Stage, error: Exception) -> str:
        """What is wrong with a global stage, and where in its code unless it says that itself."""
        if isinstance(error, CannotRun):
            return f"{registry.named(stage)}: {error}"
        self.store.write("logs/trace.txt", plain("".join(traceback.format_exception(error))).encode("utf-8", "replace"))
        return f"{registry.named(stage)}: {type(error).__name__}: {error} (where in the code: {self.store.at('logs/trace.txt')})"

    def fed(self, node: Node) -> list[Part]:
        return sorted((p for name in node.feeds for p in self.documents[name].parts), key=lambda p: str(p["key"]))

    def remember(self, files: dict[str, Any]) -> None:
        self.mine |= {facts["path"] for facts in files.values()}

    def finish(self, node: Node, parts: list[Part], print_: str) -> None:
        """A node is done: its manifest is written."""
        self.documents[node.name] = Documents(tuple(parts))
        stages = [s.called for s in node.in_order_of_work] if isinstance(node, Leg) else [node.name]
        manifest = {
            "leg": node.name,
            "stages": stages,
            "feeds": list(node.feeds),
            "fingerprint": print_,
            "rows": sum(p["rows"] for p in parts),
            "parts": [manifest_part(node.name, p) for p in parts],
        }
        self.keep_json(f"legs/{node.name}/manifest.json", manifest)
        self.face.ends(node)

    def keep_json(self, path: str, data: dict[str, Any]) -> None:
        self.journal.keep(path, json_bytes(data))

    def record(self, status: str = "done", error: str | None = None, more_alarms: Sequence[str] = ()) -> dict[str, Any]:
        """run.json."""
        facts: dict[str, Any] = {
            "started": datetime.fromtimestamp(self.began, UTC).isoformat(timespec="seconds"),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(time.time() - self.began, 3),
            "start": {
                "seconds": round(self.start_seconds, 3)
            },  # until workers were ready, kernels that had to be compiled among it
            "joules": self.meter.joules(),  # of the driver's machine; null: no meter
            "disk_bytes": sum(size for path, size in self.store.files("").items() if path in self.mine),
            "inputs": self.input_facts,
            "alarms": [
                *alarms_of_inputs(self.inputs),
                *more_alarms,
                *alarms(self.plan, self.account, ended=status == "done"),
            ],
        }
        return record_of(
            self.recipe,
            self.plan,
            self.account,
            self.slowest,
            self.where.count,
            {"status": status, "error": error, **facts},
        )

    def write_reports(self, record: dict[str, Any], pages: dict[str, list[dict[str, Any]]]) -> None:
        from gristmill.pipeline.look.token_sets import card_of
        from gristmill.pipeline.report.build import build_report
        from gristmill.pipeline.run.samples import legs_with_rules, samples_of

        legs = legs_with_rules(self.store)
        for entry in record["stages"]:
            steady: dict[str, Any] = without_times(entry)
            steady |= {"samples": samples_of(self.store, entry["name"], legs)}
            steady |= self.told.get(entry["name"], {})
            if entry["name"] in pages:
                steady |= {"pages": pages[entry["name"]]}
            if entry["name"] in self.scored and record["status"] == "done":
                steady |= {
                    "scores": scores_of(
                        self.store, *self.scored[entry["name"]], entry["docs_in"] - entry["quarantined"]
                    )
                }
            self.keep_json(f"stages/{entry['name']}/report.json", steady)
        for name, told in self.told.items():
            if "packing" in told:
                card = card_of(record_up_to(name, record, self.plan, self.recipe), told["packing"], self.heard[name])
                self.journal.keep(f"{told['packing']['folder']}/README.md", card.encode("utf-8", "replace"))
        if self.log:
            self.store.write(
                "logs/run.log", "".join(f"{one_line(line)}\n" for line in self.log).encode("utf-8", "replace")
            )
        self.keep_json("run.json", record)
        self.store.write("report.html", build_report(self.store.address).encode("utf-8", "replace"))
