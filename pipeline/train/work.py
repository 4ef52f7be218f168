"""A training run as one of its ranks carries it out: sets opened, the model made or loaded, trained, measured."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gristmill.kernels.common.files import write_whole
from gristmill.kernels.common.settings import in_a_sentence
from gristmill.pipeline.ablate.evaluation import documents_of, file_of_choices, texts_spec
from gristmill.pipeline.ablate.facts import read_facts
from gristmill.pipeline.ablate.feeding import rows_and_order
from gristmill.pipeline.ablate.progress import RunClock
from gristmill.pipeline.errors import GristmillError, RecipeError
from gristmill.pipeline.look.token_sets import the_set
from gristmill.pipeline.recipe.fingerprint import file_hash, stamp
from gristmill.pipeline.recipe.yaml_settings import check_names
from gristmill.pipeline.store.storage import digest
from gristmill.pipeline.train.plan import Loaded, lay_out, training_of
from gristmill.shards.format import BadShards, ShardMeta
from gristmill.shards.orders import AsWritten, RowOrder, Shuffled, bucket_stretches, segment_stretches
from gristmill.shards.reader import ShardSet, open_shards

if TYPE_CHECKING:
    import torch

    from gristmill.pipeline.ablate.trial import Trial
    from gristmill.trainer.evaluation.scoring import Continuation
    from gristmill.trainer.model.model import Decoder
    from gristmill.trainer.model.shapes import DecoderShape
    from gristmill.trainer.parallel.cards import Cards
    from gristmill.trainer.parallel.planner import Layout
    from gristmill.trainer.parallel.ranks import RankGroup
    from gristmill.trainer.run.settings import Training

RESULT = "result.json"
VOCABULARY_STEP = 64  # matrices of a GPU like round sizes
LOOKED_AT = 64  # rows
SAMPLED = 256  # rows, whose documents a layout is chosen by
BITS = "bits_per_byte"
MEASURES: dict[str, Literal["raw", "byte", "token"]] = {
    "accuracy": "raw",
    "accuracy_by_byte": "byte",
    "accuracy_by_token": "token",
}

Told = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class Ready:
    """A plan whose sets, tokenizer and model fit each other."""

    loaded: Loaded
    shards: dict[str, ShardSet]  # by name, those that the mix names
    shape: DecoderShape
    source: Path | None  # the folder of a model that the run goes on from
    training: Training
    ranks: int = 1
    layout: Layout | None = None  # what `parallel: auto` chose

    @property
    def meta(self) -> ShardMeta:
        return next(iter(self.shards.values())).meta

    @property
    def tokenizer(self) -> Path | None:
        path = next(iter(self.shards.values())).folder / "tokenizer" / "tokenizer.json"
        return path if path.is_file() else None

    @property
    def weights(self) -> dict[str, float]:
        """Shares of tokens by set, in sum 1."""
        given = self.loaded.plan.mix or {name: self.tokens_of(name) for name in self.shards}
        return {name: given[name] / sum(given.values()) for name in self.shards}

    def tokens_of(self, name: str) -> float:
        return float(self.shards[name].index.total("tokens"))

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
        plan, folder = self.loaded.plan, self.loaded.folder
        evaluate = plan.evaluate
        texts = {name: {**texts_spec(folder, name, each), "files": None} for name, each in evaluate.texts.items()}
        choices = {}
        for name, asked in evaluate.choices.items():
            path = file_of_choices(folder, name, asked)
            choices[name] = [file_hash(str(path), *stamp(path)), asked.score]
        sections = {
            "sets": [{each.fingerprint: self.weights[name] for name, each in self.shards.items()}, plan.order],
            "model": [self.shape.facts(), self.initial_weights],
            "training": self.training.identity(),
            "evaluate": [texts, choices, evaluate.harness, evaluate.every],
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
        evaluate, updates = self.loaded.plan.evaluate, self.training.updates
        return -(-updates // (evaluate.every or updates)) if evaluate.texts or evaluate.choices else 0


def prepare(loaded: Loaded, on_gpu: bool, ranks: int = 1, only_planned: bool = False) -> Ready:
    """Everything that can be wrong is said before anything is trained. `only_planned`: for cards that may be
    elsewhere."""
    from gristmill.trainer.evaluation.multiple_choice import BadQuestions, read_questions
    from gristmill.trainer.run.progress import BadRun, check_model

    plan = loaded.plan
    shards = {}
    for name in plan.mix or plan.sets:
        try:
            shards[name] = open_shards(the_set(str(loaded.place(plan.sets[name])), None))
        except (BadShards, RecipeError) as error:
            raise loaded.wrong(("sets", name), str(error)) from error
        if not len(shards[name]):
            raise loaded.wrong(("sets", name), f"{shards[name].folder}: holds no rows")
    (first, reference), *others = shards.items()
    for name, each in others:
        for what in ("tokenizer_hash", "vocab_size", "row_length", "pad_id"):
            if getattr(each.meta, what) != getattr(reference.meta, what):
                raise loaded.wrong(("sets", name), f"another {what} than {first}'s; sets of a run share it")
    source = _source(loaded)
    shape = _shape(loaded, reference.meta, source)
    ready = Ready(loaded, shards, shape, source, training_of(loaded, reference.meta.row_length, on_gpu), ranks)
    if plan.parallel == "auto":
        ready = _laid_out(ready, on_gpu, only_planned)
    try:
        check_model(shape, ready.meta, reference.folder)
    except BadRun as error:
        raise loaded.wrong(("model",), str(error)) from error
    try:
        ready.training.check_step(max(1, ready.ranks // ready.training.ranks_of_a_row))
    except ValueError as error:
        raise loaded.wrong(("training",), str(error)) from error
    if plan.order == "buckets" and not any((block.bucket >= 0).any() for block in reference.blocks()):
        raise loaded.wrong(
            ("order",), f"{reference.folder}: no row has a bucket; put an `order` stage with steps before `pack`"
        )
    evaluate = plan.evaluate
    if (evaluate.texts or evaluate.choices or evaluate.harness) and ready.tokenizer is None:
        raise loaded.wrong(("evaluate",), f"there is no tokenizer/tokenizer.json beside {reference.folder}")
    for name, texts in evaluate.texts.items():
        documents_of(name, texts_spec(loaded.folder, name, texts))
    for name, choices in evaluate.choices.items():
        try:
            read_questions(file_of_choices(loaded.folder, name, choices))
        except BadQuestions as error:
            raise loaded.wrong(("evaluate", "choices", name), str(error)) from error
    if evaluate.harness:
        from importlib.util import find_spec

        if find_spec("lm_eval") is None:
            needs = "needs lm-evaluation-harness: pip install 'gristmill[harness]'"
            raise loaded.wrong(("evaluate", "harness"), needs)
    return ready


def _laid_out(ready: Ready, on_gpu: bool, only_planned: bool) -> Ready:
    import torch

    from gristmill.trainer.model.quack import has_fused_linears
    from gristmill.trainer.parallel.costs import DocumentLengths
    from gristmill.trainer.parallel.planner import Task

    rows = [
        each.row(int(place)).seq_lens
        for name, each in ready.shards.items()
        for place in np.linspace(0, len(each) - 1, max(1, round(SAMPLED * ready.weights[name])))
    ]
    documents = DocumentLengths([lengths for lengths in rows if len(lengths)])

    def task(cards: Cards) -> Task:
        return Task(
            ready.shape,
            ready.training,
            cards,
            ready.meta.row_length,
            documents,
            frozenset(ready.loaded.plan.training),
            on_gpu and has_fused_linears(torch.device("cuda")),
        )

    layout, ranks = lay_out(ready.loaded, task, ready.ranks, only_planned)
    return replace(ready, training=layout.training, ranks=ranks, layout=layout)


def finished(ready: Ready, folder: Path) -> dict[str, Any] | None:
    """What came of this run, if it is done already; RecipeError where the folder holds another one's result."""
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
    """Every rank calls this; the first one gets what came of the run, which is in FOLDER/result.json too. A run that
    was stopped goes on from its last checkpoint; one that is done is not done again."""
    from gristmill.trainer.parallel.ranks import join_ranks

    with join_ranks() as (ranks, device):
        return _trained(ready, folder, told, clock, ranks, device)


