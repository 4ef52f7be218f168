"""Limits of rules: a signal, the setting that bounds it, and the reason by which what lies beyond goes; ranges as
settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, cast

import numpy as np
from pydantic import Field, ValidationInfo, model_validator

from gristmill.kernels.base.types import Array, Mask
from gristmill.kernels.common.settings import Settings
from gristmill.stages.paths import of_a_recipe

Bound = float | Array  # for all rows, or for each


class Range(Settings):
    """A closed interval; an end that is absent is open."""

    low: Annotated[float | None, Field(description="the lowest value in it")] = None
    high: Annotated[float | None, Field(description="the highest value in it")] = None

    @model_validator(mode="after")
    def _ends_are_in_order(self, info: ValidationInfo) -> Self:
        if of_a_recipe(info) and self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low {self.low:,g} is above high {self.high:,g}: no value lies between them")
        return self

    def holds(self, values: np.ndarray[Any, Any]) -> Mask:
        inside = np.ones(len(values), dtype=bool)
        if self.low is not None:
            inside &= values >= self.low
        if self.high is not None:
            inside &= values <= self.high
        return inside


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
