#!/usr/bin/env python3
"""How well verdicts on small models predict which of two data sets is better for large ones, on DCLM's own runs.

    python -m benchmarks.training.small_verdicts [--data ../shared/data/dclm_models.csv]

The table (mlfoundations/dclm) has a line a model: data set, size, and its score on each task. Of every two data sets
trained at both sizes: the difference of mean accuracy over the 22 tasks of DCLM's Core, its interval by
`mixing/verdicts` (tasks are the items; the error of seeds is that of data sets that were trained more than once at that
size, with other hyperparameters too, so it is rather too wide), and the verdict: better, worse or undecided. One JSON
line a pair of sizes: data sets, pairs, decision accuracy (the sign of the small difference is that of the large one) of all pairs, of
decided ones and of undecided ones, and the share of decided ones that the large models decide the other way. Then the
tasks whose own small difference agrees most and least with the large mean.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections import defaultdict
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from gristmill.kernels.base.types import Floats
from gristmill.mixing.verdicts.paired import Errors, errors, paired
from gristmill.mixing.verdicts.verdict import verdict

SIZES = {
    "412M": (411_616_256, 8.3e9),
    "1B": (1_439_795_200, 28.8e9),
    "7B": (6_889_410_560, 137.8e9),
    "7B-2x": (6_889_410_560, 275.6e9),
}
CORE = [
    "agi_eval_lsat_ar", "arc_challenge", "arc_easy", "bigbench_cs_algorithms", "bigbench_dyck_languages",
    "bigbench_language_identification", "bigbench_operators", "bigbench_qa_wikidata", "bigbench_repeat_copy_logic",
    "boolq", "commonsense_qa", "copa", "coqa", "hellaswag", "hellaswag_zeroshot", "jeopardy", "lambada_openai",
    "openbook_qa", "piqa", "squad", "winograd", "winogrande",
]  # fmt: skip
Scores = dict[str, Floats]  # of a data set: runs x tasks


def read(path: Path) -> tuple[list[str], dict[str, Scores]]:
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found: dict[str, dict[str, list[list[float]]]] = {size: defaultdict(list) for size in SIZES}
    for row in rows:
        for size, (parameters, tokens) in SIZES.items():
            of_size = bool(row["params"]) and abs(float(row["params"]) / parameters - 1) < 1e-3
            if of_size and abs(float(row["tokens"]) / tokens - 1) < 0.01 and all(number(row[task]) for task in CORE):
                found[size][row["Dataset"]].append([float(row[task]) for task in CORE])
    return CORE, {size: {name: np.array(runs) for name, runs in sets.items()} for size, sets in found.items()}


def number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def repeats(scores: Scores) -> tuple[float, int]:
    """The standard deviation of the mean of a data set trained again, and its degrees of freedom. From the median of
    absolute deviations, since some runs of the table failed."""
    off, degrees = list[float](), 0
    for runs in scores.values():
        means = runs.mean(axis=1)
        if len(means) > 1:
            off += (np.abs(means - np.median(means)) / math.sqrt(1 - 1 / len(means))).tolist()
            degrees += len(means) - 1
    return (1.4826 * float(np.median(off)), degrees) if degrees else (math.nan, 0)


def judged(first: Floats, second: Floats, seed_sd: float, degrees: int) -> tuple[float, str]:
    """The mean difference over tasks, and what our verdict says of it."""
    a, b = first.mean(axis=0)[None], second.mean(axis=0)[None]
    of_tasks = errors(paired(a, b, np.ones(a.shape[1]), list(range(a.shape[1]))))
    of_seeds = seed_sd * math.sqrt(1 / len(first) + 1 / len(second))
    whole = Errors(of_tasks.mean, of_seeds, of_tasks.items_error, degrees + 1, of_tasks.clusters)
    return of_tasks.mean, {"adopt": "better", "reject": "worse"}.get(verdict(whole, "higher").word, "undecided")


def share(hits: list[bool]) -> float | None:
    return round(float(np.mean(hits)), 3) if hits else None


def compare(small: Scores, large: Scores, tasks: list[str], spread: tuple[float, int]) -> dict[str, Any]:
    both = sorted(set(small) & set(large))
    by_word: dict[str, list[bool]] = {"decided": [], "undecided": []}
    by_task: dict[str, list[bool]] = {task: [] for task in tasks}
    for a, b in combinations(both, 2):
        truth = float(large[a].mean() - large[b].mean())
        difference, word = judged(small[a], small[b], *spread)
        by_word["undecided" if word == "undecided" else "decided"].append((difference > 0) == (truth > 0))
        for t, task in enumerate(tasks):
            of_task = float(small[a][:, t].mean() - small[b][:, t].mean())
            by_task[task].append((of_task > 0) == (truth > 0) if of_task else False)
    ranked = sorted(tasks, key=lambda task: (-float(np.mean(by_task[task] or [False])), task))
    decided, undecided = by_word["decided"], by_word["undecided"]
    return {
        "sets": len(both), "pairs": len(decided) + len(undecided), "accuracy": share(decided + undecided),
        "decided": len(decided), "accuracy_of_decided": share(decided), "false_decisions": decided.count(False),
        "undecided": len(undecided), "accuracy_of_undecided": share(undecided),
        "best_tasks": {task: share(by_task[task]) for task in ranked[:6]},
        "worst_tasks": {task: share(by_task[task]) for task in ranked[-6:]},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/dclm_models.csv"))
    tasks, scores = read(parser.parse_args().data)
    pooled = repeats(scores["1B"])
    for size, sets in scores.items():
        sd, degrees = repeats(sets)
        print(json.dumps({"what": "models", "size": size, "sets": len(sets), "runs": sum(map(len, sets.values())),
                          "tasks": len(tasks), "sd_of_repeats": round(sd, 5), "degrees": degrees}))  # fmt: skip
    for small, large in (("412M", "1B"), ("412M", "7B"), ("1B", "7B"), ("1B", "7B-2x"), ("7B", "7B-2x")):
        of_size = repeats(scores[small])
        spread = of_size if of_size[1] >= 5 else pooled  # 412M has no repeats: those of 1B stand in
        found = compare(scores[small], scores[large], tasks, spread)
        print(json.dumps({"what": "verdicts", "small": small, "large": large, **found}), flush=True)


if __name__ == "__main__":
    main()
