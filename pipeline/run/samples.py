"""A few rejects for each reason, for reports: the first by uid in the first files, so that two runs show the same.
Where the stage itself gave no detail, the detail says in numbers what the document was beyond."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq

from gristmill.pipeline.leg.rules import Deciding
from gristmill.pipeline.look.why import CANNOT_ASK, Held, RuleReasons, as_value, reasons_by_uid
from gristmill.pipeline.store.store import Store

FILES = 32
EACH = 5
CHARACTERS = 600
NAMED = 4  # signals beyond their thresholds as well

Sample = dict[str, Any]


@dataclass(frozen=True)
class Leg:
    """Rules that decide by stored signals, and the parts that have them."""

    rules: list[Deciding]
    parts: list[dict[str, Any]]

    def has(self, stage: str) -> bool:
        return any(deciding.rule.called == stage for deciding in self.rules)


def legs_with_rules(store: Store) -> list[Leg]:
    legs = []
    for path in sorted(path for path in store.files("legs") if path.endswith("/rules.json")):
        told = store.read_json(path)
        with suppress(*CANNOT_ASK):
            legs.append(
                Leg(
                    [Deciding.of(rule) for rule in told["rules"]],
                    [part for part in told["parts"] if part["documents"] is not None],
                )
            )
    return legs


def samples_of(store: Store, stage: str, legs: Sequence[Leg]) -> dict[str, list[Sample]]:
    """Reason -> rejected documents, with the beginning of their texts."""
    found: dict[str, list[Sample]] = {}
    by_part: dict[str, list[Sample]] = {}
    for path in sorted(p for p in store.files(f"stages/{stage}/rejects") if p.endswith(".parquet"))[:FILES]:
        with store.open(path) as file:
            table = pq.ParquetFile(file)
            for group in range(min(2, table.num_row_groups)):
                reasons = table.read_row_group(group, columns=["reason"]).column("reason").to_pylist()
                wanted = []
                for row, reason in enumerate(reasons):
                    if len(found.get(reason, [])) < EACH:
                        found.setdefault(reason, []).append({})
                        wanted.append(row)
                if not wanted:
                    continue
                taken = table.read_row_group(group).take(wanted).to_pylist()
                for row in taken:
                    place = next(i for i, sample in enumerate(found[row["reason"]]) if not sample)
                    found[row["reason"]][place] = {
                        "uid": None if row["uid"] is None else f"{row['uid']:016x}",
                        "url": row["url"],
                        "source": row["source"],
                        "detail": row["detail"],
                        "text": (row["text"] or "")[:CHARACTERS],
                    }
                    by_part.setdefault(path.rsplit("/", 1)[-1].split(".")[0], []).append(found[row["reason"]][place])
    give_numbers(store, stage, [leg for leg in legs if leg.has(stage)] if by_part else [], by_part)
    return dict(sorted(found.items()))


def give_numbers(store: Store, stage: str, legs: Sequence[Leg], by_part: dict[str, list[Sample]]) -> None:
    """Details of what a rule took by stored signals."""
    for leg in legs:
        for part in leg.parts:
            mine = {
                int(sample["uid"], 16): sample for sample in by_part.get(part["key"], []) if sample["uid"] is not None
            }
            for uid, said in reasons_by_uid(store.open, leg.rules, part, list(mine)):
                detail = detail_of(stage, said)
                if detail is not None:
                    mine[uid]["detail"] = detail


def detail_of(stage: str, said: RuleReasons) -> str | None:
    """`top_2gram_share 0.5003 > 0.2; also duplicate_line_share, words`: the first reason of the stage in numbers, and
    what else the document is beyond; after what the stage said itself, the number if it said none. None where there is
    nothing to add."""
    first = next((held for held in said.held if held.stage == stage), None)
    if first is None or not first.words:
        return None
    if stage in said.details:
        own = said.details[stage]
        return f"{own}; {first.words}" if first.threshold is not None and as_value(first.value) not in own else None
    also = dict.fromkeys(named(held) for held in said.held if held is not first)
    also.pop(named(first), None)
    more = f" and {len(also) - NAMED} more" if len(also) > NAMED else ""
    return first.words + (f"; also {', '.join(list(also)[:NAMED])}{more}" if also else "")


def named(held: Held) -> str:
    return held.signal or f"{held.stage}: {held.reason}"
