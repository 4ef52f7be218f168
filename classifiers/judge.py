"""Judges: models that say of each text how good or how useful it is. One interface, and a folder that carries
everything with it.

A kind of judge is one class in a module of its own: what a plan may say of it (`settings`), how it is trained, which
heads it learns and what it needs installed stand there. `KINDS` has one line for each, and nothing else knows them all.

A judge is loaded only if it is what was saved: its files have their hashes, and it gives a few texts of our own the
scores that it gave them when it was saved. Scores never depend on the texts beside a text. docs/judges.md describes the
folder.
"""

from __future__ import annotations

import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, get_args

import numpy as np
import pyarrow as pa
from pydantic import Field

from gristmill.classifiers.artifact import DESCRIPTION, read_folder, write_folder
from gristmill.classifiers.card import Head, HeadKind, Json, JudgeCard, JudgeError, NotExplained, card_of
from gristmill.kernels.common.extras import install
from gristmill.kernels.common.settings import Settings

if TYPE_CHECKING:
    from gristmill.classifiers.training_sets import LabelledTexts

__all__ = ["GOLDEN_TEXTS", "Head", "Judge", "JudgeCard", "JudgeError", "NotExplained", "load_judge", "scores_of"]

Scores = dict[str, np.ndarray[Any, np.dtype[np.float32]]]

# Where the class of each kind is. Its module, which asks for no optional package, is imported when the kind is used.
KINDS = {
    "fasttext": "gristmill.classifiers.fasttext.judge:FastTextJudge",
    "linear": "gristmill.classifiers.linear.judge:LinearJudge",
    "pooled": "gristmill.classifiers.pooled.judge:PooledJudge",
    "neural": "gristmill.classifiers.neural.judge:NeuralJudge",
    "sklearn": "gristmill.classifiers.sklearn_pipeline:SklearnJudge",
}

GOLDEN_TEXTS = (
    "",
    "A lens bends light because light is slower in glass than in air. The thicker the glass, the longer the way, and "
    "so the rays meet.",
    "BUY NOW!!! Best price, free shipping >>> click here <<< Home | Login | Cart (0) | © All rights reserved",
    "Das Brot geht auf, weil die Hefe aus Zucker Gas macht.\n\nDeshalb braucht der Teig Wärme und Zeit.",
    "El puente cruza el río donde el valle es más estrecho; lo construyeron en tres años.",
    "水は零度で凍り、百度で沸く。\n氷は水に浮く。",
    "الماء يغلي عند مئة درجة، ويتجمد عند الصفر.",
    "def area(r):\n\treturn 3.14159 * r ** 2  # of a circle\n",
)
MOST_GOLDEN, LONGEST_GOLDEN = 100, 100_000


Train = Callable[["LabelledTexts"], "Judge"]
Log = Callable[[str], None]
Lesson = Literal["value", "soft", "repeated"]
Device = Annotated[Literal["auto", "cpu", "cuda"], Field(description="auto: a GPU if there is one")]
Epochs = Annotated[float | None, Field(gt=0, allow_inf_nan=False, description="as the kind has it unless given")]


class KindSettings(Settings):
    """What a plan may say of a kind of judge. The class is called as the kind."""


class WrongSetting(JudgeError):
    """A setting of a kind that does not fit what is there."""

    def __init__(self, setting: str, message: str) -> None:
        super().__init__(message)
        self.setting = setting


