"""One job, done: train, measure, write down. Runs in a worker; what went wrong comes back as words, so that one arm
does not sink the rest.

A job that is done already (same hash, its files there) is not done again; one that was killed goes on from its last
checkpoint.
"""

from __future__ import annotations

import contextlib
import math
import platform
import shutil
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.pipeline.ablate.evaluation import ITEMS, HeldOutDocuments, documents_of
from gristmill.pipeline.ablate.facts import read_facts, write_facts
from gristmill.pipeline.ablate.feeding import rows_and_order
from gristmill.pipeline.ablate.progress import PROGRESS, RunClock, begin_measuring, keep_progress
from gristmill.pipeline.ablate.records import ChoicesSpec, EvaluationSpec, Job, JobResult, Start, TrainingOutcome
from gristmill.pipeline.errors import GristmillError, in_words
from gristmill.pipeline.store.lock import one_run_at_a_time
from gristmill.pipeline.store.storage import Store

TRAINED, RESULT, ITEMS_FILE, JOB = "trained.json", "result.json", "items.parquet", "job.json"
OF_TRAINING = ("run.json", "metrics.jsonl", "checkpoints", "model", "tensorboard", TRAINED)
OF_MEASURING = (RESULT, ITEMS_FILE)


if TYPE_CHECKING:
    import torch

    from gristmill.trainer.evaluation.evaluate import HeldOut
    from gristmill.trainer.model.model import Decoder


def carry_out(job: Job) -> JobResult:
    """What came of a job, as it stands in its result.json; {"failed": words} if nothing did."""
    folder = Path(job["folder"])
    done = finished(job)
    if done is not None:
        return {**done, "anew": False}
    try:
        store = Store(str(folder))
        store.make_root()
        with one_run_at_a_time(store):  # a worker elsewhere may still be at what another driver has asked of it
            result = _done(job, folder)
            write_facts(folder / RESULT, result)
            if not job["keep_model"]:  # not before: a job that is killed here would be trained again
                shutil.rmtree(folder / "model", ignore_errors=True)
    except GristmillError as error:
        return failure(job, str(error))
    except MemoryError as error:
        return failure(job, f"out of memory: {error}")
    except OSError as error:
        return failure(job, in_words(error, str(folder)))
    except Exception as error:  # whatever it is, it is this job's
        return failure(job, _message_of(error), "" if is_ours(error) else traceback.format_exc())
    return {**result, "anew": True}


def finished(job: Job) -> JobResult | None:
    """The result that is there already, if it is that of the same job and its files are there."""
    folder = Path(job["folder"])
    result = read_facts(folder / RESULT, JobResult)
    if result.get("fingerprint") != job["fingerprint"]:
        return None
    if job["evaluate"] is not None and not (folder / ITEMS_FILE).is_file():
        return None
    return result if not job["keep_model"] or (folder / "model").is_dir() else None


def failure(job: Job, words: str, trace: str = "") -> JobResult:
    return {"arm": job["arm"], "seed": job["seed"], "failed": words, "trace": trace, "anew": True}


def _done(job: Job, folder: Path) -> JobResult:
    import torch

    torch.set_num_threads(max(1, job["threads"]))
    if job["device"] == "cuda" and not torch.cuda.is_available():
        raise GristmillError(
            "this machine has a GPU that torch does not see; is it a build of torch without CUDA?"
            " (CUDA_VISIBLE_DEVICES= runs on the CPU)"
        )
    device = torch.device(job["device"])
    _clear(folder, OF_MEASURING)
    if read_facts(folder / JOB, TrainedFile).get("training_fingerprint") != job["training_fingerprint"]:
        _clear(folder, OF_TRAINING)
    write_facts(folder / JOB, job)
    trained = read_facts(folder / TRAINED, TrainedFile)
    if trained.get("fingerprint") != job["training_fingerprint"] or not (folder / "model").is_dir():
        trained = {"fingerprint": job["training_fingerprint"], "outcome": _trained(job, folder, device)}
        write_facts(folder / TRAINED, trained)
    outcome = trained["outcome"]
    start = time.perf_counter()
    begin_measuring(folder, job["training"]["updates"])
    items = _measured(job, job["evaluate"], folder, device) if job["evaluate"] else None
    if items is not None:
        draft = folder / f".{ITEMS_FILE}"
        pq.write_table(items, draft)
        draft.replace(folder / ITEMS_FILE)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    (folder / PROGRESS).unlink(missing_ok=True)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    result: JobResult = {
        "arm": job["arm"],
        "seed": job["seed"],
        "fingerprint": job["fingerprint"],
        "training_fingerprint": job["training_fingerprint"],
        **outcome,  # type: ignore[typeddict-item]  # it has no keys but those of an outcome
        "seconds_measuring": round(time.perf_counter() - start + outcome.get("seconds_on_the_way", 0.0), 3),
        "measured_in": job["training"]["precision"] if items is not None else None,
        "device": name,
        "versions": _versions(),
    }
    return result


