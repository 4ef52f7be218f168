"""Tensors that lie in parts on several ranks, for checkpoints of whole ones: they do not depend on how many ranks wrote
them.

A part is some spans of one dimension of the whole tensor. Parts are gathered at the first rank one tensor at a time and
written straight into the file, so no rank ever holds more of the others' data than one tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gristmill.trainer.parallel.ranks import RankGroup, device_of_messages
from gristmill.trainer.step.checkpoint import CODES, Entry, Tensors, file_order

Span = tuple[int, int]


@dataclass(frozen=True)
class Cut:
    """`spans` of dimension `dim` of a tensor of this `shape`, concatenated. No spans: nothing of it."""

    shape: tuple[int, ...]
    dim: int
    spans: tuple[Span, ...]

    @property
    def is_whole(self) -> bool:
        return self.spans == (_full_span(self.shape, self.dim),)

    @property
    def local_shape(self) -> tuple[int, ...]:
        if not self.shape:
            return ()
        return (*self.shape[: self.dim], sum(stop - start for start, stop in self.spans), *self.shape[self.dim + 1 :])

    def of(self, whole: Tensor) -> Tensor:
        """This part of `whole`."""
        return (
            whole if self.is_whole else torch.cat([whole.narrow(self.dim, a, b - a) for a, b in self.spans], self.dim)
        )

    def put(self, part: Tensor, whole: Tensor) -> None:
        """Copies `part` into its place."""
        if self.is_whole:
            whole.copy_(part)
            return
        pieces = torch.split(part, [b - a for a, b in self.spans], self.dim)
        for (a, b), piece in zip(self.spans, pieces, strict=True):
            whole.narrow(self.dim, a, b - a).copy_(piece)


def whole_cut(shape: Iterable[int]) -> Cut:
    sizes = tuple(shape)
    return Cut(sizes, 0, (_full_span(sizes, 0),))


def _full_span(shape: tuple[int, ...], dim: int) -> Span:
    return (0, shape[dim] if shape else 1)


@dataclass(frozen=True)
class Part:
    """What this rank holds of a tensor."""

    local: Tensor
    cut: Cut


def part_of(tensor: Tensor) -> Part:
    return Part(tensor, whole_cut(tensor.shape))


@dataclass(frozen=True)
class TensorEntry(Entry):
    """A whole tensor before it is gathered: which rank gives which cut of it."""

    givers: tuple[tuple[int, Cut], ...]


def list_tensors(parts: Mapping[str, Part], ranks: RankGroup) -> dict[str, TensorEntry]:
    """All ranks' tensors by name, on all ranks. Where several ranks hold the same cut, the lowest gives it."""
    dtypes = {code: dtype for dtype, code in CODES.items()}
    local_entries = {
        name: [CODES[part.local.dtype], part.cut.shape, part.cut.dim, part.cut.spans] for name, part in parts.items()
    }
    entries: dict[str, TensorEntry] = {}
    for rank, theirs in enumerate(ranks.gather(local_entries)):
        for name, (code, shape, dim, spans) in theirs.items():
            cut = Cut(tuple(shape), dim, tuple((a, b) for a, b in spans))
            entry = entries.get(name) or TensorEntry(dtypes[code], cut.shape, ())
            if (entry.dtype, entry.shape) != (dtypes[code], cut.shape):
                raise ValueError(
                    f"{name}: {entry.dtype} {entry.shape} on one rank, {dtypes[code]} {cut.shape} on another"
                )
            if cut.spans and all(cut != given for _, given in entry.givers):
                entry = TensorEntry(entry.dtype, entry.shape, (*entry.givers, (rank, cut)))
            entries[name] = entry
    return file_order(entries)


def gather_wholes(
    parts: Mapping[str, Part], table: Mapping[str, TensorEntry], ranks: RankGroup
) -> Iterator[tuple[str, Tensor]]:
    """On the first rank every tensor in the table's order, on the CPU. The others must iterate too, and only send."""
    for name, entry in table.items():
        if not ranks.first:
            if any(rank == ranks.rank for rank, _ in entry.givers):
                message = parts[name].local.detach().contiguous().to(device_of_messages(ranks))
                torch.distributed.send(message, group=ranks.group, group_dst=0)
            continue
        if [rank for rank, _ in entry.givers] == [0] and parts[name].cut.is_whole:
            yield name, parts[name].local.detach().cpu().contiguous()
            continue
        whole = torch.empty(entry.shape, dtype=entry.dtype)
        for rank, cut in entry.givers:
            if rank == 0:
                cut.put(parts[name].local.detach(), whole)
                continue
            received = torch.empty(cut.local_shape, dtype=entry.dtype, device=device_of_messages(ranks))
            torch.distributed.recv(received, group=ranks.group, group_src=rank)
            cut.put(received, whole)
        yield name, whole


def read_cut(file: Any, name: str, cut: Cut) -> Tensor:
    """This cut of a tensor of a file that `safetensors.safe_open` opened; no other bytes are read."""
    if cut.is_whole:
        whole: Tensor = file.get_tensor(name)
        return whole
    rows = file.get_slice(name)
    before = (slice(None),) * cut.dim
    return torch.cat([rows[(*before, slice(a, b))] for a, b in cut.spans], cut.dim)


class Cuts(Tensors):
    """Of each tensor named in `cuts` this rank holds that part, and of the optimizer's state about it the same part, if
    it is as large; of all others the whole. All ranks call these methods."""

    def __init__(self, ranks: RankGroup, cuts: Mapping[str, Cut]) -> None:
        self.world = self._ranks = ranks
        self._cuts = cuts

    def entries(self, tensors: Mapping[str, Tensor]) -> dict[str, Entry]:
        return dict(list_tensors(self._parts(tensors), self._ranks))

    def wholes(self, tensors: Mapping[str, Tensor], entries: Mapping[str, Entry]) -> Iterator[tuple[str, Tensor]]:
        table = {name: entry for name, entry in entries.items() if isinstance(entry, TensorEntry)}
        return gather_wholes(self._parts(tensors), table, self._ranks)

    def shapes(self, tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
        by_rank = self._ranks.gather({name: part.cut.shape for name, part in self._parts(tensors).items()})
        return {name: tuple(shape) for of_rank in by_rank for name, shape in of_rank.items()}

    def read(self, file: Any, key: str) -> Tensor:
        shape = tuple(file.get_slice(key).get_shape())
        cut = self._cuts.get(_parameter_of(key))
        cut = cut if cut is not None and shape == cut.shape else whole_cut(shape)
        return read_cut(file, key, cut) if cut.spans else torch.empty(cut.local_shape)

    def _parts(self, tensors: Mapping[str, Tensor]) -> dict[str, Part]:
        parts = {}
        for key, tensor in tensors.items():
            cut = self._cuts.get(_parameter_of(key))
            same = cut is not None and tensor.ndim and tuple(tensor.shape) == cut.local_shape
            parts[key] = Part(tensor, cut) if cut is not None and same else part_of(tensor)
        return parts


def _parameter_of(key: str) -> str:
    """Of a parameter's name, or of a key of the optimizer's state about it (`exp_avg:NAME`)."""
    return key.rpartition(":")[2]
