"""Rules taken apart: what no threshold governs, what each threshold can take, and what it does take; and whether that
is all that the rules do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gristmill.pipeline.leg.rules import Deciding
from gristmill.pipeline.survey.histogram_edges import edges_of
from gristmill.pipeline.survey.thresholds import (
    Bins,
    Floats,
    Mask,
    RuleThreshold,
    all_strict,
    goes,
    is_number,
    lax,
    own_reasons,
    reasons_of,
    strict,
    with_value,
)

NOT_SIGNALS = {"uid", "text", "url", "id", "date", "meta", "source"}


@dataclass
class SurveyPlan:
    """What is counted in every part."""

    rules: list[Deciding]
    cuts: list[list[RuleThreshold]]  # by rule
    reasons: list[list[str | None]]  # by rule and cut: the reason that is the cut's alone
    edges: dict[str, Floats]  # by signal
    decades: set[str]  # signals whose edges lie evenly by their logarithms
    columns: list[str]
    weight: str | None
    groups: dict[str, int]  # sources, as they are told apart


def plan_survey(
    rules: list[Deciding],
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
    reasons = [own_reasons(d.rule, of_rule, d.view(sample)) for d, of_rule in zip(rules, cuts, strict=True)]
    return SurveyPlan(rules, cuts, reasons, edges, decades, columns, weight, groups)


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
    bins: list[Bins]
    columns: dict[str, pa.Array]  # signals that have a threshold, as the rules saw them
    odd: set[int]

    @classmethod
    def of(cls, plan: SurveyPlan, batch: pa.RecordBatch) -> Decomposition:
        gone = np.zeros(len(batch), bool)
        touched, beyond, bins, columns, odd = [], [], [], {}, set()
        for number, (deciding, cuts, reasons) in enumerate(zip(plan.rules, plan.cuts, plan.reasons, strict=True)):
            rule, view = deciding.rule, deciding.view(batch)
            now = goes(rule, view)
            if not cuts:
                gone |= now
                continue
            fixed = goes(lax(rule, cuts), view)
            explained = fixed.copy()
            at_most = reasons_of(
                all_strict(rule, cuts), view
            )  # one look for all thresholds that have a reason of their own
            for cut, reason in zip(cuts, reasons, strict=True):
                values = view.column(cut.signal).to_numpy(zero_copy_only=False)
                reached = (at_most[reason] if reason in at_most else goes(strict(rule, cuts, cut), view)) & ~fixed
                taken = reached & cut.beyond(values, cut.value)
                explained |= taken
                columns[cut.signal] = view.column(cut.signal)
                touched.append(reached)
                beyond.append(taken)
                bins.append(cut.bins(values, plan.edges[cut.signal]))
            if (explained != now).any():
                odd.add(number)
            gone |= fixed
        return cls(gone, touched, beyond, bins, columns, odd)


def odd_elsewhere(plan: SurveyPlan, batch: pa.RecordBatch) -> set[int]:
    """Rules of which a threshold, moved to a few other places, does not do what its cut says: it governs more than one
    signal."""
    odd = set()
    for number, (deciding, cuts) in enumerate(zip(plan.rules, plan.cuts, strict=True)):
        view = deciding.view(batch)
        for cut in cuts:
            rest = goes(lax(deciding.rule, [cut]), view)
            reached = goes(with_value(deciding.rule, cut.field, np.inf if cut.side == "low" else -np.inf), view) & ~rest
            values = view.column(cut.signal).to_numpy(zero_copy_only=False)
            for edge in np.quantile(plan.edges[cut.signal], (0.05, 0.3, 0.6), method="nearest").tolist():
                if (
                    goes(with_value(deciding.rule, cut.field, edge), view) != rest | reached & cut.beyond(values, edge)
                ).any():
                    odd.add(number)
    return odd
