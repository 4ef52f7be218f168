"""Sums of gradients over replicas: whole copies of a model's shards, one a host, between which the link is slow.

Ranks of a host reduce their gradients first, so each sends only its own share of the sum to the other hosts (hybrid
sharding; Zhao et al. 2023, section 3.2.2; hierarchical all-reduce). Between hosts, gradients may be narrower than
float32:

| precision | bytes a number |
| --- | --- |
| float32 | 4 |
| bf16 | 2 |
| int8 | 1 + 4 / 256: a float32 scale for each 256 numbers |

What rounding takes from a sum is kept in float32 and added to the next update's (error feedback; Seide et al. 2014,
Karimireddy et al. 2019), so that it arrives later and is not lost. A narrow sum takes two messages, as in 1-bit Adam
(Tang et al. 2021): each replica receives its part of the vector from all others, adds in float32, rounds the sum, and
sends it to all. The second rounding's error stays with the replica that made it. All replicas receive the same bytes,
so their weights stay equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from gristmill.trainer.parallel.ranks import Grid, RankGroup

ReplicaGradients = Literal["float32", "bf16", "int8"]

BLOCK = 256  # numbers that share a scale


class ReplicaSum:
    """In place, over the ranks that hold the same shard. `layout`: names the residuals, which fit no other layout."""

    def __init__(
        self, replicas: RankGroup, precision: ReplicaGradients = "float32", layout: str = "", feedback: bool = True
    ) -> None:
        self._replicas, self._precision, self._layout, self._feedback = replicas, precision, layout, feedback
        self._residuals: dict[str, Tensor] = {}

    def __call__(self, flat: Tensor, key: object) -> None:
        """`key`: which of an update's vectors this is."""
        if self._precision == "float32":
            dist.all_reduce(flat, group=self._replicas.group)
        else:
            self._narrow(flat, f"{self._layout}.{key}")

    def _narrow(self, flat: Tensor, name: str) -> None:
        count, rank, group = self._replicas.count, self._replicas.rank, self._replicas.group
        each = -(-flat.numel() // (count * BLOCK)) * BLOCK
        exact = flat.new_zeros(count * each)
        exact[: flat.numel()] = flat
        if (residual := self._residuals.get(name)) is not None:
            exact += residual
        sent = _encode(exact.view(count, each), self._precision)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=group)
        total = _decode(received, self._precision).sum(0)
        rounded = _encode(total[None], self._precision)
        sums = torch.empty_like(sent)
        dist.all_gather_into_tensor(sums, rounded, group=group)
        flat.copy_(_decode(sums, self._precision).flatten()[: flat.numel()])
        if self._feedback:
            error = exact.view(count, each) - _decode(sent, self._precision)
            error[rank] += total - _decode(rounded, self._precision)[0]
            # A gradient that is not finite refuses its update, and must not spoil the next.
            self._residuals[name] = error.flatten().nan_to_num_(0.0, 0.0, 0.0)

    def residuals(self) -> dict[str, Tensor]:
        """Of this rank alone, for a checkpoint."""
        return dict(self._residuals)

    def restore(self, residuals: Mapping[str, Tensor], device: torch.device) -> None:
        """Those of another layout are dropped: one update's rounding, which nothing makes up for."""
        self._residuals = {
            name: tensor.to(device) for name, tensor in residuals.items() if name.startswith(f"{self._layout}.")
        }


def replica_sum_of(grid: Grid, precision: ReplicaGradients, zero: int) -> ReplicaSum | None:
    """None without replicas."""
    if grid.replicas.count == 1:
        return None
    layout = f"zero{zero}.ranks{grid.all.count}.tensor{grid.tensor.count}.replicas{grid.replicas.count}"
    return ReplicaSum(grid.replicas, precision, layout)


class TwoLevels:
    """A bucket on its way: reduced among `shards`, summed over the replicas, and back. On CUDA all of it runs beside
    the backward pass, on `stream`; on the CPU what follows the first message is done in `wait`."""

    def __init__(
        self, flat: Tensor, owner: int | None, shards: RankGroup, between: ReplicaSum, key: int, stream: Any
    ) -> None:
        self._flat, self._owner, self._shards, self._between, self._key = flat, owner, shards, between, key
        self._stream = stream
        if stream is None:
            self._begin()
            return
        stream.wait_stream(torch.cuda.current_stream(flat.device))
        with torch.cuda.stream(stream):
            self._begin()
            self._finish()

    def wait(self) -> None:
        if self._stream is None:
            self._finish()
        else:
            torch.cuda.current_stream(self._flat.device).wait_stream(self._stream)

    def _begin(self) -> None:
        """Each rank gets an equal share of the sum, or its owner all of it."""
        shards, flat = self._shards, self._flat
        self._work: Any = None
        self._share = flat
        if shards.count == 1:
            return
        if self._owner is None:
            self._share = flat.new_empty(len(flat) // shards.count)
            self._work = dist.reduce_scatter_tensor(self._share, flat, group=shards.group, async_op=True)
        else:
            self._work = dist.reduce(flat, group=shards.group, group_dst=self._owner, async_op=True)

    def _finish(self) -> None:
        if self._work is not None:
            self._work.wait()
        if self._owner in (None, self._shards.rank):
            self._between(self._share, self._key)
        if self._owner is None and self._shards.count > 1:
            dist.all_gather_into_tensor(self._flat, self._share, group=self._shards.group)


def _encode(x_RN: Tensor, precision: ReplicaGradients) -> Tensor:
    """Rows of bytes."""
    if precision == "bf16":
        return x_RN.bfloat16().view(torch.uint8)
    blocks = x_RN.view(len(x_RN), -1, BLOCK)
    scale = blocks.abs().amax(-1, keepdim=True) / 127
    numbers = (blocks / scale.where(scale > 0, 1.0)).round().to(torch.int8)
    packed = [numbers.flatten(1).view(torch.uint8), scale.flatten(1).contiguous().view(torch.uint8)]
    return torch.cat(packed, 1)


def _decode(bytes_RB: Tensor, precision: ReplicaGradients) -> Tensor:
    if precision == "bf16":
        return bytes_RB.view(torch.bfloat16).float()
    blocks = bytes_RB.shape[1] // (BLOCK + 4)
    numbers = bytes_RB[:, : blocks * BLOCK].view(torch.int8).view(-1, blocks, BLOCK)
    scale = bytes_RB[:, blocks * BLOCK :].contiguous().view(torch.float32)
    return (numbers * scale[..., None]).flatten(1)
