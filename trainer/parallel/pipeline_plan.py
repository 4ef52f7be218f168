"""Pipelines: which blocks each rank holds, and in which order it works on micro-batches.

A stage is a run of neighbouring blocks; a rank holds one stage or two. Work is counted in multiplications of a token,
so the head weighs as much as a block or two, and the embedding nothing. Forward and backward passes come in the order
of the papers. Weight gradients that wait are put where a rank would else be idle, by a simulation with the work of
these stages.

| schedule | stages of a rank | backward | micro-batches whose activations a rank keeps | idle, of the work |
| --- | --- | --- | --- | --- |
| 1f1b | one | whole | P - rank | (P - 1) / M |
| interleaved | two, P apart | whole | up to 1.5 P | half of that |
| zb1p | one | inputs first, weights when there is time | P | a third |
| zbv | two, as a V | the same | P | near none |

P ranks, M micro-batches, stages of equal work; 1F1B is of Narayanan et al. 2019, interleaved of 2021, zb1p is ZB-H1 of
Qi et al. 2024 and zbv their V.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, pairwise
from typing import Literal, NamedTuple

from gristmill.trainer.model.shapes import DecoderShape
from gristmill.trainer.run.settings import SPLIT, TWO_STAGES, Schedule, Training

Kind = Literal["forward", "backward", "weights"]

ROUNDS = 4  # of as many micro-batches as ranks, after which all that follow are alike


class Action(NamedTuple):
    """Of one stage on one micro-batch. Where weight gradients wait, `backward` is that of inputs alone."""

    kind: Kind
    stage: int
    micro: int


@dataclass(frozen=True)
class Plan:
    """`layers` are the blocks of each stage, first and end; `rank_of` its rank."""

    schedule: Schedule
    ranks: int
    layers: tuple[tuple[int, int], ...]
    work: tuple[float, ...]  # of a token, by stage
    head: float  # what of it is the head's

    @property
    def rank_of(self) -> tuple[int, ...]:
        return ranks_of(self.schedule, self.ranks)

    @property
    def last(self) -> int:
        return len(self.layers) - 1

    def stages(self, rank: int) -> list[int]:
        return [stage for stage, of in enumerate(self.rank_of) if of == rank]

    def held(self, rank: int) -> list[int]:
        """A rank's blocks."""
        return [layer for stage in self.stages(rank) for layer in range(*self.layers[stage])]

    def orders(self, micros: int) -> tuple[tuple[Action, ...], ...]:
        """What each rank does for an update of so many micro-batches."""
        return _simulate(self, micros)[0]

    def kept(self, micros: int) -> tuple[frozenset[tuple[int, int]], ...]:
        """Of each rank, the moments at which it keeps most: of how many blocks what their backward pass needs, and of
        how many what weight gradients that wait do."""
        return _kept(self, self._few(micros))

    def _few(self, micros: int) -> int:
        """Which show what more of them do."""
        return micros if micros <= (ROUNDS + 1) * self.ranks else ROUNDS * self.ranks + micros % self.ranks


def ranks_of(schedule: Schedule, ranks: int) -> tuple[int, ...]:
    """Of each stage."""
    once = tuple(range(ranks))
    return (*once, *(reversed(once) if schedule == "zbv" else once)) if schedule in TWO_STAGES else once


@lru_cache(maxsize=64)
def plan_for(shape: DecoderShape, ranks: int, schedule: Schedule) -> Plan:
    rank_of = ranks_of(schedule, ranks)
    works = [block_work(shape, layer) for layer in range(shape.layers)]
    ends = _cut(works, head_work(shape), rank_of)
    layers = tuple(pairwise(ends))
    return Plan(schedule, ranks, layers, tuple(_stage_work(works, head_work(shape), ends)), head_work(shape))


