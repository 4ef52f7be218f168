"""`parallel: auto`: which layout trains a model fastest on the cards that there are.

Every choice of `CHOICES` is combined with every other; a field that was set has that one choice. Of the layouts that
`gristmill.trainer.step.stepper` accepts and whose predicted memory leaves a share of the card free, the fastest by
`costs.py` is taken, and of those within 2 % of it the simplest: that whose choices come first. A
dimension more is a line of `CHOICES`, terms in `memory_of` and `costs`, and what cannot be in `_impossible`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from gristmill.trainer.model.shapes import DecoderShape
from gristmill.trainer.parallel.cards import GB, Cards
from gristmill.trainer.parallel.costs import (
    DocumentLengths,
    Seconds,
    host_memory,
    rank_memory,
    ranks_of_data,
    update_seconds,
)
from gristmill.trainer.run.batch_search import SPARE, divisors
from gristmill.trainer.run.settings import Training, layout_faults

WITHIN = 0.02  # of the best time: the costs are no finer
SHORTEST_PART = 512  # tokens of a row that ranks share, for each of them
MOST_CARDS = 1 << 14  # that a refusal looks for


class NoLayout(ValueError):
    """Nothing fits; says what would be needed."""


@dataclass(frozen=True)
class Task:
    """What is to be laid out. `fields` were set and are kept."""

    shape: DecoderShape
    training: Training
    cards: Cards
    row_length: int
    documents: DocumentLengths
    fields: frozenset[str] = frozenset()
    fused_linears: bool = False

    @property
    def room(self) -> float:
        return (1 - SPARE) * self.cards.memory_gb * GB


@dataclass(frozen=True)
class Candidate:
    """Its settings, and what it would take; `peak` in bytes of a rank."""

    settings: Mapping[str, Any]
    peak: int
    seconds: Seconds


@dataclass(frozen=True)
class Layout:
    """What was chosen, and why, in lines."""

    training: Training
    candidate: Candidate
    why: list[str]


def _powers(most: int) -> list[int]:
    return [1 << n for n in range(max(1, most.bit_length()))]


def _experts(task: Task) -> int:
    mixture = task.shape.experts
    return mixture.number if mixture else 1


# In each line the simplest first; of the lines, what costs most to have comes first.
CHOICES: dict[str, Callable[[Task], Sequence[Any]]] = {
    "offload": lambda task: [False, True],
    "pipeline": lambda task: _powers(min(task.shape.layers, task.cards.count)),
    "experts": lambda task: _powers(min(task.cards.count, _experts(task))),
    "tensor": lambda task: _powers(task.cards.per_host),
    "context": lambda task: _powers(min(task.cards.count, task.row_length // SHORTEST_PART)),
    "replicas": lambda task: divisors(task.cards.hosts),
    "recompute": lambda task: ["none", "selective", "full"],
    "zero": lambda task: [0, 1, 2, 3],
}


def choose(task: Task) -> Layout:
    """NoLayout where nothing fits."""
    candidates = list(_candidates(task))
    fitting = [one for one in candidates if one.peak <= task.room]
    if not fitting:
        raise NoLayout(_refusal(task, candidates))
    # How fast a processor steps is not known: `offload` is for what does not fit otherwise.
    fitting = [one for one in fitting if not one.settings["offload"]] or fitting
    fastest = min(one.seconds.total for one in fitting)
    best = next(one for one in _simplest_first(fitting) if one.seconds.total <= fastest * (1 + WITHIN))
    return Layout(replace(task.training, **best.settings), best, _why(task, candidates, best))


def _choices(task: Task) -> dict[str, Sequence[Any]]:
    """What each field may be."""
    given = task.training
    return {name: [getattr(given, name)] if name in task.fields else choices(task) for name, choices in CHOICES.items()}


def _candidates(task: Task) -> Iterator[Candidate]:
    choices = _choices(task)
    for values in product(*choices.values()):
        settings = dict(zip(choices, values, strict=True))
        training = copy(task.training)
        vars(training).update(settings, rows_per_step=None)  # what is chosen is checked, at the end
        if _impossible(task, training):
            continue
        rows = task.training.rows_per_update * training.context // ranks_of_data(training, task.cards.count)
        steps = [task.training.rows_per_step] if "rows_per_step" in task.fields else divisors(rows)
        for step in steps:
            if step is None or rows % step:
                continue
            vars(training).update(rows_per_step=step)
            memory = rank_memory(
                task.shape, training, task.cards.count, task.row_length, step, fused_linears=task.fused_linears
            )
            seconds = update_seconds(
                task.shape, training, task.cards, task.row_length, task.documents, step, task.fused_linears
            )
            yield Candidate({**settings, "rows_per_step": step}, memory.peak, seconds)


def _impossible(task: Task, training: Training) -> bool:
    """What no run accepts, and what equals a simpler layout."""
    cards, shape = task.cards, task.shape
    R = training.replicas
    if training.pipeline > 1 and (training.zero >= 2 or R > 1):  # what `Training` refuses itself
        return True
    if next(layout_faults(training, shape, cards.count, task.row_length), None) is not None:
        return True
    if host_memory(shape, training, cards) > (1 - SPARE) * cards.host_memory_gb * GB:
        return True
    shards = ranks_of_data(training, cards.count) // R
    if "zero" not in task.fields and training.zero and shards == 1:
        return True
    return R > 1 and "replicas" not in task.fields and (shards * training.tensor) % cards.per_host != 0


def _simplest_first(candidates: Sequence[Candidate]) -> list[Candidate]:
    """By the order of choices; the smallest step that is as fast last of all."""

    def order(one: Candidate) -> list[int]:
        ranks = {"none": 0, "selective": 1, "full": 2}
        return [ranks[value] if isinstance(value, str) else int(value) for value in one.settings.values()]

    return sorted(candidates, key=order)


# --- why -------------------------------------------------------------------------------------------------------------


def _why(task: Task, candidates: Sequence[Candidate], best: Candidate) -> list[str]:
    """What each field's other values would have cost, all other fields being free."""
    fits = sum(one.peak <= task.room for one in candidates)
    lines = [
        f"{task.cards}",
        f"{best.peak / GB:.1f} GB of a rank, {SPARE:.0%} of {task.cards.memory_gb:.0f} left free",
        f"{_time(best.seconds.total)} an update: {_time(best.seconds.work)} work, {_time(best.seconds.exchanges)} "
        f"exchanges ({_time(best.seconds.hidden)} more hide), {_time(best.seconds.optimizer)} optimiser",
        f"{len(candidates):,} layouts considered, {len(candidates) - fits:,} do not fit",
    ]
    for name in [*_choices(task), "rows_per_step"]:
        value = best.settings[name]
        said = f"{name} {_word(value)}"
        if name in task.fields:
            lines.append(f"{said}: set")
            continue
        # Others are of the same kind, and where all fit without, `offload` is no question.
        like = [one for one in candidates if name == "offload" or one.settings["offload"] == best.settings["offload"]]
        others = _others(task, like, best, name)
        if others and said != "offload no":
            lines.append(f"{said}: {'; '.join(others)}")
    return lines


