"""What a decoder predicts for given tokens: texts to tokens, tokens to their log-probabilities, packed, without
padding.

Logits of evaluation are float32 whatever the model computes in (bf16 logits are off by up to 0.4 %, more than many
ablations differ by), and only those that are asked for are computed. Sums are float64. Continuations are packed in
an order that depends on their content alone: longest first, so that neighbours are alike and memory peaks first, and
the same continuations in another order give the same bits. Ranks share these packs, and each pack is the same
whoever scores it, so any number of ranks gives the bits of one.

T tokens, A asked for, C hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from gristmill.kernels.base.types import Array
from gristmill.shards.batch import NO_LABEL
from gristmill.trainer.model.flops import flops_of
from gristmill.trainer.model.model import Decoder
from gristmill.trainer.model.packed import PackedTokens, next_power_of_two
from gristmill.trainer.parallel.ranks import ALONE, RankGroup, device_of_messages

STEP_TOKENS = 16_384  # of a forward pass
LOGITS = 1 << 27  # that exist at once: 512 MB
CHARACTERS = 1 << 20  # passed to the tokenizer at once, which takes about 100 bytes for each


class Continuation(NamedTuple):
    """`tokens[first:]` are scored, each given all before it; `first` is 1 at least."""

    tokens: Array
    first: int


def plain_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """As shards are tokenised: nothing truncated or padded, and a special token that stands in a text is text. The
    given tokenizer is not changed."""
    plain = Tokenizer.from_str(tokenizer.to_str())
    plain.no_truncation()
    plain.no_padding()
    plain.encode_special_tokens = True
    return plain


def tokenise(texts: Sequence[str], tokenizer: Tokenizer) -> list[Array]:
    """Each text's tokens, int64, nothing added; by a `plain_tokenizer`."""
    tokens: list[Array] = []
    for start, stop in _runs([len(text) for text in texts], CHARACTERS):
        encodings = tokenizer.encode_batch_fast(list(texts[start:stop]), add_special_tokens=False)
        tokens += [np.array(encoding.ids, np.int64) for encoding in encodings]
    return tokens


@torch.no_grad()
def score_continuations(
    model: Decoder,
    pieces: Sequence[Continuation],
    device: torch.device | str,
    step_tokens: int = STEP_TOKENS,
    ranks: RankGroup = ALONE,
) -> Array:
    """-log p of each continuation in nats, float64: each by itself, whatever it is packed with, to rounding.
    `step_tokens` is a bound unless one continuation is longer.

    `ranks` share the work, and all get the whole result: every rank must ask for the same continuations. Of ranks
    that share layers, these are those of `Grid.data`. A model that is sharded over the ranks is gathered by all at
    once, so each rank makes the same number of passes: a rank with fewer repeats its first one.
    """
    nats = np.zeros(len(pieces))
    _check(model, pieces)
    order = sorted(
        range(len(pieces)), key=lambda i: (-len(pieces[i].tokens), pieces[i].tokens.tobytes(), pieces[i].first)
    )
    lengths = [len(pieces[i].tokens) - 1 for i in order]
    runs = list(_runs(lengths, step_tokens, inclusive=False))
    shares = balance_shares(
        [flops_of(model.shape, np.array(lengths[start:stop])).total for start, stop in runs], ranks.count
    )
    for number in _padded_share(shares, ranks.rank):
        start, stop = runs[number]
        places = order[start:stop]
        some = [pieces[i] for i in places]
        packed, asked_A, targets_A = _pack(some)
        hidden_TC = model.hidden(packed.to(device))
        asked, targets = (torch.from_numpy(array).to(device) for array in (asked_A, targets_A))
        losses = _losses(hidden_TC[asked], model.head_weight, targets)
        counts = np.array([len(piece.tokens) - piece.first for piece in some])
        starts = np.cumsum(counts) - counts
        nats[places] = np.add.reduceat(losses.double().cpu().numpy(), starts)
    if ranks.count == 1:
        return nats
    own = [i for number in shares[ranks.rank] for i in order[slice(*runs[number])]]
    whole = np.zeros(len(nats))  # those of other ranks are 0 here, so sums are what each computed, bit for bit
    whole[own] = nats[own]
    return np.asarray(ranks.total(torch.from_numpy(whole).to(device_of_messages(ranks))).cpu().numpy())


