"""Distillation: a judge that costs little learns what one that costs much said: marks of a language model, or scores of
a neural judge.

    marks -> labels    hard: a label by cuts; soft: each text twice, with weights p and 1 - p; repeated: the same for
      students without
                       weights, each text a few times; value: the mark itself (a regression, or a probability that a
                         neural judge learns)
    train              on the groups that are not held out
    report             on one half of the held-out groups, with calibration fitted on the other
      (classifiers/teaching/agreement.py, calibration.py)

A student's score is what its weights say. Calibration is reported with its curve, never applied: a judge's folder has
no place for it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa

from gristmill.classifiers.calibration import fit_isotonic, fit_platt, probability_error
from gristmill.classifiers.card import Head, Json, JudgeError
from gristmill.classifiers.judge import Judge, Train
from gristmill.classifiers.teaching.agreement import agreement, classes_of
from gristmill.classifiers.teaching.passages import text_hashes
from gristmill.classifiers.teaching.seed_draws import smallest
from gristmill.classifiers.training_sets import LabelledTexts, balanced_weights, held_out, labelled_texts
from gristmill.kernels.base.types import Array

Form = Literal["hard", "soft", "repeated", "value"]
Balance = Literal["none", "fewer", "weights"]

AGREED = ("accuracy", "kappa", "kappa_weighted", "kappa_by_class", "confusion")  # what calibration may change


@dataclass(frozen=True)
class DistilRecipe:
    """`cuts` part marks into classes, the head's labels in their order; a mark at a cut is in the class above."""

    cuts: tuple[float, ...]
    form: Form = "hard"
    low: float = 0.0  # of marks
    high: float = 1.0
    unsure: float = (
        0.0  # hard: texts with marks nearer to a cut than this are not trained on (all held-out ones are in the report)
    )
    times: int = 4  # repeated: how often each text stands
    balance: Balance = (
        "none"  # classes: all there are; "fewer": as many as of the scarcest; "weights": their weights add up alike
    )
    held_out: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        if self.form not in get_args(Form) or self.balance not in get_args(Balance):
            raise JudgeError(
                f"form {self.form!r} is one of {', '.join(get_args(Form))}, balance {self.balance!r} of "
                f"{', '.join(get_args(Balance))}"
            )
        if (
            not self.cuts
            or any(a >= b for a, b in pairwise(self.cuts))
            or not self.low < self.cuts[0]
            or not self.cuts[-1] <= self.high
        ):
            raise JudgeError(f"cuts {self.cuts} rise, and lie between {self.low:g} and {self.high:g}")
        if self.times < 1 or self.unsure < 0:
            raise JudgeError("times is 1 or more, unsure 0 or more")
        if self.unsure and self.form != "hard":
            raise JudgeError(
                f"unsure is for form 'hard' alone; form {self.form!r} learns from texts near a cut too, so leave it at "
                "0"
            )
        if self.balance == "weights" and self.form == "repeated":
            raise JudgeError(
                "form 'repeated' is for students without weights: balance is 'none' or 'fewer' there, or take form "
                "'soft'"
            )

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
    report: Json
    held_out: pa.Array  # texts, of both halves


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
    uid: str | None = None,
) -> Distilled:
    """`table` has a mark for each text (null: the teacher's answer could not be read). `train` makes a student of
    labelled texts."""
    recipe.check(head)
    for name in (text, mark, group, uid):
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
    classes = classes_of(marks, recipe.cuts)
    labelled = labelled_texts(
        table.append_column("_class", pa.array([names[c] for c in classes])), text, "_class", None, group
    )
    outside = held_out(labelled, recipe.held_out, recipe.seed)
    half = _halves(labelled.take(outside), recipe.seed)
    lesson = lesson_of(labelled.take(~outside), marks[~outside], head, recipe)
    judge = train(lesson)
    rows = np.flatnonzero(outside)
    uids = table[uid].to_pylist() if uid is not None else list(range(len(table)))
    report = {
        "teacher": teacher,
        "marks": {
            "read": len(marks),
            "unread": int((~readable).sum()),
            "classes": dict(Counter(names[c] for c in classes)),
        },
        "lesson": lesson.as_json() | {"recipe": asdict(recipe) | {"cuts": list(recipe.cuts)}},
        **_measure(
            judge, head, recipe, labelled.texts.take(pa.array(rows)), marks[rows], half, [uids[i] for i in rows]
        ),
    }
    card = judge.card
    agreed = {k: report[k] for k in ("agreement", "calibrated", "calibration")}
    figures = {"texts": report["agreement"]["texts"], "spearman": report["agreement"]["spearman"]}
    measured = card.metrics | {head.name: figures | agreed}
    training = card.training | {"distilled_from": teacher, "lesson": report["lesson"]["recipe"]}
    training["texts"] = len(lesson.texts.unique())  # each counts once, however often a form repeats it
    student = replace(judge, card=replace(card, metrics=measured, training=training))  # type: ignore[type-var]
    return Distilled(student, report, labelled.texts.take(pa.array(rows)))


