"""`parallel: auto`: the fastest layout of a run that fits on the cards.

Layouts are ordered by what their choices cost, as measured on H200s (docs/training.md: `SLOWER` has the figures), and
the first whose predicted memory leaves a share of the card free is taken. A field that was set has that one choice.
Shards stay inside a host, and hosts are replicas, as long as that fits. `offload` is for what fits in no other way.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass as plain_dataclass, replace
from itertools import product
from typing import Annotated, Any

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from gristmill.trainer.checked import CHECKED, Count, from_json
from gristmill.trainer.model.shapes import DecoderShape
from gristmill.trainer.parallel.memory import host_memory, rank_memory, ranks_of_data
from gristmill.trainer.run.batch_search import SPARE, divisors
from gristmill.trainer.run.settings import Training, layout_faults

GB = 1e9
SHORTEST_PART = 512  # tokens of a row that ranks share, for each of them
HALF_TOKENS = 500  # of a step, at which half the speed is lost
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class NoLayout(ValueError):
    """Nothing fits; says what would be needed."""


@dataclass(frozen=True, config=CHECKED)
class Cards:
    """The GPUs of a run: `memory_gb` of each (1e9 bytes), `per_host` of them on a host, whose memory is what `offload`
    has."""

    count: Count
    memory_gb: Positive
    per_host: Count = 8
    host_memory_gb: Positive = 1000.0

    def __post_init__(self) -> None:
        if self.per_host > self.count:
            object.__setattr__(self, "per_host", self.count)
        if self.count % self.per_host:
            raise ValueError(f"count {self.count:,} is no multiple of per_host {self.per_host:,}")

    @property
    def hosts(self) -> int:
        return self.count // self.per_host

    def __str__(self) -> str:
        places = f"{self.hosts:,} hosts of {self.per_host:,}" if self.hosts > 1 else "one host"
        return f"{self.count:,} cards of {self.memory_gb:.0f} GB, {places}"


def cards_from(given: dict[str, Any], count: int) -> Cards:
    """What was given, and the rest from this machine, of which the run has `count` ranks; without GPUs, ranks share the
    processor's memory. Where another count is given, the cards are elsewhere."""
    from_json(Cards, {"count": count, "memory_gb": 1.0, "per_host": 1, **given}, "cards")  # names and numbers are right
    gpus = torch.cuda.is_available()
    if "count" not in given or (gpus and given["count"] == count):
        per_host = int(os.environ.get("LOCAL_WORLD_SIZE", count))
        host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GB
        card = (
            torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory / GB if gpus else host / per_host
        )
        given = {"per_host": per_host, "memory_gb": card, "host_memory_gb": host, **given}
    elif "memory_gb" not in given:
        raise ValueError("cards.memory_gb: is missing: of one card, in GB")
    return from_json(Cards, {"count": count, **given}, "cards")


@plain_dataclass(frozen=True)
class Task:
    """What is to be laid out. `fields` were set and are kept."""

    shape: DecoderShape
    training: Training
    cards: Cards
    row_length: int
    fields: frozenset[str] = frozenset()
    fused_linears: bool = False

    @property
    def room(self) -> float:
        return (1 - SPARE) * self.cards.memory_gb * GB


@plain_dataclass(frozen=True)
class Layout:
    """What was chosen, the bytes of a rank, and why, in lines."""

    training: Training
    peak: int
    why: list[str]


def _powers(most: int) -> list[int]:
    return [1 << n for n in range(max(1, most.bit_length()))]


