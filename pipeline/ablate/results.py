"""ablation.json, and the tables that `mix` reads: what came of all jobs, in the form of docs/ablations.md."""

from __future__ import annotations

import csv
import io
import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from gristmill.mixing.verdicts.paired import Errors, errors
from gristmill.mixing.verdicts.verdict import Verdict, holm, over, relative, verdict
from gristmill.pipeline.ablate.length import Length, weights_of
from gristmill.pipeline.ablate.measures import (
    Measure,
    Runs,
    Scores,
    centred_error,
    compared,
    difference_facts,
    levels_of,
    measures_of,
    scores_of,
    spread_of,
)
from gristmill.pipeline.ablate.plan import CONTROL, AblationPlan
from gristmill.pipeline.ablate.rules import (
    OnTheWay,
    at_second_rate,
    changed_places,
    curve_of,
    multiplier_facts,
    winner_of,
)
from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.json_types import JSON, JSONObject
from gristmill.pipeline.report.ablation_record import (
    AblationCost,
    ArmRecord,
    DifferenceRecord,
    GuardRecord,
    JobRecord,
    MeasureRecord,
    SecondRateRecord,
    WinnerRecord,
)
from gristmill.pipeline.train.records import Job, JobResult, run_of

VERSION = 1
OUTCOMES = (
    "loss", "updates", "tokens", "counted", "seconds", "tokens_per_second", "joules", "peak_memory", "refused",
    "seconds_measuring", "measured_in", "device",
)  # fmt: skip


def job_facts(job: Job, result: JobResult | None, folder: str) -> JobRecord:
    """One line of the list of jobs. What was not measured is null."""
    status = "not run" if result is None else "failed" if "failed" in result else "done"
    outcome: JobResult = result or {}
    facts = {name: outcome.get(name) for name in OUTCOMES}
    return cast(
        JobRecord,
        {
            **run_of(job)._asdict(),
            "status": status,
            "error": outcome.get("failed"),
            "folder": folder,
            "metrics": f"{folder}/metrics.jsonl",
            **facts,
            "harness": outcome.get("harness", {}),
        },
    )


def cost_of(jobs: Sequence[JobRecord]) -> AblationCost:
    """Of all that was done; joules only where each job has them."""
    done = [job for job in jobs if job["status"] == "done"]
    joules = [job["joules"] for job in done]
    measured = [value for value in joules if value is not None]
    return {
        "jobs": len(done),
        "tokens": sum(job["tokens"] or 0 for job in done),
        "seconds": sum(job["seconds"] or 0 for job in done),
        "seconds_measuring": sum(job["seconds_measuring"] or 0.0 for job in done),
        "joules": sum(measured) if measured and len(measured) == len(joules) else None,
    }


@dataclass(frozen=True)
class Judged:
    """What all runs say together."""

    measures: list[MeasureRecord]
    arms: list[ArmRecord]
    winner: WinnerRecord | None = None
    changed_places: list[list[str]] = field(default_factory=list)


