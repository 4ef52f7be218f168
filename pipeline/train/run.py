"""The run of `gristmill train`: a plan made ready, and carried out by each of its ranks."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gristmill.kernels.common.files import write_whole
from gristmill.kernels.common.settings import in_a_sentence
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.recipe.fingerprint import file_hash, stamp
from gristmill.pipeline.store.storage import digest
from gristmill.pipeline.train.checks import (
    check_evaluation,
    check_fit,
    check_layout,
    chosen_layout,
    model_source,
    open_set,
    opening_in,
    shape_for,
    tokenizer_of,
    unlike,
)
from gristmill.pipeline.train.evaluation import documents_of, evaluation_spec, identity
from gristmill.pipeline.train.facts import read_facts
from gristmill.pipeline.train.feeding import order_problem
from gristmill.pipeline.train.plan import Loaded, facts_of, training_from
from gristmill.pipeline.train.progress import RunClock
from gristmill.pipeline.train.records import EvaluationSpec, Job, MixStage, Start
from gristmill.pipeline.train.work import RESULT, Told, harness, train_job
from gristmill.shards.format import ShardMeta
from gristmill.shards.reader import ShardSet

if TYPE_CHECKING:
    from gristmill.trainer.model.shapes import DecoderShape
    from gristmill.trainer.parallel.planner import Layout
    from gristmill.trainer.run.settings import Training


@dataclass(frozen=True)
class Ready:
    """A plan of `gristmill train` whose sets, tokenizer and model fit each other."""

    loaded: Loaded
    shards: dict[str, ShardSet]  # by name, those that the mix names
    shape: DecoderShape
    source: Path | None  # the folder of a model that the run goes on from
    training: Training
    evaluate: EvaluationSpec
    tokenizer: Path | None
    before: int | None
    ranks: int = 1
    layout: Layout | None = None  # what `parallel: auto` chose

    @property
    def meta(self) -> ShardMeta:
        return next(iter(self.shards.values())).meta

    @property
    def weights(self) -> dict[str, float]:
        """Shares of tokens by set, in sum 1."""
        given = self.loaded.plan.mix or {name: float(each.index.total("tokens")) for name, each in self.shards.items()}
        return {name: given[name] / sum(given.values()) for name in self.shards}

    @property
    def tokens(self) -> int:
        """Of the run, padding counted."""
        return self.training.updates * self.training.rows_per_update * self.meta.row_length

    @cached_property
    def initial_weights(self) -> str | None:
        """A hash of the weights that the run starts from; None: random ones."""
        if self.source is None:
            return None
        files = sorted([self.source / "config.json", *self.source.glob("*.safetensors")])
        return digest([[path.name, file_hash(str(path), *stamp(path))] for path in files])

    @cached_property
    def identity(self) -> dict[str, str]:
        """What makes two runs the same run, their measurements too: hashes by section of the plan."""
        plan = self.loaded.plan
        sections = {
            "sets": [{each.fingerprint: self.weights[name] for name, each in self.shards.items()}, plan.order],
            "model": [self.shape.facts(), self.initial_weights],
            "training": self.training.identity(),
            "evaluate": [identity(self.evaluate), plan.evaluate.harness, plan.evaluate.every],
        }
        return {name: digest(section) for name, section in sections.items()}

    @property
    def epochs(self) -> dict[str, float]:
        """How often each set is gone through; rows of all sets taken to be equally full."""
        whole = {name: len(each) * self.meta.row_length for name, each in self.shards.items()}
        return {name: self.tokens * share / max(1, whole[name]) for name, share in self.weights.items()}

    @property
    def measurements(self) -> int:
        """How often texts and choices are measured."""
        updates = self.training.updates
        return -(-updates // (self.evaluate["every"] or updates)) if self.evaluate["watched"] else 0

    def job(self, folder: Path, on_gpu: bool, threads: int = 0) -> Job:
        """The run as plain data."""
        plan = self.loaded.plan
        weights = {str(self.shards[name].folder): share for name, share in self.weights.items()}
        stage: MixStage = {"weights": weights, "identity": {}}
        if plan.order != "shuffled":
            stage["orders"] = dict.fromkeys(weights, plan.order)
        begin: Start = {"shape": self.shape.facts(), "seed": self.training.seed}
        if self.source is not None:
            begin |= {"model": str(self.source), "fingerprint": str(self.initial_weights)}
        return {
            "folder": str(folder), "arm": plan.name, "seed": self.training.seed,
            "fingerprint": digest(self.identity), "training_fingerprint": digest(self.identity),
            "stages": [stage], "share": 1.0, "begin": begin, "training": self.training.facts(), "ranks": self.ranks,
            "evaluate": self.evaluate, "tokenizer": None if self.tokenizer is None else str(self.tokenizer),
            "row_length": self.meta.row_length, "before": self.before, "keep_model": True,
            "device": "cuda" if on_gpu else "cpu", "threads": threads,
        }  # fmt: skip


def prepare(loaded: Loaded, on_gpu: bool, ranks: int = 1, only_planned: bool = False) -> Ready:
    """Everything that can be wrong is said before anything is trained. `only_planned`: for cards that may be
    elsewhere."""
    plan = loaded.plan
    shards = {name: open_set(loaded, name, plan.sets[name]) for name in plan.mix or plan.sets}
    (_, reference), *others = shards.items()
    for name, each in others:
        if what := unlike(each.meta, reference.meta, reference.folder):
            raise loaded.wrong(("sets", name), what)
    meta = reference.meta
    source = model_source(loaded, ("model",), plan.model)
    shape = shape_for(loaded, ("model",), plan.model, meta, source)
    length = meta.row_length
    updates = plan.training.updates(plan.tokens, length) if plan.tokens is not None else plan.training.more["updates"]
    facts = facts_of(plan.training, updates, on_gpu, order=plan.order)
    training = training_from(loaded.source, facts, "training")
    check_fit(loaded, ("model",), meta, shape, reference.folder)
    layout = None
    if plan.parallel == "auto":
        layout, ranks = chosen_layout(loaded, shape, training, ranks, length, on_gpu, only_planned)
        training = layout.training
    check_layout(loaded, training, shape, ranks, meta.row_length)
    for each in shards.values():
        order = "buckets" if training.unlocking is not None else plan.order
        if problem := order_problem(each, order):
            raise loaded.wrong(("order",), problem)
    tokenizer, before = None, None
    if plan.evaluate.texts or plan.evaluate.choices or plan.evaluate.harness:
        tokenizer, written = tokenizer_of(loaded, reference.folder)
        if written != meta.tokenizer_hash:
            raise loaded.wrong(("evaluate", "tokenizer"), f"{tokenizer}: is not the tokenizer of {reference.folder}")
        before = opening_in(reference)
    check_evaluation(loaded, plan.evaluate)
    names = {name: name for name in (*plan.evaluate.texts, *plan.evaluate.choices)}
    spec = evaluation_spec(loaded.folder, plan.evaluate, plan.evaluate.every, names)
    for name, texts in spec["texts"].items():
        documents_of(name, texts)
    default = reference.folder / "tokenizer" / "tokenizer.json"
    tokenizer = tokenizer or (default if default.is_file() else None)
    return Ready(loaded, shards, shape, source, training, spec, tokenizer, before, ranks, layout)


def finished(ready: Ready, folder: Path) -> dict[str, Any] | None:
    """What came of a run of `gristmill train`, if it is done already; RecipeError where the folder holds another one's
    result."""
    result: dict[str, Any] = read_facts(folder / RESULT, dict)
    if not result or not (folder / "model").is_dir():
        return None
    if result["identity"] != ready.identity:
        changed = [name for name, section in ready.identity.items() if result["identity"].get(name) != section]
        raise RecipeError(
            f"{folder} holds the result of another run: {in_a_sentence(changed, len(changed))} changed since (the plan, "
            "or files that it names); take another --out, or remove this one"
        )
    return result


def carry_out(ready: Ready, folder: Path, told: Told, clock: RunClock) -> dict[str, Any] | None:
    """Every rank of `gristmill train` calls this; the first one gets what came of the run, which is in
    FOLDER/result.json too. A run that was stopped goes on from its last checkpoint; one that is done is not done
    again."""
    import torch

    from gristmill.trainer.parallel.ranks import join_ranks

    with join_ranks() as (ranks, device):
        job = ready.job(folder, device.type == "cuda")
        outcome = train_job(job, told, clock, ranks, device)
        if not ranks.first:
            return None
        kind = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        result = {
            "name": ready.loaded.plan.name,
            "identity": ready.identity,
            "model": str(folder / "model"),
            "parameters": ready.shape.parameters,
            "ranks": ranks.count,
            "device": kind,
            **outcome,
            "loss": outcome["loss"] if math.isfinite(outcome["loss"]) else None,
            "evaluation": {**outcome["evaluation"], **harness(job, device)},
        }
        write_whole(folder / RESULT, (json.dumps(result, indent=1, sort_keys=True) + "\n").encode())
        if not ready.loaded.plan.keep_checkpoints:
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        return result
