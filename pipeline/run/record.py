"""run.json: the recipe as resolved, versions, the machine, and every stage with its counts, times and cost."""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, cast

import psutil

from gristmill.kernels.common.energy import Machine
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.formatting import as_bytes
from gristmill.pipeline.inputs.portion import Inputs
from gristmill.pipeline.json_types import JSONObject
from gristmill.pipeline.plan.plan import Plan, Segment, Stored
from gristmill.pipeline.recipe.fingerprint import MadeOf
from gristmill.pipeline.recipe.recipe import FOLDERS, Prices, Recipe, Source, Step
from gristmill.pipeline.run.estimate import PartRead, documents_in_all
from gristmill.pipeline.shuffle.saved_index import check_saved
from gristmill.pipeline.shuffle.shuffle import Shuffle
from gristmill.pipeline.store.counts import RunAccount, Slowest
from gristmill.pipeline.store.forgotten import WORK
from gristmill.pipeline.store.journal import Journal, Packed
from gristmill.pipeline.store.partitions import OF_A_PART
from gristmill.pipeline.store.records import (
    FileRef,
    Files,
    MapTask,
    Partition,
    PhaseResult,
    StageMetrics,
)
from gristmill.pipeline.store.run_records import (
    Cost,
    InputRecord,
    PartFiles,
    RunRecord,
    SegmentManifest,
    StageRecord,
    read_if_whole,
)
from gristmill.pipeline.store.storage import Store
from gristmill.stages.stage import Annotate, Global, Reader, Rule, Sink, Stage, snake_case
from gristmill.stages.tokens.folders import owner_of_set

SENTENCE_END = re.compile(r"(?<=\.)(?<!\bal\.)\s")
PACKAGES = ("gristmill", "pyarrow", "numpy", "dask", "distributed", "resiliparse", "xxhash", "pydantic")
# All of a record that a clock, a machine or a price decides.
TIMELY = {"seconds", "started", "finished", "peak_memory", "machine", "joules", "slowest", "cost", "requests"}


@dataclass
class Stopwatch:
    """Times and energy of a run."""

    began: float
    began_monotonic: float
    meter: Machine
    start_seconds: float = 0.0  # until workers were ready

    @classmethod
    def start(cls) -> Stopwatch:
        return cls(time.time(), time.monotonic(), Machine.here())


@dataclass
class Findings:
    """What a run learns as it goes, for its record and its reports: counts, times, logs, metrics, its own files."""

    inputs: dict[str, InputRecord]  # by source, as run.json has them
    account: RunAccount = field(default_factory=RunAccount)
    slowest: Slowest = field(default_factory=Slowest)
    log: list[str] = field(default_factory=list)
    metrics: dict[str, StageMetrics] = field(default_factory=dict)  # by global stage, for its report
    shared_values: StageMetrics = field(default_factory=dict)  # by global stages, for those after them
    # By global stage, all that was shared up to its end.
    shared_up_to: dict[str, StageMetrics] = field(default_factory=dict)
    own_files: set[str] = field(default_factory=set)  # of this version of the run
    read_here: set[str] = field(default_factory=set)  # of these, what global stages read themselves in every run
    written: Packed[FileRef] = field(default_factory=lambda: Packed(FileRef))  # by path, what tasks wrote
    sink_files: set[str] = field(default_factory=set)  # of these, the ones in sinks
    cards: set[str] = field(default_factory=set)  # of data sets; written last, out of the record
    not_shown: dict[str, list[str]] = field(default_factory=dict)  # by stage, what its report lacks, and why
    # By stage that scores or cuts by scores, the documents that it had.
    scored: dict[str, tuple[Step, list[Partition]]] = field(default_factory=dict)

    def take(self, source: str, result: PhaseResult) -> None:
        """The result of a phase on one partition."""
        self.account.add(source, result.counts, result.peak_memory)
        self.slowest.add(result.slowest)
        self.log += result.log
        self.take_files(result.files)
        self.sink_files |= {facts.path for role, facts in result.files.items() if role.startswith("sink/")}

    def take_files(self, files: Files) -> None:
        self.own_files |= {facts.path for facts in files.values()}
        self.written.update({facts.path: facts for facts in files.values()})

    def take_flow(self, name: str, stage: Global, flow: Shuffle) -> None:
        """What a global stage reported and shared."""
        self.read_here |= flow.gathered
        self.metrics[name] = flow.metrics
        self.shared_values |= flow.run.values
        self.shared_up_to[name] = dict(self.shared_values)
        readme = stage.readme_path(flow.metrics)
        if readme is not None:
            self.cards.add(readme)

    def extrapolate(
        self, source: str, inputs: Inputs, tasks: Iterable[MapTask], results: Mapping[str, PhaseResult]
    ) -> None:
        """Of a run on some parts of a source: how many documents the whole has."""
        if inputs.sizes:
            parts = [PartRead.of(task, results[task.phases[0].task].counts[source]) for task in tasks]
            self.inputs[source]["estimate"] = documents_in_all(parts, inputs.sizes)

    def note_scores(self, called: str, step: Step, parts: list[Partition]) -> None:
        """Note the documents whose scores the report shows: those that were scored, or that are to be cut by score;
        rules come after."""
        if step.stage.scored_signals:
            before = self.scored.get(called, (step, []))[1]
            self.scored[called] = (step, before + parts)


