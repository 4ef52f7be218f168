"""One run, from its plan to its report: what was damaged is made again, waves of map nodes and global stages are
carried out in order, and the record and reports are written when all is done."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from gristmill.pipeline import processes
from gristmill.pipeline.engine.budget import Budget
from gristmill.pipeline.engine.cluster import Where
from gristmill.pipeline.engine.engine import Engine
from gristmill.pipeline.engine.executor import DaskExecutor, Executor, InlineExecutor
from gristmill.pipeline.errors import (
    STAGE_ERRORS,
    DamagedFile,
    GristmillError,
    NotConserved,
    OverBudget,
    RecipeError,
    RetiredFiles,
    RunFailed,
    in_words,
    of_storage,
)
from gristmill.pipeline.formatting import one_line, plain as printable
from gristmill.pipeline.inputs.notes import (
    alarms_of_changes,
    alarms_of_inputs,
    facts_of,
    fetches_of,
    notes_of,
)
from gristmill.pipeline.inputs.portion import Inputs, Portion, find_inputs
from gristmill.pipeline.plan.plan import (
    GlobalNode,
    MapNode,
    Node,
    Plan,
    Segment,
    Stored,
    make_plan,
    names_in_recipe,
    names_of,
)
from gristmill.pipeline.processes import single_interrupt
from gristmill.pipeline.progress.progress import UI, ProgressRecorder, Watcher, message_of, recording_progress
from gristmill.pipeline.recipe import registry
from gristmill.pipeline.recipe.fingerprint import changes, shown
from gristmill.pipeline.recipe.recipe import Recipe, Step
from gristmill.pipeline.report_data.survey import Look
from gristmill.pipeline.run.alarms import alarms, alarms_of_run, alarms_of_stages
from gristmill.pipeline.run.map_tasks import global_task, rejects_settings, tasks_of_node
from gristmill.pipeline.run.record import (
    Findings,
    Stopwatch,
    alarms_of_unused,
    check_may_run,
    gone_since,
    is_done,
    manifest_before,
    manifest_of,
    record_of,
    stale_files,
    without_times,
)
from gristmill.pipeline.run.reports import SUMMARY, remove_stale_summary, write_reports
from gristmill.pipeline.shuffle.saved_index import identities_of_loaded
from gristmill.pipeline.shuffle.shuffle import Shuffle
from gristmill.pipeline.shuffle.verdicts import untouched
from gristmill.pipeline.store.counts import NAMED, RunAccount, few
from gristmill.pipeline.store.journal import Journal
from gristmill.pipeline.store.lock import one_run_at_a_time
from gristmill.pipeline.store.partitions import StoredDocuments, publish
from gristmill.pipeline.store.records import (
    FileRef,
    MapTask,
    Partition,
    Phase,
    PhaseResult,
    VerdictsResult,
)
from gristmill.pipeline.store.resume import resume
from gristmill.pipeline.store.run_records import InputRecord, RunRecord, SegmentRules, read_if_whole
from gristmill.pipeline.store.serialize import plain, read_as
from gristmill.pipeline.store.storage import REQUESTS, Store, json_bytes, requests_since
from gristmill.pipeline.tasks.bound_rule import without_poison
from gristmill.pipeline.tasks.rewrites import conform_tasks, task_of_numbers, with_numbers
from gristmill.stages.contract import kind_of
from gristmill.stages.stage import CannotRun, Global, Sink


@dataclass
class Summary:
    """What a run came to."""

    out: str
    record: RunRecord
    worked: int
    alarms: list[str] = field(default_factory=list)


@dataclass
class _Partitions:
    """The partitions of a segment, by key, as far as they are done."""

    measured: dict[str, Partition] = field(default_factory=dict)  # before its rules
    parts: dict[str, Partition] = field(default_factory=dict)  # behind them
    ruled: list[tuple[Phase, Partition, PhaseResult]] = field(
        default_factory=list
    )  # what rules were given, and their result


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
        self.store = store
        self.journal = journal
        self.portion = portion
        self.plan: Plan = make_plan(recipe)
        self.where = replace(
            where,
            gpus=max((thing.stage.gpus for _, thing in self.plan.stage_order() if isinstance(thing, Step)), default=0),
        )
        self.stopwatch = Stopwatch.start()
        self.sent = dict(REQUESTS)
        self.inputs: dict[str, Inputs] = find_inputs(recipe, store, portion, check=check_inputs)
        for name, inputs in self.inputs.items():
            for file in inputs.files:
                where.check_reaches(file.address, f"sources.{name}: ")
        self.findings = Findings(facts_of(self.inputs, gone_since(self.inputs, store, journal)))
        self.documents: dict[str, StoredDocuments] = {}
        self.numbers: dict[str, FileRef] = {}  # by path of a documents file, what stays of it
        self.begun = False
        self.segments = {segment.name: _Partitions() for segment in self.plan.segments}
        self.waiting = Counter(name for node in self.plan.nodes for name in names_of(node))  # nodes of each segment
        self.sinks: dict[str, dict[str, str]] = {}  # by sink, its files and the phases that wrote them
        # Of the wave at hand, the tasks whose results are not taken yet.
        self.at_work: dict[str, MapTask] = {}
        self.ui = ProgressRecorder(
            ui,
            recipe.name,
            self.plan.nodes,
            lambda account: alarms_of_stages(self.plan, account),
            self.stopwatch.began,
        )
        prepare = None if where.forked else self.prepare  # a fork server prepares for its workers
        self.executor: Executor = (
            InlineExecutor(store, prepare)
            if where.inline
            else DaskExecutor(store, self.where, self.ui, recipe.path, prepare, budget)
        )
        self.ui.executor = self.executor
        self.engine = Engine(journal, self.executor, self.ui, self.begin, budget)

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
        try:
            with self.engine:
                with self.stopwatch.meter:
                    for wave in self.plan.waves():
                        if isinstance(wave[0], GlobalNode):
                            self.work_global(wave[0])
                        else:
                            self.work_maps([node for node in wave if isinstance(node, MapNode)])
                    self.take_numbers()
                self.stopwatch.start_seconds = self.executor.start_seconds
                return self.end()
        except (DamagedFile, RetiredFiles):  # `run` tries again at once
            raise
        except BaseException as error:
            if self.begun or not isinstance(error, RecipeError):
                self.break_off(error)
            raise

    def end(self) -> Summary:
        """All work is done: what is stale goes, and the record and the reports are written."""
        journal = self.journal
        # Even if nothing was worked on: an input that is gone leaves outputs and no work.
        own_files = self.findings.own_files | self.findings.cards
        self.store.remove(stale_files(self.store, self.plan, journal, own_files))
        changed = alarms_of_changes(self.inputs) if self.engine.worked else []
        record = self.record(more_alarms=[*changed, *alarms_of_unused(self.store, self.plan)])
        before = read_if_whole(self.store, "run.json", RunRecord)
        if (
            self.engine.worked
            or journal.damaged
            or before is None
            or not before.done
            or without_times(before.to_json()) != without_times(record.to_json())
        ):
            from gristmill.pipeline.report_data.survey import survey_segments

            survey_segments(self.store, journal.keep, self.engine.report, self.not_shown)
            self.write_reports(record, self.engine.report)
        else:
            record = before
        self.retire()
        journal.settle(own_files - journal.retired)
        journal.flush()
        # Drafts of workers that were killed, and the file by which a new worker knows the folder: no task follows.
        self.store.remove_temporary()
        return Summary(self.store.address, record, self.engine.worked, list(record.alarms))

    def begin(self) -> None:
        """What the folder says of itself from here on is of this run, and no more of one before it."""
        self.begun = True
        started = {"name": self.recipe.name, "status": "running", "recipe": self.recipe.resolved()}
        self.journal.keep("run.json", json_bytes(started))
        self.journal.settle(())
        self.journal.flush()

    def break_off(self, error: BaseException) -> None:
        """The record and report of what is there, for a run that ends before its end; why it did is said by whoever
        catches the error."""
        try:
            for task in list(self.at_work.values()):
                self.take(task, resume(task, self.journal.done)[0])
            status = "interrupted" if isinstance(error, KeyboardInterrupt | OverBudget) else "failed"
            record = self.record(status, message_of(error))
            here = InlineExecutor(self.store)
            self.write_reports(record, lambda tasks: [result for _, result in here.results(tasks)])
            self.journal.flush()
        except Exception as also:  # a full disk, say, which may be the error itself: that one is to be heard
            why = in_words(also, self.store.address) if isinstance(also, OSError) else f"{also}" or type(also).__name__
            self.ui.note(f"no report of what there is: {why}")

    def prepare(self) -> None:
        """What stages like to have done once on a machine, before many workers do it at once."""
        for stage in self.plan.to_prepare():
            registry.prepare(stage)

    def work_maps(self, nodes: list[MapNode]) -> None:
        """Carry out the map nodes of a wave together."""
        tasks = {node.name: tasks_of_node(node, self.recipe, self.store, self.inputs, self.fed(node)) for node in nodes}
        self.at_work = {task.task: task for of_node in tasks.values() for task in of_node}
        for node in nodes:
            self.ui.begins(node, len(tasks[node.name]))
        results = cast(dict[str, PhaseResult], self.engine.run(self.at_work.values()))
        for node in nodes:
            if node.source is not None:
                source = node.source.name
                self.findings.extrapolate(source, self.inputs[source], tasks[node.name], results)
            for task in tasks[node.name]:
                self.take(task, results)
        self.finish_segments(nodes)

    def finish_segments(self, nodes: list[MapNode]) -> None:
        """Finish the segments of which these were the last nodes."""
        done = Counter(name for node in nodes for name in names_of(node))
        self.waiting -= done
        for segment in self.plan.segments:
            if segment.name in done and not self.waiting[segment.name]:
                self.finish_segment(segment)
        for node in nodes:
            self.ui.ends(node)

    def take(self, task: MapTask, results: Mapping[str, PhaseResult]) -> None:
        """Note the results of a task: its account, and its partition as each segment left it."""
        self.at_work.pop(task.task, None)
        key, part = task.key, task.part
        for phase in task.phases:
            segment, result = self.segments[phase.segment], results.get(phase.task)
            if result is not None:
                self.findings.take(task.source, result)
                for role, facts in result.files.items():
                    if role.startswith("sink/"):
                        self.sinks.setdefault(role.removeprefix("sink/"), {})[facts.path] = phase.task
            if phase.rules and part is not None:
                segment.measured[key] = part
                if result is not None:
                    segment.ruled.append((phase, part, result))
            if result is not None:
                part = result.part
            elif not phase.rules or part is None:
                return  # a run that was broken off
            segment.parts[key] = part
            segment.measured.setdefault(key, part)

    def finish_segment(self, segment: Segment) -> None:
        """All partitions of a segment are done: its sinks appear, and its manifest is written."""
        found = self.segments[segment.name]
        parts = [found.parts[key] for key in sorted(found.parts)]
        self.publish_sinks(segment)
        self.note_rules(segment, sorted(found.ruled, key=lambda ruled: str(ruled[1].key)))
        self.finish(segment, parts, segment.fingerprint_with_rules(self.recipe))
        for step in segment.works:
            self.findings.note_scores(step.called, step, [found.measured[key] for key in sorted(found.measured)])

    def publish_sinks(self, segment: Segment) -> None:
        """The sinks of a segment appear, each when the last segment that writes into it is done."""
        for sink in [step.called for step in segment.works if isinstance(step.stage, Sink)]:
            others = [
                other
                for other in self.plan.segments
                if other is not segment and sink in [step.called for step in other.works]
            ]
            if all(other.name in self.documents for other in others):
                self.conform(sink)
                wanted = {path for path in self.findings.sink_files if path.startswith(f"{sink}/")}
                if publish(self.store, sink, wanted):
                    self.journal.named(wanted)

    def conform(self, sink: str) -> None:
        """Give all files of a sink the same columns."""
        done, phases = self.journal.done, self.sinks.get(sink, {})
        files = {path: done[phase].files[f"sink/{sink}"] for path, phase in sorted(phases.items())}
        tasks = conform_tasks(self.store, sink, list(files.values()))
        results = self.engine.run(tasks)
        for task in tasks:
            rewritten = results[task.task].files
            phase = phases[task.key]
            self.journal.add(phase, replace(done[phase], files=done[phase].files | rewritten))
            self.findings.take_files(rewritten)

    def note_rules(self, segment: Segment, ruled: Sequence[tuple[Phase, Partition, PhaseResult]]) -> None:
        """What the rules of a segment decide on, and where it is stored, for `tune` and the report: without documents
        that killed a rule."""
        path = f"partitions/{segment.name}/rules.json"
        if ruled and self.recipe.head.keep != "nothing":
            parts = [without_poison(part, result) for _, part, result in ruled]
            if self.recipe.head.keep == "all" and (
                gone := {documents_path(part) for part in parts if not self.is_there(part)}
            ):
                raise RetiredFiles(gone)  # the last run kept less
            rules = SegmentRules(ruled[0][0].rules, tuple(self.as_it_stays(part) for part in parts))
            self.journal.keep(path, json_bytes(plain(rules)))
        elif self.store.exists(path):
            self.store.remove([path])

    def work_global(self, node: GlobalNode) -> None:
        """Run the rounds of a global stage, check its account, and enter it in the journal."""
        docs, name, findings = StoredDocuments(tuple(self.fed(node))), node.name, self.findings
        self.ui.begins(node, len(docs.parts))
        findings.note_scores(name, node.step, list(docs.parts))
        stage_fingerprint = node.fingerprint(self.recipe)
        task = global_task(stage_fingerprint, docs.parts, identities_of_loaded(node.step))
        flow = Shuffle(
            self.engine,
            self.store,
            node.step,
            name,
            stage_fingerprint,
            rejects_settings(self.recipe),
            findings.account,
            before=findings.shared_values,
            partial=not self.portion.whole,
            recipe=self.recipe.name,
            keeps_maps=self.recipe.head.keep == "all",
        )
        stage = cast(Global, node.step.stage)
        after = run_rounds(stage, docs, flow, self.store)
        findings.take_flow(name, stage, flow)
        check_account(name, stage, docs, after, flow, findings.account)
        for files in flow.files:
            findings.take_files(files)
        findings.own_files |= flow.other_paths
        left = VerdictsResult(parts=after.parts, files=flow.files_left(after), counts={})
        if self.journal.done.get(task) != left:  # for `plan`, which does not go through rounds
            self.journal.add(task, left)
        self.finish(node, list(after.parts), stage_fingerprint)
        self.ui.ends(node)

    def fed(self, node: Node) -> list[Partition]:
        return sorted((p for name in node.feeds for p in self.documents[name].parts), key=lambda p: str(p.key))

    def why_again(self) -> list[str]:
        """What runs again because of what changed since, in one line for each reason."""
        again: dict[str, list[str]] = {}
        for node in self.plan.stored:
            before = manifest_before(self.store, self.journal, node.name)
            now = node.made_of(self.recipe)
            then = now if before is None else before.made_of
            if then != now:
                again.setdefault(changes(then, now), []).extend(names_in_recipe(node))
        return [
            f"runs again: {shown(list(dict.fromkeys(names)), 'stages')}; {reason}" for reason, names in again.items()
        ]

    def finish(self, node: Stored, parts: list[Partition], node_fingerprint: str) -> None:
        """Write the manifest of a segment or global stage that is done."""
        self.documents[node.name] = StoredDocuments(tuple(parts))
        manifest = manifest_of(node, parts, node_fingerprint, node.made_of(self.recipe))
        self.journal.keep(f"partitions/{node.name}/manifest.json", json_bytes(manifest.to_json()))

    def is_there(self, part: Partition) -> bool:
        return documents_path(part) not in self.journal.retired

    def as_it_stays(self, part: Partition) -> Partition:
        """A part whose texts were retired, with the numbers that stayed."""
        if self.is_there(part) or part.documents is None:
            return part
        done = self.journal.done.get(task_of_numbers(self.store, part, part.documents).task)
        return part if done is None else with_numbers(part, {part.documents.path: done.files["numbers"]})

    def take_numbers(self) -> None:
        """What stays of documents whose texts go."""
        if self.recipe.head.keep != "signals":
            return
        parts = {p.documents.path: p for d in self.documents.values() for p in d.parts if p.documents}
        for segment in self.plan.segments:  # rules that read texts need them whenever they are asked again
            if any({"text"} & set(step.needs or ["text"]) for step in segment.decides):
                for path in [p.documents.path for p in self.documents[segment.name].parts if p.documents]:
                    parts.pop(path, None)
        tasks = {path: task_of_numbers(self.store, p, p.documents) for path, p in parts.items() if p.documents}
        results = self.engine.run(tasks.values())
        for path, task in tasks.items():
            files = results[task.task].files
            self.findings.take_files(files)
            self.numbers |= {path: files["numbers"]} if files else {}

    def to_retire(self) -> set[str]:
        """Files of this run that nobody has to read again, by what the recipe says of `keep`."""
        if self.recipe.head.keep == "all":
            return set()
        own = self.findings.own_files - self.findings.read_here
        rows = {path for path in own if path.startswith("shuffle/") and path.endswith(".arrow")}
        segments = {path for path in own if path.startswith("partitions/") and path.endswith(".parquet")}
        return rows | (segments if self.recipe.head.keep == "nothing" else segments & self.numbers.keys())

    def retire(self) -> None:
        """Remove them; `tune` finds the numbers that stay."""
        paths = self.to_retire()
        for path in self.store.files("partitions") if self.numbers else ():
            if path.endswith("/rules.json"):
                rules = read_as(SegmentRules, self.store.read_json(path))
                parts = tuple(with_numbers(part, self.numbers) for part in rules.parts)
                self.journal.keep(path, json_bytes(plain(replace(rules, parts=parts))))
        if paths:
            self.journal.retire(paths)

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
            self.stopwatch,
            RunRecord(
                status=status,
                error=error,
                requests=dict(self.engine.requests + Counter(requests_since(self.sent))) or None,
                disk_bytes=disk_bytes,
                alarms=loud,
            ),
        )
        if record.done and self.recipe.head.published is not None:
            record = replace(record, alarms=[*loud, *alarms_of_run(record, findings.metrics)])
        return record

    def write_reports(self, record: RunRecord, look: Look) -> None:
        if self.store.exists(SUMMARY):
            remove_stale_summary(self.store, record, self.findings.sink_files, self.ui.note)
        write_reports(self.store, self.journal, self.recipe, self.plan, self.findings, record, self.not_shown, look)

    def not_shown(self, name: str, what: str) -> None:
        """Note a part of a stage's report that could not be made. The run goes on."""
        self.ui.note(f"the report on {name} is incomplete: {one_line(what)}")
        self.findings.not_shown.setdefault(name, []).append(one_line(what))


