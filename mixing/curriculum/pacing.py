"""Pacing: at progress p only the easiest c(p) of the data may be drawn (Platanios et al. 2019), here without
replacement, in closed form.

Competence c(p) = min(1, (p / until * (1 - start**power) + start**power)**(1 / power)): power 1 is linear, 2 the root;
or steps.

By progress p a share p of the data has been drawn, all of it from the easiest c(p), so c(p) - p is left there to draw
from, uniformly. A waiting document of rank r is drawn at p at the rate 1 / (c(p) - p), from t(r) on, where c(t) = r.
With G(p) the integral of 1 / (c - q) from 0 to p, the chance that it still waits is exp(G(t) - G(p)), so its place is
given by G(p) = G(t(r)) - ln(1 - u). Places are uniform: the rate times what waits is (c - p) / (c - p) = 1; and what
waits, c - p, changes by c' - 1, as it must. If c(p) < p anywhere, the easy text would run out, so such a pacing is
refused. At c(p) = p throughout the order is ascending. Without replacement a linear pacing until 1 is nearly that,
whatever its start: only start * (1 - p) waits at p. Let it end earlier.
"""

from __future__ import annotations

import math
from typing import Annotated, Self

import numpy as np
from pydantic import Field, model_validator

from gristmill.kernels.base.types import Floats
from gristmill.mixing.curriculum.curriculum import MODERATE, Schedule, even_edges, inside

_NODES = (
    1 << 16
)  # of the table of G, even in ln(q / (1 - q)): both ends, where c - q may go to 0, are resolved. Places err by 1e-6
_FAR = 40.0  # ln(q / (1 - q)) at the ends of the table: beyond what float64 can tell from 0 and 1

_ADVICE = (
    "From the place where all data are open ({until:.4g} of training) on, the order is random: any decay of the "
    "learning rate that begins after "
    "it does. Keep the rate high before it: what an ascending order gains vanishes under full decay (Luo et al. "
    "2511.18903)."
)

Until = Annotated[float, Field(description="where in training all data are open", gt=0, le=1)]


class Pacing(Schedule):
    """Competence that grows steadily from `start` to 1 at `until`. The root (power 2) gives new and known text equal
    time."""

    power: Annotated[float, Field(description="1 is linear, 2 the root", gt=0, le=1000)] = 2.0
    start: Annotated[float, Field(description="the share of the data that is open at first", ge=0, lt=1)] = 0.01
    until: Until = 0.5

    @model_validator(mode="after")
    def _data_last(self) -> Self:
        if self.power < 1:  # a curve that bends upwards may fall below the diagonal; the others never do
            lowest = (
                (self.power / self._slope) ** (self.power / (1 - self.power)) - self.start**self.power
            ) / self._slope
            if 0 < lowest < self.until and not self.competence(np.array([lowest]))[0] > lowest:
                raise ValueError(
                    f"by {lowest:.4g} of training only the easiest {self.competence(np.array([lowest]))[0]:.4g} of the "
                    "data may be used: they run out, "
                    "since nothing is drawn twice. Raise start or power, or lower until"
                )
        return self

    @property
    def _slope(self) -> float:
        """The slope of competence**power."""
        return float((1 - self.start**self.power) / self.until)

    def competence(self, progress: Floats) -> Floats:
        """c(p)."""
        competence: Floats = np.minimum(
            (np.minimum(progress, self.until) * self._slope + self.start**self.power) ** (1 / self.power), 1.0
        )
        return competence

    def places(self, rank: Floats, chance: Floats) -> Floats:
        if self.start == 0 and self.power == 1 and self.until == 1:
            return inside(rank)
        x, waits = self._table()
        drawn_after = np.interp(self._opens(rank), x, waits) - np.log1p(-chance)
        return inside(_logistic(np.interp(drawn_after, waits, x)))

    def _table(self) -> tuple[Floats, Floats]:
        """x = ln(q / (1 - q)), and G at it, by Simpson's rule between nodes."""
        x = np.linspace(-_FAR, _FAR, _NODES)
        if self.until < 1:
            x = np.union1d(x, np.log(self.until / (1 - self.until)))  # the bend of c is a node
        begin, middle, end = self._rate(x[:-1]), self._rate((x[:-1] + x[1:]) / 2), self._rate(x[1:])
        return x, np.concatenate([np.zeros(1), np.cumsum(np.diff(x) * (begin + 4 * middle + end) / 6)])

    def _rate(self, x: Floats) -> Floats:
        """dG/dx = q (1 - q) / (c(q) - q), where c - q is (1 - q) - (1 - c) past the middle, so that nothing cancels
        near 1."""
        q, rest = _logistic(x), _logistic(-x)
        to_go = np.clip(self._slope * (rest - (1 - self.until)), 0.0, 0.75)  # used past the middle alone
        late = np.maximum(rest + np.expm1(np.log1p(-to_go) / self.power), 1e-12 * rest)  # c may touch the diagonal at 1
        return q * rest / np.where(q < self.until / 2, self.competence(q) - q, late)

    def _opens(self, rank: Floats) -> Floats:
        """ln(t / (1 - t)) of the place t at which a rank is reached; the easiest are open from the start."""
        t = (rank**self.power - self.start**self.power) / self._slope
        rest = (1 - self.until) + (1 - rank**self.power) / self._slope
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(t > 0, np.clip(np.log(t / rest), -_FAR, _FAR), -_FAR)

    def edges(self, resolution: int) -> Floats:
        climb = even_edges(0.0, self.until, max(2, math.ceil(resolution * self.until)))
        return climb if self.until == 1 else np.append(climb, self.until)

    @property
    def correlation(self) -> float:
        return measured_correlation(self)

    @property
    def promise(self) -> str:
        return (
            "what stands at place p is of rank c(p) or less, drawn evenly from what is left of that; c(p) grows from "
            f"{self.start:.4g} to 1 at "
            f"{self.until:.4g}, after which order is chance. In segments, c is taken at the segment's end"
        )

    @property
    def advice(self) -> str:
        return _ADVICE.format(until=self.until)

    @property
    def rates(self) -> tuple[float, float]:
        return (1 - self.until, 0.0) if self.until < 1 else MODERATE


