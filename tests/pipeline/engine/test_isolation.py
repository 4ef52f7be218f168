"""A document that kills or hangs whatever works on it is named at once, found without going through the whole part
again, and quarantined alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gristmill.pipeline.engine.cluster import Where
from gristmill.pipeline.engine.executor import QUEUED_TRIES, TRIES, DaskExecutor, Group, InlineExecutor
from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.progress.progress import Quiet
from gristmill.pipeline.store.records import Result, Task
from gristmill.pipeline.store.storage import Store
from gristmill.pipeline.tasks.isolation import Breadcrumb, CrashPolicy, LastBreadcrumb, SearchEnded, run_isolated
from gristmill.pipeline.tasks.map_task import run_map_task
from tests.pipeline.engine.here import work_here
from tests.pipeline.runs import go, lines, save, written

pytestmark = pytest.mark.run

DEADLY = """
import os, time
from pathlib import Path
from typing import ClassVar
from gristmill.stages.stage import Annotate, Applied, Rewrite, Rule, Sink, Verdict

def does(texts):
    with Path({log!r}).open("a") as log:
        log.write(f"{{os.getpid()}} {{texts[0]}}, {{len(texts)}}\\n")
    culprits = [text for text in texts if "CULPRIT" in text]
    {deed}

class Deadly(Rewrite):
    patience: ClassVar[float] = 1.0
    def rewrite(self, batch):
        does(batch["text"].to_pylist())
        return Applied(batch, Verdict.keep(len(batch)))

class DeadlyRule(Rule):
    patience: ClassVar[float] = 1.0
    needs: ClassVar = ("text", "words")
    def verdict(self, signals):
        does(signals.column("text").to_pylist())
        return Verdict.keep(len(signals)).drop(signals.words > 3, "long")

class DeadlySink(Sink):
    def table(self, batch):
        does(batch["text"].to_pylist())
        return batch.select(["text"])
