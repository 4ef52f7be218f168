"""How long a run of an ablation is, and what it reads from which update on: the same updates of the same rows for
control and arms.

A plan asks for tokens. What is trained is whole updates of whole rows, as many as come nearest; the figures that are
shown are of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gristmill.pipeline.ablate.plan import CONTROL, AblationPlan, Loaded
from gristmill.pipeline.ablate.protocols import Protocol
from gristmill.pipeline.recipe.yaml_lines import Place
from gristmill.pipeline.train.feeding import SetSize, blended
from gristmill.pipeline.train.plan import TrainingPlan


@dataclass(frozen=True)
class Length:
    """Of every run of arms and control; `before` are updates on the control's mix alone, in all of them."""

    updates: int
    before: int
    rows_per_update: int
    row_length: int

    @property
    def rows(self) -> int:
        return self.updates * self.rows_per_update

    @property
    def tokens(self) -> int:
        """Padding counted."""
        return self.rows * self.row_length

    def times(self, share: float, protocol: Protocol) -> Length:
        """A run of this share of the updates."""
        if share == 1:
            return self
        updates = max(1, round(self.updates * share))
        return replace(self, updates=updates, before=protocol.updates_before(updates))


def length_of(loaded: Loaded, row_length: int) -> Length:
    """RecipeError where a run would be of less than one update, or its stages of none."""
    plan = loaded.plan
    _check(loaded, ("tokens",), plan.tokens, plan.training, row_length)
    if plan.base is not None and plan.base.tokens is not None:
        _check(loaded, ("base", "tokens"), plan.base.tokens, plan.base.training or plan.training, row_length)
    updates = plan.training.updates(plan.tokens, row_length)
    try:
        before = plan.protocol.updates_before(updates)
    except ValueError as error:
        raise loaded.wrong(("tokens",), str(error)) from error
    return Length(updates, before, plan.training.rows_per_update, row_length)


def lengths_of(plan: AblationPlan, length: Length, sizes: Mapping[str, SetSize]) -> dict[str, Length]:
    """Of the runs of control and arms. Under `match: epochs` an arm's are as many times longer as its data are larger,
    so that both are gone through equally often."""
    rows = {arm: sum(sizes[name].rows for name in plan.arm(arm).weights) for arm in (CONTROL, *plan.arms)}
    epochs = plan.match == "epochs"
    return {arm: length.times(rows[arm] / rows[CONTROL] if epochs else 1.0, plan.protocol) for arm in rows}


def stages_of(plan: AblationPlan, arm: str, length: Length) -> list[tuple[dict[str, float], int]]:
    """What a run reads: shares of tokens by set, and for how many rows."""
    control = plan.control.weights
    new = {} if arm == CONTROL else plan.arms[arm].weights
    mixed = blended(control, new, plan.protocol.new if new else 0.0)
    before = length.before * length.rows_per_update
    return [*([(blended(control, {}, 0.0), before)] if before else []), (mixed, length.rows - before)]


def weights_of(plan: AblationPlan, arm: str, length: Length) -> dict[str, float]:
    """Shares of a run's tokens, over the whole run."""
    shares: dict[str, float] = {}
    for weights, rows in stages_of(plan, arm, length):
        for name, weight in weights.items():
            shares[name] = shares.get(name, 0.0) + weight * rows / length.rows
    return shares


def in_words(plan: AblationPlan, length: Length) -> str:
    """What all runs have in common."""
    asked = "" if length.tokens == plan.tokens else f" (the plan says {plan.tokens:,})"
    orders = f" in {plan.orders} data orders" if plan.orders > 1 else ""
    runs = (
        f"{len(plan.seeds)} seeds{orders} of the control and of {len(plan.arms)} arm{'s' if len(plan.arms) > 1 else ''}"
        if plan.proxies is None
        else f"proxy runs of {len(plan.arms):,} mixes and of the one by tokens"
    )
    if plan.match == "epochs":
        runs += ", each through its own data as often as the control"
    return (
        f"{runs}; a run {'of the control ' if plan.match == 'epochs' else ''}is {length.updates:,} updates of "
        f"{length.rows_per_update:,} rows of {length.row_length:,}: {length.tokens:,} tokens{asked}"
    )


def _check(loaded: Loaded, place: Place, tokens: int, training: TrainingPlan, row_length: int) -> None:
    least = training.rows_per_update * row_length
    if tokens < least:
        raise loaded.wrong(
            place,
            f"{tokens:,} are less than one update of {training.rows_per_update:,} rows of "
            f"{row_length:,} tokens ({least:,}); "
            "take more tokens, or a smaller rows_per_update",
        )


def too_small(weights: Mapping[str, float]) -> list[str]:
    """Sets of which the reader, which counts rows in thousandths, would give less than one."""
    return [name for name, share in weights.items() if share < 0.001]
