"""A neural judge made smaller and faster: layers dropped and mended by distillation, two of every four weights removed,
weights rounded to 8 or 4 bits; and what that costs, as rank correlation to the full judge on texts held out.

In this order, each step on what the last one left. Texts need no labels: the full judge's answers are what is learned
(Hinton et al. 2015; of layers: Sanh et al. 2019). Rounding and removal make up for their errors
(`error_compensation`), a block at a time, on what the blocks before it give once they are compressed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gristmill.classifiers.card import Json, JudgeError
from gristmill.classifiers.judge import Scores
from gristmill.classifiers.neural.coded_linear import CodedProjection
from gristmill.classifiers.neural.encoder import Encoder, PackedTexts, Projection
from gristmill.classifiers.neural.error_compensation import LARGEST, compensated_codes, compensated_sparse
from gristmill.classifiers.neural.fast_linear import decode, rounded_maps
from gristmill.classifiers.neural.judge import NeuralJudge, neural_judge, versions
from gristmill.classifiers.neural.network import Network
from gristmill.classifiers.neural.training import (
    LabelledTokens,
    NeuralRecipe,
    endless_updates,
    tokenised,
    updates_of,
    with_dropout,
)
from gristmill.classifiers.training_sets import LabelledTexts, held_out
from gristmill.kernels.base.types import Array
from gristmill.mixing.weights.spearman import spearman
from gristmill.trainer.step.optim import update
from gristmill.trainer.step.precision import autocast_for, usual_precision

Weights = Literal["float32", "int8", "int4"]


@dataclass(frozen=True)
class Compression:
    """`layers` that stay: the first and the last always do, and of the others one after another goes whose absence
    changes the judge's answers least."""

    weights: Weights = "int8"
    sparse: bool = False  # of every four weights two are 0
    layers: int | None = None
    epochs: float = 3.0  # of distillation after layers were dropped; 0: none
    calibration: int = 256  # texts by which layers are chosen and errors made up for
    held_out: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        if self.weights not in get_args(Weights):
            raise JudgeError(f"weights {self.weights!r} are one of {', '.join(get_args(Weights))}")
        if self.weights == "float32" and not self.sparse and self.layers is None:
            raise JudgeError("nothing to compress: fewer bits, sparse weights or fewer layers")


def compress(
    judge: NeuralJudge,
    texts: LabelledTexts,
    how: Compression,
    device: str = "cpu",
    log: Callable[[Json], None] = lambda facts: None,
) -> NeuralJudge:
    """Labels of `texts` do not matter, but for which groups are held out."""
    full_layers = judge.network.encoder.shape.layers
    if how.layers is not None and not 2 <= how.layers < full_layers:
        raise JudgeError(
            f"{how.layers} layers: this judge has {full_layers}, of which 2 or more stay and 1 or more goes"
        )
    outside = held_out(texts, how.held_out, how.seed) if how.held_out else np.zeros(len(texts), np.bool_)
    inside = np.flatnonzero(~outside)
    if not len(inside):
        raise JudgeError("no text is left to compress by; give more texts, or hold fewer out")
    data = tokenised(texts.texts, None, np.zeros((len(texts), 1), np.float32), judge.tokenizer)
    some = np.sort(np.random.default_rng(how.seed).permutation(inside)[: how.calibration])
    where = torch.device(device)
    network = copy.deepcopy(judge.network).to(where).eval().requires_grad_(False)
    decode(network.encoder)
    steps = [data.packed(rows, where) for rows in steps_of_rows(data, some)]
    kept = list(range(full_layers))
    mended: Json = {}
    if how.layers is not None:
        kept = kept_layers(network, steps, how.layers)
        log({"layers": [number + 1 for number in kept], "of": full_layers})
        short = Network(shorter(network.encoder, kept), judge.card.heads)
        short.heads = copy.deepcopy(network.heads)
        short = short.to(where)
        if how.epochs:
            recipe = NeuralRecipe(epochs=how.epochs, update_tokens=8192, step_tokens=8192, seed=how.seed, dropout=0.0)
            mended = mend(short, network, data, inside, recipe, log)
        network = short.eval().requires_grad_(False)
    if how.sparse or how.weights != "float32":
        compress_weights(network.encoder, steps, how.weights, how.sparse, log)
    facts = {
        "compression": asdict(how)
        | {"layers_kept": [number + 1 for number in kept], "layers_of": full_layers, "texts": len(inside), **mended},
        "fingerprint": texts.fingerprint,
        "texts": judge.card.training.get("texts"),
        "full_judge": {"training": judge.card.training, "metrics": judge.card.metrics},
    }
    card = replace(judge.card, training=facts, metrics={}, versions=versions())
    small = neural_judge(card, network, judge.tokenizer)
    if outside.any():
        unseen = texts.take(outside).texts
        cost = loss_of_order(judge.at("cpu", "float32").score(unseen), small.score(unseen))
        small = replace(small, card=replace(card, metrics=cost))
    return small


