"""Ablation runs made from a law that is known, so that a fit can be held against the truth."""

import numpy as np

from gristmill.kernels.base.types import Floats
from gristmill.mixing.weights.ablations import Ablations


class Truth:
    """loss_t(w) = floor_t + exp(k_t . w), mixes drawn around shares as RegMix draws them."""

    def __init__(self, runs: int = 48, sources: int = 5, tasks: int = 3, noise: float = 0.0, seed: int = 0):
        random = np.random.default_rng(seed)
        self.shares_N = random.dirichlet(np.full(sources, 3.0))
        self.slope_TN = random.normal(-0.5, 0.7, (tasks, sources))
        self.floor_T = random.uniform(0.3, 1.0, tasks)
        self.weights_RN = np.array(
            [random.dirichlet(random.uniform(0.5, 5) * sources * self.shares_N) for _ in range(runs)]
        )
        exact_RT = self.losses(self.weights_RN)
        self.losses_RT = exact_RT + noise * exact_RT.std(axis=0) * random.normal(size=exact_RT.shape)
        self.sources = tuple(f"s{i}" for i in range(sources))
        self.tasks = tuple(f"t{i}" for i in range(tasks))

    def losses(self, mixes_KN: Floats) -> Floats:
        losses: Floats = self.floor_T + np.exp(mixes_KN @ self.slope_TN.T)
        return losses

    def table(self) -> Ablations:
        return Ablations.of(self.sources, self.tasks, self.weights_RN, self.losses_RT)

    def tokens(self, order: list[int] | None = None) -> dict[str, float]:
        return {self.sources[i]: float(self.shares_N[i]) for i in order or range(len(self.sources))}
