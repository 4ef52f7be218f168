"""Where a run's work is done: as many cores as there is time on, workers that come late, locks that a file system does
not know."""

from __future__ import annotations

import contextlib
import errno
import itertools
import platform
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gristmill.pipeline.engine.cluster import Where
from gristmill.pipeline.engine.executor import DaskExecutor, InlineExecutor
from gristmill.pipeline.engine.shared_folder import nonce_in
from gristmill.pipeline.engine.worker import DIED, Terms, run_tasks
from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.progress.progress import Quiet
from gristmill.pipeline.recipe.recipe import load
from gristmill.pipeline.run.run import run
from gristmill.pipeline.store.lock import one_run_at_a_time
from gristmill.pipeline.store.records import Result, Task
from gristmill.pipeline.store.storage import Store
from gristmill.pipeline.tasks.isolation import Breadcrumb
from tests.pipeline.engine.elsewhere import Noting
from tests.pipeline.engine.here import work_here
from tests.pipeline.runs import lines, save, written

TASKS: Any = [SimpleNamespace(task="a")]


def executor_at(folder: Path, where: Where, client: object) -> tuple[DaskExecutor, Noting]:
    watcher = Noting()
    executor = DaskExecutor(Store(str(folder)), where, watcher, folder / "r.yaml")
    executor._client = client
    return executor, watcher


def test_jobs_that_stand_in_a_queue_are_waited_for(tmp_path: Path) -> None:
    waited: list[Any] = []
    client = SimpleNamespace(nthreads=dict, wait_for_workers=lambda n, timeout: waited.append((n, timeout)))
    for where, notes, timeouts in (
        (Where(cluster="slurm.yaml"), 1, [(1, None)]),
        (Where(scheduler="tcp://x:1"), 1, []),
        (Where(2), 0, [(1, 600)]),
    ):
        executor, watcher = executor_at(tmp_path, where, client)
        executor.wait_for_workers(client)
        assert (len(watcher.notes), waited) == (notes, timeouts)
        waited.clear()


def failing(error: OSError) -> Any:
    def send(*_: object) -> None:
        raise error

    return send


def test_a_scheduler_that_stays_away_is_named_and_not_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def connect(patience: float) -> None:
        asked.append(patience)
        raise RunFailed("no scheduler answers")

    clock = itertools.count(0, 60)  # minutes pass
    monkeypatch.setattr("gristmill.pipeline.engine.executor.time.monotonic", lambda: float(next(clock)))
    monkeypatch.setattr("gristmill.pipeline.engine.executor.time.sleep", lambda seconds: None)
    executor, watcher = executor_at(tmp_path, Where(scheduler="tcp://x:1"), SimpleNamespace(status="closed"))
    monkeypatch.setattr(executor, "_send_and_take", failing(TimeoutError("Timed out")))
    monkeypatch.setattr(executor, "connect", connect)
    with pytest.raises(
        RunFailed, match=r"the scheduler at tcp://x:1 is lost \(Timed out\) and did not come back in 10"
    ):
        list(executor.results(TASKS))
    assert len(asked) >= 5 and asked == sorted(asked, reverse=True) and asked[0] <= 600
    assert watcher.notes == [
        "the scheduler at tcp://x:1 is lost (Timed out); waiting up to 10 minutes for it to come back"
    ]
    monkeypatch.setattr(executor, "_send_and_take", failing(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        list(executor.results(TASKS))


def test_a_scheduler_of_the_runs_own_does_not_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executor, _ = executor_at(tmp_path, Where(2), SimpleNamespace(status="closed"))
    monkeypatch.setattr(executor, "_send_and_take", failing(TimeoutError("Timed out")))
    with pytest.raises(RunFailed, match=r"the connection to the scheduler is lost \(Timed out\)"):
        list(executor.results(TASKS))


@pytest.mark.parametrize(
    ("error", "is_lock"), [(errno.EWOULDBLOCK, True), (errno.ENOSYS, False), (errno.ENOLCK, False)]
)
def test_a_file_system_without_locks_is_no_other_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, is_lock: bool
) -> None:
    def flock(*_: object) -> None:
        raise OSError(error, "as the system says")

    monkeypatch.setattr("fcntl.flock", flock)
    if is_lock:
        with pytest.raises(RunFailed, match="another run is at work here"), one_run_at_a_time(Store(str(tmp_path))):
            pass
    else:
        with one_run_at_a_time(Store(str(tmp_path))):
            assert (tmp_path / ".lock").exists()


def test_workers_in_another_folder_write_into_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--out` may be relative to where the run is started; a scheduler's workers were started elsewhere."""

    class Elsewhere(InlineExecutor):
        def run_task(self, task: Task) -> Result:
            with contextlib.chdir(tmp_path / "theirs"):
                return super().run_task(task)

    (tmp_path / "theirs").mkdir()
    lines(tmp_path / "in.jsonl", ["one", "two", "two"])
    asked = load(
        save(tmp_path / "r.yaml", "name: a\nsources:\n  a: {jsonl: {path: in.jsonl}}\nstages: [exact_dedup, write]\n")
    )
    monkeypatch.chdir(tmp_path)
    work_here(monkeypatch, Elsewhere)
    run(asked, "out", Where(1), Quiet())
    assert len(written(tmp_path / "out")) == 2 and not [*(tmp_path / "theirs").iterdir()]


def test_workers_that_do_not_see_the_runs_folder_say_so_and_make_none(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    with nonce_in(Store(str(tmp_path / "out"))) as nonce:
        assert run_tasks([], Terms(nonce=nonce)) == []
        [result] = run_tasks([], Terms(breadcrumb=theirs / "journal" / "t", nonce=nonce.replace("/out/", "/theirs/")))
        assert list((tmp_path / "out" / "journal").iterdir()) == [Path(nonce)]
    assert result.message.startswith(f"the worker on {platform.node()} does not see the output folder {theirs}; mount")
    assert not theirs.exists() and not Path(nonce).exists()


def test_a_worker_that_may_not_write_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with nonce_in(Store(str(tmp_path))) as nonce:
        monkeypatch.setattr(Path, "write_text", failing(OSError(errno.EROFS, "Read-only file system")))
        [result] = run_tasks([], Terms(nonce=nonce))
    assert f"cannot write into the output folder {tmp_path} (Read-only file system)" in result.message


def test_what_another_worker_died_over_is_not_tried_again_as_it_is(tmp_path: Path) -> None:
    """Dask gives a task to four workers before it gives up, unless the scheduler is told otherwise."""
    Breadcrumb(tmp_path / "t").begin("a")
    assert run_tasks([{"task": "a"}], Terms(breadcrumb=tmp_path / "t")) == [DIED]