def record_of(
    recipe: Recipe, plan: Plan, findings: Findings, workers: int, stopwatch: Stopwatch, known: RunRecord
) -> RunRecord:
    """The record of a run; `known` is what only the run itself knows of it. One that ended before its end has the
    stages that are done."""
    prices, joules = recipe.head.prices, stopwatch.meter.joules()
    stages: list[StageRecord] = []
    inserted, moved = plan.inserted(), plan.moved()
    for name, thing in plan.stage_order():
        if not known.done and name not in findings.account.stages:
            continue
        stage = thing.reader.stage if isinstance(thing, Source) else thing.stage
        earlier = list(findings.metrics.get(name, {}).get("earlier_runs") or [])
        made = entry(name, stage, findings.account, findings.slowest, prices)
        made = replace(made, inserted_for=inserted.get(name, ""), moved_behind=moved.get(name, ""))
        stages.append(replace(made, earlier_runs=earlier))
    return replace(
        known,
        name=recipe.name,
        gristmill=version("gristmill"),
        recipe=recipe.resolved(),
        versions={name: version(name) for name in PACKAGES} | {"python": platform.python_version()},
        machine={
            "system": platform.platform(),
            "cores": psutil.cpu_count(logical=True),
            "memory": psutil.virtual_memory().total,
            "workers": workers,
        },
        started=datetime.fromtimestamp(stopwatch.began, UTC).isoformat(timespec="seconds"),
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - stopwatch.began_monotonic, 3),
        # Until workers were ready; compiling kernels is in it.
        start={"seconds": round(stopwatch.start_seconds, 3)},
        joules=joules,  # of the driver's machine; None: no meter
        inputs=findings.inputs,
        bytes_written=written_by_use(findings.written.values()),
        cost=cost_of(stages, joules, known.requests, prices),
        stages=stages,
    )


def record_up_to(name: str, record: RunRecord, plan: Plan, recipe: Recipe) -> RunRecord:
    """The record less all that the documents of a global stage did not pass: stages after it, sinks, sources that join
    later."""
    passed = plan.leading_to(name)
    end = 1 + next(place for place, step in enumerate(recipe.steps) if step.called == name)
    part = replace(
        recipe, sources=tuple(source for source in recipe.sources if source.name in passed), steps=recipe.steps[:end]
    )
    stages = [stage for stage in record.stages if stage.name in passed]
    return replace(record, recipe=part.resolved(), stages=stages)


def about(stage: Stage) -> str:
    """The first sentence of its docstring, however many lines it takes."""
    paragraph = " ".join((type(stage).__doc__ or "").strip().split("\n\n")[0].split())
    return SENTENCE_END.split(paragraph)[0]


def entry(name: str, stage: Stage, account: RunAccount, slowest: Slowest, prices: Prices | None) -> StageRecord:
    """One stage. Its cost is of the seconds in which workers were at it, whenever that was."""
    total = account.total(name).in_record()
    return StageRecord(
        name=name,
        stage=stage.recipe_name(),
        kind=kind_of(stage),
        about=about(stage),
        settings=stage.model_dump(mode="json", exclude_none=True),
        adds=list(stage.added),
        count=total,
        peak_memory=account.peak_memory.get(name, 0),
        slowest=slowest.by_stage.get(name, []),
        cost=None if prices is None else round(prices.of_seconds(total.seconds, stage.gpu), 6),
        sources={source: count.in_record() for source, count in sorted(account.stages.get(name, {}).items())},
    )


