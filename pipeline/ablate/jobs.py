"""The jobs of an ablation as plain data: the base, then a run of every arm, seed and data order, each in a folder of
its own with the hash of all that it is.

    OUT/base/                        metrics.jsonl  checkpoints/  model/  trained.json
    OUT/jobs/ARM/seed-N[-order-M]/   job.json  metrics.jsonl  trained.json  items.parquet  result.json

What a run learned goes by one hash (`training`), what it was measured on by another, so that a new evaluation trains
nothing again where models are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gristmill.kernels.base.splitmix import mixed_plain
from gristmill.pipeline.ablate.checks import CheckedPlan, training_at
from gristmill.pipeline.ablate.length import Length, stages_of
from gristmill.pipeline.ablate.plan import CONTROL, AblationPlan, Base, Loaded
from gristmill.pipeline.recipe.fingerprint import code_of_engine, code_of_module, stamp
from gristmill.pipeline.report.ablation_record import ScheduleSpec
from gristmill.pipeline.store.storage import digest
from gristmill.pipeline.train.evaluation import identity
from gristmill.pipeline.train.feeding import blended
from gristmill.pipeline.train.plan import TrainingPlan
from gristmill.pipeline.train.records import EvaluationSpec, Job, MixStage, OrderSpec, Run, Start

BASE = "base"


def base_job(loaded: Loaded, checked: CheckedPlan, out: Path, device: str, threads: int) -> Job | None:
    """None where the base is there already, or there is none."""
    base = loaded.plan.base
    if base is None or base.mix is None or base.tokens is None:
        return None
    of_runs = {"patience": None, "unlocking": None, "schedule": None}
    asked = base.training or loaded.plan.training.changed(of_runs)
    updates = asked.updates(base.tokens, checked.meta.row_length)
    training = training_at(
        loaded, asked, updates, device == "cuda", *(("base",) if base.training else ()),
        schedule=_of_base(asked), seed=base.seed,
    )  # fmt: skip
    return _job(
        out / BASE, Run(BASE, base.seed), loaded.plan.ranks or 1,
        stages=[_stage(blended(base.mix, {}, 0.0), {}, checked)], share=1.0,
        begin={"shape": checked.shape.facts(), "seed": base.seed}, training=training | checked.layout_of_base, evaluate=None,
        checked=checked, keep_model=True, device=device, threads=threads,
    )  # fmt: skip


def arm_jobs(
    loaded: Loaded,
    checked: CheckedPlan,
    out: Path,
    evaluate: EvaluationSpec,
    base: str | None,
    device: str,
    threads: int,
) -> list[Job]:
    """A job for each run of the control and of every arm. `base` is the fingerprint of
    the job that trains it."""
    plan = loaded.plan
    rate = plan.training.peak or rate_of(plan.base)
    jobs = []
    for run in runs_of(plan):
        length = checked.lengths[run.arm].times(run.length, plan.protocol)
        asked = plan.training_of(run.arm)
        if run.second_rate and plan.second_rate is not None:
            asked = asked.at_rate(plan.second_rate)
        schedule = plan.protocol.schedule(asked.warmup, length.updates)
        training = training_at(
            loaded, asked, length.updates, device == "cuda", *(() if run.arm == CONTROL else ("arms", run.arm)),
            rate=rate, schedule=schedule, seed=run.seed, order=plan.arm(run.arm).order or plan.order,
            data_seed=data_seed(run.seed, run.order) if run.order else None,
        )  # fmt: skip
        begin: Start = {"shape": checked.shape.facts(), "seed": run.seed}
        if base is not None:
            begin = {"model": str(out / BASE / "model"), "fingerprint": base}
        elif checked.model is not None:
            begin = {"model": str(checked.model), "fingerprint": model_identity(checked.model)}
        jobs.append(
            _job(
                out / "jobs" / run.arm / run.name, run, plan.ranks or 1,
                stages=_stages(plan, run.arm, checked, length), share=checked.share, begin=begin,
                training=training | checked.layout, evaluate=evaluate, checked=checked,
                keep_model=plan.keep_models, device=device, threads=threads,
            )
        )  # fmt: skip
    return jobs


def runs_of(plan: AblationPlan) -> list[Run]:
    """Every run of a plan: seed by seed and order by order the control and all arms, then all of it at the second rate,
    then the control at other lengths."""
    repeats = [(seed, order) for seed in plan.seeds for order in range(plan.orders)]
    arms = (CONTROL, *plan.arms)
    rates = (False, True) if plan.second_rate is not None else (False,)
    runs = [Run(arm, *repeat, rate) for rate in rates for repeat in repeats for arm in arms]
    return runs + [Run(CONTROL, *repeat, length=length) for repeat in repeats for length in plan.curve]


def data_seed(seed: int, order: int) -> int:
    """The first order of a seed is the seed's own."""
    return mixed_plain(mixed_plain(seed) ^ order) % (1 << 32) if order else seed


