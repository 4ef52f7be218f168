"""The jobs of an ablation as plain data: the base, then a run of every arm and seed, each in a folder of its own with
the hash of all that it is.

    OUT/base/                        metrics.jsonl  checkpoints/  model/  trained.json
    OUT/jobs/ARM/seed-N/             job.json  metrics.jsonl  trained.json  items.parquet  result.json

What a run learned goes by one hash (`training`), what it was measured on by another, so that a new evaluation trains
nothing again where models are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gristmill.pipeline.ablate.checks import CheckedPlan, training_at
from gristmill.pipeline.ablate.length import stages_of
from gristmill.pipeline.ablate.plan import CONTROL, AblationPlan, Base, Loaded
from gristmill.pipeline.recipe.fingerprint import code_of_engine, code_of_module, stamp
from gristmill.pipeline.report.ablation_record import ScheduleSpec
from gristmill.pipeline.store.storage import digest
from gristmill.pipeline.train.evaluation import identity
from gristmill.pipeline.train.feeding import blended
from gristmill.pipeline.train.plan import TrainingPlan
from gristmill.pipeline.train.records import EvaluationSpec, Job, MixStage, OrderSpec, Start

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
        out / BASE, BASE, base.seed, loaded.plan.ranks or 1,
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
    """A job for each seed and arm that has no problem, seed by seed, the control first. `base` is the fingerprint of
    the job that trains it."""
    plan = loaded.plan
    rate = plan.training.peak or rate_of(plan.base)
    jobs = []
    for seed in plan.seeds:
        for arm in (CONTROL, *plan.arms):
            if arm in checked.problems:
                continue
            asked = plan.training_of(arm)
            schedule = plan.protocol.schedule(asked.warmup, checked.length.updates)
            training = training_at(
                loaded, asked, checked.length.updates, device == "cuda", *(() if arm == CONTROL else ("arms", arm)),
                rate=rate, schedule=schedule, seed=seed, order=plan.arm(arm).order or plan.order,
            )  # fmt: skip
            begin: Start = {"shape": checked.shape.facts(), "seed": seed}
            if base is not None:
                begin = {"model": str(out / BASE / "model"), "fingerprint": base}
            elif checked.model is not None:
                begin = {"model": str(checked.model), "fingerprint": model_identity(checked.model)}
            jobs.append(
                _job(
                    out / "jobs" / arm / f"seed-{seed}", arm, seed, plan.ranks or 1,
                    stages=_stages(plan, arm, checked), share=checked.share, begin=begin,
                    training=training | checked.layout, evaluate=evaluate, checked=checked,
                    keep_model=plan.keep_models, device=device, threads=threads,
                )
            )  # fmt: skip
    return jobs


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


def _stages(plan: AblationPlan, arm: str, checked: CheckedPlan) -> list[MixStage]:
    """The last one goes on to the end."""
    *before, (last, _) = stages_of(plan, arm, checked.length)
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
    arm: str,
    seed: int,
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
        "folder": str(folder), "arm": arm, "seed": seed, "fingerprint": measured,
        "training_fingerprint": fingerprint,
        "stages": stages, "share": share, "begin": begin, "training": training, "ranks": ranks, "evaluate": evaluate,
        "tokenizer": str(checked.tokenizer), "row_length": checked.meta.row_length, "before": checked.before,
        "keep_model": keep_model, "device": device, "threads": threads,
    }  # fmt: skip
