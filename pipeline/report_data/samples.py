"""A few rejects for each reason, for reports: the first by uid in the first files, so that two runs show the same.
Where the stage itself gave no detail, the detail says in numbers what the document was beyond. A task for each stage
reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypedDict

import pyarrow.parquet as pq

from gristmill.pipeline.fingerprint import digest
from gristmill.pipeline.leg.bound_rule import BoundRule
from gristmill.pipeline.report_data.reasons import CANNOT_ASK, Held, RuleReasons, as_value, reasons_by_uid
from gristmill.pipeline.store.records import LookResult, LookTask, Partition, Result
from gristmill.pipeline.store.run_records import SegmentRules
from gristmill.pipeline.store.serialize import plain
from gristmill.pipeline.store.storage import Store

FILES = 32
EACH = 5
CHARACTERS = 600
NAMED = 4  # signals beyond their thresholds as well


class RejectSample(TypedDict):
    """A rejected document."""

    uid: str | None
    url: str | None
    source: str
    detail: str | None
    text: str


@dataclass(frozen=True)
class DecidingLeg:
    """Rules that decide by stored signals, and the parts that have them."""

    rules: list[BoundRule]
    parts: list[Partition]

    def has(self, stage: str) -> bool:
        return any(deciding.rule.called == stage for deciding in self.rules)


def task_of_samples(store: Store, stage: str, rejects: Iterable[str], legs: Sequence[SegmentRules]) -> LookTask:
    """The task that reads rejected documents of a stage in the first of its files."""
    paths = sorted(path for path in rejects if path.endswith(".parquet"))[:FILES]
    keys = {key_of(path) for path in paths}
    of_stage = [{"rules": leg.rules, "parts": [part for part in leg.parts if part.key in keys]} for leg in legs]
    given: dict[str, Any] = {"stage": stage, "paths": paths, "legs": [leg for leg in of_stage if leg["parts"]]}
    return LookTask(
        task=digest(["samples", plain(given)]),
        node=stage,
        key="samples",
        cost=1 << 20,
        out=store.anywhere,
        step="samples",
        given=given,
    )


def run_samples(task: LookTask) -> Result:
    legs = []
    for leg in task.given["legs"]:
        with suppress(*CANNOT_ASK):
            parts = [part for part in leg["parts"] if part.documents is not None]
            legs.append(DecidingLeg([BoundRule.of(rule) for rule in leg["rules"]], parts))
    return LookResult(seen=samples_of(Store(task.out), task.given["stage"], task.given["paths"], legs))


def key_of(path: str) -> str:
    """The part that a file of rejects is of."""
    return path.rsplit("/", 1)[-1].split(".")[0]


def samples_of(
    store: Store, stage: str, paths: Sequence[str], legs: Sequence[DecidingLeg]
) -> dict[str, list[RejectSample]]:
    """Reason -> rejected documents, with the beginning of their texts."""
    samples: dict[str, list[RejectSample]] = {}
    counts: Counter[str] = Counter()
    by_part: dict[str, list[RejectSample]] = {}
    for path in paths:
        with store.open(path) as file:
            table = pq.ParquetFile(file)
            for group in range(min(2, table.num_row_groups)):
                reasons = table.read_row_group(group, columns=["reason"]).column("reason").to_pylist()
                wanted = []
                for row, reason in enumerate(reasons):
                    if counts[reason] < EACH:
                        counts[reason] += 1
                        wanted.append(row)
                if not wanted:
                    continue
                for document in table.read_row_group(group).take(wanted).to_pylist():
                    sample: RejectSample = {
                        "uid": None if document["uid"] is None else f"{document['uid']:016x}",
                        "url": document["url"],
                        "source": document["source"],
                        "detail": document["detail"],
                        "text": (document["text"] or "")[:CHARACTERS],
                    }
                    samples.setdefault(document["reason"], []).append(sample)
                    by_part.setdefault(key_of(path), []).append(sample)
    give_numbers(store, stage, [leg for leg in legs if leg.has(stage)] if by_part else [], by_part)
    return dict(sorted(samples.items()))


def give_numbers(store: Store, stage: str, legs: Sequence[DecidingLeg], by_part: dict[str, list[RejectSample]]) -> None:
    """Details of what a rule took by stored signals."""
    for leg in legs:
        for part in leg.parts:
            samples = {
                int(sample["uid"], 16): sample for sample in by_part.get(part.key, []) if sample["uid"] is not None
            }
            for uid, answer in reasons_by_uid(store.open, leg.rules, part, list(samples)):
                detail = detail_of(stage, answer)
                if detail is not None:
                    samples[uid]["detail"] = detail


def detail_of(stage: str, answer: RuleReasons) -> str | None:
    """`top_2gram_share 0.5003 > 0.2; also duplicate_line_share, words`: the first reason of the stage in numbers, and
    what else the document is beyond; after what the stage said itself, the number if it said none. None where there is
    nothing to add."""
    first = next((held for held in answer.held if held.stage == stage), None)
    if first is None or not first.words:
        return None
    if stage in answer.details:
        own = answer.details[stage]
        return f"{own}; {first.words}" if first.threshold is not None and as_value(first.value) not in own else None
    also = dict.fromkeys(named(held) for held in answer.held if held is not first)
    also.pop(named(first), None)
    more = f" and {len(also) - NAMED} more" if len(also) > NAMED else ""
    return first.words + (f"; also {', '.join(list(also)[:NAMED])}{more}" if also else "")


def named(held: Held) -> str:
    return held.signal or f"{held.stage}: {held.reason}"