def model_identity(folder: Path) -> str:
    """Of a model's files by name, size and stamp: they are too large to be read for it."""
    return digest([[path.name, *stamp(path)] for path in sorted(folder.iterdir()) if path.is_file()])


def rate_of(base: Base | None) -> float | None:
    return base.training.peak if base is not None and base.training is not None else None


def _of_base(asked: TrainingPlan) -> ScheduleSpec:
    """Warm-up, then level: an anneal goes on from it."""
    return {
        "kind": "stable",
        "warmup": 0.05 if asked.warmup is None else asked.warmup,
        "decay": 0.0,
        "floor": 0.0,
        "fall": "linear",
    }


def _stages(plan: AblationPlan, arm: str, checked: CheckedPlan, length: Length) -> list[MixStage]:
    """The last one goes on to the end."""
    *before, (last, _) = stages_of(plan, arm, length)
    stages = [_stage(weights, _orders(plan, arm, weights), checked) for weights, _ in before]
    for stage, (_, rows) in zip(stages, before, strict=True):
        stage["rows"] = rows
    return [*stages, _stage(last, _orders(plan, arm, last), checked)]


def _orders(plan: AblationPlan, arm: str, weights: Mapping[str, float]) -> dict[str, OrderSpec]:
    """Of the sets that are not shuffled."""
    orders = {name: plan.order_of(arm, name) for name in weights}
    return {name: order for name, order in orders.items() if order != "shuffled"}


def _stage(weights: Mapping[str, float], orders: Mapping[str, OrderSpec], checked: CheckedPlan) -> MixStage:
    stage: MixStage = {
        "weights": {str(checked.folders[name]): weight for name, weight in weights.items()},
        "identity": {checked.fingerprints[name]: weight for name, weight in weights.items()},
    }
    if orders:
        stage["orders"] = {str(checked.folders[name]): order for name, order in orders.items()}
        stage["identity_of_orders"] = {checked.fingerprints[name]: order for name, order in orders.items()}
    return stage


def _job(
    folder: Path,
    run: Run,
    ranks: int,
    *,
    stages: list[MixStage],
    share: float,
    begin: Start,
    training: dict[str, Any],
    evaluate: EvaluationSpec | None,
    checked: CheckedPlan,
    keep_model: bool,
    device: str,
    threads: int,
) -> Job:
    from gristmill.trainer.run.settings import Training

    code = code_of_engine("training")
    for module in (
        "gristmill.trainer.run.loop",
        "gristmill.trainer.model.llama",
        "gristmill.shards.loader",
        "gristmill.pipeline.train.feeding",
        "gristmill.mixing.curriculum.curriculum",
        "gristmill.mixing.curriculum.pacing",
    ):
        code = {**code, **code_of_module(module)}
    measures = {
        **code_of_engine("measuring"),
        **code_of_module("gristmill.trainer.evaluation.evaluate"),
        **code_of_module("gristmill.trainer.evaluation.multiple_choice"),
    }
    start = begin if "shape" in begin else {"fingerprint": begin["fingerprint"]}
    settings = Training.from_facts(training)
    reads = [{key: value for key, value in stage.items() if key not in ("weights", "orders")} for stage in stages]
    learns = [reads, share, start, settings.identity(), settings.deterministic, code]
    if settings.patience is not None and evaluate is not None:  # a run that ends by what is measured
        learns += [identity(evaluate), evaluate["every"], evaluate["point_documents"]]
    fingerprint = digest(learns)
    measured = digest([fingerprint, identity(evaluate), checked.before, measures]) if evaluate else fingerprint
    return {
        "folder": str(folder), "arm": run.arm, "seed": run.seed, "order": run.order, "second_rate": run.second_rate,
        "length": run.length, "fingerprint": measured,
        "training_fingerprint": fingerprint,
        "stages": stages, "share": share, "begin": begin, "training": training, "ranks": ranks, "evaluate": evaluate,
        "tokenizer": str(checked.tokenizer), "row_length": checked.meta.row_length, "before": checked.before,
        "keep_model": keep_model, "device": device, "threads": threads,
    }  # fmt: skip
