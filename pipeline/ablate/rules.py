"""What a verdict says besides its interval: the effect as a compute multiplier, the other learning rate, the winner on
texts that did not choose it, how much of what was read is new, and the power before the runs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import cast

import numpy as np
import xxhash

from gristmill.mixing.verdicts.multiplier import LossCurve, multiplier
from gristmill.mixing.verdicts.paired import Errors, errors
from gristmill.mixing.verdicts.power import Noise, detectable, pooled, power
from gristmill.pipeline.ablate.measures import Measure, Runs, Scores, compared, levels_of, scores_of
from gristmill.pipeline.ablate.plan import CONTROL, AblationPlan
from gristmill.pipeline.report.ablation_record import (
    AblationRecord,
    DifferenceRecord,
    MultiplierRecord,
    PowerRecord,
    ReadingRecord,
    SecondRateRecord,
    WinnerRecord,
)
from gristmill.pipeline.train.feeding import SetSize
from gristmill.pipeline.train.records import Run

AFTER_WARMUP = 0.2  # of a run; earlier measurements are not on the curve
ASSUMED = {  # where no earlier ablation tells: an anneal of 8 million parameters (docs/ablations.md), and coin flips
    "bits per byte": Noise(run_sd=0.006, cluster_sd=0.03),
    "accuracy": Noise(run_sd=0.01, cluster_sd=0.5),
}
ALIKE = 4.0  # times the parameters and tokens, within which an earlier ablation tells the noise
MOST_EARLIER = 50
DIFFERENT = 1.1  # times the different tokens of the other, above which two runs are not matched

# The target's measurements as runs went on, by domain (None: all of it) and update.
OnTheWay = Mapping[Run, Mapping[str | None, Mapping[int, float]]]


# --- the compute multiplier -------------------------------------------------------------------------------------------


def curve_of(
    plan: AblationPlan, runs: Runs, on_the_way: OnTheWay, updates: int, measure: Measure
) -> tuple[LossCurve, str] | None:
    """The control's losses over the tokens, and where they are from: runs of other lengths where the plan has some,
    which end with their rate at zero; else, of the target, measurements as the control's runs went on."""
    by_length = {length: scores_of(runs, plan.orders, length=length) for length in sorted({*plan.curve, 1.0})}
    seeds = [seed for seed in plan.seeds if all((CONTROL, seed) in scores for scores in by_length.values())]
    if plan.curve and seeds:
        levels = [levels_of(scores, CONTROL, seeds, measure) for scores in by_length.values()]
        losses_SP = np.array([[falling(level[seed], measure) for level in levels] for seed in seeds])
        return LossCurve(np.array([*by_length]), losses_SP), "lengths"
    by_seed = [
        [
            found
            for order in range(plan.orders)
            if (found := on_the_way.get(Run(CONTROL, seed, order), {}).get(measure.domain))
        ]
        for seed in plan.seeds
    ]
    whole = [found for found in by_seed if len(found) == plan.orders]
    if not whole or measure.role != "target" or measure.better != "lower":
        return None
    steps = set.intersection(*(set(run) for found in whole for run in found))
    late = sorted(step for step in steps if step >= AFTER_WARMUP * updates)
    losses_SP = np.array([[np.mean([run[step] for run in found]) for step in late] for found in whole])
    return LossCurve(np.array(late) / updates, losses_SP), "on the way"


def multiplier_facts(
    curve: tuple[LossCurve, str] | None,
    level: float,
    found: Errors,
    measure: Measure,
    confidence: float,
    longer: float = 1.0,
) -> MultiplierRecord | None:
    """`level` is the control's, `found` the arm's difference to it; the arm's runs are `longer` times the control's."""
    if curve is None:
        return None
    oriented = found if measure.better == "lower" else replace(found, mean=-found.mean)
    told = multiplier(curve[0], falling(level, measure), oriented, confidence)
    if told is None:
        return None
    value, low, high, least, most = (end / longer for end in (told.value, told.low, told.high, *told.reach))
    return {
        "value": value, "low": low, "high": high, "beyond": told.beyond, "least": least, "most": most,
        "curve": curve[1],
    }  # fmt: skip


def falling(level: float, measure: Measure) -> float:
    """A score that falls as models get better."""
    return level if measure.better == "lower" else 1 - level


