"""Loads rows onto the device while it computes: a thread reads, packs, and copies from pinned memory on a stream of
its own.

The facts of an update travel with its rows, the loader's state after it too: a checkpoint records exactly what was
trained on, however far the thread is ahead. Rows are checked first: a token beyond the vocabulary would stop a GPU
without saying where.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, Full, Queue
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import torch
import torch._dynamo

from gristmill.kernels.base.types import Array
from gristmill.shards.batch import Batch
from gristmill.shards.format import BadShards
from gristmill.shards.loader import Loader
from gristmill.shards.pieces import filled
from gristmill.trainer.model.packed import PackedTokens, pack_rows

DEPTH = 2  # steps that are ready ahead of the one at work
PATIENCE = 0.1  # seconds between looks at whether to stop


@dataclass(frozen=True)
class BatchFacts:
    """What one update reads, of this process's share: `place` is where its batch begins, `counted` the number of its
    targets, `lengths` those of its pieces."""

    place: int
    counted: int
    tokens: int
    lengths: Array
    state: dict[str, Any]


Part = Callable[[PackedTokens], PackedTokens]


class Step(NamedTuple):
    """Some of an update's rows, on the device."""

    packed: PackedTokens
    read: BatchFacts
    last: bool


class _Ready(NamedTuple):
    step: Step
    copied: torch.cuda.Event | None


class Feed:
    """The steps of one update after another, from the position of `loader` (which does not move). `part`:
    what is computed here of a line of rows (None: all).

    A context: leaving it ends the thread. The thread's errors are raised by `update`.
    """

    def __init__(
        self,
        loader: Loader,
        rows_per_step: int,
        device: torch.device,
        depth: int = DEPTH,
        part: Part | None = None,
    ) -> None:
        self._part = part
        self._loader = loader.standing_here()
        self._rows_per_step = rows_per_step
        self._device = device
        self._ready: Queue[_Ready | BaseException | None] = Queue(depth)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="feed", daemon=True)

    def __enter__(self) -> Feed:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        while self._thread.is_alive():
            with suppress(Empty):  # it may be waiting for room
                self._ready.get(timeout=PATIENCE)
            self._thread.join(PATIENCE)

    def update(self) -> Iterator[Step]:
        """The steps of the next update; none at the end of the last epoch. Take them all."""
        for step in self.steps():
            yield step
            if step.last:
                return

    def steps(self) -> Iterator[Step]:
        """One after another, across updates."""
        while (step := self._next()) is not None:
            yield step

    def _next(self) -> Step | None:
        ready = self._ready.get()
        if ready is None or isinstance(ready, BaseException):
            self._ready.put(ready)  # for whoever asks again
            if ready is None:
                return None
            raise ready
        if ready.copied is not None:
            here = torch.cuda.current_stream(self._device)
            here.wait_event(ready.copied)
            on_device = ready.step.packed
            for tensor in on_device.tensors():
                tensor.record_stream(here)
            # No two batches have the same number of pieces: compiled code need not find out.
            for cuts in on_device.all_cuts():
                torch._dynamo.maybe_mark_dynamic(cuts, 0)
        return ready.step

    def _work(self) -> None:
        try:
            if self._device.type == "cuda":
                with torch.cuda.device(self._device):
                    side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
                    for step in self._read():
                        self._hand_over(_copy_to_device(step, self._device, side))
            else:
                for step in self._read():
                    self._hand_over(_Ready(step._replace(packed=step.packed.to(self._device)), None))
            self._hand_over(None)
        except _Stopped:
            pass
        except BaseException as error:  # whatever it is, it is the caller's
            with suppress(_Stopped):
                self._hand_over(error)

    def _read(self) -> Iterator[Step]:
        while True:
            place = self._loader.place
            batch = self._loader.next_batch()
            if batch is None:
                return
            check(batch, self._loader)
            rows = batch.rows
            lengths = np.array(rows.seq_lens, np.int64)
            facts = BatchFacts(place, int(lengths.sum()) - len(lengths), int(lengths.sum()), lengths, batch.state)
            for start in range(0, len(rows.bucket), self._rows_per_step):
                stop = min(start + self._rows_per_step, len(rows.bucket))
                packed = pack_rows(rows.part(start, stop))
                yield Step(self._part(packed) if self._part else packed, facts, stop == len(rows.bucket))

    def _hand_over(self, ready: _Ready | BaseException | None) -> None:
        while not self._stop.is_set():
            try:
                return self._ready.put(ready, timeout=PATIENCE)
            except Full:
                continue
        raise _Stopped


class _Stopped(Exception):
    """Nobody waits for more."""


def _copy_to_device(step: Step, device: torch.device, side: torch.cuda.Stream) -> _Ready:
    with torch.cuda.stream(side):
        on_device = step.packed.pinned().to(device)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record(side)
    return _Ready(step._replace(packed=on_device), done)


def check(batch: Batch, loader: Loader) -> None:
    """Checks what the index promises of the rows."""
    rows, meta, folder = batch.rows, loader.shards.meta, loader.shards.folder
    advice = "the shards are damaged (`gristmill maintain verify` says which); write them again"
    largest = rows.input_ids.max(axis=1)
    if len(bad := np.flatnonzero(largest >= meta.vocab_size)):
        token = int(largest[bad[0]])
        raise BadShards(
            f"{folder}: row {int(batch.numbers[bad[0]]):,} holds token {token:,}, the vocabulary has "
            f"{meta.vocab_size:,}: {advice}"
        )
    filled_places = filled(rows.seq_lens, rows.first_piece)
    if len(rows.seq_lens) and int(rows.seq_lens.min()) < 1:
        raise BadShards(
            f"{folder}: a row between {int(batch.numbers.min()):,} and {int(batch.numbers.max()):,} has an empty "
            f"piece: {advice}"
        )
    if len(bad := np.flatnonzero(filled_places > meta.row_length)):
        raise BadShards(
            f"{folder}: row {int(batch.numbers[bad[0]]):,} counts {int(filled_places[bad[0]]):,} tokens in "
            f"{meta.row_length:,} places: {advice}"
        )
