"""Training of neural judges: several heads at once from a table with a column for each, labels may be missing, groups
(hosts) are held out.

Updates hold about equal numbers of tokens, packed without padding. Order, dropout and the schedule are functions of the
seed. Of several ranks each takes its share of every update.
"""

from __future__ import annotations

import copy
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count, islice
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException, get_context, start_processes

from gristmill.classifiers.card import Head, Json, JudgeCard, JudgeError
from gristmill.classifiers.judge import load_judge
from gristmill.classifiers.metrics import class_metrics, label_metrics, probability_metrics, regression_metrics
from gristmill.classifiers.neural.encoder import Encoder, EncoderShape, PackedTexts
from gristmill.classifiers.neural.judge import NeuralJudge, neural_judge, preprocessing_of, versions
from gristmill.classifiers.neural.network import Network, check_fit
from gristmill.classifiers.neural.text_tokens import Ahead, TextTokenizer, TextTokens, tokenise
from gristmill.classifiers.training_sets import LabelledTexts, held_out, labelled_texts
from gristmill.kernels.base.types import Array
from gristmill.trainer.parallel.ranks import ALONE, RankGroup, current_ranks
from gristmill.trainer.run.schedule import RateSchedule
from gristmill.trainer.step.optim import AdamW, update
from gristmill.trainer.step.precision import autocast_for, usual_precision

Log = Callable[[Json], None]
Precision = Literal["float32", "bf16"]  # fp16 would need a loss scale, which updates of judges do not have


POLL = 0.2  # seconds between two looks at ranks
REFUSED = "refused"  # the file in which a rank says what is wrong
FASTER_HEADS = AdamW(rate=3e-4, faster=(("heads.", 3.0),))
UP_AND_DOWN = RateSchedule()


@dataclass(frozen=True)
class NeuralRecipe:
    """How a neural judge is trained. `patience`: evaluations without a better held-out loss after which it stops, with
    the best weights; None: never."""

    epochs: float = 3.0
    update_tokens: int = 32_768
    step_tokens: int = 16_384  # of a forward pass; an update is made of several
    optimizer: AdamW = FASTER_HEADS
    schedule: RateSchedule = UP_AND_DOWN
    dropout: float = 0.1
    seed: int = 0
    precision: Precision | None = None  # None: bf16 on GPUs, float32 on CPUs
    evaluate_every: int | None = None  # updates between two looks at the held-out loss; None: a quarter of an epoch
    patience: int | None = None
    held_out: float = 0.1  # share of the groups

    def __post_init__(self) -> None:
        if self.patience is not None and self.patience < 1:
            raise JudgeError(f"patience {self.patience}: one evaluation at least shows that nothing is gained")
        if self.precision not in (None, *get_args(Precision)):
            raise JudgeError(
                f"precision {self.precision!r}: judges are trained in {' or '.join(get_args(Precision))}; None is what "
                "is usual on the device"
            )


@dataclass(frozen=True)
class LabelledTokens:
    """Tokenised texts and their targets, float32_NH: of classes the index, of a regression the share of its range, NaN
    where nobody said."""

    ids: Array
    starts: Array
    lengths: Array
    targets: Array
    weights: Array

    def packed(self, rows: Array, device: torch.device) -> PackedTexts:
        lengths = self.lengths[rows]
        ends = np.cumsum(lengths)
        within = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
        tokens = self.ids[np.repeat(self.starts[rows], lengths) + within]
        arrays = (tokens, within.astype(np.int32), np.concatenate([[0], ends]).astype(np.int32))
        sent = [torch.from_numpy(array).to(device) for array in arrays]
        return PackedTexts(sent[0], sent[1], sent[2], int(lengths.max()))