def documents_path(part: Partition) -> str:
    """The file of its documents, if it has one."""
    return "" if part.documents is None else part.documents.path


# --- global stages ----------------------------------------------------------------------------------------------------


def run_rounds(stage: Global, docs: StoredDocuments, flow: Shuffle, store: Store) -> StoredDocuments:
    """Run a stage's own program. An error that is none for people is put in words, with its trace."""
    try:
        after = stage.run(docs, flow)
    except (GristmillError, OSError):
        raise
    except STAGE_ERRORS as error:
        if of_storage(error):
            raise
        raise RunFailed(failure_of(stage, error, store)) from error
    if not isinstance(after, StoredDocuments):
        raise RunFailed(f"{registry.named(stage)}: run() answered with {kind_of(after)}; the documents were expected")
    return after


def failure_of(stage: Global, error: BaseException, store: Store) -> str:
    """What is wrong with a global stage, and where in its code unless it says that itself."""
    if isinstance(error, CannotRun):
        return f"{registry.named(stage)}: {error}"
    store.write("logs/trace.txt", printable("".join(traceback.format_exception(error))).encode("utf-8", "replace"))
    where = f"(where in the code: {store.at('logs/trace.txt')})"
    return f"{registry.named(stage)}: {type(error).__name__}: {error} {where}"