class Judge(ABC):
    """What all judges can do. A kind of judge writes `outputs`, `write` and `read`; `explain` where it can; `settings`
    and `trainer` where plans can train it."""

    needs: ClassVar[tuple[str, ...]] = ()  # files that a folder of this kind must list
    packages: ClassVar[frozenset[str]] = frozenset()  # optional ones that scoring needs
    on_gpu: ClassVar[bool] = False  # it scores on a GPU if there is one: it has `at(device, precision)`

    settings: ClassVar[type[KindSettings] | None] = None  # of a plan; None: it is not trained here
    heads_learnt: ClassVar[tuple[HeadKind, ...]] = get_args(HeadKind)
    learns: ClassVar[Lesson] = "soft"  # of a teacher's scores: the score itself, weighted or repeated labels
    weighs: ClassVar[bool] = True  # a text may have a weight; else it is repeated
    seeded: ClassVar[bool] = True  # another seed trains another judge
    to_train: ClassVar[frozenset[str]] = frozenset()  # packages and modules that scoring never loads

    card: JudgeCard

    @classmethod
    def trainer(cls, settings: Any, head: Head, seed: int, log: Log) -> Train:
        """The training of one judge, as `settings` have it. JudgeError says what is missing, WrongSetting what does not
        fit."""
        raise JudgeError("judges of this kind are not trained here")

    @abstractmethod
    def outputs(self, texts: pa.Array | pa.ChunkedArray) -> Scores:
        """By head, for each text (null counts as empty): float32_N of P(good) or of the regression, float32_NC of the
        probabilities of classes or labels."""

    @abstractmethod
    def write(self, folder: Path) -> None:
        """Put the weights, and whatever else `read` needs, into an empty folder."""

    @classmethod
    @abstractmethod
    def read(cls, folder: Path, card: JudgeCard, device: str) -> Self:
        """The judge of a folder whose files are known to be whole."""

    def golden_tolerance(self) -> float:
        """How far a golden score may lie from the saved one, as a share of the head's range (of 1 for the probabilities
        of classes)."""
        return 1e-5

    def score(self, texts: pa.Array | pa.ChunkedArray | Sequence[str | None]) -> Scores:
        """float32_N by head: P(good), the expected class (0 to C - 1), the probability of the likeliest label, or the
        value of the regression."""
        return scores_of(self.card, self.outputs(as_column(texts)))

    def probabilities(self, texts: pa.Array | pa.ChunkedArray | Sequence[str | None]) -> Scores:
        """float32_NC by head, in the order of its labels; heads that are a regression have none."""
        outputs = self.outputs(as_column(texts))
        return {
            head.name: np.stack([1 - outputs[head.name], outputs[head.name]], axis=1)
            if head.kind == "probability"
            else outputs[head.name]
            for head in self.card.heads
            if head.kind != "regression"
        }

    def explain(self, text: str, head: str, most: int = 20) -> list[tuple[str, float]]:
        """The words of a text that move the score of a head most, strongest first; above 0 they raise it."""
        self.card.head(head)
        raise NotExplained(f"a {self.card.kind} judge cannot say which words made a score")

    def sharper(self, factor: float) -> Self:
        """The same judge with every logit times a factor, which changes how sure it is and never what is likeliest."""
        raise JudgeError(f"a {self.card.kind} judge cannot be made more or less sure of itself")

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Into a new or empty folder, with the scores of the golden texts."""
        golden = [
            {"text": text, "outputs": {name: values[i].astype(float).tolist() for name, values in outputs.items()}}
            for outputs in [self.outputs(pa.array(GOLDEN_TEXTS, pa.string()))]
            for i, text in enumerate(GOLDEN_TEXTS)
        ]
        write_folder(Path(folder), self.card.as_json() | {"golden": golden}, self.write)


def load_judge(folder: str | os.PathLike[str], device: str = "cpu") -> Judge:
    """The judge of a folder. `device` is for neural judges: "cpu", "cuda", "cuda:1"."""
    where = Path(folder)
    facts = read_folder(where)
    try:
        card = card_of(facts)
    except JudgeError as error:
        raise JudgeError(f"{where}: {DESCRIPTION}: {error}") from error
    try:
        kind = kind_class(card.kind)
    except JudgeError as error:
        raise JudgeError(f"{where}: {error}") from error
    for name in kind.needs:
        if name not in facts["files"]:
            raise JudgeError(f"{where}: a {card.kind} judge needs {name}, and {DESCRIPTION} does not list it")
    try:
        judge = kind.read(where, card, device)
    except JudgeError as error:
        raise JudgeError(str(error) if str(where) in str(error) else f"{where}: {error}") from error
    _check_golden(where, judge, facts.get("golden"))
    return judge


def as_column(texts: pa.Array | pa.ChunkedArray | Sequence[str | None]) -> pa.Array | pa.ChunkedArray:
    return texts if isinstance(texts, pa.Array | pa.ChunkedArray) else pa.array(texts, pa.large_string())


def scores_of(card: JudgeCard, outputs: Scores) -> Scores:
    """One number a text and head; of classes the expected one, of labels the probability of the likeliest."""
    return {
        head.name: (outputs[head.name].astype(np.float64) @ np.arange(head.width)).astype(np.float32)
        if head.kind == "classes"
        else outputs[head.name].max(axis=1, initial=0)
        if head.kind == "labels"
        else outputs[head.name]
        for head in card.heads
    }


def direction_of(kind: HeadKind, chances_C: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, Any]:
    """How the expected class, or of labels the log-odds of the likeliest, change with each label's logit."""
    if kind == "labels":
        best = int(chances_C.argmax())
        others = chances_C.copy()
        others[best] = 0
        direction: np.ndarray[Any, Any] = -others / max(float(others.sum()), 1e-300)
        direction[best] = 1
        return direction
    classes = np.arange(len(chances_C))
    return np.asarray(chances_C * (classes - chances_C @ classes))