class TrainedFile(TypedDict, total=False):
    """trained.json; of job.json what says which training it was."""

    fingerprint: str
    training_fingerprint: str
    outcome: TrainingOutcome


def _trained(job: Job, folder: Path, device: torch.device) -> TrainingOutcome:
    """The run by the trainer; its checkpoints stay until it is measured."""
    import torch

    from gristmill.shards.loader import Loader
    from gristmill.trainer.run.loop import train
    from gristmill.trainer.run.settings import Training
    from gristmill.trainer.run.stopping import Stopped

    training = Training.from_facts(job["training"])
    sets, order = rows_and_order(job["stages"], job["share"], job["data_seed"])
    loader = Loader(sets, training.rows_per_update, order, job["data_seed"])
    model = first_model(job["begin"], device)
    asked = job["evaluate"]
    documents = on_the_way(asked) if asked else None
    every = -(-training.updates // asked["points"]) if asked and documents else None
    clock = RunClock(training.updates, every, training.metrics_every)
    try:
        outcome = train(
            model,
            loader,
            training,
            folder,
            device=device,
            evaluate=_target(job, documents, clock, device) if documents else None,
            evaluate_every=every,
            tokenizer=Path(job["tokenizer"]),
            save_model=True,
            told=keep_progress(folder, clock),
        )
    except Stopped as error:
        raise KeyboardInterrupt from error
    if device.type == "cuda":
        del model
        torch.cuda.empty_cache()
    facts = cast(TrainingOutcome, asdict(outcome) | {"seconds_on_the_way": round(sum(clock.measured), 3)})
    # Of this session's measurements; those before a kill count as training.
    facts["seconds"] = max(0.0, outcome.seconds - sum(clock.measured))
    if not outcome.counted:
        raise GristmillError(
            f"{folder}: no token that was read has a next one in its document, so that nothing was learned"
        )
    if not math.isfinite(facts["loss"]):
        raise GristmillError(f"{folder}: the run ended with a loss that is not a number")
    return facts


def first_model(begin: Start, device: torch.device) -> Decoder:
    import torch

    from gristmill.trainer.model.attention import fastest
    from gristmill.trainer.model.llama import load_llama
    from gristmill.trainer.model.model import Decoder, initialise
    from gristmill.trainer.model.shapes import DecoderShape

    if "model" in begin:
        return load_llama(begin["model"], device, attend=fastest(device))
    with torch.device(device):
        model = Decoder(DecoderShape.from_facts(begin["shape"]), fastest(device))
    return initialise(model, begin["seed"])


def on_the_way(asked: EvaluationSpec) -> HeldOutDocuments | None:
    """Documents of the target that are measured as a run goes on, for the curves of the report."""
    if not asked["points"] or asked["target"] not in asked["texts"]:
        return None
    texts = asked["texts"][asked["target"]]
    most = min(asked["point_documents"], texts["most"] or asked["point_documents"])
    return documents_of(asked["target"], {**texts, "most": most})


def _target(
    job: Job, documents: HeldOutDocuments, clock: RunClock, device: torch.device
) -> Callable[[Decoder, int], dict[str, float]]:
    """Measures the target on these documents as the run goes on."""
    held_out = held_out_texts(documents, job)

    def evaluate(model: Decoder, update: int) -> dict[str, float]:
        with clock.measuring():
            return {"target_bits_per_byte": held_out.measured(model, device).bits_per_byte()}

    return evaluate


def _measured(job: Job, asked: EvaluationSpec, folder: Path, device: torch.device) -> pa.Table:
    """Every item of every set, as it was scored."""
    import torch

    from gristmill.trainer.model.attention import fastest
    from gristmill.trainer.model.llama import load_llama
    from gristmill.trainer.step.precision import autocast_for

    # As it computed in training; but linear maps that were in fp8 are measured in bf16.
    precision = job["training"]["precision"]
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    model = load_llama(folder / "model", device, dtype, fastest(device)).eval()
    tables = []
    with torch.no_grad(), autocast_for(device, "fp16") if precision == "fp16" else contextlib.nullcontext():
        for name, texts in asked["texts"].items():
            documents = documents_of(name, texts)
            scored = held_out_texts(documents, job).measured(model, device)
            tables.append(items_of(name, documents.domains, documents.clusters, scored.bits, scored.bytes))
        for name, choices in asked["choices"].items():
            tables.append(_chosen(name, choices, model, job, device))
    return pa.concat_tables(tables)


def held_out_texts(documents: HeldOutDocuments, job: Job) -> HeldOut:
    """Texts as the trainer measures them."""
    from tokenizers import Tokenizer

    from gristmill.trainer.evaluation.evaluate import HeldOut

    return HeldOut.of(
        documents.texts,
        documents.domains,
        Tokenizer.from_file(job["tokenizer"]),
        job["row_length"],
        before=job["before"],
    )


def _chosen(name: str, choices: ChoicesSpec, model: Decoder, job: Job, device: torch.device) -> pa.Table:
    from tokenizers import Tokenizer

    from gristmill.trainer.evaluation.multiple_choice import answer_questions, read_questions

    questions = read_questions(Path(choices["file"]))
    answered = answer_questions(
        model, questions, Tokenizer.from_file(job["tokenizer"]), job["row_length"], device, before=job["before"]
    )
    domains = [question.domain for question in questions]
    clusters = domains if choices["cluster"] == "domain" else [question.id for question in questions]
    if choices["score"] == "bits_per_byte":
        return items_of(name, domains, clusters, answered.answer_bits, answered.answer_bytes)
    kinds: dict[str, Literal["raw", "byte", "token"]] = {
        "accuracy": "raw",
        "accuracy_by_byte": "byte",
        "accuracy_by_token": "token",
    }
    return items_of(name, domains, clusters, answered.correct(kinds[choices["score"]]), np.ones(len(questions)))


def items_of(
    name: str, domains: list[str], clusters: list[str], values: npt.ArrayLike, sizes: npt.ArrayLike
) -> pa.Table:
    values, sizes = np.asarray(values, np.float64), np.asarray(sizes, np.float64)
    count = len(values)
    if not np.any(sizes):
        raise GristmillError(f"{name}: the tokenizer leaves nothing of its texts, so there is nothing to measure")
    if not np.isfinite(values).all():
        raise GristmillError(
            f"{name}: the model gives scores that are not finite numbers; it has learned nothing that can be measured"
        )
    columns = [
        [name] * count,
        np.arange(count, dtype=np.int32),
        domains,
        clusters,
        values,
        sizes,
    ]
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, ITEMS, strict=True)], schema=ITEMS)


def is_ours(error: Exception) -> bool:
    """Errors with a name of their own (of the trainer, of shards) say what to do; of others the trace is kept."""
    return (
        type(error).__module__.startswith(("gristmill.trainer.", "gristmill.shards."))
        or type(error).__name__ == "OutOfMemoryError"
    )


def _message_of(error: Exception) -> str:
    """One line; memory of a GPU is told apart, for it asks for another setting."""
    if type(error).__name__ == "OutOfMemoryError":
        return (
            f"out of GPU memory: {str(error).splitlines()[0]} Take a smaller training.rows_per_step, or"
            " training.recompute: full"
        )
    named = f"{type(error).__name__}: {error}" if type(error).__module__ == "builtins" else str(error)
    return " ".join(named.split())


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    versions = {"python": platform.python_version()}
    for package in ("gristmill", "torch", "numpy", "tokenizers", "triton"):
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def _clear(folder: Path, names: tuple[str, ...]) -> None:
    for name in names:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
