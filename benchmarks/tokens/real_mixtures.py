#!/usr/bin/env python3
"""Regressors of `regmix` on RegMix's own runs: fitted to 512 runs of 1M parameters, asked about 256 others of 1M, the
same 256 mixes at 60M, and 64 runs of 1B, beside LightGBM with RegMix's settings and scikit-learn's LinearRegression.

    python -m benchmarks.tokens.real_mixtures [--data ../shared/data/regmix] [--no-peer]

The data are sail-sg/regmix's tables (17 domains of the Pile, 13 validation losses). One JSON line a regressor and size:
Spearman's correlation for the loss on Pile-CC (the paper's target), for the mean of all losses (predictions of the
tasks added up, and as one fitted number), and by task: mean and least. Then the intervals' share of held-out runs of 1M
that they hold, and of the two targets the best mix that `regmix` and `log_linear` find, its advice, and the runs of 1B
that are nearest to it. RegMix's own notebook stops LightGBM early by the held-out runs; here all 1,000 rounds are run,
and no fit sees a held-out run. LightGBM: pip install lightgbm.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from gristmill.kernels.base.types import Floats
from gristmill.mixing.weights import log_linear, regmix
from gristmill.mixing.weights.ablations import leave_out, rank_correlation
from gristmill.mixing.weights.advice import interval
from gristmill.mixing.weights.kernel import kernel
from gristmill.mixing.weights.supply import Supply
from gristmill.stages.blend.methods import LogLinear, Regmix, choose

SIZES = ("1m", "60m", "1B")
Table = tuple[list[str], Floats]


def read(path: Path) -> Table:
    with path.open(encoding="utf-8") as file:
        head, *rows = list(csv.reader(file))
    return head[1:], np.array([[float(cell) for cell in row[1:]] for row in rows])


def short(name: str) -> str:
    return name.removeprefix("metric/").removeprefix("train_").removeprefix("the_pile_").removesuffix("_val_loss")


def lightgbm(weights_RN: Floats, losses_RT: Floats) -> Callable[[Floats], Floats]:
    from lightgbm import LGBMRegressor

    models = [
        LGBMRegressor(n_estimators=1000, learning_rate=0.01, random_state=42, verbosity=-1, n_jobs=1).fit(weights_RN, y)
        for y in losses_RT.T
    ]
    return lambda mixes_KN: np.stack([model.predict(mixes_KN) for model in models], axis=1)


def linear(weights_RN: Floats, losses_RT: Floats) -> Callable[[Floats], Floats]:
    from sklearn.linear_model import LinearRegression

    predict: Callable[[Floats], Floats] = LinearRegression().fit(weights_RN, losses_RT).predict
    return predict


def ranked(predicted_RT: Floats, losses_RT: Floats, target: int) -> dict[str, float]:
    by_task = [rank_correlation(predicted_RT[:, t], losses_RT[:, t]) for t in range(losses_RT.shape[1])]
    mean = rank_correlation(predicted_RT.mean(axis=1), losses_RT.mean(axis=1))
    numbers = {"pile_cc": by_task[target], "mean": mean, "by_task": float(np.mean(by_task)), "least": min(by_task)}
    return {name: round(value, 4) for name, value in numbers.items()}


def show(what: str, **more: Any) -> None:
    packages = ("gristmill", "numpy", "scikit-learn")
    print(json.dumps({"what": what, **more, "versions": {name: version(name) for name in packages}}), flush=True)


def save(path: Path, sources: list[str], tasks: list[str], weights_RN: Floats, losses_RT: Floats) -> str:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["run", *(f"weight:{name}" for name in sources), *(f"loss:{name}" for name in tasks)])
        for r, (weights, losses) in enumerate(zip(weights_RN.tolist(), losses_RT.tolist(), strict=True)):
            writer.writerow([r + 1, *weights, *losses])
    return str(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/regmix"))
    parser.add_argument("--no-peer", dest="peer", action="store_false", help="leave LightGBM and scikit-learn's out")
    arguments = parser.parse_args()
    columns, weights_RN = read(arguments.data / "train_mixture_1m.csv")
    metrics, losses_RT = read(arguments.data / "train_pile_loss_1m.csv")
    sources, tasks = [short(name) for name in columns], [short(name) for name in metrics]
    weights_RN = weights_RN / weights_RN.sum(axis=1, keepdims=True)
    target = tasks.index("pile_cc")
    held: dict[str, tuple[Floats, Floats]] = {}
    for size in SIZES:
        mixes = read(arguments.data / f"test_mixture_{size}.csv")[1]
        held[size] = mixes / mixes.sum(axis=1, keepdims=True), read(arguments.data / f"test_pile_loss_{size}.csv")[1]

    fits: dict[str, Any] = {
        "kernel": kernel,
        "ridge": regmix.ridge,
        "law": log_linear.fit_law,
        "trees": regmix.trees(0),
    }
    if arguments.peer:
        fits |= {"LightGBM": lightgbm, "LinearRegression": linear}
    with threadpool_limits(limits=1):
        for name, fit in fits.items():
            start = time.process_time()
            law = fit(weights_RN, losses_RT)
            seconds = round(time.process_time() - start, 1)
            as_one = fit(weights_RN, losses_RT.mean(axis=1, keepdims=True))
            for size, (mixes, losses) in held.items():
                numbers = ranked(law(mixes), losses, target)
                numbers["mean_fitted_as_one"] = round(rank_correlation(as_one(mixes)[:, 0], losses.mean(axis=1)), 4)
                show("rank correlation", regressor=name, size=size, runs=len(mixes), cpu_seconds=seconds, **numbers)
        for name, fit in (("kernel", kernel), ("ridge", regmix.ridge)):
            for goal, at in (("pile_cc", [target]), ("mean", list(range(len(tasks))))):
                here, even = losses_RT[:, at], np.full(len(at), 1 / len(at))
                left = leave_out(weights_RN, here, fit)
                mixes, losses = held["1m"]
                intervals = [interval(left, here, even, mix) for mix in mixes]
                hits = [a[0] <= y <= a[1] for a, y in zip(intervals, losses[:, at] @ even, strict=True) if a]
                low = np.argsort(fit(weights_RN, here)(mixes) @ even, kind="stable")[:26]  # chosen as a mixer chooses
                show(
                    "intervals of 90 %", regressor=name, target=goal, runs=len(hits), held=round(float(np.mean(hits)), 4),
                    held_of_the_tenth_predicted_best=round(float(np.mean(np.array(hits)[low])), 4),
                )  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            small = save(Path(folder) / "small.csv", sources, tasks, weights_RN, losses_RT)
            large = save(Path(folder) / "large.csv", sources, tasks, *held["1B"])
            # tokens in proportion to the mean mix of the runs, which were drawn around the Pile's shares
            supply = Supply.of(dict(zip(sources, weights_RN.mean(axis=0).tolist(), strict=True)), 0.01)
            for goal, given in (("pile_cc", {"pile_cc": 1.0}), ("mean", None)):
                for method in (
                    Regmix(ablations_file=small, confirmed_file=large, task_weights=given, regressor="kernel"),
                    LogLinear(ablations_file=small, confirmed_file=large, task_weights=given),
                ):
                    facts = choose(supply, method).facts
                    names = ("method", "rank_correlation", "predicted_loss", "interval", "nearest_run", "best_run")
                    names += ("advice", "larger_runs", "warnings")
                    told = {key: facts[key] for key in names}
                    top = sorted(facts["sources"], key=lambda row: -row["weight"])[:4]
                    told["mix"] = {row["source"]: round(row["weight"], 3) for row in top}
                    show("best mix", target=goal, **told)


if __name__ == "__main__":
    main()