def balance_shares(costs: Sequence[float], count: int) -> list[list[int]]:
    """The costliest first, each to the rank that has least so far: numbers of the costs, in order, by rank."""
    shares: list[list[int]] = [[] for _ in range(count)]
    sums = [0.0] * count
    for number in sorted(range(len(costs)), key=lambda i: -costs[i]):
        rank = sums.index(min(sums))
        shares[rank].append(number)
        sums[rank] += costs[number]
    return [sorted(share) for share in shares]


def _padded_share(shares: Sequence[Sequence[int]], rank: int) -> list[int]:
    """This rank's packs, with one repeated until it makes as many passes as any rank."""
    passes = max(map(len, shares))
    share = list(shares[rank])
    return share + [share[0] if share else 0] * (passes - len(share))


def _check(model: Decoder, pieces: Sequence[Continuation]) -> None:
    if any(not 1 <= piece.first < len(piece.tokens) for piece in pieces):
        raise ValueError("a piece must ask for a token, and have one before it")
    largest = max((int(piece.tokens.max()) for piece in pieces), default=0)
    if largest >= model.shape.vocabulary:
        raise ValueError(
            f"token {largest:,} of these texts is not in the model's vocabulary of {model.shape.vocabulary:,}: they "
            "need the tokenizer that it was trained with"
        )
    longest = max((len(piece.tokens) - 1 for piece in pieces), default=0)
    if longest > model.shape.context:
        raise ValueError(
            f"rows of {longest:,} tokens, the model's context is {model.shape.context:,}: ask with shorter rows"
        )


def _runs(sizes: Sequence[int], most: int, inclusive: bool = True) -> Iterator[tuple[int, int]]:
    """Runs of neighbours of about `most` together: the item that reaches it is the last, or (not `inclusive`) is the
    first of the next run."""
    start = total = 0
    for i, size in enumerate(sizes):
        if not inclusive and total and total + size > most:
            yield start, i
            start, total = i, 0
        total += size
        if inclusive and total >= most:
            yield start, i + 1
            start, total = i + 1, 0
    if start < len(sizes):
        yield start, len(sizes)


def _pack(pieces: Sequence[Continuation]) -> tuple[PackedTokens, Array, Array]:
    """One line of tokens; the positions whose successors are scored; these successors."""
    lengths = np.array([len(piece.tokens) - 1 for piece in pieces], np.int64)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    asked_A = np.concatenate(
        [np.arange(start + piece.first - 1, end) for piece, start, end in zip(pieces, starts, ends, strict=True)]
    )
    targets_A = np.concatenate([piece.tokens[piece.first :] for piece in pieces])
    targets_T = np.full(int(ends[-1]), NO_LABEL, np.int64)
    targets_T[asked_A] = targets_A
    packed = PackedTokens(
        torch.from_numpy(np.concatenate([piece.tokens[:-1] for piece in pieces])),
        torch.from_numpy(targets_T),
        torch.from_numpy((np.arange(ends[-1]) - np.repeat(starts, lengths)).astype(np.int32)),
        torch.from_numpy(np.concatenate([[0], ends]).astype(np.int32)),
        next_power_of_two(int(lengths.max())),
        len(asked_A),
    )
    return packed, asked_A, targets_A


def _losses(hidden_AC: Tensor, weight_VC: Tensor, targets_A: Tensor) -> Tensor:
    """-log p of each target."""
    losses = []
    rows = max(1, LOGITS // len(weight_VC))
    with torch.autocast(hidden_AC.device.type, enabled=False):
        matmul = _wide_matmul(hidden_AC, weight_VC)
        for start in range(0, len(hidden_AC), rows):
            logits = matmul(hidden_AC[start : start + rows])
            targets = targets_A[start : start + rows]
            losses.append(logits.logsumexp(-1) - logits.gather(1, targets[:, None])[:, 0])
    return torch.cat(losses)


def _wide_matmul(hidden_AC: Tensor, weight_VC: Tensor) -> Any:
    """Hidden states to logits of float32 at the least; in half precision on CUDA with sums that are not rounded to
    half."""
    if weight_VC.is_cuda and weight_VC.dtype in (torch.bfloat16, torch.float16):
        half = weight_VC.dtype
        return lambda some: torch.mm(some.to(half), weight_VC.t(), out_dtype=torch.float32)
    wide = torch.promote_types(torch.promote_types(hidden_AC.dtype, weight_VC.dtype), torch.float32)
    weight = weight_VC.to(wide)
    return lambda some: F.linear(some.to(wide), weight)
