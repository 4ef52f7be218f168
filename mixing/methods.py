"""Every method to choose a mix behind one function: from a choice of method and its settings, and what there is to mix,
to weights, epochs and facts.

Facts are plain data for a report: what each source gives and how often it is repeated, what a method dropped and why,
how sure the answer is, and how the mixes without a choice (proportional, UniMax) would do by the same measure.

Shapes: N sources, T tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar

import numpy as np

from gristmill.kernels.base.types import Floats
from gristmill.mixing.weights import log_linear, regmix, shares
from gristmill.mixing.weights.ablations import Ablations, left_out, trust
from gristmill.mixing.weights.budget import most_utility
from gristmill.mixing.weights.supply import Supply, check_same_names
from gristmill.mixing.weights.unimax import unimax
from gristmill.mixing.weights.utilimax import frontier
from gristmill.mixing.weights.utility import NoisyTask, Utilities, noisy_tasks, scaled

Method = Literal["given", "proportional", "temperature", "unimax", "utilimax", "most_utility", "regmix", "log_linear"]
Facts = dict[str, Any]
Value = TypeVar("Value")

FRONTIER = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
LOOKED_AT: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # by method: required and optional settings
    "given": (("weights",), ()),
    "proportional": ((), ()),
    "temperature": (("temperature",), ()),
    "unimax": ((), ()),
    "utilimax": (("utilities",), ()),
    "most_utility": (("utilities",), ("task_weights",)),
    "regmix": (("ablations",), ("task_weights",)),
    "log_linear": (("ablations",), ("task_weights", "prior")),
}


@dataclass(frozen=True)
class Choice:
    """A method and its settings. Settings that a method needs must be there; settings that it ignores must not."""

    method: Method
    weights: dict[str, float] | None = None  # given: numbers of any scale
    temperature: float | None = None  # 1 is proportional, above 1 small sources gain
    utilities: Utilities | None = None
    aversion: float = 1.0  # UtiliMax: to risk
    noise: Literal["drop", "flag"] = "drop"  # tasks that do not tell sources apart
    scale: Literal["worst_to_best", "as_given"] = "worst_to_best"  # of utilities
    ablations: Ablations | None = None
    task_weights: dict[str, float] | None = None  # all tasks count alike unless given
    regressor: Literal["trees", "ridge"] = "trees"  # RegMix
    candidates: int = 100_000
    best: int = 100
    kl: float = 0.05  # log-linear: what distance from the prior costs
    prior: dict[str, float] | None = None  # the token shares unless given
    seed: int = 0


@dataclass(frozen=True)
class ChosenMix:
    """Weights in tokens and epochs, in the order of the supply, and facts for a report."""

    weights_N: Floats
    epochs_N: Floats
    facts: Facts


def choose(supply: Supply, choice: Choice) -> ChosenMix:
    needed, allowed = LOOKED_AT[choice.method]
    for field in ("weights", "temperature", "utilities", "ablations", "task_weights", "prior"):
        if field in needed and getattr(choice, field) is None:
            raise ValueError(f"the method {choice.method} needs {field}")
        if field not in needed + allowed and getattr(choice, field) is not None:
            raise ValueError(f"the method {choice.method} does not look at {field}")
    weights_N, facts = METHODS[choice.method](supply, choice)
    supply.check_mix(weights_N)
    epochs_N = supply.epochs(weights_N)
    columns = zip(
        supply.names,
        supply.tokens_N.tolist(),
        supply.caps_N.tolist(),
        weights_N.tolist(),
        epochs_N.tolist(),
        strict=True,
    )
    sources = [dict(zip(("source", "tokens", "cap", "weight", "epochs"), column, strict=True)) for column in columns]
    return ChosenMix(
        weights_N,
        epochs_N,
        {"method": choice.method, "budget": supply.budget, "sources": sources, "warnings": [], **facts},
    )


def _needed(choice: Choice, value: Value | None, name: str) -> Value:
    if value is None:
        raise ValueError(f"the method {choice.method} needs {name}")
    return value


def _given(supply: Supply, choice: Choice) -> tuple[Floats, Facts]:
    return shares.given(supply, _needed(choice, choice.weights, "weights")), {}


def _proportional(supply: Supply, _: Choice) -> tuple[Floats, Facts]:
    return shares.proportional(supply), {}


def _temperature(supply: Supply, choice: Choice) -> tuple[Floats, Facts]:
    return shares.temperature(supply, _needed(choice, choice.temperature, "temperature")), {}


def _unimax(supply: Supply, _: Choice) -> tuple[Floats, Facts]:
    return unimax(supply), {}


def _utilimax(supply: Supply, choice: Choice) -> tuple[Floats, Facts]:
    used, facts = _usable(supply, choice)
    tilts = frontier(supply, used.values_NT, {*FRONTIER, choice.aversion})
    tilt = next(point for point in tilts if point.aversion == choice.aversion)
    points = [
        {
            "aversion": point.aversion, "distance": point.distance, "risk": point.risk, "gap": point.gap,
            "largest": supply.names[int(point.weights_N.argmax())], "largest_weight": float(point.weights_N.max()),
        }
        for point in tilts
    ]  # fmt: skip
    controls = {
        name: {
            "distance": float(np.linalg.norm(used.values_NT.T @ mix_N - 1)),
            "risk": float(len(mix_N) * mix_N @ mix_N),
        }
        for name, mix_N in _controls(supply).items()
    }
    facts |= {"aversion": tilt.aversion, "distance": tilt.distance, "risk": tilt.risk, "gap": tilt.gap}
    return tilt.weights_N, facts | {"frontier": points, "controls": controls}


def _most_utility(supply: Supply, choice: Choice) -> tuple[Floats, Facts]:
    used, facts = _usable(supply, choice)
    given = choice.task_weights or dict.fromkeys(used.tasks, 1.0)
    unknown = sorted(set(given) - set(used.tasks) - {noisy["task"] for noisy in facts["dropped_tasks"]})
    if unknown:
        raise ValueError(f"task_weights: no task {', '.join(map(repr, unknown))} among the utilities")
    weights_T = np.array([given.get(task, 0.0) for task in used.tasks], np.float64)
    if not np.all(np.isfinite(weights_T)) or np.any(weights_T < 0) or not weights_T.any():
        raise ValueError("task_weights must be finite, 0 or more, and above 0 for a task that tells sources apart")
    utility_N = used.values_NT @ (weights_T / weights_T.sum())
    mix_N = most_utility(supply, utility_N)
    controls = {name: {"utility": float(control_N @ utility_N)} for name, control_N in _controls(supply).items()}
    return mix_N, facts | {"utility": float(mix_N @ utility_N), "controls": controls}


def _regmix(supply: Supply, choice: Choice) -> tuple[Floats, Facts]:
    table, weights_T = _runs(supply, choice)
    if not 1 <= choice.best <= choice.candidates:
        raise ValueError(
            f"best is {choice.best} of {choice.candidates} candidates; expected 1 or more, and not more than there are"
        )
    fit = regmix.trees(choice.seed) if choice.regressor == "trees" else regmix.ridge
    inner, back = _in_order_of(supply, table.sources)
    candidates_KN = regmix.draw_candidates(inner, choice.candidates, choice.seed)
    target_R1 = table.losses_RT @ weights_T[:, None]  # what is fitted is the mean that the mix lowers, as in the paper
    law = fit(table.weights_RN, target_R1)
    mix_N = regmix.best_mean(candidates_KN, law(candidates_KN)[:, 0], choice.best, inner.caps_N)
    predicted = left_out(table.weights_RN, np.hstack([table.losses_RT, target_R1]), fit)
    facts = trust(table, weights_T, predicted[:, :-1], predicted[:, -1]) | _predictions(
        inner, mix_N, lambda mixes_KN: law(mixes_KN)[:, 0]
    )
    facts["warnings"] = facts["warnings"] + _unseen(table, mix_N)
    return mix_N[back], facts | {"regressor": choice.regressor, "tasks": list(table.tasks)}


def _log_linear(supply: Supply, choice: Choice) -> tuple[Floats, Facts]:
    table, weights_T = _runs(supply, choice)
    supply.check_budget()
    inner, back = _in_order_of(supply, table.sources)
    prior_N = inner.tokens_N / inner.tokens_N.sum()
    if choice.prior is not None:
        check_same_names(inner.names, choice.prior, "prior")
        prior_N = np.array([choice.prior[name] for name in inner.names], np.float64)
        if not np.all(np.isfinite(prior_N)) or np.any(prior_N < 0) or not prior_N.any():
            raise ValueError("the prior must be of finite numbers, 0 or more, and not all 0")
        prior_N = prior_N / prior_N.sum()
    law = log_linear.fit_law(table.weights_RN, table.losses_RT)
    proposal = log_linear.propose(law, weights_T, prior_N, inner.caps_N, choice.kl)
    predicted_RT = left_out(table.weights_RN, table.losses_RT, log_linear.fit_law)
    facts = trust(table, weights_T, predicted_RT, predicted_RT @ weights_T)
    facts |= _predictions(inner, proposal.weights_N, lambda mixes_KN: law(mixes_KN) @ weights_T)
    facts["warnings"] = facts["warnings"] + _unseen(table, proposal.weights_N)
    floors = dict(zip(table.tasks, law.floor_T.tolist(), strict=True))
    return proposal.weights_N[back], facts | {
        "kl": choice.kl,
        "gap": proposal.gap,
        "floors": floors,
        "tasks": list(table.tasks),
    }


METHODS: dict[str, Callable[[Supply, Choice], tuple[Floats, Facts]]] = {
    "given": _given,
    "proportional": _proportional,
    "temperature": _temperature,
    "unimax": _unimax,
    "utilimax": _utilimax,
    "most_utility": _most_utility,
    "regmix": _regmix,
    "log_linear": _log_linear,
}


def _usable(supply: Supply, choice: Choice) -> tuple[Utilities, Facts]:
    """The utilities that a mix depends on, in the order of the supply. A task without any range has no scale and is
    dropped even where noise is kept."""
    utilities = _needed(choice, choice.utilities, "utilities")
    check_same_names(supply.names, dict.fromkeys(utilities.sources), "utilities")
    table = utilities.of_sources(supply.names)
    noisy = noisy_tasks(table)
    dropped = [
        task for task in noisy if choice.noise == "drop" or (task.range == 0 and choice.scale == "worst_to_best")
    ]
    flagged = [task for task in noisy if task not in dropped]
    gone = {task.task for task in dropped}
    kept = tuple(task for task in table.tasks if task not in gone)
    if not kept:
        raise ValueError(
            f"no task tells the sources apart: {_reasons(dropped)}. Take unimax, which asks for no utilities"
        )
    used = table.of_tasks(kept)
    warnings = [f"tasks dropped, for they do not tell sources apart: {_reasons(dropped)}"] if dropped else []
    warnings += [f"tasks of noise that the mix hangs on: {_reasons(flagged)}"] if flagged else []
    if not np.any(table.errors_NT):
        warnings.append("utilities without standard errors: no task could be tested for noise")
    facts = {
        "tasks": list(kept), "dropped_tasks": [asdict(task) for task in dropped],
        "flagged_tasks": [asdict(task) for task in flagged],
        "warnings": warnings,
    }  # fmt: skip
    return scaled(used) if choice.scale == "worst_to_best" else used, facts


def _reasons(tasks: list[NoisyTask]) -> str:
    return "; ".join(f"{task.task} ({task.reason})" for task in tasks)


def _runs(supply: Supply, choice: Choice) -> tuple[Ablations, Floats]:
    ablations = _needed(choice, choice.ablations, "ablations")
    check_same_names(supply.names, dict.fromkeys(ablations.sources), "ablations")
    return ablations.counted(choice.task_weights)


def _in_order_of(supply: Supply, names: tuple[str, ...]) -> tuple[Supply, list[int]]:
    """The supply in the fixed order of the ablations, and the place of each source of the supply there."""
    order = [supply.names.index(name) for name in names]
    inner = Supply(names, supply.tokens_N[order], supply.budget, supply.max_epochs_N[order])
    return inner, [names.index(name) for name in supply.names]


def _unseen(table: Ablations, mix_N: Floats) -> list[str]:
    """Sources with a weight that no run includes."""
    names = [
        name
        for name, most, weight in zip(table.sources, table.weights_RN.max(axis=0), mix_N, strict=True)
        if most == 0 < weight
    ]
    return [f"no run has seen {', '.join(map(repr, names))}: what is said about it is a guess"] if names else []


def _predictions(supply: Supply, mix_N: Floats, loss: Callable[[Floats], Floats]) -> Facts:
    return {
        "predicted_loss": float(loss(mix_N[None])[0]),
        "controls": {
            name: {"predicted_loss": float(loss(control_N[None])[0])} for name, control_N in _controls(supply).items()
        },
    }


def _controls(supply: Supply) -> dict[str, Floats]:
    """The mixes to beat. The proportional one may exceed the caps; it is only for comparison."""
    return {"proportional": supply.tokens_N / supply.tokens_N.sum(), "unimax": unimax(supply)}
