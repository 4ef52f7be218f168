"""Ablations that never ran: scores with the seeds' and items' variance of real ones and a difference that is known, to
see what a verdict is worth.

    bits of a document = bytes * (level + its host + itself + its seed      what arm and control share
                                  + difference + arm's seed + arm's host + noise)     what they do not

The usual sizes (bits per byte): models of another seed differ by 0.002, which is what 1.4B at 30B tokens shows in nats;
hosts differ in what an arm does for them by 0.004.

Shapes: S seeds, I items, C clusters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gristmill.kernels.base.types import Floats, Integers
from gristmill.mixing.verdicts.paired import Errors, Paired, errors, paired
from gristmill.mixing.verdicts.verdict import verdict


@dataclass(frozen=True)
class World:
    """How much varies; `difference` is arm less control. Deviations in bits per byte."""

    seeds: int = 5
    hosts: int = 120
    documents: int = 6  # of a host
    level: float = 1.0
    difference: float = 0.0
    seed_sd: float = 0.002  # of a difference between arm and control of one seed
    host_sd: float = 0.004
    noise_sd: float = 0.01

    def trial(self, random: np.random.Generator) -> tuple[Floats, Floats, Floats, Integers]:
        """Bits of the arm and of the control (S, I), bytes and host of each document."""
        items = self.hosts * self.documents
        host_I = np.repeat(np.arange(self.hosts), self.documents)
        bytes_I = np.exp(random.normal(7.0, 0.8, items)).round() + 1
        easy_I = random.normal(0, 0.2, self.hosts)[host_I] + random.normal(0, 0.2, items)
        control_SI = self.level + easy_I + random.normal(0, self.seed_sd, (self.seeds, 1)) + self._noise(random, items)
        of_arm_SI = random.normal(0, self.seed_sd, (self.seeds, 1)) + random.normal(0, self.host_sd, self.hosts)[host_I]
        arm_SI = control_SI + self.difference + of_arm_SI + self._noise(random, items)
        return arm_SI * bytes_I, control_SI * bytes_I, bytes_I, host_I

    def _noise(self, random: np.random.Generator, items: int) -> Floats:
        found: Floats = random.normal(0, self.noise_sd, (self.seeds, items))
        return found


def trials(world: World, count: int, seed: int) -> Iterator[Errors]:
    random = np.random.default_rng(seed)
    for _ in range(count):
        yield errors(paired(*world.trial(random)))


def verdicts(world: World, count: int, seed: int) -> dict[str, int]:
    """How many of so many trials end in each word."""
    counts = {"adopt": 0, "reject": 0, "inconclusive": 0}
    for found in trials(world, count, seed):
        counts[verdict(found, "lower").word] += 1
    return counts


def covered(seeds: int, clusters: int, share_of_seeds: float, count: int, seed: int, spread: float = 0.0) -> float:
    """Share of `count` 95 % intervals that hold the truth, where this share of the mean's variance comes from seeds.

    `spread`: the deviation of the logarithm of a cluster's size.
    """
    random = np.random.default_rng(seed)
    of_seed, of_cluster = np.sqrt(share_of_seeds * seeds), np.sqrt((1 - share_of_seeds) * clusters)
    held = 0
    for _ in range(count):
        sizes_C = np.exp(random.normal(0, spread, clusters)) if spread else np.ones(clusters)
        of_these = of_cluster / np.sqrt(clusters * (sizes_C @ sizes_C)) * sizes_C.sum()
        cells_SC = random.normal(0, of_seed, (seeds, 1)) + random.normal(0, of_these, clusters)
        found = Paired(cells_SC * sizes_C, sizes_C, np.ones(seeds))
        low, high = errors(found).interval()
        held += low <= 0 <= high
    return held / count
