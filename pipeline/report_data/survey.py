"""One pass over the stored signals of a segment, for the report: histograms, what every threshold would keep, and
samples.

Workers read the parts, in two steps. `sample` leaves the rows with the smallest hashes of their uids, so that two runs
show the same; `counts` counts all documents by a plan that the sample gives. Each task leaves one small file of a fixed
size, whatever the number of documents; eight are merged into one, until eight are left, which the driver reads. Merges
are of whole numbers and of smallest hashes, so no order and no grouping changes them. Only samples of what stays read
texts. Measured: 4.4 s a million documents on two cores, 9 s beside other work, with 31 thresholds (docs/log.md).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from gristmill.kernels.base.splitmix import mixed_all
from gristmill.kernels.base.types import Hashes, Integers
from gristmill.pipeline.errors import STAGE_ERRORS, DamagedFile, RetiredFiles, RunFailed
from gristmill.pipeline.report_data.documents import SampleEntry, report_task, sample_entry
from gristmill.pipeline.report_data.histograms import (
    LANGUAGE,
    NOT_SIGNALS,
    CutCounts,
    Decomposition,
    PlainCounts,
    RuleLines,
    RuleThreshold,
    SignalCounts,
    SurveyCounts,
    SurveyPlan,
    SurveyRecord,
    SurveySample,
    count_part,
    goes,
    is_number,
    merge_counts,
    plan_survey,
    thresholds_of,
    weights_of,
)
from gristmill.pipeline.store.lock import store_of
from gristmill.pipeline.store.partitions import columns_of, read_part, write_table
from gristmill.pipeline.store.records import Failure, FileRef, LookTask, Partition, Result, RuleSpec
from gristmill.pipeline.store.run_records import SegmentRules, rules_by_segment
from gristmill.pipeline.store.serialize import dumps, plain, read_as
from gristmill.pipeline.store.storage import Store, digest, open_checked
from gristmill.pipeline.tasks.bound_rule import BoundRule

SOURCES = 12  # counted by themselves; the smaller ones are one group
OTHERS = "other sources"
OUT_OF_REACH = 255  # a bin that no slider comes to
WEIGHTS = ("tokens", "words")  # what documents are weighed by: the first that is there
SAMPLE = 2000  # documents whose signals the page carries
KEPT = 5  # samples of what stays
BETWEEN = "shuffle/@survey"  # the folder of what tasks leave for others; no stage has such a name
FAN_IN = 8
ROWS_A_TASK, PARTS_A_TASK = 1_000_000, 64
LEAST_TASKS = 16  # of few rows, so that more than one worker has something to do
GROUP = "@group"
MERGED = "sum of "  # before the name of a step: the step that merges its answers
SURVEY_STEPS = ("sample", "counts", MERGED + "sample", MERGED + "counts")
Look: TypeAlias = Callable[[list[LookTask]], list[Result]]  # who carries tasks out


def here(tasks: list[LookTask]) -> list[Result]:
    """Run tasks in this process, one after the other."""
    return [run_survey(task) for task in tasks]


def survey_segments(
    store: Store,
    keep: Callable[[str, bytes], None] | None = None,
    look: Look = here,
    failed: Callable[[str, str], None] | None = None,
) -> None:
    """Write partitions/NAME/survey.json, one for all segments with the same rules. It holds no times, and is the same
    for any number of workers. `look` carries out the tasks that read parts. `failed` gets the segment whose survey
    failed and the reason; without it the error is raised."""
    alike: dict[str, list[tuple[str, SegmentRules]]] = {}
    for name, segment in rules_by_segment(store).items():
        alike.setdefault(dumps(segment.rules).decode(), []).append((name, segment))
    surveyed = set()
    for segments in alike.values():
        name, rules = segments[0][0], segments[0][1].rules
        try:
            seen = survey(store, name, rules, [part for _, segment in segments for part in segment.parts], look)
        except (DamagedFile, RetiredFiles):  # the run mends them
            raise
        except STAGE_ERRORS as error:
            if failed is None:
                raise
            failed(name, f"thresholds: {error}")
            continue
        if seen is not None:
            path = f"partitions/{name}/survey.json"
            (keep or store.write_if_other)(path, dumps(seen))
            surveyed.add(path)
    store.remove(sorted(store.files(BETWEEN)))
    store.remove([path for path in store.files("partitions") if path.endswith("/survey.json") and path not in surveyed])


def survey(
    store: Store, segment: str, rules: Sequence[RuleSpec], parts: Sequence[Partition], look: Look = here
) -> SurveyRecord | None:
    """Survey a segment with rules for the report. `parts` are its documents as they came to the rules; `look` runs the
    tasks that read them."""
    parts = [part for part in parts if part.rows and part.documents is not None]
    if not parts:
        return None
    deciding = [BoundRule.of(rule) for rule in rules]
    there = sorted({name for part in parts[:64] for name in columns_of(store, part)})
    weight = next((name for name in WEIGHTS if name in there), None)
    wanted = [
        "uid",
        *(name for d in deciding for name in d.reads(there)),
        *([weight] if weight else []),
        *([LANGUAGE] if LANGUAGE in there else []),
    ]
    signals = [name for name in there if "@" not in name and name not in NOT_SIGNALS]
    numbers = numbers_of(store, parts[0])
    columns = [name for name in dict.fromkeys([*wanted, *signals]) if name in wanted or name in numbers]
    groups = groups_of(parts)
    question = Question(rules, columns, weight, groups, quotas(parts, groups))
    steps = SurveySteps(store, segment, parts, look)
    sample = steps.sample(question)
    if sample is None:
        return None
    question = replace(question, sample=sample.facts)
    while (counts := steps.counts(question))["odd"]:
        question = replace(question, odd=sorted({*question.odd, *counts["odd"]}))
    plan = plan_of(store, question)
    totals = SurveyCounts.of(plan, counts)
    return survey_record(segment, rules, plan, totals, sample, kept_samples(store, parts, deciding, there))


def numbers_of(store: Store, part: Partition) -> set[str]:
    """Numeric columns of a part and of its signal files."""
    names = set()
    for facts in (facts for facts in [part.documents, *part.signals] if facts is not None):
        with open_checked(store, facts) as file:
            names |= {column.name for column in pq.read_schema(file) if is_number(column.type)}
    return names


def groups_of(parts: Sequence[Partition]) -> dict[str, int]:
    """The largest sources by documents, each a group; the others one more."""
    sizes: dict[str, int] = {}
    for part in parts:
        sizes[part.source] = sizes.get(part.source, 0) + part.kept
    ordered = sorted(sizes, key=lambda name: (-sizes[name], name))
    own_group = len(ordered) if len(ordered) <= SOURCES else SOURCES - 1
    return {name: min(k, own_group) for k, name in enumerate(ordered)}


# --- on the driver ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """What is counted. The sample says where bins begin and which limits a slider can move; `odd` are rules that their
    limits do not explain."""

    rules: Sequence[RuleSpec]
    columns: list[str]
    weight: str | None
    groups: dict[str, int]  # by source
    quotas: list[int]  # documents of the sample, by group
    sample: FileRef | None = None  # None while it is being taken
    odd: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Sample:
    """Some documents of each group, those whose uids have the smallest hashes; group by group."""

    facts: FileRef
    batch: pa.RecordBatch
    groups: Integers  # of each document


@dataclass(frozen=True)
class SurveySteps:
    """Has workers carry out the steps of a survey on the parts of a segment."""

    store: Store
    segment: str
    parts: Sequence[Partition]
    look: Look

    def sample(self, question: Question) -> Sample | None:
        """None where there is no document."""
        files = self.merged("sample", question)
        if not files:
            return None
        rows = smallest_of_groups([read_table(self.store, facts) for facts in files], question.quotas)
        groups, table = rows.column(GROUP).to_numpy(), rows.drop_columns([GROUP])
        path = f"{BETWEEN}/sample-{digest([self.segment, plain(files)])[:12]}.{digest(self.segment)[:8]}.parquet"
        facts = write_table(self.store, path, table)
        return None if facts is None else Sample(facts, table.to_batches()[0], groups)

    def counts(self, question: Question) -> PlainCounts:
        return merge_counts([read_plain(self.store, facts) for facts in self.merged("counts", question)])

    def merged(self, step: str, question: Question) -> list[FileRef]:
        """The answers of a step, merged by workers until they are few."""
        files = self.run(step, [{"question": question, "parts": parts} for parts in in_a_row(self.parts)])
        while len(files) > FAN_IN:
            eights = [files[first : first + FAN_IN] for first in range(0, len(files), FAN_IN)]
            files = self.run(MERGED + step, [{"question": question, "files": eight} for eight in eights])
        return files

    def run(self, step: str, given: list[dict[str, Any]]) -> list[FileRef]:
        """The files that tasks leave; RunFailed if one fails."""
        tasks = []
        for number, each in enumerate(given):
            cost = sum(8 * part.rows for part in each.get("parts", ()))
            tasks.append(report_task(self.store, step, self.segment, f"{step} {number}", cost, each))
        results = self.look(tasks)
        for result in results:
            if isinstance(result, Failure):
                raise RunFailed(result.message)
        return [facts for result in results for facts in result.files.values()]


def in_a_row(parts: Sequence[Partition]) -> list[list[Partition]]:
    """Consecutive parts, grouped by the task that reads them."""
    most = min(ROWS_A_TASK, max(1, sum(part.rows for part in parts) // LEAST_TASKS))
    together: list[list[Partition]] = []
    rows = most
    for part in parts:
        if rows >= most or len(together[-1]) == PARTS_A_TASK:
            together.append([])
            rows = 0
        together[-1].append(part)
        rows += part.rows
    return together


def quotas(parts: Sequence[Partition], groups: Mapping[str, int]) -> list[int]:
    """Documents of the sample: equal shares of each group; what small groups leave goes to the larger ones."""
    sizes = [0] * len(set(groups.values()))
    for part in parts:
        sizes[groups[part.source]] += part.kept
    given, groups_to_come, room = [0] * len(sizes), len(sizes), SAMPLE
    for group in sorted(range(len(sizes)), key=lambda group: sizes[group]):
        given[group] = min(sizes[group], room // groups_to_come)
        room, groups_to_come = room - given[group], groups_to_come - 1
    return given


# --- on a worker ------------------------------------------------------------------------------------------------------


def run_survey(task: LookTask) -> Result:
    """Run a step on some parts, or merge what tasks of that step have left. The answer is a file."""
    store, given, step = store_of(task), task.given, task.step.removeprefix(MERGED)
    question: Question = given["question"]
    path = f"{BETWEEN}/{step}-{task.task[:12]}.{task.task[12:20]}"
    if step == "sample":
        if "files" in given:
            tables = [read_table(store, facts) for facts in given["files"]]
        else:
            tables = sample_parts(store, given["parts"], question)
        facts = write_table(store, f"{path}.parquet", smallest_of_groups(tables, question.quotas))
        return Result(files={} if facts is None else {"answer": facts})
    if "files" in given:
        counts = merge_counts([read_plain(store, facts) for facts in given["files"]])
    else:
        plan = plan_of(store, question)
        counted = SurveyCounts.of(plan)
        for part in given["parts"]:
            count_part(store, plan, part, counted)
        counts = counted.plain()
    content = json.dumps(counts, separators=(",", ":")).encode()
    checksum = store.write(f"{path}.json", content)
    return Result(files={"answer": FileRef(f"{path}.json", len(content), checksum)})


def sample_parts(store: Store, parts: Sequence[Partition], question: Question) -> list[pa.Table]:
    """The documents of each group that may be among those with the smallest hashes, part by part."""
    groups = [question.groups[part.source] for part in parts]
    hashes = [mixed(uids_of(store, part)) for part in parts]
    limits = {}
    for group in set(groups):
        of_group = np.concatenate([own for own, other in zip(hashes, groups, strict=True) if other == group])
        smallest = np.sort(of_group)[: question.quotas[group]]
        limits[group] = smallest[-1] if len(smallest) else None
    tables = []
    for part, group, own in zip(parts, groups, hashes, strict=True):
        limit = limits[group]
        rows = np.flatnonzero(own <= limit) if limit is not None else np.zeros(0, np.int64)
        if len(rows):
            table = rows_of(store, part, question.columns, rows)
            tables.append(table.append_column(GROUP, pa.array(np.full(len(table), group, np.int64))))
    return tables


def smallest_of_groups(tables: Sequence[pa.Table], most: Sequence[int]) -> pa.Table:
    """Group by group, as many rows as there may `most` be, in the order of the hashes of their uids."""
    if not tables:
        return pa.table({})
    table = pa.concat_tables(tables, promote_options="permissive")
    groups = table.column(GROUP).to_numpy()
    order = np.lexsort((mixed(table.column("uid").to_numpy()), groups))
    groups = groups[order]
    rank = np.arange(len(groups)) - np.searchsorted(groups, groups)
    return table.take(pa.array(order[rank < np.array(most)[groups]])).combine_chunks()


def plan_of(store: Store, question: Question) -> SurveyPlan:
    return _planned(store.address, dumps(question))


@lru_cache(2)
def _planned(address: str, question_as_text: bytes) -> SurveyPlan:
    question = read_as(Question, json.loads(question_as_text))
    sample = read_table(Store(address), cast(FileRef, question.sample)).to_batches()[0]
    rules = [BoundRule.of(rule) for rule in question.rules]
    cuts = [[] if number in question.odd else thresholds_of(d.rule, d.view(sample)) for number, d in enumerate(rules)]
    return plan_survey(rules, cuts, sample, question.columns, question.weight, question.groups)


def read_table(store: Store, facts: FileRef) -> pa.Table:
    with open_checked(store, facts) as file:
        return pq.ParquetFile(file).read().combine_chunks()


def read_plain(store: Store, facts: FileRef) -> Any:
    content = store.read(facts.path)
    if xxhash.xxh3_128_hexdigest(content) != facts.checksum:
        raise DamagedFile(facts.path)
    return json.loads(content)


# --- samples ----------------------------------------------------------------------------------------------------------


def mixed(uids: Hashes) -> Hashes:
    """A hash of a hash, so that the sample is not the one that the stage `sample` or a mix takes (splitmix64)."""
    hashes: Hashes = mixed_all(uids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15))
    return hashes


def uids_of(store: Store, part: Partition) -> Hashes:
    batches = [batch.column("uid").to_numpy() for batch in read_part(store, part, ["uid"])]
    return np.concatenate(batches) if batches else np.zeros(0, np.uint64)


def rows_of(store: Store, part: Partition, columns: Sequence[str], rows: Integers) -> pa.Table:
    """Some of the documents that are still in, by number; only columns of the sample."""
    tables, start = [], 0
    for batch in read_part(store, part, columns):
        in_batch = rows[(rows >= start) & (rows < start + len(batch))] - start
        tables.append(pa.Table.from_batches([batch]).take(pa.array(in_batch)))
        start += len(batch)
    return pa.concat_tables(tables) if tables else pa.table({})


def kept_samples(
    store: Store, parts: Sequence[Partition], rules: Sequence[BoundRule], there: list[str]
) -> list[SampleEntry]:
    """Documents that stay: the first by uid of the first rows of the first part that has any."""
    columns = list(dict.fromkeys(["uid", "url", "text", *(name for d in rules for name in d.reads(there))]))
    for part in sorted(parts, key=lambda part: (part.home, part.key))[:8]:
        batch = next(read_part(store, part, columns), None) if "text" in columns_of(store, part) else None
        if batch is None:
            continue
        gone = np.zeros(len(batch), bool)
        for deciding in rules:
            gone |= goes(deciding.rule, deciding.view(batch))
        stays = batch.select(["uid", "url", "text"]).filter(pa.array(~gone))
        first = stays.take(pa.array(np.argsort(stays.column("uid").to_numpy(), kind="stable")[:KEPT]))
        if len(first):
            return [sample_entry(row, part.source, None) for row in first.to_pylist()]
    return []


# --- what survey.json says --------------------------------------------------------------------------------------------


def survey_record(
    segment: str,
    rules: Sequence[RuleSpec],
    plan: SurveyPlan,
    totals: SurveyCounts,
    sample: Sample,
    kept: list[SampleEntry],
) -> SurveyRecord:
    names = {group: name for name, group in reversed(plan.groups.items())}
    sources = [OTHERS if list(plan.groups.values()).count(k) > 1 else names[k] for k in range(len(totals.reach))]
    cuts = [cut for of_rule in plan.cuts for cut in of_rule]
    recipe = {d.rule.called: recipe_lines(d, rule) for d, rule in zip(plan.rules, rules, strict=True)}
    apart = Decomposition.of(plan, sample.batch)
    languages = sorted(totals.languages.items(), key=lambda item: (-item[1][0], item[0]))
    return SurveyRecord(
        segment=segment,
        weight=plan.weight,
        sources=sources,
        reach=totals.reach.tolist(),
        stay=totals.stay.tolist(),
        rules=recipe,
        cuts=[cut_record(plan, totals, number, cut) for number, cut in enumerate(cuts)],
        signals={name: signal_record(plan, totals, name) for name in plan.edges},
        languages=[(name, came, stayed) for name, (came, stayed) in languages],
        kept=kept,
        sample=SurveySample(
            sizes=totals.reach[:, 0].tolist(),
            groups=np.bincount(sample.groups, minlength=len(sources)).tolist(),
            weights=weights_of(sample.batch, plan.weight).tolist(),
            gone=as_base64(apart.gone.astype(np.uint8)),
            bins=[
                as_base64(np.where(touched, bins, OUT_OF_REACH))
                for touched, bins in zip(apart.touched, apart.bins, strict=True)
            ],
        ),
    )


def cut_record(plan: SurveyPlan, totals: SurveyCounts, number: int, cut: RuleThreshold) -> CutCounts:
    place = plan.edges[cut.signal].tolist().index(cut.value)
    reached = totals.reached[number]
    return CutCounts(
        stage=cut.stage,
        field=cut.field,
        signal=cut.signal,
        side=cut.side,
        value=cut.value,
        at=place,
        takes=int((reached[: place + 1] if cut.side == "low" else reached[place + 1 :]).sum()),
        reached=reached.tolist(),
        free=totals.free[number].tolist(),
        documents=totals.bins[number][:, 0].tolist(),
        weights=totals.bins[number][:, 1].tolist(),
    )


def recipe_lines(deciding: BoundRule, rule: RuleSpec) -> RuleLines:
    """The rule as a recipe has it: its name there, and the settings that differ from defaults."""
    return RuleLines(rule.stage["stage"], deciding.rule.model_dump(mode="json", exclude_defaults=True))


def signal_record(plan: SurveyPlan, totals: SurveyCounts, name: str) -> SignalCounts:
    edges = plan.edges[name].tolist()
    low, high = totals.spans.get(name, (edges[0], edges[-1]))
    return SignalCounts(edges, totals.histograms[name].tolist(), name in plan.whole, low, high)


def as_base64(values: npt.NDArray[np.generic]) -> str:
    return base64.b64encode(values.astype(np.uint8).tobytes()).decode()