# --- the second rate --------------------------------------------------------------------------------------------------


def at_second_rate(
    plan: AblationPlan, scores: Scores, arm: str, first: Errors, target: Measure
) -> SecondRateRecord | None:
    """The target's difference at the second rate; None where fewer than two seeds of it were finished there."""
    seeds = [seed for seed in plan.seeds if (arm, seed) in scores and (CONTROL, seed) in scores]
    if plan.second_rate is None or len(seeds) < 2:
        return None
    found = errors(compared(scores, arm, seeds, target))
    low, high = found.interval(plan.confidence)
    return {
        "rate": plan.second_rate, "seeds": seeds, "difference": found.mean, "low": low, "high": high,
        "agrees": first.mean * found.mean >= 0,
    }  # fmt: skip


def changed_places(first: Mapping[str, float], second: Mapping[str, float]) -> list[list[str]]:
    """Pairs of arms of which one is better at the first rate and the other at the second; differences by arm."""
    both = [arm for arm in first if arm in second]
    return [[a, b] for a, b in combinations(both, 2) if (first[a] - first[b]) * (second[a] - second[b]) < 0]


# --- the winner -------------------------------------------------------------------------------------------------------


def winner_of(
    plan: AblationPlan, scores: Scores, seeds: Mapping[str, list[int]], measures: Sequence[Measure]
) -> WinnerRecord | None:
    """The best of several arms on the texts that select, told on those that do not. None where there is no choice, or
    a half of the target is of fewer than two clusters."""
    target = next(m for m in measures if m.role == "target" and m.domain is None)
    if plan.evaluate.select is not None:
        selecting = next(m for m in measures if m.name == plan.evaluate.select and m.domain is None)
        telling = target
    else:
        halves = [half_of(target, side) for side in (0, 1)]
        if any(len(set(half.clusters)) < 2 or not half.sizes.any() for half in halves):
            return None
        selecting, telling = halves
    if len(seeds) < 2:
        return None
    sign = 1 if selecting.better == "lower" else -1
    chosen = {arm: errors(compared(scores, arm, own, selecting)).mean for arm, own in seeds.items()}
    arm = min(chosen, key=lambda name: (sign * chosen[name], name))
    told = errors(compared(scores, arm, seeds[arm], telling))
    low, high = told.interval(plan.confidence)
    named = plan.evaluate.select is not None
    return {
        "arm": arm,
        "selected_on": selecting.name if named else f"half of {target.name}",
        "selected_difference": chosen[arm],
        "told_on": telling.name if named else f"the other half of {target.name}",
        "difference": told.mean,
        "low": low,
        "high": high,
        "p": told.chance(),
    }


def half_of(measure: Measure, side: int) -> Measure:
    """The clusters whose name hashes to this side, so that no host or book is in both."""
    kept = [i for i, name in enumerate(measure.clusters) if xxhash.xxh3_64_intdigest(name.encode()) % 2 == side]
    return replace(
        measure,
        places=measure.places[kept],
        sizes=measure.sizes[kept],
        clusters=tuple(measure.clusters[i] for i in kept),
    )


# --- what is read -----------------------------------------------------------------------------------------------------


def reading_of(epochs: Mapping[str, float], sizes: Mapping[str, SetSize]) -> ReadingRecord:
    """How many tokens a run reads and how many of them are different, from how often it goes through each set."""
    most = max(epochs, key=lambda name: epochs[name])
    return {
        "tokens": round(sum(times * sizes[name].tokens for name, times in epochs.items())),
        "unique_tokens": round(sum(min(1.0, times) * sizes[name].tokens for name, times in epochs.items())),
        "most_epochs": epochs[most],
        "most_repeated": most,
    }


def readings_of(
    epochs: Mapping[str, Mapping[str, float]], sizes: Mapping[str, SetSize]
) -> tuple[dict[str, ReadingRecord], list[str]]:
    """By arm, and a warning for each that is not matched with the control in tokens that differ."""
    readings = {arm: reading_of(of_sets, sizes) for arm, of_sets in epochs.items()}
    warnings = []
    control = readings.get(CONTROL)
    for arm, own in readings.items():
        if control is None or arm == CONTROL:
            continue
        few, many = sorted((own["unique_tokens"], control["unique_tokens"]))
        if many > DIFFERENT * few:
            warnings.append(
                f"{arm}: reads {own['unique_tokens']:,} different tokens and {own['most_repeated']}"
                f" {own['most_epochs']:.1f} times, the control {control['unique_tokens']:,} and"
                f" {control['most_repeated']} {control['most_epochs']:.1f} times: what it shows is repetition too"
            )
    return readings, warnings


