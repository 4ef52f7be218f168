"""Context parallel: one line of packed rows over a few ranks, for rows that are too long, or too slow, for one.

A document that stays whole on one rank costs no exchange. The others are *shared*: laid end to end and cut into equal
stretches, which each rank holds before its own documents. Documents are shared, longest first, until ranks have equal
tokens and equal work. Two ways of attention over shared documents:

- by heads (Ulysses, Jacobs et al. 2023), where heads divide by the ranks: an exchange gives every rank all shared
  tokens for some of the heads, another gives them back. Work is even whatever the lengths. Of fewer key-value heads
  than ranks, each goes to several.
- by keys, for any heads: every rank gathers all shared keys and values, and asks with its own queries. Rank r of C
  holds stretches r and 2 C - 1 - r of 2 C, so that causal work is even (Llama 3, 2024).

Gradients are those of one rank up to rounding: losses are divided by what the whole update counts, and ranks of a
context sum gradients like ranks that see other rows.

T tokens, H heads, K key-value heads, D numbers a head, S shared tokens of a rank, C ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.distributed._functional_collectives import all_to_all_single, wait_tensor

from gristmill.kernels.base.types import Array
from gristmill.shards.batch import NO_LABEL
from gristmill.trainer.model.attention import Attend, Window
from gristmill.trainer.model.model import Block, Decoder
from gristmill.trainer.model.packed import PackedTokens, next_power_of_two
from gristmill.trainer.model.shapes import DecoderShape
from gristmill.trainer.parallel.ranks import RankGroup

Way = Literal["heads", "keys"]

UNEVEN = 0.01  # of a rank's tokens, and of its work, that may be lost to waiting
STEP = 64  # tokens of a rank are a multiple, which is padded


class Stretch(NamedTuple):
    """A rank's queries of shared documents that lie together, and their keys among those of all ranks."""

    first_key: int
    end: int
    cuts_q: Tensor
    cuts_k: Tensor


class Shared(NamedTuple):
    """Documents that several ranks hold parts of: the first `tokens` of this rank's line; `cuts` are those of all
    ranks' parts, end to end."""

    tokens: int
    cuts: Tensor
    stretches: tuple[Stretch, ...]  # none: attention by heads

    def over(self, change: Callable[[Tensor], Tensor]) -> Shared:
        stretches = (each._replace(cuts_q=change(each.cuts_q), cuts_k=change(each.cuts_k)) for each in self.stretches)
        return Shared(self.tokens, change(self.cuts), tuple(stretches))


@dataclass(frozen=True)
class LinePart(PackedTokens):
    """A rank's part of a line. `beside`: documents that it shares with others, or None; `cuts` begin behind them."""

    beside: Shared | None = None

    def over(self, change: Callable[[Tensor], Tensor]) -> PackedTokens:
        moved = super().over(change)
        return moved if self.beside is None else replace(moved, beside=self.beside.over(change))

    def all_cuts(self) -> list[Tensor]:
        if self.beside is None:
            return [self.cuts]
        of_stretches = [cuts for each in self.beside.stretches for cuts in (each.cuts_q, each.cuts_k)]
        return [self.cuts, self.beside.cuts, *of_stretches]


@dataclass(frozen=True)
class ContextRanks:
    """This rank of those that share a line."""

    rank: int
    count: int
    group: Any


def way_of(shape: DecoderShape, ranks: int, tensor: int = 1) -> Way:
    """`tensor`: ranks that share the heads already."""
    heads, kv_heads = shape.heads // tensor, shape.kv_heads // tensor
    by_heads = heads % ranks == 0 and (kv_heads % ranks == 0 or ranks % kv_heads == 0)
    return "heads" if by_heads else "keys"


# --- which tokens a rank holds ---------------------------------------------------------------------------------------


