"""Part of other benchmarks: two kinds of work in two processes that share one core at the same time.

A core changes its speed by a tenth and more from one second to the next (a loop that only counts took 0.29 to 0.49 s
here), so one measurement after another compares seconds more than programs. Beside each other both have the same ones.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from typing import Any

Work = Callable[[int, int], float]  # what a side took for a round, in seconds of its processor time


def on_one_core(work: Work, rounds: int, keep_busy: bool = False) -> list[tuple[float, float]]:
    """What each side, 0 and 1, took in each round, after a round -1 that does not count. With `keep_busy` the one that
    ends first goes on, unmeasured, until the other ends. `work` is sent to the processes."""
    processes = multiprocessing.get_context("spawn")
    together, results, ended = processes.Barrier(2), processes.Queue(), processes.Array("i", [-2, -2])
    sides = [
        processes.Process(target=one_side, args=(work, side, rounds, keep_busy, together, results, ended), daemon=True)
        for side in range(2)
    ]
    for process in sides:
        process.start()
    took: list[tuple[int, int, float]] = []
    while len(took) < 2 * rounds:
        try:
            took.append(results.get(timeout=1))
        except queue.Empty:
            if any(process.exitcode for process in sides):
                raise SystemExit("a side ended with an error, said above") from None
    for process in sides:
        process.join()
    seconds = {(number, side): value for number, side, value in took}
    return [(seconds[number, 0], seconds[number, 1]) for number in range(rounds)]


def one_side(work: Work, side: int, rounds: int, keep_busy: bool, together: Barrier, results: Any, ended: Any) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    for number in range(-1, rounds):
        together.wait()
        took = work(side, number)
        ended[side] = number
        while keep_busy and ended[1 - side] < number:
            work(side, number)
        if number >= 0:
            results.put((number, side, took))
