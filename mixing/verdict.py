"""What an ablation decides about an arm: adopt, reject, or inconclusive with the number of seeds that would settle it.

    adopt         the interval of the target's difference excludes 0 in the arm's favour, and the guard's upper bound is under its budget
    reject        the interval excludes 0 against the arm, or the guard's lower bound is over its budget
    inconclusive  anything else

The guard is general text that the arm must not make worse: its rise in bits per byte, relative to the control's. Several arms against one control are
several chances to be wrong, so that an interval "excludes 0" where Holm's (1979) step-down over all arms says so at the same level; of one arm that is the
interval itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mixing.paired import Better, Errors
from mixing.power import seeds_needed

CONFIDENCE = 0.95
GUARD_BUDGET = 0.005  # rise of general bits per byte, relative

Word = Literal["adopt", "reject", "inconclusive"]


@dataclass(frozen=True)
class Verdict:
    """`seeds` would settle it (None: it is settled, or more items are needed, as `why` says)."""

    word: Word
    why: str
    seeds: int | None = None


def holm(chances: Sequence[float]) -> list[float]:
    """Adjusted p: the k-th smallest of m times m - k + 1, never falling, at most 1."""
    order = sorted(range(len(chances)), key=lambda i: chances[i])
    adjusted, highest = [0.0] * len(chances), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, chances[i] * (len(chances) - rank)))
        adjusted[i] = highest
    return adjusted


def relative(guard: Errors, control: float) -> Errors:
    """A difference as a share of the control's level, whose own error is of second order."""
    if not control > 0:
        raise ValueError(f"a control's level of {control}: expected a number above 0")
    return Errors(guard.mean / control, guard.seeds_error / control, guard.items_error / control, guard.seeds, guard.clusters)


def verdict(
    target: Errors,
    better: Better,
    guard: Errors | None = None,
    budget: float = GUARD_BUDGET,
    chance: float | None = None,
    confidence: float = CONFIDENCE,
) -> Verdict:
    """`guard` is the relative rise of what should not rise; `chance` is Holm's p of the target, its own where there is one arm."""
    if target.seeds < 2:
        return Verdict("inconclusive", "one seed says nothing about another; run at least 2", 5)
    if guard is not None and guard.interval(confidence)[0] > budget:
        return Verdict("reject", f"the guard rises by at least {guard.interval(confidence)[0]:.2%}, over the budget of {budget:.2%}")
    alpha = 1 - confidence
    own, chance = target.chance(), target.chance() if chance is None else chance
    favoured = target.mean < 0 if better == "lower" else target.mean > 0
    if chance < alpha and not favoured:
        return Verdict("reject", "the target is worse than with the control")
    guarded = guard is None or guard.interval(confidence)[1] < budget
    if chance < alpha and guarded:
        return Verdict(
            "adopt",
            "the target is better than with the control" + (", and the guard holds" if guard is not None else "; there is no guard"),
        )
    reasons, needed = [], []
    if chance >= alpha:
        held = own < alpha
        reasons.append(
            "after Holm's correction for several arms the interval of the target holds 0" if held else "the interval of the target holds 0"
        )
        level = 1 - alpha * own / chance if held else confidence
        needed.append(_seeds(target, target.mean, level))
    if guard is not None and not guarded:
        reasons.append(f"the guard may rise by {guard.interval(confidence)[1]:.2%}, over the budget of {budget:.2%}")
        needed.append(_seeds(guard, budget - guard.mean, confidence))
    return _inconclusive(reasons, needed, target.seeds)


def _seeds(errors: Errors, difference: float, confidence: float) -> int | None:
    return seeds_needed(difference, errors.seeds_error * math.sqrt(errors.seeds), errors.items_error, errors.clusters, confidence)


def _inconclusive(reasons: list[str], needed: list[int | None], seeds: int) -> Verdict:
    known = [count for count in needed if count is not None]
    if len(known) < len(needed):
        return Verdict(
            "inconclusive",
            "; ".join(reasons) + "; no number of seeds would settle a difference as small as this: take more items, or let it be",
        )
    return Verdict("inconclusive", "; ".join(reasons), max([seeds + 1, *known]))
