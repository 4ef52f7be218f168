"""The draw: as near to what is wanted as whole documents allow, whatever the split into parts."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from gristmill.kernels.base.types import Integers, Words
from gristmill.mixing import draw

# few distinct hashes and tokens, so that ties, empty documents and full bins are common
documents = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 3), st.integers(2**64 - 3, 2**64 - 1), st.integers(0, 2**64 - 1)),
        st.one_of(st.integers(0, 3), st.integers(1, 5000)),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=40,
)


def drawn(
    uids: Words, hashes: Words, tokens: Integers, groups: Integers, wanted: Integers, bits: int, parts: int = 1
) -> Words:
    """Both passes over documents spread over parts."""
    pieces = [np.arange(len(uids)) % parts == part for part in range(parts)]
    bins = draw.bins_of(hashes, bits)
    table = sum(draw.histogram(bins[piece], tokens[piece], groups[piece], len(wanted), bits) for piece in pieces)
    planned = draw.plan(table, wanted)
    near = np.concatenate(
        [np.flatnonzero(piece & draw.in_cut_bin(bits, planned.bin_G, hashes, groups)) for piece in pieces]
    )
    cuts = draw.exact_cuts(planned, uids[near], hashes[near], tokens[near], groups[near])
    found = np.zeros(len(uids), np.uint16)
    for piece in pieces:
        found[piece] = draw.copies(cuts, uids[piece], hashes[piece], groups[piece])
    assert np.array_equal(
        cuts.drawn_G, np.bincount(groups, weights=found * tokens.astype(np.float64), minlength=len(wanted))
    )
    return found


@settings(max_examples=400, deadline=None)
@given(documents, st.lists(st.integers(0, 30_000), min_size=4, max_size=4), st.integers(0, 8), st.integers(1, 4))
def test_two_passes_draw_what_sorting_everything_draws(rows, wanted, bits, parts):  # type: ignore[no-untyped-def]
    hashes, tokens, groups = (
        np.array([row[0] for row in rows], np.uint64),
        *np.array([row[1:] for row in rows], np.int64).T,
    )
    uids = np.arange(len(rows), dtype=np.uint64)[::-1].copy()
    totals = np.bincount(groups, weights=tokens, minlength=4).astype(np.int64)
    wanted = np.where(totals > 0, np.minimum(np.array(wanted), 60_000 * totals), 0)
    found = drawn(uids, hashes, tokens, groups, wanted, bits, parts)
    assert found.tolist() == draw.copies_plain(
        uids.tolist(), hashes.tolist(), tokens.tolist(), groups.tolist(), wanted.tolist()
    )
    for group in range(4):
        mine = groups == group
        if mine.any():
            assert 2 * abs(int((found * tokens)[mine].sum()) - wanted[group]) <= tokens[mine].max()
            assert found[mine].max() - found[mine].min() <= 1


@pytest.mark.parametrize("seed", range(5))
def test_the_budget_is_met_to_a_tenth_of_a_percent(seed: int) -> None:
    random = np.random.default_rng(seed)
    documents, sources = 50_000, 6
    tokens = np.ceil(random.lognormal(6, 1.2, documents)).astype(np.int64)
    groups, uids = random.integers(0, sources, documents), random.integers(0, 2**64, documents, np.uint64)
    totals = np.bincount(groups, weights=tokens)
    epochs = np.array([0.01, 0.5, 1.0, 1.37, 3.999, 4.0])
    wanted = np.rint(epochs * totals).astype(np.int64)
    found = drawn(uids, draw.draw_hashes(uids, seed), tokens, groups, wanted, draw.bits_for(sources), parts=3)
    got = np.bincount(groups, weights=found * tokens.astype(float))
    assert abs(got.sum() - wanted.sum()) / wanted.sum() < 1e-4
    assert np.all(np.abs(got - wanted) <= [tokens[groups == g].max() / 2 for g in range(sources)])
    assert set(found[groups == 2]) == {1} and set(found[groups == 5]) == {4} and set(found[groups == 3]) == {1, 2}


def test_a_larger_budget_only_adds_copies() -> None:
    random = np.random.default_rng(1)
    uids, tokens = random.integers(0, 2**64, 1000, np.uint64), random.integers(1, 900, 1000)
    groups, hashes = np.zeros(1000, np.int64), draw.draw_hashes(uids, 0)
    before = np.zeros(1000, np.uint16)
    for wanted in range(0, 3 * int(tokens.sum()), 100_003):
        after = drawn(uids, hashes, tokens, groups, np.array([wanted]), 6)
        assert np.all(after >= before)
        before = after
    assert before.min() == 2


def test_hashes_are_those_of_the_plain_twin_and_differ_by_seed_purpose_and_copy() -> None:
    uids = np.array([0, 1, 2**64 - 1, 12345], np.uint64)
    for seed in (0, 1, 2**64 - 1, -1):
        assert draw.draw_hashes(uids, seed).tolist() == [draw.draw_hash_plain(int(uid), seed) for uid in uids]
        for copy in (0, 1, 65_534):
            keys = draw.copy_keys(uids, np.full(4, copy), seed)
            assert keys.tolist() == [draw.copy_key_plain(int(uid), copy, seed) for uid in uids]
    everything = [draw.draw_hashes(uids, seed) for seed in (0, 1)]
    everything += [draw.copy_keys(uids, np.full(4, copy), seed) for copy in (0, 1) for seed in (0, 1)]
    assert len(np.unique(np.concatenate(everything))) == 24


def test_the_draw_hangs_neither_on_the_sample_stage_nor_on_the_keys_of_copies() -> None:
    from gristmill.stages.sample import chances

    uids = np.arange(20_000, dtype=np.uint64)
    hashes = draw.draw_hashes(uids, 0).astype(np.float64)
    for other in (
        chances(uids, 0),
        draw.copy_keys(uids, np.zeros(20_000, np.int64), 0),
        draw.draw_hashes(uids, 1),
        uids,
    ):
        assert abs(np.corrcoef(hashes, other.astype(np.float64))[0, 1]) < 0.03


def test_hashes_are_spread_evenly() -> None:
    counts = np.bincount(
        (draw.draw_hashes(np.arange(64_000, dtype=np.uint64), 7) >> np.uint64(58)).astype(int), minlength=64
    )
    assert np.sum((counts - 1000) ** 2 / 1000) < 110  # chi-square of 63 degrees: above this once in 5,000


def test_golden_hashes() -> None:
    """Another hash is another draw for everyone who comes back to a seed."""
    assert [draw.draw_hash_plain(1, 0), draw.copy_key_plain(1, 0, 0)] == [7806873273932414515, 2460102818216313730]


def test_more_copies_than_can_be_counted_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 65,535 copies"):
        draw.plan(np.array([[1]]), np.array([70_000]))
    assert (
        drawn(
            np.zeros(1, np.uint64),
            np.zeros(1, np.uint64),
            np.ones(1, np.int64),
            np.zeros(1, np.int64),
            np.array([65_534]),
            0,
        )
        == 65_534
    )


def test_tokens_of_an_empty_group_are_refused() -> None:
    with pytest.raises(ValueError, match="has none"):
        draw.plan(np.array([[0, 0]]), np.array([5]))


@given(st.lists(st.integers(0, 2**64 - 1)), st.integers(0, 16))
def test_bins_are_the_top_bits(hashes: list[int], bits: int) -> None:
    assert draw.bins_of(np.array(hashes, np.uint64), bits).tolist() == [
        int(f"0{hash_:064b}"[: bits + 1], 2) for hash_ in hashes
    ]


def test_tables_stay_small() -> None:
    assert draw.bits_for(1) == 16 and draw.bits_for(1000) == 12 and draw.bits_for(10**9) == 0
    assert all((groups << draw.bits_for(groups)) <= draw.MOST_CELLS for groups in (1, 63, 64, 65, 1000, 4_000_000))


def test_tokens_wanted_are_whole_numbers() -> None:
    assert draw.tokens_wanted(np.array([0.25, 0.75]), 1e12 + 2).tolist() == [250_000_000_000, 750_000_000_002]