def judged(
    plan: AblationPlan,
    runs: Runs,
    problems: dict[str, str],
    on_the_way: OnTheWay,
    updates: int,
    longer: Mapping[str, float],
) -> Judged:
    """Measures, and every arm with its differences and verdict. One that has fewer than two seeds beside the control's
    has a problem instead, or was not run. `updates` are those of the control's runs, of which an arm's have `longer`
    times as many."""
    scores, at_second = scores_of(runs, plan.orders), scores_of(runs, plan.orders, second_rate=True)
    control = [seed for seed in plan.seeds if (CONTROL, seed) in scores]
    seeds = {arm: [seed for seed in control if (arm, seed) in scores] for arm in plan.arms}
    problems = dict(problems)
    for arm in plan.arms:
        if len(seeds[arm]) == 1 and arm not in problems:
            problems[arm] = "only one seed was finished by it and the control; at least 2 are needed"

    def without(arm: str) -> ArmRecord:
        return unmeasured(plan, arm, "failed" if arm in problems else "not run", problems.get(arm), [])

    if len(control) < 2:
        return Judged([], [without(arm) for arm in plan.arms])
    measures = measures_of(plan.evaluate, scores)
    target = next(m for m in measures if m.role == "target" and m.domain is None)
    whole = {arm: seeds[arm] for arm in plan.arms if arm not in problems and len(seeds[arm]) >= 2}
    found = {arm: errors(compared(scores, arm, own, target)) for arm, own in whole.items()}
    adjusted = dict(zip(found, holm([each.chance() for each in found.values()]), strict=True))
    guards = _guards(plan, scores, whole, measures)
    curves = {measure.task: curve_of(plan, runs, on_the_way, updates, measure) for measure in measures}
    second = {arm: at_second_rate(plan, at_second, arm, first, target) for arm, first in found.items()}
    arms = []
    for arm in plan.arms:
        if arm not in whole:
            arms.append(without(arm))
            continue
        own = _arm(plan, arm, runs, seeds[arm], measures, adjusted[arm], guards.get(arm), second[arm])
        for measure, row in zip(measures, own["differences"], strict=True):
            level = float(np.mean([*levels_of(scores, CONTROL, seeds[arm], measure).values()]))
            off = errors(compared(scores, arm, seeds[arm], measure))
            times = longer.get(arm, 1.0)
            row["multiplier"] = multiplier_facts(curves[measure.task], level, off, measure, plan.confidence, times)
        arms.append(own)
    return Judged(
        [measure.facts(levels_of(scores, CONTROL, control, measure)) for measure in measures],
        arms,
        winner_of(plan, scores, whole, measures),
        changed_places(
            {arm: each.mean for arm, each in found.items()},
            {arm: each["difference"] for arm, each in second.items() if each is not None},
        ),
    )


Guarded = tuple[
    Errors, float, float
]  # the relative rise, the chance that it is the budget, and that as Holm's step-down over all arms has it


def _guards(
    plan: AblationPlan, scores: Scores, seeds: dict[str, list[int]], measures: list[Measure]
) -> dict[str, Guarded]:
    """By arm; none where the plan has none."""
    rises = {}
    for measure in (m for m in measures if m.role == "guard" and m.domain is None):
        for arm, own_seeds in seeds.items():
            pairs = compared(scores, arm, own_seeds, measure)
            rises[arm] = relative(errors(pairs), float(pairs.control_S.mean()))
    own = [over(rise, plan.evaluate.guard_budget).chance() for rise in rises.values()]
    return {
        arm: (rises[arm], own_seeds, adjusted) for arm, own_seeds, adjusted in zip(rises, own, holm(own), strict=True)
    }


def _arm(
    plan: AblationPlan,
    arm: str,
    runs: Runs,
    seeds: list[int],
    measures: list[Measure],
    adjusted: float,
    guarded: Guarded | None,
    second: SecondRateRecord | None,
) -> ArmRecord:
    scores = scores_of(runs, plan.orders)
    differences: list[DifferenceRecord] = []
    of_target, better = None, None
    for measure in measures:
        pairs = compared(scores, arm, seeds, measure)
        measured = errors(pairs)
        varies = spread_of(runs, plan.orders, arm, seeds, measure)
        differences.append(difference_facts(pairs, measured, measure, seeds, plan.confidence, varies))
        if measure.domain is None and measure.role == "target":
            of_target, better = measured, measure.better
    if of_target is None or better is None:
        raise RunFailed(f"{arm}: none of its measures is the target")
    budget, rise, guard_chance = plan.evaluate.guard_budget, None, None
    guard: GuardRecord | None = None
    if guarded is not None:
        rise, own, guard_chance = guarded
        low, high = rise.interval(plan.confidence)
        holds = guard_chance < 1 - plan.confidence and rise.mean < budget
        guard = {
            "rise": rise.mean,
            "low": low,
            "high": high,
            "budget": budget,
            "p": own,
            "p_holm": guard_chance,
            "holds": holds,
        }
    at_second = second["difference"] if second is not None else None
    decision = verdict(of_target, better, rise, budget, adjusted, plan.confidence, guard_chance, at_second)
    if plan.second_rate is not None and second is None and decision.word != "inconclusive":
        decision = Verdict("inconclusive", "its runs at the second rate were not finished with two seeds")
    found = unmeasured(plan, arm, "done" if len(seeds) == len(plan.seeds) else "partial", None, seeds)
    found |= {
        "p": of_target.chance(),
        "p_holm": adjusted,
        "guard": guard,
        "verdict": {"word": decision.word, "why": decision.why, "seeds_needed": decision.seeds},
        "differences": differences,
        "second_rate": second,
    }
    return found


