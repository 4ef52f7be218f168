"""A column of text through the GPU piece by piece: while one piece is processed, the next is copied in and the results
of the last are copied out.

Pieces are whole documents, of about equal bytes. Each lane has its own stream and memory for one piece, so GPU memory
does not grow with the column, only with the longest document.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
import torch

from gristmill.kernels.base.columns import TextColumn
from gristmill.kernels.base.types import Array, Offsets
from gristmill.kernels.gpu.tokens import PADDING, room


class Piece(NamedTuple):
    """Documents on the device: i is `data[offsets[i]:offsets[i + 1]]`, offsets from 0 to `size`. Data has spare room at
    the end."""

    data: torch.Tensor
    size: int
    offsets: torch.Tensor


def default_device() -> torch.device:
    """The GPU; without one the CPU, where kernels only run in Triton's interpreter."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def column_tensor(column: TextColumn) -> torch.Tensor:
    """The bytes of a column as a tensor over the same memory. The column must outlive it."""
    if not len(column.data):
        return torch.empty(0, dtype=torch.uint8)
    place = (ctypes.c_uint8 * len(column.data)).from_address(
        column.data.ctypes.data
    )  # torch warns of arrays that are read-only
    return torch.frombuffer(place, dtype=torch.uint8)


def through_device(
    data: torch.Tensor,
    offsets: Offsets,
    device: torch.device,
    work: Callable[[Piece], tuple[torch.Tensor, ...]],
    piece_bytes: int,
    most_documents: int,
    lanes: int,
) -> tuple[Array, ...]:
    """The results of `work` for the documents, a row each: each of its tensors comes back as one array, in order."""
    cuts = list(cut(offsets, piece_bytes, most_documents)) or [(0, 0)]
    longest = max(int(offsets[end] - offsets[begin]) for begin, end in cuts)
    free = [_Lane(device, stream, longest) for stream in streams(device, lanes)[: len(cuts)]]
    out: list[Array] = []
    for turn, (begin, end) in enumerate(cuts):
        lane = free[turn % len(free)]
        lane.collect(out, len(offsets) - 1)
        with lane.stream_of_its_own():
            piece = lane.upload(data[offsets[begin] : offsets[end]], offsets[begin : end + 1] - offsets[begin])
            lane.download(work(piece), begin)
    for turn in range(len(cuts), len(cuts) + len(free)):
        free[turn % len(free)].collect(out, len(offsets) - 1)
    return tuple(out)


def cut(offsets: Offsets, piece_bytes: int, most_documents: int) -> Iterator[tuple[int, int]]:
    """Runs of documents that are together no larger than this, or one document that is larger."""
    begin, count = 0, len(offsets) - 1
    while begin < count:
        end = int(np.searchsorted(offsets, offsets[begin] + piece_bytes, side="right")) - 1
        end = min(max(end, begin + 1), begin + most_documents, count)
        yield begin, end
        begin = end


@cache
def streams(device: torch.device, count: int) -> tuple[torch.cuda.Stream | None, ...]:
    """The same streams each time: torch keeps freed memory for the stream that used it."""
    return tuple(torch.cuda.Stream(device) if device.type == "cuda" else None for _ in range(count))


class _Lane:
    """Memory for a piece, and its results on their way back."""

    def __init__(self, device: torch.device, stream: torch.cuda.Stream | None, size: int) -> None:
        self.device, self.stream = device, stream
        with self.stream_of_its_own():
            self.data = torch.empty(room(size + PADDING), dtype=torch.uint8, device=device)
        self.staging: torch.Tensor | None = None
        self.waiting: tuple[tuple[torch.Tensor, ...], int] | None = None

    @contextlib.contextmanager
    def stream_of_its_own(self) -> Iterator[None]:
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            yield

    def upload(self, text: torch.Tensor, offsets: Offsets) -> Piece:
        size, places = len(text), torch.from_numpy(offsets)
        if self.stream is not None:
            places = places.pin_memory().to(self.device, non_blocking=True)
            if not (text.is_cuda or text.is_pinned()):
                if self.staging is None:
                    self.staging = torch.empty(len(self.data), dtype=torch.uint8, pin_memory=True)
                text = self.staging[:size].copy_(text)
        self.data[:size].copy_(text, non_blocking=True)
        return Piece(self.data, size, places)

    def download(self, results: tuple[torch.Tensor, ...], begin: int) -> None:
        self.waiting = tuple(part.to("cpu", non_blocking=True) for part in results), begin

    def collect(self, out: list[Array], documents: int) -> None:
        """Waits for the last piece and stores its results in their rows."""
        if self.waiting is None:
            return
        if self.stream is not None:
            self.stream.synchronize()
        results, begin = self.waiting
        if not out:
            out.extend(np.empty((documents, *part.shape[1:]), part.numpy().dtype) for part in results)
        for whole, part in zip(out, results, strict=True):
            whole[begin : begin + len(part)] = part.numpy()
        self.waiting = None
