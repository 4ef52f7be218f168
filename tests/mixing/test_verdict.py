"""Adopt, reject or inconclusive, and how many seeds would settle it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st
from scipy import stats

from gristmill.mixing.verdicts.paired import Errors, errors, paired
from gristmill.mixing.verdicts.power import Noise, detectable, pooled, power, seeds_needed
from gristmill.mixing.verdicts.verdict import holm, over, relative, verdict


def sure(mean: float, error: float = 0.001, seeds: int = 5) -> Errors:
    return Errors(mean, error, 0.0, seeds, 100)


@pytest.mark.parametrize(("deviations", "seeds"), [(0.5, 34), (1, 10), (1.5, 6), (2, 5), (3, 4), (4, 3), (5, 3)])
def test_seeds_for_a_power_of_80_percent(deviations: float, seeds: int) -> None:
    assert seeds_needed(deviations, 1.0, 0.0, 1000) == seeds


@given(st.floats(0, 6), st.integers(2, 200))
def test_power_without_items_is_the_noncentral_t(deviations: float, seeds: int) -> None:
    assume(deviations * math.sqrt(seeds) < 30)  # scipy has no numbers beyond
    exact = 1 - stats.nct.cdf(stats.t.ppf(0.975, seeds - 1), seeds - 1, deviations * math.sqrt(seeds))
    assert power(deviations, 1.0, 0.0, seeds, 1000) == pytest.approx(exact, abs=2e-6)


def test_power_with_items_is_that_of_a_simulation() -> None:
    random, seeds, clusters = np.random.default_rng(0), 4, 30
    seed_sd, items_error, difference = 1.0, 0.4, 1.8
    mean = difference + random.normal(0, math.hypot(seed_sd / 2, items_error), 200_000)
    of_seeds = seed_sd / 2 * np.sqrt(random.chisquare(seeds - 1, 200_000) / (seeds - 1))
    half = np.hypot(stats.t.ppf(0.975, seeds - 1) * of_seeds, stats.t.ppf(0.975, clusters - 1) * items_error)
    assert power(difference, seed_sd, items_error, seeds, clusters) == pytest.approx((mean > half).mean(), abs=0.004)


def test_no_number_of_seeds_makes_up_for_too_few_items() -> None:
    assert seeds_needed(1.0, 0.1, 0.5, 20) is None
    assert seeds_needed(1.0, 1.0, 0.1, 20) is not None and seeds_needed(0.0, 1.0, 0.0, 20) is None


def test_what_is_detectable_is_found_in_80_percent() -> None:
    found = Errors(0.0, 0.5, 0.2, 5, 60)
    assert power(detectable(found), 0.5 * math.sqrt(5), 0.2, 5, 60) == pytest.approx(0.8, abs=1e-6)


def test_power_before_the_runs_is_the_formula_of_paired_items() -> None:
    """(z of 97.5 % + z of 80 %) times the error, as seeds and clusters grow; with few it is more."""
    noise = Noise(run_sd=0.006, cluster_sd=0.03)
    formula = (stats.norm.ppf(0.975) + stats.norm.ppf(0.8)) * math.sqrt(0.03**2 / 4000 + 0.006**2 / 400)
    assert detectable(noise.errors(400, 4000)) == pytest.approx(formula, rel=0.01)
    few = (stats.norm.ppf(0.975) + stats.norm.ppf(0.8)) * math.sqrt(0.03**2 / 40 + 0.006**2 / 4)
    assert detectable(noise.errors(4, 40)) > 1.1 * few and math.isinf(detectable(noise.errors(4, 1)))


def test_noise_of_earlier_differences_is_pooled() -> None:
    assert pooled([]) is None and pooled([Errors(0.1, math.inf, 0.1, 1, 9)]) is None
    same = pooled([Errors(0.1, 0.002, 0.001, 4, 100.0), Errors(-0.2, 0.002, 0.002, 4, 25.0)])
    assert same is not None and same.run_sd == pytest.approx(0.004) and same.cluster_sd == pytest.approx(0.01)


def test_rates_that_disagree_claim_nothing() -> None:
    for mean in (-0.02, 0.02):
        agreed, not_agreed = (verdict(sure(mean), "lower", second=second) for second in (mean / 9, -mean / 9))
        assert agreed.word == ("adopt" if mean < 0 else "reject") and not_agreed.word == "disagree"
        assert "at the second rate" in not_agreed.why
    assert verdict(sure(0.0001), "lower", second=-0.02).word == "inconclusive"
    assert verdict(sure(-0.02), "lower", guard=sure(0.02), second=0.01).word == "reject"


def test_holm_is_the_step_down() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == [] and holm([0.6, 0.9]) == [1.0, 1.0]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_never_makes_anything_surer_and_keeps_the_order(chances: list[float]) -> None:
    adjusted = holm(chances)
    assert all(after >= before for after, before in zip(adjusted, chances, strict=True))
    assert [adjusted[i] for i in np.argsort(chances, kind="stable")] == sorted(adjusted)


def test_lower_is_better_or_higher_is() -> None:
    assert verdict(sure(-0.02), "lower").word == "adopt" == verdict(sure(0.02), "higher").word
    assert verdict(sure(0.02), "lower").word == "reject" == verdict(sure(-0.02), "higher").word


def test_a_guard_that_rises_too_much_rejects_what_the_target_likes() -> None:
    found = verdict(sure(-0.02), "lower", guard=sure(0.02, 0.001))
    assert found.word == "reject" and "guard" in found.why


def test_a_guard_that_may_rise_too_much_leaves_it_open_with_the_seeds_that_would_tell() -> None:
    found = verdict(sure(-0.02), "lower", guard=sure(0.003, 0.002))
    assert found.word == "inconclusive" and "guard" in found.why and found.seeds is not None and found.seeds > 5
    assert verdict(sure(-0.02), "lower", guard=sure(0.001, 0.0005)).word == "adopt"


def test_an_unclear_target_asks_for_more_seeds() -> None:
    found = verdict(sure(-0.002, 0.001), "lower")
    assert found.word == "inconclusive" and found.seeds == seeds_needed(0.002, 0.001 * math.sqrt(5), 0.0, 100) != 5


def test_many_arms_must_be_surer() -> None:
    target = sure(-0.003, 0.001)
    assert target.chance() < 0.05 and verdict(target, "lower").word == "adopt"
    found = verdict(target, "lower", chance=holm([target.chance()] * 5)[0])
    assert found.word == "inconclusive" and "Holm" in found.why and (found.seeds or 0) > 5


def test_of_one_arm_the_guard_is_its_interval() -> None:
    for rise in (-0.001, 0.0019, 0.0021, 0.005, 0.0079, 0.0081, 0.02):
        guard = sure(rise, 0.00108)  # a half width of 0.003
        low, high = guard.interval()
        assert verdict(sure(-0.02), "lower", guard).word == (
            "reject" if low > 0.005 else "adopt" if high < 0.005 else "inconclusive"
        )


def test_many_arms_must_be_surer_of_their_guard_too() -> None:
    harmful, safe = sure(0.009, 0.001), sure(0.001, 0.001)
    for guard, alone in ((harmful, "reject"), (safe, "adopt")):
        own = over(guard, 0.005).chance()
        assert 0.01 < own < 0.05 and verdict(sure(-0.02), "lower", guard).word == alone
        found = verdict(sure(-0.02), "lower", guard, guard_chance=holm([own] * 5)[0])
        assert found.word == "inconclusive" and "Holm" in found.why and "guard" in found.why and (found.seeds or 0) > 5
        said = float(found.why.partition("rise by ")[2].partition("%")[0])
        assert said >= 0.5, found.why  # what it may rise by is more than it may


def test_arms_that_do_as_much_harm_as_they_may_are_seldom_called_harmful_or_safe() -> None:
    """Eight of them, whose guard rises by just the budget: an ablation that says of any that it does or does not is
    wrong in 5 % at most."""
    random, wrong, alone, trials = np.random.default_rng(0), 0, 0, 2000
    for _ in range(trials):
        by_seed = random.normal(0.005, 0.002, (8, 5))
        guards = [Errors(float(arm.mean()), float(arm.std(ddof=1)) / math.sqrt(5), 0.0, 5, 100) for arm in by_seed]
        own = [over(guard, 0.005).chance() for guard in guards]
        wrong += any(
            verdict(sure(-0.02), "lower", guard, guard_chance=chance).word != "inconclusive"
            for guard, chance in zip(guards, holm(own), strict=True)
        )
        alone += any(chance < 0.05 for chance in own)
    assert 0.02 * trials < wrong < 0.062 * trials and alone > 0.25 * trials


def test_a_difference_that_only_items_hide_says_so() -> None:
    found = verdict(Errors(0.001, 0.0001, 0.002, 5, 30), "lower")
    assert found.word == "inconclusive" and found.seeds is None and "items" in found.why


def test_one_seed_settles_nothing() -> None:
    assert verdict(Errors(-1.0, math.inf, 0.0, 1, 100), "lower").word == "inconclusive"


def test_a_guard_is_relative_to_the_control() -> None:
    assert relative(Errors(0.01, 0.002, 0.001, 5, 9), 2.0) == Errors(0.005, 0.001, 0.0005, 5, 9)
    with pytest.raises(ValueError):
        relative(sure(0.1), 0.0)


def test_few_items_that_all_differ_alike_settle_nothing() -> None:
    few, many = (
        errors(paired(np.ones((3, items)), np.zeros((3, items)), np.ones(items), np.arange(items))) for items in (4, 12)
    )
    found = verdict(few, "higher")
    assert (
        few.chance() == pytest.approx(2**-3)
        and found.word == "inconclusive"
        and found.seeds is None
        and "13% of cases" in found.why
    )
    assert verdict(many, "higher").word == "adopt"