def _trained(
    ready: Ready, folder: Path, told: Told, clock: RunClock, ranks: RankGroup, device: torch.device
) -> dict[str, Any] | None:
    import torch

    from gristmill.shards.loader import Loader
    from gristmill.trainer.run.loop import train
    from gristmill.trainer.run.settings import Training

    if ready.layout is not None:  # the first rank's, where hosts measured differently
        ready = replace(ready, training=Training.from_facts(ranks.gather(ready.training.facts())[0]))
    training = ready.training
    of_a_row = training.ranks_of_a_row
    if ranks.count % of_a_row:
        raise GristmillError(
            f"training.tensor x training.context x training.pipeline is {of_a_row}; {ranks.count} ranks are no multiple"
        )
    sets, order = _rows(ready)
    reader, readers = training.reader(ranks.rank, ranks.count)
    loader = Loader(sets, training.rows_per_update, order, training.seed, rank=reader, world=readers)
    every = ready.loaded.plan.evaluate.every
    ask = _Measures(ready, device, ranks, clock) if ready.measurements else None
    outcome = train(
        _model(ready, device),
        loader,
        training,
        folder,
        device=device,
        ranks=ranks,
        evaluate=ask,
        evaluate_every=every,
        tokenizer=ready.tokenizer,
        told=told,
        initial_weights=ready.initial_weights,
    )
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
        **asdict(outcome),
        "loss": outcome.loss if math.isfinite(outcome.loss) else None,
        "evaluation": {**(ask.last if ask else {}), **_harness(ready, folder, device)},
    }
    write_whole(folder / RESULT, (json.dumps(result, indent=1, sort_keys=True) + "\n").encode())
    if not ready.loaded.plan.keep_checkpoints:
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return result


