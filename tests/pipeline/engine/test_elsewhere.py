"""Runs on a scheduler and workers of others, which go away and come back; what is merely slow is told from what stalls."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import pytest
from distributed.client import FutureCancelledError
from distributed.comm import CommClosedError

from gristmill.pipeline.engine import executor as executors
from gristmill.pipeline.engine.cluster import Where
from gristmill.pipeline.engine.executor import DaskExecutor, SchedulerLost, Sent, check_connection
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.progress.progress import Quiet
from gristmill.pipeline.recipe.recipe import load
from gristmill.pipeline.run import run as runs
from gristmill.pipeline.run.record import stale_files
from gristmill.pipeline.run.run import run
from gristmill.pipeline.store.records import Result, Task
from gristmill.pipeline.store.storage import Store
from tests.pipeline.crawls import RUN
from tests.pipeline.engine.elsewhere import Noting, certificates, elsewhere, slow_recipe
from tests.pipeline.engine.here import work_here
from tests.pipeline.runs import save, tree, written

pytestmark = pytest.mark.run


class Disturbing(Noting):
    """Does one thing after the other, each after a task at which something holds, or when it is told something."""

    def __init__(self, deeds: list[tuple[str | Callable[[], bool], Callable[[], object]]]) -> None:
        super().__init__()
        self.deeds = deeds
        self.tasks = 0

    def finished(self, task: object, result: object, anew: bool) -> None:
        self.tasks += 1
        if self.deeds and callable(holds := self.deeds[0][0]) and holds():
            self.deeds.pop(0)[1]()

    def note(self, message: str) -> None:
        super().note(message)
        if self.deeds and isinstance(words := self.deeds[0][0], str) and words in message:
            self.deeds.pop(0)[1]()


def test_a_connection_that_ends_under_a_question_is_a_lost_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask's client counts itself connected for a moment longer."""
    executor = DaskExecutor(Store(str(tmp_path)), Where(scheduler="tcp://there"), Quiet(), tmp_path / "r.yaml")
    monkeypatch.setattr(DaskExecutor, "client", SimpleNamespace(status="running"))
    monkeypatch.setattr(executor, "reconnect", lambda error: f"another, after: {error}")
    sent: list[tuple[object, list[str]]] = []

    def send(client: object, tasks: list[Any]) -> Iterator[tuple[Any, Any]]:
        sent.append((client, [task.task for task in tasks]))
        yield tasks[0], Result()
        if len(sent) == 1:
            raise CommClosedError("in <TCP (closed) ConnectionPool.ncores>")

    monkeypatch.setattr(executor, "_nonce", "seen")
    monkeypatch.setattr(executor, "_send_and_take", send)
    tasks = [Task(kind="partition", task=name, node="n", key=name, cost=1, out="") for name in "ab"]
    assert [task.task for task, _ in executor.results(tasks)] == ["a", "b"]
    assert sent[1:] == [("another, after: in <TCP (closed) ConnectionPool.ncores>", ["b"])]


@pytest.mark.parametrize(("reason", "status"), [("scheduler-connection-lost", "running"), (None, "closed")])
def test_what_a_client_cancels_as_it_gives_up_is_a_lost_scheduler(reason: str | None, status: str) -> None:
    def result() -> None:
        raise FutureCancelledError("task", reason)

    with pytest.raises(SchedulerLost):
        check_connection(SimpleNamespace(result=result), SimpleNamespace(status=status))  # type: ignore[arg-type]


def test_a_scheduler_that_closes_a_connection_as_it_starts_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = DaskExecutor(Store(str(tmp_path)), Where(scheduler="tcp://there"), Quiet(), tmp_path / "r.yaml")
    answers: list[Exception | str] = [RunFailed("no scheduler answers"), CommClosedError("closed"), "client"]

    def connect(patience: float) -> object:
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return answer

    monkeypatch.setattr(executor, "connect", connect)
    assert executor.connect_in_time(30.0) == "client" and not answers


