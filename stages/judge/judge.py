"""Scores of a judge (classifiers/judge.py) as signals, and a rule on any signal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from gristmill.kernels.base.types import Array
from gristmill.kernels.common.device import on_device
from gristmill.kernels.common.paths import RecipePath
from gristmill.stages.figures import Report, StageFigures
from gristmill.stages.judge.figures import score_figures
from gristmill.stages.stage import Annotate, CannotRun, Limit, Rule, Signals, Verdict, above, below, numbers_in

if TYPE_CHECKING:
    from gristmill.classifiers.card import JudgeCard
    from gristmill.classifiers.judge import Judge as SavedJudge

# What stages never load that only share a module with those that ask a judge.
ASKS_NO_JUDGE = ("gristmill.classifiers.judge", "torch")
SHOWN_OF_CARD = ("kind", "heads", "training", "metrics", "versions", "attribution")


class Judge(Annotate):
    """Score texts with a judge that `gristmill judge train` saved; each of its heads is a signal, but for heads of
    labels without an order, which `label` takes.

    A probability is that of the good label, of several classes it is the expected one, a regression is its value. A
    judge that is not as it was saved stops the run, and no document is blamed for it.
    """

    judge_path: Annotated[RecipePath, Field(description="the judge's folder; what it holds counts, not where it lies")]
    prefix: Annotated[
        str,
        Field(
            description="before the names of the signals, where two judges have heads of one name",
            pattern=r"^([a-z][a-z0-9_]*)?$",
        ),
    ] = ""
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        Field(description="of a neural judge; auto: a GPU if there is one", json_schema_extra={"placement": True}),
    ] = "auto"

    precision: Annotated[
        Literal["auto", "float32", "bf16", "fp8", "int8", "sparse"],
        Field(
            description="of a neural judge; auto: the fastest of bf16 and fp8 on a GPU, on a CPU int8 if it was "
            "compressed so, else float32. On an H200 int8 has 0.57 times the speed of bf16, and sparse (after `judge "
            "compress --sparse`) 0.66 times"
        ),
    ] = "auto"

    needs: ClassVar[tuple[str, ...]] = ("text",)
    costly: ClassVar[bool] = True

    @model_validator(mode="after")
    def _is_a_judge(self) -> Self:
        try:
            heads = heads_of(self.judge_path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"judge_path: {self.judge_path} is no folder of a judge ({error})") from error
        if not heads:
            raise ValueError(f"judge_path: {self.judge_path} gives labels, no scores; use the stage `label`")
        if self.precision != "auto" and not takes_a_gpu(self.judge_path):
            raise ValueError(f"precision: for neural judges; this one is of kind {kind_of(self.judge_path)}")
        return self

    @property
    def added(self) -> tuple[str, ...]:
        return tuple(f"{self.prefix}{name}" for name in heads_of(self.judge_path))

    @property
    def scored_signals(self) -> tuple[str, ...]:
        return self.added

    @classmethod
    def figures(cls, report: Report) -> StageFigures | None:
        return StageFigures("Scores", score_figures(report)) if "scores" in report else None

    def model_card(self) -> dict[str, Any] | None:
        """What the judge says of itself."""
        try:
            card = card_at(self.judge_path)
        except (OSError, ValueError):  # gone, or changed since: the scores stay what they are
            return None
        return {name: value for name, value in card.as_json().items() if name in SHOWN_OF_CARD}

    @property
    def gpu(self) -> bool:
        return self.device != "cpu" and takes_a_gpu(self.judge_path)

    def unreached(self, pdf: bool) -> tuple[str, ...]:
        return unreached_by(kind_of(self.judge_path))

    def prepare(self) -> None:
        if not takes_a_gpu(self.judge_path):  # torch leaves threads behind
            loaded(self.judge_path, "cpu")

    def annotate(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        try:
            judge = loaded(self.judge_path, on_device(self.device), self.precision)
        except Exception as error:  # whatever keeps a judge from being loaded, no document is to be blamed
            raise CannotRun(f"the judge cannot be loaded: {error}") from error
        scores = judge.score(batch.column("text"))
        return {f"{self.prefix}{name}": pa.array(scores[name]) for name in heads_of(self.judge_path)}


class KeepWhere(Rule):
    """Keep documents of which a signal lies in a range: an absolute threshold, on a judge's score or any other signal.

    A document without the signal (null) goes.
    """

    signal: Annotated[str, Field(description="its name")]
    at_least: Annotated[float | None, Field(description="the lowest that is kept")] = None
    at_most: Annotated[float | None, Field(description="the highest that is kept")] = None
    alarm_above: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="share of a source that may go without an alarm; more, where the cut is meant to take more",
            json_schema_extra={"placement": True},
        ),
    ] = 0.5

    @model_validator(mode="after")
    def _has_an_end(self) -> Self:
        if self.at_least is None and self.at_most is None:
            raise ValueError("give at_least, at_most or both")
        for name, bound in (("at_least", self.at_least), ("at_most", self.at_most)):
            if bound is not None and np.isnan(bound):
                raise ValueError(f"{name} is not a number, and would bound nothing")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError(f"nothing lies between at_least {self.at_least:g} and at_most {self.at_most:g}")
        return self

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.signal,)

    @property
    def expect_drops(self) -> float:  # type: ignore[override]
        return self.alarm_above

    @property
    def limits(self) -> tuple[Limit, ...]:  # type: ignore[override]
        low = () if self.at_least is None else (below(self.signal, "at_least", f"low_{self.signal}"),)
        high = () if self.at_most is None else (above(self.signal, "at_most", f"high_{self.signal}"),)
        return (*low, *high)

    def unreached(self, pdf: bool) -> tuple[str, ...]:
        return ASKS_NO_JUDGE

    def verdict(self, signals: Signals) -> Verdict:
        missing = np.isnan(self._numbers(signals))
        return self.within_limits(signals, Verdict.keep(len(signals)).drop(missing, f"no_{self.signal}"))

    def values(self, limits: Sequence[Limit], signals: Signals) -> list[Array]:
        return [self._numbers(signals)] * len(limits)

    def _numbers(self, signals: Signals) -> Array:
        column = signals.column(self.signal)
        if column.type != pa.float32():  # whose limits are rounded as it was
            column = numbers_in(column, self.signal)
        values: Array = column.to_numpy(zero_copy_only=False)
        return values


def card_at(folder: str) -> JudgeCard:
    """What a judge says of itself, without its weights."""
    from gristmill.classifiers.card import card_of

    return card_of(json.loads((Path(folder) / "judge.json").read_text(encoding="utf-8")))


def heads_of(folder: str) -> tuple[str, ...]:
    """Names of the heads that give a score."""
    return tuple(name for name, kind in _told(folder)[1] if kind != "labels")


def label_heads_of(folder: str) -> tuple[str, ...]:
    """Names of the heads that give a label."""
    return tuple(name for name, kind in _told(folder)[1] if kind == "labels")


def kind_of(folder: str) -> str:
    return _told(folder)[0]


def _told(folder: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    path = Path(folder) / "judge.json"
    facts = path.stat()
    return _kind_and_heads(str(path), facts.st_size, facts.st_mtime_ns)


@lru_cache(32)
def _kind_and_heads(path: str, size: int, changed: int) -> tuple[str, tuple[tuple[str, str], ...]]:
    card = json.loads(Path(path).read_text(encoding="utf-8"))
    return str(card["kind"]), tuple((str(head["name"]), str(head.get("kind"))) for head in card["heads"])


def takes_a_gpu(folder: str) -> bool:
    """Does a judge of this kind score on a GPU, where there is one?"""
    from gristmill.classifiers.judge import kind_class

    return kind_class(kind_of(folder)).on_gpu


def unreached_by(kind: str) -> tuple[str, ...]:
    """What a judge of a kind never loads to score: code and packages of other kinds, and what is for training."""
    from gristmill.classifiers.judge import KINDS, kind_class

    others = {place.partition(":")[0] for name, place in KINDS.items() if name != kind}
    classes = {name: kind_class(name) for name in KINDS}
    needed = {name for judge in classes.values() for name in judge.packages | judge.to_train}
    return tuple(sorted(others | needed - (classes[kind].packages if kind in classes else frozenset())))


@lru_cache(8)
def loaded(folder: str, device: str, precision: str = "auto") -> SavedJudge:
    """Once in each process."""
    from gristmill.classifiers.judge import load_judge

    judge: Any = load_judge(folder, device if precision == "auto" else "cpu")
    return judge if precision == "auto" else judge.at(device, precision)  # type: ignore[no-any-return]
