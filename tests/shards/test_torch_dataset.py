"""Through torch's DataLoader: the same batches with any number of workers, from any stop, and the mapped file itself as
a tensor."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from test_reader import inside, mapped_ranges

from gristmill.shards.loader import Loader
from gristmill.shards.orders import AsWritten, Shuffled, ShuffledInWindows
from gristmill.shards.reader import ShardSet, open_shards
from tests.shards.shard_sets import small_set

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader  # noqa: E402

from gristmill.shards.torch_dataset import TokenBatches  # noqa: E402

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> ShardSet:
    return open_shards(small_set(tmp_path_factory.mktemp("set")).folder)


def read(
    shards: ShardSet, world: int, workers: int, steps: int, state: dict | None, **settings
) -> tuple[list[np.ndarray], dict]:
    """Global batches of so many steps as the ranks' DataLoaders give them, and the state that came with the last."""
    batches: list[list[np.ndarray]] = [[] for _ in range(steps)]
    for rank in range(world):
        dataset = TokenBatches(Loader(shards, rank=rank, world=world, **settings))
        if state is not None:
            dataset.load_state_dict(state)
        for step, batch in zip(
            range(steps),
            DataLoader(dataset, batch_size=None, num_workers=workers, prefetch_factor=3 if workers else None),
            strict=False,
        ):
            batches[step].append(batch["input_ids"].numpy().copy())
            last = batch["state"]
    return [np.concatenate(shares) for shares in batches], last


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_any_ranks_and_workers_give_the_same_batches(shards, world, workers):
    settings = {"batch_rows": 8, "order": Shuffled(), "seed": 2}
    loader = Loader(shards, **settings)
    whole = [loader.next_batch().input_ids for _ in range(20)]
    first, state = read(shards, world, workers, 7, None, **settings)
    second, state = read(shards, 4 // world, 2 - workers, 13, state, **settings)
    assert np.array_equal(np.stack(whole), np.stack(first + second)) and state == loader.state_dict()


@pytest.mark.parametrize(("order", "workers"), [(Shuffled(), 0), (Shuffled(), 2), (ShuffledInWindows(20), 2)])
def test_ranks_and_workers_come_and_go(shards, order, workers):
    """Stops where workers had read ahead; the second segment goes over the end of the epoch."""
    settings = {"batch_rows": 8, "order": order, "seed": 9}
    loader = Loader(shards, **settings)
    whole = [loader.next_batch().input_ids for _ in range(21)]
    first, state = read(shards, 2, workers, 5, None, **settings)
    second, state = read(shards, 1, 2 - min(workers, 2), 14, state, **settings)
    third, state = read(shards, 4, 0, 2, state, **settings)
    assert (
        np.array_equal(np.stack(whole), np.stack(first + second + third))
        and state == loader.state_dict()
        and state["epoch"] == 1
    )


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_every_worker_ends_where_the_data_ends(shards, workers):
    def dataset() -> TokenBatches:
        return TokenBatches(Loader(shards, 20, epochs=2))

    expected = [batch.input_ids.tolist() for batch in Loader(shards, 20, epochs=2)]
    found = [batch["input_ids"].tolist() for batch in DataLoader(dataset(), batch_size=None, num_workers=workers)]
    assert found == expected and len(found) == 2 * len(shards) // 20
    again = dataset()
    assert [batch["input_ids"].tolist() for _ in range(2) for batch in again] == expected * 2


def test_the_tensor_is_the_mapped_file(tmp_path):
    """Without a word of warning."""
    shards = open_shards(small_set(tmp_path, documents=400).folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batch = next(iter(DataLoader(TokenBatches(Loader(shards, 8, AsWritten())), batch_size=None)))
    ids = batch["input_ids"]
    assert ids.dtype == torch.uint16 and ids.shape == (8, 16)
    assert (
        inside(ids.numpy(), mapped_ranges("shard-00000.arrow"))
        and ids.data_ptr() == shards.row(0).input_ids.ctypes.data
    )
    assert ids.tolist() == shards.rows(0, 8).tolist()


@pytest.mark.parametrize("vocab_size", [1000, 70_000])
def test_a_type_that_models_take_is_a_copy_that_may_be_changed(tmp_path, vocab_size):
    shards = open_shards(small_set(tmp_path, vocab_size=vocab_size).folder)
    batch = next(
        iter(
            TokenBatches(
                Loader(shards, 8), torch.int64, also=("labels", "position_ids", "document_numbers", "cu_seqlens")
            )
        )
    )
    assert batch["input_ids"].dtype == torch.int64
    batch["input_ids"] += 1
    assert batch["input_ids"].tolist() == (shards.rows(0, 8).astype(np.int64) + 1).tolist()
    learned = batch["labels"] != -100
    assert torch.equal(batch["labels"][learned], batch["input_ids"][learned] - 1)
    assert not learned[batch["position_ids"] == 0].any() and not learned[batch["document_numbers"] < 0].any()
    assert batch["cu_seqlens"].dtype == torch.int32 and batch["cu_seqlens"][-1] == 8 * 16
    with pytest.raises(ValueError, match="label: not among labels, position_ids, document_numbers, cu_seqlens"):
        TokenBatches(Loader(shards, 8), also=("label",))


def test_the_loop_in_the_documentation_trains(tmp_path):
    """As it stands there, in a process of its own; it is run twice, and the second goes on where the first stopped."""
    text = (ROOT / "docs" / "shards.md").read_text()
    (code,) = re.findall(r"```python\n(# train.py.*?)```", text, re.DOTALL)
    small_set(tmp_path / "shards", row_length=32)
    outputs = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout.split("\n"))
    assert "'epoch': 0, 'row': 24" in outputs[0][-2] and "'epoch': 0, 'row': 48" in outputs[1][-2]
