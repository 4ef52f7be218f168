"""How far a run has come: what a checkpoint says beside the weights, and the folder that a run owns.

FOLDER/run.json         what the run is: settings, shards, their order, the model's shape
       metrics.jsonl    gristmill.trainer.run.metrics
       checkpoints/     gristmill.trainer.step.checkpoint; the facts of each are a `Progress`
       model/           the result, as Hugging Face reads it
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gristmill.kernels.common.files import write_whole
from gristmill.shards.format import BadShards, ShardMeta
from gristmill.shards.loader import Loader
from gristmill.trainer.model.shapes import DecoderShape
from gristmill.trainer.run.settings import Training, differences, layout_faults
from gristmill.trainer.run.unlocking import Unlocked
from gristmill.trainer.step.world import World

RUN, METRICS, CHECKPOINTS, MODEL = "run.json", "metrics.jsonl", "checkpoints", "model"


class OtherRun(ValueError):
    """The folder holds a run with other settings."""


class BadRun(ValueError):
    """Settings, shards and model do not fit each other; raised before the first step."""


@dataclass
class Progress:
    """`update` is how many were made, refused ones counted. `loader` is its state after what they read; `log` is
    what buckets were opened when, `best` the target's best value and `not_better` the measurements since, `line_...`
    what waits for the next line of metrics."""

    update: int = 0
    tokens: int = 0
    counted: int = 0
    loss: float | None = None
    seconds: float = 0.0
    joules: float | None = None
    refused: int = 0
    in_a_row: int = 0
    rows_per_step: int | None = None
    loader: dict[str, Any] = field(default_factory=dict)
    watch: dict[str, Any] = field(default_factory=lambda: {"losses": [], "norms": []})
    log: list[dict[str, Any]] = field(default_factory=list)
    stage_losses: list[float] = field(default_factory=list)
    best: float | None = None
    not_better: int = 0
    line_losses: list[float] = field(default_factory=list)
    line_events: list[dict[str, Any]] = field(default_factory=list)

    def facts(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Progress:
        return cls(**facts)


def identity_of(
    shape: DecoderShape, loader: Loader, training: Training, initial_weights: str | None = None
) -> dict[str, Any]:
    """As JSON has it. `initial_weights`: a hash of the weights that the run starts from; None: random ones."""
    where = {name: value for name, value in loader.state_dict().items() if name != "version"}
    begins = {} if initial_weights is None else {"initial_weights": initial_weights}
    return {"training": training.identity(), "model": json.loads(json.dumps(shape.facts())), "data": where, **begins}


def check(shape: DecoderShape, loader: Loader, training: Training, world: World) -> None:
    """Before the first step. Ranks that share layers see the same rows."""
    of_a_row = training.ranks_of_a_row
    if world.count % of_a_row:
        raise BadRun(
            f"tensor {training.tensor}, context {training.context}, pipeline {training.pipeline}: {world.count} "
            f"ranks cannot be cut into groups of {of_a_row} that read the same rows"
        )
    reader, readers = training.reader(world.number, world.count)
    meta, where = loader.shards.meta, loader.shards.folder
    check_model(shape, meta, where)
    if loader.batch_rows != training.rows_per_update:
        raise BadRun(
            f"the loader's batches have {loader.batch_rows:,} rows, rows_per_update is {training.rows_per_update:,}; "
            "make them equal"
        )
    if (loader.rank, loader.world) != (reader, readers):
        raise BadRun(
            f"the loader is that of rank {loader.rank} of {loader.world}, this process sees the rows of rank {reader} "
            f"of {readers}"
        )
    if fault := next(layout_faults(training, shape, world.count, meta.row_length), None):
        raise BadRun(": ".join(fault))


def check_model(shape: DecoderShape, meta: ShardMeta, where: Path) -> None:
    """Whether a model of this shape can read these rows."""
    if meta.vocab_size > shape.vocabulary:
        raise BadRun(
            f"{where}: tokens of a vocabulary of {meta.vocab_size:,} ({meta.tokenizer}), the model knows "
            f"{shape.vocabulary:,}; "
            f"make the model with vocabulary={meta.vocab_size} or more, or pack the shards with its tokenizer"
        )
    if meta.row_length > shape.context:
        raise BadRun(
            f"{where}: rows of {meta.row_length:,} tokens, the model's context is {shape.context:,}; make it with "
            f"context={meta.row_length}"
        )


def check_supply(loader: Loader, updates: int) -> None:
    if loader.epochs is not None and len(loader) < updates:
        raise BadRun(
            f"{loader.shards.folder}: {loader.epochs} epochs hold {len(loader):,} more updates of "
            f"{loader.batch_rows:,} rows, {updates:,} are still to come; "
            "give the loader more epochs, or None for no end"
        )


def check_every(updates: int | None) -> None:
    if updates is not None and (type(updates) is not int or updates < 1):
        raise BadRun(f"evaluate_every {updates!r}: a whole number of updates above 0, or None for at the end alone")


def unwritable(shape: DecoderShape, folder: Path, tokenizer: Path | None) -> str | None:
    """Why the model could not be written at the end; asked while there is nothing to lose yet."""
    from gristmill.trainer.model.llama import check_save
    from gristmill.trainer.model.llama_config import LlamaError

    try:
        check_save(shape, folder / MODEL, tokenizer)
    except LlamaError as error:
        return str(error)
    return None


def claim(folder: Path, identity: Mapping[str, Any]) -> str | None:
    """Makes the folder this run's, or says why it is not."""
    path = folder / RUN
    if path.exists():
        try:
            recorded = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            return f"{path}: not JSON ({error}); take another folder, or remove this one"
        differing = differences(identity, recorded)
        return (
            f"{folder} holds another run; take another folder, or remove this one. " + "; ".join(differing)
            if differing
            else None
        )
    if any((folder / name).exists() for name in (METRICS, CHECKPOINTS, MODEL)):
        return f"{folder} holds results of something that left no {RUN}; take another folder"
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(identity, indent=1, sort_keys=True).encode())
    return None


def log_of(loader: Loader, training: Training) -> list[dict[str, Any]]:
    """The buckets with which the run begins."""
    if not isinstance(loader.order, Unlocked):
        if training.unlocking is not None:
            raise BadRun(
                "unlocking needs a loader whose order is Unlocked(buckets_of(shards)), of "
                "gristmill.trainer.run.unlocking"
            )
        return []
    if loader.epoch_rows != len(loader.shards):
        raise BadRun("an order that opens buckets knows no epochs: make the loader without whole_epochs_only")
    return [opened.facts() for opened in loader.order.log]


def set_back(loader: Loader, state: Mapping[str, Any]) -> None:
    try:
        loader.load_state_dict(state)
    except BadShards as error:
        raise OtherRun(f"the checkpoint was made on other data: {error}") from None
