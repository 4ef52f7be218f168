#!/usr/bin/env python3
"""Does `gristmill ablate` cry wolf? Trials of an arm against a control of the same data, and with a difference that was
planted. One JSON line a result.

    python -m benchmarks.training.ablation_trials [--trials 400] [--seeds 5] [--real 40] [--real-planted 10]
      [--coverage]

Simulated trials (`tests/mixing/trials.py`) take milliseconds. A real one trains arm and control, a tiny decoder
for each seed, on two samples of the same made-up text, with the trainer, the evaluation and the verdict of the product;
`--real-planted` of them write 10 % of the arm's texts in capitals. `--coverage` prints the table of
`mixing/verdicts/paired.py`. Of 400 trials without a difference at most 28 may declare a winner (5 % would be 20; 29 and
more come by chance in 3 of 100 benchmarks).
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import tempfile
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

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
tokens: 12800
seeds: {seeds}
training: {{rate: 0.01, rows_per_update: 8, rows_per_step: 8, checkpoints: 1}}
evaluate: {{texts: {{prose: {{files: prose.parquet, cluster: host}}}}, target: prose, points: 0}}
"""


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
    print("    seeds  from seeds     here   bootstrap of seeds and clusters")
    for seeds in (2, 3, 5, 8):
        for share in (0.0, 0.5, 0.9, 1.0):
            ours, drawn = covered(seeds, 60, share, 4000, seed=1), covered(seeds, 60, share, 1000, seed=2, draws=1000)
            print(f"    {seeds:5}  {share:10.0%}  {ours:7.1%}   {drawn:.1%}")


def real(trials: int, seeds: int, planted: float, folder: Path) -> None:
    counts: Counter[str] = Counter()
    differences, deviations, seconds = [], [], []
    for number in range(trials):
        start = time.perf_counter()
        record = tiny_trial(folder / f"{number}", number, seeds, planted)
        counts[record["arms"][0]["verdict"]["word"]] += 1
        target = record["arms"][0]["differences"][0]
        differences.append(target["difference"])
        deviations.append(statistics.stdev(target["by_seed"].values()))
        seconds.append(time.perf_counter() - start)
        shutil.rmtree(folder / f"{number}")
    report(
        f"real, {planted:.0%} of the arm's texts in capitals" if planted else "real, nothing planted",
        sizes={"trials": trials, "seeds": seeds},
        **{word: counts[word] for word in ("adopt", "reject", "inconclusive")},
        declared=trials - counts["inconclusive"], mean_difference=statistics.mean(differences),
        deviation_of_a_seed=statistics.median(deviations),
        median=round(statistics.median(seconds), 2), spread=[round(min(seconds), 2), round(max(seconds), 2)],
    )  # fmt: skip


def tiny_trial(folder: Path, number: int, seeds: int, planted: float) -> dict[str, Any]:
    """Control and arm from scratch on two samples of one made-up language, each run on a fifth of its sample; read back
    from where the product leaves it."""
    from gristmill.pipeline.ablate.plan import load
    from gristmill.pipeline.ablate.run import run
    from gristmill.pipeline.ablate.show import AblationUi
    from gristmill.pipeline.ablate.workers import Crew
    from tests.pipeline.ablate.ablation_sets import held_out, make_set, tales

    make_set(folder / "control", tales(1000, 3 * number))
    loud = round(1000 * planted)
    texts = tales(1000, 3 * number + 1)
    make_set(folder / "arm", [text.upper() for text in texts[:loud]] + texts[loud:])
    held_out(folder / "prose.parquet", 120, 3 * number + 2)
    (folder / "plan.yaml").write_text(PLAN.format(seeds=seeds), encoding="utf-8")
    with (folder / "said.txt").open("w") as said:
        return run(load(folder / "plan.yaml"), folder / "out", Crew(0, 1), AblationUi(folder / "out", said))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--coverage", action="store_true")
    parser.add_argument("--real", type=int, default=0, metavar="N")
    parser.add_argument("--real-planted", type=int, default=0, metavar="N")
    asked = parser.parse_args()
    simulated(asked.trials, asked.seeds)
    if asked.coverage:
        coverage()
    with tempfile.TemporaryDirectory() as folder:
        for count, planted in ((asked.real, 0.0), (asked.real_planted, PLANTED)):
            if count:
                real(count, asked.seeds, planted, Path(folder) / str(planted))


if __name__ == "__main__":
    main()
