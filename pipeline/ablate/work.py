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
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.pipeline.errors import GristmillError, in_words
from gristmill.pipeline.store.lock import one_run_at_a_time
from gristmill.pipeline.store.storage import Store
from gristmill.pipeline.train.evaluation import ITEMS, documents_of
from gristmill.pipeline.train.facts import read_facts, write_facts
from gristmill.pipeline.train.progress import PROGRESS, begin_measuring, keep_progress
from gristmill.pipeline.train.records import ChoicesSpec, EvaluationSpec, Job, JobResult, TrainingOutcome
from gristmill.pipeline.train.work import (
    BITS,
    FAILED,
    JOB,
    MEASURES,
    OUTCOME,
    RESULT,
    clock_of,
    harness,
    held_out_texts,
    message_of,
    train_by_ranks,
    train_job,
)

if TYPE_CHECKING:
    import torch

    from gristmill.trainer.model.model import Decoder

TRAINED, ITEMS_FILE = "trained.json", "items.parquet"
OF_TRAINING = ("run.json", "metrics.jsonl", "checkpoints", "model", "tensorboard", TRAINED, OUTCOME, FAILED)
OF_MEASURING = (RESULT, ITEMS_FILE)


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
        return failure(job, message_of(error), "" if is_ours(error) else traceback.format_exc())
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
    tasks = harness(job, device)
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
        "harness": tasks,
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

    from gristmill.trainer.parallel.ranks import ALONE
    from gristmill.trainer.run.stopping import Stopped

    if job["ranks"] > 1:
        facts = train_by_ranks(job)
    else:
        clock = clock_of(job)
        try:
            facts = train_job(job, keep_progress(folder, clock), clock, ALONE, device)
        except Stopped as error:
            raise KeyboardInterrupt from error
        if device.type == "cuda":
            torch.cuda.empty_cache()
    # Of this session's measurements; those before a kill count as training.
    facts["seconds"] = max(0.0, facts["seconds"] - facts["seconds_on_the_way"])
    if not facts["counted"]:
        raise GristmillError(
            f"{folder}: no token that was read has a next one in its document, so that nothing was learned"
        )
    if not math.isfinite(facts["loss"]):
        raise GristmillError(f"{folder}: the run ended with a loss that is not a number")
    return facts


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


def _chosen(name: str, choices: ChoicesSpec, model: Decoder, job: Job, device: torch.device) -> pa.Table:
    from tokenizers import Tokenizer

    from gristmill.trainer.evaluation.multiple_choice import answer_questions, read_questions

    questions = read_questions(Path(choices["file"]))
    answered = answer_questions(
        model, questions, Tokenizer.from_file(str(job["tokenizer"])), job["row_length"], device, before=job["before"]
    )
    domains = [question.domain for question in questions]
    clusters = domains if choices["cluster"] == "domain" else [question.id for question in questions]
    if choices["score"] == BITS:
        return items_of(name, domains, clusters, answered.answer_bits, answered.answer_bytes)
    return items_of(name, domains, clusters, answered.correct(MEASURES[choices["score"]]), np.ones(len(questions)))


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
