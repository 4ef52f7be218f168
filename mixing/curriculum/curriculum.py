"""When each document is trained on: schedules from difficulty or quality ranks to places in training
(docs/curriculum.md has the table).

A schedule takes the rank r of a document (the token-weighted share of its group that is easier or worse, in [0, 1),
ties split) and a chance u (a hash of seed, uid and copy, in [0, 1), independent of r), and returns its place p in [0,
1): sorted by place, the data are in training order. If (r, u) is uniform over the square, p is uniform over [0, 1), so
equal stretches of training hold equal tokens, and a place can be computed without knowing any other document. Several
sources, each with its own ranks and schedule, are merged by their places alone.

A segment is a stretch inside which order means nothing: its documents may be shuffled and packed together, and rows
never cross its edge. `resolution` is the number of segments of a whole training run where a schedule orders without
steps. Figures in the advice: Zhang et al. 2506.11300; Luo et al. 2511.18903; Hu et al. 2404.06395; Blakeney et al.
2406.03476.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from gristmill.kernels.base.types import Floats

BELOW_ONE = math.nextafter(1.0, 0.0)
MOST_SEGMENTS = 1 << 16

MODERATE = (0.2, 0.33)  # share of training in which the rate falls, and what is left of it (Luo et al.)
_STABLE = "The order is worth most while the learning rate is high"
_AVERAGED = (
    "decay it moderately, not to zero, and average the last checkpoints: "
    "under full decay the gain of an ascending order vanished, so it came to +1.64 % (Luo et al., 1.5B, 30B tokens)"
)


class Schedule(BaseModel, ABC):
    """What all schedules have in common. Their fields are settings of a recipe."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @abstractmethod
    def places(self, rank: Floats, chance: Floats) -> Floats:
        """A place in [0, 1) for each document."""

    @abstractmethod
    def edges(self, resolution: int) -> Floats:
        """Where segments begin: ascending, the first at 0."""

    @property
    @abstractmethod
    def correlation(self) -> float:
        """Spearman's, of place with rank, over all tokens. Shuffling inside segments subtracts about climbs /
        resolution**2."""

    @property
    @abstractmethod
    def promise(self) -> str:
        """What holds of the order, in words that a test can check."""

    @property
    @abstractmethod
    def advice(self) -> str:
        """How to set learning rate and averaging, to print beside the order."""

    @property
    def rates(self) -> tuple[float, float] | None:
        """The advice in figures: the share of training in which the rate falls, at its end, and the share of the peak
        that it falls to. None: any schedule does."""
        return None


class Random(Schedule):
    """No curriculum: the baseline that every other schedule has to beat on the same data."""

    def places(self, rank: Floats, chance: Floats) -> Floats:
        return chance.astype(np.float64)

    def edges(self, resolution: int) -> Floats:
        return np.zeros(1)

    @property
    def correlation(self) -> float:
        return 0.0

    @property
    def promise(self) -> str:
        return "every stretch of training is a fair sample of the whole"

    @property
    def advice(self) -> str:
        return "Any learning-rate schedule; all stretches are alike."


class Stages(Schedule):
    """Easy to hard in stages of equal tokens, shuffled inside each."""

    stages: Annotated[int, Field(description="how many", ge=1, le=MOST_SEGMENTS)] = 4

    def places(self, rank: Floats, chance: Floats) -> Floats:
        return inside((buckets(rank, self.stages) + chance) / self.stages)

    def edges(self, resolution: int) -> Floats:
        return even_edges(0.0, 1.0, self.stages)

    @property
    def correlation(self) -> float:
        return 1 - 1 / self.stages**2

    @property
    def promise(self) -> str:
        return (
            f"stage i of {self.stages} holds the documents of rank i/{self.stages} to (i+1)/{self.stages} and no "
            "others; inside it order is chance"
        )

    @property
    def advice(self) -> str:
        return f"{_STABLE}: {_AVERAGED}."

    @property
    def rates(self) -> tuple[float, float]:
        return MODERATE


class Ascending(Schedule):
    """Easy to hard throughout."""

    def places(self, rank: Floats, chance: Floats) -> Floats:
        return inside(rank)

    def edges(self, resolution: int) -> Floats:
        return even_edges(0.0, 1.0, resolution)

    @property
    def correlation(self) -> float:
        return 1.0

    @property
    def promise(self) -> str:
        return "the place is the rank"

    @property
    def advice(self) -> str:
        return (
            f"{_STABLE}: {_AVERAGED}. Batches late in training hold hard text alone; `Stages` or `WarmUp` forget less."
        )

    @property
    def rates(self) -> tuple[float, float]:
        return MODERATE


class WarmUp(Schedule):
    """A share of the data from easy to hard, then the rest at random. Chance selects the documents of the warm-up, not
    rank, so it covers all levels of difficulty, and the rest is a fair sample of the whole. If the easiest documents
    were taken, the rest would lack them, and the gain could not be separated from their absence."""

    share: Annotated[float, Field(description="of training", gt=0, le=1)] = 0.1

    def places(self, rank: Floats, chance: Floats) -> Floats:
        return inside(np.where(chance < self.share, self.share * rank, chance))

    def edges(self, resolution: int) -> Floats:
        climb = even_edges(0.0, self.share, max(2, math.ceil(resolution * self.share)))
        return climb if self.share == 1 else np.append(climb, self.share)

    @property
    def correlation(self) -> float:
        return self.share**2

    @property
    def promise(self) -> str:
        return (
            f"the first {self.share:.4g} of training is a fair sample in ascending order (place = {self.share:.4g} * "
            "rank); "
            "the rest is a fair sample in random order"
        )

    @property
    def advice(self) -> str:
        return (
            "Keep your usual learning rate and its own warm-up (much shorter than this one); the rest of training sees "
            "the data in random "
            "order, so any decay does. Of the orders that were tried, the one whose gain lasts: up to +3.5 % at the "
            "end of training (Zhang et al.)."
        )


