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

from gristmill.kernels.base.splitmix import mixed_plain
from gristmill.pipeline.ablate.checks import CheckedPlan
from gristmill.pipeline.ablate.evaluation import identity
from gristmill.pipeline.ablate.feeding import blended
from gristmill.pipeline.ablate.length import Length, stages_of
from gristmill.pipeline.ablate.plan import CONTROL, AblationPlan, Base, Loaded, TrainingPlan
from gristmill.pipeline.ablate.records import EvaluationSpec, Job, MixStage, Run, Start, TrainingSpec
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.json_types import JSONObject
from gristmill.pipeline.recipe.fingerprint import code_of_engine, code_of_module, stamp
from gristmill.pipeline.report.ablation_record import ScheduleSpec
from gristmill.pipeline.store.storage import digest

BASE = "base"


def base_job(loaded: Loaded, checked: CheckedPlan, out: Path, device: str, threads: int) -> Job | None:
    """None where the base is there already, or there is none."""
    base = loaded.plan.base
    if base is None or base.mix is None or base.tokens is None:
        return None
    asked = base.training or loaded.plan.training
    training = training_facts(
        asked, float(asked.rate or 0), base.tokens, checked.meta.row_length, base.seed, device, _of_base(asked)
    )
    return _job(
        out / BASE, Run(BASE, base.seed),
        stages=[_stage(blended(base.mix, {}, 0.0), checked)], share=1.0,
        begin={"shape": checked.shape.facts(), "seed": base.seed}, training=training, evaluate=None, checked=checked,
        keep_model=True, device=device, threads=threads,
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
    """A job for each run of the control and of every arm that has no problem. `base` is the fingerprint of
    the job that trains it."""
    plan = loaded.plan
    rate = plan.training.rate or rate_of(plan.base)
    jobs = []
    for run in runs_of(plan):
        if run.arm in checked.problems:
            continue
        length = checked.length.times(run.length, plan.protocol)
        schedule = plan.protocol.schedule(plan.training.warmup, length.updates)
        own_rate = plan.second_rate if run.second_rate and plan.second_rate is not None else rate
        training = training_facts(
            plan.training, own_rate, length.tokens, checked.meta.row_length, run.seed, device, schedule
        )
        begin: Start = {"shape": checked.shape.facts(), "seed": run.seed}
        if base is not None:
            begin = {"model": str(out / BASE / "model"), "fingerprint": base}
        elif checked.model is not None:
            begin = {"model": str(checked.model), "fingerprint": model_identity(checked.model)}
        jobs.append(
            _job(
                out / "jobs" / run.arm / run.name, run,
                stages=_stages(plan, run.arm, checked, length), share=checked.share, begin=begin, training=training,
                evaluate=evaluate, checked=checked, keep_model=plan.keep_models, device=device, threads=threads,
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


def rate_of(base: Base | None) -> float:
    return float(base.training.rate or 0) if base is not None and base.training is not None else 0.0


def training_facts(
    asked: TrainingPlan,
    rate: float,
    tokens: int,
    row_length: int,
    seed: int,
    device: str,
    schedule: ScheduleSpec,
) -> TrainingSpec:
    """What `gristmill.trainer.run.settings.Training.from_facts` reads; what the trainer would refuse is said here,
    before anything is trained."""
    from gristmill.trainer.run import settings

    updates = asked.updates(tokens, row_length)
    every = max(1, updates // asked.checkpoints)
    optimizer: JSONObject = {
        "name": asked.optimizer,
        "rate": rate,
        "weight_decay": asked.weight_decay,
        "clip": asked.clip,
    }
    if asked.optimizer == "adamw":
        optimizer["betas"] = [0.9, 0.95]
    else:  # embedding, head and norms, which Muon leaves to AdamW, follow the plan too
        optimizer["adamw"] = {"rate": rate, "weight_decay": asked.weight_decay, "betas": [0.9, 0.95]}
    facts: TrainingSpec = {
        "updates": updates,
        "rows_per_update": asked.rows_per_update,
        "rows_per_step": asked.rows_per_step,
        "optimizer": optimizer,
        "schedule": schedule,
        "precision": ("bf16" if device == "cuda" else "float32") if asked.precision == "auto" else asked.precision,
        "linears": asked.linears,
        "recompute": asked.recompute,
        "compile": asked.compile,
        "deterministic": asked.deterministic,
        "seed": seed,
        "average": asked.average,
        "keep": max(2, asked.average),
        "checkpoint_every": every,
        "metrics_every": max(1, min(10, updates // 50)),
    }
    try:
        settings.Training.from_facts(facts).check_step(1)
    except ValueError as error:
        raise RecipeError(str(error)) from error
    return facts


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
    stages = [_stage(weights, checked) for weights, _ in before]
    for stage, (_, rows) in zip(stages, before, strict=True):
        stage["rows"] = rows
    return [*stages, _stage(last, checked)]


def _stage(weights: Mapping[str, float], checked: CheckedPlan) -> MixStage:
    return {
        "weights": {str(checked.folders[name]): weight for name, weight in weights.items()},
        "identity": {checked.fingerprints[name]: weight for name, weight in weights.items()},
    }


def _job(
    folder: Path,
    run: Run,
    *,
    stages: list[MixStage],
    share: float,
    begin: Start,
    training: TrainingSpec,
    evaluate: EvaluationSpec | None,
    checked: CheckedPlan,
    keep_model: bool,
    device: str,
    threads: int,
) -> Job:
    from gristmill.trainer.run import settings

    code = code_of_engine("training")
    for module in (
        "gristmill.trainer.run.loop",
        "gristmill.trainer.model.llama",
        "gristmill.shards.loader",
        "gristmill.pipeline.ablate.feeding",
    ):
        code = {**code, **code_of_module(module)}
    measures = {
        **code_of_engine("measuring"),
        **code_of_module("gristmill.trainer.evaluation.evaluate"),
        **code_of_module("gristmill.trainer.evaluation.multiple_choice"),
    }
    start = begin if "shape" in begin else {"fingerprint": begin["fingerprint"]}
    learns = settings.Training.from_facts(training).identity()
    reads = [{key: value for key, value in stage.items() if key != "weights"} for stage in stages]
    of_data = [] if run.order == 0 else [data_seed(run.seed, run.order)]
    fingerprint = digest([reads, share, start, learns, training["deterministic"], code, *of_data])
    measured = digest([fingerprint, identity(evaluate), checked.before, measures]) if evaluate else fingerprint
    return {
        "folder": str(folder), "arm": run.arm, "seed": run.seed, "order": run.order, "second_rate": run.second_rate,
        "length": run.length, "data_seed": data_seed(run.seed, run.order), "fingerprint": measured,
        "training_fingerprint": fingerprint,
        "stages": stages, "share": share, "begin": begin, "training": training, "evaluate": evaluate,
        "tokenizer": str(checked.tokenizer), "row_length": checked.meta.row_length, "before": checked.before,
        "keep_model": keep_model, "device": device, "threads": threads,
    }  # fmt: skip
