"""The number of rows of a step: the largest that fits, found by trying, and of those that fit the smallest that is
as fast.

Candidates are tried from the smallest, doubling until one does not fit, then halving the gap. Within 1 % of the best
speed the smallest is taken: the memory that it leaves is worth more. The try itself is a parameter, so the search is
the same over a GPU and over a simulated memory. On a GPU a try is real updates at rate 0 on real rows; their effect
on the optimiser is undone from a checkpoint that is made before. Several ranks do not try, because a rank that runs
out of memory leaves the others waiting: they take what `gristmill.trainer.parallel.memory` predicts to fit with room to
spare.
"""

from __future__ import annotations

import gc
import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import torch

from gristmill.shards.loader import Loader
from gristmill.trainer.run.feed import Feed
from gristmill.trainer.step import checkpoint
from gristmill.trainer.step.stepper import Stepper

WITHIN = 0.01
MARGIN = 0.05  # of the GPU's memory, where it is tried
SPARE = 0.2  # where it is predicted: gaps, workspaces, documents that fall worse
ADVICE = "take recompute 'selective' or 'full', a higher zero stage, or shorter rows"
TIMED = 5  # steps after the first; the quickest counts, for some compile
CPU_TOKENS = 16_384  # of a step on the CPU, where memory is not what bounds it

Try = Callable[[int], float | None]  # rows a step -> tokens a second; None: they do not fit


class TooLarge(RuntimeError):
    """Not even one row fits."""


def divisors(rows: int) -> list[int]:
    """Steps of one size: compiled code sees one shape."""
    small = [d for d in range(1, int(rows**0.5) + 1) if rows % d == 0]
    return sorted({*small, *(rows // d for d in small)})


def search(candidates: Sequence[int], attempt: Try) -> int:
    """Of `candidates` (rising)."""
    speeds: dict[int, float] = {}
    too_many = len(candidates)  # the first place that is known, or taken, not to fit
    index = 0
    while index < too_many:
        if (speed := attempt(candidates[index])) is None:
            too_many = index
            break
        speeds[index] = speed
        last = len(candidates) - 1
        index = next(
            (i for i in range(index + 1, last) if candidates[i] >= 2 * candidates[index]),
            last if index < last else last + 1,
        )
    if not speeds:
        raise TooLarge(f"not even a step of {candidates[0]:,} row fits into the GPU's memory; {ADVICE}")
    fits = max(speeds)
    while too_many < len(candidates) and too_many - fits > 1:
        middle = (fits + too_many) // 2
        if (speed := attempt(candidates[middle])) is None:
            too_many = middle
        else:
            speeds[middle] = speed
            fits = middle
    best = max(speeds.values())
    return min(candidates[i] for i, speed in speeds.items() if speed >= (1 - WITHIN) * best)


def predicted_step(predict: Callable[[int], int], rows: int, room: int, most: int) -> int:
    """The largest divisor of `rows`, at most `most`, whose predicted bytes leave a share of `room` free. The same on
    every rank."""
    fits = [d for d in divisors(rows) if d <= most and predict(d) <= (1 - SPARE) * room]
    if not fits:
        raise TooLarge(
            f"a step of 1 row is predicted to take {predict(1) / 2**30:.1f} of the GPU's {room / 2**30:.1f} GiB; "
            f"{ADVICE}"
        )
    return max(fits)


def step_rows_on_cpu(rows: int, row_length: int, most: int) -> int:
    return max((d for d in divisors(rows) if d <= most and d * row_length <= CPU_TOKENS), default=1)


@contextmanager
def reserved_memory(device: torch.device, margin: float) -> Iterator[None]:
    """Inside, this share of the GPU's memory cannot be allocated: what fits there leaves room for documents of worse
    lengths."""
    number = torch.cuda.current_device() if device.index is None else device.index  # torch takes no "cuda" here
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1 - margin, number)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, number)
        torch.cuda.empty_cache()


def largest_step(stepper: Stepper, loader: Loader, rows: int, scratch: Path, device: torch.device) -> int:
    """A divisor of `rows` of an update, for a stepper of one rank on a GPU; leaves the stepper as it was. `scratch`:
    a folder that is made and removed."""
    stepper.save(scratch, 0, {}, 1)
    try:
        with reserved_memory(device, MARGIN):
            return search(divisors(rows), lambda step_rows: measure_step(stepper, loader, step_rows, device))
    finally:
        torch.compiler.reset()
        stepper.load(checkpoint.steps(scratch)[-1])
        shutil.rmtree(scratch)


def measure_step(stepper: Stepper, loader: Loader, rows: int, device: torch.device) -> float | None:
    """Tokens a second, compiled for this number of rows alone; None: out of memory."""
    torch.compiler.reset()
    whole = rows == loader.batch_rows // loader.world  # such an update adds nothing up
    try:
        with Feed(loader, rows, device) as feed:
            quickest = math.inf
            for number, step in enumerate(islice(feed.steps(), 1 + TIMED)):
                torch.cuda.synchronize(device)
                began = time.perf_counter()
                stepper.backward(stepper.loss(step.packed) / step.read.counted, last=whole or number == 0)
                torch.cuda.synchronize(device)
                quickest = min(quickest, time.perf_counter() - began)
                if number == 0:
                    stepper.step(0.0)  # makes the optimiser's state
                elif whole:
                    stepper.drop_gradients()
        stepper.drop_gradients()
        return rows * loader.shards.meta.row_length / quickest
    except torch.OutOfMemoryError:
        pass
    stepper.drop_gradients()  # outside of `except`, whose traceback holds what did not fit
    gc.collect()
    torch.cuda.empty_cache()
    return None
