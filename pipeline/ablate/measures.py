"""From the items of all runs to differences with intervals, arm by arm: the arrays behind ablation.json.

A measure is a set of the evaluation, or one domain of it. The runs of a seed are paired: an arm is compared on the
seeds that it and the control both finished. A seed's score is the mean over its data orders.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.kernels.base.types import Floats
from gristmill.mixing.verdicts.paired import Better, Errors, Paired, errors, paired
from gristmill.mixing.verdicts.power import detectable
from gristmill.mixing.verdicts.spread import Spread, spread
from gristmill.pipeline.ablate.plan import CONTROL, Evaluate
from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.report.ablation_record import DifferenceRecord, MeasureRecord, SpreadRecord
from gristmill.pipeline.train.records import Run

Scores = Mapping[tuple[str, int], pa.Table]  # items by arm and seed
Runs = Mapping[Run, pa.Table]  # items of every run
Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Measure:
    """`domain` None is the whole set."""

    name: str
    domain: str | None
    role: str  # target, guard, reported
    better: Better
    unit: str
    places: Places  # of its items in a table
    sizes: Floats
    clusters: tuple[str, ...]

    @property
    def task(self) -> str:
        return self.name if self.domain is None else f"{self.name}/{self.domain}"

    def facts(self, levels: Mapping[int, float]) -> MeasureRecord:
        return {
            "set": self.name,
            "domain": self.domain,
            "task": self.task,
            "role": self.role,
            "better": self.better,
            "unit": self.unit,
            "items": len(self.sizes),
            "clusters": len(set(self.clusters)),
            "control": {
                "mean": sum(levels.values()) / len(levels),
                "by_seed": {str(seed): level for seed, level in levels.items()},
            },
        }


def scores_of(
    runs: Runs, orders: int, second_rate: bool = False, length: float = 1.0
) -> dict[tuple[str, int], pa.Table]:
    """Items by arm and seed: the mean over the seed's data orders, where all of them were run."""
    scores = {}
    for arm, seed in dict.fromkeys((run.arm, run.seed) for run in runs):
        own = [runs.get(Run(arm, seed, order, second_rate, length)) for order in range(orders)]
        tables = [table for table in own if table is not None]
        if len(tables) == orders:
            scores[arm, seed] = tables[0] if orders == 1 else _mean_of(tables)
    return scores


def _mean_of(tables: Sequence[pa.Table]) -> pa.Table:
    value_I = np.mean([table["value"].to_numpy() for table in tables], axis=0)
    return tables[0].set_column(tables[0].schema.get_field_index("value"), "value", pa.array(value_I))


def measures_of(evaluate: Evaluate, scores: Scores) -> list[Measure]:
    """The same for every run; RunFailed where runs were measured on different items."""
    first = next(iter(scores.values()))
    for (arm, seed), table in scores.items():
        if not all(table[name].equals(first[name]) for name in ("set", "item", "domain", "cluster", "size")):
            raise RunFailed(f"{arm}, seed {seed}: was measured on other items than the runs before it")
    sets, domains = np.array(first["set"].to_pylist()), np.array(first["domain"].to_pylist())
    clusters, sizes = first["cluster"].to_pylist(), first["size"].to_numpy()
    measures = []
    for name in (*evaluate.texts, *evaluate.choices):
        role = "target" if name == evaluate.target else "guard" if name == evaluate.guard else "reported"
        accuracy = name in evaluate.choices and evaluate.choices[name].score != "bits_per_byte"
        whole = np.flatnonzero(sets == name)
        of_set = list(dict.fromkeys(domains[whole].tolist()))
        parts: list[tuple[str | None, Places]] = [(None, whole)]
        if len(of_set) > 1:
            parts += [(domain, whole[domains[whole] == domain]) for domain in sorted(of_set)]
        for domain, places in parts:
            if not sizes[places].any():  # a domain of which the tokenizer leaves nothing
                continue
            measures.append(
                Measure(
                    name, domain, role, "higher" if accuracy else "lower", "accuracy" if accuracy else "bits per byte",
                    places, sizes[places], tuple(clusters[i] for i in places.tolist()),
                )
            )  # fmt: skip
    return measures


def values_of(scores: Scores, arm: str, seeds: Sequence[int], measure: Measure) -> Floats:
    """Seeds x items."""
    values_SI: Floats = np.stack([scores[arm, seed]["value"].to_numpy()[measure.places] for seed in seeds])
    return values_SI


def levels_of(scores: Scores, arm: str, seeds: Sequence[int], measure: Measure) -> dict[int, float]:
    values_SI = values_of(scores, arm, seeds, measure)
    return dict(zip(seeds, (values_SI.sum(axis=1) / measure.sizes.sum()).tolist(), strict=True))


def compared(scores: Scores, arm: str, seeds: Sequence[int], measure: Measure) -> Paired:
    return paired(
        values_of(scores, arm, seeds, measure),
        values_of(scores, CONTROL, seeds, measure),
        measure.sizes,
        measure.clusters,
    )


def spread_of(runs: Runs, orders: int, arm: str, seeds: Sequence[int], measure: Measure) -> Spread | None:
    """How the differences of all runs vary."""

    def level(name: str, seed: int, order: int) -> float:
        return float(runs[Run(name, seed, order)]["value"].to_numpy()[measure.places].sum() / measure.sizes.sum())

    differences_SK = [[level(arm, s, k) - level(CONTROL, s, k) for k in range(orders)] for s in seeds]
    return spread(np.array(differences_SK))


def difference_facts(
    pairs: Paired, measured: Errors, measure: Measure, seeds: Sequence[int], confidence: float, varies: Spread | None
) -> DifferenceRecord:
    """What ablation.json says of one arm on one measure; `results.clean` makes null of what is infinite."""
    low, high = measured.interval(confidence)
    control = float(pairs.control_S.mean())
    return {
        "set": measure.name,
        "domain": measure.domain,
        "task": measure.task,
        "role": measure.role,
        "better": measure.better,
        "unit": measure.unit,
        "difference": measured.mean,
        "low": low,
        "high": high,
        "relative": {"difference": measured.mean / control, "low": low / control, "high": high / control}
        if control > 0
        else None,
        "seeds_error": measured.seeds_error,
        "items_error": measured.items_error,
        "effective_clusters": measured.clusters,
        "spread": cast(SpreadRecord, asdict(varies)) if varies is not None else None,
        "p": measured.chance(),
        "detectable": detectable(measured, confidence),
        "by_seed": dict(zip(map(str, seeds), pairs.by_seed.tolist(), strict=True)),
    }


def centred_error(scores: Scores, arms: Sequence[str], arm: str, seeds: Sequence[int], measure: Measure) -> float:
    """The standard error that tells arms from each other: of the arm less the mean of all, as if errors were
    independent. What all share (the control, how hard a text is) is in none of it."""
    if len(arms) < 2:
        return errors(compared(scores, arm, seeds, measure)).error
    mean_SI = np.mean([values_of(scores, other, seeds, measure) for other in arms], axis=0)
    centred = errors(paired(values_of(scores, arm, seeds, measure), mean_SI, measure.sizes, measure.clusters))
    return centred.error * math.sqrt(len(arms) / (len(arms) - 1))
