"""Training of pooled judges with torch: from labels, or from the scores of a costlier judge (decimal numbers).

    rows of terms -> embeddings -> poolings -> batch norm -> hidden layer -> logits

Only rows that a batch holds are updated (Adam on sparse gradients). After training, the norm's means and deviations
and the scales of int8 embeddings are folded into the hidden layer. The same texts, settings and version give the same
weights on one CPU with one number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from gristmill.classifiers.card import Head, Json, JudgeCard, JudgeError
from gristmill.classifiers.neural.training import head_losses, targets_of
from gristmill.classifiers.pooled.judge import PooledJudge, Precision, pooled_judge, preprocessing_of
from gristmill.classifiers.training_sets import LabelledTexts
from gristmill.kernels.base.columns import text_column
from gristmill.kernels.base.types import Array
from gristmill.kernels.language.pooled_terms import CODES, EDGE, TermRows, beginnings, feature_count, term_rows

WIDEST_GATE = 4.0  # of a gate's logarithm
Log = Callable[[Json], None]


@dataclass(frozen=True)
class PooledRecipe:
    """2**bits rows of `width` numbers, one of which is the gate. `most_bytes`: of each text; 0: all. `term_dropout`:
    share of terms that an update does not see."""

    bits: int = 18
    width: int = 64
    hidden: int = 64
    precision: Precision = "int8"
    most_bytes: int = 0
    epochs: float = 10.0
    batch: int = 64  # texts
    rate: float = 3e-3
    term_dropout: float = 0.2
    dropout: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        if not (self.epochs > 0 and self.batch > 1 and self.rate > 0):
            raise JudgeError("epochs and rate are above 0, and a batch has 2 texts or more")
        if not (0 <= self.term_dropout < 1 and 0 <= self.dropout < 1):
            raise JudgeError("term_dropout and dropout are shares from 0 to below 1")


class PooledNetwork(nn.Module):
    """The reference that kernels are held against. Column 0 of the table is the logarithm of the gate."""

    def __init__(self, rows: int, width: int, hidden: int, outputs: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, width, sparse=True)
        nn.init.normal_(self.table.weight, std=0.1)
        nn.init.zeros_(self.table.weight[:, 0])
        self.norm = nn.BatchNorm1d(feature_count(width), affine=False)
        self.hidden = nn.Linear(feature_count(width), hidden)
        self.dropout = nn.Dropout(dropout)
        self.last = nn.Linear(hidden, outputs)

    def features(self, rows: Tensor, lengths: Tensor) -> Tensor:
        """float32_NP of the rows of N texts, one after the other."""
        seen, places = rows.unique(return_inverse=True)
        vectors = self.table(seen)[places]
        gates, vectors = vectors[:, :1].clamp(-WIDEST_GATE, WIDEST_GATE).exp(), vectors[:, 1:]
        weighed = _sums(torch.cat([vectors * gates, gates], 1), lengths)
        counts = lengths.clamp(min=1)[:, None]
        ends = lengths.cumsum(0)
        within = torch.arange(len(rows), device=rows.device) - torch.repeat_interleave(ends - lengths, lengths)
        left = torch.repeat_interleave(lengths, lengths) - within
        edge_lengths = lengths.clamp(max=EDGE)
        edges = [
            _sums(vectors[inside], edge_lengths) / counts.clamp(max=EDGE) for inside in (within < EDGE, left <= EDGE)
        ]
        peaks = torch.segment_reduce(vectors, "max", lengths=lengths, initial=-1e30)
        peaks = torch.where(lengths[:, None] > 0, peaks, torch.zeros_like(peaks))
        gated = weighed[:, :-1] / weighed[:, -1:].clamp(min=1e-9)
        return torch.cat([gated, _sums(vectors, lengths) / counts, peaks, *edges, lengths[:, None].log1p()], 1)

    def forward(self, rows: Tensor, lengths: Tensor) -> Tensor:
        hidden = self.hidden(self.norm(self.features(rows, lengths))).relu()
        logits: Tensor = self.last(self.dropout(hidden))
        return logits


def train_pooled(
    labelled: LabelledTexts,
    head: Head,
    recipe: PooledRecipe,
    device: str = "cpu",
    log: Log = lambda facts: None,
) -> PooledJudge:
    """Labels are the head's, or numbers: a probability, a class's index, a regression's value."""
    preprocessing = preprocessing_of(recipe.bits, recipe.width, recipe.hidden, recipe.precision, recipe.most_bytes)
    if len(labelled) < 2:
        raise JudgeError("a pooled judge is trained on 2 texts or more")
    if not pa.types.is_floating(labelled.labels.type):
        labelled.numbers(head)  # every label has a text
    targets = torch.from_numpy(targets_of(labelled.labels, head)[:, None])
    weights = np.ones(len(labelled)) if labelled.weights is None else labelled.weights
    column = text_column(labelled.texts)
    terms = term_rows(beginnings(column, recipe.most_bytes) if recipe.most_bytes else column, recipe.bits)
    torch.manual_seed(recipe.seed)
    network = PooledNetwork(1 << recipe.bits, recipe.width, recipe.hidden, head.width, recipe.dropout).to(device)
    _fit(network, terms, targets.to(device), torch.from_numpy(weights).float().to(device), head, recipe, log)
    card = JudgeCard(
        "pooled",
        (head,),
        preprocessing,
        training=labelled.as_json() | {"settings": asdict(recipe)},
        versions={name: version(name) for name in ("torch", "safetensors")},
    )
    return pooled_judge(card, tensors_of(network, np.unique(terms.rows), recipe.precision))


