"""Tensors that lie in parts on several ranks, and files of whole ones: a checkpoint does not depend on how many ranks
wrote it.

A part is some spans of one dimension of the whole tensor. Parts are gathered at the first rank one tensor at a time and
written straight into the file, which is safetensors (a length, a JSON header, the bytes), so no rank ever holds more of
the others' data than one tensor.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gristmill.trainer.parallel.ranks import RankGroup, device_of_messages

Span = tuple[int, int]

CODES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


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

    def beside(self, other: Tensor) -> Part:
        """Another tensor about the same numbers (optimiser state): cut alike if it has the same shape, else whole on
        every rank."""
        return Part(other, self.cut if other.ndim and other.shape == self.local.shape else whole_cut(other.shape))


def part_of(tensor: Tensor | Part) -> Part:
    return tensor if isinstance(tensor, Part) else Part(tensor, whole_cut(tensor.shape))


@dataclass(frozen=True)
class TensorEntry:
    """A whole tensor before it is gathered: which rank gives which cut of it."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    givers: tuple[tuple[int, Cut], ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


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
    # Wide numbers first: all stay aligned in the file.
    return dict(sorted(entries.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])))


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


def write_safetensors(path: Path, table: Mapping[str, TensorEntry], tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Returns the file's sha256. `tensors` come in the table's order, one at a time."""
    header: dict[str, Any] = {}
    end = 0
    for name, entry in table.items():
        header[name] = {
            "dtype": CODES[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": [end, end + entry.size],
        }
        end += entry.size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for chunk in (len(text).to_bytes(8, "little"), text):
            file.write(chunk)
            digest.update(chunk)
        for _, tensor in tensors:
            data: Any = tensor.reshape(-1).view(torch.uint8).numpy()
            file.write(data)
            digest.update(data)
    return digest.hexdigest()


def read_cut(file: Any, name: str, cut: Cut) -> Tensor:
    """This cut of a tensor of a file that `safetensors.safe_open` opened; no other bytes are read."""
    if cut.is_whole:
        whole: Tensor = file.get_tensor(name)
        return whole
    rows = file.get_slice(name)
    before = (slice(None),) * cut.dim
    return torch.cat([rows[(*before, slice(a, b))] for a, b in cut.spans], cut.dim)
