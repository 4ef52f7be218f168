"""The live view of a run: it fits into any terminal, and shows crawled text as nothing but text."""

from __future__ import annotations

import dataclasses
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from rich.cells import cell_len
from rich.console import Console

from gristmill.pipeline.engine.cluster import Where
from gristmill.pipeline.processes import this_process
from gristmill.pipeline.progress import terminal
from gristmill.pipeline.progress.progress import NodeProgress, Progress, Quiet, Speed, WorkerMemory
from gristmill.pipeline.progress.terminal import Lines, LiveView, ui_for
from gristmill.pipeline.recipe import recipe as recipes
from gristmill.pipeline.run.run import run
from gristmill.pipeline.store.counts import DocumentCounts
from gristmill.pipeline.store.records import Result, Task
from tests.pipeline.engine.here import work_here
from tests.pipeline.runs import save, shared_texts

GB = 1_000_000_000


def node(name: str, state: Any, **more: Any) -> NodeProgress:
    node = NodeProgress(name, "map", None, (name,), state, done=34, share=1.0 if state == "done" else 0.5)
    if state != "waiting":
        node = replace(node, parts=80, began=10.0, ended=30.0 if state == "done" else None)
    return replace(node, **more)


def facts(nodes: list[NodeProgress], dropped: dict[str, int] | None = None, name: str = "demo") -> Progress:
    counts = DocumentCounts(kept=9000, dropped=dropped or {}, quarantined=2)
    return Progress(
        name=name, state="running", message=None, process=this_process(), started=0.0, updated=60.0, workers=2,
        dashboard=None, notes=(), documents=9000, bytes=GB, tasks={}, deaths=0, peak_memory={},
        memory=WorkerMemory(2, GB // 2, 4 * GB), recently=Speed(3000, 6_000_000, 3.0), alarms=(),
        nodes=tuple(nodes), stages={"crawl": {"crawl": counts}}, seconds_left=None,
    )  # fmt: skip


USUAL = [
    node("crawl", "done", source="crawl"),
    node("language", "running", seconds_left=130.0),
    node("minhash_dedup", "running", kind="global", round=4, round_tasks=64, round_done=20),
    node("pack", "waiting", kind="global"),
]


def drawn(facts: Progress, width: int, height: int = 40) -> list[str]:
    """The view as a terminal of that size shows it."""
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    with console.capture() as shown:
        console.print(terminal.view(facts, 60.0, height))
    return [line.rstrip() for line in shown.get().splitlines()]


def test_it_shows_what_a_person_wants_to_know() -> None:
    lines = drawn(facts(USUAL, {"not_a_page": 1200, "http_status": 7}), 100)
    assert lines[0] == "demo  60 s, about 2.2 min left for 1 of 3 nodes"
    assert [line.split()[0] for line in lines[1:5]] == ["crawl", "language", "minhash_dedup", "pack"]
    assert "34 of 80 parts" in lines[2] and "round 4, 20 of 64" in lines[3] and "80 parts" in lines[1]
    bars = [line.count("━") for line in lines[1:5]]
    assert bars[0] > bars[1] > 0 == bars[3] and len({line.find("━") for line in lines[1:4]}) == 1
    assert lines[5] == "9,000 documents read, now 1,000/s, 2.0 MB/s"
    assert lines[6] == "2 workers, memory 500.0 MB of 4.0 GB (the largest)"
    assert lines[7:] == [
        "1,209 dropped",
        "1,200  crawl: not_a_page",
        "    7  crawl: http_status",
        "    2  crawl: quarantined",
    ]


def test_no_time_is_promised_while_workers_start() -> None:
    known = [node("crawl", "running", source="crawl", seconds_left=5.0)]
    starting = dataclasses.replace(facts(known), workers=0, memory=None, documents=0, stages={})
    lines = drawn(starting, 80)
    assert lines[0] == "demo  60 s" and "left" not in "".join(lines)
    assert lines[-1] == "starting workers; on a new machine kernels are compiled first, once"
    assert drawn(facts(known), 80)[0] == "demo  60 s, about 5 s left"


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("height", [24, 50])
def test_it_fits_into_any_terminal(width: int, height: int) -> None:
    many = [node(f"a_stage_of_a_long_name_{n}", "done" if n < 20 else "waiting") for n in range(40)]
    many[20] = node("at_work", "running")
    reasons = {f"a_reason_of_many_words_{n}" * 3: n + 1 for n in range(30)}
    for nodes in (USUAL, many):
        lines = drawn(facts(nodes, reasons), width, height)
        assert max(map(cell_len, lines)) <= width and 1 < len(lines) < height
    assert any(line.startswith("at_work") for line in lines)
    assert height != 24 or any(line.endswith("to come") for line in lines)


@given(st.text(max_size=80), st.text(max_size=80), st.integers(1, 200), st.integers(1, 60))
def test_names_and_reasons_may_hold_anything(name: str, reason: str, width: int, height: int) -> None:
    hostile = f"\x1b[2J\x9b31m{reason}\x07\r\n"
    shown = drawn(facts([node(name + hostile, "running")], {hostile: 3}, name=hostile), width, height)
    assert all(cell_len(line) <= width for line in shown)
    assert not set("".join(shown)) & {"\x1b", "\x9b", "\x07", "\r"}


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (2, "a few seconds"),
        (42, "about 40 s"),
        (130, "about 2.2 min"),
        (1500, "about 25 min"),
        (9000, "about 2 h 30 min"),
    ],
)
def test_time_left_is_said_as_finely_as_it_is_known(seconds: float, words: str) -> None:
    assert terminal.in_words(seconds) == words


