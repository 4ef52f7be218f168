"""What a survey asks of workers: hashes of uids, rows of the sample, counts by bin, and sums of these.

Each task reads some parts and leaves one small file of a fixed size, whatever the number of documents. Sums of eight of
them make one, until eight are left, which the driver reads. Sums are of whole numbers, so no order and no grouping
changes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from gristmill.kernels.base.types import Integers
from gristmill.pipeline.errors import DamagedFile, RunFailed
from gristmill.pipeline.fingerprint import digest
from gristmill.pipeline.leg.bound_rule import BoundRule
from gristmill.pipeline.store.lock import store_of
from gristmill.pipeline.store.partitions import write_table
from gristmill.pipeline.store.records import FileFacts, LookTask, Part, Result, RuleSpec
from gristmill.pipeline.store.storage import Store, open_checked
from gristmill.pipeline.survey.counts import PlainCounts, SurveyCounts, count_part, sum_of
from gristmill.pipeline.survey.decomposition import SurveyPlan, plan_survey
from gristmill.pipeline.survey.sample import SAMPLE, mixed, quotas, rows_of, uids_of
from gristmill.pipeline.survey.thresholds import thresholds_of

BETWEEN = "flow/@survey"  # the folder of what tasks leave for others; no stage has such a name
FAN_IN = 8
ROWS_A_TASK, PARTS_A_TASK = 1_000_000, 64
LEAST_TASKS = 16  # of few rows, so that more than one worker has something to do
GROUP = "@group"
Look: TypeAlias = Callable[[list[LookTask]], list[Result]]  # who carries tasks out


class Question(TypedDict):
    """What is counted. The sample says where bins begin and which limits a slider can move; `odd` are rules that their
    limits do not explain."""

    rules: Sequence[RuleSpec]
    sample: FileFacts
    odd: list[int]
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

    facts: FileFacts | None  # None where there is no document
    batch: pa.RecordBatch
    groups: Integers
    sizes: Integers  # documents of each group, all of them


def here(tasks: list[LookTask]) -> list[Result]:
    """Tasks carried out by this process, one after the other."""
    return [run_survey(task) for task in tasks]


# --- the driver's side -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asking:
    """Whoever asks workers about the parts of a leg."""

    store: Store
    leg: str
    parts: Sequence[Part]
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
        files = [result["files"]["rows"] for result in self.asked("rows", given) if result["files"]]
        nothing = Sample(None, pa.record_batch({"uid": pa.array([], pa.uint64())}), np.zeros(0, np.int64), sizes)
        if not files:
            return nothing
        table = pa.concat_tables([read_table(self.store, facts) for facts in files], promote_options="permissive")
        which = table.column(GROUP).to_numpy()
        order = np.lexsort((mixed(table.column("uid").to_numpy()), which))
        table = table.drop_columns([GROUP]).take(pa.array(order)).combine_chunks()
        path = f"{BETWEEN}/sample-{digest([self.leg, files])[:12]}.{digest(self.leg)[:8]}.parquet"
        facts = write_table(self.store, path, table)
        return nothing if facts is None else Sample(facts, table.to_batches()[0], which[order], sizes)

    def counts(self, question: Question) -> PlainCounts:
        return sum_of(self.summed("counts", [{"numbers": some, "question": question} for some in in_a_row(self.parts)]))

    def summed(self, step: str, given: list[dict[str, Any]]) -> list[Any]:
        """The answers to a question, summed by workers until they are few."""
        files = [result["files"]["answer"] for result in self.asked(step, given)]
        while len(files) > FAN_IN:
            together = [{"files": files[first : first + FAN_IN]} for first in range(0, len(files), FAN_IN)]
            files = [result["files"]["answer"] for result in self.asked(f"sum of {step}", together)]
        return [read_plain(self.store, facts) for facts in files]

    def asked(self, step: str, given: list[dict[str, Any]]) -> list[Result]:
        """The results of tasks; RunFailed if one has none. Of those that are told the numbers of parts, the parts are
        told too."""
        results = self.look([self.task(step, number, each) for number, each in enumerate(given)])
        for result in results:
            if "failed" in result:
                raise RunFailed(result["failed"])
        return results

    def task(self, step: str, number: int, given: dict[str, Any]) -> LookTask:
        parts = [self.parts[number] for number in given.get("numbers", ())]
        if parts:
            given = {**given, "parts": parts, "groups": [self.groups[part["source"]] for part in parts]}
        return {
            "kind": "look",
            "task": digest([self.leg, step, number, given]),
            "node": self.leg,
            "key": f"{step} {number}",
            "cost": sum(8 * part["rows"] for part in parts),
            "out": self.store.anywhere,
            "step": step,
            "given": {**given, "number_of_groups": len(set(self.groups.values()))},
        }


def in_a_row(parts: Sequence[Part]) -> list[list[int]]:
    """Numbers of the parts that one task reads: such that follow one another."""
    most = min(ROWS_A_TASK, max(1, sum(part["rows"] for part in parts) // LEAST_TASKS))
    together: list[list[int]] = []
    rows = most
    for number, part in enumerate(parts):
        if rows >= most or len(together[-1]) == PARTS_A_TASK:
            together.append([])
            rows = 0
        together[-1].append(number)
        rows += part["rows"]
    return together


# --- workers' side ---------------------------------------------------------------------------------------------------


def run_survey(task: LookTask) -> Result:
    """The file that a step of a survey leaves."""
    store, step, given = store_of(task), task["step"], task["given"]
    name = f"{BETWEEN}/{step.replace(' ', '-')}-{task['task'][:12]}.{task['task'][12:20]}"
    if step == "rows":
        rows = rows_below(store, given["parts"], given["columns"], given["groups"], given["limits"])
        facts = write_table(store, f"{name}.parquet", rows) if len(rows) else None
        return {"files": {} if facts is None else {"rows": facts}}
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
    return {"files": {"answer": {"path": path, "bytes": len(content), "checksum": store.write(path, content)}}}


def smallest_hashes(
    store: Store, parts: Sequence[Part], numbers: Sequence[int], groups: Sequence[int], number_of_groups: int
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
    store: Store, parts: Sequence[Part], columns: Sequence[str], groups: Sequence[int], limits: Sequence[int]
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
    return _planned(store.address, json.dumps(question))


@lru_cache(2)
def _planned(address: str, question_as_text: str) -> SurveyPlan:
    question: Question = json.loads(question_as_text)
    sample = read_table(Store(address), question["sample"]).to_batches()[0]
    rules = [BoundRule.of(rule) for rule in question["rules"]]
    cuts = [
        [] if number in question["odd"] else thresholds_of(d.rule, d.view(sample)) for number, d in enumerate(rules)
    ]
    return plan_survey(rules, cuts, sample, question["columns"], question["weight"], question["groups"])


def read_table(store: Store, facts: FileFacts) -> pa.Table:
    with open_checked(store, facts) as file:
        return pq.read_table(file).combine_chunks()


def read_plain(store: Store, facts: FileFacts) -> Any:
    content = store.read(facts["path"])
    if xxhash.xxh3_128_hexdigest(content) != facts["checksum"]:
        raise DamagedFile(facts["path"])
    return json.loads(content)
