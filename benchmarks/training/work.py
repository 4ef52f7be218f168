"""What benchmarks of training runs share: rows that a decoder can learn from, made in memory from a seed, and sections
that fail alone."""

from __future__ import annotations

import gc
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch

from benchmarks.training.speed import say
from gristmill.kernels.base.types import Array
from gristmill.shards.format import ShardMeta
from gristmill.shards.rows import Rows

MEAN_LENGTH = 500
FOLLOWS = 0.75  # how often a token is the fixed successor of the one before
LEFT_OVER = 1 << 28
ROOM = 24 << 30

Section = Callable[[], None]


class DrawnRows:
    """A set of rows as `gristmill.shards.loader.Loader` reads it. Full rows of documents of log-normal lengths; tokens
    walk from successor to successor, and now and then jump to a token drawn with a skew: a model first learns how often
    tokens are, then what follows what."""

    def __init__(self, rows: int, row_length: int, vocabulary: int, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.folder = Path(f"drawn from seed {seed}")
        self.fingerprint = f"drawn-{rows}-{row_length}-{vocabulary}-{seed}"
        self.meta = ShardMeta("drawn", "", vocabulary, row_length, 0, None, None, "drawn", seed, self.fingerprint)
        self._ids = _walks(random, rows, row_length, vocabulary).astype(self.meta.dtype)
        self._lengths = [_lengths(random, row_length) for _ in range(rows)]

    def __len__(self) -> int:
        return len(self._ids)

    def take(self, rows: Array, out: Array | None = None) -> Rows:
        ids = np.take(self._ids, rows, axis=0, out=out)
        lengths = [self._lengths[row] for row in rows]
        first_piece = np.concatenate([[0], np.cumsum([len(pieces) for pieces in lengths])]).astype(np.int32)
        pieces = np.concatenate(lengths)
        unknown = np.zeros(len(pieces), np.int32)
        return Rows(
            ids, first_piece, pieces, unknown.astype(np.uint64), unknown, unknown.astype(np.int16),
            np.full(len(rows), -1, np.int16),
            np.full(len(rows), np.nan, np.float32),
        )  # fmt: skip


def _walks(random: np.random.Generator, rows: int, row_length: int, vocabulary: int) -> Array:
    successor = random.permutation(vocabulary)
    jumps = random.random((row_length, rows)) >= FOLLOWS
    ids = (vocabulary * random.random((row_length, rows)) ** 3).astype(np.int64)
    for place in range(1, row_length):
        np.copyto(ids[place], successor[ids[place - 1]], where=~jumps[place])
    return np.ascontiguousarray(ids.T)


def _lengths(random: np.random.Generator, row_length: int) -> Array:
    """Until the row is full; the last document is cut."""
    ends = [0]
    while ends[-1] < row_length:
        ends.append(min(row_length, ends[-1] + 1 + int(random.lognormal(np.log(MEAN_LENGTH) - 0.5, 1.0))))
    return np.diff(ends).astype(np.int32)


def reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip()[:600]}"


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A folder for checkpoints: in memory where that has room, for disks are not what is measured."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > ROOM
    return tempfile.TemporaryDirectory(dir=memory if roomy else None)


def tidy(device: torch.device) -> int:
    """Bytes that are still taken on the device; compiled code is forgotten where it holds on to weights."""
    gc.collect()
    if device.type != "cuda":
        return 0
    if torch.cuda.memory_allocated(device) > LEFT_OVER:
        torch._dynamo.reset()
        gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated(device)


def go_through(sections: Mapping[str, tuple[int, Section]], only: str, device: torch.device) -> None:
    """In the order of `only`; each has the seconds that it takes on an H200."""
    for name in only.split(","):
        expected, section = sections[name]
        began = time.perf_counter()
        say("begins", section=name, expected_seconds=expected)
        try:
            section()
        except Exception as error:  # the others are still worth having
            say(name, failed=reason(error))
        tidy(device)
        say("ended", section=name, seconds=round(time.perf_counter() - began, 1))
