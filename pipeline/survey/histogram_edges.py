"""Steps of a slider, bars of a histogram: numbers that a person would write over the span of a signal, with the
thresholds that are set among them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

STEPS = 200  # of the even grid; with what is added never more than 254
WHOLE_STEPS = 250  # where the signal is a count: up to here each is a step of its own
TAIL = 24  # steps between what is drawn to scale and the highest, at most
MOST = 254
SHARES = 2.0  # what never comes so far is a share or a score, and drawn evenly
LEFT, DRAWN, BEYOND = 0.02, 0.88, 0.08  # of the width: before the first edge, to scale, and for the tail
LADDERS = (  # the numbers that a decade is stepped through, finest first: from, up to, by
    ((100, 500, 5), (500, 1000, 10)),
    ((100, 1000, 10),),
    ((100, 500, 10), (500, 1000, 50)),
    ((100, 300, 10), (300, 1000, 50)),
    ((100, 200, 10), (200, 500, 50), (500, 1000, 100)),
    ((100, 200, 50), (200, 1000, 100)),
    ((100, 200, 100), (200, 500, 300), (500, 1000, 500)),
)


def edges_of(values: npt.NDArray[np.float64], thresholds: Sequence[float], whole: bool) -> tuple[list[float], bool]:
    """Steps from the lowest to the highest of some values; and whether they are drawn by decades."""
    low, high = min([float(values.min()), *thresholds]), max([float(values.max()), *thresholds])
    low = min([low, *(t / 4 for t in thresholds if t > 0)])
    low = float(math.floor(low)) if whole else low
    to_scale = (
        max([float(np.quantile(values, 0.99)), *(1.5 * t for t in thresholds if t > 0), low]) if not whole else high
    )
    decades = (low >= 0 and high > WHOLE_STEPS and whole) or (low > 0 and high / low > 1000 and high > SHARES)
    if whole and not decades:
        to_scale = high = high + 1  # so that documents at the highest have a bar as wide as the others
    grid = by_decades(low, high, whole) if decades else evenly(low, min(to_scale, high), high, whole)
    edges = sorted({*grid, *thresholds})
    spare = [edge for edge in edges if edge not in thresholds]
    while len(edges) > MOST:
        spare = spare[::2]
        edges = sorted({*spare, *thresholds})
    return edges, decades


def evenly(low: float, to_scale: float, high: float, whole: bool) -> list[float]:
    """Even steps of a round size as far as most documents are, larger ones for the few beyond."""
    step = size_of_step(max(to_scale - low, 1e-12) / (WHOLE_STEPS + 1 if whole else STEPS), whole)
    grid = steps(low, to_scale, step)
    if high > grid[-1]:
        wider = max(step, size_of_step((high - grid[-1]) / TAIL, whole))
        grid += [edge for edge in steps(grid[-1], high, wider) if edge > grid[-1]]
    return grid


def steps(low: float, high: float, step: float) -> list[float]:
    first, last = math.floor(low / step + 1e-9), max(math.ceil(high / step - 1e-9), math.floor(low / step + 1e-9) + 1)
    return [rounded(step * k, step) for k in range(first, last + 1)]


def rounded(value: float, step: float) -> float:
    return round(value, max(0, 2 - math.floor(math.log10(step)))) + 0.0


def size_of_step(least: float, whole: bool) -> float:
    """The next of 1, 5, 10 times a power of ten: steps of 2 would pass over the numbers that people write."""
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 5, 10) if factor * power >= least * (1 - 1e-9))
    return max(1.0, step) if whole else step


def by_decades(low: float, high: float, whole: bool) -> list[float]:
    """Numbers that a person would write (10, 11, 12, ... 50, 55, 60), as many in each decade as there is room for."""
    first = max(low, 1.0) if whole else low
    for ladder in LADDERS:
        grid = climbed(ladder, first, high, whole)
        if len(grid) <= STEPS + 40:
            break
    return grid


def climbed(ladder: Sequence[tuple[int, int, int]], first: float, high: float, whole: bool) -> list[float]:
    """The numbers of a ladder, from the last that is not above `first` to the first that is not below `high`."""
    rungs = [rung for begin, end, by in ladder for rung in range(begin, end, by)]
    decades = range(math.floor(math.log10(first)), math.ceil(math.log10(high)) + 1)
    numbers = [
        float(f"{rung}e{decade - 2}")
        for decade in decades
        for rung in rungs
        if not whole or decade >= 2 or rung % 10 ** (2 - decade) == 0
    ]
    inside = [number for number in numbers if first < number < high]
    return [max(n for n in numbers if n <= first), *inside, min(n for n in numbers if n >= high)]


def places_of(edges: Sequence[float], decades: bool, to_scale: float | None = None) -> list[float]:
    """Where each edge lies between the left (0) and the right (1) of a drawing."""
    if decades:
        logs = [math.log10(max(edge, 1e-12)) for edge in edges]
        logs = [max(log, logs[1] - 0.1) for log in logs] if edges[0] <= 0 and len(logs) > 2 else logs
        low, high = logs[0], logs[-1]
        return [LEFT + (1 - 2 * LEFT) * (log - low) / ((high - low) or 1) for log in logs]
    low, high = edges[0], edges[-1]
    knee = high if to_scale is None or to_scale >= high else to_scale
    return [
        LEFT + (DRAWN if knee < high else 1 - 2 * LEFT) * (edge - low) / ((knee - low) or 1)
        if edge <= knee
        else LEFT + DRAWN + BEYOND * (edge - knee) / (high - knee)
        for edge in edges
    ]