def train_neural(
    table: pa.Table,
    heads: Sequence[Head],
    tokenizer: TextTokenizer,
    trunk: EncoderShape | Encoder,
    recipe: NeuralRecipe,
    *,
    text: str = "text",
    weight: str | None = None,
    group: str | None = None,
    device: str = "cpu",
    ranks: RankGroup = ALONE,
    log: Log = lambda facts: None,
) -> NeuralJudge:
    """`table` has a column named as each head. `trunk`: a shape to train from random weights, or an encoder that was
    read."""
    for head in heads:
        if head.name not in table.column_names:
            raise JudgeError(f"the table has no column {head.name!r}, which is the name of a head")
    targets = np.stack([targets_of(table[head.name], head) for head in heads], 1)
    labelled = labelled_texts(
        table.append_column("_any", pa.array(_label_signatures(targets, heads))), text, "_any", weight, group
    )
    outside = held_out(labelled, recipe.held_out, recipe.seed) if recipe.held_out else np.zeros(len(labelled), np.bool_)
    inside = ~outside
    if not inside.any():
        raise JudgeError(
            f"nothing is left for training: {len(labelled):,} texts have too few groups; name another group, share or "
            "seed"
        )
    for head, column in zip(heads, targets.T, strict=True):
        if not np.isfinite(column[inside]).any():
            raise JudgeError(f"head {head.name}: no text to train on has a label")
        if unseen := sorted(set(_label_numbers(column, head)) - set(_label_numbers(column[inside], head))):
            raise JudgeError(
                f"head {head.name}: all texts labelled {head.labels[unseen[0]]!r} are held out; name another group, "
                "share or seed"
            )
    check_fit(tokenizer, trunk if isinstance(trunk, EncoderShape) else trunk.shape)
    torch.manual_seed(recipe.seed)
    encoder = Encoder(trunk, recipe.dropout) if isinstance(trunk, EncoderShape) else with_dropout(trunk, recipe.dropout)
    network = Network(encoder, tuple(heads)).to(device)
    tokens = tokenised(labelled.texts, labelled.weights, targets, tokenizer)
    ranks.share_weights(network)
    fit = _fit(network, heads, tokens, inside, outside, recipe, torch.device(device), ranks, log)
    training = {
        "fingerprint": _fingerprint(labelled, targets),
        "texts": int(inside.sum()),
        "held_out": int(outside.sum()),
        **fit,
    }
    training["labels"] = {head.name: int(np.isfinite(targets[inside, i]).sum()) for i, head in enumerate(heads)}
    training["settings"] = _json(asdict(recipe))
    card = JudgeCard("neural", tuple(heads), preprocessing_of(tokenizer.most), training=training, versions=versions())
    judge = neural_judge(card, network, tokenizer, device)
    return replace(judge, card=replace(card, metrics=neural_metrics(judge, labelled, targets, outside)))


@dataclass(frozen=True)
class OneHead:
    """Training of one head on labels, or on marks (`DistilRecipe`: form 'value'); every training begins from the same
    trunk. With `patience` a share of the groups decides when to stop; without it nothing is held out. `ranks`:
    processes, each on a GPU of its own, or a share of the CPU's cores."""

    head: Head
    tokenizer: TextTokenizer
    trunk: EncoderShape | Encoder
    recipe: NeuralRecipe
    device: str = "cpu"
    ranks: int = 1

    def __call__(self, texts: LabelledTexts, log: Log = lambda facts: None) -> NeuralJudge:
        if self.ranks == 1:
            return self.train(texts, self.device, ALONE, log)
        with tempfile.TemporaryDirectory(prefix="judge-ranks-") as made:
            folder, lines = Path(made), get_context("spawn").SimpleQueue()
            processes = start_processes(_one_of_ranks, (self, texts, folder, lines), self.ranks, join=False)
            try:
                while not processes.join(POLL):
                    while not lines.empty():
                        log(lines.get())
            except (ProcessExitedException, ProcessRaisedException) as error:
                refused = folder / REFUSED
                text = refused.read_text(encoding="utf-8") if refused.is_file() else str(error).strip().splitlines()[-1]
                raise JudgeError(text) from error
            while not lines.empty():
                log(lines.get())
            judge = load_judge(folder / "judge", self.device)
        if not isinstance(judge, NeuralJudge):
            raise TypeError(f"ranks left a {judge.card.kind} judge")
        return replace(judge, card=replace(judge.card, training=judge.card.training | {"ranks": self.ranks}))

    def train(self, texts: LabelledTexts, device: str, ranks: RankGroup, log: Log) -> NeuralJudge:
        columns = {"text": texts.texts, self.head.name: texts.labels}
        if texts.weights is not None:
            columns["weight"] = pa.array(texts.weights)
        if texts.groups is not None:
            columns["group"] = texts.groups
        return train_neural(
            pa.table(columns),
            [self.head],
            self.tokenizer,
            copy.deepcopy(self.trunk),
            self.recipe if self.recipe.patience is not None else replace(self.recipe, held_out=0.0),
            weight=None if texts.weights is None else "weight",
            group=None if texts.groups is None else "group",
            device=device,
            ranks=ranks,
            log=log,
        )


