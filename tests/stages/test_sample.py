"""A sample depends on uid and seed alone."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from gristmill.kernels.common.settings import SettingsError
from gristmill.stages.sample import Sample, splitmix64

UIDS = np.random.default_rng(1).integers(0, 2**64, 100_000, dtype=np.uint64)
TABLE = pa.table({"uid": UIDS})


def kept(rate: float, seed: int = 0, table: pa.Table = TABLE) -> set[int]:
    return set(Sample(rate=rate, seed=seed)(table)["uid"].to_pylist())


def test_splitmix64_is_the_published_one():
    assert splitmix64(np.array([0, 1234567], np.uint64)).tolist() == [0xE220A8397B1DCDAF, 6457827717110365317]


def test_a_table_without_uids_is_sampled_by_the_numbers_of_its_rows():
    texts = pa.table({"text": [f"text {n}" for n in range(1000)]})
    kept = Sample(rate=0.3)(texts)
    assert kept.column_names == ["text"] and abs(len(kept) - 300) < 60 and kept.equals(Sample(rate=0.3)(texts))
    assert Sample(rate=0.3)(texts.to_pylist()) == kept.to_pylist()


def test_rates():
    assert len(kept(0.0)) == 0 and len(kept(1.0)) == 100_000
    assert abs(len(kept(0.1)) - 10_000) < 400


def test_small_samples_are_subsets_of_large_ones_and_seeds_are_independent():
    assert kept(0.1) < kept(0.3)
    assert abs(len(kept(0.3) & kept(0.3, seed=-1)) - 9_000) < 400


def test_order_and_parts_never_matter():
    shuffled = TABLE.take(np.random.default_rng(2).permutation(100_000))
    assert kept(0.3) == kept(0.3, table=shuffled)
    assert kept(0.3) == kept(0.3, table=shuffled.slice(0, 777)) | kept(0.3, table=shuffled.slice(777))


def test_consecutive_uids_are_sampled_evenly():
    assert abs(len(kept(0.5, table=pa.table({"uid": np.arange(10_000, dtype=np.uint64)}))) - 5_000) < 300


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_a_rate_is_a_share(rate):
    with pytest.raises(SettingsError):
        Sample(rate=rate)
