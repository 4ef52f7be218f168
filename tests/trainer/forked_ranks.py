"""Ranks on this machine: a process that is spawned imports torch once, and forks them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


def forked(count: int, target: Callable[..., None], *arguments: Any, seconds: float = 300) -> list[int | None]:
    """Call `target` with the rank and the arguments in so many processes; how each ended."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    parent = context.Process(target=_fork, args=(there, count, target, arguments, seconds))
    parent.start()
    there.close()
    codes: list[int | None] = here.recv()
    parent.join()
    return codes


def _fork(
    answer: Connection, count: int, target: Callable[..., None], arguments: tuple[Any, ...], seconds: float
) -> None:
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=target, args=(rank, *arguments)) for rank in range(count)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(seconds)
        if rank.exitcode is None:
            rank.kill()
    answer.send([rank.exitcode for rank in ranks])