class Steps(Schedule):
    """Competence that grows by equal steps: from `start` to 1, the last of `stages` levels from `until` on. Order
    inside a step is random."""

    stages: Annotated[int, Field(description="how many steps", ge=2, le=1024)] = 4
    start: Annotated[float, Field(description="the share of the data that is open at first", gt=0, lt=1)] = 0.25
    until: Until = 0.5

    @model_validator(mode="after")
    def _data_last(self) -> Self:
        levels, begins = self._levels(), self._begins()
        short = np.flatnonzero(levels[:-1] < begins[1:] - 1e-12)
        if len(short):
            raise ValueError(
                f"step {short[0] + 1} may use the easiest {levels[short[0]]:.4g} of the data up to "
                f"{begins[short[0] + 1]:.4g} of training: they run "
                "out, since nothing is drawn twice. Raise start, or lower until"
            )
        return self

    def _levels(self) -> Floats:
        return self.start + (1 - self.start) * (np.arange(self.stages) / (self.stages - 1))

    def _begins(self) -> Floats:
        return self.until * (np.arange(self.stages) / (self.stages - 1))

    def competence(self, progress: Floats) -> Floats:
        """c(p)."""
        levels: Floats = self._levels()[np.searchsorted(self._begins(), progress, side="right") - 1]
        return levels

    def places(self, rank: Floats, chance: Floats) -> Floats:
        """Step by step: an open document is drawn in this step by chance, or waits."""
        levels, begins = self._levels(), self._begins()
        opens = np.searchsorted(levels[:-1], rank, side="right")
        waits, places = 1 - chance, np.full(rank.shape, -1.0)
        for step, (level, begin, end) in enumerate(zip(levels, begins, np.append(begins[1:], 1.0), strict=True)):
            stay = max(level - end, 0.0) / (
                level - begin
            )  # of what waits at its begin, the part that still waits at its end
            waiting = (opens <= step) & (places < 0)
            leaving = waiting & ((waits > stay) | (step == self.stages - 1))
            places[leaving] = level - waits[leaving] * (level - begin)
            waits[waiting & ~leaving] /= stay
        return inside(places)

    def edges(self, resolution: int) -> Floats:
        return self._begins()

    @property
    def correlation(self) -> float:
        return measured_correlation(self)

    @property
    def promise(self) -> str:
        shares = ", ".join(
            f"{level:.4g} from {begin:.4g}" for level, begin in zip(self._levels()[:8], self._begins()[:8], strict=True)
        )
        more = ", ..." if self.stages > 8 else ""
        return (
            f"what stands at place p is of rank c(p) or less, drawn evenly from the rest of that; c is {shares}{more}"
        )

    @property
    def advice(self) -> str:
        return _ADVICE.format(until=self.until)

    @property
    def rates(self) -> tuple[float, float]:
        return (1 - self.until, 0.0) if self.until < 1 else MODERATE


def measured_correlation(schedule: Schedule) -> float:
    """Spearman's correlation of places with ranks on an even grid; the error is 1e-3 at most."""
    middles = (np.arange(400) + 0.5) / 400
    rank, chance = (side.ravel() for side in np.meshgrid(middles, middles))
    return float(np.corrcoef(schedule.places(rank, chance), rank)[0, 1])


def _logistic(x: Floats) -> Floats:
    return 1 / (1 + np.exp(-x))