def loss_of_order(full: Scores, small: Scores) -> Json:
    """By head: how well the order of the full judge's scores is kept."""
    return {
        name: {
            "texts": len(scores),
            "spearman_to_full": spearman(scores.astype(np.float64), small[name].astype(np.float64)),
            "largest_difference": float(np.abs(scores - small[name]).max()),
        }
        for name, scores in full.items()
    }


def steps_of_rows(data: LabelledTokens, rows: Array) -> list[Array]:
    """All rows once, in steps of a forward pass."""
    recipe = NeuralRecipe(step_tokens=4096, update_tokens=1)
    return [step for steps in updates_of(data.lengths, rows, recipe, 0) for step in steps]


# --- layers ----------------------------------------------------------------------------------------------------------


def shorter(encoder: Encoder, kept: Sequence[int]) -> Encoder:
    """These layers alone, copied."""
    shape = encoder.shape
    windows, thetas = (tuple(of[i] for i in kept) if of else () for of in (shape.windows, shape.thetas))
    short = Encoder(replace(shape, layers=len(kept), windows=windows, thetas=thetas))
    for name in ("tokens", "positions", "distances", "distance_norm", "embedding_norm", "final_norm", "pooler"):
        setattr(short, name, copy.deepcopy(getattr(encoder, name)))
    short.blocks = nn.ModuleList(copy.deepcopy(encoder.blocks[i]) for i in kept)
    return with_dropout(short, 0.0)


def kept_layers(network: Network, steps: Sequence[PackedTexts], layers: int) -> list[int]:
    """Numbers of the layers that stay, rising."""
    encoder = network.encoder
    kept = list(range(len(encoder.blocks)))
    answers = logits_of(network, encoder, steps)
    while len(kept) > layers:
        changes = {
            number: float(
                F.mse_loss(logits_of(network, shorter(encoder, [i for i in kept if i != number]), steps), answers)
            )
            for number in kept[1:-1]
        }
        kept.remove(min(changes, key=lambda number: changes[number]))
    return kept


@torch.inference_mode()
def logits_of(network: Network, encoder: Encoder, steps: Sequence[PackedTexts]) -> Tensor:
    return torch.cat([network.heads(encoder.eval()(packed).float()) for packed in steps])


