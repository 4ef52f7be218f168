"""From labelled texts to a judge with figures that may be believed: groups are held out, the judge is trained on the
rest and measured on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.classifiers.calibration import fit_sharpness
from gristmill.classifiers.card import Head, Json, JudgeError
from gristmill.classifiers.judge import Judge
from gristmill.classifiers.metrics import (
    auc_of_length,
    class_metrics,
    label_metrics,
    probability_metrics,
    regression_metrics,
)
from gristmill.classifiers.training_sets import LabelledTexts, folds_of, held_out
from gristmill.kernels.base.types import Array

J = TypeVar("J", bound=Judge)


@dataclass(frozen=True)
class HeldOutShare:
    """What is kept from training: a share of the groups, drawn by the seed."""

    share: float = 0.2
    seed: int = 0


def train_and_measure(
    labelled: LabelledTexts, head: Head, train: Callable[[LabelledTexts], J], kept: HeldOutShare = HeldOutShare()
) -> J:
    """`train` makes a judge of the texts that it is given: a function such as `lambda texts: train_fasttext(texts,
    head, recipe)`."""
    outside = held_out(labelled, kept.share, kept.seed)
    copies = ~outside & _members(labelled.texts, outside)  # mirrors: no training sees a held-out text
    for name, mask in (("training", ~outside & ~copies), ("the held-out texts", outside)):
        if not mask.any():
            raise JudgeError(
                f"nothing is left for {name}: {len(labelled):,} texts have too few groups, or are copies of held-out "
                "ones; name another group, share or seed"
            )
    inside = labelled.take(~outside & ~copies)
    for label in sorted(set(labelled.labels.to_pylist()) - set(inside.labels.to_pylist())) if head.labels else ():
        raise JudgeError(
            f"every text with the label {label!r} is of a group that is held out, or a copy of such a text; name "
            "another group, share or seed"
        )
    judge = train(inside)
    facts = judge.card
    measured = facts.metrics | {head.name: held_out_metrics(judge, head, labelled.take(outside))}
    counts = {"texts": int(outside.sum()), "copies_left_out": int(copies.sum())}
    training = facts.training | {"held_out": {"share": kept.share, "seed": kept.seed, **counts}}
    return replace(judge, card=replace(facts, metrics=measured, training=training))  # type: ignore[type-var]


def _members(texts: pa.Array, some: Array) -> Array:
    """bool_N: which texts are equal to one of `some`."""
    equal = pc.is_in(texts, value_set=texts.filter(pa.array(some)))
    return np.asarray(equal.to_numpy(zero_copy_only=False), bool)


def sharpened(judge: J, labelled: LabelledTexts, head: Head, train: Callable[[LabelledTexts], J], seed: int = 0) -> J:
    """The judge with probabilities that are as often right as they say: by how sure two judges, each of one half of the
    groups, were of the other half. As it is, where a half lacks a label, or the kind of judge cannot be changed."""
    if type(judge).sharper is Judge.sharper:
        return judge
    half = folds_of(labelled, 2, seed)
    sides = [labelled.take(half == side) for side in (0, 1)]
    if any(set(side.labels.to_pylist()) != set(head.labels) for side in sides):
        return judge
    chances = [train(own).outputs(other.texts)[head.name] for own, other in (sides, sides[::-1])]
    truth = np.concatenate([side.numbers(head) for side in sides[::-1]])
    factor = fit_sharpness(np.concatenate(chances), truth)
    changed = judge.sharper(factor)
    card = replace(changed.card, training=changed.card.training | {"sharpness": factor})
    return replace(changed, card=card)  # type: ignore[type-var]


def held_out_metrics(judge: Judge, head: Head, labelled: LabelledTexts) -> Json:
    """What a judge that was not trained on these texts makes of them."""
    outputs = judge.outputs(labelled.texts)[head.name]
    if head.kind == "regression":
        return regression_metrics(labelled.labels.to_numpy(zero_copy_only=False), outputs, labelled.weights)
    numbers = _numbers(labelled, head)
    if head.kind == "classes":
        return class_metrics(numbers, outputs, head.labels, labelled.weights)
    if head.kind == "labels":
        return label_metrics(numbers, outputs, head.labels, labelled.weights)
    by_length = auc_of_length(numbers == 1, labelled.texts, labelled.weights)
    return probability_metrics(numbers == 1, outputs, labelled.weights) | {"auc_of_length": by_length}


def _numbers(labelled: LabelledTexts, head: Head) -> np.ndarray[Any, np.dtype[np.int64]]:
    """As `LabelledTexts.numbers`, but held-out texts need not have every label."""
    return np.array([head.labels.index(label) for label in labelled.labels.to_pylist()], np.int64)
