"""What an ablation decides about an arm: adopt, reject, disagree, or inconclusive with the number of seeds that would
settle it.

    adopt         the interval of the target's difference excludes 0 in the arm's favour,
                  and that of the guard's rise is below its budget
    reject        the target's excludes 0 against the arm, or the guard's is above its budget
    disagree      the target's excludes 0, but at the second learning rate the difference has the other sign
    inconclusive  anything else

The guard is general text that the arm must not make worse: its rise in bits per byte, relative to the control's.
Several arms against one control are several chances to be wrong, about the target and about the guard. So both are
corrected by Holm's (1979) step-down over all arms at the same level: the target's chances that the difference is 0, and
the guard's that the rise equals the budget. With one arm each is the interval itself. With several, some arm is wrongly
called better or worse in at most 5 % of ablations, and some arm wrongly called safe or harmful in at most 5 %. The two
are corrected apart: an arm is adopted only where both allow it, so a guard need not make the target harder to detect.

At one learning rate the order of data sets may be another than when each is tuned; very small rates keep it (arXiv
2512.24503). So a plan may ask for all runs at a second rate, and nothing is claimed of an arm whose difference changes
its sign there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gristmill.mixing.verdicts.paired import Better, Errors
from gristmill.mixing.verdicts.power import seeds_needed

CONFIDENCE = 0.95
GUARD_BUDGET = 0.005  # rise of general bits per byte, relative

Word = Literal["adopt", "reject", "disagree", "inconclusive"]


@dataclass(frozen=True)
class Verdict:
    """`seeds` would settle it. None: it is settled, or more items are needed, as `why` says."""

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
    return Errors(
        guard.mean / control, guard.seeds_error / control, guard.items_error / control, guard.seeds, guard.clusters
    )


def over(guard: Errors, budget: float) -> Errors:
    """By how much a guard rises beyond its budget; Holm's step-down takes its `chance`."""
    return Errors(guard.mean - budget, guard.seeds_error, guard.items_error, guard.seeds, guard.clusters)


def verdict(
    target: Errors,
    better: Better,
    guard: Errors | None = None,
    budget: float = GUARD_BUDGET,
    chance: float | None = None,
    confidence: float = CONFIDENCE,
    guard_chance: float | None = None,
    second: float | None = None,
) -> Verdict:
    """`guard` is the relative rise of what should not rise. `chance` and `guard_chance` are Holm's p of the target and
    of the guard (`over`), their own where there is one arm. `second` is the target's difference at the second rate."""
    if target.seeds < 2:
        return Verdict("inconclusive", "one seed says nothing about another; run at least 2", 5)
    alpha = 1 - confidence
    favoured = target.mean < 0 if better == "lower" else target.mean > 0
    own = target.chance()
    settled = own if chance is None else chance
    excess = None if guard is None else over(guard, budget)
    guard_own = 0.0 if excess is None else excess.chance()
    guard_settled = guard_own if guard_chance is None else guard_chance
    if guard is not None and excess is not None and guard_settled < alpha and excess.mean > 0:
        return Verdict(
            "reject",
            f"the guard rises by at least {guard.interval(confidence)[0]:.2%}, over the budget of {budget:.2%}",
        )
    if settled < alpha and second is not None and second * target.mean < 0:
        return Verdict(
            "disagree",
            f"the target is {'better' if favoured else 'worse'} than with the control, but"
            f" {'worse' if favoured else 'better'} at the second rate",
        )
    if settled < alpha and not favoured:
        return Verdict("reject", "the target is worse than with the control")
    guarded = guard is None or (guard_settled < alpha and guard.mean < budget)
    if settled < alpha and guarded:
        return Verdict(
            "adopt",
            "the target is better than with the control"
            + (", and the guard holds" if guard is not None else "; there is no guard"),
        )
    reasons: list[str] = []
    needed: list[int | None] = []
    if settled >= alpha and target.error == 0 and target.mean:
        reasons.append(
            f"all of the {target.clusters:.0f} items or clusters differ alike, as chance makes them in {settled:.0%} "
            "of cases"
        )
        needed.append(None)
    elif settled >= alpha:
        reasons.append(f"{_corrected(own, alpha)}the interval of the target holds 0")
        needed.append(_seeds(target, target.mean, _level(own, settled, confidence)))
    if guard is not None and excess is not None and not guarded:
        level = _level(guard_own, guard_settled, confidence)
        reasons.append(
            f"{_corrected(guard_own, alpha)}the guard may rise by {_rise(guard, level)}, over the budget of "
            f"{budget:.2%}"
        )
        needed.append(_seeds(guard, excess.mean, level))
    return _inconclusive(reasons, needed, target.seeds)


def _rise(guard: Errors, level: float) -> str:
    high = guard.interval(level)[1]
    return "anything, for there are too few clusters to tell" if math.isinf(high) else f"{high:.2%}"


def _corrected(own: float, alpha: float) -> str:
    """The beginning of a message where an interval of its own would have settled it."""
    return "after Holm's correction for several arms " if own < alpha else ""


def _level(own: float, settled: float, confidence: float) -> float:
    """The level at which an interval of its own agrees with Holm's step-down, if the other arms stay as they are."""
    return 1 - (1 - confidence) * own / settled if own < 1 - confidence else confidence


def _seeds(errors: Errors, difference: float, confidence: float) -> int | None:
    return seeds_needed(
        difference, errors.seeds_error * math.sqrt(errors.seeds), errors.items_error, errors.clusters, confidence
    )


def _inconclusive(reasons: list[str], needed: list[int | None], seeds: int) -> Verdict:
    counts = [count for count in needed if count is not None]
    if len(counts) < len(needed):
        return Verdict(
            "inconclusive",
            "; ".join(reasons) + "; more seeds alone would not settle it: take more items, or let it be",
        )
    return Verdict("inconclusive", "; ".join(reasons), max([seeds + 1, *counts]))