def lesson_of(labelled: LabelledTexts, marks: Array, head: Head, recipe: DistilRecipe) -> LabelledTexts:
    """What the student is trained on, by the form of the recipe; `told` has the classes of the marks as labels."""
    recipe.check(head)
    if recipe.form == "hard" and recipe.unsure:
        sure = np.abs(np.subtract.outer(marks, np.asarray(recipe.cuts))).min(axis=1) >= recipe.unsure
        labelled, marks = labelled.take(sure), marks[sure]
    if recipe.balance == "fewer":
        some = _balanced_rows(labelled, recipe.seed)
        labelled, marks = labelled.take(some), marks[some]
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
        good = np.rint(share * recipe.times).astype(np.int64)
        return _take_rows(both, np.repeat(np.arange(len(both)), np.concatenate([good, recipe.times - good])))
    weights = np.concatenate([share, 1 - share])
    soft = replace(both, weights=weights).take(weights > 0)
    return _with_weights(soft, recipe)


def _halves(outside: LabelledTexts, seed: int) -> Array:
    """bool_N: held-out texts on which curves are fitted; the others are reported on. Whole groups."""
    fitted_on = held_out(outside, 0.5, seed + 1) if len(outside) else np.zeros(0, np.bool_)
    if fitted_on.all() or not fitted_on.any():
        raise JudgeError(
            f"{len(outside):,} held-out texts have too few groups for a half to calibrate on and a half to report on: "
            "hold out more"
        )
    return fitted_on


def _balanced_rows(labelled: LabelledTexts, seed: int) -> Array:
    """bool_N: of each class as many as of the scarcest, by the smallest hashes."""
    _, classes = np.unique(labelled.labels.to_numpy(zero_copy_only=False), return_inverse=True)
    fewest = np.bincount(classes).min()
    hashes, some = text_hashes(labelled.texts, seed), np.zeros(len(labelled), np.bool_)
    for c in range(classes.max() + 1):
        of_class = np.flatnonzero(classes == c)
        some[of_class[smallest(hashes[of_class], fewest)]] = True
    return some


def _weights_of(labelled: LabelledTexts, recipe: DistilRecipe) -> Array | None:
    if recipe.balance != "weights":
        return labelled.weights
    return balanced_weights(labelled)


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


def _measure(
    judge: Judge, head: Head, recipe: DistilRecipe, texts: pa.Array, marks: Array, fitted_on: Array, uids: list[Any]
) -> Json:
    outputs = judge.outputs(texts)[head.name].astype(np.float64)
    scores = outputs @ np.arange(head.width) if head.kind == "classes" else outputs
    predicted = _predicted_classes(outputs, head, recipe)
    rest = ~fitted_on
    names, uids = recipe.names(head), [uid for uid, reported in zip(uids, rest, strict=True) if reported]
    to_marks = fit_isotonic(scores[fitted_on], marks[fitted_on])
    after = classes_of(to_marks(scores[rest]), recipe.cuts)
    raw, calibrated = (
        agreement(marks[rest], scores[rest], c, recipe.cuts, names, uids) for c in (predicted[rest], after)
    )
    return {
        "agreement": raw,
        "calibrated": {key: calibrated[key] for key in AGREED},
        "calibration": _calibration(scores, marks, fitted_on, head, recipe)
        | {"score_to_mark": to_marks.as_json(), "fitted_on": int(fitted_on.sum()), "reported_on": int(rest.sum())},
    }


def _predicted_classes(outputs: Array, head: Head, recipe: DistilRecipe) -> Array:
    if head.kind == "classes":
        return np.asarray(outputs.argmax(axis=1))
    if head.kind == "regression":
        return classes_of(outputs, recipe.cuts)
    return classes_of(outputs, [0.5] if recipe.form == "hard" else recipe.share(np.asarray(recipe.cuts)).tolist())


def _calibration(scores: Array, marks: Array, fitted_on: Array, head: Head, recipe: DistilRecipe) -> Json:
    """Of a probability that learnt labels: as one of a mark from the cut on. Of anything else: as an estimate of the
    mark."""
    rest = ~fitted_on
    if head.kind == "probability" and recipe.form == "hard":
        good = marks >= recipe.cuts[0]
        isotonic, platt = (
            fit_isotonic(scores[fitted_on], good[fitted_on]),
            fit_platt(scores[fitted_on], good[fitted_on]),
        )
        return {
            "before": probability_error(good[rest], scores[rest]),
            "isotonic": probability_error(good[rest], isotonic(scores[rest])) | {"curve": isotonic.as_json()},
            "platt": probability_error(good[rest], platt(scores[rest])) | {"curve": platt.as_json()},
        }
    curve = fit_isotonic(scores[fitted_on], marks[fitted_on])
    estimates = (
        scores
        if head.kind == "regression"
        else recipe.low + (recipe.high - recipe.low) * (scores - head.low) / (head.high - head.low)
    )
    return {
        "before": _mark_error(estimates[rest], marks[rest]),
        "isotonic": _mark_error(curve(scores[rest]), marks[rest]),
    }


def _mark_error(estimates: Array, marks: Array) -> Json:
    return {"mean_squared_error": float(((estimates - marks) ** 2).mean()), "bias": float((estimates - marks).mean())}
