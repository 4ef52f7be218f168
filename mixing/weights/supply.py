"""What there is to mix: tokens of each source, the budget of the run, and how often a token may be seen (Muennighoff et
al. 2023: up to 4 epochs are nearly as good as new text, past about 16 repeats are worth little).

A mix is a vector of weights, shares of the *training tokens*: source i gives `budget * weight[i]` tokens, which are
`budget * weight[i] / tokens[i]` epochs of it. Shapes: N sources.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from gristmill.kernels.base.types import Floats

ROUNDING = 1e-9  # relative: what float64 may lose on the way, far below the 0.1 % to which a mix is drawn


class ShortSupply(ValueError):
    """A mix needs more tokens than epochs allow: `lacking` in all, `by_source` where single sources run short."""

    def __init__(self, message: str, lacking: float, by_source: dict[str, float]):
        super().__init__(message)
        self.lacking = lacking
        self.by_source = by_source


@dataclass(frozen=True)
class Supply:
    """Names, token counts, the token budget of the run, and the cap on epochs (one for all sources, or one each)."""

    names: tuple[str, ...]
    tokens_N: Floats
    budget: float
    max_epochs_N: Floats

    @classmethod
    def of(cls, tokens: dict[str, float], budget: float, max_epochs: float | dict[str, float] = 4.0) -> Supply:
        names = tuple(tokens)
        if not names:
            raise ValueError("a mix needs at least one source")
        if isinstance(max_epochs, dict):
            check_same_names(names, max_epochs, "max_epochs")
            epochs_N = np.array([max_epochs[name] for name in names], np.float64)
        else:
            epochs_N = np.full(len(names), max_epochs, np.float64)
        tokens_N = np.array([tokens[name] for name in names], np.float64)
        for what, values_N in (("tokens", tokens_N), ("max_epochs", epochs_N)):
            for name, value in zip(names, values_N, strict=True):
                if not (math.isfinite(value) and value >= 0):
                    raise ValueError(f"{what} of {name!r} is {value}; expected a finite number, 0 or more")
        if not (math.isfinite(budget) and budget > 0):
            raise ValueError(f"the token budget is {budget}; expected a finite number above 0")
        return cls(names, tokens_N, float(budget), epochs_N)

    @property
    def caps_N(self) -> Floats:
        """The largest weight of each source; below 1 only where the source is small beside the budget."""
        return np.minimum(self.most_tokens_N / self.budget, 1.0)

    @property
    def most_tokens_N(self) -> Floats:
        return self.max_epochs_N * self.tokens_N

    def epochs(self, weights_N: Floats) -> Floats:
        """How often a mix repeats each source. A source without tokens and without weight is repeated 0 times."""
        wanted_N = self.budget * weights_N
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(wanted_N > 0, wanted_N / self.tokens_N, 0.0)

    def check_budget(self) -> None:
        """All sources together must fill the budget within their caps."""
        most = math.fsum(self.most_tokens_N)
        if most < self.budget * (1 - ROUNDING):
            factor = f"Raise max_epochs by a factor of {_up(self.budget / most):g}, lower" if most else "Lower"
            by_size = sorted(zip(self.most_tokens_N, self.names, strict=True), key=lambda pair: (-pair[0], pair[1]))
            gives = ", ".join(f"{name!r} {tokens:,.0f}" for tokens, name in by_size[:5]) + (
                ", ..." if len(by_size) > 5 else ""
            )
            raise ShortSupply(
                f"the budget of {self.budget:,.0f} tokens cannot be filled: the sources at their epoch caps give "
                f"{most:,.0f} ({gives}), "
                f"{self.budget - most:,.0f} too few. {factor} the budget, or add text",
                self.budget - most,
                {},
            )

    def check_mix(self, weights_N: Floats) -> None:
        """Every source must have the tokens for its weight, within its cap; the error lists the sources that run
        short."""
        if weights_N.shape != self.tokens_N.shape:
            raise ValueError(f"{weights_N.size} weights for {self.tokens_N.size} sources")
        if not np.all(np.isfinite(weights_N)) or np.any(weights_N < 0) or abs(math.fsum(weights_N) - 1) > ROUNDING:
            raise ValueError(f"weights must be finite, 0 or more, and sum to 1; these sum to {math.fsum(weights_N)}")
        wanted_N = self.budget * weights_N
        short_N = wanted_N > self.most_tokens_N + ROUNDING * self.budget
        if not short_N.any():
            return
        lines, by_source = [], {}
        for i in sorted(np.flatnonzero(short_N), key=lambda i: self.names[i]):
            name, lacks = self.names[i], wanted_N[i] - self.most_tokens_N[i]
            by_source[name] = float(lacks)
            epochs = f"{wanted_N[i] / self.tokens_N[i]:.4g} epochs" if self.tokens_N[i] else "it has no tokens"
            lines.append(
                f"{name!r} runs short by {lacks:,.0f} tokens: a weight of {weights_N[i]:.4g} asks for "
                f"{wanted_N[i]:,.0f} ({epochs}), "
                f"{self.tokens_N[i]:,.0f} at {self.max_epochs_N[i]:g} epochs give {self.most_tokens_N[i]:,.0f}"
            )
        raise ShortSupply(
            "; ".join(lines) + ". Lower its weight or the budget, or raise max_epochs",
            math.fsum(by_source.values()),
            by_source,
        )


def simulated_epoching(proxy_budget: float, budget: float) -> float:
    """The share of *every* source that a proxy run keeps, so that it repeats each as often as the full run would (Held
    et al. 2025).

    The cap on weights is then the same in both: max_epochs * (share * tokens) / proxy_budget = max_epochs * tokens /
    budget.
    """
    if not 0 < proxy_budget <= budget:
        raise ValueError(
            f"a proxy of {proxy_budget:,.0f} tokens for a run of {budget:,.0f}: expected a number above 0 and not "
            "above the run's"
        )
    return proxy_budget / budget


def check_same_names(names: tuple[str, ...], given: dict[str, Any], what: str) -> None:
    unknown, lacking = sorted(set(given) - set(names)), sorted(set(names) - set(given))
    if unknown or lacking:
        raise ValueError(
            f"{what}: "
            + "; ".join([f"no source {name!r}" for name in unknown] + [f"none given for {name!r}" for name in lacking])
        )


def _up(factor: float) -> float:
    """Four digits, rounded up, so that the advice suffices."""
    scale = 10.0 ** (3 - math.floor(math.log10(factor)))
    return math.ceil(factor * scale) / scale
