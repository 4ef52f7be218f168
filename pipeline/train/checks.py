"""What must hold before a rank starts: sets that fit each other, a model that can read them, orders that they have, and
a layout that a run accepts. Both commands ask here; each fault is one line with file, line and field."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.kernels.common.extras import install
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.look.token_sets import the_set
from gristmill.pipeline.recipe.plans import LoadedPlan
from gristmill.pipeline.recipe.yaml_lines import Place
from gristmill.pipeline.recipe.yaml_settings import check_names
from gristmill.pipeline.train.plan import Evaluation
from gristmill.shards.format import BadShards, ShardMeta
from gristmill.shards.reader import ShardSet, open_shards

if TYPE_CHECKING:
    from gristmill.trainer.model.shapes import DecoderShape
    from gristmill.trainer.parallel.planner import Layout
    from gristmill.trainer.run.settings import Training

VOCABULARY_STEP = 64  # matrices of a GPU like round sizes
LOOKED_AT = 64  # rows


def open_set(loaded: LoadedPlan[Any], name: str, folder: str) -> ShardSet:
    """A set of the plan; RecipeError where it cannot be read."""
    try:
        shards = open_shards(the_set(str(loaded.place(folder)), None))
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


def tokenizer_of(loaded: LoadedPlan[Any], first_set: Path) -> tuple[Path, str]:
    """The tokenizer.json of the evaluation, and its hash as shards keep it."""
    asked = loaded.plan.evaluate.tokenizer
    path = loaded.place(asked) if asked else first_set / "tokenizer" / "tokenizer.json"
    path = path / "tokenizer.json" if path.is_dir() else path
    try:
        return path, hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        hint = "" if asked else "; shards that `pack` wrote have it beside them, for others say evaluate.tokenizer"
        raise RecipeError(f"evaluate.tokenizer: {path}: cannot be read ({error.strerror}){hint}") from error


def model_source(loaded: LoadedPlan[Any], place: Place, given: Any) -> Path | None:
    """The folder of a model that is there: beside the plan, or fetched from the hub. None: a shape is named."""
    from gristmill.trainer.model.llama_config import LlamaError
    from gristmill.trainer.model.llama_files import model_folder
    from gristmill.trainer.model.shapes import NAMED

    if not isinstance(given, str) or given in NAMED:
        return None
    beside = loaded.place(given)
    if not beside.exists() and "/" not in given:
        raise loaded.wrong(place, f"{given!r} is no shape ({', '.join(NAMED)}) and no folder")
    try:
        return model_folder(beside if beside.exists() else given)
    except (LlamaError, OSError) as error:
        raise loaded.wrong(place, str(error)) from error


def shape_for(
    loaded: LoadedPlan[Any], place: tuple[str, ...], asked: Any, meta: ShardMeta, source: Path | None
) -> DecoderShape:
    """Of a model that is there, or of one that is named or given in numbers."""
    from gristmill.trainer.model.llama_config import LlamaError, shape_of
    from gristmill.trainer.model.llama_files import read_json
    from gristmill.trainer.model.shapes import DecoderShape, shape_named

    vocabulary = -(-meta.vocab_size // VOCABULARY_STEP) * VOCABULARY_STEP
    try:
        if source is not None:
            return shape_of(read_json(source / "config.json"), str(source / "config.json"))
        if isinstance(asked, str):
            return shape_named(asked, vocabulary, context=meta.row_length)
        facts = {"vocabulary": vocabulary, "context": meta.row_length, **asked}
        check_names(loaded.source, DecoderShape, facts, *place)
        return DecoderShape.from_facts(facts)
    except (LlamaError, OSError, TypeError, ValueError) as error:
        named, _, what = str(error).partition(": ")
        root, *field = named.split(".")
        raise (loaded.wrong((*place, *field), what) if root == "shape" else loaded.wrong(place, str(error))) from error


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
    shape: DecoderShape,
    training: Training,
    ranks: int,
    row_length: int,
    on_gpu: bool,
    only_planned: bool,
) -> tuple[Layout, int]:
    """What `parallel: auto` chooses, and over how many ranks; RecipeError says why there is nothing to choose."""
    import torch

    from gristmill.trainer.model.matmuls import has_fused_linears
    from gristmill.trainer.parallel.planner import NoLayout, Task, cards_from, choose

    try:
        cards = cards_from(loaded.plan.cards or {}, ranks)
    except ValueError as error:
        place, _, what = str(error).partition(": ")
        raise loaded.wrong(tuple(place.split(".")), what) from error
    if cards.count != ranks and not only_planned:
        raise loaded.wrong(("cards",), f"count is {cards.count:,}, the run has {ranks:,}; --dry-run plans for others")
    fused = on_gpu and has_fused_linears(torch.device("cuda"))
    task = Task(shape, training, cards, row_length, frozenset(loaded.plan.training.more), fused)
    try:
        return choose(task), cards.count
    except NoLayout as error:
        raise loaded.wrong(("parallel",), str(error)) from error


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
