"""Every schedule spreads places evenly, orders as it promises, and needs no document but the one it places."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gristmill.mixing.curriculum.curriculum import (
    Anneal,
    Ascending,
    Interleaved,
    Random,
    Schedule,
    Stages,
    WarmUp,
    buckets,
    segments,
    united_edges,
)
from gristmill.mixing.curriculum.pacing import Pacing, Steps
from gristmill.mixing.curriculum.ranks import STEPS, Ranks

SCHEDULES = [
    Random(),
    Stages(stages=1),
    Stages(stages=4),
    Ascending(),
    WarmUp(share=0.1),
    WarmUp(share=0.5),
    WarmUp(share=1.0),
    Interleaved(passes=1),
    Interleaved(passes=8),
    Anneal(share=0.1),
    Anneal(share=0.2, best=0.3),
    Anneal(share=1.0, best=0.5),
    Anneal(share=1.0, best=1.0),
    Pacing(),
    Pacing(power=1.0, start=0.1, until=1.0),
    Pacing(power=1.0, start=0.0, until=0.5),
    Pacing(power=1.0, start=0.0, until=1.0),
    Pacing(power=2.0, start=0.0, until=1.0),
    Pacing(power=3.0, start=0.05, until=0.3),
    Pacing(power=0.5, start=0.3, until=1.0),
    Pacing(power=0.5, start=0.25, until=1.0),
    Steps(),
    Steps(stages=4, start=0.25, until=0.75),
    Steps(stages=2, start=0.5, until=0.25),
    Steps(stages=20, start=0.5, until=0.6),
]
PACED = [schedule for schedule in SCHEDULES if isinstance(schedule, Pacing | Steps)]
COUNT = 200_000
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)


def evenly_spread(seed: int = 7, count: int = COUNT) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """Ranks and chances of a corpus of equal documents: each rank once, chances independent of them."""
    rng = np.random.default_rng(seed)
    return (rng.permutation(count) + 0.5) / count, rng.random(count)


def farthest_from_even(places: np.ndarray) -> float:  # type: ignore[type-arg]
    """Kolmogorov's distance to an even spread over [0, 1)."""
    return float(np.abs(np.sort(places) - (np.arange(len(places)) + 0.5) / len(places)).max())


def spearman(a: np.ndarray, b: np.ndarray) -> float:  # type: ignore[type-arg]
    return float(np.corrcoef(np.argsort(np.argsort(a)), np.argsort(np.argsort(b)))[0, 1])


@every_schedule
def test_places_are_spread_evenly_so_that_equal_windows_hold_equal_tokens(schedule: Schedule) -> None:
    places = schedule.places(*evenly_spread())
    assert places.dtype == np.float64 and places.min() >= 0 and places.max() < 1
    assert farthest_from_even(places) < 2.5 / math.sqrt(COUNT)  # chance goes beyond it once in 100,000


@every_schedule
def test_places_are_even_to_four_digits_on_a_fine_grid(schedule: Schedule) -> None:
    rank, chance = (side.ravel() for side in np.meshgrid(*[(np.arange(1500) + 0.5) / 1500] * 2))
    assert farthest_from_even(schedule.places(rank, chance)) < 1 / 1500


@every_schedule
def test_rank_correlation_is_the_one_that_is_promised(schedule: Schedule) -> None:
    rank, chance = evenly_spread()
    assert abs(spearman(schedule.places(rank, chance), rank) - schedule.correlation) < 5 / math.sqrt(COUNT)


@every_schedule
@pytest.mark.parametrize("resolution", [1, 16, 100])
def test_shuffling_inside_segments_costs_next_to_nothing_of_the_order(schedule: Schedule, resolution: int) -> None:
    rank, chance = evenly_spread()
    edges = schedule.edges(resolution)
    assert edges[0] == 0 and np.all(np.diff(edges) > 0) and edges[-1] < 1
    number = segments(schedule.places(rank, chance), edges)
    shuffled = number + np.random.default_rng(1).random(COUNT)
    if resolution > 1:
        climbs = schedule.passes if isinstance(schedule, Interleaved) else 1
        assert abs(spearman(shuffled, rank) - schedule.correlation) < 2 * climbs / resolution**2 + 5 / math.sqrt(COUNT)
    sizes = np.bincount(number, minlength=len(edges)) / COUNT
    assert np.abs(sizes - np.diff(np.append(edges, 1.0))).max() < 5 / math.sqrt(COUNT)


