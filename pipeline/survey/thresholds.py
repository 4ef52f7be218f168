"""Limits of a rule that a slider can move, as the rule declares them (`Rule.limits`)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from gristmill.kernels.base.types import Array, Bytes, Floats, Mask
from gristmill.pipeline.leg.bound_rule import KEPT, outcome_of
from gristmill.stages.limits import Limit, setting_at
from gristmill.stages.stage import Rule, Settings, Signals

LARGEST = np.finfo(np.float64).max  # a limit that a recipe sets to mean none may be a whole number that no array holds


@dataclass(frozen=True)
class RuleThreshold:
    """One limit, and its value: documents with the signal below (`low`) or above (`high`) it go."""

    stage: str
    limit: Limit
    value: float
    narrow: bool  # is the value rounded to float32 before it is compared?

    @property
    def field(self) -> str:
        return str(self.limit.setting)

    @property
    def signal(self) -> str:
        return self.limit.signal

    @property
    def side(self) -> Literal["low", "high"]:
        return self.limit.side

    def beyond(self, values: Array, threshold: float) -> Mask:
        """Which values go."""
        limit = np.float64(np.float32(threshold)) if self.narrow else np.float64(threshold)
        return self.limit.beyond(values.astype(np.float64), limit)

    def bins(self, values: Array, edges: Floats) -> Bytes:
        """How many edges each value has passed. Moved to edge k, the cut takes bins up to k (`low`) or those after k
        (`high`)."""
        limits = edges.astype(np.float32).astype(np.float64) if self.narrow else edges
        side: Literal["left", "right"] = "right" if self.side == "low" else "left"
        return np.searchsorted(limits, values.astype(np.float64), side=side).astype(np.uint8)


def thresholds_of(rule: Rule, view: pa.RecordBatch) -> list[RuleThreshold]:
    """The limits of a rule that a slider can move: a setting of its own (an entry of a list or of a table is none), on
    one signal that some documents have."""
    settings = Counter(limit.setting for limit in rule.limits)
    signals = Signals(view)
    thresholds = []
    for limit in rule.limits:
        value = setting_at(rule, limit.setting)
        if (
            value is None
            or not abs(value) <= LARGEST
            or settings[limit.setting] > 1
            or not is_field(rule, limit.setting)
        ):
            continue
        if limit.signal not in view.schema.names or not is_number(view.schema.field(limit.signal).type):
            continue
        if len(view) and view.column(limit.signal).null_count < len(view):
            narrow = rule.values(limit, signals).dtype == np.float32
            thresholds.append(RuleThreshold(rule.called, limit, float(value), narrow))
    return thresholds


def is_field(settings: Settings, path: str | float) -> bool:
    """Is a path one of fields alone?"""
    if not isinstance(path, str):
        return False
    place: object = settings
    for step in path.split("."):
        if not isinstance(place, Settings):
            return False
        place = getattr(place, step)
    return True


def goes(rule: Rule, view: pa.RecordBatch) -> Mask:
    """Which documents a rule does not keep."""
    gone: Mask = outcome_of(rule, view).first != KEPT
    return gone


def is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))