def _one_of_ranks(rank: int, training: OneHead, texts: LabelledTexts, folder: Path, lines: Any) -> None:
    cuda = training.device.startswith("cuda")
    if cuda:
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // training.ranks))
    meeting = f"file://{folder / 'meeting'}"
    backend, count = "nccl" if cuda else "gloo", training.ranks
    torch.distributed.init_process_group(backend, init_method=meeting, rank=rank, world_size=count)
    ranks = current_ranks()
    try:
        device = f"cuda:{rank}" if cuda else training.device
        judge = training.train(texts, device, ranks, lines.put if ranks.first else lambda facts: None)
        if ranks.first:
            judge.save(folder / "judge")
        ranks.wait()  # a rank that is done early must not take its sockets away
    except JudgeError as error:  # of all ranks alike
        (folder / f"{REFUSED}.{rank}").write_text(str(error), encoding="utf-8")
        (folder / f"{REFUSED}.{rank}").rename(folder / REFUSED)
        raise
    finally:
        torch.distributed.destroy_process_group()


def _label_numbers(column: Array, head: Head) -> list[int]:
    """Of each text that has one the nearest label; of a regression none."""
    return [] if head.kind == "regression" else np.rint(column[np.isfinite(column)]).astype(np.int64).tolist()


def _label_signatures(targets: Array, heads: Sequence[Head]) -> list[str]:
    """What each text says under all heads that have labels, so that held-out and other texts have some of each."""
    labelled = [i for i, head in enumerate(heads) if head.kind != "regression"]
    return [
        " ".join("-" if value != value else str(round(value)) for value in row) for row in targets[:, labelled].tolist()
    ]


def targets_of(column: pa.ChunkedArray, head: Head) -> Array:
    """float32_N. Labels are those of the head, or numbers: a probability between 0 and 1, the index of a class, a
    regression's value. Whole numbers that are all names of the head's labels are these names, as they are to all
    judges."""
    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_integer(values.type) and {str(value) for value in values.drop_null().unique().to_pylist()} <= set(
        head.labels
    ):
        values = values.cast(pa.string())
    if pa.types.is_floating(values.type) or pa.types.is_integer(values.type) or pa.types.is_boolean(values.type):
        numbers = values.cast(pa.int8()) if pa.types.is_boolean(values.type) else values
        numbers_found = numbers.cast(pa.float64()).to_numpy(zero_copy_only=False).astype(np.float64)
    else:
        places = {label: float(i) for i, label in enumerate(head.labels)} | {None: np.nan}
        strange = sorted(set(values.unique().to_pylist()) - places.keys())
        if strange:
            raise JudgeError(
                f"head {head.name} has the labels {', '.join(head.labels)}; the table says {strange[0]!r} too"
            )
        numbers_found = np.array([places[label] for label in values.to_pylist()], np.float64)
    low, high = (head.low, head.high) if not head.multiclass else (0.0, head.width - 1.0)
    wrong = np.isfinite(numbers_found) & (
        (numbers_found < low) | (numbers_found > high) | (head.multiclass & (numbers_found != np.round(numbers_found)))
    )
    if wrong.any() or np.isinf(numbers_found).any():
        raise JudgeError(
            f"head {head.name}: {int(wrong.sum() + np.isinf(numbers_found).sum()):,} labels lie outside {low:g} to "
            f"{high:g}"
        )
    return np.asarray(
        (numbers_found - head.low) / (head.high - head.low) if head.kind == "regression" else numbers_found, np.float32
    )