# --- power ------------------------------------------------------------------------------------------------------------


def power_before(
    plan: AblationPlan, out: Path, unit: str, clusters: float, parameters: int, tokens: int
) -> PowerRecord:
    """What the runs can be expected to find, from earlier ablations in the same folder or an assumption that is named.
    At the level of the first step of Holm's correction."""
    earlier = [
        found
        for record in _records_of(out.parent)
        for found in _noise_in(record, unit, parameters, tokens, plan.orders)
    ]
    noise, source = pooled(earlier), f"{len(earlier)} arms of earlier ablations in {out.parent}"
    if noise is None:
        noise = ASSUMED[unit]
        source = "assumed; no ablation of about this size is in the folder yet"
    level = 1 - (1 - plan.confidence) / max(1, len(plan.arms))
    found = detectable(noise.errors(len(plan.seeds), clusters), level)
    return {
        "run_sd": noise.run_sd, "cluster_sd": noise.cluster_sd, "clusters": clusters, "seeds": len(plan.seeds),
        "confidence": level, "detectable": found if math.isfinite(found) else None, "source": source,
    }  # fmt: skip


def power_in_words(found: PowerRecord, unit: str) -> str:
    """A sentence, with the chances of effects below and above what is detectable."""
    noise = (
        f"noise {found['run_sd']:.2g} between seeds and {found['cluster_sd']:.2g} between clusters: {found['source']}"
    )
    smallest = found["detectable"]
    if smallest is None:
        return f"No effect of any size can be told: the target is of one cluster ({noise})"
    of_items = found["cluster_sd"] / math.sqrt(found["clusters"])
    design = found["run_sd"], of_items, found["seeds"], found["clusters"], found["confidence"]
    chances = ", ".join(f"{power(part * smallest, *design):.0%} of {part * smallest:.2g}" for part in (0.5, 1.5))
    return (
        f"Smallest effect found in 80% of cases: {smallest:.2g} {unit} ({chances}), with {found['seeds']} seeds and"
        f" {found['clusters']:.0f} clusters at a level of {found['confidence']:.3g} ({noise})"
    )


def _records_of(folder: Path) -> list[AblationRecord]:
    """Of ablations in the folder; what cannot be read tells nothing."""
    records = []
    for path in sorted(folder.glob("*/ablation.json"))[:MOST_EARLIER]:
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(record, dict):
            records.append(cast(AblationRecord, record))
    return records


def _noise_in(record: AblationRecord, unit: str, parameters: int, tokens: int, orders: int) -> list[Errors]:
    """The errors of each arm's difference on the target, if the ablation is of about this size."""
    sizes = ((record.get("model") or {}).get("parameters"), parameters), (record.get("tokens"), tokens)
    if not all(then and 1 / ALIKE <= then / now <= ALIKE for then, now in sizes):
        return []
    found = []
    for arm in record.get("arms") or []:
        for row in arm.get("differences") or []:
            if row["role"] == "target" and row["domain"] is None and row["unit"] == unit:
                found += _errors_in(row, orders, max(1, int(record["plan"].get("orders", 1))))  # type: ignore[arg-type]
    return found


def _errors_in(row: DifferenceRecord, orders: int, orders_then: int) -> list[Errors]:
    """A recorded difference as if each seed had had this many data orders."""
    of_seeds, of_items, clusters = row["seeds_error"], row["items_error"], row.get("effective_clusters")
    if of_seeds is None or of_items is None or clusters is None:
        return []
    spread = row.get("spread")
    seed, order = (spread["seed"], spread["order"]) if spread is not None else (None, None)
    if seed and order and seed["sd"] + order["sd"] > 0:
        then, now = (math.hypot(seed["sd"], order["sd"] / math.sqrt(n)) for n in (orders_then, orders))
        of_seeds *= now / then
    return [Errors(row["difference"], of_seeds, of_items, len(row["by_seed"]), clusters)]
