#!/usr/bin/env python3
"""Does `gristmill ablate` cry wolf? Trials of an arm against a control of the same data, and with a difference that was
planted. One JSON line a result.

    python -m benchmarks.training.ablation_trials [--trials 400] [--seeds 5] [--real 40] [--real-planted 10]
      [--coverage]
    python -m benchmarks.training.ablation_trials --trials 0 --real 20 --orders 2 --curve 0.5 1.5 --cuda --at-once 12
      --tokens 51200            (one GPU, planned for less than 10 minutes)

Simulated trials (`tests/mixing/trials.py`) take milliseconds. A real one trains arm and control, a tiny decoder
for each seed, on two samples of the same made-up text, with the trainer, the evaluation and the verdict of the product;
`--real-planted` of them write 10 % of the arm's texts in capitals. `--coverage` prints the table of
`mixing/verdicts/paired.py`. Real trials run `--at-once`, each in a process of its own; with `--cuda` they share the card,
which a tiny run leaves nearly idle. With `--curve` the line has how many compute multipliers hold 1 in their 95 %
interval (wanted: at least 17 of 20) and their median half width (at most 0.1). Of 400 trials without a difference at most 28 may declare a winner (5 % would be 20; 29 and
more come by chance in 3 of 100 benchmarks).
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import shutil
import statistics
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from gristmill.pipeline.report.ablation_record import ArmRecord
from tests.mixing.trials import World, covered, verdicts

PACKAGES = ("gristmill", "numpy", "torch")
PLANTED = 0.1  # of texts in capitals cost those without about -log2(1 - 0.1) = 0.15 bits a byte
PLAN = """
name: trial
sets: {{control: control, arm: arm}}
control: control
arms: {{arm: arm}}
protocol: from_scratch
shape: {{hidden: 16, layers: 1, heads: 2, kv_heads: 1, mlp: 32, tied: true}}
tokens: {tokens}
seeds: {seeds}
orders: {orders}
curve: {curve}
training: {{rate: 0.01, rows_per_update: 8, rows_per_step: 8, checkpoints: 1, compile: false}}
evaluate: {{texts: {{prose: {{files: prose.parquet, cluster: host}}}}, target: prose, points: 0}}
"""


@dataclass(frozen=True)
class TinyTrials:
    """How real trials are made."""

    seeds: int
    orders: int
    curve: tuple[float, ...]
    tokens: int
    texts: int  # of arm and control each
    cuda: bool
    at_once: int


def report(what: str, **facts: Any) -> None:
    line = {
        "what": what,
        **facts,
        "machine": platform.processor() or platform.machine(),
        "versions": {p: version(p) for p in PACKAGES},
    }
    print(json.dumps(line), flush=True)


def simulated(trials: int, seeds: int) -> None:
    for difference in (0.0, 2.0):
        world = World(seeds=seeds)
        planted = World(seeds=seeds, difference=-difference * world.seed_sd)
        start = time.perf_counter()
        found = verdicts(planted, trials, seed=7)
        sizes = {"trials": trials, "seeds": seeds, "hosts": world.hosts, "documents": world.hosts * world.documents}
        winners = trials - found["inconclusive"]
        report(
            "simulated, nothing planted" if difference == 0 else f"simulated, {difference:g} deviations of a seed's "
            "difference planted",
            sizes=sizes, **found, declared=winners, share=winners / trials,
            seconds=round(time.perf_counter() - start, 2),
        )  # fmt: skip


def coverage() -> None:
    print("    seeds  from seeds     here")
    for seeds in (2, 3, 5, 8):
        for share in (0.0, 0.5, 0.9, 1.0):
            print(f"    {seeds:5}  {share:10.0%}  {covered(seeds, 60, share, 4000, seed=1):7.1%}")


def real(trials: int, made: TinyTrials, planted: float, folder: Path) -> None:
    counts: Counter[str] = Counter()
    differences, deviations, multipliers, spreads = [], [], [], []
    start = time.perf_counter()
    with ProcessPoolExecutor(made.at_once, mp_context=get_context("spawn")) as pool:
        work = partial(tiny_trial, made, planted, folder)
        for arm in pool.map(work, range(trials)):
            counts[arm["verdict"]["word"]] += 1
            target = arm["differences"][0]
            differences.append(target["difference"])
            deviations.append(statistics.stdev(target["by_seed"].values()))
            spreads.append(target["spread"])
            if target["multiplier"] is not None:
                multipliers.append(target["multiplier"])
    more: dict[str, Any] = {}
    if multipliers:
        more["multipliers"] = {
            "told": len(multipliers),
            "hold_1": sum(each["low"] <= 1 <= each["high"] for each in multipliers),
            "median_half_width": statistics.median((each["high"] - each["low"]) / 2 for each in multipliers),
            "values": sorted(round(each["value"], 3) for each in multipliers),
        }
    if made.orders > 1:
        for part in ("seed", "order"):
            more[f"{part}_sd"] = math.sqrt(statistics.mean(each[part]["sd"] ** 2 for each in spreads))
    report(
        f"real, {planted:.0%} of the arm's texts in capitals" if planted else "real, nothing planted",
        sizes={"trials": trials, **asdict(made)},
        **{word: counts[word] for word in ("adopt", "reject", "inconclusive")},
        declared=trials - counts["inconclusive"], mean_difference=statistics.mean(differences),
        deviation_of_a_seed=statistics.median(deviations), **more, seconds=round(time.perf_counter() - start, 1),
    )  # fmt: skip


def tiny_trial(made: TinyTrials, planted: float, above: Path, number: int) -> ArmRecord:
    """Control and arm from scratch on two samples of one made-up language, each run on a part of its sample."""
    from gristmill.pipeline.ablate.plan import load
    from gristmill.pipeline.ablate.run import run
    from gristmill.pipeline.ablate.show import AblationUi
    from gristmill.pipeline.ablate.workers import Crew
    from tests.pipeline.ablate.ablation_sets import held_out, make_set, tales

    folder = above / f"{number}"
    make_set(folder / "control", tales(made.texts, 3 * number))
    loud = round(made.texts * planted)
    texts = tales(made.texts, 3 * number + 1)
    make_set(folder / "arm", [text.upper() for text in texts[:loud]] + texts[loud:])
    held_out(folder / "prose.parquet", 120, 3 * number + 2)
    plan = PLAN.format(seeds=made.seeds, orders=made.orders, curve=[*made.curve], tokens=made.tokens)
    (folder / "plan.yaml").write_text(plan, encoding="utf-8")
    crew = Crew(0, 1, ("0",) if made.cuda else ())
    with (folder / "said.txt").open("w") as said:
        record = run(load(folder / "plan.yaml"), folder / "out", crew, AblationUi(folder / "out", said))
    shutil.rmtree(folder)
    return record["arms"][0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--coverage", action="store_true")
    parser.add_argument("--real", type=int, default=0, metavar="N")
    parser.add_argument("--real-planted", type=int, default=0, metavar="N")
    parser.add_argument("--orders", type=int, default=1, help="of real trials, as all that follow")
    parser.add_argument("--curve", type=float, nargs="*", default=[])
    parser.add_argument("--tokens", type=int, default=12_800)
    parser.add_argument("--texts", type=int, default=0, help="five times the tokens of a run unless given")
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--at-once", type=int, default=1)
    asked = parser.parse_args()
    if asked.trials:
        simulated(asked.trials, asked.seeds)
    if asked.coverage:
        coverage()
    with tempfile.TemporaryDirectory() as folder:
        for count, planted in ((asked.real, 0.0), (asked.real_planted, PLANTED)):
            if count:
                texts = asked.texts or round(1000 * asked.tokens / 12_800)
                curve = tuple(asked.curve)
                made = TinyTrials(asked.seeds, asked.orders, curve, asked.tokens, texts, asked.cuda, asked.at_once)
                real(count, made, planted, Path(folder) / str(planted))


if __name__ == "__main__":
    main()
