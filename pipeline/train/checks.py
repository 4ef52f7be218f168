"""What must hold before a rank starts: sets that fit each other, a model that can read them, orders that they have, and
a layout that a run accepts. Both commands ask here; each fault is one line with file, line and field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.kernels.common.extras import install
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.look.token_sets import the_set
from gristmill.pipeline.recipe.fingerprint import file_hash, stamp
from gristmill.pipeline.recipe.plans import LoadedPlan
from gristmill.pipeline.recipe.yaml_lines import Place
from gristmill.pipeline.recipe.yaml_settings import check_names
from gristmill.pipeline.store.storage import digest
from gristmill.pipeline.train.evaluation import documents_of, evaluation_spec, identity, tokenizer_of
from gristmill.pipeline.train.feeding import order_problem
from gristmill.pipeline.train.plan import Evaluation, Loaded, facts_of, lay_out, training_from
from gristmill.pipeline.train.records import EvaluationSpec, Job, MixStage, Start
from gristmill.shards.format import BadShards, ShardMeta
from gristmill.shards.reader import ShardSet, open_shards

if TYPE_CHECKING:
    from gristmill.trainer.model.shapes import DecoderShape
    from gristmill.trainer.parallel.cards import Cards
    from gristmill.trainer.parallel.planner import Layout, Task
    from gristmill.trainer.run.settings import Training

VOCABULARY_STEP = 64  # matrices of a GPU like round sizes
LOOKED_AT = 64  # rows
SAMPLED = 256  # rows, whose documents a layout is chosen by


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
    shards = {name: open_set(loaded, name) for name in plan.mix or plan.sets}
    (_, reference), *others = shards.items()
    for name, each in others:
        if what := unlike(each.meta, reference.meta, reference.folder):
            raise loaded.wrong(("sets", name), what)
    meta = reference.meta
    source = model_source(loaded, ("model",), plan.model)
    shape = shape_for(loaded, ("model",), plan.model, meta, source)
    updates = plan.training.more.get("updates")
    if plan.tokens is not None:
        updates = plan.training.updates(plan.tokens, meta.row_length)
    facts = facts_of(plan.training, updates, on_gpu, order=plan.order)
    training = training_from(loaded.source, facts, "training")
    check_fit(loaded, ("model",), meta, shape, reference.folder)
    layout = None
    if plan.parallel == "auto":
        weights = plan.mix or {name: float(each.index.total("tokens")) for name, each in shards.items()}
        layout, ranks = chosen_layout(loaded, shards, weights, shape, training, ranks, on_gpu, only_planned)
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


def open_set(loaded: LoadedPlan[Any], name: str) -> ShardSet:
    """A set of the plan; RecipeError where it cannot be read."""
    try:
        shards = open_shards(the_set(str(loaded.place(loaded.plan.sets[name])), None))
    except (BadShards, RecipeError) as error:
        raise loaded.wrong(("sets", name), str(error)) from error
    if not len(shards):
        raise loaded.wrong(("sets", name), f"{shards.folder}: holds no rows")
    return shards


def unlike(meta: ShardMeta, reference: ShardMeta, where: Path) -> str:
    """Why two sets cannot be read in one run; "": they can."""
    for name, what in (
        ("tokenizer_hash", "tokenizer"),
        ("vocab_size", "vocabulary"),
        ("row_length", "length of rows"),
        ("pad_id", "padding"),
    ):
        ours, theirs = getattr(meta, name), getattr(reference, name)
        if ours != theirs:
            named = f" ({meta.tokenizer}, not {reference.tokenizer})" if name == "tokenizer_hash" else ""
            return f"another {what} than {where}: {str(ours)[:12]}, not {str(theirs)[:12]}{named}"
    return ""


def opening_in(shards: ShardSet) -> int | None:
    """The token that stands before every document."""
    from gristmill.trainer.evaluation.evaluate import opening_of

    return opening_of(shards.take(np.arange(min(LOOKED_AT, len(shards)))), shards.meta.bos_id)


def model_source(loaded: LoadedPlan[Any], place: Place, given: Any) -> Path | None:
    """The folder of a model that is there: beside the plan, or fetched from the hub. None: a shape is named."""
    from gristmill.trainer.model.llama_config import LlamaError
    from gristmill.trainer.model.llama_files import model_folder
    from gristmill.trainer.model.shapes import NAMED

    model = given.get("upcycle") if isinstance(given, dict) else given
    if not isinstance(model, str) or model in NAMED:
        return None
    beside = loaded.place(model)
    if not beside.exists() and "/" not in model:
        raise loaded.wrong(place, f"{model!r} is no shape ({', '.join(NAMED)}) and no folder")
    try:
        return model_folder(beside if beside.exists() else model)
    except (LlamaError, OSError) as error:
        raise loaded.wrong(place, str(error)) from error


def shape_for(
    loaded: LoadedPlan[Any], place: tuple[str, ...], asked: Any, meta: ShardMeta, source: Path | None
) -> DecoderShape:
    """Of a model that is there, of an upcycled one, or of one that is named or given in numbers."""
    from gristmill.trainer.model.llama_config import LlamaError, shape_of
    from gristmill.trainer.model.llama_files import read_json
    from gristmill.trainer.model.shapes import DecoderShape, shape_named
    from gristmill.trainer.model.upcycling import upcycled_shape

    vocabulary = -(-meta.vocab_size // VOCABULARY_STEP) * VOCABULARY_STEP
    try:
        if source is not None:
            shape = shape_of(read_json(source / "config.json"), str(source / "config.json"))
            return shape if isinstance(asked, str) else upcycled_shape(shape, asked)
        if isinstance(asked, str):
            return shape_named(asked, vocabulary, context=meta.row_length)
        facts = {"vocabulary": vocabulary, "context": meta.row_length, **asked}
        check_names(loaded.source, DecoderShape, facts, *place)
        return DecoderShape.from_facts(facts)
    except (LlamaError, OSError, TypeError, ValueError) as error:
        raise loaded.wrong(place, str(error)) from error


def check_fit(loaded: LoadedPlan[Any], place: Place, meta: ShardMeta, shape: DecoderShape, where: Path) -> None:
    """Has the model a place for every token and every row?"""
    from gristmill.trainer.run.progress import BadRun, check_model

    try:
        check_model(shape, meta, where)
    except BadRun as error:
        raise loaded.wrong(place, str(error)) from error


def check_layout(
    loaded: LoadedPlan[Any], training: Training, shape: DecoderShape, ranks: int, row_length: int, *above: str
) -> None:
    """What a run over so many ranks would refuse; `above` is the place of `training` unless the plan's own."""
    from gristmill.trainer.run.settings import layout_faults

    for name, what in layout_faults(training, shape, ranks, row_length):
        raise loaded.wrong((*above, "training", name), what)