class Interleaved(Schedule):
    """Several passes, each an equal part of the data by chance, each from easy to hard."""

    passes: Annotated[int, Field(description="how many", ge=1, le=MOST_SEGMENTS // 2)] = 8

    def places(self, rank: Floats, chance: Floats) -> Floats:
        return inside((buckets(chance, self.passes) + rank) / self.passes)

    def edges(self, resolution: int) -> Floats:
        return even_edges(0.0, 1.0, self.passes * max(2, math.ceil(resolution / self.passes)))

    @property
    def correlation(self) -> float:
        return 1 / self.passes

    @property
    def promise(self) -> str:
        return f"{self.passes} passes, each a fair sample of 1/{self.passes} of the data, each in ascending order"

    @property
    def advice(self) -> str:
        return (
            "Any learning-rate schedule, for all passes are alike; let the decay span whole passes, so that it ends on "
            "hard text once and not midway."
        )

    @property
    def rates(self) -> tuple[float, float]:
        return max(1, round(0.2 * self.passes)) / self.passes, 0.0


class Anneal(Schedule):
    """The best documents last. Ranks are of quality: higher is better. `best` is their part of the last stretch; the
    rest of it is drawn by chance from all others (Llama 3 annealed on 30 % new and 70 % general text). All the best
    documents, with all their copies, are in the last stretch and none before it."""

    share: Annotated[float, Field(description="of training", gt=0, le=1)] = 0.1
    best: Annotated[
        float, Field(description="what part of the last stretch the best documents make up", gt=0, le=1)
    ] = 1.0

    @property
    def lowest(self) -> float:
        """The least rank of the best documents."""
        return 1 - self.best * self.share

    def places(self, rank: Floats, chance: Floats) -> Floats:
        begin, others = 1 - self.share, 1 - self.best * self.share
        late_share = self.share * (1 - self.best) / others if others else 0.0  # the part of the others that comes late
        late = begin + self.share * (chance / late_share if late_share else np.zeros_like(chance))
        early = begin * (chance - late_share) / (1 - late_share) if late_share < 1 else late
        general = np.where(chance < late_share, late, early)
        return inside(np.where(rank >= self.lowest, begin + self.share * chance, general))

    def edges(self, resolution: int) -> Floats:
        return np.array([0.0, 1 - self.share]) if self.share < 1 else np.zeros(1)

    @property
    def correlation(self) -> float:
        return 3 * self.best * self.share * (1 - self.share)

    @property
    def promise(self) -> str:
        general = f", the other {1 - self.best:.4g} of it a fair sample of the others" if self.best < 1 else ""
        return (
            f"the last {self.share:.4g} of training holds every document of rank {self.lowest:.4g} or more{general}; "
            "before it there are none of them; order inside both parts is chance"
        )

    @property
    def advice(self) -> str:
        short = " This stretch is shorter than what is known to suffice." if self.share < 0.1 else ""
        return (
            f"Hold the learning rate constant up to place {1 - self.share:.4g}, decay it to zero over the last "
            f"{self.share:.4g}, and average the last "
            "checkpoints. 10 % of the tokens in the decay is enough, 2.5 % is not (Hu et al.); 10 to 20 % is the best "
            "span for upsampled "
            f"sets (Blakeney et al.).{short} Any checkpoint of the constant part can be annealed anew on other data."
        )

    @property
    def rates(self) -> tuple[float, float]:
        return self.share, 0.0


def buckets(rank: Floats, count: int) -> np.ndarray[Any, np.dtype[np.int16]]:
    """Levels 0 to count - 1 of equal tokens; the highest is the hardest."""
    return np.clip(np.floor(rank * count), 0, count - 1).astype(np.int16 if count <= 1 << 15 else np.int32)


def united_edges(edges: list[Floats]) -> Floats:
    """The edges of several sources together: between two of them no source's order means anything."""
    united: Floats = np.unique(np.concatenate([np.zeros(1), *edges]))
    kept: Floats = united[np.append(True, np.diff(united) > 1e-12)]  # 1/3 reached on two ways is one edge
    return kept


def segments(places: Floats, edges: Floats) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """The number of the segment of each place."""
    if len(edges) > MOST_SEGMENTS:
        raise ValueError(f"{len(edges):,} segments; there can be {MOST_SEGMENTS:,}. Lower the resolution")
    return (np.searchsorted(edges, places, side="right") - 1).astype(np.uint16)


def even_edges(begin: float, end: float, count: int) -> Floats:
    if not 1 <= count <= MOST_SEGMENTS:
        raise ValueError(f"resolution is {count}; expected 1 to {MOST_SEGMENTS:,}")
    edges: Floats = begin + (end - begin) * (np.arange(count) / count)
    return edges


def inside(places: Floats) -> Floats:
    """Places below 1, which rounding may reach."""
    return np.clip(places, 0.0, BELOW_ONE)
