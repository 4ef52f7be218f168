"""Whoever reads, however many they are, wherever they stopped: the global batches are the same."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gristmill.kernels.rows.pack import concatenate, one_each
from gristmill.shards.batch import cumulative_lengths, document_numbers, labels, positions, sequence_lengths
from gristmill.shards.format import BadShards
from gristmill.shards.loader import Loader
from gristmill.shards.orders import AsWritten, Shuffled, ShuffledInStretches, ShuffledInWindows
from gristmill.shards.reader import ShardSet, open_shards
from tests.shards.shard_sets import best, documents_of, meta_of, small_set, write_set

ORDERS = [AsWritten(), Shuffled(), ShuffledInWindows(20), ShuffledInStretches((0, 9, 40, 100))]


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> ShardSet:
    return open_shards(small_set(tmp_path_factory.mktemp("set")).folder)


def flat(batches: list[list[int]]) -> list[int]:
    return [number for batch in batches for number in batch]


def global_batches(
    shards: ShardSet, steps: int, world: int = 1, state: dict | None = None, **settings
) -> tuple[list[list[int]], dict]:
    """Row numbers of each batch as the ranks together read them, and the state at the end."""
    loaders = [Loader(shards, rank=rank, world=world, **settings) for rank in range(world)]
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
    batches = []
    for _ in range(steps):
        shares = [loader.next_batch() for loader in loaders]
        for loader, share in zip(loaders, shares, strict=True):
            assert share.state == loader.state_dict() == loaders[0].state_dict()
            assert np.array_equal(share.input_ids, [shards.row(int(number)).input_ids for number in share.numbers])
        batches.append([int(number) for share in shares for number in share.numbers])
    return batches, loaders[0].state_dict()


@given(
    st.sampled_from(ORDERS),
    st.integers(0, 2**64 - 1),
    st.sampled_from([4, 8, 20]),
    st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.integers(0, 9)), max_size=5),
)
def test_any_ranks_stopped_anywhere_read_the_same_batches(shards, order, seed, batch_rows, segments):
    """Each segment is another number of ranks that reads some steps, stops, and hands its state on. The longest goes over
    the end of an epoch."""
    settings = {"batch_rows": batch_rows, "order": order, "seed": seed}
    whole, end = global_batches(shards, sum(steps for _, steps in segments), **settings)
    pieces, state = [], None
    for world, steps in segments:
        batches, state = global_batches(shards, steps, world, state, **settings)
        pieces += batches
    assert pieces == whole and (not segments or state == end)


@pytest.mark.parametrize("order", ORDERS)
def test_every_epoch_reads_every_row_once_and_batches_run_over_its_end(shards, order):
    rows = len(shards)
    assert rows % 20
    read = [
        number
        for batch in global_batches(shards, 3 * rows // 20, batch_rows=20, order=order, seed=3)[0]
        for number in batch
    ]
    for epoch in range(2):
        assert sorted(read[epoch * rows : (epoch + 1) * rows]) == list(range(rows))
    assert (read[:rows] == read[rows : 2 * rows]) == isinstance(order, AsWritten)


def test_the_size_of_a_batch_may_change_at_a_stop(shards):
    small, state = global_batches(shards, 5, batch_rows=4, order=Shuffled(), seed=3)
    large, _ = global_batches(shards, 2, 2, state, batch_rows=10, order=Shuffled(), seed=3)
    whole, _ = global_batches(shards, 4, batch_rows=10, order=Shuffled(), seed=3)
    assert flat(small) + flat(large) == flat(whole)


def test_the_end(shards):
    rows = len(shards)
    loader = Loader(shards, 20, epochs=2)
    assert len(loader) == 2 * rows // 20
    assert len(list(loader)) == 2 * rows // 20 and len(loader) == 0 and loader.next_batch() is None
    assert list(Loader(shards, 20, epochs=0)) == []
    with pytest.raises(TypeError, match="has no end"):
        len(Loader(shards, 20))


def test_a_rest_can_be_left_out_of_every_epoch(shards):
    rows = len(shards)
    loader = Loader(shards, 20, Shuffled(), epochs=3, whole_epochs_only=True)
    batches = [batch.numbers.tolist() for batch in loader]
    each = rows // 20
    assert len(batches) == 3 * each and loader.state_dict()["epoch"] == 3 and loader.state_dict()["row"] == 0
    epochs = [flat(batches[epoch * each : (epoch + 1) * each]) for epoch in range(3)]
    assert all(len(set(epoch)) == each * 20 for epoch in epochs) and set(epochs[0]) != set(epochs[1])
    with pytest.raises(BadShards, match="this state has epoch_rows"):
        Loader(shards, 50, Shuffled(), whole_epochs_only=True).load_state_dict(loader.state_dict())


def test_skipping_is_as_reading(shards):
    one, other = (Loader(shards, 8, Shuffled(), seed=1) for _ in range(2))
    for _ in range(5):
        one.next_batch()
    other.skip(5)
    assert other.standing_here().next_batch().numbers.tolist() == one.next_batch().numbers.tolist()
    assert other.state_dict()["row"] == 40


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"batch_rows": 6, "world": 4}, "batches of 6 rows cannot be shared equally by 4 ranks; take a multiple of 4"),
        ({"batch_rows": 0}, "batches of 0 rows"),
        ({"batch_rows": 4, "rank": 2, "world": 2}, "rank 2 of 2"),
        ({"batch_rows": 4, "seed": -1}, "seed -1"),
        ({"batch_rows": 4, "epochs": -1}, "-1 epochs"),
        ({"batch_rows": 10_000, "whole_epochs_only": True}, "too few for one batch of 10,000"),
    ],
)
def test_settings_that_cannot_be_are_refused(shards, settings, wrong):
    with pytest.raises(ValueError, match=wrong):
        Loader(shards, **settings)


def test_a_set_smaller_than_a_batch_goes_round(shards, tmp_path):
    few = open_shards(write_set(tmp_path, meta_of(), [documents_of(2, 9, 1000, 1)]).folder)
    assert 0 < len(few) < 20
    batch = Loader(few, 50).next_batch()
    assert batch.numbers.tolist() == (list(range(len(few))) * 50)[:50]
    with pytest.raises(BadShards, match="0 rows, too few for one batch"):
        Loader(open_shards(write_set(tmp_path / "none", meta_of(), []).folder), 1)


def test_a_state_of_something_else_is_refused(shards, tmp_path):
    loader = Loader(shards, 8, Shuffled(), seed=1)
    state = loader.state_dict()
    other = open_shards(small_set(tmp_path, documents=59).folder)
    for wrong in (
        Loader(other, 8, Shuffled(), seed=1),
        Loader(shards, 8, AsWritten(), seed=1),
        Loader(shards, 8, Shuffled(), seed=2),
    ):
        with pytest.raises(BadShards, match=r"this state has (shards|order|seed) "):
            wrong.load_state_dict(state)
    for change in (
        {"version": 2},
        {"version": None},
        {"row": -1},
        {"row": 10**9},
        {"epoch": -1},
        {"epoch": "1"},
        {"row": 1.5},
    ):
        with pytest.raises(BadShards, match="a loader's state"):
            loader.load_state_dict({**state, **change})
    for epoch in (2**62, 10**18, 10**30):
        with pytest.raises(BadShards, match=r"a loader's state in epoch .* no run can reach"):
            loader.load_state_dict({**state, "epoch": epoch})
    loader.load_state_dict({**state, "epoch": 2**62 // len(shards)})
    assert len(loader.next_batch().numbers) == 8


# --- what is derived from where documents begin -----------------------------------------------------------------------


@pytest.mark.parametrize("packer", [best, one_each])
def test_what_trainers_derive(tmp_path, packer):
    """Held against loops."""
    shards = open_shards(small_set(tmp_path, packer=packer).folder)
    padded = next(i for i in range(len(shards)) if shards.row(i).seq_lens.sum() < 16)
    rows = shards.take([5, 3, 50, 51, 52, padded])
    expected_lengths, place, number, label = [], [], [], []
    for i in range(6):
        row = rows.row(i)
        rest = 16 - int(row.seq_lens.sum())
        expected_lengths += [*row.seq_lens.tolist(), *([rest] if rest else [])]
        place.append([k for n in [*row.seq_lens.tolist(), rest] for k in range(n)])
        number.append([k for k, n in enumerate(row.seq_lens.tolist()) for _ in range(n)] + [-1] * rest)
        label.append([-100 if place[i][k] == 0 or number[i][k] < 0 else int(row.input_ids[k]) for k in range(16)])
    lengths, padding = sequence_lengths(rows)
    assert (
        lengths.tolist() == expected_lengths
        and lengths.sum() == 96
        and (lengths[padding].sum() == sum(n.count(-1) for n in number))
    )
    assert (
        cumulative_lengths(rows).tolist() == np.cumsum([0, *expected_lengths]).tolist()
        and cumulative_lengths(rows).dtype == np.int32
    )
    assert (
        positions(rows).tolist() == place
        and document_numbers(rows).tolist() == number
        and labels(rows).tolist() == label
    )
    assert any(-1 in n for n in number) and any(len(set(n) - {-1}) > 1 for n in number) is (packer is best)
    none = shards.take([])
    assert positions(none).shape == labels(none).shape == document_numbers(none).shape == (
        0,
        16,
    ) and cumulative_lengths(none).tolist() == [0]


# --- what must never change
#   ---------------------------------------------------------------------------------------------

GOLDEN = {
    "as_written": "f20192a2693bcef844d80c279c3202d77e2bce40c8a9cf5611c01712be10b0a6",
    "shuffled": "2aeb8fdaa7ca6ae496bde35afb35db07dac5d14bd36d2182bb2d2a8c5b101ee7",
    "windows": "402f20ec78f2481270b5ad424cd872fe276ee131de00d27cbf3c9e1bb1297d25",
    "stretches": "60d7351e46d0b4efbce3291a789d2e6f8b0f4f1087e88d0441fa9df92027fe83",
}


@pytest.fixture(scope="module")
def golden_set(tmp_path_factory) -> ShardSet:
    """More than a thousand rows whose every token is given by arithmetic."""
    meta = meta_of(row_length=32, vocab_size=5000)
    shards = []
    for number in range(3):
        lengths = 1 + (np.arange(1500) * 7919 + number * 31) % 45
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        uid = (np.arange(1500, dtype=np.uint64) + np.uint64(1500 * number)) * np.uint64(0x9E3779B97F4A7C15)
        document = documents_of(1500, 9, 5000, number)._replace(
            tokens=((np.arange(offsets[-1]) * 104729 + number) % 5000).astype(np.uint16), offsets=offsets, uid=uid
        )
        shards.append(document._replace(source=np.arange(1500) % 3, bucket=(np.arange(1500) // 500).astype(np.int16)))
    return open_shards(
        write_set(tmp_path_factory.mktemp("golden"), meta, shards, concatenate, segments=(0, 300, 1000)).folder
    )


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("as_written", AsWritten()),
        ("shuffled", Shuffled()),
        ("windows", ShuffledInWindows(256)),
        ("stretches", ShuffledInStretches((0, 300, 1000))),
    ],
)
def test_the_first_thousand_rows_are_those_they_always_were(golden_set, name, order):
    """If this fails, runs that stopped would go on with other batches: an order may be added, never changed."""
    digest = hashlib.sha256()
    assert len(golden_set) > 3000
    for batch, _ in zip(Loader(golden_set, 8, order, seed=17), range(125), strict=False):
        digest.update(
            batch.input_ids.astype("<u4").tobytes()
            + batch.rows.doc_uids.astype("<u8").tobytes()
            + batch.rows.seq_lens.astype("<i4").tobytes()
        )
    assert digest.hexdigest() == GOLDEN[name]


def test_torch_is_not_needed_to_load():
    """Only shards/torch_dataset.py knows it."""
    names = [
        path.stem
        for path in (Path(__file__).parents[2] / "shards").glob("*.py")
        if path.stem not in ("__init__", "torch_dataset")
    ]
    code = (
        f"import sys\nfor name in {names!r}: __import__('gristmill.shards.' + name)\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_what_is_no_state_is_refused(shards):
    with pytest.raises(TypeError, match=r"what state_dict\(\) gave was expected, not NoneType"):
        Loader(shards, batch_rows=4).load_state_dict(None)
