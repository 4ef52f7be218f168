"""RegMix: candidates around the token shares within caps, and trees that give the same mix every time."""

import subprocess
import sys

import numpy as np
import pytest

from gristmill.mixing.weights.ablations import rank_correlation
from gristmill.mixing.weights.regmix import best_mean, draw_candidates, ridge, trees
from gristmill.mixing.weights.supply import ShortSupply, Supply
from tests.mixing.runs_of_a_law import Truth


def test_candidates_lie_around_the_token_shares() -> None:
    supply = Supply.of({"a": 6e9, "b": 3e9, "c": 1e9, "none": 0.0}, 1.0)
    mixes = draw_candidates(supply, 20_000, 0)
    assert mixes.shape == (20_000, 4) and np.allclose(mixes.sum(axis=1), 1) and np.all(mixes >= 0)
    assert np.allclose(mixes.mean(axis=0), [0.6, 0.3, 0.1, 0], atol=0.01) and not mixes[:, 3].any()
    assert mixes[:, 0].min() < 0.001 and mixes[:, 2].max() > 0.999


def test_candidates_keep_caps() -> None:
    supply = Supply.of({"a": 6.0, "b": 3.0, "c": 1.0}, 20.0, 4.0)
    mixes = draw_candidates(supply, 2000, 0)
    for mix in mixes:
        supply.check_mix(mix / mix.sum())
    assert np.isclose(mixes[:, 2].max(), 0.2) and len(np.unique(mixes, axis=0)) > 500


def test_a_thousand_tiny_sources_do_not_underflow() -> None:
    supply = Supply.of({str(i): 1.0 if i else 1e12 for i in range(1000)}, 1.0)
    mixes = draw_candidates(supply, 50, 0)
    assert np.all(np.isfinite(mixes)) and np.allclose(mixes.sum(axis=1), 1)


def test_a_budget_that_cannot_be_filled_is_an_error() -> None:
    with pytest.raises(ShortSupply):
        draw_candidates(Supply.of({"a": 1.0, "b": 1.0}, 100.0), 10, 0)


def test_the_mean_of_the_best() -> None:
    mixes = np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]])
    assert best_mean(mixes, np.array([2.0, 1.0, 3.0]), 2, np.ones(2)).tolist() == [0.75, 0.25]


@pytest.mark.parametrize("name", ["trees", "ridge"])
def test_what_is_learnt_ranks_mixes_that_were_not_run(name: str) -> None:
    pytest.importorskip("sklearn")
    truth = Truth(runs=256, sources=4, tasks=2, noise=0.05)
    table, mixes = truth.table(), np.random.default_rng(9).dirichlet(4 * truth.shares_N * 4, 200)
    predicted = (trees(0) if name == "trees" else ridge)(table.weights_RN, table.losses_RT)(mixes)
    for t in range(2):
        assert rank_correlation(predicted[:, t], truth.losses(mixes)[:, t]) > 0.9


def test_trees_do_not_hang_on_the_number_of_threads() -> None:
    pytest.importorskip("sklearn")
    code = (
        "import numpy as np; from gristmill.mixing.weights.regmix import trees; w = np.random.default_rng(0).dirichlet(np.ones(6), 300);"
        "print(trees(1)(w, np.exp(w[:, :2]))(w).tobytes().hex())"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"OMP_NUM_THREADS": threads, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for threads in ("1", "2", "7")
    }
    assert len(said) == 1 and len(said.pop()) == 300 * 2 * 16 + 1


def test_without_scikit_learn_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    with pytest.raises(ImportError, match=r"pip install .\.\[train\]"):
        trees(0)
