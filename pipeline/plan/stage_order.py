"""Stages of several legs in one order: each after all that any leg has before it.

A source's own stages come before those that it shares with others, whichever source a recipe names first: else the
counts of a stage that only the second source passes would stand behind those of stages that follow it.
"""

from __future__ import annotations

from collections.abc import Sequence


def in_one_order(legs: Sequence[Sequence[str]]) -> list[str]:
    """Names of stages, each once; of those that nothing orders, the one that was named first. Legs come in an order of
    work."""
    before: dict[str, set[str]] = {}
    for names in legs:
        for place, name in enumerate(names):
            before.setdefault(name, set()).update(names[:place])
    order: dict[str, None] = {}
    while len(order) < len(before):
        waiting = [name for name in before if name not in order]
        order[next((name for name in waiting if before[name] <= order.keys()), waiting[0])] = None
    return list(order)
