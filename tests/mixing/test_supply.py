"""What a mix may ask of its sources, and what the errors say."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from gristmill.mixing.weights.simplex import nearest_mix
from gristmill.mixing.weights.supply import ShortSupply, Supply, simulated_epoching

sizes = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=20)


def test_epochs_and_caps_are_in_tokens() -> None:
    supply = Supply.of({"books": 10.0, "web": 1000.0}, budget=100.0, max_epochs=4)
    assert supply.caps_N.tolist() == [0.4, 1.0]
    assert supply.epochs(np.array([0.25, 0.75])).tolist() == [2.5, 0.075]


def test_a_source_without_tokens_and_weight_is_seen_no_times() -> None:
    assert Supply.of({"none": 0.0, "web": 10.0}, budget=10.0).epochs(np.array([0.0, 1.0])).tolist() == [0.0, 1.0]


def test_an_error_names_the_source_that_runs_short_and_by_how_much() -> None:
    supply = Supply.of({"books": 10.0, "web": 1000.0, "code": 5.0}, budget=100.0, max_epochs=4)
    with pytest.raises(ShortSupply) as caught:
        supply.check_mix(np.array([0.5, 0.2, 0.3]))
    assert caught.value.by_source == pytest.approx({"books": 10.0, "code": 10.0})
    assert caught.value.lacking == pytest.approx(20.0)
    assert "'books' runs short by 10 tokens" in str(caught.value) and "5 epochs" in str(caught.value)
    assert "'web'" not in str(caught.value)


def test_a_mix_at_its_caps_passes() -> None:
    Supply.of({"books": 10.0, "web": 20.0}, budget=60.0, max_epochs=2).check_mix(np.array([1 / 3, 2 / 3]))


def test_a_budget_beyond_all_sources_says_what_to_raise() -> None:
    with pytest.raises(ShortSupply, match="50 too few") as caught:
        Supply.of({"a": 10.0, "b": 15.0}, budget=100.0, max_epochs=2).check_budget()
    assert caught.value.lacking == 50.0
    Supply.of({"a": 10.0, "b": 15.0}, budget=100.0, max_epochs=4).check_budget()


@given(sizes, st.floats(1.0001, 1e4))
def test_the_advised_factor_suffices(tokens: list[float], factor: float) -> None:
    named = {str(i): size for i, size in enumerate(tokens)}
    budget = sum(tokens) * factor
    with pytest.raises(ShortSupply) as caught:
        Supply.of(named, budget, 1.0).check_budget()
    advised = float(str(caught.value).split("by a factor of ")[1].split(",")[0])
    assert advised < factor * 1.002
    Supply.of(named, budget, advised).check_budget()


@pytest.mark.parametrize(
    ("tokens", "budget", "epochs"),
    [
        ({}, 1.0, 4.0),
        ({"a": -1.0}, 1.0, 4.0),
        ({"a": float("nan")}, 1.0, 4.0),
        ({"a": 1.0}, 0.0, 4.0),
        ({"a": 1.0}, 1.0, {"b": 4.0}),
    ],
)
def test_nonsense_is_refused(tokens: dict[str, float], budget: float, epochs: float | dict[str, float]) -> None:
    with pytest.raises(ValueError):
        Supply.of(tokens, budget, epochs)


@given(sizes, st.floats(0.01, 1.0), st.floats(0.01, 1.0))
def test_a_proxy_has_the_caps_of_the_full_run(tokens: list[float], fill: float, smaller: float) -> None:
    named = {str(i): size for i, size in enumerate(tokens)}
    budget = sum(tokens) * fill
    share = simulated_epoching(budget * smaller, budget)
    proxy = Supply.of({name: size * share for name, size in named.items()}, budget * smaller)
    assert np.allclose(proxy.caps_N, Supply.of(named, budget).caps_N, rtol=1e-12)


@settings(max_examples=300)
@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(0, 1)), min_size=1, max_size=30))
def test_nearest_mix_is_the_projection(pairs: list[tuple[float, float]]) -> None:
    point, caps = np.array(pairs).T
    if caps.sum() < 1:
        caps = np.minimum(caps + 1 - caps.sum(), 1.0) if len(caps) == 1 else caps + (1 - caps.sum())
    mix = nearest_mix(point, caps)
    assert abs(mix.sum() - 1) < 1e-9 and np.all(mix >= 0) and np.all(mix <= caps)
    pull = point - mix  # no move of weight from one source to another may help
    takers, givers = mix < caps - 1e-12, mix > 1e-12
    if takers.any() and givers.any():
        assert pull[takers].max() <= pull[givers].min() + 1e-8