def split(packed: PackedTokens, rank: int, count: int, shape: DecoderShape, tensor: int = 1) -> PackedTokens:
    """This rank's part of a line. All parts are equally long; `counted` is this part's."""
    cuts = packed.cuts.numpy().astype(np.int64)
    lengths = np.diff(cuts)
    tokens = -(-int(cuts[-1]) // count)
    room = -(-int(tokens * (1 + UNEVEN)) // STEP) * STEP
    owner = owners(lengths, count, room, 12 * shape.hidden)
    way = way_of(shape, count, tensor)
    stretches = count if way == "heads" else 2 * count
    shared = np.flatnonzero(owner < 0)
    each = -(-int(lengths[shared].sum()) // stretches)
    line = _tokens_of(cuts, shared, each * stretches)
    mine = [rank] if way == "heads" else [rank, 2 * count - 1 - rank]
    held = [line[number * each : (number + 1) * each] for number in mine if each]
    own = np.flatnonzero(owner == rank)
    place = np.concatenate([*held, _tokens_of(cuts, own, int(lengths[own].sum()))])
    place = np.append(place, np.full(room - len(place), -1, np.int64))
    padding = room - len(mine) * each - int(lengths[own].sum())
    ends = np.cumsum([*lengths[own], *([padding] if padding else [])])
    shared_ends = np.cumsum([*lengths[shared], each * stretches - int(lengths[shared].sum())])
    targets = _at(packed.targets_T, place, NO_LABEL)
    return LinePart(
        ids_T=_at(packed.ids_T, place, 0),
        targets_T=targets,
        positions_T=_at(packed.positions_T, place, 0),
        cuts=_int32([0, *ends]),
        longest=next_power_of_two(int(max([*lengths, padding, 1]))),
        counted=int((targets != NO_LABEL).sum()),
        beside=Shared(
            len(mine) * each,
            _int32([0, *shared_ends]),
            tuple(_stretch(number * each, each, shared_ends) for number in (mine if way == "keys" else ())),
        )
        if each
        else None,
    )


def owners(lengths: Array, count: int, room: int, even: int) -> Array:
    """Each document's rank, -1 of those that are shared. `even`: the length at which attention costs what all else
    does."""
    work = lengths * (even + lengths)
    order = np.lexsort((np.arange(len(lengths)), -lengths))
    for shared in range(len(lengths) + 1):  # more and more of the longest
        owner = np.full(len(lengths), -1)
        left = room - -(-int(lengths[order[:shared]].sum()) // count) - 2
        tokens, done = np.zeros(count, np.int64), np.zeros(count, np.int64)
        for document in order[shared:]:
            fits = np.flatnonzero(tokens + lengths[document] <= left)
            if not len(fits):
                break
            rank = fits[np.argmin(done[fits])]
            owner[document] = rank
            tokens[rank] += lengths[document]
            done[rank] += work[document]
        else:
            if done.max() - done.mean() <= UNEVEN * work.sum() / count:
                return owner
    return owner


def _tokens_of(cuts: Array, documents: Array, length: int) -> Array:
    """Places of these documents' tokens in the line, -1 after them."""
    places = [np.arange(cuts[document], cuts[document + 1]) for document in documents]
    found = np.concatenate([np.zeros(0, np.int64), *places])
    return np.append(found, np.full(length - len(found), -1, np.int64))


def _at(values_T: Tensor, place: Array, otherwise: int) -> Tensor:
    values = values_T.numpy()
    return torch.from_numpy(np.where(place >= 0, values[np.maximum(place, 0)], otherwise).astype(values.dtype))


def _stretch(start: int, each: int, ends: Array) -> Stretch:
    """The queries of a stretch, and the keys from the beginning of its first document on."""
    end = start + each
    first = int(np.searchsorted(ends, start, "right"))
    first_key = 0 if first == 0 else int(ends[first - 1])
    inside = ends[(ends > start) & (ends < end)]
    return Stretch(
        first_key, end, _int32([0, *(inside - start), each]), _int32([0, *(inside - first_key), end - first_key])
    )


def _int32(numbers: Sequence[Any]) -> Tensor:
    return torch.from_numpy(np.asarray(numbers, np.int32))


# --- attention -------------------------------------------------------------------------------------------------------


class ContextAttention:
    """Attention over a line of which these ranks hold parts; without shared documents it is `attend`'s."""

    def __init__(self, attend: Attend, ranks: ContextRanks) -> None:
        self.attend, self.ranks = attend, ranks

    def __call__(
        self,
        q_THD: Tensor,
        k_TKD: Tensor,
        v_TKD: Tensor,
        cuts_q: Tensor,
        cuts_k: Tensor,
        longest_q: int,
        longest_k: int,
        window: Window,
        beside: Shared | None = None,
    ) -> Tensor:
        if (shared := beside) is None:
            return self.attend(q_THD, k_TKD, v_TKD, cuts_q, cuts_k, longest_q, longest_k, window)
        S = shared.tokens
        by_way = self._by_keys if shared.stretches else self._by_heads
        of_shared = by_way(q_THD[:S], k_TKD[:S], v_TKD[:S], shared, longest_q, window)
        own = self.attend(q_THD[S:], k_TKD[S:], v_TKD[S:], cuts_q, cuts_k, longest_q, longest_k, window)
        return torch.cat([of_shared, own])

    def _by_heads(self, q: Tensor, k: Tensor, v: Tensor, shared: Shared, longest: int, window: Window) -> Tensor:
        C, K = self.ranks.count, k.shape[1]
        if K < C:
            k, v = (x.repeat_interleave(C // K, dim=1) for x in (k, v))
        q, k, v = (self._heads_of_all(x) for x in (q, k, v))
        attended = self.attend(q, k, v, shared.cuts, shared.cuts, longest, longest, window)
        S, each, D = shared.tokens, attended.shape[1], attended.shape[2]
        parts = attended.reshape(C, S, each, D)
        back: Tensor = Exchanged.apply(parts, None, None, self.ranks.group)  # type: ignore[no-untyped-call]
        return back.permute(1, 0, 2, 3).reshape(S, C * each, D)

    def _heads_of_all(self, x_SHD: Tensor) -> Tensor:
        """Some of the heads, of all ranks' tokens."""
        C, (S, H, D) = self.ranks.count, x_SHD.shape
        parts = x_SHD.reshape(S, C, H // C, D).permute(1, 0, 2, 3)
        received: Tensor = Exchanged.apply(parts, None, None, self.ranks.group)  # type: ignore[no-untyped-call]
        return received.reshape(C * S, H // C, D)

    def _by_keys(self, q: Tensor, k: Tensor, v: Tensor, shared: Shared, longest: int, window: Window) -> Tensor:
        k, v = (self._in_order(_Gathered.apply(x, self.ranks)) for x in (k, v))  # type: ignore[no-untyped-call]
        each = shared.tokens // 2
        outputs = []
        for number, (first, end, cuts_q, cuts_k) in enumerate(shared.stretches):
            asks = q[number * each : (number + 1) * each]
            outputs.append(self.attend(asks, k[first:end], v[first:end], cuts_q, cuts_k, longest, longest, window))
        return torch.cat(outputs)

    def _in_order(self, x_SKD: Tensor) -> Tensor:
        """Stretches of all ranks, 0 and 2 C - 1, 1 and 2 C - 2 and so on, as they lie in the line."""
        C = self.ranks.count
        halves = x_SKD.reshape(C, 2, -1, *x_SKD.shape[1:])
        return torch.cat([halves[:, 0], halves[:, 1].flip(0)]).flatten(0, 1)


class Exchanged(torch.autograd.Function):
    """Rows of the first dimension go to the ranks of a group, `into` so many to each (None: equally many), and `out` so
    many come from each; backward, their gradients go back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, out: list[int] | None, into: list[int] | None, group: Any) -> Tensor:
        ctx.out, ctx.into, ctx.group = out, into, group
        return exchange(x, out, into, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        return exchange(grad, ctx.into, ctx.out, ctx.group), None, None, None


def exchange(x: Tensor, out: list[int] | None, into: list[int] | None, group: Any) -> Tensor:
    """A functional collective, which torch.compile can trace."""
    sent = all_to_all_single(x.contiguous(), out, into, group)  # type: ignore[no-untyped-call]
    received: Tensor = wait_tensor(sent)  # type: ignore[no-untyped-call]
    return received


class _Gathered(torch.autograd.Function):
    """Of all ranks; the gradient is summed over them, in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: ContextRanks) -> Tensor:
        ctx.ranks = ranks
        whole = x.new_empty(ranks.count * len(x), *x.shape[1:])
        torch.distributed.all_gather_into_tensor(whole, x.contiguous(), group=ranks.group)
        return whole

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        wide = grad.to(torch.promote_types(grad.dtype, torch.float32)).contiguous()
        total = wide.new_empty(len(wide) // ctx.ranks.count, *wide.shape[1:])
        torch.distributed.reduce_scatter_tensor(total, wide, group=ctx.ranks.group)
        return total.to(grad.dtype), None


def share_rows(model: Decoder, ranks: RankGroup) -> None:
    """Attention of every block over all of these ranks."""
    here = ContextRanks(ranks.rank, ranks.count, ranks.group or torch.distributed.group.WORLD)
    for block in model.blocks:
        if isinstance(block, Block):
            block.attend = ContextAttention(block.attend, here)