def tensors_of(network: PooledNetwork, seen: Array, precision: Precision) -> dict[str, Array]:
    """The weights as kernels read them. Rows that no text had are zeros, and their gates are shut."""
    network = network.cpu().eval()
    with torch.no_grad():
        trained = network.table.weight.numpy()[seen].astype(np.float64)
        mean, deviation = network.norm.running_mean, (network.norm.running_var + network.norm.eps).sqrt()
        hidden = (network.hidden.weight / deviation).double().T.numpy()
        bias = (network.hidden.bias.double() - network.hidden.weight.double() @ (mean / deviation).double()).numpy()
        last, last_bias = network.last.weight.T.numpy(), network.last.bias.double().numpy()
    logs, vectors = trained[:, 0].clip(-WIDEST_GATE, WIDEST_GATE), trained[:, 1:]
    rows, width = network.table.weight.shape
    gates = np.zeros(CODES)
    if precision == "float32":
        table = np.zeros((rows, width), np.float32)
        table[seen] = np.concatenate([np.exp(logs)[:, None], vectors], 1)
    else:
        scales = (
            np.abs(vectors).max(axis=0, initial=1e-9) / 127
        )  # the largest belong to the commonest terms: none is cut
        gate_step = max(float(np.abs(logs).max(initial=0.0)), 1e-9) / 127
        gates[1:] = np.exp(gate_step * np.arange(-127, 128))  # code -128: shut
        table = np.zeros((rows, width), np.int8)
        table[:, 0] = -128
        codes = np.concatenate([logs[:, None] / gate_step, vectors / scales], 1)
        table[seen] = np.rint(codes).clip(-127, 127).astype(np.int8)
        hidden[:-1] *= np.tile(scales, (len(hidden) - 1) // (width - 1))[:, None]
    return {
        "table": table,
        "gates": gates.astype(np.float32),
        "hidden": hidden.astype(np.float32),
        "hidden_bias": bias.astype(np.float32),
        "last": last.astype(np.float32),
        "last_bias": last_bias.astype(np.float64),
    }


def _sums(values: Tensor, lengths: Tensor) -> Tensor:
    return torch.segment_reduce(values, "sum", lengths=lengths, initial=0)


def _fit(
    network: PooledNetwork,
    terms: TermRows,
    targets: Tensor,
    weights: Tensor,
    head: Head,
    recipe: PooledRecipe,
    log: Log,
) -> None:
    device = targets.device
    texts = len(targets)
    each = max(1, texts // recipe.batch)
    planned = max(1, round(each * recipe.epochs))
    dense = [p for name, p in network.named_parameters() if not name.startswith("table.")]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.SparseAdam(list(network.table.parameters()), lr=recipe.rate),
        torch.optim.AdamW(dense, lr=recipe.rate, weight_decay=0.01),
    ]
    network.train()
    drawn = np.random.default_rng(recipe.seed)
    for done, rows_of_update in zip(range(planned), _updates(texts, each, drawn), strict=False):
        rows, lengths = _packed(terms, rows_of_update, recipe.term_dropout, drawn)
        here = torch.from_numpy(rows_of_update).to(device)
        logits = network(torch.from_numpy(rows).to(device), torch.from_numpy(lengths).to(device))
        loss = head_losses(logits, targets[here], weights[here], [head]).sum() / weights[here].sum()
        for optimizer in optimizers:
            optimizer.zero_grad()
            for group in optimizer.param_groups:
                group["lr"] = recipe.rate * (1 - done / planned)
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()
        if (done + 1) % 50 == 0 or done + 1 == planned:
            log({"update": done + 1, "of": planned, "loss": round(loss.item(), 5)})
    _settle(network, terms, recipe, device)


@torch.no_grad()
def _settle(network: PooledNetwork, terms: TermRows, recipe: PooledRecipe, device: Any) -> None:
    """The norm's means and deviations are those of the texts themselves, with the final weights and every term."""
    network.eval()
    texts = len(terms.first) - 1
    total = torch.zeros(2, network.norm.num_features, dtype=torch.float64, device=device)
    for start in range(0, texts, recipe.batch):
        rows, lengths = _packed(terms, np.arange(start, min(start + recipe.batch, texts)), 0.0, None)
        found = network.features(torch.from_numpy(rows).to(device), torch.from_numpy(lengths).to(device)).double()
        total += torch.stack([found.sum(0), (found**2).sum(0)])
    mean = total[0] / texts
    network.norm.running_mean.copy_(mean)
    network.norm.running_var.copy_((total[1] / texts - mean**2).clamp(min=0))


def _updates(texts: int, each: int, drawn: np.random.Generator) -> Iterator[Array]:
    """Texts of each update, without end: an epoch has all texts once, in as many updates of nearly equal size."""
    while True:
        yield from np.array_split(drawn.permutation(texts), each)


def _packed(terms: TermRows, texts: Array, dropout: float, drawn: np.random.Generator | None) -> tuple[Array, Array]:
    """The rows of these texts, one after the other, and how many each has; some are left out."""
    starts, lengths = terms.first[texts], np.diff(terms.first)[texts]
    ends = np.cumsum(lengths)
    places = np.repeat(starts - (ends - lengths), lengths) + np.arange(lengths.sum())
    rows = terms.rows[places].astype(np.int64)
    if drawn is not None and dropout:
        kept = drawn.random(len(rows)) >= dropout
        lengths = np.diff(np.concatenate([[0], np.cumsum(kept)])[np.concatenate([[0], ends])])
        rows = rows[kept]
    return rows, lengths
