"""A training run as one of its ranks carries it out: sets opened, the model made or loaded, trained, measured. `train`
and `ablate` both come here.

    python -m gristmill.pipeline.train.work FOLDER/job.json      a rank of a job, for an ablation's worker
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from gristmill.pipeline.errors import GristmillError
from gristmill.pipeline.processes import end_with_parent
from gristmill.pipeline.train.evaluation import HeldOutDocuments, documents_of
from gristmill.pipeline.train.facts import read_facts, write_facts
from gristmill.pipeline.train.feeding import rows_and_order
from gristmill.pipeline.train.progress import RunClock, keep_progress
from gristmill.pipeline.train.ranks import run_ranks
from gristmill.pipeline.train.records import EvaluationSpec, Job, Start, TrainingOutcome
from gristmill.shards.loader import RowSet
from gristmill.shards.orders import RowOrder

if TYPE_CHECKING:
    import torch

    from gristmill.trainer.evaluation.evaluate import HeldOut
    from gristmill.trainer.model.model import Decoder
    from gristmill.trainer.parallel.ranks import RankGroup
    from gristmill.trainer.run.loop import Target
    from gristmill.trainer.run.settings import Training

RESULT, JOB, OUTCOME, FAILED = "result.json", "job.json", "outcome.json", "failed.json"
BITS = "bits_per_byte"
MEASURES: dict[str, Literal["raw", "byte", "token"]] = {
    "accuracy": "raw",
    "accuracy_by_byte": "byte",
    "accuracy_by_token": "token",
}

Told = Callable[[Mapping[str, Any]], None]


def train_by_ranks(job: Job) -> TrainingOutcome:
    """A job that is trained by ranks of their own; an interrupt stops them, and each leaves the checkpoint."""
    folder = Path(job["folder"])
    for name in (OUTCOME, FAILED):
        (folder / name).unlink(missing_ok=True)
    code = run_ranks("gristmill.pipeline.train.work", [str(folder / JOB)], job["ranks"], job["threads"])
    if code == 130:
        raise KeyboardInterrupt
    if code:
        failed: dict[str, str] = read_facts(folder / FAILED, dict)
        raise GristmillError(failed.get("failed") or f"{folder}: a rank ended with exit code {code}")
    return read_facts(folder / OUTCOME, TrainingOutcome)


def train_job(job: Job, told: Told, clock: RunClock, ranks: RankGroup, device: torch.device) -> TrainingOutcome:
    """The run by the trainer, as one rank has it; its model is in the job's folder at the end."""
    from gristmill.shards.loader import Loader
    from gristmill.trainer.parallel.spread import over
    from gristmill.trainer.run.loop import train
    from gristmill.trainer.run.settings import Training

    # The first rank's, where `parallel: auto` measured other hosts differently.
    training = Training.from_facts(ranks.gather(job["training"])[0])
    folder = Path(job["folder"])
    sets, order = what_is_read(job, training)
    reader, readers = training.reader(ranks.rank, ranks.count)
    loader = Loader(sets, training.rows_per_update, order, training.order_seed, rank=reader, world=readers)
    spec = job["evaluate"]
    ask = Measures(job, spec, training, device, ranks, clock) if spec is not None and spec["watched"] else None
    outcome = train(
        first_model(job["begin"], device),
        loader,
        training,
        folder,
        device=device,
        on=over(ranks),
        evaluate=ask,
        evaluate_every=spec["every"] if spec is not None else None,
        evaluate_target=target_of(spec) if spec is not None else None,
        tokenizer=None if job["tokenizer"] is None else Path(job["tokenizer"]),
        told=told,
        initial_weights=job["begin"].get("fingerprint"),
    )
    facts = cast(TrainingOutcome, asdict(outcome) | {"seconds_on_the_way": round(sum(clock.measured), 3)})
    facts["evaluation"] = dict(ask.last) if ask is not None else {}
    return facts


def clock_of(job: Job) -> RunClock:
    """Of the progress of a job."""
    spec, training = job["evaluate"], job["training"]
    every = (spec["every"] or training["updates"]) if spec is not None and spec["watched"] else None
    return RunClock(training["updates"], every, training["metrics_every"])


def what_is_read(job: Job, training: Training) -> tuple[RowSet, RowOrder]:
    rows = training.updates * training.rows_per_update
    return rows_and_order(job["stages"], job["share"], training.order_seed, rows, training.unlocking is not None)


def first_model(begin: Start, device: torch.device) -> Decoder:
    """Loaded, or with random weights."""
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


def target_of(spec: EvaluationSpec) -> Target | None:
    """What `patience` follows, by the name that its values have."""
    from gristmill.trainer.run.loop import Target

    name = spec["target"]
    if name is None or name not in spec["watched"]:
        return None
    higher = name in spec["choices"] and spec["choices"][name]["score"] != BITS
    return Target(spec["watched"][name], higher)


