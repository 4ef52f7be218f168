"""The mix over cells as heat maps: what share each cell had, what share it gets, how often it repeats; and documents
behind each. How it looks decides nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gristmill.stages.figures import MOST, HeatCell, HeatMap, Report, Samples
from gristmill.stages.formatting import as_number, as_percent

ACROSS = 24  # columns of a map; what comes after is in the table
HEATS = (1.1, 1.5, 3.0)  # factors of share from which a colour begins


def heat_maps(mix: Report) -> list[HeatMap]:
    """One of the first two columns, and where there are more, one with all of them against the last."""
    by, parts = [str(name) for name in mix["by"]], mix.get("parts")
    if parts is None or len(by) < 2:
        return []
    maps = [heat_map(mix, by[:1], by[1])]
    return maps if len(by) == 2 else [*maps, heat_map(mix, by[:-1], by[-1])]


def heat_map(mix: Report, down: Sequence[str], across: str) -> HeatMap:
    """Cells summed over the columns that are not shown."""
    by = [str(name) for name in mix["by"]]
    rows_at, column_at = [by.index(name) for name in down], by.index(across)
    sums: dict[tuple[str, str], list[float]] = {}
    for parts, source, drawn in zip(mix["parts"], mix["sources"], mix["drawn"], strict=True):
        values = [*map(str, parts), *[str(parts[-1])] * (len(by) - len(parts))]  # of joined cells the last is (small)
        sizes = sums.setdefault((" / ".join(dict.fromkeys(values[k] for k in rows_at)), values[column_at]), [0.0] * 3)
        for k, number in enumerate((drawn["there"], source["weight"], drawn["wanted"])):
            sizes[k] += number
    there = sum(sizes[0] for sizes in sums.values())
    weights: dict[str, float] = {}
    for (row, _), sizes in sums.items():
        weights[row] = weights.get(row, 0.0) + sizes[1]
    rows = sorted(weights, key=lambda row: (-round(weights[row], 12), row))
    columns = sorted({column for _, column in sums}, key=in_order)
    shown_rows, shown = set(rows[:MOST]), set(columns[:ACROSS])
    cells = [
        heat_cell(row, column, sizes[0], sizes[0] / there if there else 0.0, sizes[1], sizes[2])
        for (row, column), sizes in sorted(sums.items())
        if row in shown_rows and column in shown
    ]
    left_out = max(0, len(rows) - MOST), max(0, len(columns) - ACROSS)
    more = f" {left_out[0]} rows and {left_out[1]} columns more are in the table." if any(left_out) else ""
    return HeatMap(
        f"Shares by {', '.join(down)} and {across}",
        across,
        ", ".join(down),
        rows[:MOST],
        columns[:ACROSS],
        cells,
        "In each field the share of training and the epochs; the colour says whether its share grows (blue-green) or "
        f"shrinks (red) against its share of the tokens there.{more}",
    )


def heat_cell(row: str, column: str, tokens: float, before: float, after: float, wanted: float) -> HeatCell:
    epochs = wanted / tokens if tokens else 0.0
    words = (
        f"{row}, {column}: {as_number(int(tokens))} tokens, share {as_percent(before)} before and {as_percent(after)} after,"
        f" {epochs:.2f} epochs"
    )
    return HeatCell(row, column, heat(before, after), (as_percent(after), f"{epochs:.2f}×"), words)


def heat(before: float, after: float) -> int:
    """From -3 to 3, by the factor between the shares."""
    if before <= 0 or after <= 0:
        return 0 if before == after else 3 if after else -3
    factor = max(before / after, after / before)
    steps = sum(factor >= least for least in HEATS)
    return int(math.copysign(steps, after - before))


def in_order(name: str) -> tuple[int, float, str]:
    """Numbers by size, then words, and what has no value last."""
    try:
        return 0, float(name), name
    except ValueError:
        return (2 if name.startswith("(") else 1), 0.0, name


def examples_of(mix: Report) -> list[Samples]:
    """Of the cells with the largest weights."""
    examples: Mapping[str, Sequence[Mapping[str, Any]]] = mix.get("examples") or {}
    names = [str(s["source"]) for s in sorted(mix["sources"], key=lambda s: (-round(s["weight"], 12), s["source"]))]
    groups = [
        (name, [(str(e["uid"]), str(e["url"] or ""), str(e["text"] or "")) for e in examples[name]])
        for name in names
        if examples.get(name)
    ]
    more = f" (the first {MOST} of {len(groups):,} cells; report.json has all)" if len(groups) > MOST else ""
    return [Samples(f"Documents of each cell{more}", groups[:MOST])] if groups else []
