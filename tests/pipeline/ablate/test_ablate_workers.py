"""Jobs in worker processes: one that dies fails its job alone, and none outlives its driver."""

from __future__ import annotations

import fcntl
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gristmill.pipeline.ablate.checks import check_plan
from gristmill.pipeline.ablate.jobs import base_job
from gristmill.pipeline.ablate.plan import load
from gristmill.pipeline.ablate.work import carry_out
from gristmill.pipeline.ablate.workers import Crew, Team
from gristmill.pipeline.train.progress import PROGRESS
from gristmill.pipeline.train.records import Job
from tests.pipeline.ablate.ablation_sets import make_plan

pytest.importorskip("torch")


def make_job(folder: Path, tokens: int = 10_000) -> Job:
    """Training a base."""
    plan = make_plan(folder, tokens=1024)
    plan.write_text(plan.read_text().replace("  tokens: 10000", f"  tokens: {tokens}"))
    loaded = load(plan)
    job = base_job(loaded, check_plan(loaded, folder / "out", lambda line: None), folder / "out", "cpu", 1)
    assert job is not None
    return job


def wait_for(done: Callable[[], bool], seconds: float = 120) -> None:
    latest = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < latest, "it never happened"
        time.sleep(0.05)


def test_a_worker_that_dies_fails_its_job_and_the_next_job_has_another(tmp_path: Path) -> None:
    long, short = make_job(tmp_path / "long", 10_000_000), make_job(tmp_path / "short")
    with Team(Crew(1, 1)) as team:
        killer = threading.Thread(target=kill_at_work, args=(team, Path(long["folder"])))
        killer.start()
        (_, failed), (_, done) = team.done([long, short], lambda job: None)
        killer.join()
    assert "its worker died" in failed["failed"] and done["updates"] == 20 and done["anew"]


def kill_at_work(team: Team, folder: Path) -> None:
    wait_for((folder / PROGRESS).is_file)
    team._workers[0].send_signal(signal.SIGKILL)


def test_a_job_at_work_ends_with_its_driver_and_leaves_a_checkpoint(tmp_path: Path) -> None:
    job = make_job(tmp_path, 10_000_000)
    with pytest.raises(KeyboardInterrupt), Team(Crew(1, 1)) as team:
        team._threads.submit(team._by_worker, job, lambda job: None)
        wait_for(lambda: Path(job["folder"], PROGRESS).is_file())
        [worker] = team._workers.values()
        raise KeyboardInterrupt
    assert worker.returncode == 130 and list(Path(job["folder"], "checkpoints").iterdir())


def test_a_folder_that_somebody_is_at_work_in_is_left_to_them(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    Path(job["folder"]).mkdir(parents=True)
    with Path(job["folder"], ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "another run is at work here" in carry_out(job)["failed"]
    assert carry_out(job)["updates"] == 20
