"""Clusters and survivors equal their reference implementations on any pairs."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, strategies as st

from gristmill.kernels.duplicates.forest import (
    keepers,
    keepers_plain,
    neighbours,
    proposals,
    spanning_forest,
    spanning_forest_plain,
)
from gristmill.kernels.duplicates.nominate import (
    NEXT,
    NEXT_BAND,
    SMALL,
    pairs_in_buckets,
    pairs_in_buckets_plain,
    pairs_with_saved,
    pairs_with_saved_plain,
    siblings,
)

NAMES = st.integers(0, 2**64 - 1) | st.integers(0, 12)
EDGES = st.lists(st.tuples(NAMES, NAMES), max_size=40)


def forest(edges: list[tuple[int, int]]) -> dict[int, int]:
    left, right = (np.array([e[side] for e in edges], np.uint64) for side in (0, 1))
    return dict(zip(*(a.tolist() for a in spanning_forest(left, right)), strict=True))


@given(EDGES)
def test_components(edges: list[tuple[int, int]]) -> None:
    assert forest(edges) == spanning_forest_plain([a for a, _ in edges], [b for _, b in edges])


@given(EDGES, st.integers(0, 40), st.randoms())
def test_forests_merge_in_any_way(edges: list[tuple[int, int]], cut: int, random: object) -> None:
    merged = [*forest(edges[:cut]).items(), *forest(edges[cut:]).items()]
    random.shuffle(merged)  # type: ignore[attr-defined]
    assert forest(merged) == forest(edges)


def test_a_long_chain_is_one_component() -> None:
    names = np.random.default_rng(0).permutation(100_000).astype(np.uint64)
    members, roots = spanning_forest(names[:-1], names[1:])
    assert len(members) == 100_000 and not roots.any()


def weighed(edges: list[tuple[int, int, float]], nodes: int):
    left, right = (np.array([e[side] for e in edges], np.int64) for side in (0, 1))
    return neighbours(left, right, np.array([e[2] for e in edges], np.float64), nodes)


WEIGHED = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 9), st.sampled_from([0.5, 0.8, 0.9, 1.0])).filter(
        lambda e: e[0] != e[1]
    ),
    max_size=30,
)


@given(WEIGHED)
def test_who_stays(edges: list[tuple[int, int, float]]) -> None:
    keeper = keepers(*weighed(edges, 10), 0.8)
    assert keeper.tolist() == keepers_plain(edges, 10, 0.8)
    alike = {(min(a, b), max(a, b)) for a, b, w in edges if w >= 0.8}
    for node, other in enumerate(keeper.tolist()):
        if other >= 0:
            assert keeper[other] < 0 and (other, node) in alike
    assert not any(keeper[a] < 0 and keeper[b] < 0 for a, b in alike)


def test_a_chain_deletes_nothing_that_resembles_no_survivor() -> None:
    chain = [(i, i + 1, 0.9) for i in range(9)]
    assert keepers(*weighed(chain, 10), 0.8).tolist() == [-1, 0, -1, 2, -1, 4, -1, 6, -1, 8]


@given(WEIGHED, st.integers(1, 3))
def test_what_is_proposed_was_never_compared_and_both_stay(edges: list[tuple[int, int, float]], most: int) -> None:
    lists = weighed(edges, 10)
    keeper = keepers(*lists, 0.8)
    left, right = proposals(*lists, 0.8, keeper, most)
    pairs = list(zip(left.tolist(), right.tolist(), strict=True))
    compared = {(min(a, b), max(a, b)) for a, b, _ in edges}
    alike = {e for a, b, w in edges if w >= 0.8 for e in ((a, b), (b, a))}
    wanted = {
        (int(keeper[x]), n)
        for n in range(10)
        if keeper[n] < 0
        for x in range(10)
        if (n, x) in alike and keeper[x] >= 0 and keeper[x] < n
    } - compared
    assert len(set(pairs)) == len(pairs) and set(pairs) <= wanted
    assert len(pairs) == sum(min(most, sum(w[1] == n for w in wanted)) for n in range(10))


SIBLINGS = st.builds(
    lambda band, copies, more: band << NEXT_BAND | copies << 1 | more,
    st.integers(0, 2),
    st.integers(0, 2),
    st.integers(0, 1),
)
ROWS = st.lists(st.tuples(st.integers(0, 2), SIBLINGS, st.integers(0, 30)), max_size=60).map(sorted)


@given(ROWS)
@example(
    [*((0, 0, uid) for uid in range(1, 7)), *((0, 2, uid) for uid in (0, 7, 8, 9))]
)  # the leader stands far from its branch
def test_pairs_of_buckets(rows: list[tuple[int, int, int]]) -> None:
    key, sibling, uid = (
        np.array([r[i] for r in rows], kind) for i, kind in enumerate((np.uint64, np.uint32, np.uint64))
    )
    left, right = pairs_in_buckets(key, sibling, uid)
    pairs = list(zip(left.tolist(), right.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs) and set(pairs) == pairs_in_buckets_plain(rows)


def test_work_in_a_giant_bucket_is_bounded_and_joins_it() -> None:
    count = 50_000
    key, uid = np.zeros(count, np.uint64), np.arange(count, dtype=np.uint64)
    left, right = pairs_in_buckets(key, np.zeros(count, np.uint32), uid)
    assert SMALL * count < len(left) * 2 <= 2 * (NEXT + 2) * count
    assert not spanning_forest(left.astype(np.uint64), right.astype(np.uint64))[1].any()
    assert len(pairs_in_buckets(key, np.ones(count, np.uint32), uid)[0]) == 0, "they meet in the next band"


def test_those_of_a_large_bucket_that_agree_in_the_next_band_too_are_compared_there() -> None:
    groups = np.repeat(np.arange(100, dtype=np.uint64), 5)
    keys = np.stack(
        [np.zeros(500, np.uint64), groups * np.uint64(0x9E3779B97F4A7C15), np.arange(500, dtype=np.uint64)], axis=1
    )
    sibling = siblings(keys)[:, 0]
    order = np.argsort(sibling, kind="stable")
    left, right = pairs_in_buckets(keys[order, 0], sibling[order], np.arange(1, 501, dtype=np.uint64)[order])
    inside = groups[order[left]] == groups[order[right]]
    assert inside.sum() == 100 * 10 and len(left) < 500 * (NEXT + 2)


def test_siblings_tell_copies_from_those_that_agree_in_some_bands() -> None:
    keys = np.array([[1, 2, 3], [1, 2, 3], [1, 2, 4], [5, 2, 3]], np.uint64)
    found = siblings(keys)
    assert (found[0] == found[1]).all() and (found & 1).tolist() == [[1, 1, 0]] * 4
    assert found[0, 0] >> NEXT_BAND == found[2, 0] >> NEXT_BAND and found[0, 0] != found[2, 0]
    assert found[0, 2] >> NEXT_BAND == found[2, 2] >> NEXT_BAND != found[3, 2] >> NEXT_BAND
    assert siblings(keys[:0]).shape == (0, 3)


@given(ROWS, st.integers(0, 2**60))
def test_pairs_with_saved_documents(rows: list[tuple[int, int, int]], which: int) -> None:
    saved = [bool(which >> place & 1) for place in range(len(rows))]
    key, sibling, uid = (
        np.array([r[i] for r in rows], kind) for i, kind in enumerate((np.uint64, np.uint32, np.uint64))
    )
    left, right = pairs_with_saved(key, sibling, uid, np.array(saved, bool))
    pairs = list(zip(left.tolist(), right.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs) and set(pairs) == pairs_with_saved_plain(rows, saved)