class Measures:
    """What is measured as a run goes on, and at its end: texts in bits per byte and questions by their score; ranks
    share the work."""

    def __init__(
        self,
        job: Job,
        spec: EvaluationSpec,
        training: Training,
        device: torch.device,
        ranks: RankGroup,
        clock: RunClock,
    ) -> None:
        from tokenizers import Tokenizer

        from gristmill.trainer.evaluation.multiple_choice import read_questions
        from gristmill.trainer.parallel.ranks import ALONE

        self.job, self.device, self.clock = job, device, clock
        # Ranks that share layers, or hold some of them, see the same texts.
        self.ranks = ranks if training.tensor == training.pipeline == 1 else ALONE
        self.tokenizer = Tokenizer.from_file(str(job["tokenizer"]))
        documents = {
            shown: watched_documents(spec, name) for name, shown in spec["watched"].items() if name in spec["texts"]
        }
        self.texts = {shown: held_out_texts(of_set, job) for shown, of_set in documents.items()}
        self.domains = {shown: of_set.domains for shown, of_set in documents.items()}
        self.choices = {
            shown: (read_questions(Path(spec["choices"][name]["file"])), spec["choices"][name]["score"])
            for name, shown in spec["watched"].items()
            if name in spec["choices"]
        }
        self.last: dict[str, float] = {}

    def __call__(self, model: Decoder, update: int) -> dict[str, float]:
        with self.clock.measuring():
            return self._measure(model)

    def _measure(self, model: Decoder) -> dict[str, float]:
        from gristmill.trainer.evaluation.multiple_choice import answer_questions

        self.last = {}
        for name, held_out in self.texts.items():
            measured = held_out.measured(model, self.device, ranks=self.ranks)
            self.last[name] = measured.bits_per_byte()
            domains = dict.fromkeys(self.domains[name])
            for domain in domains if len(domains) > 1 else ():
                own = [each == domain for each in self.domains[name]]
                self.last[f"{name}/{domain}"] = float(measured.bits[own].sum() / measured.bytes[own].sum())
        length, before = self.job["row_length"], self.job["before"]
        for name, (questions, score) in self.choices.items():
            answers = answer_questions(
                model, questions, self.tokenizer, length, self.device, before=before, ranks=self.ranks
            )
            self.last[name] = float(answers.bits_per_byte() if score == BITS else answers.accuracy(MEASURES[score]))
        return self.last


def watched_documents(spec: EvaluationSpec, name: str) -> HeldOutDocuments:
    """All documents of a text, or the few of an ablation's curves."""
    texts = spec["texts"][name]
    few = spec["point_documents"]
    return documents_of(name, texts if few is None else {**texts, "most": min(few, texts["most"] or few)})


def held_out_texts(documents: HeldOutDocuments, job: Job) -> HeldOut:
    """Texts as the trainer measures them."""
    from tokenizers import Tokenizer

    from gristmill.trainer.evaluation.evaluate import HeldOut

    return HeldOut.of(
        documents.texts,
        Tokenizer.from_file(str(job["tokenizer"])),
        job["row_length"],
        before=job["before"],
    )


def harness(job: Job, device: torch.device) -> dict[str, float]:
    """Tasks of lm-evaluation-harness, of the model that was written."""
    tasks: Sequence[str] = job["evaluate"]["harness"] if job["evaluate"] is not None else ()
    if not tasks:
        return {}
    import torch
    from lm_eval import simple_evaluate  # type: ignore[import-not-found]

    from gristmill.shards.reader import open_shards
    from gristmill.trainer.evaluation.harness import harness_model

    meta = open_shards(next(iter(job["stages"][0]["weights"]))).meta
    dtype = torch.bfloat16 if job["training"]["precision"] == "bf16" else torch.float32
    folder, tokenizer = Path(job["folder"]) / "model", Path(str(job["tokenizer"]))
    asked = harness_model(folder, tokenizer, meta.row_length, device, dtype, before=job["before"], end=meta.eos_id)
    found = simple_evaluate(model=asked, tasks=list(tasks))["results"]
    return {
        f"{task}.{name.partition(',')[0]}": float(value)
        for task, values in found.items()
        for name, value in values.items()
        if isinstance(value, float)
    }


def message_of(error: Exception) -> str:
    """One line; memory of a GPU is told apart, for it asks for another setting."""
    if type(error).__name__ == "OutOfMemoryError":
        return (
            f"out of GPU memory: {str(error).splitlines()[0]} Take a smaller training.rows_per_step, or"
            " training.recompute: full"
        )
    named = f"{type(error).__name__}: {error}" if type(error).__module__ == "builtins" else str(error)
    return " ".join(named.split())


def work_as_rank(path: Path) -> int:
    """Returns the exit code; the first rank leaves what came of the job, and one that fails why."""
    import torch

    from gristmill.trainer.parallel.ranks import RankError, join_ranks
    from gristmill.trainer.run.stopping import Stopped

    end_with_parent()
    job = read_facts(path, Job)
    folder = Path(job["folder"])
    torch.set_num_threads(max(1, job["threads"] // job["ranks"]))
    try:
        with join_ranks(job["device"]) as (ranks, device):
            clock = clock_of(job)
            outcome = train_job(job, keep_progress(folder, clock), clock, ranks, device)
            if ranks.first:
                write_facts(folder / OUTCOME, outcome)
    except (Stopped, KeyboardInterrupt):
        return 130
    except RankError as error:  # another one says what went wrong
        print(error, file=sys.stderr)
        return 1
    except Exception as error:  # whatever it is, the driver says it of its arm
        write_facts(folder / FAILED, {"failed": message_of(error), "rank": os.environ.get("RANK", "0")})
        return 1
    return 0


if __name__ == "__main__":
    code = work_as_rank(Path(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of gloo that are still there may abort an interpreter that ends in order