def test_a_terminal_gets_the_view_and_all_else_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    assert isinstance(ui_for(False, Console(file=io.StringIO(), force_terminal=True)), LiveView)
    assert isinstance(ui_for(False, Console(file=io.StringIO())), Lines)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(ui_for(False, Console(file=io.StringIO(), force_terminal=True)), Lines)


def test_no_color_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    said = {}
    for wanted in ("", "1"):
        monkeypatch.setenv("NO_COLOR", wanted)
        screen = io.StringIO()
        console = Console(file=screen, force_terminal=True, width=80)
        view = LiveView(console)
        view.follows(lambda: facts(USUAL))
        console.print(view.view())
        said[wanted] = screen.getvalue()
    assert "\x1b[32m" in said[""] and "\x1b[32m" not in said["1"] and "crawl" in said["1"]


class Looking(Quiet):
    """Draws the view at each task that ends."""

    def __init__(self) -> None:
        self.views: list[str] = []
        self.lefts: list[float | None] = []
        self.facts: Any = None

    def follows(self, facts: Any) -> None:
        self.facts = facts

    def finished(self, task: Task, result: Result, anew: bool) -> None:
        found = self.facts()
        self.lefts.append(found.seconds_left)
        self.views.append("\n".join(drawn(found, 80)))


def test_a_real_run_can_be_looked_at_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work_here(monkeypatch)
    shared_texts(tmp_path / "in")
    text = (
        "name: a\nparts: {files: 1}\nsources: {a: {jsonl: {path: in}}}\nstages: [exact_dedup, minhash_dedup, write]\n"
    )
    looking = Looking()
    run(recipes.load(save(tmp_path / "a.yaml", text)), str(tmp_path / "out"), Where(1), looking)
    assert len(looking.views) > 30 and looking.lefts[0] is None, "global stages that were never measured"
    assert all(left is None or left >= 0 for left in looking.lefts)
    assert "exact_dedup: exact_duplicate" in looking.views[-1] and "48 documents read" in looking.views[-1]
    assert all("minhash_dedup" in view and max(map(len, view.split("\n"))) <= 80 for view in looking.views)
    assert any("round 2," in view for view in looking.views)
    assert any("left for 1 of 4 nodes" in view for view in looking.views)
