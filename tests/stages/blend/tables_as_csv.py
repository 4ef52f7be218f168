"""Tables of utilities and of ablations as the files that `mix` reads."""

from __future__ import annotations

import csv
from pathlib import Path

from gristmill.mixing.weights.ablations import Ablations
from gristmill.mixing.weights.utility import Utilities


def save_utilities(path: Path, table: Utilities) -> str:
    cells = [
        [source, task, table.values_NT[i, t], table.errors_NT[i, t]]
        for i, source in enumerate(table.sources)
        for t, task in enumerate(table.tasks)
    ]
    return save(path, [["source", "task", "value", "error"], *cells])


def save_ablations(path: Path, table: Ablations) -> str:
    head = [*(f"weight:{source}" for source in table.sources), *(f"loss:{task}" for task in table.tasks)]
    return save(path, [head, *([*run, *loss] for run, loss in zip(table.weights_RN, table.losses_RT, strict=True))])


def save(path: Path, lines: list[list[object]]) -> str:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([float(c) if isinstance(c, float) else c for c in line] for line in lines)
    return str(path)
