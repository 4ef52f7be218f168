"""Distillation: a judge that costs little learns what one that costs much said: marks of a language model, or scores of
a neural judge.

    marks -> labels    hard: a label by cuts; soft: each text twice, with weights p and 1 - p; repeated: the same for
      students without
                       weights, each text a few times; value: the mark itself (a regression, or a probability that a
                         neural judge learns)
    train              on the groups that are not held out
    report             on those that are (classifiers/teaching/agreement.py)
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Literal, get_args

import numpy as np
import pyarrow as pa

from gristmill.classifiers.card import Head, Json, JudgeError
from gristmill.classifiers.judge import Judge, Train
from gristmill.classifiers.teaching.agreement import agreement, classes_of
from gristmill.classifiers.training_sets import LabelledTexts, balanced_weights, held_out, labelled_texts
from gristmill.kernels.base.types import Array

Form = Literal["hard", "soft", "repeated", "value"]
TIMES = 4  # repeated: how often each text stands


@dataclass(frozen=True)
class DistilRecipe:
    """`cuts` part marks into classes, the head's labels in their order; a mark at a cut is in the class above."""

    cuts: tuple[float, ...]
    form: Form = "hard"
    low: float = 0.0  # of marks
    high: float = 1.0
    balance: bool = False  # weights of all classes add up alike
    held_out: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        if self.form not in get_args(Form):
            raise JudgeError(f"form {self.form!r} is one of {', '.join(get_args(Form))}")
        if (
            not self.cuts
            or any(a >= b for a, b in pairwise(self.cuts))
            or not self.low < self.cuts[0]
            or not self.cuts[-1] <= self.high
        ):
            raise JudgeError(f"cuts {self.cuts} rise, and lie between {self.low:g} and {self.high:g}")
        if self.balance and self.form == "repeated":
            raise JudgeError("form 'repeated' is for students without weights: leave out balance, or take form 'soft'")

    def check(self, head: Head) -> None:
        if head.kind == "regression":
            if self.form != "value" or (head.low, head.high) != (self.low, self.high):
                raise JudgeError(
                    f"head {head.name} is a regression: it learns by form 'value', with marks from {head.low:g} to "
                    f"{head.high:g}"
                )
        elif head.kind == "labels":
            raise JudgeError(f"head {head.name} has labels without an order, and marks have one; train it on labels")
        elif self.form == "hard" and len(self.cuts) != len(head.labels) - 1:
            raise JudgeError(
                f"head {head.name} has {len(head.labels)} labels: {len(head.labels) - 1} cuts are needed, not "
                f"{len(self.cuts)}"
            )
        elif self.form != "hard" and head.kind != "probability":
            raise JudgeError(f"head {head.name} has classes: they are learnt by form 'hard'")

    def share(self, marks: Array) -> Array:
        return np.asarray((marks - self.low) / (self.high - self.low))

    def names(self, head: Head) -> tuple[str, ...]:
        """Of the classes that the cuts make."""
        edges = (self.low, *self.cuts, self.high)
        return (
            head.labels
            if len(head.labels) == len(self.cuts) + 1
            else tuple(f"{a:g} to {b:g}" for a, b in pairwise(edges))
        )


@dataclass(frozen=True)
class Distilled:
    judge: Judge
    agreement: Json  # with the teacher, on the texts that were held out
    held_out: pa.Array