def check_account(
    name: str, stage: Global, docs: StoredDocuments, after: StoredDocuments, flow: Shuffle, account: RunAccount
) -> None:
    """Hold a stage to the law that every document is kept or dropped with a reason. All its rounds count into its time
    and memory."""
    if name not in account.stages:  # a stage that only looks: all stay
        for part in docs.parts:
            account.of(name, part.source).add(untouched(part))
    count = account.total(name)
    by_source = account.stages.get(name, {})
    for of_source in by_source.values():  # rounds before the last one cost too
        of_source.seconds += max(0.0, flow.seconds - count.seconds) / len(by_source)
    account.peak_memory[name] = max(account.peak_memory.get(name, 0), flow.peak_memory)
    count.check(name)
    if count.docs_in != docs.rows or count.kept != after.rows:
        raise NotConserved(
            f"{name}: {docs.rows:,} documents were handed over and {after.rows:,} are left, "
            f"but it says {count.docs_in:,} and {count.kept:,}"
        )
    if count.kept < count.docs_in and not stage.drops:
        raise RunFailed(
            f"{name} dropped {count.docs_in - count.kept:,} documents, "
            "and it declares that it drops none (`drops = False`)"
        )


# --- from outside -----------------------------------------------------------------------------------------------------


def run(
    recipe: Recipe,
    out: str,
    where: Where,
    ui: UI,
    portion: Portion | None = None,
    check_inputs: bool = False,
    budget: float | None = None,
    metrics: Watcher | None = None,
) -> Summary:
    """Run a recipe; finished work is not repeated. `check_inputs` hashes all inputs anew, whatever their times say.
    `budget`: what it may cost in all. `metrics` is shown how far the run is, every second."""
    store = Store(out)
    where.check()
    store.make_root()
    where.check_reaches(store.address)
    with single_interrupt(), one_run_at_a_time(store, ui.note):
        journal = Journal(store)
        check_may_run(recipe, store, journal, portion is None or portion.whole)
        store.remove_temporary()
        with processes.fork_server():
            if where.forked and not is_done(store):
                processes.start_fork_server(recipe.path)
            while True:
                try:
                    money = None if budget is None else Budget(budget, recipe.head.prices)
                    running = Execution(recipe, store, where, ui, portion or Portion(), journal, check_inputs, money)
                    with recording_progress(running.ui, store, metrics):
                        return running.carry_out()
                except RetiredFiles as error:
                    journal.bring_back(error.paths)
                    ui.note(f"{len(error.paths):,} files that the last run did not keep are needed; they are made anew")
                except DamagedFile as error:
                    journal.suspect(error)
                    ui.note(f"{error.path} is damaged or was changed; the work that wrote it is repeated")
