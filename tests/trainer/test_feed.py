"""Rows come as the loader reads them, ahead of time and with what is to be saved; errors reach the caller; threads end."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from gristmill.shards.batch import NO_LABEL
from gristmill.shards.format import BadShards
from gristmill.shards.loader import Loader
from gristmill.shards.orders import Shuffled
from gristmill.shards.reader import open_shards
from gristmill.shards.rows import Rows
from gristmill.trainer.model.packed import pack_rows
from gristmill.trainer.run.feed import Feed
from tests.shards.shard_sets import small_set

CPU = torch.device("cpu")


@pytest.fixture
def loader(tmp_path: Path) -> Loader:
    return Loader(open_shards(small_set(tmp_path / "set", vocab_size=50).folder), 12, Shuffled(), seed=3, epochs=2)


def test_all_steps_of_all_updates(loader: Loader) -> None:
    plain = loader.standing_here()
    updates = len(loader)
    assert updates > 5
    with Feed(loader, 4, CPU) as feed:
        for _ in range(updates):
            batch = plain.next_batch()
            assert batch is not None
            steps = list(feed.update())
            assert [step.last for step in steps] == [False, False, True]
            for number, step in enumerate(steps):
                expected = pack_rows(batch.rows.part(4 * number, 4 * number + 4))
                assert torch.equal(step.packed.ids_T, expected.ids_T) and torch.equal(
                    step.packed.targets_T, expected.targets_T
                )
                assert torch.equal(step.packed.cuts, expected.cuts) and torch.equal(
                    step.packed.positions_T, expected.positions_T
                )
                assert step.read.state == batch.state and step.read.place == plain.place - 12
            read = steps[0].read
            assert (
                read.counted
                == sum(step.packed.counted for step in steps)
                == sum(int((s.packed.targets_T != NO_LABEL).sum()) for s in steps)
            )
            assert read.tokens == batch.rows.seq_lens.sum() and read.lengths.tolist() == batch.rows.seq_lens.tolist()
        assert list(feed.update()) == [] == list(feed.update())
    assert loader.place == 0


def test_it_reads_no_further_than_it_may(loader: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    whole = Loader.next_batch
    monkeypatch.setattr(Loader, "next_batch", lambda self, out=None: (read.append(1), whole(self, out))[1])
    with Feed(loader, 12, CPU, depth=2) as feed:
        next(iter(feed.update()))
        time.sleep(0.3)
        assert 2 <= len(read) <= 4  # one taken, two ready, one in hand


def test_an_error_of_the_thread_is_the_callers(loader: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Loader.next_batch

    def breaks(self: Loader, out: object = None) -> object:
        if self.place >= 24:
            raise OSError("the disk is gone")
        return whole(self)

    monkeypatch.setattr(Loader, "next_batch", breaks)
    with Feed(loader, 6, CPU) as feed:
        assert len(list(feed.update())) == len(list(feed.update())) == 2
        for _ in range(2):
            with pytest.raises(OSError, match="the disk is gone"):
                list(feed.update())


def test_threads_end_wherever_they_are_left(loader: Loader) -> None:
    before = threading.active_count()
    for taken in range(4):
        with Feed(loader, 3, CPU) as feed:
            for _, _ in zip(range(taken), feed.steps(), strict=False):
                pass
        assert threading.active_count() == before
    with pytest.raises(KeyError), Feed(loader, 3, CPU):
        raise KeyError
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (
            lambda rows: rows._replace(input_ids=np.where(np.arange(16) == 3, 50, rows.input_ids).astype(np.uint16)),
            r"row \d+ holds token 50, the vocabulary has 50: .*gristmill maintain verify",
        ),
        (lambda rows: rows._replace(seq_lens=rows.seq_lens * 0), "has an empty piece"),
        (lambda rows: rows._replace(seq_lens=rows.seq_lens + 16), r"row \d+ counts [\d,]+ tokens in 16 places"),
    ],
)
def test_damaged_rows_are_named(loader: Loader, monkeypatch: pytest.MonkeyPatch, broken: object, message: str) -> None:
    whole = type(loader.shards).take
    monkeypatch.setattr(
        type(loader.shards), "take", lambda self, rows, out=None: _broken(whole(self, rows, out), broken)
    )
    with Feed(loader, 3, CPU) as feed, pytest.raises(BadShards, match=message):
        list(feed.update())


def _broken(rows: Rows, how: object) -> Rows:
    return how(rows)  # type: ignore[operator]
