"""One pass over the stored signals of a leg, for the report: histograms, what every threshold would keep, and samples.

Workers read the parts. Each task reads some of them and leaves one small file of a fixed size, whatever the number of
documents; sums of eight make one, until eight are left, which the driver reads. Sums are of whole numbers, so no order
and no grouping changes them. Sampled are the documents with the smallest hashes of their uids, so that two runs show
the same. Only samples of what stays read texts. Measured: 4.4 s a million documents on two cores, 9 s beside other
work, with 31 thresholds (docs/log.md).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from gristmill.kernels.base.splitmix import mixed_all
from gristmill.kernels.base.types import Hashes, Integers
from gristmill.pipeline.errors import STAGE_ERRORS, DamagedFile, RetiredFiles, RunFailed
from gristmill.pipeline.fingerprint import digest
from gristmill.pipeline.leg.bound_rule import BoundRule
from gristmill.pipeline.report_data.histograms import (
    LANGUAGE,
    NOT_SIGNALS,
    CutCounts,
    Decomposition,
    PlainCounts,
    RuleLines,
    SampleEntry,
    SignalCounts,
    SurveyCounts,
    SurveyPlan,
    SurveyRecord,
    count_part,
    goes,
    is_number,
    places_of,
    plan_survey,
    sum_of,
    thresholds_of,
    weights_of,
)
from gristmill.pipeline.store.lock import store_of
from gristmill.pipeline.store.partitions import ROW, columns_of, read_part, write_table
from gristmill.pipeline.store.records import Failure, FileRef, LookTask, Partition, Result, RuleSpec
from gristmill.pipeline.store.run_records import rules_by_segment
from gristmill.pipeline.store.serialize import dumps, plain, read_as
from gristmill.pipeline.store.storage import Store, open_checked

SOURCES = 12  # told apart; the smaller ones are one
OTHERS = "other sources"
LANGUAGES = 60
OUT_OF_REACH = 255  # a bin that no slider comes to
WEIGHTS = ("tokens", "words")  # what documents are weighed by: the first that is there
VERSION = 3  # of what survey.json holds
SAMPLE = 2000  # documents whose signals the page carries
KEPT, CHARACTERS = 5, 600  # samples of what stays
BETWEEN = "flow/@survey"  # the folder of what tasks leave for others; no stage has such a name
FAN_IN = 8
ROWS_A_TASK, PARTS_A_TASK = 1_000_000, 64
LEAST_TASKS = 16  # of few rows, so that more than one worker has something to do
GROUP = "@group"
Look: TypeAlias = Callable[[list[LookTask]], list[Result]]  # who carries tasks out


def here(tasks: list[LookTask]) -> list[Result]:
    """Tasks carried out by this process, one after the other."""
    return [run_survey(task) for task in tasks]


def survey_legs(
    store: Store,
    keep: Callable[[str, bytes], None] | None = None,
    look: Look = here,
    failed: Callable[[str, str], None] | None = None,
) -> None:
    """Write legs/NAME/survey.json, one for all legs with the same rules. It holds no times, and is the same for any
    number of workers. `look` carries out the tasks that read parts. `failed` gets the leg whose survey failed and the
    reason; without it the error is raised."""
    paths = sorted(store.files("legs"))
    legs = rules_by_segment(store)
    alike: dict[str, list[str]] = {}
    for name, leg in legs.items():
        alike.setdefault(dumps(leg.rules).decode(), []).append(name)
    surveyed = set()
    for names in alike.values():
        parts = [part for name in names for part in legs[name].parts]
        try:
            seen = survey(store, names[0], legs[names[0]].rules, parts, look)
        except (DamagedFile, RetiredFiles):  # the run mends them
            raise
        except STAGE_ERRORS as error:
            if failed is None:
                raise
            failed(names[0], f"thresholds: {error}")
            continue
        if seen is not None:
            path = f"legs/{names[0]}/survey.json"
            (keep or store.write_if_other)(path, json.dumps(seen, separators=(",", ":")).encode())
            surveyed.add(path)
    store.remove(sorted(store.files(BETWEEN)))
    store.remove([path for path in paths if path.endswith("/survey.json") and path not in surveyed])


def survey(
    store: Store, leg: str, rules: Sequence[RuleSpec], parts: Sequence[Partition], look: Look = here
) -> SurveyRecord | None:
    """For the report, of a leg with rules; `parts` are its documents as they came to the rules, and `look` carries out
    the tasks that read them."""
    parts = [part for part in parts if part.rows and part.documents is not None]
    if not parts:
        return None
    deciding = [BoundRule.of(rule) for rule in rules]
    there = sorted({name for part in parts[:64] for name in columns_of(store, part)})
    weight = next((name for name in WEIGHTS if name in there), None)
    groups = groups_of(parts)
    wanted = [
        "uid",
        *(name for d in deciding for name in d.reads(there)),
        *([weight] if weight else []),
        *([LANGUAGE] if LANGUAGE in there else []),
    ]
    signals = [name for name in there if "@" not in name and name not in NOT_SIGNALS]
    numbers = numbers_of(store, parts[0])
    columns = [name for name in dict.fromkeys([*wanted, *signals]) if name in wanted or name in numbers]
    asking = Asking(store, leg, parts, groups, look)
    sample = asking.sample(columns)
    if sample.facts is None:
        return None
    question = Question(tuple(rules), sample.facts, (), columns, weight, groups)
    while True:
        plan = plan_of(store, question)
        counts = SurveyCounts.from_plain(plan, asking.counts(question))
        if not counts.odd:
            break
        question = replace(question, odd=tuple(sorted({*question.odd, *counts.odd})))
    return survey_record(leg, rules, plan, counts, sample, kept_samples(store, parts, deciding, there))


def numbers_of(store: Store, part: Partition) -> set[str]:
    """Columns of a part, and of what is laid beside it, that are a number for each document."""
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


# --- the driver asks --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """What is counted. The sample says where bins begin and which limits a slider can move; `odd` are rules that their
    limits do not explain."""

    rules: tuple[RuleSpec, ...]
    sample: FileRef
    odd: tuple[int, ...]
    columns: list[str]
    weight: str | None
    groups: dict[str, int]


class GroupHashes(TypedDict):
    """The smallest hashes of the documents of a group of sources, each with the number of its part."""

    size: int  # documents, all of them
    hashes: list[int]
    parts: list[int]


@dataclass(frozen=True)
class Sample:
    """Some documents of each group, those whose uids have the smallest hashes; group by group."""

    facts: FileRef | None  # None where there is no document
    batch: pa.RecordBatch
    groups: Integers
    sizes: Integers  # documents of each group, all of them


@dataclass(frozen=True)
class Asking:
    """Whoever asks workers about the parts of a leg."""

    store: Store
    leg: str
    parts: Sequence[Partition]
    groups: Mapping[str, int]
    look: Look

    def sample(self, columns: Sequence[str]) -> Sample:
        hashes = sum_of_hashes(self.summed("hashes", [{"numbers": some} for some in in_a_row(self.parts)]))
        sizes = np.array([group["size"] for group in hashes], np.int64)
        limits, parts = [], set()
        for group, quota in zip(hashes, quotas(sizes), strict=True):
            limits.append(group["hashes"][quota - 1] if quota else 0)
            parts |= set(group["parts"][:quota])
        chosen = [[number for number in some if number in parts] for some in in_a_row(self.parts)]
        given = [{"numbers": some, "columns": list(columns), "limits": limits} for some in chosen if some]
        files = [result.files["rows"] for result in self.asked("rows", given) if result.files]
        nothing = Sample(None, pa.record_batch({"uid": pa.array([], pa.uint64())}), np.zeros(0, np.int64), sizes)
        if not files:
            return nothing
        table = pa.concat_tables([read_table(self.store, facts) for facts in files], promote_options="permissive")
        which = table.column(GROUP).to_numpy()
        order = np.lexsort((mixed(table.column("uid").to_numpy()), which))
        table = table.drop_columns([GROUP]).take(pa.array(order)).combine_chunks()
        path = f"{BETWEEN}/sample-{digest([self.leg, plain(files)])[:12]}.{digest(self.leg)[:8]}.parquet"
        facts = write_table(self.store, path, table)
        return nothing if facts is None else Sample(facts, table.to_batches()[0], which[order], sizes)

    def counts(self, question: Question) -> PlainCounts:
        return sum_of(self.summed("counts", [{"numbers": some, "question": question} for some in in_a_row(self.parts)]))

    def summed(self, step: str, given: list[dict[str, Any]]) -> list[Any]:
        """The answers to a question, summed by workers until they are few."""
        files = [result.files["answer"] for result in self.asked(step, given)]
        while len(files) > FAN_IN:
            together = [{"files": files[first : first + FAN_IN]} for first in range(0, len(files), FAN_IN)]
            files = [result.files["answer"] for result in self.asked(f"sum of {step}", together)]
        return [read_plain(self.store, facts) for facts in files]

    def asked(self, step: str, given: list[dict[str, Any]]) -> list[Result]:
        """The results of tasks; RunFailed if one has none. Of those that are told the numbers of parts, the parts are
        told too."""
        results = self.look([self.task(step, number, each) for number, each in enumerate(given)])
        for result in results:
            if isinstance(result, Failure):
                raise RunFailed(result.message)
        return results

    def task(self, step: str, number: int, given: dict[str, Any]) -> LookTask:
        parts = [self.parts[number] for number in given.get("numbers", ())]
        if parts:
            given = {**given, "parts": parts, "groups": [self.groups[part.source] for part in parts]}
        return LookTask(
            task=digest([self.leg, step, number, plain(given)]),
            node=self.leg,
            key=f"{step} {number}",
            cost=sum(8 * part.rows for part in parts),
            out=self.store.anywhere,
            step=step,
            given={**given, "number_of_groups": len(set(self.groups.values()))},
        )


def in_a_row(parts: Sequence[Partition]) -> list[list[int]]:
    """Numbers of the parts that one task reads: such that follow one another."""
    most = min(ROWS_A_TASK, max(1, sum(part.rows for part in parts) // LEAST_TASKS))
    together: list[list[int]] = []
    rows = most
    for number, part in enumerate(parts):
        if rows >= most or len(together[-1]) == PARTS_A_TASK:
            together.append([])
            rows = 0
        together[-1].append(number)
        rows += part.rows
    return together


# --- a worker answers -------------------------------------------------------------------------------------------------


def run_survey(task: LookTask) -> Result:
    """The file that a step of a survey leaves."""
    store, step, given = store_of(task), task.step, task.given
    name = f"{BETWEEN}/{step.replace(' ', '-')}-{task.task[:12]}.{task.task[12:20]}"
    if step == "rows":
        rows = rows_below(store, given["parts"], given["columns"], given["groups"], given["limits"])
        facts = write_table(store, f"{name}.parquet", rows) if len(rows) else None
        return Result(files={} if facts is None else {"rows": facts})
    answer: Any
    if step == "hashes":
        answer = smallest_hashes(store, given["parts"], given["numbers"], given["groups"], given["number_of_groups"])
    elif step == "counts":
        plan = plan_of(store, given["question"])
        counts = SurveyCounts.of(plan)
        for part in given["parts"]:
            count_part(store, plan, part, counts)
        answer = counts.plain()
    else:
        answers = [read_plain(store, facts) for facts in given["files"]]
        answer = sum_of_hashes(answers) if step == "sum of hashes" else sum_of(answers)
    content = json.dumps(answer, separators=(",", ":")).encode()
    path = f"{name}.json"
    return Result(files={"answer": FileRef(path, len(content), store.write(path, content))})


def smallest_hashes(
    store: Store, parts: Sequence[Partition], numbers: Sequence[int], groups: Sequence[int], number_of_groups: int
) -> list[GroupHashes]:
    """By group, of its documents in some parts."""
    found: list[GroupHashes] = [{"size": 0, "hashes": [], "parts": []} for _ in range(number_of_groups)]
    for part, number, group in zip(parts, numbers, groups, strict=True):
        hashes = mixed(uids_of(store, part))
        some = np.sort(hashes)[:SAMPLE].tolist()
        own: list[GroupHashes] = [{"size": 0, "hashes": [], "parts": []} for _ in range(number_of_groups)]
        own[group] = {"size": len(hashes), "hashes": some, "parts": [number] * len(some)}
        found = sum_of_hashes([found, own])
    return found


def sum_of_hashes(some: Sequence[Sequence[GroupHashes]]) -> list[GroupHashes]:
    total: list[GroupHashes] = []
    for of_group in zip(*some, strict=True):
        hashes = np.concatenate([np.array(each["hashes"], np.uint64) for each in of_group])
        parts = np.concatenate([np.array(each["parts"], np.int64) for each in of_group])
        first = np.lexsort((parts, hashes))[:SAMPLE]
        total.append(
            {
                "size": sum(each["size"] for each in of_group),
                "hashes": hashes[first].tolist(),
                "parts": parts[first].tolist(),
            }
        )
    return total


def rows_below(
    store: Store, parts: Sequence[Partition], columns: Sequence[str], groups: Sequence[int], limits: Sequence[int]
) -> pa.Table:
    """The documents of the sample in some parts, each with the number of its group."""
    tables = []
    for part, group in zip(parts, groups, strict=True):
        chosen = np.flatnonzero(mixed(uids_of(store, part)) <= np.uint64(limits[group]))
        table = rows_of(store, part, columns, chosen)
        if len(table):
            tables.append(table.append_column(GROUP, pa.array(np.full(len(table), group, np.int64))))
    return pa.concat_tables(tables, promote_options="permissive").combine_chunks() if tables else pa.table({})


def plan_of(store: Store, question: Question) -> SurveyPlan:
    return _planned(store.address, dumps(question))


@lru_cache(2)
def _planned(address: str, question_as_text: bytes) -> SurveyPlan:
    question = read_as(Question, json.loads(question_as_text))
    sample = read_table(Store(address), question.sample).to_batches()[0]
    rules = [BoundRule.of(rule) for rule in question.rules]
    cuts = [[] if number in question.odd else thresholds_of(d.rule, d.view(sample)) for number, d in enumerate(rules)]
    return plan_survey(rules, cuts, sample, question.columns, question.weight, question.groups)


def read_table(store: Store, facts: FileRef) -> pa.Table:
    with open_checked(store, facts) as file:
        return pq.read_table(file).combine_chunks()


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


def quotas(sizes: Integers) -> list[int]:
    """Equal shares of the sample; what small groups leave goes to the larger ones."""
    given, groups_to_come, room = [0] * len(sizes), len(sizes), SAMPLE
    for group in np.argsort(sizes, kind="stable").tolist():
        given[group] = min(int(sizes[group]), room // groups_to_come)
        room, groups_to_come = room - given[group], groups_to_come - 1
    return given


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
    for part in sorted(parts, key=lambda part: (part.home, part.key))[:8]:
        samples = next(first_that_stay(store, part, rules, there), [])
        if samples:
            return samples
    return []


def first_that_stay(
    store: Store, part: Partition, rules: Sequence[BoundRule], there: list[str]
) -> Iterator[list[SampleEntry]]:
    columns = list(dict.fromkeys(["uid", "url", "text", *(name for d in rules for name in d.reads(there))]))
    for batch in read_part(store, part, columns, numbered=True) if "text" in columns_of(store, part) else ():
        gone = np.zeros(len(batch), bool)
        for deciding in rules:
            gone |= goes(deciding.rule, deciding.view(batch))
        stays = batch.select(["uid", "url", "text", ROW]).filter(pa.array(~gone))
        chosen = stays.take(pa.array(np.argsort(stays.column("uid").to_numpy(), kind="stable")[:KEPT]))
        yield [
            {
                "uid": f"{row['uid']:016x}",
                "url": row["url"],
                "source": part.source,
                "detail": None,
                "text": (row["text"] or "")[:CHARACTERS],
            }
            for row in chosen.to_pylist()
        ]


# --- what survey.json says --------------------------------------------------------------------------------------------


def survey_record(
    leg: str,
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
    lines: list[CutCounts] = []
    for k, cut in enumerate(cuts):
        place = plan.edges[cut.signal].tolist().index(cut.value)
        reached = totals.reached[k]
        lines.append(
            {
                "stage": cut.stage,
                "field": cut.field,
                "signal": cut.signal,
                "side": cut.side,
                "value": cut.value,
                "at": place,
                "takes": int((reached[: place + 1] if cut.side == "low" else reached[place + 1 :]).sum()),
                "reached": reached.tolist(),
                "free": totals.free[k].tolist(),
                "documents": totals.bins[k][:, 0].tolist(),
                "weights": totals.bins[k][:, 1].tolist(),
            }
        )
    apart = Decomposition.of(plan, sample.batch)
    languages = sorted(totals.languages.items(), key=lambda item: (-item[1][0], item[0]))
    return {
        "version": VERSION,
        "leg": leg,
        "weight": plan.weight,
        "sources": sources,
        "reach": totals.reach.tolist(),
        "stay": totals.stay.tolist(),
        "rules": recipe,
        "cuts": lines,
        "signals": {name: signal_record(plan, totals, name) for name in plan.edges},
        "languages": [(name, int(counts[0]), int(counts[1])) for name, counts in languages[:LANGUAGES]],
        "more_languages": (
            max(0, len(languages) - LANGUAGES),
            sum(int(counts[0]) for _, counts in languages[LANGUAGES:]),
            sum(int(counts[1]) for _, counts in languages[LANGUAGES:]),
        ),
        "kept": kept,
        "sample": {
            "sizes": sample.sizes.tolist(),
            "groups": np.bincount(sample.groups, minlength=len(sample.sizes)).tolist(),
            "weights": weights_of(sample.batch, plan.weight).tolist(),
            "gone": as_base64(apart.gone.astype(np.uint8)),
            "bins": [
                as_base64(np.where(touched, bins, OUT_OF_REACH))
                for touched, bins in zip(apart.touched, apart.bins, strict=True)
            ],
        },
    }


def recipe_lines(deciding: BoundRule, rule: RuleSpec) -> RuleLines:
    """What a recipe has to say to have this rule: its name there, and the settings that are no defaults."""
    return {"stage": rule.stage["stage"], "settings": deciding.rule.model_dump(mode="json", exclude_defaults=True)}


def signal_record(plan: SurveyPlan, totals: SurveyCounts, name: str) -> SignalCounts:
    edges, decades = plan.edges[name].tolist(), name in plan.decades
    cuts = [cut for of_rule in plan.cuts for cut in of_rule if cut.signal == name]
    knee = max([knee_of(edges), *(cut.value for cut in cuts)])
    places = [round(p, 4) for p in places_of(edges, decades, knee)]
    low, high = totals.spans.get(name, (edges[0], edges[-1]))
    return {
        "edges": edges,
        "counts": totals.histograms[name].tolist(),
        "places": places,
        "decades": decades,
        # Where the scale of the drawing jumps.
        "knee": None if decades or knee >= edges[-1] else places[edges.index(knee)],
        "low": low,
        "high": high,
    }


def knee_of(edges: list[float]) -> float:
    """Where the even steps end and those of the tail begin."""
    if len(edges) < 8:
        return edges[-1]
    step = float(np.median(np.diff(edges)))
    wide = [edge for edge, after in pairwise(edges) if after - edge > 1.5 * step]
    return wide[0] if wide else edges[-1]


def as_base64(values: npt.NDArray[np.generic]) -> str:
    return base64.b64encode(values.astype(np.uint8).tobytes()).decode()
