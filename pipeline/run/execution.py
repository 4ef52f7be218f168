"""A recipe carried out in a folder: legs and global stages in order, and what they leave when all is done."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from gristmill.pipeline import fingerprint
from gristmill.pipeline.engine.cluster import Where
from gristmill.pipeline.engine.engine import Engine
from gristmill.pipeline.engine.work import look_here
from gristmill.pipeline.errors import DamagedFile, OverBudget, RecipeError, RetiredFiles, in_words
from gristmill.pipeline.formatting import one_line
from gristmill.pipeline.inputs.budget import Budget
from gristmill.pipeline.inputs.notes import (
    alarms_of_changes,
    alarms_of_inputs,
    facts_of,
    fetches_of,
    gone_since,
    notes_of,
)
from gristmill.pipeline.inputs.portion import Inputs, Portion, find_inputs
from gristmill.pipeline.leg.numbers import task_of_numbers, with_numbers
from gristmill.pipeline.leg.rules import without_condemned
from gristmill.pipeline.leg.side_by_side import task_of_pages
from gristmill.pipeline.plan.changes import changes, made_before
from gristmill.pipeline.plan.plan import GlobalNode, Leg, Node, Plan, make_plan
from gristmill.pipeline.plan.sink_columns import as_text, schema_of
from gristmill.pipeline.progress.progress_file import OnRecord, words_of
from gristmill.pipeline.progress.ui import UI
from gristmill.pipeline.recipe import registry
from gristmill.pipeline.recipe.recipe import Recipe, Step
from gristmill.pipeline.run.alarms import alarms, alarms_of_run
from gristmill.pipeline.run.findings import Findings
from gristmill.pipeline.run.global_stage import run_global_stage
from gristmill.pipeline.run.leg_tasks import documents_of, tasks_of_leg, tasks_of_rules
from gristmill.pipeline.run.record import (
    Stopwatch,
    manifest_of,
    record_of,
    without_times,
    written_by_use,
)
from gristmill.pipeline.run.reports import SUMMARY, remove_stale_summary, write_reports
from gristmill.pipeline.run.stale import alarms_of_unused, stale_files
from gristmill.pipeline.store.faults import NAMED, few
from gristmill.pipeline.store.journal import Journal
from gristmill.pipeline.store.objects import REQUESTS, since
from gristmill.pipeline.store.parts import StoredDocuments
from gristmill.pipeline.store.records import FileFacts, LegTask, PageSample, Part, Result, RulesTask, counts_by_stage
from gristmill.pipeline.store.run_records import InputRecord, LegRules, Manifest, RunRecord
from gristmill.pipeline.store.sinks import publish
from gristmill.pipeline.store.store import Store, json_bytes
from gristmill.pipeline.survey.tasks import Look
from gristmill.stages.stage import Map, Sink

SLOW_PREPARATION = 3.0  # seconds worth a word


@dataclass
class Summary:
    """What a run came to."""

    out: str
    record: RunRecord
    worked: int
    alarms: list[str] = field(default_factory=list)


class Execution:
    """One run, from its plan to its report."""

    def __init__(
        self,
        recipe: Recipe,
        store: Store,
        where: Where,
        ui: UI,
        portion: Portion,
        journal: Journal,
        check_inputs: bool,
        budget: Budget | None = None,
    ) -> None:
        self.recipe = recipe
        self.budget = budget
        self.recording: OnRecord | None = None
        self.store = store
        self.journal = journal
        self.ui = ui
        self.portion = portion
        self.check_inputs = check_inputs
        self.plan: Plan = make_plan(recipe)
        self.where = replace(
            where, gpus=any(thing.stage.gpu for _, thing in self.plan.stage_order() if isinstance(thing, Step))
        )
        self.stopwatch = Stopwatch.start()
        self.sent = dict(REQUESTS)
        self.sent_by_tasks: Counter[str] = Counter()
        self.inputs: dict[str, Inputs] = find_inputs(recipe, store, portion, check=check_inputs)
        for name, inputs in self.inputs.items():
            for file in inputs.files:
                where.check_reaches(file.address, f"sources.{name}: ")
        self.findings = Findings(facts_of(self.inputs, gone_since(self.inputs, store, journal)))
        self.documents: dict[str, StoredDocuments] = {}
        self.numbers: dict[str, FileFacts] = {}  # by path of a documents file, what stays of it
        self.begun = False
        # Of the wave at hand, the tasks whose results are not taken yet.
        self.at_work: dict[str, LegTask | RulesTask] = {}

    def carry_out(self) -> Summary:
        gone: dict[str, InputRecord] = {
            name: {"gone": entry["gone"]} for name, entry in self.findings.inputs.items() if "gone" in entry
        }
        for line in [*alarms_of_inputs(self.inputs), *fetches_of(self.findings.inputs), *notes_of(gone)]:
            self.ui.note(line)  # before the work, which may be in vain
        journal = self.journal
        journal.check(self.store.stamps(""))
        journal.gather()
        if journal.damaged:
            self.ui.note(
                f"changed or damaged since it was written: {few(journal.damaged[:NAMED], len(journal.damaged))}; "
                "the work behind it is repeated"
            )
        for line in self.why_again():
            self.ui.note(line)
        if self.store.read_json_if_whole("run.json") is None:
            self.begin()
        prepare = None if self.where.forked else self.prepare  # workers that are forked have a template, which does it
        engine = Engine(journal, self.where, self.ui, self.recipe.path, prepare, self.begin, self.budget)
        self.sent_by_tasks = engine.requests
        if self.recording is not None:
            self.recording.deaths = lambda: engine.deaths
            self.recording.memory = engine.memory
        try:
            with engine:
                with self.stopwatch.meter:
                    for wave in self.plan.waves():
                        self.work(wave, engine)
                    self.take_numbers(engine)
                    engine.finish_along()
                self.stopwatch.start_seconds = engine.start_seconds
                return self.end(engine)
        except (DamagedFile, RetiredFiles):  # `run` tries again at once
            raise
        except BaseException as error:
            if self.begun or not isinstance(error, RecipeError):
                self.break_off(error, journal)
            raise

    def end(self, engine: Engine) -> Summary:
        """All work is done: what is stale goes, and the record and the reports are written."""
        journal = self.journal
        self.store.remove_temporary()  # of workers that were killed
        # Even if nothing was worked on: an input that is gone leaves outputs and no work.
        own_files = self.findings.own_files | self.findings.cards
        self.store.remove(stale_files(self.store, self.plan, journal, own_files))
        changed = alarms_of_changes(self.inputs) if engine.worked else []
        record = self.record(more_alarms=[*changed, *alarms_of_unused(self.store, self.plan)])
        before: RunRecord | None = self.store.read_json_if_whole("run.json")
        if (
            engine.worked
            or journal.damaged
            or before is None
            or before.get("status") != "done"
            or without_times(before) != without_times(record)
        ):
            from gristmill.pipeline.survey.survey import survey_legs

            survey_legs(self.store, journal.keep, engine.look, self.not_shown)
            pages: dict[str, list[PageSample]] = {}
            for name, tasks in self.findings.pages.items():
                for result in map(engine.result_along, tasks):
                    if "failed" in result:
                        self.not_shown(name, f"pages: {result['failed']}")
                    pages.setdefault(name, []).extend(result.get("pages", []))
            self.write_reports(record, pages, engine.look)
        else:
            record = before
        self.retire()
        journal.settle(own_files - journal.retired)
        journal.flush()
        return Summary(self.store.address, record, engine.worked, record["alarms"])

    def begin(self) -> None:
        """What the folder says of itself from here on is of this run, and no more of one before it."""
        self.begun = True
        started = {"name": self.recipe.name, "status": "running", "recipe": self.recipe.resolved()}
        self.journal.keep("run.json", json_bytes(started))
        self.journal.settle(())
        self.journal.flush()

    def break_off(self, error: BaseException, journal: Journal) -> None:
        """The record and report of what is there, for a run that ends before its end; why it did is said by whoever
        catches the error."""
        try:
            self.taken([task for task in self.at_work.values() if task["task"] in journal.done], journal.done)
            status = "interrupted" if isinstance(error, KeyboardInterrupt | OverBudget) else "failed"
            record = self.record(status, words_of(error))
            self.write_reports(record, {}, partial(look_here, lease=self.store.lease_token))
            self.journal.flush()
        except Exception as also:  # a full disk, say, which may be the error itself: that one is to be heard
            why = in_words(also, self.store.address) if isinstance(also, OSError) else f"{also}" or type(also).__name__
            self.ui.note(f"no report of what there is: {why}")

    def prepare(self) -> None:
        """What stages like to have done once on a machine, before many workers do it at once."""
        stages = self.plan.to_prepare()
        if stages:
            start = time.monotonic()
            for stage in stages:
                registry.prepare(stage)
            if time.monotonic() - start > SLOW_PREPARATION:
                self.ui.note(
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
            self.findings.extrapolate(source, self.inputs[source], tasks[source], results)
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
                self.findings.note_scores(step.called, step, worked[leg.name])

    def work_legs(self, legs: list[Leg], engine: Engine) -> tuple[dict[str, list[LegTask]], dict[str, Result]]:
        """The work of legs, and what came of it. Where some documents of a source are asked for and its parts have too
        few, more are read."""
        tasks: dict[str, list[LegTask]] = {}
        results: dict[str, Result] = {}
        ever: dict[str, set[str]] = {leg.name: set() for leg in legs}  # those that gave way to others are done too
        short = legs  # whose parts have too few documents, or were not worked on yet
        while short:
            for leg in short:
                tasks[leg.name] = tasks_of_leg(leg, self.recipe, self.journal, self.inputs, self.fed(leg))
                ever[leg.name].update(task["task"] for task in tasks[leg.name])
                self.ui.begins(leg, len(ever[leg.name]))
            counted = [
                task["task"]
                for of_leg in tasks.values()
                for task in of_leg
                if documents_of(task) in engine.journal.done
            ]
            results |= self.results(engine, tasks, {*results, *counted})
            short = [
                leg
                for leg in legs
                if leg.source is not None and self.takes_more(leg.source.name, tasks[leg.name], results, engine.journal)
            ]
        return tasks, results | self.results(engine, tasks, results)

    def takes_more(self, source: str, tasks: list[LegTask], results: dict[str, Result], journal: Journal) -> bool:
        """Have the parts of a source given fewer documents than are asked for, and are there more? How many they gave
        stays known when those files are not used, so that the same command finds the same parts again without reading.
        """
        given = {}
        for task in tasks:
            result = results.get(task["task"])
            given[task["key"]] = (
                journal.done[documents_of(task)]["documents"]
                if result is None
                else counts_by_stage(result)[source]["kept"]
            )
        more = self.inputs[source].topped_up(self.portion.documents, given)
        if more is None:
            return False
        for task in tasks:
            if documents_of(task) not in journal.done:
                journal.add(documents_of(task), {"documents": given[task["key"]]})
        self.inputs[source] = more.with_contents(self.store, check=self.check_inputs)
        return True

    def results(
        self, engine: Engine, tasks: Mapping[str, Sequence[LegTask | RulesTask]], done: Container[str] = ()
    ) -> dict[str, Result]:
        """Of the tasks of some legs, less those that are `done`."""
        self.at_work = {task["task"]: task for of_leg in tasks.values() for task in of_leg}
        return engine.run(task for name, task in self.at_work.items() if name not in done)

    def publish_sinks(self, leg: Leg) -> None:
        """The sinks of a leg appear, each when the last leg that writes into it has been worked."""
        for sink in [step.called for step in leg.works if isinstance(step.stage, Sink)]:
            others = [
                n
                for n in self.plan.nodes
                if isinstance(n, Leg) and n is not leg and sink in [step.called for step in n.works]
            ]
            if all(n.name in self.documents for n in others):
                wanted = {path for path in self.findings.sink_files if path.startswith(f"{sink}/")}
                if publish(self.store, sink, wanted):
                    self.journal.named(wanted)

    def look_at_pages(self, leg: Leg, parts: list[Part], engine: Engine) -> None:
        """Have some pages, extracted and whole, looked at for the report, of a leg that extracts what it reads."""
        stages = [s.called for s in leg.steps if isinstance(s.stage, Map) and s.stage.shows_pages]
        if leg.source is not None and stages:
            files = {file.path: file for file in self.inputs[leg.source.name].files}
            task = task_of_pages(leg, self.recipe, self.store, parts, files)
            if task is not None and (task["task"] in engine.journal.done or self.is_there(task["part"])):
                self.findings.pages.setdefault(stages[0], []).append(task)
                engine.along(task)

    def note_rules(self, leg: Leg, tasks: list[RulesTask], results: dict[str, Result]) -> None:
        """What the rules of a leg decide on, and where it lies, for `tune` and the report: no documents that killed
        a rule."""
        path = f"legs/{leg.name}/rules.json"
        if tasks and self.recipe.head.keep != "nothing":
            parts = [without_condemned(task["part"], results[task["task"]]) for task in tasks]
            if self.recipe.head.keep == "all" and (
                gone := {documents_path(part) for part in parts if not self.is_there(part)}
            ):
                raise RetiredFiles(gone)  # the last run kept less
            parts = [self.as_it_stays(part) for part in parts]
            rules: LegRules = {"rules": tasks[0]["rules"], "parts": parts}
            self.journal.keep(path, json_bytes(rules))
        elif self.store.exists(path):
            self.store.remove([path])

    def taken(self, tasks: Sequence[LegTask | RulesTask], results: Mapping[str, Result]) -> list[Part]:
        """The parts of some tasks' results, which are noted."""
        for task in tasks:
            self.at_work.pop(task["task"], None)
            self.findings.take(task, results[task["task"]])
        return [results[task["task"]]["part"] for task in tasks]

    def work_global(self, node: GlobalNode, engine: Engine) -> None:
        docs = StoredDocuments(tuple(self.fed(node)))
        self.ui.begins(node, len(docs.parts))
        self.findings.note_scores(node.name, node.step, list(docs.parts))
        partial = not self.portion.whole
        after = run_global_stage(node, docs, self.recipe, self.store, engine, self.findings, partial)
        self.finish(node, list(after.parts), node.fingerprint(self.recipe))

    def fed(self, node: Node) -> list[Part]:
        return sorted((p for name in node.feeds for p in self.documents[name].parts), key=lambda p: str(p["key"]))

    def why_again(self) -> list[str]:
        """Nodes that run again because of what changed since, in one line for each reason."""
        again: dict[str, list[str]] = {}
        for node in self.plan.nodes:
            path = f"legs/{node.name}/manifest.json"
            before: Manifest | None = self.store.read_json_if_whole(path) if self.journal.is_as_written(path) else None
            now = node.made_of(self.recipe)
            then = now if before is None else made_before(before, self.store.at(path))
            if then != now:
                again.setdefault(changes(then, now), []).append(node.name)
        return [f"runs again: {', '.join(names)}; {reason}" for reason, names in again.items()]

    def finish(self, node: Node, parts: list[Part], node_fingerprint: str) -> None:
        """A node is done: its manifest is written."""
        self.documents[node.name] = StoredDocuments(tuple(parts))
        manifest = manifest_of(node, parts, node_fingerprint, node.made_of(self.recipe))
        self.journal.keep(f"legs/{node.name}/manifest.json", json_bytes(manifest))
        self.ui.ends(node)

    def is_there(self, part: Part) -> bool:
        return documents_path(part) not in self.journal.retired

    def as_it_stays(self, part: Part) -> Part:
        """A part whose texts were retired, with the numbers that stayed."""
        if self.is_there(part) or part["documents"] is None:
            return part
        done = self.journal.done.get(task_of_numbers(self.store, part, part["documents"])["task"])
        return part if done is None else with_numbers(part, {part["documents"]["path"]: done["files"]["numbers"]})

    def take_numbers(self, engine: Engine) -> None:
        """What stays of documents whose texts go."""
        if self.recipe.head.keep != "signals":
            return
        parts = {p["documents"]["path"]: p for d in self.documents.values() for p in d.parts if p["documents"]}
        for leg in self.plan.nodes:  # rules that read texts need them whenever they are asked again
            if isinstance(leg, Leg) and any({"text"} & set(step.needs or ["text"]) for step in leg.decides):
                for path in [p["documents"]["path"] for p in self.documents[leg.name].parts if p["documents"]]:
                    parts.pop(path, None)
        tasks = {path: task_of_numbers(self.store, p, p["documents"]) for path, p in parts.items() if p["documents"]}
        results = engine.run(tasks.values())
        for path, task in tasks.items():
            files = results[task["task"]]["files"]
            self.findings.take_files(files)
            self.numbers |= {path: files["numbers"]} if files else {}

    def to_retire(self) -> set[str]:
        """Files of this run that nobody has to read again, by what the recipe says of `keep`."""
        if self.recipe.head.keep == "all":
            return set()
        own = self.findings.own_files - self.findings.read_here
        rows = {path for path in own if path.startswith("flow/") and path.endswith(".arrow")}
        legs = {path for path in own if path.startswith("legs/") and path.endswith(".parquet")}
        return rows | (legs if self.recipe.head.keep == "nothing" else legs & self.numbers.keys())

    def retire(self) -> None:
        """Remove them; `tune` finds the numbers that stay."""
        paths = self.to_retire()
        there = [self.findings.written[path] for path in paths - self.journal.retired]
        by_schema = {facts["schema"]: facts for facts in there if "schema" in facts}
        schemas = {schema: as_text(schema_of(self.store, facts)) for schema, facts in by_schema.items()}
        for path in self.store.files("legs") if self.numbers else ():
            if path.endswith("/rules.json"):
                rules: LegRules = self.store.read_json(path)
                parts = [with_numbers(part, self.numbers) for part in rules["parts"]]
                self.journal.keep(path, json_bytes({**rules, "parts": parts}))
        if paths:
            self.journal.retire(paths, schemas)

    def record(self, status: str = "done", error: str | None = None, more_alarms: Sequence[str] = ()) -> RunRecord:
        """run.json."""
        findings = self.findings
        stays = findings.own_files - self.to_retire()
        disk_bytes = sum(size for path, size in self.store.files("").items() if path in stays)
        loud = [*alarms_of_inputs(self.inputs), *more_alarms]
        loud += alarms(self.plan, findings.account, ended=status == "done")
        record = record_of(
            self.recipe,
            self.plan,
            findings,
            self.where.count,
            {
                "status": status,
                "error": error,
                **self.stopwatch.times(),
                "requests": dict(self.sent_by_tasks + Counter(since(self.sent))) or None,
                "disk_bytes": disk_bytes,
                "bytes_written": written_by_use(findings.written.values()),
                "inputs": findings.inputs,
                "alarms": loud,
            },
        )
        if status == "done" and self.recipe.head.published is not None:
            record["alarms"] += alarms_of_run(record, findings.metrics)
        return record

    def write_reports(self, record: RunRecord, pages: dict[str, list[PageSample]], look: Look) -> None:
        if self.store.exists(SUMMARY):
            remove_stale_summary(self.store, record, self.findings.sink_files, self.ui.note)
        write_reports(
            self.store, self.journal, self.recipe, self.plan, self.findings, record, pages, self.not_shown, look
        )

    def not_shown(self, name: str, what: str) -> None:
        """Note a part of a stage's report that could not be made. The run goes on."""
        self.ui.note(f"the report on {name} is incomplete: {one_line(what)}")
        self.findings.not_shown.setdefault(name, []).append(one_line(what))


def documents_path(part: Part) -> str:
    """The file of its documents, if it has one."""
    return "" if part["documents"] is None else part["documents"]["path"]