def test_what_somebody_cancels_is_none() -> None:
    def result() -> None:
        raise FutureCancelledError("task", None)

    check_connection(SimpleNamespace(result=result), SimpleNamespace(status="running"))  # type: ignore[arg-type]


def test_a_run_outlives_its_workers_and_its_scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a minute, for six processes that import Dask: a worker freezes, another joins, all are killed, a new one
    joins; then the scheduler is killed, and one comes back with a worker."""
    asked = load(slow_recipe(tmp_path))
    with monkeypatch.context() as patch:
        work_here(patch)
        run(asked, str(tmp_path / "here"), Where(1), Quiet())
    monkeypatch.setattr(executors, "CLOSELY", 1.0)
    with elsewhere() as machines:
        scheduler, first = machines.scheduler(), machines.worker()

        def used(number: int) -> bool:
            return (tmp_path / "workers" / str(machines.processes[number].pid)).exists()

        def freeze() -> None:
            first.send_signal(signal.SIGSTOP)
            machines.worker()

        def lose_patience() -> None:
            monkeypatch.setattr(executors, "STALLED", 3.0)

        def kill_all() -> None:
            for process in machines.processes[1:]:
                process.kill()
            monkeypatch.setattr(executors, "STALLED", 120.0)  # a busy machine may keep a new worker from its heartbeat

        def kill_scheduler_soon() -> None:  # not before it was heard that somebody is there
            ui.deeds.insert(0, (lambda: used(3), scheduler.kill))

        def come_back() -> None:
            machines.scheduler()
            machines.worker()

        deeds: list[tuple[str | Callable[[], bool], Callable[[], object]]] = [
            (lambda: ui.tasks >= 4, freeze),
            (lambda: used(2), lose_patience),
            ("stalled; nothing was heard of its worker", kill_all),
            ("no worker is left at tcp://", machines.worker),
            ("a worker is there again", kill_scheduler_soon),
            ("is lost", come_back),
        ]
        ui = Disturbing(deeds)
        run(asked, str(tmp_path / "there"), Where(scheduler=machines.address), ui)
    workers = {machines.processes[number].pid for number in (1, 2, 3)}
    assert workers <= {int(path.name) for path in (tmp_path / "workers").iterdir()}, "those that joined were used"
    assert not ui.deeds  # the scheduler was killed before the end, so what was left was the last worker's
    assert any("a worker is there again" in note for note in ui.notes)
    assert any("the scheduler is back after" in note for note in ui.notes)
    expected = tree(tmp_path / "here")
    assert len(expected) > 50 and tree(tmp_path / "there") == expected
    assert not [*(tmp_path / "there").rglob("*.tmp")]


def test_a_worker_that_joins_when_only_the_reports_are_left_sees_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = load(slow_recipe(tmp_path, parts=2, seconds=0.0))
    with elsewhere() as machines:
        machines.scheduler()
        worker = machines.worker()

        def replace_worker(*args: Any) -> list[str]:
            worker.kill()
            machines.worker()
            return stale_files(*args)

        monkeypatch.setattr(runs, "stale_files", replace_worker)
        ui = Noting()
        run(asked, str(tmp_path / "there"), Where(scheduler=machines.address), ui)
    assert len(machines.processes) == 3
    assert not [note for note in ui.notes if "incomplete" in note]
    assert not [*(tmp_path / "there").rglob("*.tmp")]


class FakeClient:
    """Workers as a scheduler describes them."""

    def __init__(self, trail: Path) -> None:
        self.workers: dict[str, dict[str, Any]] = {"tcp://a:1": {"last_seen": 1.0, "host": "a"}}
        self.scheduler = SimpleNamespace(restart_workers=None)
        self.removed: list[str] = []

    def nthreads(self) -> dict[str, int]:
        return dict.fromkeys(self.workers, 1)

    def scheduler_info(self, n_workers: int) -> dict[str, Any]:
        return {"workers": self.workers}

    def processing(self) -> dict[str, tuple[str, ...]]:
        return dict.fromkeys(self.workers, ("key", "of another client"))

    def sync(self, restart: None, workers: list[str], **how: object) -> None:
        self.removed += workers


def test_long_tasks_are_told_from_stalled_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, notes = 1000.0, list[str]()
    monkeypatch.setattr(executors.time, "monotonic", lambda: now)
    client = FakeClient(tmp_path)
    watching = executors.Watch(client, notes.append, "")  # type: ignore[arg-type]
    sent = {"key": Sent("segment, part x", None, tmp_path / "t", now)}  # type: ignore[arg-type]

    def wait(seconds: float, heartbeat: bool = True) -> None:
        nonlocal now
        for _ in range(int(seconds / 20)):
            now += 20
            if heartbeat:
                client.workers["tcp://a:1"]["last_seen"] += 20
            watching.look(sent)

    wait(1600)
    assert not client.removed and not notes, "its worker is heard of"
    wait(140, heartbeat=False)
    assert client.removed[:1] == ["tcp://a:1"] and "stalled; nothing was heard of its worker tcp://a:1" in notes[-1]


def test_that_no_worker_is_left_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, notes = 1000.0, list[str]()
    monkeypatch.setattr(executors.time, "monotonic", lambda: now)
    client = FakeClient(tmp_path)
    watching = executors.Watch(client, notes.append, " at tcp://x:1")  # type: ignore[arg-type]
    for workers in ({}, {}, {"a": {}, "b": {}}, {"a": {}}):
        client.workers, now = workers, now + 2
        watching.look({})
    assert (
        notes
        == [
            "no worker is left at tcp://x:1; waiting for one to join",
            "2 workers are there again",
        ]
        and watching.workers == 1
    )


JUDGE = """
import os
from pathlib import Path
import pyarrow as pa
from gristmill.stages.stage import Annotate

