"""Utilities and ablations from CSV text. Errors name the line and the column, and say what was expected.

Utilities, one line a source (higher is better; `loss:` before the name of a task where lower is better; `_se` after it
for the standard error, 0 where no such column stands):

    source,science,science_se,loss:code,loss:code_se
    books,0.71,0.02,0.93,0.01

or one line for each source and task, as programs write it (any task name; `error` may be left out):

    source,task,value,error
    books,science,0.71,0.02

Ablations, one line a run: weights of sources in sum 1, and for each task a loss, or a score in [0, 1], which counts as
the loss 1 - score. `run` is the run's name (its number, from 1, unless given). Other columns (its seed) are left alone.

    run,weight:books,weight:web,loss:science,score:quiz
    a,0.3,0.7,0.93,0.41
"""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass

import numpy as np

from gristmill.mixing.weights.ablations import SUM_TOLERANCE, Ablations
from gristmill.mixing.weights.utility import Utilities

ERROR = "_se"
LONG = {"source", "task", "value"}


@dataclass(frozen=True)
class Line:
    """One line of a table: where it stands and its cells by column."""

    where: str
    cells: dict[str, str]

    def text(self, column: str) -> str:
        if not self.cells[column]:
            raise ValueError(f"{self.where}: {column}: empty; expected a name")
        return self.cells[column]

    def number(self, column: str, least: float = -math.inf, most: float = math.inf) -> float:
        cell = self.cells[column]
        limits = (
            f" from {least:g} to {most:g}"
            if math.isfinite(most)
            else f", {least:g} or more"
            if math.isfinite(least)
            else ""
        )
        try:
            value = float(cell)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and least <= value <= most):
            raise ValueError(f"{self.where}: {column}: {cell!r}; expected a number{limits}")
        return value


def utilities(text: str, name: str = "utilities") -> Utilities:
    columns, lines = _read(text, name)
    if "source" not in columns:
        raise ValueError(f"{name}:1: no column `source`; there are {', '.join(columns)}")
    return _long(columns, lines, name) if LONG <= set(columns) <= LONG | {"error"} else _wide(columns, lines, name)


def ablations(text: str, name: str = "ablations") -> Ablations:
    columns, lines = _read(text, name)
    sources = [column for column in columns if column.startswith("weight:")]
    losses = [column for column in columns if column.startswith(("loss:", "score:"))]
    if not sources or not losses:
        raise ValueError(
            f"{name}:1: expected columns `weight:SOURCE` and `loss:TASK` or `score:TASK`; there are "
            f"{', '.join(columns)}"
        )
    weights_RN, losses_RT = np.zeros((len(lines), len(sources))), np.zeros((len(lines), len(losses)))
    for r, line in enumerate(lines):
        weights_RN[r] = [line.number(column, 0.0) for column in sources]
        if abs(weights_RN[r].sum() - 1) > SUM_TOLERANCE:
            raise ValueError(f"{line.where}: the weights sum to {weights_RN[r].sum():g}; expected 1")
        losses_RT[r] = [
            1 - line.number(column, 0.0, 1.0) if column.startswith("score:") else line.number(column)
            for column in losses
        ]
    names, tasks = _names(sources, "weight:", name), tuple(column.partition(":")[2] for column in losses)
    _check_tasks(tasks, name)
    runs = [line.cells.get("run") or str(r + 1) for r, line in enumerate(lines)]
    return Ablations.of(names, tasks, weights_RN, losses_RT, runs)


def _wide(columns: list[str], lines: list[Line], name: str) -> Utilities:
    errors = {column for column in columns if column.endswith(ERROR) and column.removesuffix(ERROR) in columns}
    values = [column for column in columns if column != "source" and column not in errors]
    lonely = [column for column in values if column.endswith(ERROR)]
    if lonely:
        raise ValueError(
            f"{name}:1: {lonely[0]}: a standard error of no column; expected a column `{lonely[0].removesuffix(ERROR)}`"
        )
    if not values:
        raise ValueError(f"{name}:1: no column of a task beside `source`")
    tasks = tuple(column.removeprefix("loss:") for column in values)
    _check_tasks(tasks, name)
    values_NT, errors_NT = np.zeros((len(lines), len(values))), np.zeros((len(lines), len(values)))
    places: dict[str, str] = {}
    for i, line in enumerate(lines):
        source = line.text("source")
        if source in places:
            raise ValueError(f"{line.where}: source {source!r} stands at {places[source]} already")
        places[source] = line.where
        for t, column in enumerate(values):
            values_NT[i, t] = line.number(column) * (-1 if column.startswith("loss:") else 1)
            if column + ERROR in errors:
                errors_NT[i, t] = line.number(column + ERROR, 0.0)
    return Utilities(tuple(places), tasks, values_NT, errors_NT)


def _long(columns: list[str], lines: list[Line], name: str) -> Utilities:
    entries: dict[tuple[str, str], tuple[float, float, str]] = {}
    for line in lines:
        key = (line.text("source"), line.text("task"))
        if key in entries:
            raise ValueError(f"{line.where}: source {key[0]!r}, task {key[1]!r} stands at {entries[key][2]} already")
        entries[key] = (line.number("value"), line.number("error", 0.0) if "error" in columns else 0.0, line.where)
    sources, tasks = (
        tuple(dict.fromkeys(source for source, _ in entries)),
        tuple(dict.fromkeys(task for _, task in entries)),
    )
    lacking = [(source, task) for source in sources for task in tasks if (source, task) not in entries]
    if lacking:
        more = f" and {len(lacking) - 1:,} more" if len(lacking) > 1 else ""
        raise ValueError(f"{name}: no line for source {lacking[0][0]!r}, task {lacking[0][1]!r}{more}")
    table = np.array([[entries[source, task][:2] for task in tasks] for source in sources])
    return Utilities(sources, tasks, table[..., 0], table[..., 1])


def _read(text: str, name: str) -> tuple[list[str], list[Line]]:
    reader = csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""), strict=True)
    columns: list[str] = []
    lines: list[Line] = []
    try:
        for cells in reader:
            cells = [cell.strip() for cell in cells]
            if not any(cells):
                continue
            where = f"{name}:{reader.line_num}"
            if not columns:
                columns = cells
                twice = sorted({column for column in columns if columns.count(column) > 1})
                if twice:
                    raise ValueError(f"{where}: column {twice[0]!r} stands twice")
                continue
            if len(cells) != len(columns):
                raise ValueError(f"{where}: {len(cells)} cells; expected {len(columns)}, as in the first line")
            lines.append(Line(where, dict(zip(columns, cells, strict=True))))
    except csv.Error as error:
        raise ValueError(f"{name}:{reader.line_num}: no CSV: {error}") from error
    if not lines:
        raise ValueError(f"{name}: a line of column names and at least one more are needed")
    return columns, lines


def _names(columns: list[str], prefix: str, name: str) -> tuple[str, ...]:
    names = tuple(column.removeprefix(prefix) for column in columns)
    if "" in names:
        raise ValueError(f"{name}:1: a column {prefix!r} without a name")
    return names


def _check_tasks(tasks: tuple[str, ...], name: str) -> None:
    for task in tasks:
        if not task or tasks.count(task) > 1:
            raise ValueError(
                f"{name}:1: " + (f"task {task!r} has two columns" if task else "a column of a task without a name")
            )
