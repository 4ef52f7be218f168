"""Ranks start and end together, and a lost one is named."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from gristmill.trainer.parallel.ranks import ALONE, Grid, RankError, current_ranks, grid_of, join_ranks
from tests.trainer.forked_ranks import forked

pytestmark = pytest.mark.run


def test_without_torchrun_a_process_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with join_ranks("cpu") as (ranks, device):
        assert (ranks, device) == (ALONE, torch.device("cpu"))
        assert ranks.gather({"a": 1}) == [{"a": 1}]
        ranks.wait()
    assert grid_of(ALONE, 1) == Grid()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_more_processes_than_gpus_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    with pytest.raises(RankError, match="local rank 3 has no GPU: 0 here"), join_ranks("cuda"):
        pass


def work(rank: int, port: int, folder: str, dies: int | None) -> None:
    os.environ.update(
        RANK=str(rank), WORLD_SIZE="3", LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    try:
        with join_ranks("cpu", timedelta(seconds=20)) as (ranks, _):
            assert current_ranks() == ranks
            total = ranks.total(torch.tensor([float(rank)]))
            if rank == dies:
                os._exit(7)
            total = total + ranks.total(torch.ones(1))
            if rank == 0 and dies is None:
                (Path(folder) / "early").touch()  # the first is done before the others
        (Path(folder) / f"{rank}").write_text(f"{float(total)} {torch.distributed.is_initialized()}")
    except RankError as error:
        (Path(folder) / f"{rank}").write_text(str(error))


@pytest.mark.parametrize("dies", [None, 1])
def test_ranks_end_together_or_say_that_one_is_lost(tmp_path: Path, dies: int | None) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ended = forked(3, work, port, str(tmp_path), dies, seconds=100)
    said = {rank: (tmp_path / f"{rank}").read_text() for rank in range(3) if rank != dies}
    if dies is None:
        assert set(said.values()) == {"6.0 False"}
    else:
        assert ended == [0, 7, 0]
        assert said.keys() == {0, 2}
        assert all(f"rank {rank} of 3 lost another rank" in text for rank, text in said.items())
