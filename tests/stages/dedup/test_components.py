"""Components by rounds among buckets equal those of one union-find, whatever the graph and whoever meets whom."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from gristmill.kernels.base.types import Array
from gristmill.kernels.duplicates.forest import spanning_forest
from gristmill.stages.dedup import components
from gristmill.stages.dedup.components import Components
from gristmill.stages.local_flow import LocalRows
from tests.stages.scattered import Scattered


class Counted(Scattered):
    """Rows that were released are gone."""

    among: int | None = None

    def buckets(self, *rows: LocalRows) -> list[list[pa.Table | None]]:
        if self.among is None:
            return super().buckets(*rows)
        return [[self.bucket(each, number, self.among) for each in rows] for number in range(self.among)]

    def release(self, rows: Any) -> None:
        rows.tables = None


def by_rounds(left: Array, right: Array, seed: int = 0, among: int | None = None) -> tuple[dict[int, int], int]:
    """Members and their components, and how many rounds it took."""
    flow = Counted(seed)
    flow.among = among
    edges = pa.table({"left": left, "right": right, "key": left})
    rows = LocalRows([flow.in_any_order(edges)], "left")
    forest = flow.gather(Components().forest(flow, rows))
    found = dict(zip(forest["member"].to_pylist(), forest["root"].to_pylist(), strict=True)) if len(forest) else {}
    assert len(found) == len(forest)
    return found, len(flow.rounds)


def by_union_find(left: Array, right: Array) -> dict[int, int]:
    members, roots = spanning_forest(left, right)
    return {m: r for m, r in zip(members.tolist(), roots.tolist(), strict=True) if m != r}


def chain(length: int, seed: int = 1) -> tuple[Array, Array]:
    names = np.random.default_rng(seed).integers(0, 1 << 63, length).astype(np.uint64)
    return names[:-1], names[1:]


def star(leaves: int, hub: int) -> tuple[Array, Array]:
    return np.full(leaves, hub, np.uint64), np.arange(1000, 1000 + leaves, dtype=np.uint64)


GRAPHS = {
    "chain": chain(600),
    "sorted chain": (np.arange(300, dtype=np.uint64), np.arange(1, 301, dtype=np.uint64)),
    "falling chain": (np.arange(300, 0, -1).astype(np.uint64), np.arange(299, -1, -1).astype(np.uint64)),
    "star around the smallest": star(400, 1),
    "star around the largest": star(400, 1 << 62),
    "alternating": (np.arange(200, dtype=np.uint64), np.arange(200, dtype=np.uint64)[::-1] + np.uint64(1 << 40)),
    "ring": (np.arange(256, dtype=np.uint64), np.roll(np.arange(256, dtype=np.uint64), 1)),
    "loops alone": (np.arange(5, dtype=np.uint64), np.arange(5, dtype=np.uint64)),
}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("most", [0, 50, 10_000])
def test_graphs_of_every_shape(name: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(components, "IN_ONE_TASK", most)
    left, right = GRAPHS[name]
    for seed in range(3):
        assert by_rounds(left, right, seed)[0] == by_union_find(left, right)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=60), st.integers(0, 9))
def test_any_graph(edges: list[tuple[int, int]], seed: int) -> None:
    left, right = (np.array(side, np.uint64) for side in zip(*edges, strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(components, "IN_ONE_TASK", 0)
        assert by_rounds(left, right, seed)[0] == by_union_find(left, right)


def test_rounds_grow_as_the_logarithm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(components, "IN_ONE_TASK", 0)
    rounds = [by_rounds(*chain(length), among=16)[1] for length in (100, 1_000, 10_000)]
    assert max(b - a for a, b in itertools.pairwise(rounds)) <= 50
    assert by_rounds(*star(10_000, 1 << 62), among=16)[1] < 40
