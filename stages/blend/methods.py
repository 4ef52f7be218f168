"""Every method to choose a mix: a class with its settings, and the way from what there is to mix to weights and facts
(docs/mixing.md). A new method is a class here, and its name in `AnyMethod`.

Facts are plain data for a report: what each source gives and how often it is repeated, what a method dropped and why,
how sure the answer is, and how the mixes without a choice (proportional, UniMax) would do by the same measure.

Shapes: N sources, T tasks.
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

import numpy as np
from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from gristmill.kernels.base.types import Floats
from gristmill.kernels.common.extras import install
from gristmill.kernels.common.paths import RecipePath
from gristmill.kernels.common.settings import Settings
from gristmill.mixing.weights import log_linear, regmix, shares, tables
from gristmill.mixing.weights.ablations import Ablations, Fit, LeftOut, Predict, leave_out, rank_correlation, trust
from gristmill.mixing.weights.advice import advise, larger_runs
from gristmill.mixing.weights.budget import most_utility
from gristmill.mixing.weights.kernel import kernel
from gristmill.mixing.weights.supply import Supply, check_same_names
from gristmill.mixing.weights.unimax import unimax
from gristmill.mixing.weights.utilimax import frontier
from gristmill.mixing.weights.utility import NoisyTask, Utilities, noisy_tasks, scaled
from gristmill.stages.one_of import name_of

Facts = dict[str, Any]
Table = TypeVar("Table")

FRONTIER = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


def _one_above_zero(numbers: dict[str, float]) -> dict[str, float]:
    if not any(numbers.values()):
        raise ValueError("one number at least must be above 0")
    return numbers


Numbers = Annotated[
    dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]], AfterValidator(_one_above_zero)
]  # by source or task
TaskWeights = Annotated[Numbers | None, Field(description="what each task counts; all alike unless given")]


class Method(Settings, ABC):
    """What all methods share."""

    title: ClassVar[str]  # in a report

    @abstractmethod
    def weigh(self, supply: Supply, seed: int) -> tuple[Floats, Facts]:
        """Weights, in the order of the supply, and what there is to say of them."""

    def mentioned(self) -> dict[str, Collection[str]]:
        """Settings that speak of sources, and of which."""
        return {}


@dataclass(frozen=True)
class ChosenMix:
    """Weights in tokens and epochs, in the order of the supply, and facts for a report."""

    weights_N: Floats
    epochs_N: Floats
    facts: Facts


def choose(supply: Supply, method: Method, seed: int = 0) -> ChosenMix:
    weights_N, facts = method.weigh(supply, seed)
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
        {"method": name_of(method), "budget": supply.budget, "sources": sources, "warnings": [], **facts},
    )


# --- without measurements --------------------------------------------------------------------------------------------


class Given(Method):
    """Your own numbers."""

    title = "weights as given"
    weights: Annotated[Numbers, Field(description="a number for each source, of any scale")]

    def weigh(self, supply: Supply, seed: int) -> tuple[Floats, Facts]:
        return shares.given(supply, self.weights), {}

    def mentioned(self) -> dict[str, Collection[str]]:
        return {"weights": self.weights}


class Proportional(Method):
    """As many tokens as there are."""

    title = "proportional to tokens"

    def weigh(self, supply: Supply, seed: int) -> tuple[Floats, Facts]:
        return shares.proportional(supply), {}


class Temperature(Method):
    """Proportional, with more of small sources or of large ones."""

    title = "proportional, tempered"
    temperature: Annotated[float, Field(description="1 is proportional, above 1 small sources gain", gt=0)]

    def weigh(self, supply: Supply, seed: int) -> tuple[Floats, Facts]:
        return shares.temperature(supply, self.temperature), {}


class Unimax(Method):
    """As even as epochs allow."""

    title = "UniMax"

    def weigh(self, supply: Supply, seed: int) -> tuple[Floats, Facts]:
        return unimax(supply), {}


# --- from the utility of each source ---------------------------------------------------------------------------------


class OfUtilities(Method):
    """What methods share that go by a table of utilities."""

    utilities_file: Annotated[RecipePath, Field(description="a CSV of sources x tasks with standard errors")]
    noise: Annotated[
        Literal["drop", "flag"], Field(description="what happens to tasks that do not tell sources apart")
    ] = "drop"
    scale: Annotated[Literal["worst_to_best", "as_given"], Field(description="of utilities, task by task")] = (
        "worst_to_best"
    )

    @field_validator("utilities_file")
    @classmethod
    def _is_a_table(cls, path: str) -> str:
        _read(path, tables.utilities)  # a wrong line is said before any work
        return path

    @property
    def utilities(self) -> Utilities:
        return _read(self.utilities_file, tables.utilities)

    def mentioned(self) -> dict[str, Collection[str]]:
        return {"utilities_file": self.utilities.sources}

    def usable(self, supply: Supply) -> tuple[Utilities, Facts]:
        """The utilities that a mix depends on, in the order of the supply. A task without any range has no scale and is
        dropped even where noise is kept."""
        utilities = self.utilities
        check_same_names(supply.names, dict.fromkeys(utilities.sources), "utilities")
        table = utilities.of_sources(supply.names)
        noisy = noisy_tasks(table)
        dropped = [
            task for task in noisy if self.noise == "drop" or (task.range == 0 and self.scale == "worst_to_best")
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
        return scaled(used) if self.scale == "worst_to_best" else used, facts


class Utilimax(OfUtilities):
    """Close to the best source of every task at once, at a price for risk."""

    title = "UtiliMax"
    aversion: Annotated[
        float,
        Field(description="to risk; 0 trusts the utilities, much of it is unimax", ge=0, allow_inf_nan=False),
    ] = 1.0

    def weigh(self, supply: Supply, seed: int) -> tuple[Floats, Facts]:
        used, facts = self.usable(supply)
        tilts = frontier(supply, used.values_NT, {*FRONTIER, self.aversion})
        tilt = next(point for point in tilts if point.aversion == self.aversion)
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


class MostUtility(OfUtilities):
    """A linear programme: everything on the best estimates."""

    title = "the most utility of a budget"
    task_weights: TaskWeights = None

    @field_validator("task_weights")
    @classmethod
    def _tasks_are_there(cls, given: Numbers | None, info: ValidationInfo) -> Numbers | None:
        if path := info.data.get("utilities_file"):
            _check_tasks(given, _read(path, tables.utilities).tasks)
        return given

    def weigh(self, supply: Supply, seed: int) -> tuple[Floats, Facts]:
        used, facts = self.usable(supply)
        given = self.task_weights or dict.fromkeys(used.tasks, 1.0)
        weights_T = np.array([given.get(task, 0.0) for task in used.tasks], np.float64)
        if not weights_T.any():
            raise ValueError("task_weights must be above 0 for a task that tells sources apart")
        utility_N = used.values_NT @ (weights_T / weights_T.sum())
        mix_N = most_utility(supply, utility_N)
        controls = {name: {"utility": float(control_N @ utility_N)} for name, control_N in _controls(supply).items()}
        return mix_N, facts | {"utility": float(mix_N @ utility_N), "controls": controls}


# --- fitted to ablations ---------------------------------------------------------------------------------------------


class OfAblations(Method):
    """What methods share that are fitted to a table of runs."""

    ablations_file: Annotated[RecipePath, Field(description="a CSV of runs, their weights and losses")]
    task_weights: TaskWeights = None
    confirmed_file: Annotated[
        RecipePath | None, Field(description="a CSV of larger runs, to see whether the fit ranks them too")
    ] = None

    @field_validator("ablations_file", "confirmed_file")
    @classmethod
    def _is_a_table(cls, path: str | None) -> str | None:
        if path is not None:
            _read(path, tables.ablations)
        return path

    @field_validator("task_weights")
    @classmethod
    def _tasks_are_there(cls, given: Numbers | None, info: ValidationInfo) -> Numbers | None:
        if path := info.data.get("ablations_file"):
            _check_tasks(given, _read(path, tables.ablations).tasks)
        return given

    @property
    def ablations(self) -> Ablations:
        return _read(self.ablations_file, tables.ablations)

    def mentioned(self) -> dict[str, Collection[str]]:
        return {"ablations_file": self.ablations.sources}

    def runs(self, supply: Supply) -> tuple[Ablations, Floats]:
        ablations = self.ablations
        check_same_names(supply.names, dict.fromkeys(ablations.sources), "ablations")
        return ablations.counted(self.task_weights)

    def appraise(
        self, table: Ablations, weights_T: Floats, law: Predict, left: LeftOut, inner: Supply, mix_N: Floats
    ) -> Facts:
        """How far to trust the mix, and what to take instead where it is not to be."""

        def loss(mix_N: Floats) -> float:
            return float(law(mix_N[None])[0] @ weights_T)

        facts = trust(table, weights_T, left.predicted_RT, left.predicted_RT @ weights_T)
        beside, warnings = advise(table, weights_T, left, mix_N, loss(mix_N), inner.caps_N)
        if self.confirmed_file is not None:
            larger = _read(self.confirmed_file, tables.ablations)
            beside["larger_runs"], more = larger_runs(larger, table, weights_T, law, mix_N)
            warnings += more
        controls = _controls(inner)
        if best := beside["best_run"]:
            controls[f"run {best['run']}"] = np.array([best["weights"][name] for name in table.sources])
        return {
            **facts,
            **beside,
            "tasks": list(table.tasks),
            "predicted_loss": loss(mix_N),
            "controls": {name: {"predicted_loss": loss(control_N)} for name, control_N in controls.items()},
            "warnings": [*facts["warnings"], *_unseen(table, mix_N), *warnings],
        }


class Regmix(OfAblations):
    """The mean of the best of many candidates, by a regression."""

    title = "RegMix"
    regressor: Annotated[
        Literal["auto", "kernel", "law", "ridge", "trees"],
        Field(description="auto: of kernel, law and ridge the one that ranks runs best that it has not seen"),
    ] = "auto"
    candidates: Annotated[int, Field(description="mixes that are looked at", ge=1)] = 100_000
    best: Annotated[int, Field(description="the mean of so many of the best", ge=1)] = 100

    @model_validator(mode="after")
    def _can_be_done(self) -> Self:
        if self.best > self.candidates:
            raise ValueError(f"best is {self.best} of {self.candidates} candidates; there must be as many")
        if self.regressor == "trees" and importlib.util.find_spec("sklearn") is None:
            raise ValueError(f"regressor trees needs scikit-learn: {install('train')}, or take regressor: kernel")
        return self

    def weigh(self, supply: Supply, seed: int) -> tuple[Floats, Facts]:
        table, weights_T = self.runs(supply)
        inner, back = _in_order_of(supply, table.sources)
        candidates_KN = regmix.draw_candidates(inner, self.candidates, seed)
        left_outs = {name: leave_out(table.weights_RN, table.losses_RT, fit) for name, fit in self.fits(table, seed)}
        loss_R = table.losses_RT @ weights_T
        ranked = {
            name: rank_correlation(left.predicted_RT @ weights_T, loss_R) for name, left in left_outs.items()
        }  # what the mix lowers is the sum of its tasks' predictions: fitted as one number it is ranked worse
        name = max(ranked, key=lambda name: round(ranked[name], 6))
        law = dict(self.fits(table, seed))[name](table.weights_RN, table.losses_RT)
        mix_N = regmix.best_mean(candidates_KN, law(candidates_KN) @ weights_T, self.best, inner.caps_N)
        facts = self.appraise(table, weights_T, law, left_outs[name], inner, mix_N)
        return mix_N[back], facts | {"regressor": name} | ({"regressors": ranked} if len(ranked) > 1 else {})

    def fits(self, table: Ablations, seed: int) -> list[tuple[str, Fit]]:
        """Those to choose from, the best first where they rank alike."""
        fits: dict[str, Fit] = {"kernel": kernel, "law": log_linear.fit_law, "ridge": regmix.ridge}
        if self.regressor == "trees":
            return [("trees", regmix.trees(seed))]
        if self.regressor != "auto":
            return [(self.regressor, fits[self.regressor])]
        return [(name, fit) for name, fit in fits.items() if name != "law" or np.all(table.losses_RT > 0)]


class LogLinear(OfAblations):
    """The best mix by a law of losses, not far from a prior."""

    title = "a log-linear law"
    kl: Annotated[float, Field(description="what distance from the prior costs", gt=0, allow_inf_nan=False)] = 0.05
    prior: Annotated[Numbers | None, Field(description="the shares of tokens unless given")] = None

    def mentioned(self) -> dict[str, Collection[str]]:
        return super().mentioned() | ({} if self.prior is None else {"prior": self.prior})

    def weigh(self, supply: Supply, seed: int) -> tuple[Floats, Facts]:
        table, weights_T = self.runs(supply)
        supply.check_budget()
        inner, back = _in_order_of(supply, table.sources)
        prior_N = inner.tokens_N / inner.tokens_N.sum()
        if self.prior is not None:
            check_same_names(inner.names, self.prior, "prior")
            prior_N = np.array([self.prior[name] for name in inner.names], np.float64)
            prior_N = prior_N / prior_N.sum()
        law = log_linear.fit_law(table.weights_RN, table.losses_RT)
        proposal = log_linear.propose(law, weights_T, prior_N, inner.caps_N, self.kl)
        left = leave_out(table.weights_RN, table.losses_RT, log_linear.fit_law)
        facts = self.appraise(table, weights_T, law, left, inner, proposal.weights_N)
        floors = dict(zip(table.tasks, law.floor_T.tolist(), strict=True))
        return proposal.weights_N[back], facts | {"kl": self.kl, "gap": proposal.gap, "floors": floors}


AnyMethod = Given | Proportional | Temperature | Unimax | Utilimax | MostUtility | Regmix | LogLinear


# --- what they have in common ----------------------------------------------------------------------------------------


def _read(path: str, read: Callable[[str, str], Table]) -> Table:
    if not Path(path).is_file():
        raise ValueError(f"there is no file {path}")
    try:
        return read(Path(path).read_text(encoding="utf-8"), path)
    except UnicodeDecodeError:
        raise ValueError(f"{path}: no text in UTF-8; save the table as CSV in UTF-8") from None


def _check_tasks(task_weights: dict[str, float] | None, tasks: tuple[str, ...]) -> None:
    unknown = sorted(set(task_weights or ()) - set(tasks))
    if unknown:
        raise ValueError(f"no task {', '.join(map(repr, unknown))}; there are {', '.join(map(repr, tasks))}")


def _reasons(tasks: list[NoisyTask]) -> str:
    return "; ".join(f"{task.task} ({task.reason})" for task in tasks)


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


def _controls(supply: Supply) -> dict[str, Floats]:
    """The mixes to beat. The proportional one may exceed the caps; it is only for comparison."""
    return {"proportional": supply.tokens_N / supply.tokens_N.sum(), "unimax": unimax(supply)}