def head_losses(logits_NK: Tensor, targets_NH: Tensor, weights_N: Tensor, heads: Sequence[Head]) -> Tensor:
    """Sum of losses of each head over the texts that have its label, weighted: float32_H."""
    sums = []
    for i, part in enumerate(logits_NK.split([head.width for head in heads], -1)):
        target = targets_NH[:, i]
        labelled = target.isfinite()
        target = target.nan_to_num()
        if heads[i].kind == "probability":
            loss = F.binary_cross_entropy_with_logits(part[:, 0], target, reduction="none")
        elif heads[i].multiclass:
            loss = F.cross_entropy(part, target.long(), reduction="none")
        else:
            loss = (part[:, 0] - target) ** 2
        sums.append((loss * weights_N * labelled).sum())
    return torch.stack(sums)


def updates_of(lengths: Array, rows: Array, recipe: NeuralRecipe, epoch: int) -> Iterator[list[Array]]:
    """An epoch's updates, each the rows of its forward passes: all rows once, shuffled by (seed, epoch)."""
    order = np.random.default_rng((recipe.seed, epoch)).permutation(rows)
    steps: list[Array] = []
    first = used = of_update = 0
    for i, length in enumerate(lengths[order].tolist()):
        if used and used + length > recipe.step_tokens:
            steps.append(order[first:i])
            first, of_update, used = i, of_update + used, 0
            if of_update >= recipe.update_tokens:
                yield steps
                steps, of_update = [], 0
        used += length
    if used:
        yield [*steps, order[first:]]


