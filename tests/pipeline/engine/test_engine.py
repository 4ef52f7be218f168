"""What the engine takes from its executor."""

from __future__ import annotations

from pathlib import Path

import pytest

from gristmill.pipeline.engine.cluster import Where
from gristmill.pipeline.engine.engine import Engine
from gristmill.pipeline.engine.executor import InlineExecutor, pair_results
from gristmill.pipeline.engine.worker import note
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.progress.progress import Quiet
from gristmill.pipeline.store.journal import Journal
from gristmill.pipeline.store.records import Failure, Result, Task
from gristmill.pipeline.store.storage import Store
from tests.pipeline.runs import go, save, shared_texts, tree

pytestmark = pytest.mark.run


def task(name: str, kind: str = "partition", node: str = "docs") -> Task:
    return Task(kind=kind, task=name, node=node, key=name, cost=1, out="")


GROUP = [task(str(number), node="segment") for number in range(3)]
DONE = Result()
FAILED = Failure(message="why")


def test_every_task_has_its_result() -> None:
    assert [task.task for task, _ in pair_results(GROUP, [DONE] * 3)] == ["0", "1", "2"]


def test_after_a_failure_the_rest_of_a_group_has_none() -> None:
    pairs = pair_results(GROUP, [DONE, FAILED])
    assert [task.task for task, _ in pairs] == ["0", "1"] and pairs[-1][1] == FAILED


@pytest.mark.parametrize("results", [[], [DONE], [FAILED, DONE], [DONE] * 4, [DONE, DONE, DONE, FAILED]])
def test_an_answer_of_another_length_is_an_error(results: list[Result]) -> None:
    with pytest.raises(
        RunFailed, match=f"segment: a worker was given 3 tasks and answered with {len(results)} results"
    ):
        pair_results(GROUP, results)


def test_a_note_is_dropped_where_no_worker_can_pass_it_on() -> None:
    note("a document took 40 s")


class Scripted(InlineExecutor):
    """Answers as it is told to."""

    def __init__(self, store: Store, answers: dict[str, Result]) -> None:
        super().__init__(store)
        self.answers = answers
        self.ran: list[str] = []

    def run_task(self, task: Task) -> Result:
        self.ran.append(task.task)
        return self.answers.get(task.task, DONE)


def engine_with(folder: Path, answers: dict[str, Result]) -> tuple[Engine, Scripted]:
    store = Store(str(folder))
    executor = Scripted(store, answers)
    return Engine(Journal(store), executor, Quiet()), executor


def test_a_task_for_the_report_may_fail(tmp_path: Path) -> None:
    engine, executor = engine_with(tmp_path, {"broken": FAILED})
    assert list(engine.run([task("a")])) == ["a"]
    assert engine.report([task("broken", "look"), task("look", "look")]) == [FAILED, DONE]
    assert engine.report([task("broken", "look")]) == [FAILED]
    assert executor.ran == ["a", "broken", "look"], "it is not tried twice in a run"
    assert [name for name in ("a", "broken", "look") if name in engine.journal.done] == ["a"]
    with pytest.raises(RunFailed, match="broken"):
        engine_with(tmp_path / "other", {"b": Failure(message="broken")})[0].run([task("b")])


def test_a_run_in_this_process_makes_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared_texts(tmp_path / "in")
    recipe = save(tmp_path / "r.yaml", "name: r\nsources: {a: {jsonl: {path: in}}}\nstages: [exact_dedup, write]\n")
    go(recipe, tmp_path / "workers", workers=2)
    monkeypatch.setattr("gristmill.pipeline.engine.executor.connected", None)
    summary, _ = go(recipe, tmp_path / "inline", workers=0)
    assert summary.worked > 2 and summary.record.done
    expected = tree(tmp_path / "workers")
    assert len(expected) > 3 and tree(tmp_path / "inline") == expected


def test_without_workers_stages_are_prepared_once_and_only_for_work(tmp_path: Path) -> None:
    prepared: list[str] = []
    executor = Scripted(Store(str(tmp_path)), {})
    executor.prepare = lambda: prepared.append("now")
    assert list(executor.results([])) == [] and prepared == []
    for name in "ab":
        assert [done.task for done, _ in executor.results([task(name)])] == [name]
    assert prepared == ["now"]


@pytest.mark.parametrize("where", [Where(0, scheduler="tcp://x:1"), Where(-1)])
def test_no_workers_and_workers_elsewhere_is_a_mistake(where: Where) -> None:
    with pytest.raises(RecipeError, match="in this process"):
        where.check()
