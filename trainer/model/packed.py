"""Rows of token shards as the decoder takes them: documents end to end, none sees another, positions restart in each.

T tokens of all rows in one line; `cuts` are the N + 1 cumulative lengths of the documents' pieces (a row's padding is a
piece of its own without targets).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gristmill.shards.batch import NO_LABEL, cumulative_lengths, labels, positions
from gristmill.shards.rows import Rows

TENSORS = ("ids_T", "targets_T", "positions_T", "cuts")


@dataclass(frozen=True)
class PackedTokens:
    """`targets_T` is each token's successor in the same piece, -100 where there is none; `counted` is the number of
    targets; no piece is longer than `longest`. `beside`: what an attention that was put in place of the usual one needs
    beside these (tensors in a tuple of its own)."""

    ids_T: Tensor
    targets_T: Tensor
    positions_T: Tensor
    cuts: Tensor
    longest: int
    counted: int
    beside: Any = None

    def to(self, device: torch.device | str) -> PackedTokens:
        """Does not wait for what comes from pinned memory."""
        return self.over(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> PackedTokens:
        return self.over(Tensor.pin_memory)

    def over(self, change: Callable[[Tensor], Tensor]) -> PackedTokens:
        changed: dict[str, Any] = {name: change(getattr(self, name)) for name in TENSORS}
        return replace(self, **changed)

    def tensors(self) -> list[Tensor]:
        return [self.ids_T, self.targets_T, self.positions_T, *self.all_cuts()]

    def all_cuts(self) -> list[Tensor]:
        """Those whose lengths vary from batch to batch."""
        return [self.cuts]


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
