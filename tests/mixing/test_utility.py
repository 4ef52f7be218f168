"""Utilities: scale, standard errors, and tasks that say nothing."""

import math

import numpy as np
import pytest

from gristmill.mixing.weights.utility import Utilities, chance_of_spread, judged, noisy_tasks, scaled


def table(values: list[list[float]], error: float = 0.0) -> Utilities:
    array = np.array(values, np.float64)
    sources = tuple(f"s{i}" for i in range(array.shape[0]))
    return Utilities(sources, tuple(f"t{i}" for i in range(array.shape[1])), array, np.full(array.shape, error))


def test_per_task_the_best_utility_is_1_and_the_worst_0() -> None:
    utilities = scaled(table([[-1.0, -3.0], [-2.0, -2.5], [-3.0, -2.0]], error=0.5))
    assert utilities.values_NT.tolist() == [[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]
    assert utilities.errors_NT.tolist() == [[0.25, 0.5]] * 3


def test_a_task_without_range_has_no_scale() -> None:
    with pytest.raises(ValueError, match="'t1'"):
        scaled(table([[1.0, 3.0], [2.0, 3.0]]))


def test_tasks_of_noise_are_named_with_the_reason() -> None:
    dropped = noisy_tasks(table([[0.0, 0.50, 5.0, 0.5], [9.0, 0.51, 7.5, 0.5], [5.0, 0.52, 6.0, 0.5]], error=1.0))
    assert [noisy.task for noisy in dropped] == ["t1", "t2", "t3"]
    assert "under 2 standard errors" in dropped[0].reason
    assert "equal sources would differ as much" in dropped[1].reason and dropped[1].range == 2.5
    assert dropped[2].reason == "all sources are equal"


def test_pure_noise_over_many_sources_is_found_though_its_range_is_wide() -> None:
    noise = np.random.default_rng(5).normal(size=(16, 400))
    assert np.mean(np.ptp(noise, axis=0) > 2) > 0.95  # the rule of the range alone would keep nearly all
    kept = 400 - len(noisy_tasks(table(noise.tolist(), error=1.0)))
    assert 5 <= kept <= 40  # 5 % are kept by chance


def test_exact_values_that_differ_are_never_noise() -> None:
    assert noisy_tasks(table([[0.5], [0.5001]])) == []


@pytest.mark.parametrize("sources", [2, 3, 8, 50, 1001])
@pytest.mark.parametrize("spread", [0.3, 1.0, 1.5, 3.0])
def test_the_chance_is_that_of_chi_square(sources: int, spread: float) -> None:
    stats = pytest.importorskip("scipy.stats")
    values = np.random.default_rng(sources).normal(size=sources) * spread
    errors = np.linspace(0.5, 2.0, sources)
    center = np.average(values, weights=errors**-2)
    exact = stats.chi2.sf(np.sum(((values - center) / errors) ** 2), sources - 1)
    assert abs(chance_of_spread(values, errors) - exact) < 1e-12


def test_one_source_known_exactly_is_the_centre() -> None:
    assert chance_of_spread(np.array([0.0, 10.0]), np.array([0.0, 1.0])) < 1e-6
    assert chance_of_spread(np.array([0.0, 0.1]), np.array([0.0, 1.0])) > 0.5
    assert chance_of_spread(np.array([0.0, 0.1, 5.0]), np.array([0.0, 0.0, 9.0])) == 0.0


def test_marks_of_equal_documents_have_the_usual_standard_error() -> None:
    marks = np.random.default_rng(1).choice([0, 0.25, 0.5, 0.75, 1.0], size=(256, 2))
    utilities = judged(("a",), ("x", "y"), np.zeros(256, np.int64), np.full(256, 512.0), marks)
    assert np.allclose(utilities.values_NT[0], marks.mean(axis=0))
    assert np.allclose(utilities.errors_NT[0], marks.std(axis=0, ddof=1) / 16)


def test_marks_count_by_tokens_and_not_by_documents() -> None:
    utilities = judged(
        ("a", "b"),
        ("x",),
        np.array([0, 0, 1, 1]),
        np.array([900.0, 100.0, 1.0, 1.0]),
        np.array([[1.0], [0.0], [0.5], [0.5]]),
    )
    assert utilities.values_NT[:, 0].tolist() == [0.9, 0.5]
    assert utilities.errors_NT[:, 0] == pytest.approx([math.sqrt(2) * math.sqrt(0.81 * 0.01 + 0.01 * 0.81), 0.0])


def test_the_standard_error_is_that_of_many_draws() -> None:
    random = np.random.default_rng(3)
    found = []
    for _ in range(400):
        tokens = random.lognormal(6, 1, 200)
        marks = np.clip(0.2 + 0.05 * np.log(tokens) + random.normal(0, 0.1, 200), 0, 1)[:, None]
        utilities = judged(("a",), ("x",), np.zeros(200, np.int64), tokens, marks)
        found.append((utilities.values_NT[0, 0], utilities.errors_NT[0, 0]))
    values, errors = np.array(found).T
    assert 0.85 < errors.mean() / values.std() < 1.15


def test_marks_that_could_not_be_read_are_refused() -> None:
    with pytest.raises(ValueError, match="marks"):
        judged(("a",), ("x",), np.zeros(2, np.int64), np.ones(2), np.array([[1.0], [-1.0]]))
    with pytest.raises(ValueError, match="1 marked documents of 'b'"):
        judged(("a", "b"), ("x",), np.array([0, 0, 1]), np.ones(3), np.ones((3, 1)))


def test_bad_tables_say_where() -> None:
    with pytest.raises(ValueError, match="source 's1', task 't0'"):
        table([[1.0], [math.nan]])
    with pytest.raises(ValueError, match="named twice"):
        Utilities(("a", "a"), ("x",), np.zeros((2, 1)), np.zeros((2, 1)))
