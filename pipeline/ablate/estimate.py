"""What an ablation would train and how long it would take: its FLOP, and a trial of training and measuring here."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import cast

import numpy as np

from gristmill.pipeline.ablate.length import in_words, weights_of
from gristmill.pipeline.ablate.plan import CONTROL
from gristmill.pipeline.ablate.rules import power_in_words
from gristmill.pipeline.ablate.run import PreparedAblation
from gristmill.pipeline.ablate.workers import client_for
from gristmill.pipeline.engine.cluster import GPU_RESOURCE
from gristmill.pipeline.formatting import as_seconds
from gristmill.pipeline.tables import TerminalTable
from gristmill.pipeline.train.records import Job
from gristmill.pipeline.train.trial import Trial, try_job
from gristmill.trainer.model.flops import flops_of

SHOWN = 20  # arms of a plan


@dataclass(frozen=True)
class Estimate:
    """Seconds of all jobs together, by what takes them; `seconds` with all workers at work."""

    seconds: float
    starting: float
    training: float
    points: float  # measuring the target on the way
    at_end: float  # measuring the trained models
    workers: int

    @property
    def measuring(self) -> float:
        return self.points + self.at_end


def flops_of_all(ready: PreparedAblation) -> float:
    """Rows counted as whole: documents inside them make it a little less."""
    meta = ready.checked.meta
    a_row = flops_of(ready.checked.shape, np.array([meta.row_length])).total
    jobs = [*ready.jobs, *([ready.base] if ready.base else [])]
    return float(sum(job["training"]["updates"] * job["training"]["rows_per_update"] * a_row for job in jobs))


def trial_of(ready: PreparedAblation) -> Trial:
    """The control's first run, tried for a few seconds; in one of the workers where these are elsewhere."""
    job = cast(Job, {**ready.jobs[0], "begin": {"shape": ready.checked.shape.facts(), "seed": 0}})
    if ready.crew.scheduler is None:
        return try_job(job)
    with client_for(ready.crew) as client:
        resources = {GPU_RESOURCE: 1} if ready.crew.gpus else None
        trial: Trial = client.submit(try_job, job, pure=False, resources=resources).result()
    return trial


def estimate(ready: PreparedAblation, trial: Trial, begun: float) -> Estimate:
    """`begun`: when this process did, by `time.time`; it made itself ready as a run does, and as each worker will."""
    until_ready, evaluate = max(0.0, time.time() - begun - trial.seconds), ready.evaluate
    workers = max(1, ready.crew.processes)
    training = [
        trial.training(job["training"]["updates"], job["training"]["rows_per_update"])
        for job in [*([ready.base] if ready.base else []), *ready.jobs]
    ]
    updates = sum(job["training"]["updates"] for job in ready.jobs) / max(1, len(ready.jobs))
    points = math.ceil(updates / (evaluate["every"] or updates)) * trial.token * trial.tokens_on_the_way
    base = trial.start + training[0] if ready.base else 0.0
    of_runs = training[1:] if ready.base else training
    each = trial.start + points + trial.measuring + sum(of_runs) / max(1, len(of_runs))
    starting = until_ready * (2 if ready.crew.processes else 1)
    count = len(ready.jobs)
    return Estimate(
        starting + base + -(-count // workers) * each,
        starting + trial.start * len(training),
        sum(training),
        count * points,
        count * trial.measuring,
        workers,
    )


def measuring_warning(ready: PreparedAblation, trial: Trial, found: Estimate) -> list[str]:
    """The setting to change where measuring takes more than training."""
    if found.measuring <= found.training:
        return []
    evaluate = ready.evaluate
    if found.points >= found.at_end:
        setting = (
            f"measure the target less often (evaluate.points: {ready.plan.evaluate.points}) or on fewer documents"
            f" (evaluate.point_documents: {ready.plan.evaluate.point_documents})"
        )
    elif trial.largest in evaluate["texts"]:
        most = evaluate["texts"][trial.largest]["most"]
        setting = f"take fewer texts (evaluate.texts.{trial.largest}.most: {'all' if most is None else most})"
    else:
        setting = f"ask fewer questions (evaluate.choices.{trial.largest})"
    return [f"measuring would take {as_seconds(found.measuring)}, training {as_seconds(found.training)}: {setting}"]


def foreseen(ready: PreparedAblation, found: Estimate | None) -> TerminalTable:
    """What would run, for --dry-run: tokens, epochs and time."""
    plan = ready.plan
    title = f"{plan.name}: {plan.protocol.name}, {in_words(plan, ready.checked.length)}"
    lines: list[tuple[object, ...]] = []
    if ready.base is not None:
        updates = ready.base["training"]["updates"]
        rows = ready.base["training"]["rows_per_update"]
        mix = ", ".join((plan.base.mix if plan.base else None) or ())
        lines.append(("base", updates * rows * ready.checked.meta.row_length, updates, mix, "", "", ""))
    for arm in (CONTROL, *list(plan.arms)[:SHOWN]):
        job = next(job for job in ready.jobs if job["arm"] == arm)
        tokens = job["training"]["updates"] * job["training"]["rows_per_update"] * ready.checked.meta.row_length
        weights = weights_of(plan, arm, ready.checked.length)
        shares = ", ".join(f"{weight:.1%}" for weight in weights.values())
        epochs = ", ".join(f"{ready.checked.epochs[arm][name]:.2f}" for name in weights)
        different = ready.readings[arm]["unique_tokens"]
        lines.append((arm, tokens, job["training"]["updates"], ", ".join(weights), shares, epochs, different))
    if len(plan.arms) > SHOWN:
        lines.append((f"... and {len(plan.arms) - SHOWN:,} more", "", "", "", "", "", ""))
    note = f"{len(ready.jobs) + (ready.base is not None)} jobs, {flops_of_all(ready):.3g} FLOP of training"
    if found is not None:
        where = "a worker" if ready.crew.scheduler else "this machine"
        note += (
            f". About {as_seconds(found.seconds)} on {found.workers} worker{'s' if found.workers > 1 else ''}, as"
            f" tried for a moment on {where}. All jobs together: training {as_seconds(found.training)}, measuring"
            f" {as_seconds(found.measuring)} ({as_seconds(found.points)} of it on the way), starting"
            f" {as_seconds(found.starting)}"
        )
    if ready.power is not None:
        note += f". {power_in_words(ready.power, ready.unit)}"
    head = ("run", "tokens", "updates", "reads", "of a run's tokens", "epochs", "different tokens")
    return TerminalTable.of(title, head, lines, words={0, 3}, note=note)
