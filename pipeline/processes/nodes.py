"""Machines whose memory is in several nodes (NUMA): each local worker is bound to a core, or to the cores of one node,
so that what it allocates lies beside it (Linux gives a page to the node of the core that touches it first).

With one node nothing is bound: the system's scheduler does better.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

NODES = Path("/sys/devices/system/node")
CORES = "GRISTMILL_CORES"  # what a worker is to be bound to, `3` or `0,1,2,3`


def nodes_here(root: Path = NODES, allowed: set[int] | None = None) -> list[list[int]]:
    """The cores of each node that this process may use; nodes without one (memory alone, or closed to it) are left
    out."""
    if allowed is None:
        allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    nodes = []
    for path in sorted(root.glob("node[0-9]*"), key=lambda path: int(path.name.removeprefix("node"))):
        with contextlib.suppress(OSError, ValueError):
            cores = sorted(allowed & set(cores_in((path / "cpulist").read_text())))
            if cores:
                nodes.append(cores)
    return nodes


def cores_in(text: str) -> Iterator[int]:
    """Of a list as Linux writes it: `0-3,8-11`."""
    for span in text.strip().split(",") if text.strip() else ():
        first, _, last = span.partition("-")
        yield from range(int(first), int(last or first) + 1)


def places_for(workers: int, nodes: list[list[int]]) -> list[str | None]:
    """Where each worker goes: node after node, a core each while there are as many; else to all cores of its node."""
    if len(nodes) < 2:
        return [None] * workers
    waiting = [list(cores) for cores in nodes]
    alone = workers <= sum(map(len, nodes))
    places: list[str | None] = []
    while len(places) < workers:
        for node, cores in zip(nodes, waiting, strict=True):
            if len(places) < workers and (cores or not alone):
                places.append(str(cores.pop(0)) if alone else ",".join(map(str, node)))
    return places


def bind() -> None:
    """This process and its threads, to where its driver said, if it said so."""
    place = os.environ.get(CORES)
    if place:
        for thread in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):  # it has ended; or the cores were taken away since
                os.sched_setaffinity(int(thread.name), set(cores_in(place)))


def in_words(nodes: list[list[int]]) -> str:
    if len(nodes) < 2:
        return "one: workers are not bound to cores"
    return f"{len(nodes)}, of {', '.join(str(len(cores)) for cores in nodes)} cores: each local worker is bound to one"
