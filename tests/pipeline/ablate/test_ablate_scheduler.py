"""An ablation on the workers of a Dask scheduler that is there already."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import LocalCluster

from gristmill.pipeline.ablate import workers
from gristmill.pipeline.ablate.checks import check_plan
from gristmill.pipeline.ablate.jobs import base_job
from gristmill.pipeline.ablate.plan import load
from gristmill.pipeline.ablate.run import run
from gristmill.pipeline.ablate.show import AblationUi
from gristmill.pipeline.ablate.work import carry_out
from gristmill.pipeline.ablate.workers import Crew, Team, crew_of
from gristmill.pipeline.errors import RecipeError, RunFailed
from tests.pipeline.ablate.ablation_sets import make_plan


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None
    ) as found:
        yield found


def go(plan: Path, out: Path, crew: Crew, **more: Any) -> dict[str, Any]:
    with (plan.parent / "said.txt").open("a") as said:
        return run(load(plan), out, crew, AblationUi(out, said), **more)


def test_workers_that_are_there_already_give_the_same_figures(cluster: LocalCluster, tmp_path: Path) -> None:
    plan = make_plan(tmp_path, tokens=1024)
    crew = crew_of(None, cluster.scheduler_address)
    assert crew == Crew(2, 1, (), cluster.scheduler_address) and crew.device == "cpu"
    found = go(plan, tmp_path / "there", crew)
    assert found["status"] == "done" and found["machine"]["workers"] == 2 and found["cost"]["jobs"] == 7
    assert found["arms"] == go(plan, tmp_path / "here", Crew(0, 1))["arms"]


def test_only_workers_with_a_gpu_are_given_work_if_there_are_any() -> None:
    there = {
        "a": {"resources": {}, "nthreads": 8},
        "b": {"resources": {"GPU": 1}, "nthreads": 4},
        "c": {"resources": {"GPU": 1}, "nthreads": 2},
    }
    found = workers._of_these(there, None, "s")
    assert found == Crew(2, 2, ("b", "c"), "s") and found.device == "cuda"
    assert workers._of_these(there, 1, "s") == Crew(1, 2, ("b",), "s")
    assert workers._of_these({"a": there["a"]}, 5, "s") == Crew(1, 8, (), "s")
    with pytest.raises(RunFailed, match="no worker has come"):
        workers._of_these({}, None, "s")


def test_a_worker_that_says_that_it_has_a_gpu_is_asked_to_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with LocalCluster(
        n_workers=1, threads_per_worker=1, resources={"GPU": 1}, host="127.0.0.1", dashboard_address=None
    ) as one:
        plan, crew = make_plan(tmp_path, tokens=1024), crew_of(None, one.scheduler_address)
        with pytest.raises(RunFailed, match="a GPU that torch does not see"):
            go(plan, tmp_path / "out", crew)


def test_no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "CONNECT", 1.0)
    with pytest.raises(RunFailed, match=r"no scheduler answers at tcp://127\.0\.0\.1:9"):
        crew_of(None, "tcp://127.0.0.1:9")
    with pytest.raises(RecipeError, match="--workers 0"):
        crew_of(0, "tcp://127.0.0.1:9")


def test_a_job_at_work_ends_with_its_driver(cluster: LocalCluster, tmp_path: Path) -> None:
    def work(job: dict[str, Any]) -> dict[str, Any]:
        Path(job["folder"], job["arm"]).write_text(str(os.getpid()))
        time.sleep(100 if job["arm"] == "long" else 0)
        return {"failed": "on purpose", "arm": job["arm"], "seed": 0}

    jobs = [{"arm": arm, "seed": 0, "folder": str(tmp_path)} for arm in ("long", "short")]
    with pytest.raises(KeyboardInterrupt), Team(crew_of(None, cluster.scheduler_address), work) as team:
        for job, _ in team.done(jobs, lambda job: None):
            assert job["arm"] == "short"
            wait_for(lambda: (tmp_path / "long").is_file())
            raise KeyboardInterrupt
    process = int((tmp_path / "long").read_text())
    wait_for(lambda: not Path(f"/proc/{process}").exists())


def test_results_that_are_not_to_be_seen_here_are_said(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "ARRIVES", 0.1)
    job = {"arm": "a", "seed": 0, "folder": str(tmp_path / "elsewhere")}
    with Team(crew_of(1, cluster.scheduler_address), lambda job: {"loss": 1.0}) as team:
        ((_, result),) = team.done([job], lambda job: None)
    assert "is not visible here" in result["failed"]


def test_a_folder_that_somebody_is_at_work_in_is_left_to_them(tmp_path: Path) -> None:
    loaded = load(make_plan(tmp_path, tokens=1024))
    job = base_job(loaded, check_plan(loaded, tmp_path / "out", lambda line: None), tmp_path / "out", "cpu", 1)
    assert job is not None
    Path(job["folder"]).mkdir(parents=True)
    with Path(job["folder"], ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "another run is at work here" in carry_out(job)["failed"]
    assert carry_out(job)["updates"] == 20


def wait_for(done: Any, seconds: float = 60) -> None:
    latest = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < latest, "it never happened"
        time.sleep(0.05)