def _others(task: Task, candidates: Sequence[Candidate], best: Candidate, name: str) -> list[str]:
    by_value: dict[Any, list[Candidate]] = {}
    for one in candidates:
        by_value.setdefault(one.settings[name], []).append(one)
    value = best.settings[name]
    near = [other for other in by_value if other != value]
    if name == "rows_per_step":  # the next ones
        same = [one for one in candidates if all(one.settings[k] == v for k, v in best.settings.items() if k != name)]
        by_value = {one.settings[name]: [one] for one in same}
        near = [*[v for v in by_value if v < value][-1:], *[v for v in by_value if v > value][:1]]
    lines = []
    for other in near:
        fitting = [one.seconds.total for one in by_value[other] if one.peak <= task.room]
        if fitting:
            slower = min(fitting) / best.seconds.total - 1
            than = "as fast" if abs(slower) < 0.005 else f"{abs(slower):.0%} {'slower' if slower > 0 else 'faster'}"
            lines.append(f"{_word(other)} {than}")
        else:
            lines.append(f"{_word(other)} takes {min(one.peak for one in by_value[other]) / GB:.1f} GB")
    return lines


def _refusal(task: Task, candidates: Sequence[Candidate]) -> str:
    cards = task.cards
    names = [name for name in [*CHOICES, "rows_per_step"] if name in task.fields]
    fixed = ", ".join(f"{name} {_word(getattr(task.training, name))}" for name in names)
    kept = f" with {fixed}" if fixed else ""
    if not candidates:
        return (
            f"no layout of {task.training.rows_per_update:,} rows an update over {cards.count:,} cards{kept} is one "
            "that a run accepts; take rows_per_update as a multiple of the cards, or set fewer fields"
        )
    least = min(candidates, key=lambda one: one.peak)
    settings = ", ".join(f"{name} {_word(value)}" for name, value in least.settings.items() if value not in (1, False))
    needed = least.peak / (1 - SPARE) / GB
    return (
        f"{task.shape.parameters:,} parameters and rows of {task.row_length:,} tokens fit no layout of {cards}{kept}. "
        f"The least that a rank takes is {least.peak / GB:.1f} GB ({settings}), and {SPARE:.0%} of a card stay free: "
        f"it would take cards of {needed:.0f} GB{_more_cards(task)}"
    )


def _more_cards(task: Task) -> str:
    cards = task.cards
    for times in _powers(MOST_CARDS // cards.count)[1:]:
        count = cards.count * times
        more = replace(cards, count=count, per_host=max(cards.per_host, min(8, count)))
        rows = max(task.training.rows_per_update, count)
        wider = replace(task, cards=more, training=replace(task.training, rows_per_update=rows))
        if any(one.peak <= task.room for one in _candidates(wider)):
            return f", or {count:,} of these"
    return ""


def _word(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.0f} ms"