def distil(
    table: pa.Table,
    head: Head,
    train: Train,
    recipe: DistilRecipe,
    *,
    teacher: str,
    text: str = "text",
    mark: str = "mark",
    group: str | None = None,
) -> Distilled:
    """`table` has a mark for each text (null: the teacher's answer could not be read). `train` makes a student of
    labelled texts."""
    recipe.check(head)
    for name in (text, mark, group):
        if name is not None and name not in table.column_names:
            raise JudgeError(f"the table has no column {name!r}; it has {', '.join(table.column_names)}")
    marks = table[mark].cast(pa.float64()).fill_null(float("nan")).to_numpy()
    readable = np.isfinite(marks)
    if not readable.any():
        raise JudgeError("no text has a mark")
    if ((marks[readable] < recipe.low) | (marks[readable] > recipe.high)).any():
        raise JudgeError(
            f"marks lie between {marks[readable].min():g} and {marks[readable].max():g}, not {recipe.low:g} and "
            f"{recipe.high:g}"
        )
    table, marks = table.filter(pa.array(readable)), marks[readable]
    names = recipe.names(head)
    classes = pa.array([names[c] for c in classes_of(marks, recipe.cuts)])
    labelled = labelled_texts(table.append_column("_class", classes), text, "_class", None, group)
    outside = held_out(labelled, recipe.held_out, recipe.seed)
    if not outside.any():
        raise JudgeError("no text is held out to report on: hold out more")
    lesson = lesson_of(labelled.take(~outside), marks[~outside], head, recipe)
    judge = train(lesson)
    unseen = labelled.texts.filter(pa.array(outside))
    outputs = judge.outputs(unseen)[head.name].astype(np.float64)
    scores = outputs @ np.arange(head.width) if head.kind == "classes" else outputs
    predicted = _predicted_classes(outputs, head, recipe)
    agreed = agreement(marks[outside], scores, predicted, recipe.cuts, names)
    card, facts = judge.card, asdict(recipe) | {"cuts": list(recipe.cuts)}
    figures = {"texts": agreed["texts"], "spearman": agreed["spearman"], "agreement": agreed}
    training = card.training | {"distilled_from": teacher, "lesson": facts, "unread": int((~readable).sum())}
    training["texts"] = len(lesson.texts.unique())  # each counts once, however often a form repeats it
    card = replace(card, metrics=card.metrics | {head.name: figures}, training=training)
    return Distilled(replace(judge, card=card), agreed, unseen)  # type: ignore[type-var]


def lesson_of(labelled: LabelledTexts, marks: Array, head: Head, recipe: DistilRecipe) -> LabelledTexts:
    """What the student is trained on, by the form of the recipe; `told` has the classes of the marks as labels."""
    recipe.check(head)
    if recipe.form == "hard":
        return _with_weights(labelled, recipe)
    share = recipe.share(marks)
    if recipe.form == "value":
        values = marks if head.kind == "regression" else share
        return replace(labelled, labels=pa.array(values, pa.float64()), weights=_weights_of(labelled, recipe))
    twice = pa.array(np.tile(np.arange(len(labelled)), 2))
    labels = pa.array([head.labels[1]] * len(labelled) + [head.labels[0]] * len(labelled), pa.string())
    both = LabelledTexts(
        labelled.texts.take(twice), labels, None, None if labelled.groups is None else labelled.groups.take(twice)
    )
    if recipe.form == "repeated":
        good = np.rint(share * TIMES).astype(np.int64)
        return _take_rows(both, np.repeat(np.arange(len(both)), np.concatenate([good, TIMES - good])))
    weights = np.concatenate([share, 1 - share])
    soft = replace(both, weights=weights).take(weights > 0)
    return _with_weights(soft, recipe)


def _weights_of(labelled: LabelledTexts, recipe: DistilRecipe) -> Array | None:
    return balanced_weights(labelled) if recipe.balance else labelled.weights


def _with_weights(labelled: LabelledTexts, recipe: DistilRecipe) -> LabelledTexts:
    return replace(labelled, weights=_weights_of(labelled, recipe))


def _take_rows(labelled: LabelledTexts, rows: Array) -> LabelledTexts:
    indices = pa.array(rows)
    return LabelledTexts(
        labelled.texts.take(indices),
        labelled.labels.take(indices),
        None,
        None if labelled.groups is None else labelled.groups.take(indices),
    )


def _predicted_classes(outputs: Array, head: Head, recipe: DistilRecipe) -> Array:
    if head.kind == "classes":
        return np.asarray(outputs.argmax(axis=1))
    if head.kind == "regression":
        return classes_of(outputs, recipe.cuts)
    return classes_of(outputs, [0.5] if recipe.form == "hard" else recipe.share(np.asarray(recipe.cuts)).tolist())
