"""Curves of an ablation from metrics.jsonl: what each arm's seeds came to on the way, thinned, with the band that they
fill."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gristmill.pipeline.json_types import JSON, JSONObject
from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.report.charts_lines import Curve

POINTS = 300  # of a curve; more than a screen shows
EARLY = 0.1  # of a run, whose losses are too high to draw the rest beside
LOSS, ON_THE_WAY, GRAMS = "loss", "evaluation.target_bits_per_byte", "grams_co2"


@dataclass
class JobMetrics:
    """Values of one job by update, and the grams of CO2 that its lines state (null: not in all)."""

    values: dict[str, dict[int, float]] = field(default_factory=lambda: {LOSS: {}, ON_THE_WAY: {}})
    grams: float | None = None


def metrics_of(folder: RunFolder, path: str) -> JobMetrics:
    """A job's lines; of one that was killed the last may be torn, and is left out. No file, no lines."""
    metrics, stated, lines = JobMetrics(), 0.0, 0
    for line in read(folder, path):
        step = line.get("step")
        if not isinstance(step, int) or isinstance(step, bool):
            continue
        for name, values in metrics.values.items():
            if (value := number(line.get(name))) is not None:
                values[step] = value
        if LOSS in line:
            lines += 1
            grams = number(line.get(GRAMS))
            stated = math.nan if grams is None else stated + grams
    metrics.grams = stated if lines and math.isfinite(stated) else None
    return metrics


def read(folder: RunFolder, path: str) -> Iterator[JSONObject]:
    """Lines of a file below the folder, never of one outside."""
    if path.startswith("/") or ".." in path.split("/") or not folder.has(path):
        return
    with folder.open(path) as file:
        for raw in file:
            try:
                line = json.loads(raw)
            except ValueError:
                continue
            if isinstance(line, dict):
                yield line


def number(value: JSON) -> float | None:
    return (
        float(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        else None
    )


def curve_of(name: str, runs: Sequence[Mapping[int, float]]) -> Curve | None:
    """One line for all seeds: in each of at most `POINTS` stretches of updates, the mean of every seed's mean, and the
    lowest and highest."""
    runs = [run for run in runs if run]
    if not runs:
        return None
    steps = np.unique(np.concatenate([np.fromiter(run, np.int64) for run in runs]))
    starts = steps[np.unique(np.linspace(0, len(steps) - 1, min(POINTS, len(steps))).astype(np.int64))]
    sums, counts = np.zeros((len(runs), len(starts))), np.zeros((len(runs), len(starts)))
    for row, run in enumerate(runs):
        places = np.searchsorted(starts, np.fromiter(run, np.int64), side="right") - 1
        np.add.at(sums[row], places, np.fromiter(run.values(), np.float64))
        np.add.at(counts[row], places, 1)
    means = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    there = ~np.isnan(means).all(axis=0)
    means, updates = means[:, there], starts[there].tolist()
    return Curve(
        name,
        updates,
        np.nanmean(means, axis=0).tolist(),
        np.nanmin(means, axis=0).tolist(),
        np.nanmax(means, axis=0).tolist(),
    )


def top_of(curves: Sequence[Curve]) -> float | None:
    """The highest value after the first tenth of the longest run."""
    late = max((curve.at[-1] for curve in curves), default=0) * EARLY
    return max(
        (high for curve in curves for update, high in zip(curve.at, curve.high, strict=True) if update >= late),
        default=None,
    )