def unmeasured(plan: AblationPlan, arm: str, status: str, error: str | None, seeds: list[int]) -> ArmRecord:
    """An arm without anything that compares it."""
    return {
        "name": arm, "mix": dict(plan.arms[arm].weights), "status": status, "error": error, "seeds": seeds, "p": None,
        "p_holm": None, "guard": None, "verdict": None, "differences": [], "second_rate": None,
    }  # fmt: skip


def utilities_csv(plan: AblationPlan, scores: Scores) -> str | None:
    """Sources x tasks as `gristmill.mixing.weights.tables` reads them, if every arm is one set alone: an arm's
    difference to the control, and the error that tells arms apart.

    Arms are the sources, by name. The guard is no task, nor is what one cluster measures, whose error nobody knows.
    None where there is nothing to compare.
    """
    arms, seeds = _comparable(plan, scores)
    if plan.proxies is not None or not arms or any(len(plan.arms[arm].weights) > 1 for arm in arms):
        return None
    measures = [m for m in _tasks(plan, scores) if math.isfinite(centred_error(scores, arms, arms[0], seeds, m))]
    if not measures:
        return None
    columns = [f"{'loss:' if m.better == 'lower' else ''}{m.task}" for m in measures]
    lines: list[list[str]] = [["source", *(c for column in columns for c in (column, f"{column}_se"))]]
    for arm in arms:
        cells = []
        for measure in measures:
            mean = errors(compared(scores, arm, seeds, measure)).mean
            cells += [repr(mean), repr(centred_error(scores, arms, arm, seeds, measure))]
        lines.append([arm, *cells])
    return _csv(lines)


def ablations_csv(plan: AblationPlan, scores: Scores, length: Length) -> str | None:
    """Runs with the mix that each read and its losses, as regmix and log_linear fit them: where arms are mixes. Control
    and arms, a line a seed."""
    arms, seeds = _comparable(plan, scores)
    if not arms or (plan.proxies is None and all(len(plan.arms[arm].weights) == 1 for arm in arms)):
        return None
    names = (
        list(plan.sets)
        if plan.proxies is not None
        else list(dict.fromkeys(name for arm in (plan.control, *plan.arms.values()) for name in arm.weights))
    )
    measures = _tasks(plan, scores)
    head = [
        "run",
        "seed",
        *(f"weight:{name}" for name in names),
        *(f"{'loss' if m.better == 'lower' else 'score'}:{m.task}" for m in measures),
    ]
    lines = [head]
    for arm in (CONTROL, *arms):
        weights = weights_of(plan, arm, length)
        levels = [levels_of(scores, arm, seeds, measure) for measure in measures]
        for seed in seeds:
            lines.append(
                [
                    arm,
                    str(seed),
                    *(repr(weights.get(name, 0.0)) for name in names),
                    *(repr(level[seed]) for level in levels),
                ]
            )
    return _csv(lines)


def _comparable(plan: AblationPlan, scores: Scores) -> tuple[list[str], list[int]]:
    """Arms and seeds that have all been run with each other: every arm that has at least two of the control's seeds,
    and the seeds of all these."""
    least = 2 if plan.proxies is None else 1
    seeds = [seed for seed in plan.seeds if (CONTROL, seed) in scores]
    mixes = [arm for arm in plan.arms if plan.arms[arm].weights != plan.control.weights]  # not of another order alone
    arms = [arm for arm in mixes if sum((arm, seed) in scores for seed in seeds) >= least]
    seeds = [seed for seed in seeds if all((arm, seed) in scores for arm in arms)]
    return (arms, seeds) if len(seeds) >= least else ([], [])


def _tasks(plan: AblationPlan, scores: Scores) -> list[Measure]:
    """A set that has domains counts by them, any other as a whole."""
    measures = [m for m in measures_of(plan.evaluate, scores) if m.role != "guard"]
    with_domains = {m.name for m in measures if m.domain is not None}
    return [m for m in measures if (m.domain is None) != (m.name in with_domains)]


def _csv(lines: list[list[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def machine_facts() -> JSONObject:
    return {
        "system": platform.system(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
    }


def clean(data: JSON) -> JSON:
    """JSON has no infinity and no NaN."""
    if isinstance(data, dict):
        return {str(key): clean(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [clean(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