def written_by_use(files: Iterable[FileRef]) -> dict[str, int]:
    """Bytes of all files that a run wrote, those that went again too, by what they are for."""
    uses = {"results": 0, "rejects": 0, "intermediates": 0}
    for facts in files:
        folder = facts.path.split("/")[0]
        use = "intermediates" if folder in ("partitions", "shuffle") else "rejects" if folder == "stages" else "results"
        uses[use] += facts.bytes
    return uses


def cost_of(
    stages: list[StageRecord], joules: float | None, requests: Mapping[str, int] | None, prices: Prices | None
) -> Cost | None:
    """What the whole cost at the recipe's prices; None where it names none."""
    if prices is None:
        return None
    energy = (joules or 0.0) / 3.6e6 * prices.kilowatt_hour
    sent = requests or {}
    asked = prices.of_requests(sent) + prices.of_bytes(sent.get("bytes_in", 0))
    amount = sum(stage.cost or 0.0 for stage in stages) + energy + asked
    return Cost(round(amount, 6), prices.currency)


def without_times(data: Any) -> Any:
    """A record less what differs between two runs that did the same."""
    if isinstance(data, dict):
        return {k: without_times(v) for k, v in data.items() if k not in TIMELY}
    return [without_times(v) for v in data] if isinstance(data, list) else data


def kind_of(stage: Stage) -> str:
    for kind, name in ((Reader, "read"), (Global, "global"), (Sink, "sink"), (Rule, "rule"), (Annotate, "annotate")):
        if isinstance(stage, kind):
            return name
    return "rewrite"


def manifest_of(node: Stored, parts: list[Partition], node_fingerprint: str, made_of: MadeOf) -> SegmentManifest:
    return SegmentManifest(
        segment=node.name,
        stages=[step.called for step in node.in_order_of_work] if isinstance(node, Segment) else [node.name],
        feeds=list(node.feeds),
        fingerprint=node_fingerprint,
        made_of=made_of,
        rows=sum(part.rows for part in parts),
        parts=[manifest_part(node.name, part) for part in parts],
    )


def manifest_part(node: str, part: Partition) -> PartFiles:
    """What the manifest of a segment or global stage says of a part: the files that it wrote itself."""
    files = [part.documents] if part.documents else []
    files += [*part.verdicts, *part.signals]
    own = {facts.path.rsplit(".", 2)[1]: facts for facts in files if facts.path.startswith(f"partitions/{node}/")}
    sinks = part.sinks if part.node == node else {}
    return PartFiles(
        key=part.key,
        source=part.source,
        owner="" if part.node == node else part.node,
        inputs=part.inputs,
        rows=part.rows,
        kept=part.kept,
        files={name: facts.path for name, facts in own.items()}
        | {f"sink/{name}": path for name, path in sinks.items()},
        checksums={name: facts.checksum for name, facts in own.items()},
    )


def manifest_before(store: Store, journal: Journal, name: str) -> SegmentManifest | None:
    """What the last run wrote of a segment or global stage; a damaged manifest is written anew."""
    path = f"partitions/{name}/manifest.json"
    return read_if_whole(store, path, SegmentManifest) if journal.is_as_written(path) else None


def gone_since(inputs: Mapping[str, Inputs], store: Store, journal: Journal) -> dict[str, list[str]]:
    """By source: files that the last run in this folder read and that are no longer among the inputs."""
    gone = {}
    for name, taken in inputs.items():
        manifest = manifest_before(store, journal, name)
        before = {span.path for part in (manifest.parts if manifest else ()) for span in part.inputs if span.path}
        gone[name] = sorted(before - {file.path for file in taken.files})
    return gone


def is_done(store: Store) -> bool:
    """Is there a finished run in a folder? The same recipe needs no workers then."""
    record = store.read_json_if_whole("run.json")
    return isinstance(record, dict) and record.get("status") == "done"


def check_may_run(recipe: Recipe, store: Store, journal: Journal, whole: bool) -> None:
    """What `run` and `plan` refuse before any work: a folder of another recipe's, one in which documents are being
    forgotten, and an index that is missing or another's. `whole`: of the whole input, not a part of it."""
    if store.local and store.exists(WORK):
        raise RunFailed(
            f"{store.address}: documents are being forgotten here, and that was broken off; "
            f"finish it first: gristmill forget {store.address}"
        )
    check_folder(recipe, store, journal)
    check_saved(recipe, whole)