def schedule_for(training: Training, shape: DecoderShape) -> Schedule:
    """The given one, or the quickest on H200s (docs/training.md): on two ranks all are about as fast, and 1f1b keeps
    least."""
    if training.pipeline_schedule is not None or training.pipeline <= 2:
        return training.pipeline_schedule or "1f1b"
    two_stages = shape.layers >= 2 * training.pipeline
    quickest: tuple[Schedule, ...] = ("zbv", "interleaved") if two_stages else ("zb1p", "1f1b")
    return next(schedule for schedule in quickest if schedule in training.schedules_allowed)


def block_work(shape: DecoderShape, layer: int) -> float:
    """Multiplications of a token's forward pass; attention as if documents were half a context long."""
    matrices = shape.hidden * (shape.head_size * (2 * shape.heads + 2 * shape.kv_heads) + 3 * shape.mlp)
    reach = min(shape.window(layer) or shape.context, shape.context / 4)
    return matrices + 2 * reach * shape.heads * shape.head_size


def head_work(shape: DecoderShape) -> float:
    return float(shape.vocabulary * shape.hidden)


# --- which blocks ----------------------------------------------------------------------------------------------------


def _cut(works: Sequence[float], head: float, rank_of: Sequence[int]) -> tuple[int, ...]:
    """Ends of the stages: the most loaded rank has least, then the most loaded stage. Boundaries move while that
    helps."""
    count = len(rank_of)
    ends = [len(works) * stage // count for stage in range(count + 1)]

    def load(ends: Sequence[int]) -> tuple[float, float, float]:
        stages = _stage_work(works, head, ends)
        ranks = [
            sum(work for work, of in zip(stages, rank_of, strict=True) if of == rank)
            for rank in range(max(rank_of) + 1)
        ]
        return max(ranks), max(stages), sum(work * work for work in stages)

    best = load(ends)
    while True:
        moved = [
            [*ends[:a], *(end + step for end in ends[a:b]), *ends[b:]]
            for a, b in combinations(range(1, count + 1), 2)
            for step in (-1, 1)
        ]
        moved = [each for each in moved if all(a < b for a, b in pairwise(each))]
        if not moved or (nearest := min(map(load, moved))) >= best:
            return tuple(ends)
        ends, best = min(moved, key=load), nearest


def _stage_work(works: Sequence[float], head: float, ends: Sequence[int]) -> list[float]:
    stages = [float(sum(works[a:b])) for a, b in pairwise(ends)]
    return [*stages[:-1], stages[-1] + head]


# --- in which order --------------------------------------------------------------------------------------------------


def _passes(plan: Plan, rank: int, micros: int) -> list[Action]:
    """A rank's forward and backward passes."""
    return _passes_of_v(plan, rank, micros) if plan.schedule == "zbv" else _one_forward_one_backward(plan, rank, micros)


def _one_forward_one_backward(plan: Plan, rank: int, micros: int) -> list[Action]:
    """Groups of micro-batches go through a rank's first stage and then its second, and back the other way."""
    P, stages = plan.ranks, plan.stages(rank)
    rounds = max(1, micros // P)
    ends = [-(-micros * number // rounds) for number in range(rounds + 1)]  # groups of P or, to come out even, more
    groups = [range(first, end) for first, end in pairwise(ends)]
    forward = [Action("forward", stage, micro) for group in groups for stage in stages for micro in group]
    backward = [Action("backward", stage, micro) for group in groups for stage in reversed(stages) for micro in group]
    ahead = P - 1 - rank if len(stages) == 1 else 2 * (P - 1 - rank) + max(map(len, groups))
    ahead = min(ahead, len(forward))
    pairs = [action for pair in zip(forward[ahead:], backward, strict=False) for action in pair]
    return [*forward[:ahead], *pairs, *backward[len(forward) - ahead :]]


def _passes_of_v(plan: Plan, rank: int, micros: int) -> list[Action]:
    P, (down, up) = plan.ranks, plan.stages(rank)
    kinds = [("forward", down)] * (2 * (P - rank) - 1)
    kinds += [("forward", up), ("forward", down)] * rank
    kinds += [("forward", up), ("backward", up)] * (P - rank)
    kinds += [("forward", down), ("backward", down), ("forward", up), ("backward", up)] * micros
    found, at = [], dict.fromkeys(kinds, 0)
    for kind in kinds:
        if at[kind] < micros:
            found.append(Action(kind[0], kind[1], at[kind]))  # type: ignore[arg-type]
            at[kind] += 1
    return found


@lru_cache(maxsize=32)
def _simulate(plan: Plan, micros: int) -> tuple[tuple[tuple[Action, ...], ...], float]:
    """Orders by rank, and when the last action ends."""
    if micros < 1:
        raise ValueError("an update has no micro-batch")
    ends: dict[Action, float] = {}
    ranks = [_Rank(plan, rank, micros) for rank in range(plan.ranks)]
    while any(rank.waiting for rank in ranks):
        if not any(rank.go_on(ends) for rank in ranks):
            raise RuntimeError(f"{plan.schedule} of {plan.ranks} ranks stands still: {ranks[0].waiting[:1]}")
    for rank in ranks:
        rank.do_rest()
    return tuple(tuple(rank.order) for rank in ranks), max(rank.time for rank in ranks)


@lru_cache(maxsize=1024)
def _kept(plan: Plan, micros: int) -> tuple[frozenset[tuple[int, int]], ...]:
    found = []
    for order in plan.orders(micros):
        blocks = waiting = 0
        moments: set[tuple[int, int]] = set()
        for kind, stage, _ in order:
            layers = plan.layers[stage][1] - plan.layers[stage][0]
            if kind == "weights":
                waiting -= layers
            else:
                blocks += layers if kind == "forward" else -layers
                waiting += layers if kind == "backward" and plan.schedule in SPLIT else 0
            moments.add((blocks, waiting))
        found.append(frozenset(one for one in moments if not any(_less(one, other) for other in moments)))
    return tuple(found)


def _less(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one != other and one[0] <= other[0] and one[1] <= other[1]


class _Rank:
    """One rank of a simulated update."""

    def __init__(self, plan: Plan, rank: int, micros: int) -> None:
        self.plan, self.split = plan, plan.schedule in SPLIT
        self.waiting = _passes(plan, rank, micros)[::-1]
        self.most = len(plan.stages(rank)) * plan.ranks  # micro-batches of a stage that are kept, where weights wait
        self.weights: list[Action] = []
        self.order: list[Action] = []
        self.kept, self.time = 0, 0.0

    def go_on(self, ends: dict[Action, float]) -> bool:
        """As far as what others did lets it; whether that is anywhere."""
        before = len(self.order)
        while self.waiting and (ready := self._ready(self.waiting[-1], ends)) is not None:
            kind, stage, _ = self.waiting[-1]
            full = kind == "forward" and self.split and self.kept >= self.most
            if self.weights and (full or ready - self.time >= self._cost("weights", self.weights[0].stage) / 2):
                self._do(self.weights.pop(0))
                self.kept -= 1
                continue
            self.time = max(self.time, ready)
            action = self._do(self.waiting.pop())
            ends[action] = self.time
            if kind == "forward":
                self.kept += 1
            elif self.split:
                self.weights.append(Action("weights", stage, action.micro))
            else:
                self.kept -= 1
        return len(self.order) > before

    def do_rest(self) -> None:
        for action in self.weights:
            self._do(action)

    def _do(self, action: Action) -> Action:
        self.time += self._cost(action.kind, action.stage)
        self.order.append(action)
        return action

    def _ready(self, action: Action, ends: dict[Action, float]) -> float | None:
        kind, stage, micro = action
        if kind == "forward":
            return 0.0 if stage == 0 else ends.get(Action("forward", stage - 1, micro))
        if stage == self.plan.last:
            return ends.get(Action("forward", stage, micro))
        return ends.get(Action("backward", stage + 1, micro))

    def _cost(self, kind: Kind, stage: int) -> float:
        """A head's gradients are computed in its forward pass (`gristmill.trainer.model.linear_cross_entropy`)."""
        head = self.plan.head if stage == self.plan.last else 0.0
        blocks = self.plan.work[stage] - head
        if kind == "forward":
            return blocks + 3 * head
        return blocks if self.split else 2 * blocks