def _fit(
    network: Network,
    heads: Sequence[Head],
    data: LabelledTokens,
    inside: Array,
    outside: Array,
    recipe: NeuralRecipe,
    device: torch.device,
    ranks: RankGroup,
    log: Log,
) -> Json:
    rows = np.flatnonzero(inside)
    each = sum(1 for _ in updates_of(data.lengths, rows, recipe, 0))
    planned = max(1, round(each * recipe.epochs))
    every = recipe.evaluate_every or max(1, each // 4)
    learning = [p for p in network.parameters() if p.requires_grad]
    optimizer = recipe.optimizer.optimizer(network)
    precision = recipe.precision or usual_precision(device)
    best, patient = float("inf"), 0
    best_weights: dict[str, Tensor] | None = None
    network.train()
    done = 0
    for done, steps in enumerate(islice(endless_updates(data.lengths, rows, recipe), planned), 1):
        counts = _label_weights(data, np.concatenate(steps)).to(device)
        losses = (
            _loss(network, heads, data, rows_of_step, counts, device, precision)
            for rows_of_step in ranks.own_share(steps)
        )
        share = recipe.schedule.share(done - 1, planned)
        result = update(optimizer, learning, losses, share, recipe.optimizer.clip, ranks)
        if done % 20 == 0 or done == planned:
            log(
                {
                    "update": done,
                    "of": planned,
                    "loss": round(float(result.loss), 5),
                    "norm": round(float(result.norm), 4),
                }
            )
        if recipe.patience is not None and outside.any() and done % every == 0:
            loss = held_out_loss(network, heads, data, np.flatnonzero(outside), recipe, device, precision, ranks)
            log({"update": done, "held_out_loss": round(loss, 5)})
            patient = patient + 1 if loss >= best else 0
            if loss < best:
                best, best_weights = loss, copy.deepcopy(network.state_dict())
            if patient >= recipe.patience:
                break
    if best_weights is not None:
        network.load_state_dict(best_weights)
    network.eval()
    return {
        "updates": done,
        "planned_updates": planned,
        **({} if best_weights is None else {"best_held_out_loss": best}),
    }


def endless_updates(lengths: Array, rows: Array, recipe: NeuralRecipe) -> Iterator[list[Array]]:
    """Updates without end."""
    for epoch in count():
        yield from updates_of(lengths, rows, recipe, epoch)


def _loss(
    network: Network,
    heads: Sequence[Head],
    data: LabelledTokens,
    rows: Array,
    counts_H: Tensor,
    device: torch.device,
    precision: Precision,
) -> Tensor:
    """This pass's part of the update's loss, which is the mean over heads of the weighted mean over labelled texts."""
    with autocast_for(device, precision):
        logits = network(data.packed(rows, device))
    targets, weights = (torch.from_numpy(array[rows]).to(device) for array in (data.targets, data.weights))
    return (head_losses(logits, targets, weights, heads) / counts_H.clamp(min=1e-9)).mean()


def _label_weights(data: LabelledTokens, rows: Array) -> Tensor:
    return torch.from_numpy((np.isfinite(data.targets[rows]) * data.weights[rows, None]).sum(0).astype(np.float32))


@torch.no_grad()
def held_out_loss(
    network: Network,
    heads: Sequence[Head],
    data: LabelledTokens,
    rows: Array,
    recipe: NeuralRecipe,
    device: torch.device,
    precision: Precision,
    ranks: RankGroup,
) -> float:
    """Equal on all ranks, each of which sees its share."""
    network.eval()
    counts = _label_weights(data, rows).to(device)
    steps = [step for steps in updates_of(data.lengths, rows, recipe, 0) for step in steps]
    loss = torch.zeros((), device=device)
    for step in ranks.own_share(steps):
        loss += _loss(network, heads, data, step, counts, device, precision)
    network.train()
    return float(ranks.total(loss))


def neural_metrics(judge: NeuralJudge, labelled: LabelledTexts, targets: Array, outside: Array) -> Json:
    """By head, on held-out texts that have its label."""
    if not outside.any():
        return {}
    outputs = judge.outputs(labelled.texts.take(pa.array(np.flatnonzero(outside))))
    metrics: Json = {}
    for i, head in enumerate(judge.card.heads):
        target = targets[outside, i]
        labelled_rows = np.isfinite(target)
        truths, predicted = target[labelled_rows], outputs[head.name][labelled_rows]
        weights = None if labelled.weights is None else labelled.weights[outside][labelled_rows]
        if not len(truths):
            continue
        if head.kind == "probability":
            metrics[head.name] = probability_metrics(truths >= 0.5, predicted, weights)
        elif head.kind == "classes":
            metrics[head.name] = class_metrics(truths.astype(np.int64), predicted, head.labels, weights)
        elif head.kind == "labels":
            metrics[head.name] = label_metrics(truths.astype(np.int64), predicted, head.labels, weights)
        else:
            truth = head.low + (head.high - head.low) * truths
            metrics[head.name] = regression_metrics(truth, predicted, weights)
    return metrics


def with_dropout(encoder: Encoder, share: float) -> Encoder:
    encoder.dropout = share
    for block in encoder.blocks:
        block.dropout = share
    return encoder


def tokenised(texts: pa.Array, given: Array | None, targets: Array, tokenizer: TextTokenizer) -> LabelledTokens:
    pieces: list[TextTokens] = list(tokenise([texts], tokenizer, Ahead()))
    lengths = np.concatenate([piece.lengths for piece in pieces])
    weights = np.ones(len(texts), np.float32) if given is None else given.astype(np.float32)
    return LabelledTokens(
        np.concatenate([piece.ids for piece in pieces]), np.cumsum(lengths) - lengths, lengths, targets, weights
    )


def _fingerprint(labelled: LabelledTexts, targets: Array) -> str:
    """SHA-256 of texts and weights, and of what each head is to learn."""
    return hashlib.sha256(
        labelled.fingerprint.encode() + np.where(np.isfinite(targets), targets, np.float32("nan")).tobytes()
    ).hexdigest()


def _json(facts: Json) -> Json:
    """Tuples as lists, as they come back from a file."""
    return {key: _json(v) if isinstance(v, dict) else _to_lists(v) for key, v in facts.items()}


def _to_lists(value: Any) -> Any:
    return [_to_lists(item) for item in value] if isinstance(value, tuple | list) else value
