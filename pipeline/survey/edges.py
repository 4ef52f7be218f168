"""Steps of a slider, bars of a histogram: round numbers over the span of a signal, with the thresholds that are set among them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
STEPS = 200  # of the even grid; with what is added never more than 254
TAIL = 24  # steps between what is drawn to scale and the highest
DECADE = 48  # steps of a signal that spans decades
MOST = 254
DRAWN = 0.93  # of the width, to scale; the rest is the tail


def edges_of(values: Array, thresholds: Sequence[float], whole: bool) -> tuple[list[float], bool]:
    """Steps from the lowest to the highest of some values; and whether they are drawn by decades."""
    low, high = min([float(values.min()), *thresholds]), max([float(values.max()), *thresholds])
    low = min([low, *(t / 4 for t in thresholds if t > 0)])
    low = float(math.floor(low)) if whole else low
    drawn = max([float(np.quantile(values, 0.99)), *(1.5 * t for t in thresholds if t > 0), low]) if not whole else high
    decades = (low >= 0 and high >= 300 and whole) or (low > 0 and high / low > 1000)
    grid = by_decades(low, high, whole) if decades else evenly(low, min(drawn, high), high, whole)
    edges = sorted({*grid, *thresholds})
    spare = [edge for edge in edges if edge not in thresholds]
    while len(edges) > MOST:
        spare = spare[::2]
        edges = sorted({*spare, *thresholds})
    return edges, decades


def evenly(low: float, drawn: float, high: float, whole: bool) -> list[float]:
    """Even steps of a round size as far as most documents are, larger ones for the few beyond."""
    step = size_of_step(max(drawn - low, 1e-12) / STEPS, whole)
    grid = steps(low, drawn, step)
    if high > grid[-1]:
        grid += steps(grid[-1], high, size_of_step((high - grid[-1]) / TAIL, whole))[1:]
    return grid


def steps(low: float, high: float, step: float) -> list[float]:
    first, last = math.floor(low / step + 1e-9), max(math.ceil(high / step - 1e-9), math.floor(low / step + 1e-9) + 1)
    return [rounded(step * k, step) for k in range(first, last + 1)]


def rounded(value: float, step: float) -> float:
    return round(value, max(0, 2 - math.floor(math.log10(step)))) + 0.0


def size_of_step(least: float, whole: bool) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
    return max(1.0, step) if whole else step


def by_decades(low: float, high: float, whole: bool) -> list[float]:
    """Numbers of two or three digits, evenly many in each decade."""
    first = max(low, 1.0) if whole else low
    each = max(8, min(DECADE, int(STEPS / max(1.0, math.log10(high / first)))))
    ends = range(math.floor(each * math.log10(first)), math.ceil(each * math.log10(high)) + 1)
    return sorted({float(f"{10 ** (k / each):.2g}") if not whole else float(round(float(f"{10 ** (k / each):.2g}"))) for k in ends})


def places_of(edges: Sequence[float], decades: bool, drawn: float | None = None) -> list[float]:
    """Where each edge lies between the left (0) and the right (1) of a drawing."""
    if decades:
        logs = [math.log10(max(edge, 1e-12)) for edge in edges]
        logs = [max(one, logs[1] - 1.0 / DECADE) for one in logs] if edges[0] <= 0 and len(logs) > 2 else logs
        low, high = logs[0], logs[-1]
        return [0.02 + 0.96 * (one - low) / ((high - low) or 1) for one in logs]
    low, high = edges[0], edges[-1]
    knee = high if drawn is None or drawn >= high else drawn
    return [
        0.02 + (DRAWN if knee < high else 0.96) * (edge - low) / ((knee - low) or 1)
        if edge <= knee
        else 0.02 + DRAWN + 0.03 * (edge - knee) / (high - knee)
        for edge in edges
    ]
