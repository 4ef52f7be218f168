"""Rules taken apart: what no threshold governs, what each threshold can take, and what it does take; and whether that
is all that the rules do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gristmill.kernels.base.types import Bytes, Floats, Mask
from gristmill.pipeline.leg.bound_rule import BROKE, KEPT, BoundRule, outcome_of
from gristmill.pipeline.survey.histogram_edges import edges_of
from gristmill.pipeline.survey.thresholds import RuleThreshold, is_number
from gristmill.stages.stage import Signals

NOT_SIGNALS = {"uid", "text", "url", "id", "date", "meta", "source"}


@dataclass
class SurveyPlan:
    """What is counted in every part."""

    rules: list[BoundRule]
    cuts: list[list[RuleThreshold]]  # by rule
    edges: dict[str, Floats]  # by signal
    decades: set[str]  # signals whose edges lie evenly by their logarithms
    columns: list[str]
    weight: str | None
    groups: dict[str, int]  # sources, as they are told apart


def plan_survey(
    rules: list[BoundRule],
    cuts: list[list[RuleThreshold]],
    sample: pa.RecordBatch,
    columns: list[str],
    weight: str | None,
    groups: dict[str, int],
) -> SurveyPlan:
    thresholds: dict[str, list[float]] = {}
    for cut in (cut for of_rule in cuts for cut in of_rule):
        thresholds.setdefault(cut.signal, []).append(cut.value)
    names = [
        name
        for name in sample.schema.names
        if name not in NOT_SIGNALS and "@" not in name and is_number(sample.schema.field(name).type)
    ]
    views = {cut.signal: d.view(sample) for d, of_rule in zip(rules, cuts, strict=True) for cut in of_rule}
    edges, decades = {}, set()
    for name in dict.fromkeys([*thresholds, *names]):
        column = views[name].column(name) if name in views else sample.column(name)
        values = finite(column)
        if len(values):
            steps, by_decades = edges_of(values, thresholds.get(name, []), bool(pa.types.is_integer(column.type)))
            edges[name] = np.array(steps)
            decades |= {name} if by_decades else set()
    return SurveyPlan(rules, cuts, edges, decades, columns, weight, groups)


def finite(column: pa.Array) -> Floats:
    values: Floats = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    numbers: Floats = values[np.isfinite(values)]
    return numbers


@dataclass(frozen=True)
class Decomposition:
    """The rules of a leg taken apart, for a batch of documents."""

    gone: Mask  # by what no threshold governs
    touched: list[Mask]  # by cut: within its reach
    beyond: list[Mask]  # by cut: within its reach, and taken
    bins: list[Bytes]
    columns: dict[str, pa.Array]  # signals that have a threshold, as the rules saw them
    odd: set[int]

    @classmethod
    def of(cls, plan: SurveyPlan, batch: pa.RecordBatch) -> Decomposition:
        gone = np.zeros(len(batch), bool)
        touched, beyond, bins, columns, odd = [], [], [], {}, set()
        for number, (deciding, cuts) in enumerate(zip(plan.rules, plan.cuts, strict=True)):
            rule, view = deciding.rule, deciding.view(batch)
            outcome = outcome_of(rule, view)
            if not cuts:
                gone |= outcome.first != KEPT
                continue
            signals, verdict = Signals(view), outcome.verdict
            fixed = outcome.first == BROKE
            held = {reason: verdict.held(bit) for bit, reason in enumerate(verdict.reasons)}
            explained = {reason: np.zeros(len(batch), bool) for reason in held}
            reaches = []
            for cut in cuts:
                values, reason = rule.values(cut.limit, signals), cut.limit.reason
                reached = rule.governed(cut.limit, signals) & (values == values)
                taken = reached & cut.beyond(values, cut.value)
                if (taken & ~held.get(reason, np.zeros(len(batch), bool)) & ~fixed).any():
                    odd.add(number)  # a verdict of its own does not do what the limit says
                    break
                explained[reason] |= taken
                columns[cut.signal] = view.column(cut.signal)
                reaches.append((reached, taken))
                bins.append(cut.bins(values, plan.edges[cut.signal]))
            for reason, rows in held.items():
                fixed |= rows & ~explained[reason]
            touched += [reached & ~fixed for reached, _ in reaches]
            beyond += [taken & ~fixed for _, taken in reaches]
            gone |= fixed
        return cls(gone, touched, beyond, bins, columns, odd)