class _Measures:
    """Texts in bits per byte and questions by their score; ranks share the work."""

    def __init__(self, ready: Ready, device: torch.device, ranks: RankGroup, clock: RunClock) -> None:
        from tokenizers import Tokenizer

        from gristmill.trainer.evaluation.evaluate import HeldOut, opening_of
        from gristmill.trainer.evaluation.multiple_choice import read_questions
        from gristmill.trainer.parallel.ranks import ALONE

        loaded, self.row_length, self.device = ready.loaded, ready.meta.row_length, device
        self.clock = clock
        evaluate = loaded.plan.evaluate
        first = next(iter(ready.shards.values()))
        self.before = opening_of(first.take(range(min(LOOKED_AT, len(first)))), ready.meta.bos_id)
        self.tokenizer = Tokenizer.from_file(str(ready.tokenizer))
        training = ready.training  # ranks that share layers, or hold some of them, see the same texts
        self.ranks = ranks if training.tensor == training.pipeline == 1 else ALONE
        self.texts = {}
        for name, texts in evaluate.texts.items():
            found = documents_of(name, texts_spec(loaded.folder, name, texts))
            self.texts[name] = HeldOut.of(
                found.texts, found.domains, self.tokenizer, self.row_length, before=self.before
            )
        self.choices = {
            name: (read_questions(file_of_choices(loaded.folder, name, choices)), choices.score)
            for name, choices in evaluate.choices.items()
        }
        self.last: dict[str, float] = {}

    def __call__(self, model: Decoder, update: int) -> dict[str, float]:
        with self.clock.measuring():
            return self._measure(model)

    def _measure(self, model: Decoder) -> dict[str, float]:
        from gristmill.trainer.evaluation.multiple_choice import answer_questions

        self.last = {
            name: held_out.measured(model, self.device, ranks=self.ranks).bits_per_byte()
            for name, held_out in self.texts.items()
        }
        for name, (questions, score) in self.choices.items():
            answers = answer_questions(
                model, questions, self.tokenizer, self.row_length, self.device, before=self.before, ranks=self.ranks
            )
            self.last[name] = float(answers.bits_per_byte() if score == BITS else answers.accuracy(MEASURES[score]))
        return self.last


def try_run(ready: Ready, on_gpu: bool) -> Trial:
    """The run of one rank, for a few seconds."""
    import torch

    from gristmill.pipeline.ablate.trial import pieces_of_questions, try_out
    from gristmill.shards.loader import Loader
    from gristmill.trainer.parallel.ranks import ALONE

    begun, device = time.perf_counter(), torch.device("cuda" if on_gpu else "cpu")
    training = ready.training
    pieces: dict[str, Sequence[Continuation]] = {}
    sets, order = _rows(ready)
    loader = Loader(sets, training.rows_per_update, order, training.seed)
    if ready.measurements:
        ask = _Measures(ready, device, ALONE, RunClock(1, None, 1))
        pieces = {name: held_out.pieces for name, held_out in ask.texts.items()}
        for name, choices in ready.loaded.plan.evaluate.choices.items():
            file = file_of_choices(ready.loaded.folder, name, choices)
            pieces[name] = pieces_of_questions(file, Path(str(ready.tokenizer)), ask.row_length, ask.before)
    return try_out(lambda: _model(ready, device), ready.shape, loader, training, pieces, device, begun)


