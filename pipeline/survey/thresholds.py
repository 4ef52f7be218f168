"""Which field of a rule is a threshold on which signal: found by asking the rule itself, so that it holds for anybody's
rules.

A rule is code; nothing says that `min_words` cuts `words` from below. But a rule that is shown documents which differ
in one signal alone, just under, at and just over a number, tells it: the field is a threshold on that signal if, set to
that number, it makes the rule drop on one side of it and not on the other. What is found so is held against the rule's
verdicts on every document later (`survey.py`), and given up where they differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.leg.rules import KEPT, outcome_of
from gristmill.stages.stage import Rule, Settings, with_columns

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Bins = npt.NDArray[np.uint8]
Uids = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.number[npt.NBitBase]]  # a signal of any type
Side = Literal["low", "high"]
PROBE = 13 / 7  # added to a field's value: a number at which nothing else changes
IN_FLOAT32 = 0.1  # is 1.5e-9 less than its nearest float32
ROWS = 500
LARGEST = np.finfo(np.float64).max  # a limit that a recipe sets to mean none may be a whole number that no array holds


@dataclass(frozen=True)
class RuleThreshold:
    """One threshold: documents with the signal below (`low`) or above (`high`) of it go."""

    stage: str
    field: str  # with dots where it lies deeper: words.low
    signal: str
    side: Side
    value: float
    at_goes: bool  # does a document exactly at the threshold go?
    narrow: bool  # is the threshold rounded to float32 before it is compared?

    def beyond(self, values: Numbers, threshold: float) -> Mask:
        """Which values go."""
        limit = np.float64(np.float32(threshold)) if self.narrow else np.float64(threshold)
        wide = values.astype(np.float64)
        if self.side == "low":
            return wide <= limit if self.at_goes else wide < limit
        return wide >= limit if self.at_goes else wide > limit

    def bins(self, values: Numbers, edges: Floats) -> Bins:
        """How many edges each value has passed. Moved to edge k, the cut takes bins up to k (`low`) or those after k
        (`high`)."""
        limits = edges.astype(np.float32).astype(np.float64) if self.narrow else edges
        right = (self.side == "low") != self.at_goes
        return np.searchsorted(limits, values.astype(np.float64), side="right" if right else "left").astype(np.uint8)


def with_value(rule: Rule, path: str, value: float) -> Rule:
    """The rule with one field changed and nothing checked: a probe may be a number that no recipe may write."""
    return cast(Rule, _changed(rule, path.split("."), value))


def _changed(settings: Settings, path: list[str], value: float) -> Settings:
    inner = value if len(path) == 1 else _changed(getattr(settings, path[0]), path[1:], value)
    return settings.model_copy(update={path[0]: inner})


def numbers_in(settings: Settings, before: str = "") -> Iterator[tuple[str, float]]:
    """Fields that are numbers, by path."""
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, Settings):
            yield from numbers_in(value, f"{before}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST:
            yield f"{before}{name}", float(value)


def goes(rule: Rule, view: pa.RecordBatch) -> Mask:
    """Which documents a rule does not keep."""
    gone: Mask = outcome_of(rule, view).first != KEPT
    return gone


def lax(rule: Rule, cuts: list[RuleThreshold]) -> Rule:
    """The rule with thresholds at which nothing goes."""
    for cut in cuts:
        rule = with_value(rule, cut.field, -np.inf if cut.side == "low" else np.inf)
    return rule


def strict(rule: Rule, cuts: list[RuleThreshold], kept: RuleThreshold) -> Rule:
    """The rule with nothing but one threshold, at which all go that it can take at all."""
    return with_value(lax(rule, cuts), kept.field, np.inf if kept.side == "low" else -np.inf)


def all_strict(rule: Rule, cuts: list[RuleThreshold]) -> Rule:
    """The rule with every threshold where it takes all that it can."""
    for cut in cuts:
        rule = with_value(rule, cut.field, np.inf if cut.side == "low" else -np.inf)
    return rule


def reasons_of(rule: Rule, view: pa.RecordBatch) -> dict[str, Mask]:
    """For each reason the documents of which it holds."""
    verdict = outcome_of(rule, view).verdict
    return {reason: (verdict.all >> np.uint64(bit)) & np.uint64(1) == 1 for bit, reason in enumerate(verdict.reasons)}


def own_reasons(rule: Rule, cuts: list[RuleThreshold], view: pa.RecordBatch) -> list[str | None]:
    """The one reason that each threshold gives and no other does; None where it has none of its own."""
    if not cuts:
        return []
    before = reasons_of(lax(rule, cuts), view)
    given = []
    for cut in cuts:
        strictly = reasons_of(strict(rule, cuts, cut), view)
        given.append(
            {
                reason
                for reason, rows in strictly.items()
                if (rows & ~before.get(reason, np.zeros(len(view), bool))).any()
            }
        )
    return [
        min(reasons)
        if len(reasons) == 1 and sum(reasons <= other or bool(reasons & other) for other in given) == 1
        else None
        for reasons in given
    ]


def find_thresholds(rule: Rule, view: pa.RecordBatch) -> list[RuleThreshold]:
    """The thresholds of a rule, from some documents. A field that moves several signals, or none, is no threshold."""
    view = view.slice(0, ROWS)
    if not len(view) or "text" in rule.needs:
        return []
    there = [
        name
        for name in dict.fromkeys(rule.needs)
        if name in view.schema.names and is_number(view.schema.field(name).type)
    ]
    signals = [name for name in there if view.column(name).null_count < len(view)]
    thresholds = []
    for path, value in numbers_in(rule):
        try:
            with np.errstate(
                over="ignore"
            ):  # a number beyond float32 is infinite there, and then no threshold is found
                cuts = [cut for name in signals if (cut := _probed(rule, view, path, value, name)) is not None]
        except (RunFailed, TypeError, ValueError, OverflowError):  # a field that cannot be such a number
            continue
        if len(cuts) == 1:
            thresholds.append(cuts[0])
    return thresholds


def _probed(rule: Rule, view: pa.RecordBatch, path: str, value: float, signal: str) -> RuleThreshold | None:
    kind = view.schema.field(signal).type
    whole = pa.types.is_integer(kind)
    probe = float(round(value) + 13) if whole else value + PROBE
    probe = probe if whole else float(np.float32(probe))
    step = 1.0 if whole else max(1e-3, 1e-4 * abs(probe))
    near = (probe - step, probe, probe + step)
    beside = pa.concat_batches([_with(view, signal, number) for number in near])
    sides: list[tuple[Side, float]] = [("low", -np.inf), ("high", np.inf)]
    for side, never in sides:
        below, exactly, above = _due_to(rule, path, probe, never, beside).reshape(len(near), len(view))
        takes, spares = (below, above) if side == "low" else (above, below)
        if takes.any() and not spares.any() and exactly.any() == (exactly >= takes).all():
            closed = bool(exactly.any())
            return RuleThreshold(
                rule.called, path, signal, side, value, closed, _is_narrow(rule, view, path, signal, side, closed)
            )
    return None


def _due_to(rule: Rule, path: str, value: float, never: float, view: pa.RecordBatch) -> Mask:
    """Which documents go with a field at a value that stay, or go for another reason, with it where it takes none."""
    due: Mask = (_reasons(with_value(rule, path, value), view) & ~_reasons(with_value(rule, path, never), view)) != 0
    return due


def _is_narrow(rule: Rule, view: pa.RecordBatch, path: str, signal: str, side: Side, at_goes: bool) -> bool:
    """In float32, 0.1 is a little more and 0.7 a little less than they are: only a rule that rounds its threshold as
    well finds the two equal."""
    if view.schema.field(signal).type != pa.float32():
        return False
    number = 0.1 if (side == "high") != at_goes else 0.7
    there = _with(view, signal, float(np.float32(number)))
    return bool(_due_to(rule, path, number, -np.inf if side == "low" else np.inf, there).any()) == at_goes


def _with(view: pa.RecordBatch, signal: str, number: float) -> pa.RecordBatch:
    kind = view.schema.field(signal).type
    return with_columns(view, {signal: pa.array(np.full(len(view), number)).cast(kind, safe=False)})


def _reasons(rule: Rule, view: pa.RecordBatch) -> Uids:
    """For each document a bit for each reason that held."""
    reasons: Uids = outcome_of(rule, view).verdict.all
    return reasons


def is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))