"""
EXIT = "if culprits: os._exit(7)"
HANG = "if culprits: time.sleep(600)"
TOGETHER = "if len(texts) > 1 and culprits: os._exit(7)"


def texts(culprits: set[int]) -> list[str]:
    return [f"text {n:02}{' CULPRIT' if n in culprits else ''} {'long ' * 3 * (n == 3)}" for n in range(40)]


def carefully(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    deed: str,
    culprits: set[int],
    stage: str = "Deadly",
    location: tuple[int, str] | None = None,
) -> tuple[list[str], list[list[str]]]:
    """A run whose tasks are done isolated from the start, as after a worker died at a place: what it told, and what
    each child was shown."""
    notes: list[str] = []

    class Isolating(InlineExecutor):
        def run_task(self, task: Task) -> Result:
            if task.kind != "partition":
                return super().run_task(task)
            return run_isolated(run_map_task, task, None, location, notes.append)

    work_here(monkeypatch, Isolating)
    lines(folder / "docs.jsonl", texts(culprits))
    save(folder / "deadly.py", DEADLY.format(log=str(folder / "log"), deed=deed))
    text = "name: r\nparts: {batch_bytes: 600}\nsources: {docs: {jsonl: {path: docs.jsonl}}}\n"
    try:
        go(save(folder / "r.yaml", f"{text}stages: ['deadly.py:{stage}', write]\n"), folder / "out")
    finally:
        children: dict[str, list[str]] = {}
        for line in (folder / "log").read_text().splitlines():
            pid, _, shown = line.partition(" ")
            children.setdefault(pid, []).append(shown)
    return notes, [*children.values()]


def quarantined(folder: Path) -> list[str]:
    [path] = folder.glob("out/logs/run.log")
    return path.read_text().splitlines()


@pytest.mark.parametrize(("deed", "how", "searches"), [(EXIT, "ended with code 7", 2), (HANG, "took too long", 1)])
def test_the_document_is_searched_where_the_worker_died_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deed: str, how: str, searches: int
) -> None:
    notes, children = carefully(tmp_path, monkeypatch, deed, {23}, location=(1, "deadly"))
    search, *again, whole = children
    [first, *_] = search
    assert search[-1] == "text 23 CULPRIT , 1" and all(shown.endswith(", 1") for shown in search), "row by row"
    assert int(first[5:7]) > 10 and len(search) == 23 - int(first[5:7]) + 1, "of that batch alone, up to the culprit"
    assert again == [["text 23 CULPRIT , 1"]] * (searches - 1)
    assert sum(int(shown.rpartition(" ")[2]) for shown in whole) == 39 and not any(
        "CULPRIT" in shown for shown in whole
    )
    [line] = quarantined(tmp_path)
    assert line.startswith("deadly: document ") and line.endswith(f"killed the worker: {how}")
    uid = line.split()[2]
    assert (
        all(note.startswith("deadly: ") and f"document {uid} (None)" in note for note in notes)
        and len(notes) == searches
    )
    assert sorted(text for _, text in written(tmp_path / "out")) == [
        text for n, text in enumerate(texts({23})) if n != 23
    ]


def test_several_documents_that_kill_are_found_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    carefully(tmp_path, monkeypatch, EXIT, {0, 1, 23, 39})
    assert [line.rpartition(": ")[2] for line in quarantined(tmp_path)] == ["ended with code 7"] * 4
    assert sorted(text for _, text in written(tmp_path / "out")) == [
        text for text in texts({0, 1, 23, 39}) if "CULPRIT" not in text
    ]


def test_a_batch_that_is_too_much_is_done_document_by_document_and_none_is_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    carefully(tmp_path, monkeypatch, TOGETHER, {23})
    assert len(written(tmp_path / "out")) == 40 and not list(tmp_path.glob("out/logs/run.log"))


def test_a_document_that_kills_a_rule_is_found_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    carefully(tmp_path, monkeypatch, EXIT, {23, 24}, stage="DeadlyRule", location=(1, "deadly_rule"))
    assert [line.rpartition(": ")[2] for line in quarantined(tmp_path)] == ["ended with code 7"] * 2
    assert len(written(tmp_path / "out")) == 37, "two are quarantined, and one is long"
    assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "done", (
        "no report asks the rule about them"
    )


def test_a_sink_that_kills_blames_no_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        RunFailed, match="kills every process that works on it; the last one ended with code 7 in deadly_sink, over"
    ):
        carefully(tmp_path, monkeypatch, EXIT, {23}, stage="DeadlySink")
    assert not list(tmp_path.glob("out/stages/*/rejects/*"))


def batch(rows: int) -> pa.RecordBatch:
    return pa.record_batch(
        {"uid": pa.array(range(rows), pa.uint64()), "url": pa.array(["https://x.example/\n"] * rows)}
    )


def test_a_breadcrumb_says_what_was_at_hand(tmp_path: Path) -> None:
    assert LastBreadcrumb.read(tmp_path / "t") is None
    breadcrumb = Breadcrumb(tmp_path / "t")
    assert LastBreadcrumb.read(tmp_path / "t") is None
    breadcrumb.begin("abc")
    assert LastBreadcrumb.read(tmp_path / "t") == LastBreadcrumb("abc")
    breadcrumb.about_to((3, "mine"), batch(9), None)
    last = LastBreadcrumb.read(tmp_path / "t")
    assert last == LastBreadcrumb("abc", (3, "mine"), None, 9) and last.in_words() == "in mine, over 9 documents"
    breadcrumb.about_to((3, "mine"), batch(1), 8)
    last = LastBreadcrumb.read(tmp_path / "t")
    assert (
        last is not None
        and last.row == 8
        and last.in_words() == "in mine, over document 0000000000000000 (https://x.example/\n)"
    )
    breadcrumb.begin("next")
    assert LastBreadcrumb.read(tmp_path / "t") == LastBreadcrumb("next")
    breadcrumb.close()
    assert not (tmp_path / "t").exists()


def test_a_batch_is_cut_around_what_is_left_out() -> None:
    policy = CrashPolicy(poison={(0, "a", 2): "x", (0, "a", 4): "y", (1, "a", 0): "z", (0, "b", 1): "w"})

    def pieces(
        crash: CrashPolicy, location: tuple[int, str], rows: int
    ) -> list[tuple[list[int], int | None, str | None]]:
        return [(piece["uid"].to_pylist(), row, how) for piece, row, how in crash.pieces(location, batch(rows))]

    assert pieces(policy, (0, "a"), 5) == [([0, 1], None, None), ([2], 2, "x"), ([3], None, None), ([4], 4, "y")]
    assert pieces(policy, (1, "a"), 3) == [([0], 0, "z"), ([1, 2], None, None)]
    assert pieces(policy, (1, "a"), 1) == [([0], 0, "z")]
    assert pieces(policy, (2, "a"), 2) == [([0, 1], None, None)] and pieces(policy, (2, "a"), 0) == [([], None, None)]
    with pytest.raises(SearchEnded):
        pieces(CrashPolicy(search=(0, "a")), (0, "a"), 2)


@pytest.fixture
def executor(tmp_path: Path) -> DaskExecutor:
    return DaskExecutor(Store(str(tmp_path)), Where(1), Quiet(), tmp_path)


def task(name: str) -> Task:
    return Task(kind="partition", task=name, node="docs", key=f"part-{name}", cost=1, out="")


def left_by(path: Path, say: Callable[[Breadcrumb], None]) -> Path:
    say(breadcrumb := Breadcrumb(path))
    return breadcrumb.path


def test_of_a_group_whose_worker_died_only_what_was_at_hand_is_isolated(
    executor: DaskExecutor, tmp_path: Path, capsys: Any
) -> None:
    group = Group([task("a"), task("b"), task("c")])
    breadcrumb = left_by(
        tmp_path / "t", lambda breadcrumb: (breadcrumb.begin("b"), breadcrumb.about_to((4, "mine"), batch(9), None))
    )  # type: ignore[func-returns-value]
    assert executor.after_a_death(group, breadcrumb) == [
        Group([task("b")], isolated=True, location=(4, "mine")),
        Group([task("a")]),
        Group([task("c")]),
    ]
    assert (
        capsys.readouterr().err
        == "a worker died in mine, over 9 documents of docs, part-b; looking for the one to blame\n"
    )
    assert not breadcrumb.exists()


def test_tasks_that_were_not_begun_are_sent_again_and_not_for_ever(
    executor: DaskExecutor, tmp_path: Path, capsys: Any
) -> None:
    group = Group([task("a"), task("b")])
    for _ in range(QUEUED_TRIES - 1):
        [group] = executor.after_a_death(group, tmp_path / "none")
        assert group.tasks == [task("a"), task("b")] and not group.isolated
    with pytest.raises(RunFailed, match="docs, part-a and 1 more lost its worker 100 times before anything was begun"):
        executor.after_a_death(group, tmp_path / "none")
    assert capsys.readouterr().err == ""


def test_a_worker_that_hung_leaves_where(executor: DaskExecutor, tmp_path: Path, capsys: Any) -> None:
    breadcrumb = left_by(
        tmp_path / "t", lambda breadcrumb: (breadcrumb.begin("a"), breadcrumb.about_to((4, "mine"), batch(1), None))
    )  # type: ignore[func-returns-value]
    with breadcrumb.open("ab") as file:
        file.write(b"Timeout (0:00:03)!\n  File \x1b[2J mine.py, line 7\n")
    executor.after_a_death(Group([task("a")]), breadcrumb)
    assert (
        "took longer than its patience" in (said := capsys.readouterr().err)
        and "document 0000000000000000 (https://x.example/" in said
    )
    assert (tmp_path / "logs" / "trace.txt").read_text() == "Timeout (0:00:03)!\n  File ␛[2J mine.py, line 7\n"


def test_on_an_object_store_there_is_no_breadcrumb_and_all_of_a_group_is_isolated(tmp_path: Path, capsys: Any) -> None:
    executor = DaskExecutor(Store("memory://careful/out"), Where(1), Quiet(), tmp_path)
    assert executor.breadcrumb("x") is None
    groups = executor.after_a_death(Group([task("a"), task("b")]), None)
    assert groups == [Group([task("a")], isolated=True), Group([task("b")], isolated=True)]
    assert (
        capsys.readouterr().err == "a worker died over docs, part-a and 1 more; trying again in an isolated process\n"
    )


def test_what_is_isolated_is_not_sent_for_ever(executor: DaskExecutor, tmp_path: Path) -> None:
    group = Group([task("a")], isolated=True, tries=TRIES)
    [waiting] = executor.after_a_death(group, tmp_path / "none")
    assert waiting.isolated and waiting.tries == TRIES, "another killed the worker in whose queue it stood"
    with pytest.raises(RunFailed, match="docs, part-a killed its worker 5 times"):
        executor.after_a_death(waiting, left_by(tmp_path / "t", lambda breadcrumb: breadcrumb.begin("a")))


def test_what_is_isolated_outlives_a_storm_of_deaths(executor: DaskExecutor, tmp_path: Path) -> None:
    """Where most deaths are of others, five of its own are no sign."""
    for number in range(40):
        executor.after_a_death(Group([task(f"other{number}")]), None)
    group = Group([task("a")], isolated=True, tries=TRIES)
    died = lambda: left_by(tmp_path / "t", lambda breadcrumb: breadcrumb.begin("a"))  # noqa: E731
    for _ in range(TRIES, 30):
        [group] = executor.after_a_death(group, died())
    with pytest.raises(RunFailed, match=r"docs, part-a killed its worker \d\d times"):
        while True:
            [group] = executor.after_a_death(group, died())
