"""Rows of token shards as the decoder takes them: documents end to end, none sees another, positions restart in each.

T tokens of all rows in one line; `cuts` are the N + 1 cumulative lengths of the documents' pieces (a row's padding is a
piece of its own without targets).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gristmill.shards.batch import NO_LABEL, cumulative_lengths, labels, positions
from gristmill.shards.rows import Rows

TENSORS = ("ids_T", "targets_T", "positions_T", "cuts")


class Stretch(NamedTuple):
    """A rank's queries of shared documents that lie together, and their keys among those of all ranks."""

    first_key: int
    end: int
    cuts_q: Tensor
    cuts_k: Tensor


class Shared(NamedTuple):
    """Documents that several ranks hold parts of (`gristmill.trainer.parallel.context`): the first `tokens` of this
    rank's line; `cuts` are those of all ranks' parts, end to end."""

    tokens: int
    cuts: Tensor
    stretches: tuple[Stretch, ...]  # none: attention by heads

    def to(self, device: torch.device | str) -> Shared:
        return self._over(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> Shared:
        return self._over(Tensor.pin_memory)

    def _over(self, change: Callable[[Tensor], Tensor]) -> Shared:
        stretches = (each._replace(cuts_q=change(each.cuts_q), cuts_k=change(each.cuts_k)) for each in self.stretches)
        return Shared(self.tokens, change(self.cuts), tuple(stretches))


@dataclass(frozen=True)
class PackedTokens:
    """`targets_T` is each token's successor in the same piece, -100 where there is none; `counted` is the number of
    targets; no piece is longer than `longest`. `cuts` begin behind what is shared."""

    ids_T: Tensor
    targets_T: Tensor
    positions_T: Tensor
    cuts: Tensor
    longest: int
    counted: int
    shared: Shared | None = None

    def to(self, device: torch.device | str) -> PackedTokens:
        """Does not wait for what comes from pinned memory."""
        here = {name: getattr(self, name).to(device, non_blocking=True) for name in TENSORS}
        return replace(self, **here, shared=self.shared and self.shared.to(device))

    def pinned(self) -> PackedTokens:
        here = {name: getattr(self, name).pin_memory() for name in TENSORS}
        return replace(self, **here, shared=self.shared and self.shared.pinned())

    def tensors(self) -> list[Tensor]:
        return [self.ids_T, self.targets_T, self.positions_T, *self.all_cuts()]

    def all_cuts(self) -> list[Tensor]:
        if self.shared is None:
            return [self.cuts]
        of_stretches = [cuts for each in self.shared.stretches for cuts in (each.cuts_q, each.cuts_k)]
        return [self.cuts, self.shared.cuts, *of_stretches]


def pack_rows(rows: Rows) -> PackedTokens:
    """All rows of a batch in one line."""
    labels_T = labels(rows).reshape(-1)
    targets = np.append(labels_T[1:], NO_LABEL)
    cuts = cumulative_lengths(rows)
    return PackedTokens(
        torch.from_numpy(rows.input_ids.astype(np.int64).reshape(-1)),
        torch.from_numpy(targets),
        torch.from_numpy(positions(rows).reshape(-1)),
        torch.from_numpy(cuts),
        next_power_of_two(int(np.diff(cuts).max(initial=1))),
        int((targets != NO_LABEL).sum()),
    )


def pack_documents(documents: list[list[int]]) -> PackedTokens:
    """Documents given as lists of tokens, in one line without padding."""
    lengths = [len(tokens) for tokens in documents if tokens]
    ids = (
        np.concatenate([np.asarray(tokens, np.int64) for tokens in documents if tokens])
        if lengths
        else np.zeros(0, np.int64)
    )
    ends = np.cumsum(lengths, dtype=np.int64)
    targets = np.append(ids[1:], NO_LABEL)[: len(ids)]
    targets[ends - 1] = NO_LABEL
    places = np.arange(len(ids), dtype=np.int32) - np.repeat(ends - lengths, lengths).astype(np.int32)
    cuts = np.concatenate([np.zeros(1, np.int32), ends.astype(np.int32)])
    return PackedTokens(
        torch.from_numpy(ids),
        torch.from_numpy(targets),
        torch.from_numpy(places),
        torch.from_numpy(cuts),
        next_power_of_two(max(lengths, default=1)),
        int((targets != NO_LABEL).sum()),
    )


def next_power_of_two(longest: int) -> int:
    """The next power of two: compiled code and kernels' grids then see few different values."""
    return 1 << max(0, longest - 1).bit_length()
