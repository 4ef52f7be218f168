"""Limits of rules: a signal, the setting that bounds it, and the reason by which what lies beyond goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np

from gristmill.kernels.base.types import Array, Mask
from gristmill.stages.settings import Settings

Bound = float | Array  # for all rows, or for each


@dataclass(frozen=True)
class Limit:
    """Documents whose signal lies beyond a setting go, for a reason.

    The signal may be a sum: `hash_ratio + ellipsis_ratio`. The setting is a path (`min_words`, `words.low`,
    `max_top_grams.1`), null where nothing is tested, or a number that no setting moves.
    """

    signal: str
    setting: str | float
    side: Literal["low", "high"]  # low: what lies below goes; high: what lies above
    reason: str

    @property
    def signals(self) -> list[str]:
        return self.signal.split(" + ")

    def beyond(self, values: Array, bound: Bound) -> Mask:
        """The bound is rounded as the values were: a share of exactly 0.3 is not above 0.3, whatever float32 makes of
        it."""
        if values.dtype == np.float32:
            bound = np.asarray(bound, np.float32)
        return cast(Mask, values < bound if self.side == "low" else values > bound)


def below(signal: str, setting: str | float, reason: str) -> Limit:
    """Drop where the signal is below the setting, or a number."""
    return Limit(signal, setting, "low", reason)


def above(signal: str, setting: str | float, reason: str) -> Limit:
    """Drop where the signal is above the setting, or a number."""
    return Limit(signal, setting, "high", reason)


def signals_bounded(limits: Sequence[Limit]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for limit in limits for name in limit.signals))


def setting_at(settings: Settings, path: str | float) -> float | None:
    """The number at a path."""
    place: object = settings
    for step in path.split(".") if isinstance(path, str) else ():
        if isinstance(place, Settings):
            place = getattr(place, step)
        else:
            place = place[step] if isinstance(place, Mapping) else cast(Sequence[object], place)[int(step)]
    number = place if isinstance(path, str) else path
    if number is not None and (isinstance(number, bool) or not isinstance(number, int | float)):
        raise TypeError(f"{number!r} is no number")
    return number
