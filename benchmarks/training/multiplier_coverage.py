#!/usr/bin/env python3
"""How often the interval of a compute multiplier holds the truth, on runs drawn from a loss curve that is known.

    python -m benchmarks.training.multiplier_coverage [--draws 20 400] [--planted 1 0.8 1.25] [--seeds 5] [--orders 2]

A draw is a whole ablation: control and arm with seeds and data orders, control runs at other lengths, and documents of
hosts that the arm suits more or less. The loss of a run of t times the tokens is floor + scale * t^-exponent; an arm of
multiplier m has that of t * m. Runs vary by seed (shared by arm and control, and each its own), by data order and by
document; deviations are bits per byte, the usual ones those of small runs (`tests/mixing/trials.py`, three times as
large). One JSON line for each number of draws, curve and planted multiplier: the share of 95 % intervals that hold the
planted one (wanted for 1: at least 17 of 20), the median half width (at most 0.1) and the median value.
`points` are control runs at these shares of the tokens; `on the way` are eight measurements of the control's own runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass

import numpy as np

from gristmill.kernels.base.types import Floats
from gristmill.mixing.verdicts.multiplier import LossCurve, Multiplier, multiplier
from gristmill.mixing.verdicts.paired import errors, paired

LENGTHS = (0.5, 0.75, 1.5)
ON_THE_WAY = tuple(step / 8 for step in range(1, 9))


@dataclass(frozen=True)
class DrawnAblation:
    """A loss curve, and how runs vary around it."""

    seeds: int = 5
    orders: int = 2
    floor: float = 1.0
    scale: float = 0.6  # of bits per byte that more training would still take away
    exponent: float = 0.35
    shared_sd: float = 0.01  # of a seed, in arm and control alike
    seed_sd: float = 0.006  # of a seed, in one of them
    order_sd: float = 0.006
    host_sd: float = 0.012  # of what an arm does for a host
    noise_sd: float = 0.03  # of a document in a run
    hosts: int = 120
    documents: int = 6  # of a host

    def loss(self, share: float) -> float:
        return self.floor + self.scale * share**-self.exponent

    def draw(self, planted: float, on_the_way: bool, random: np.random.Generator) -> Multiplier | None:
        host_I = np.repeat(np.arange(self.hosts), self.documents)
        bytes_I = np.exp(random.normal(7.0, 0.8, len(host_I))).round() + 1
        easy_I = random.normal(0, 0.2, self.hosts)[host_I] + random.normal(0, 0.2, len(host_I))
        shared_S = random.normal(0, self.shared_sd, self.seeds)
        suits_I = random.normal(0, self.host_sd, self.hosts)[host_I]

        def runs(share: float) -> Floats:
            """Bits of each document, the mean of a seed's orders (S, I)."""
            own_S = random.normal(0, self.seed_sd, self.seeds)
            own_S = own_S + random.normal(0, self.order_sd, (self.seeds, self.orders)).mean(axis=1)
            noise_SI = random.normal(0, self.noise_sd / np.sqrt(self.orders), (self.seeds, len(host_I)))
            found: Floats = (self.loss(share) + (shared_S + own_S)[:, None] + easy_I + noise_SI) * bytes_I
            return found

        control_SI, arm_SI = runs(1.0), runs(planted) + suits_I * bytes_I
        level_S = control_SI.sum(axis=1) / bytes_I.sum()
        if on_the_way:  # points of one run share its luck
            points = {share: level_S + self.loss(share) - self.loss(1.0) for share in ON_THE_WAY}
            points = {share: losses + random.normal(0, 0.004, self.seeds) for share, losses in points.items()}
        else:
            points = {share: runs(share).sum(axis=1) / bytes_I.sum() for share in LENGTHS} | {1.0: level_S}
        shares = sorted(points)
        curve = LossCurve(np.array(shares), np.stack([points[share] for share in shares], axis=1))
        return multiplier(curve, float(level_S.mean()), errors(paired(arm_SI, control_SI, bytes_I, host_I)))


def covered(world: DrawnAblation, planted: float, draws: int, on_the_way: bool, seed: int) -> dict[str, float]:
    random = np.random.default_rng(seed)
    found = [each for _ in range(draws) if (each := world.draw(planted, on_the_way, random)) is not None]
    return {
        "told": len(found),
        "inside": sum(each.low <= planted <= each.high for each in found),
        "median_half_width": round(statistics.median((each.high - each.low) / 2 for each in found), 4),
        "median_value": round(statistics.median(each.value for each in found), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, nargs="+", default=[20, 400])
    parser.add_argument("--planted", type=float, nargs="+", default=[1.0, 0.8, 1.25])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--orders", type=int, default=2)
    asked = parser.parse_args()
    world = DrawnAblation(seeds=asked.seeds, orders=asked.orders)
    for draws in asked.draws:
        for on_the_way in (False, True):
            for planted in asked.planted:
                start = time.perf_counter()
                found = covered(world, planted, draws, on_the_way, seed=draws)
                facts = {"curve": "on the way" if on_the_way else "lengths", "planted": planted, "draws": draws}
                sizes = {"seeds": asked.seeds, "orders": asked.orders, "seconds": round(time.perf_counter() - start, 1)}
                print(json.dumps({"what": "multiplier", **facts, **found, **sizes}), flush=True)


if __name__ == "__main__":
    main()