def chosen_layout(
    loaded: LoadedPlan[Any],
    shards: Mapping[str, ShardSet],
    weights: Mapping[str, float],
    shape: DecoderShape,
    training: Training,
    ranks: int,
    on_gpu: bool,
    only_planned: bool,
) -> tuple[Layout, int]:
    """What `parallel: auto` chooses, by documents of these sets."""
    import torch

    from gristmill.trainer.model.matmuls import has_fused_linears
    from gristmill.trainer.parallel.costs import DocumentLengths
    from gristmill.trainer.parallel.planner import Task

    whole = sum(weights[name] for name in shards)
    rows = [
        each.row(int(place)).seq_lens
        for name, each in shards.items()
        for place in np.linspace(0, len(each) - 1, max(1, round(SAMPLED * weights[name] / whole)))
    ]
    documents = DocumentLengths([lengths for lengths in rows if len(lengths)])
    length = next(iter(shards.values())).meta.row_length

    def task(cards: Cards) -> Task:
        fused = on_gpu and has_fused_linears(torch.device("cuda"))
        given = frozenset(loaded.plan.training.more)
        return Task(shape, training, cards, length, documents, given, fused)

    return lay_out(loaded, task, ranks, only_planned)


def check_evaluation(loaded: LoadedPlan[Any], evaluate: Evaluation) -> None:
    """Questions that can be read, and a harness that is there."""
    from gristmill.pipeline.train.evaluation import file_of_choices
    from gristmill.trainer.evaluation.multiple_choice import BadQuestions, read_questions

    for name, choices in evaluate.choices.items():
        try:
            read_questions(file_of_choices(loaded.folder, name, choices))
        except BadQuestions as error:
            raise loaded.wrong(("evaluate", "choices", name), str(error)) from error
    if evaluate.harness:
        from importlib.util import find_spec

        if find_spec("lm_eval") is None:
            needs = f"needs lm-evaluation-harness: {install('harness')}"
            raise loaded.wrong(("evaluate", "harness"), needs)