CHOICES: dict[str, Callable[[Task], Sequence[Any]]] = {
    "offload": lambda task: [False, True],
    "pipeline": lambda task: _powers(min(task.shape.layers, task.cards.count)),
    "experts": lambda task: _powers(min(task.cards.count, task.shape.experts.number if task.shape.experts else 1)),
    "tensor": lambda task: _powers(task.cards.per_host),
    "context": lambda task: _powers(min(task.cards.count, task.row_length // SHORTEST_PART)),
    "replicas": lambda task: divisors(task.cards.hosts),
    "recompute": lambda task: ["none", "selective", "full"],
    "zero": lambda task: [0, 1, 2, 3],
}

# Seconds of an update over those of the first choice: 1.3b and 4b-a1.3b on one, two and four H200s.
SLOWER: dict[str, Callable[[Any], float]] = {
    "offload": lambda given: 10.0 if given else 1.0,
    "pipeline": lambda parts: 1.08 ** math.log2(parts),
    "experts": lambda ranks: 1.14 if ranks > 1 else 1.0,
    "tensor": lambda ranks: 1.3 ** math.log2(ranks),
    "context": lambda ranks: 1.03 ** math.log2(ranks),
    "recompute": lambda kind: {"none": 1.0, "selective": 1.03, "full": 1.33}[kind],
    "zero": lambda stage: {0: 1.0, 1: 1.008, 2: 1.013, 3: 1.02}[stage],
}
ACROSS_HOSTS = 1.1  # shards that do not stay inside a host


def choose(task: Task) -> Layout:
    """NoLayout where nothing fits."""
    candidates = sorted(_candidates(task), key=lambda training: _slowness(task, training))
    least: tuple[int, Training] | None = None
    for number, training in enumerate(candidates):
        peak = _peak(task, training)
        if peak <= task.room:
            why = [
                f"{task.cards}",
                ", ".join(f"{name} {_word(getattr(training, name))}" for name in [*CHOICES, "rows_per_step"]),
                f"{peak / GB:.1f} GB of a rank, {SPARE:.0%} of {task.cards.memory_gb:.0f} left free",
                f"{len(candidates):,} layouts considered; {number:,} are faster and do not fit"
                + (f", the smallest of them takes {least[0] / GB:.1f} GB" if least else ""),
            ]
            return Layout(replace(training), peak, why)
        if least is None or peak < least[0]:
            least = peak, training
    raise NoLayout(_refusal(task, least))


def _candidates(task: Task) -> Iterator[Training]:
    given = task.training
    choices = {
        name: [getattr(given, name)] if name in task.fields else choices(task) for name, choices in CHOICES.items()
    }
    for values in product(*choices.values()):
        training = copy(given)
        vars(training).update(zip(choices, values, strict=True), rows_per_step=None)  # the chosen one is checked
        if _impossible(task, training):
            continue
        rows = given.rows_per_update * training.context // ranks_of_data(training, task.cards.count)
        for step in [given.rows_per_step] if "rows_per_step" in task.fields else divisors(rows):
            if step is not None and rows % step == 0:
                layout = copy(training)
                vars(layout).update(rows_per_step=step)
                yield layout


def _impossible(task: Task, training: Training) -> bool:
    """What no run accepts, and what equals a simpler layout."""
    cards, replicas = task.cards, training.replicas
    if training.pipeline > 1 and (training.zero >= 2 or replicas > 1):  # what `Training` refuses itself
        return True
    if next(layout_faults(training, task.shape, cards.count, task.row_length), None) is not None:
        return True
    if host_memory(task.shape, training, cards.count, cards.per_host) > (1 - SPARE) * cards.host_memory_gb * GB:
        return True
    shards = ranks_of_data(training, cards.count) // replicas
    if "zero" not in task.fields and training.zero and shards == 1:
        return True
    if replicas == 1 or "replicas" in task.fields:
        return False
    return training.zero == 0 or (shards * training.tensor) % cards.per_host != 0


def _slowness(task: Task, training: Training) -> float:
    tokens = (training.rows_per_step or 1) * task.row_length / training.context
    apart = ACROSS_HOSTS if training.zero and training.replicas < task.cards.hosts else 1.0
    return (
        math.prod(slower(getattr(training, name)) for name, slower in SLOWER.items())
        * apart
        * (1 + HALF_TOKENS / tokens)
    )


def _peak(task: Task, training: Training) -> int:
    step = training.rows_per_step or 1
    return rank_memory(task.shape, training, task.cards.count, task.row_length, step, task.fused_linears).peak


def _refusal(task: Task, least: tuple[int, Training] | None) -> str:
    cards, names = task.cards, [*CHOICES, "rows_per_step"]
    fixed = ", ".join(f"{name} {_word(getattr(task.training, name))}" for name in names if name in task.fields)
    kept = f" with {fixed}" if fixed else ""
    if least is None:
        return (
            f"no layout of {task.training.rows_per_update:,} rows an update over {cards.count:,} cards{kept} is one "
            "that a run accepts; take rows_per_update as a multiple of the cards, or set fewer fields"
        )
    peak, training = least
    settings = ", ".join(
        f"{name} {_word(value)}" for name in names if (value := getattr(training, name)) not in (1, False)
    )
    return (
        f"{task.shape.parameters:,} parameters and rows of {task.row_length:,} tokens fit no layout of {cards}{kept}. "
        f"The least that a rank takes is {peak / GB:.1f} GB ({settings}), and {SPARE:.0%} of a card stay free: it would "
        f"take cards of {peak / (1 - SPARE) / GB:.0f} GB, or more of them"
    )


def _word(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