def _rows(ready: Ready) -> tuple[Any, RowOrder]:
    """What the loader reads, and in which order."""
    if len(ready.shards) > 1:
        weights = {str(ready.shards[name].folder): share for name, share in ready.weights.items()}
        return rows_and_order([{"weights": weights, "identity": {}}], 1.0, ready.training.seed)
    (shards,) = ready.shards.values()
    if ready.training.unlocking is not None:
        from gristmill.trainer.run.unlocking import Unlocked, buckets_of

        return shards, Unlocked(buckets_of(shards))
    if ready.loaded.plan.order == "segments":
        return shards, segment_stretches(shards)
    if ready.loaded.plan.order == "buckets":
        return shards, bucket_stretches(shards)
    return shards, AsWritten() if ready.loaded.plan.order == "as_written" else Shuffled()


def _source(loaded: Loaded) -> Path | None:
    """The folder of a model that is there: beside the plan, or fetched from the hub. None: a shape is named."""
    from gristmill.trainer.model.llama_config import LlamaError
    from gristmill.trainer.model.llama_files import model_folder
    from gristmill.trainer.model.shapes import NAMED

    given = loaded.plan.model
    model = given.get("upcycle") if isinstance(given, dict) else given
    if not isinstance(model, str) or model in NAMED:
        return None
    beside = loaded.place(model)
    if not beside.exists() and "/" not in model:
        raise loaded.wrong(("model",), f"{model!r} is no shape ({', '.join(NAMED)}) and no folder")
    try:
        return model_folder(beside if beside.exists() else model)
    except (LlamaError, OSError) as error:
        raise loaded.wrong(("model",), str(error)) from error


def _shape(loaded: Loaded, meta: ShardMeta, source: Path | None) -> DecoderShape:
    from gristmill.trainer.model.llama_config import LlamaError, shape_of
    from gristmill.trainer.model.llama_files import read_json
    from gristmill.trainer.model.shapes import DecoderShape, shape_named
    from gristmill.trainer.model.upcycling import upcycled_shape

    asked = loaded.plan.model
    vocabulary = -(-meta.vocab_size // VOCABULARY_STEP) * VOCABULARY_STEP
    try:
        if source is not None:
            shape = shape_of(read_json(source / "config.json"), str(source / "config.json"))
            return shape if isinstance(asked, str) else upcycled_shape(shape, asked)
        if isinstance(asked, str):
            return shape_named(asked, vocabulary, context=meta.row_length)
        facts = {"vocabulary": vocabulary, "context": meta.row_length, **asked}
        check_names(loaded.source, DecoderShape, facts, "model")
        return DecoderShape.from_facts(facts)
    except (LlamaError, OSError, TypeError, ValueError) as error:
        raise loaded.wrong(("model",), str(error)) from error


def _model(ready: Ready, device: torch.device) -> Decoder:
    import torch

    from gristmill.trainer.model.attention import fastest
    from gristmill.trainer.model.llama import load_llama
    from gristmill.trainer.model.model import Decoder, initialise
    from gristmill.trainer.model.upcycling import upcycled

    if ready.source is not None:
        model = load_llama(ready.source, device, attend=fastest(device))
        return model if model.shape == ready.shape else upcycled(model, ready.shape, ready.training.seed)
    with torch.device(device):
        model = Decoder(ready.shape, fastest(device))
    return initialise(model, ready.training.seed)


def _harness(ready: Ready, folder: Path, device: torch.device) -> dict[str, float]:
    """Tasks of lm-evaluation-harness, of the model that was written."""
    tasks: Sequence[str] = ready.loaded.plan.evaluate.harness
    if not tasks:
        return {}
    import torch
    from lm_eval import simple_evaluate  # type: ignore[import-not-found]
    from tokenizers import Tokenizer

    from gristmill.trainer.evaluation.evaluate import opening_of
    from gristmill.trainer.evaluation.harness import harness_model
    from gristmill.trainer.model.attention import fastest
    from gristmill.trainer.model.llama import load_llama

    first, meta = next(iter(ready.shards.values())), ready.meta
    dtype = torch.bfloat16 if ready.training.precision == "bf16" else torch.float32
    model = load_llama(folder / "model", device, dtype, fastest(device)).eval()
    before = opening_of(first.take(range(min(LOOKED_AT, len(first)))), meta.bos_id)
    asked = harness_model(
        model, Tokenizer.from_file(str(ready.tokenizer)), meta.row_length, device, before=before, end=meta.eos_id
    )
    found = simple_evaluate(model=asked, tasks=list(tasks))["results"]
    return {
        f"{task}.{name.partition(',')[0]}": float(value)
        for task, values in found.items()
        for name, value in values.items()
        if isinstance(value, float)
    }