def mend(
    short: Network,
    full: Network,
    data: LabelledTokens,
    rows: Array,
    recipe: NeuralRecipe,
    log: Callable[[Json], None],
) -> Json:
    """Trains `short` in place to answer as `full` does: on the squared differences of what heads read and what they
    say, each over its variance."""
    device = next(full.parameters()).device
    targets = _targets(full, data, rows, device)
    spread = [
        of[torch.from_numpy(rows)].var(0, correction=0).mean().clamp(min=1e-9).to(device) for of in targets.values()
    ]
    planned = max(1, round(sum(1 for _ in updates_of(data.lengths, rows, recipe, 0)) * recipe.epochs))
    learning = list(short.train().requires_grad_(True).parameters())
    optimizer = recipe.optimizer.optimizer(short)
    precision = recipe.precision or usual_precision(device)

    def losses(steps: list[Array]) -> Iterator[Tensor]:
        texts = sum(len(step) for step in steps)
        for step in steps:
            with autocast_for(device, precision):
                vectors = short.encoder(data.packed(step, device))
            found = (vectors.float(), short.heads(vectors.float()))
            wanted = (targets[name][torch.from_numpy(step)].to(device) for name in targets)
            parts = [((f - w) ** 2).mean(1).sum() / s for f, w, s in zip(found, wanted, spread, strict=True)]
            yield (parts[0] + parts[1]) / texts

    loss = 0.0
    for done, steps in enumerate(islice(endless_updates(data.lengths, rows, recipe), planned), 1):
        result = update(
            optimizer, learning, losses(steps), recipe.schedule.share(done - 1, planned), recipe.optimizer.clip
        )
        loss = float(result.loss)
        if done % 20 == 0 or done == planned:
            log({"update": done, "of": planned, "loss": round(loss, 5)})
    return {"updates": planned, "last_loss": loss}


@torch.no_grad()
def _targets(full: Network, data: LabelledTokens, rows: Array, device: torch.device) -> dict[str, Tensor]:
    """What heads read of each text, and what they say."""
    texts, heads = len(data.lengths), full.heads
    found = {"vectors": torch.zeros(texts, heads.in_features), "logits": torch.zeros(texts, heads.out_features)}
    for step in steps_of_rows(data, rows):
        vectors_NW = full.encoder(data.packed(step, device)).float()
        found["vectors"][torch.from_numpy(step)] = vectors_NW.cpu()
        found["logits"][torch.from_numpy(step)] = heads(vectors_NW).cpu()
    return found


# --- weights ---------------------------------------------------------------------------------------------------------


class Observed(nn.Module):
    """A linear map that sums up the second moments of its inputs."""

    def __init__(self, plain: Projection) -> None:
        super().__init__()
        self.plain = plain
        inputs = plain.weight.shape[1]
        self.moment_II = torch.zeros(inputs, inputs, device=plain.weight.device)

    @property
    def weight(self) -> Tensor:
        return self.plain.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.rows(x, 0, len(self.plain.weight))

    def added(self, x: Tensor, to: Tensor) -> Tensor:
        return to + self(x)

    def rows(self, x: Tensor, start: int, stop: int) -> Tensor:
        flat = x.flatten(0, -2).float()
        self.moment_II.addmm_(flat.t(), flat)
        return self.plain.rows(x, start, stop)


@torch.no_grad()
def compress_weights(
    encoder: Encoder,
    steps: Sequence[PackedTexts],
    weights: Weights,
    sparse: bool,
    log: Callable[[Json], None] = lambda facts: None,
) -> None:
    """In place. What only pooled tokens go through stays as it is, as in every precision."""
    maps = rounded_maps(encoder)
    if not maps:
        raise JudgeError("no linear map of this encoder has sides that are multiples of 16")
    for number in range(len(encoder.blocks)):
        observed = {name: Observed(plain) for name, plain in maps if name.startswith(f"blocks.{number}.")}
        for name, seen in observed.items():
            encoder.set_submodule(name, seen)
        for packed in steps:
            encoder(packed)
        for name, seen in observed.items():
            plain = seen.plain
            if weights == "float32":
                plain.weight.data = compensated_sparse(plain.weight, seen.moment_II)
                encoder.set_submodule(name, plain)
            else:
                codes = compensated_codes(plain.weight, seen.moment_II, LARGEST[weights], sparse)
                encoder.set_submodule(name, CodedProjection(codes, plain.bias, four_bits=weights == "int4"))
        log({"compressed_layer": number + 1, "of": len(encoder.blocks)})