def kind_class(kind: str) -> type[Judge]:
    """The class of a kind of judge."""
    if kind not in KINDS:
        raise JudgeError(f"there is no kind of judge {kind!r}; this Gristmill knows {', '.join(KINDS)}")
    module, _, name = KINDS[kind].partition(":")
    judge_class: type[Judge] = getattr(importlib.import_module(module), name)
    return judge_class


def kind_settings() -> dict[str, type[KindSettings]]:
    """Of all kinds that plans can train."""
    return {kind: found for kind in KINDS if (found := kind_class(kind).settings) is not None}


def module_to_train(name: str, kind: str, package: str, extra: str) -> Any:
    """A module that a kind needs to be trained. JudgeError says what to install."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise JudgeError(f"training a {kind} judge needs {package}: {install(extra)} ({error})") from error


def _check_golden(where: Path, judge: Judge, golden: object) -> None:
    """The texts of the folder get the scores that they got when it was saved."""
    if not isinstance(golden, list) or not 0 < len(golden) <= MOST_GOLDEN:
        raise JudgeError(f"{where}: {DESCRIPTION} has no golden scores to hold the judge against")
    texts = [_golden_text(where, entry) for entry in golden]
    outputs = judge.outputs(pa.array(texts, pa.string()))
    for head in judge.card.heads:
        allowed = judge.golden_tolerance() * (1.0 if head.multiclass else head.high - head.low)
        for i, entry in enumerate(golden):
            expected, now = _golden_numbers(where, entry, head), outputs[head.name][i].reshape(-1).astype(np.float64)
            if not np.all(np.abs(now - expected) <= allowed):
                raise JudgeError(
                    f"{where}: {head.name} of the golden text {_start(texts[i])} is now {now.tolist()}, and was "
                    f"{expected.tolist()} when the judge was saved "
                    f"(at most {allowed:.2g} apart is allowed): the weights, or the program that reads them, are not "
                    "those it was saved with"
                )


def _golden_text(where: Path, entry: object) -> str:
    if not isinstance(entry, dict) or not isinstance(text := entry.get("text"), str) or len(text) > LONGEST_GOLDEN:
        raise JudgeError(
            f"{where}: a golden score is an object with a text of at most {LONGEST_GOLDEN:,} characters and its outputs"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise JudgeError(f"{where}: a golden text is not Unicode ({error.reason})") from error
    return text


def _golden_numbers(where: Path, entry: Json, head: Head) -> np.ndarray[Any, np.dtype[np.float64]]:
    outputs = entry.get("outputs")
    numbers = outputs.get(head.name) if isinstance(outputs, dict) else None
    numbers = numbers if isinstance(numbers, list) else [numbers]
    if len(numbers) != head.width or not all(
        isinstance(n, int | float) and not isinstance(n, bool) and abs(n) < 1e30 for n in numbers
    ):
        raise JudgeError(
            f"{where}: the golden text {_start(entry['text'])} has not {head.width} numbers for {head.name}"
        )
    return np.array(numbers, np.float64)


def _start(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