@every_schedule
def test_a_place_depends_on_no_other_document(schedule: Schedule) -> None:
    rank, chance = evenly_spread(count=1000)
    places = schedule.places(rank, chance)
    order = np.random.default_rng(2).permutation(1000)
    assert np.array_equal(schedule.places(rank[order], chance[order]), places[order])
    alone = [schedule.places(rank[i : i + 1], chance[i : i + 1])[0] for i in range(20)]
    assert alone == places[:20].tolist() and schedule.places(rank[:0], chance[:0]).shape == (0,)


@every_schedule
def test_the_ends_of_rank_and_chance_have_places(schedule: Schedule) -> None:
    ends = np.array([0.0, 5e-324, 1e-17, 0.1, 0.25, 0.5, 0.9, 1 - 1e-9, math.nextafter(1, 0)])
    rank, chance = (side.ravel() for side in np.meshgrid(ends, ends))
    with np.errstate(all="raise", under="ignore"):
        places = schedule.places(rank, chance)
    assert np.all((places >= 0) & (places < 1))


@every_schedule
def test_it_says_what_it_promises_and_advises(schedule: Schedule) -> None:
    assert len(schedule.promise) > 10 and len(schedule.advice) > 20 and "nan" not in schedule.promise + schedule.advice


def test_random_does_not_know_ranks() -> None:
    rank, chance = evenly_spread()
    assert np.array_equal(Random().places(rank, chance), chance)


def test_stages_hold_their_ranks_and_no_others() -> None:
    rank, chance = evenly_spread()
    places = Stages(stages=4).places(rank, chance)
    assert np.array_equal(np.floor(places * 4), np.floor(rank * 4))
    inside = places < 0.25
    assert inside.sum() == COUNT // 4 and abs(np.corrcoef(places[inside], rank[inside])[0, 1]) < 0.02


def test_ascending_is_sorted_by_rank() -> None:
    rank, chance = evenly_spread()
    assert np.array_equal(np.argsort(Ascending().places(rank, chance)), np.argsort(rank))


def test_a_warm_up_is_a_fair_sample_in_ascending_order_and_the_rest_is_random() -> None:
    rank, chance = evenly_spread()
    places = WarmUp(share=0.2).places(rank, chance)
    warm = places < 0.2
    assert np.array_equal(warm, chance < 0.2) and np.allclose(places[warm], 0.2 * rank[warm])
    for part in (warm, ~warm):
        assert farthest_from_even(rank[part]) < 2.5 / math.sqrt(part.sum())
    assert abs(spearman(places[~warm], rank[~warm])) < 5 / math.sqrt(COUNT)


def test_every_interleaved_pass_goes_from_easy_to_hard() -> None:
    rank, chance = evenly_spread()
    places = Interleaved(passes=5).places(rank, chance)
    for number in range(5):
        part = np.floor(places * 5) == number
        assert abs(part.mean() - 0.2) < 0.01 and farthest_from_even(rank[part]) < 2.5 / math.sqrt(part.sum())
        assert np.array_equal(np.argsort(places[part]), np.argsort(rank[part]))


@pytest.mark.parametrize(("share", "best"), [(0.1, 1.0), (0.2, 0.3), (0.15, 0.5), (1.0, 0.4)])
def test_an_anneal_holds_exactly_the_best_and_a_fair_sample_of_the_others(share: float, best: float) -> None:
    rank, chance = evenly_spread()
    schedule = Anneal(share=share, best=best)
    places = schedule.places(rank, chance)
    late, among_best = places >= 1 - share, rank >= 1 - share * best
    assert abs(among_best.mean() - share * best) < 1e-4 and late[among_best].all()
    assert abs(among_best[late].mean() - best) < 5 / math.sqrt(late.sum())
    others = rank[late & ~among_best]
    if best < 1:
        assert farthest_from_even(others / (1 - share * best)) < 2.5 / math.sqrt(len(others))
    else:
        assert len(others) == 0
    for part in (late, ~late):
        if part.any():
            assert abs(spearman(places[part], rank[part])) < 5 / math.sqrt(part.sum())


@pytest.mark.parametrize("schedule", PACED, ids=repr)
def test_at_a_hundred_checkpoints_nothing_is_harder_than_competence_allows(schedule: Pacing | Steps) -> None:
    rank, chance = evenly_spread()
    places = schedule.places(rank, chance)
    for progress in (np.arange(100) + 1) / 100:
        now = (places <= progress) & (places > progress - 0.01)
        allowed = schedule.competence(np.array([progress]))[0]
        assert now.any() and rank[now].max() <= allowed + 1e-9
        if allowed < 1:  # and all that is allowed is used
            assert rank[now].max() > schedule.competence(np.array([progress - 0.01]))[0] - 0.02


