"""A judge that improves its own training set, as Ultra-FineWeb does (Wang et al. 2025): classify, sample, verify,
retrain, in rounds.

What is published is that the predictions of one round feed the next, and that seeds are verified. How many rounds, from
which scores samples are drawn, and how many, is not: those numbers here are ours. A round scores a pool, draws
candidates from its top and its bottom, has them verified (the marks of a language model or of another judge, or nobody
but the next step), trains anew and is kept if the held-out figure does not fall.

Held-out groups never give a candidate, and no candidate is a near copy of a text that is there. The held-out texts are
two halves: one decides which rounds are kept, and the other is only measured, since a figure that chose among rounds
flatters the chosen one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import pyarrow as pa

from gristmill.classifiers.card import Head, Json, JudgeError
from gristmill.classifiers.judge import Judge
from gristmill.classifiers.teaching.agreement import classes_of
from gristmill.classifiers.teaching.copies import STAYS, USUAL, Alike, fates
from gristmill.classifiers.teaching.passages import text_hashes
from gristmill.classifiers.teaching.seed_draws import smallest
from gristmill.classifiers.training import held_out_metrics
from gristmill.classifiers.training_sets import LabelledTexts, held_out
from gristmill.kernels.base.types import Array

Train = Callable[[LabelledTexts], Judge]
Verifier = Callable[[pa.Table], pa.Array]
"""Of candidates (text, group, row, score, proposed) the label of each; null leaves it out."""


@dataclass(frozen=True)
class IterationRecipe:
    """Settings of rounds, checked by the plan (`iterate`)."""

    rounds: int = 3
    candidates: int = 1000  # of a round, half from the top and half from the bottom
    top: float = 0.1  # share of the pool, by score
    bottom: float = 0.1
    metric: str = "auc"  # of `held_out_metrics`; higher is better
    patience: int = 1  # rounds in a row without a gain, after which it ends
    held_out: float = 0.2
    alike: Alike = USUAL
    seed: int = 0


@dataclass(frozen=True)
class Iterated:
    """`training`: the texts that `judge` was trained on. `rounds`: one line each, the first (0) of the set at the
    start."""

    judge: Judge
    training: LabelledTexts
    rounds: list[Json]


def as_proposed(candidates: pa.Table) -> pa.Array:
    """Nobody verifies; what the held-out figure says is all."""
    return candidates["proposed"]


def by_marks(mark: Callable[[pa.Array], Array], head: Head, cuts: Sequence[float]) -> Verifier:
    """Labels by the marks of a language model, say; NaN (not readable) leaves a text out. A candidate from the top that
    is marked badly becomes a hard negative."""
    if len(cuts) != len(head.labels) - 1:
        raise JudgeError(
            f"head {head.name} has {len(head.labels)} labels: {len(head.labels) - 1} cuts are needed, not {len(cuts)}"
        )

    def verify(candidates: pa.Table) -> pa.Array:
        marks = np.asarray(mark(candidates["text"].combine_chunks()), np.float64)
        classes = classes_of(np.nan_to_num(marks), cuts)
        return pa.array([head.labels[c] for c in classes], pa.string(), mask=~np.isfinite(marks))

    return verify


def iterate(
    start: LabelledTexts, pool: pa.Table, head: Head, train: Train, verify: Verifier, recipe: IterationRecipe,
    log: Callable[[Json], None] = lambda line: None,
) -> Iterated:  # fmt: skip
    """`pool`: text, and group where `start` has groups; prepared as `start` is (passages of the same length). `start`
    has no near copies of its own texts, as `seeds.training_set` makes it."""
    if head.kind == "regression":
        raise JudgeError(f"head {head.name} is a regression; rounds add labels")
    if head.kind == "labels":
        raise JudgeError(f"head {head.name} has labels without an order; rounds take from the best and the worst")
    for column in ("text", *(["group"] if start.groups is not None else [])):
        if column not in pool.column_names:
            raise JudgeError(f"the pool has no column {column!r}; it has {', '.join(pool.column_names)}")
    outside = held_out(start, recipe.held_out, recipe.seed)
    kept_out = start.take(outside)
    deciding = held_out(kept_out, 0.5, recipe.seed + 1)
    gate, test = kept_out.take(deciding), kept_out.take(~deciding)
    if not len(gate) or not len(test):
        raise JudgeError(f"{len(kept_out):,} held-out texts have too few groups for two halves: hold out more")
    texts = pool["text"].cast(pa.large_string()).fill_null("").combine_chunks()
    groups = _groups(pool, texts, start)
    names = set(_names(kept_out))  # numpy compares objects each with each
    free = np.array([group not in names for group in groups.tolist()], np.bool_)
    training = start.take(~outside)
    judge = train(training)
    value = _figure(judge, head, gate, recipe)
    best, idle = value, 0
    rounds = [_line(0, True, value, None, _figure(judge, head, test, recipe), training, {})]
    log(rounds[-1])
    for number in range(1, recipe.rounds + 1):
        scores = judge.score(texts)[head.name]
        picked, facts = _candidates(texts, scores, free, training, kept_out, recipe, number)
        free[picked.rows] = False
        fresh = np.flatnonzero(picked.fresh)
        rows = picked.rows[fresh]
        proposed = pa.array([head.labels[-1] if up else head.labels[0] for up in picked.from_top[fresh]], pa.string())
        candidates = pa.table(
            {
                "text": texts.take(pa.array(rows)),
                "group": pa.array(groups[rows].tolist(), pa.string()),
                "row": pa.array(rows),
                "score": pa.array(scores[rows]),
                "proposed": proposed,
            }
        )
        added = _select_verified(candidates, _verify(verify, candidates, head), head, recipe, number, facts)
        if not len(added):
            idle += 1
            rounds.append({"round": number, "kept": False, **facts})
            if _log_round(rounds[-1], idle, recipe, log):
                break
            continue
        larger = _concatenate(training, added)
        rival = train(larger)
        figure = _figure(rival, head, gate, recipe)
        kept = figure >= best
        rounds.append(_line(number, kept, figure, best, _figure(rival, head, test, recipe), larger, facts))
        idle = 0 if kept and figure > best else idle + 1
        if kept:
            judge, training, best = rival, larger, figure
        if _log_round(rounds[-1], idle, recipe, log):
            break
    card = judge.card
    facts_of_training = card.training | {"rounds": rounds, "iteration": asdict(recipe)}
    card = replace(
        card, metrics=card.metrics | {head.name: held_out_metrics(judge, head, test)}, training=facts_of_training
    )
    return Iterated(replace(judge, card=card), training, rounds)  # type: ignore[type-var]


@dataclass(frozen=True)
class _Picked:
    rows: Array  # of the pool
    from_top: Array
    fresh: Array  # is it no copy of what is there?


def _candidates(
    texts: pa.Array,
    scores: Array,
    free: Array,
    training: LabelledTexts,
    kept_out: LabelledTexts,
    recipe: IterationRecipe,
    number: int,
) -> tuple[_Picked, Json]:
    """From the top and the bottom of what is free, by the smallest hashes of this round; equal scores are in the order
    of the hashes."""
    rows = np.flatnonzero(free)
    draw = text_hashes(texts.take(pa.array(rows)), recipe.seed + number)
    order = np.lexsort((draw, scores[rows]))
    bottom, top = (
        order[: int(len(order) * share)] for order, share in ((order, recipe.bottom), (order[::-1], recipe.top))
    )
    wanted = recipe.candidates // 2
    ends = [end[smallest(draw[end], wanted)] for end in (top, bottom)]
    picked = rows[np.concatenate(ends)]
    from_top = np.arange(len(picked)) < len(ends[0])
    there = pa.concat_arrays([training.texts, kept_out.texts, texts.take(pa.array(picked))])
    fresh = fates(there, np.zeros(len(there), np.int64), alike=recipe.alike)[len(there) - len(picked) :] == STAYS
    return _Picked(picked, from_top, fresh), {
        "pool": len(rows),
        "candidates": len(picked),
        "copies": int((~fresh).sum()),
    }


def _verify(verify: Verifier, candidates: pa.Table, head: Head) -> list[str | None]:
    if not len(candidates):
        return []
    labels: list[str | None] = verify(candidates).to_pylist()
    if len(labels) != len(candidates):
        raise JudgeError(f"the verifier said something of {len(labels):,} texts; there were {len(candidates):,}")
    strange = set(labels) - {None, *head.labels}
    if strange:
        raise JudgeError(
            f"the verifier says {sorted(map(str, strange))[0]!r}; head {head.name} has {', '.join(head.labels)}"
        )
    return labels


def _select_verified(
    candidates: pa.Table, verified: list[str | None], head: Head, recipe: IterationRecipe, number: int, facts: Json
) -> LabelledTexts:
    counts = Counter(label for label in verified if label is not None)
    most = min(counts[head.labels[0]], counts[head.labels[-1]])
    hashes = text_hashes(candidates["text"], recipe.seed + number)
    chosen: list[int] = []
    for label in head.labels:
        of_label = np.array([i for i, label_given in enumerate(verified) if label_given == label], np.int64)
        chosen += of_label[smallest(hashes[of_label], most)].tolist()
    chosen.sort()
    proposed = candidates["proposed"].to_pylist()
    facts |= {
        "refused": sum(label is None for label in verified),
        "turned": sum(label not in (None, was) for label, was in zip(verified, proposed, strict=True)),
        "verified": {label: counts[label] for label in head.labels},
        "added": dict(Counter(verified[i] for i in chosen)),
    }
    rows = pa.array(chosen, pa.int64())
    labels = pa.array([verified[i] for i in chosen], pa.string())
    column = candidates["text"].combine_chunks()
    return LabelledTexts(column.take(rows), labels, None, candidates["group"].combine_chunks().take(rows))


def _concatenate(training: LabelledTexts, added: LabelledTexts) -> LabelledTexts:
    groups = None
    if training.groups is not None and added.groups is not None:
        groups = pa.concat_arrays([training.groups.cast(pa.string()), added.groups])
    weights = None if training.weights is None else np.concatenate([training.weights, np.ones(len(added))])
    return LabelledTexts(
        pa.concat_arrays([training.texts, added.texts]),
        pa.concat_arrays([training.labels, added.labels]),
        weights,
        groups,
    )


def _groups(pool: pa.Table, texts: pa.Array, start: LabelledTexts) -> Array:
    """Without groups a text is its own, as it is for `held_out`; its hash stands for it."""
    if start.groups is not None:
        return np.array([str(name) for name in pool["group"].to_pylist()], object)
    return np.array([f"{digest:016x}" for digest in text_hashes(texts, 0).tolist()], object)


def _names(kept_out: LabelledTexts) -> list[str]:
    if kept_out.groups is not None:
        return list(dict.fromkeys(kept_out.groups.to_pylist()))
    return [f"{digest:016x}" for digest in text_hashes(kept_out.texts, 0).tolist()]


def _log_round(line: Json, idle: int, recipe: IterationRecipe, log: Callable[[Json], None]) -> bool:
    """Log a round; is it the last?"""
    ends = idle >= recipe.patience
    if ends:
        line["ended"] = "nothing was gained"
    log(line)
    return ends


def _figure(judge: Judge, head: Head, texts: LabelledTexts, recipe: IterationRecipe) -> float:
    metrics = held_out_metrics(judge, head, texts)
    if not isinstance(value := metrics.get(recipe.metric), float):
        named = ", ".join(name for name, figure in metrics.items() if isinstance(figure, float))
        raise JudgeError(f"{recipe.metric!r} is no figure of these {len(texts):,} held-out texts; there are {named}")
    return value


def _line(
    number: int, kept: bool, gate: float, best: float | None, test: float, training: LabelledTexts, facts: Json
) -> Json:
    line: Json = {
        "round": number,
        "kept": kept,
        "gate": gate,
        "gain": None if best is None else gate - best,
        "test": test,
    }
    return line | facts | {"texts": len(training), "fingerprint": training.fingerprint}