def check_folder(recipe: Recipe, store: Store, journal: Journal) -> None:
    """A folder belongs to the recipe of one name; another version of that recipe is welcome."""
    if not journal.is_as_written("run.json"):
        return  # damaged: the journal shows whose folder this is, and the record is written anew
    record = store.read_json("run.json")
    ours = isinstance(record, dict) and isinstance(record.get("name"), str)
    if ours and record["name"] != recipe.name:
        raise RecipeError(
            f"{store.address}: this folder holds a run of the recipe named {record['name']}, not {recipe.name}; "
            "choose another --out, or remove it"
        )
    if record is not None and not ours:
        raise RecipeError(
            f"{store.address}: this folder holds files that are no run of ours (its run.json is not); "
            "choose an empty one"
        )
    if (
        record is None
        and any(not p.startswith((".lock", "logs/", "journal/")) for p in store.files(""))
        and not store.exists("journal")
    ):
        raise RecipeError(f"{store.address}: this folder holds files that are no run of ours; choose an empty one")


# --- files of earlier versions of a run -------------------------------------------------------------------------------

OF_A_FOLDER = re.compile(r"partitions/[^/]+/(manifest|rules|survey)\.json|stages/[^/]+/report\.json")


def stale_files(store: Store, plan: Plan, journal: Journal, own_files: set[str]) -> list[str]:
    """Files that the journal knows to be ours, and, where a run was killed before it could note them, files that bear
    the name of a part in folders of ours; less `own_files`, those of this version of the run."""
    present = store.files("")
    folders = (
        "partitions/",
        "stages/",
        "shuffle/",
        *(f"{x.called}/" for _, x in plan.stage_order() if isinstance(x, Step) and isinstance(x.stage, Sink)),
    )
    stale = journal.made.keys() - own_files
    stale |= {path for path in present if path.startswith(folders) and OF_A_PART.search(path)} - own_files
    stale |= {path for path in present if owner_of_set(path) is not None} - own_files
    names = {name for name, _ in plan.stage_order()}
    used = {f"partitions/{node.name}/manifest.json" for node in plan.stored} | {
        f"stages/{name}/report.json" for name in names
    }
    for segment in plan.segments:  # a stage that began a segment before may now stand within one
        used |= {f"partitions/{segment.name}/rules.json", f"partitions/{segment.name}/survey.json"}
    stale |= {path for path in present if OF_A_FOLDER.fullmatch(path)} - used
    unused = {path for paths in unused_results(present, names).values() for path in paths}
    return sorted(stale - unused)


def unused_results(paths: Iterable[str], stages: Collection[str]) -> dict[str, list[str]]:
    """Results of stages that are not among `stages`: their files, by the stage that wrote them."""
    unused: dict[str, list[str]] = {}
    for path in sorted(paths):
        owner = owner_of(path)
        if owner is not None and owner not in stages:
            unused.setdefault(owner, []).append(path)
    return unused


def owner_of(path: str) -> str | None:
    """The stage whose result a file is, by its path; None for files that are no results."""
    owner = owner_of_set(path)
    if owner is not None:
        return owner
    folder, _, name = path.partition("/")
    return folder if folder not in FOLDERS and "/" not in name and OF_A_PART.search(name) else None


def alarms_of_unused(store: Store, plan: Plan) -> list[str]:
    present = store.files("")
    unused = unused_results(present, {name for name, _ in plan.stage_order()})
    return [
        f"{stage} is no longer in the recipe; its results in {folder_of(paths)} ({len(paths):,} files, "
        f"{as_bytes(sum(present[path] for path in paths))}) are those of an earlier run and are kept; "
        f"`gristmill maintain clean {store.address} --unused` removes them"
        for stage, paths in unused.items()
    ]


def folder_of(paths: list[str]) -> str:
    """The folder that files lie in, at whatever depth."""
    first, last = paths[0].split("/")[:-1], paths[-1].split("/")[:-1]
    return "".join(f"{step}/" for step, other in zip(first, last, strict=False) if step == other)


def stages_of(resolved: JSONObject) -> set[str]:
    """Names of all stages of a recipe as run.json has it."""
    settings = cast(Mapping[str, Any], resolved)
    lists = [settings.get("stages", []), *(each.get("stages", []) for each in settings.get("sources", {}).values())]
    return {
        str(own.get("name") or snake_case(address.rpartition(":")[2]))
        for steps in lists
        for step in steps
        for address, own in step.items()
    }