@pytest.mark.parametrize("schedule", PACED, ids=repr)
def test_paced_places_are_those_of_drawing_without_replacement(schedule: Pacing | Steps) -> None:
    """Beside the reference: at each of 20,000 draws one of what waits among the easiest c(p)."""
    count, groups, draws = 20_000, 20, random.Random(3)
    waiting: list[int] = []
    opened, drawn = 0, np.empty(count)
    for place in range(count):
        allowed = min(max(int(schedule.competence(np.array([place / count]))[0] * count), place) + 1, count)
        waiting += range(opened, allowed)
        opened = max(opened, allowed)
        i = draws.randrange(len(waiting))
        waiting[i], waiting[-1] = waiting[-1], waiting[i]
        drawn[waiting.pop()] = place / count
    rank = (np.arange(count) + 0.5) / count
    ours = schedule.places(rank, np.random.default_rng(4).random(count))
    for group in range(groups):
        part = slice(group * count // groups, (group + 1) * count // groups)
        both = np.sort(np.concatenate([ours[part], drawn[part]]))
        cumulated = [
            np.searchsorted(np.sort(places[part]), both, side="right") * groups / count for places in (ours, drawn)
        ]
        assert np.abs(cumulated[0] - cumulated[1]).max() < 0.1  # two samples of 1,000: beyond it once in 10,000


def test_linear_pacing_until_the_end_has_the_closed_form() -> None:
    rank, chance = evenly_spread(count=2000)
    by_hand = 1 - np.minimum(1, (1 - rank) / 0.9) * (1 - chance) ** 0.1
    assert np.abs(Pacing(power=1.0, start=0.1, until=1.0).places(rank, chance) - by_hand).max() < 1e-6
    assert (
        abs(
            Pacing(power=1.0, start=0.1, until=1.0).correlation
            - (12 * (0.5 - (0.005 + (0.9 / 6 + 0.1 / 2) * 0.9) / 1.1) - 3)
        )
        < 1e-3
    )


def test_steps_that_use_up_each_level_are_stages() -> None:
    rank, chance = evenly_spread(count=2000)
    assert np.allclose(
        Steps(stages=4, start=0.25, until=0.75).places(rank, chance), Stages(stages=4).places(rank, chance)
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Pacing(power=0.5, start=0.1, until=1.0), "they run out"),
        (lambda: Pacing(power=0.5, start=0.0, until=0.5), "they run out"),
        (lambda: Pacing(power=0.0), "power\n.*greater than 0"),
        (lambda: Pacing(power=1.0, start=1.0), "start\n.*less than 1"),
        (lambda: Pacing(power=1.0, start=0.1, until=1.1), "until\n.*less than or equal to 1"),
        (lambda: Pacing(power=1.0, start=math.nan), "start\n.*less than 1"),
        (lambda: Steps(stages=4, start=0.1, until=1.0), "step 1 may use the easiest 0.1 .* up to 0.3333"),
        (lambda: Steps(stages=1), "stages\n.*or equal to 2"),
        (lambda: Stages(stages=0), "stages\n.*or equal to 1"),
        (lambda: Interleaved(passes=0), "passes\n.*or equal to 1"),
        (lambda: WarmUp(share=0.0), "share\n.*greater than 0"),
        (lambda: WarmUp(share=math.nan), "share\n.*or equal to 1"),
        (lambda: Anneal(share=1.2), "share\n.*or equal to 1"),
        (lambda: Anneal(share=0.1, best=0.0), "best\n.*greater than 0"),
        (lambda: Ascending().edges(0), "resolution is 0"),
        (lambda: segments(np.zeros(1), np.arange(70_000.0)), "Lower the resolution"),
    ],
)
def test_what_cannot_be_is_refused(make, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        make()


def test_no_source_orders_between_two_edges_of_the_union() -> None:
    parts = [Stages(stages=3).edges(9), Stages(stages=6).edges(9), Anneal(share=1 / 3).edges(9), Random().edges(9)]
    assert np.allclose(united_edges(parts), np.arange(6) / 6) and np.array_equal(united_edges([]), [0.0])


def test_buckets_are_equal_in_tokens_and_rise() -> None:
    rank, _ = evenly_spread()
    levels = buckets(rank, 16)
    assert levels.dtype == np.int16 and np.all(np.bincount(levels) == COUNT // 16)
    assert np.all(np.diff(levels[np.argsort(rank)]) >= 0) and buckets(
        np.array([math.nextafter(1, 0), 1.0]), 7
    ).tolist() == [6, 6]


# Ranks

samples = st.lists(
    st.tuples(st.one_of(st.sampled_from([0.0, -0.0, 1.0, 2.5]), st.floats(-1e300, 1e300)), st.integers(1, 10_000)),
    min_size=1,
    max_size=60,
)


@given(samples, st.data())
def test_a_whole_sample_ranks_exactly(sample: list[tuple[float, int]], data: st.DataObject) -> None:
    values, weights = (np.array(side, np.float64) for side in zip(*sample, strict=True))
    ties = np.array([data.draw(st.floats(0, 1, exclude_max=True)) for _ in sample])
    ranked = Ranks.of(values, weights).rank(values, ties)
    for value, tie, rank in zip(values, ties, ranked, strict=True):
        easier, same = weights[values < value].sum(), weights[values == value].sum()
        assert abs(rank - min((easier + tie * same) / weights.sum(), math.nextafter(1, 0))) < 1e-12


@given(samples, st.randoms(use_true_random=False), st.lists(st.floats(allow_nan=False), max_size=20))
def test_ranks_rise_and_do_not_depend_on_order(
    sample: list[tuple[float, int]], shuffle: random.Random, asked: list[float]
) -> None:
    values, weights = (np.array(side, np.float64) for side in zip(*sample, strict=True))
    ranks = Ranks.of(values, weights)
    shuffle.shuffle(sample)
    again = Ranks.of(*(np.array(side, np.float64) for side in zip(*sample, strict=True)))
    assert all(
        np.array_equal(a, b)
        for a, b in ((ranks.values, again.values), (ranks.below, again.below), (ranks.upto, again.upto))
    )
    finite = np.array(sorted({*values.tolist(), *filter(math.isfinite, asked)}))
    ranked = ranks.rank(np.repeat(finite, 3), np.tile([0.0, 0.5, math.nextafter(1, 0)], len(finite)))
    assert np.all((ranked >= 0) & (ranked < 1)) and np.all(np.diff(ranked) >= 0)


def test_unknown_values_are_ranked_by_chance_and_teach_nothing() -> None:
    ties = np.random.default_rng(5).random(1000)
    values = np.where(np.arange(1000) % 2, np.nan, np.arange(1000.0))
    ranks = Ranks.of(values, np.ones(1000))
    assert np.array_equal(ranks.rank(values, ties)[1::2], ties[1::2]) and len(ranks.values) == 500
    nothing = Ranks.of(np.array([np.nan, 1.0]), np.array([1.0, 0.0]))
    assert np.array_equal(nothing.rank(np.array([np.nan, 3.0]), ties[:2]), ties[:2])


def test_a_million_points_become_few_knots_and_heavy_values_stay_exact() -> None:
    rng = np.random.default_rng(6)
    values, weights = np.exp(rng.normal(0, 2, 1_000_000)), rng.integers(1, 5000, 1_000_000).astype(float)
    values[:200_000], values[200_000:300_000] = 0.0, 3.0
    ranks, ties = Ranks.of(values, weights), rng.random(1_000_000)
    assert len(ranks.values) <= 2 * STEPS + 1
    ranked = ranks.rank(values, ties)
    for atom in (0.0, 3.0):
        here = values == atom
        below, upto = weights[values < atom].sum() / weights.sum(), weights[values <= atom].sum() / weights.sum()
        assert abs(ranked[here] - (below + ties[here] * (upto - below))).max() < 1e-12
    order = np.lexsort((ties, values))
    exact = (np.cumsum(weights[order]) - weights[order] / 2) / weights.sum()
    assert np.abs(ranked[order] - exact)[values[order] != 0].max() < 1 / STEPS
    filled = np.histogram(ranked, 64, (0, 1), weights=weights)[0] / weights.sum() * 64
    assert np.abs(filled - 1).max() < 0.03


def test_many_values_of_middling_weight_err_by_less_than_a_step() -> None:
    values = np.repeat(np.arange(3000.0), 1 + np.arange(3000) % 7)
    ranks = Ranks.of(values, np.ones(len(values)))
    assert STEPS / 2 < len(ranks.values) <= 2 * STEPS + 1
    below, upto = (np.searchsorted(values, np.arange(3000.0), side=side) / len(values) for side in ("left", "right"))
    ranked = ranks.rank(np.arange(3000.0), np.full(3000, 0.5))
    assert np.maximum(below - ranked, ranked - upto).max() < 1 / STEPS


def test_ranks_beyond_the_sample_are_its_ends() -> None:
    ranks = Ranks.of(np.array([1.0, 2.0]), np.ones(2))
    assert ranks.rank(np.array([0.0, 9.0, 1.5]), np.zeros(3)).tolist() == [0.0, math.nextafter(1, 0), 0.5]