class Judge(Annotate):
    \"\"\"Wants a GPU.\"\"\"
    adds = ("score",)
    needs = ("text",)
    costly = True

    @property
    def gpu(self):
        return True

    def annotate(self, batch):
        Path({folder!r}, str(os.getpid())).touch()
        return {{"score": pa.array([1.0] * len(batch))}}
"""


def test_over_tls_a_judge_goes_to_the_worker_that_says_it_has_a_gpu(tmp_path: Path) -> None:
    """Ten seconds, for four processes. The command line as a user has it: certificates are named to Dask, in its own
    variables; what the stages before the judge made waits on disk and not in memory."""
    recipe = slow_recipe(tmp_path, seconds=0.5)
    (tmp_path / "judges").mkdir()
    save(tmp_path / "judge.py", JUDGE.format(folder=str(tmp_path / "judges")))
    save(recipe, recipe.read_text().replace("exact_dedup", "'judge.py:Judge'"))
    with elsewhere("tls", **certificates(tmp_path)) as machines:
        machines.scheduler()
        on_cpu = machines.worker()
        on_gpu = machines.worker("--resources", "GPU=1")
        command = [*RUN, "run", str(recipe), "--out", str(tmp_path / "out"), "--scheduler", machines.address]
        done = subprocess.run(command, env=machines.environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert len(written(tmp_path / "out")) == 24
    assert [int(path.name) for path in (tmp_path / "judges").iterdir()] == [on_gpu.pid]
    assert on_cpu.pid in {int(path.name) for path in (tmp_path / "workers").iterdir()}


def test_certificates_that_are_missing_are_named(tmp_path: Path) -> None:
    where = Where(scheduler="tls://x:1")
    with pytest.raises(
        RecipeError, match=r"--scheduler tls://x:1: TLS needs certificates; DASK_DISTRIBUTED__COMM__TLS__CA_FILE"
    ):
        where.check()
    made = {"ca-file": save(tmp_path / "ca.pem", ""), "client.cert": tmp_path / "gone.pem"}
    with (
        dask.config.set({f"distributed.comm.tls.{name}": str(path) for name, path in made.items()}),
        pytest.raises(RecipeError, match=r"CLIENT__CERT: no such file: .*gone\.pem"),
    ):
        where.check()
