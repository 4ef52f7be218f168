"""Which rows a run reads: paired by seed, weighted by tokens, thinned by documents."""

from __future__ import annotations

import numpy as np
import pytest

from gristmill.pipeline.train.feeding import Thinned, blended, epochs_of, kept_rows, rows_and_order, size_of
from gristmill.shards.loader import Loader
from gristmill.shards.reader import open_shards
from tests.pipeline.ablate.ablation_sets import make_set, tales


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("sets")
    sizes = {"mix": 400, "new": 300, "other": 200}
    return {name: str(make_set(folder / name, tales(size, i), name)) for i, (name, size) in enumerate(sizes.items())}


def read(
    stages: list[dict[str, object]], seed: int, batches: int, rows: int = 20, share: float = 1.0
) -> list[tuple[str, bytes]]:
    """Source and tokens of each row, in the order of training."""
    together, order = rows_and_order(stages, share, seed, batches * rows)  # type: ignore[arg-type]
    loader = Loader(together, rows, order, seed)
    found = []
    for _ in range(batches):
        batch = loader.next_batch()
        assert batch is not None
        for i in range(rows):
            row = batch.rows.row(i)
            found.append((together.sources[row.source[0]], row.input_ids.tobytes()))
    return found


def test_runs_of_one_seed_read_what_they_share_in_one_order(sets: dict[str, str]) -> None:
    control = read([{"weights": {sets["mix"]: 1.0}}], 7, 20)
    arm = [row for row in read([{"weights": {sets["mix"]: 0.7, sets["new"]: 0.3}}], 7, 20) if row[0] == "mix"]
    other = [row for row in read([{"weights": {sets["other"]: 0.5, sets["mix"]: 0.5}}], 7, 20) if row[0] == "mix"]
    assert 250 < len(arm) < 310 and arm == control[: len(arm)] and other == control[: len(other)]
    assert read([{"weights": {sets["mix"]: 1.0}}], 8, 20) != control


def test_weights_are_shares_of_tokens(sets: dict[str, str]) -> None:
    found = read([{"weights": {sets["mix"]: 0.7, sets["new"]: 0.3}}], 1, 50)
    assert len(found) == 1000 and sum(name == "new" for name, _ in found) == pytest.approx(300, abs=15)


def test_an_epoch_has_every_row_once(sets: dict[str, str]) -> None:
    rows = read([{"weights": {sets["mix"]: 1.0}}], 3, 40)
    assert (
        len({tokens for _, tokens in rows[:400]})
        == len({tokens for _, tokens in rows[400:]})
        == len({tokens for _, tokens in rows})
    )


def test_the_first_stage_is_the_controls_alone(sets: dict[str, str]) -> None:
    stages: list[dict[str, object]] = [
        {"weights": {sets["mix"]: 1.0}, "rows": 200},
        {"weights": {sets["mix"]: 0.5, sets["new"]: 0.5}},
    ]
    found = read(stages, 5, 20)
    assert found[:200] == read([{"weights": {sets["mix"]: 1.0}}], 5, 10)
    assert sum(name == "new" for name, _ in found[200:]) == pytest.approx(100, abs=25)
    assert read(stages, 5, 40, rows=10) == found


@pytest.mark.parametrize("seed", [0, 5])
def test_the_second_stage_goes_on_where_the_first_one_stopped(sets: dict[str, str], seed: int) -> None:
    """No row comes twice before all have come once, and what the second stage has of the control's mix is what the
    control goes on with."""
    stages: list[dict[str, object]] = [
        {"weights": {sets["mix"]: 1.0}, "rows": 200},
        {"weights": {sets["mix"]: 0.5, sets["new"]: 0.5}},
    ]
    numbers = numbers_read(stages, seed, 400)
    control = numbers_read([{"weights": {sets["mix"]: 1.0}, "rows": 200}, {"weights": {sets["mix"]: 1.0}}], seed, 400)
    assert len(set(control)) == 400 and control == numbers_read([{"weights": {sets["mix"]: 1.0}}], seed, 400)
    assert len(set(numbers)) == 400
    of_mix = [number for number in numbers if number < 400]
    assert 270 < len(of_mix) < 330 and of_mix == control[: len(of_mix)]


def test_epochs_of_stages_are_those_that_are_read(sets: dict[str, str]) -> None:
    mixed = {"mix": 0.7, "new": 0.3}
    sizes = {name: size_of(open_shards(sets[name])) for name in mixed}
    stages: list[dict[str, object]] = [
        {"weights": {sets["mix"]: 1.0}, "rows": 1200},
        {"weights": {sets[name]: weight for name, weight in mixed.items()}},
    ]
    numbers = np.array(numbers_read(stages, 1, 2400))
    said = epochs_of([({"mix": 1.0}, 1200), (mixed, 1200)], sizes)
    assert said["mix"] * 400 == pytest.approx((numbers < 400).sum(), abs=15) and said["new"] * 300 == pytest.approx(
        (numbers >= 400).sum(), abs=15
    )
    times = np.bincount(numbers, minlength=700)
    assert set(times[:400].tolist()) <= {5, 6} and set(times[400:].tolist()) <= {1, 2}


def numbers_read(stages: list[dict[str, object]], seed: int, rows: int) -> list[int]:
    """By the rows' numbers among all sets."""
    together, order = rows_and_order(stages, 1.0, seed, rows)  # type: ignore[arg-type]
    found: list[int] = Loader(together, 20, order, seed).rows_at(np.arange(rows)).tolist()
    return found


def test_a_thinned_set_keeps_its_share_and_a_larger_share_keeps_that_too(sets: dict[str, str]) -> None:
    shards = open_shards(sets["mix"])
    few, many = kept_rows(shards, 0.1), kept_rows(shards, 0.3)
    assert len(few) == 40 and len(many) == 120 and set(few.tolist()) < set(many.tolist()) and (np.diff(few) > 0).all()
    thin = Thinned(shards, 0.1)
    assert len(thin) == 40 and np.array_equal(thin.take(np.array([3])).input_ids, shards.take(few[[3]]).input_ids)
    assert thin.fingerprint != shards.fingerprint and size_of(shards, 0.1).rows == 40
    assert len(kept_rows(shards, 1e-9)) == 1 and len(kept_rows(shards, 1.0)) == 400


def test_a_thinned_run_repeats(sets: dict[str, str]) -> None:
    rows = read([{"weights": {sets["mix"]: 1.0}}], 3, 20, share=0.25)
    assert len(rows) == 400 and len({tokens for _, tokens in rows}) <= 100


def test_what_is_not_new_is_the_control(sets: dict[str, str]) -> None:
    assert blended({"a": 3, "b": 1}, {"c": 2}, 0.2) == pytest.approx({"a": 0.6, "b": 0.2, "c": 0.2})
    assert blended({"a": 1}, {"a": 1, "c": 1}, 0.5) == pytest.approx({"a": 0.75, "c": 0.25})
    assert blended({"a": 1}, {"c": 1}, 1.0) == {"c": 1.0} and blended({"a": 2}, {}, 0.0) == {"a": 1.0}
    sizes = {"mix": size_of(open_shards(sets["mix"]))}
    assert epochs_of([({"mix": 1.0}, 800), ({"mix": 1.0}, 400)], sizes) == {"mix": 3.0}
