"""What a run shows while it works: a live view on a terminal, a plain line a minute elsewhere, one JSON line an event
with --json. And the table at its end.

The live view has bars of map nodes and global stages, speed, drops by reason, memory and time left. Names and reasons
may hold anything; what would steer a terminal is shown as an escape.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table as RichTable
from rich.text import Text

from gristmill.pipeline.formatting import as_bytes, as_number, as_seconds, one_line, plain
from gristmill.pipeline.progress.progress import FOR_THE_REPORT, NodeProgress, Progress, Quiet, known_seconds_left
from gristmill.pipeline.store.records import Result, Task
from gristmill.pipeline.store.run_records import RunRecord
from gristmill.pipeline.tables import TerminalTable

EVERY = 60.0  # seconds between two lines of a log
REFRESH = 2  # times a second, on a terminal
LONGEST_NAME, LONGEST_BAR = 24, 40
REASONS = 5
AROUND = 12  # lines beside those of nodes


# --- by where the output goes -----------------------------------------------------------------------------------------


def ui_for(json_events: bool, console: Console) -> Quiet:
    """The one that suits where the output goes."""
    if json_events:
        return Events()
    return LiveView(console) if console.is_terminal and not console.is_dumb_terminal else Lines()


class Lines(Quiet):
    """For a log: a line a minute on standard error, while tasks finish; a run that takes less is quiet."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self.last_line = now()

    def finished(self, task: Task, result: Result, anew: bool) -> None:
        if not anew or task.kind in FOR_THE_REPORT or self.facts is None:
            return
        if self.now() - self.last_line >= EVERY:
            self.last_line = self.now()
            self.note(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {log_line(self.facts(), task)}")


class Events(Quiet):
    """A JSON line for each task and note, on standard error; standard output is for the result."""

    def finished(self, task: Task, result: Result, anew: bool) -> None:
        facts = {"node": task.node, "kind": task.kind, "key": task.key, "anew": anew, "seconds": result.seconds}
        print(json.dumps({"event": "finished", **facts}), file=sys.stderr, flush=True)

    def note(self, message: str) -> None:
        print(json.dumps({"event": "note", "message": message}), file=sys.stderr, flush=True)


class LiveView(Quiet):
    """On a terminal, twice a second: the `view` of the run."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live = Live(get_renderable=self.view, console=console, refresh_per_second=REFRESH, transient=True)

    def __enter__(self) -> Self:
        self.live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.__exit__(None, None, None)

    def view(self) -> RenderableType:
        return Text("starting") if self.facts is None else view(self.facts(), time.time(), self.console.height)

    def stopping(self) -> None:
        self.note("stopping the workers")

    def note(self, message: str) -> None:
        self.console.print(plain(message), markup=False, style="yellow")


# --- a line of a log --------------------------------------------------------------------------------------------------


def log_line(facts: Progress, task: Task) -> str:
    """`web: 34 of 80 parts; 21,000 documents read, 500 documents/s, 2.0 MB/s; about 5 min left`"""
    [node] = [node for node in facts.nodes if node.name == task.node]
    if node.kind == "global":
        doing = f"{task.kind}, round {node.round}"
    else:
        doing = f"{node.done:,} of {node.parts or 0:,} parts"
    seconds = max(1e-6, facts.updated - facts.started)
    speed = f"{facts.documents / seconds:,.0f} documents/s, {facts.bytes / seconds / 1e6:,.1f} MB/s"
    left = time_left(facts)
    return f"{node.name}: {doing}; {facts.read:,} documents read, {speed}" + (f"; {left}" if left else "")


def time_left(facts: Progress) -> str:
    """`about 5 min left`, and of how many nodes where others are not known; empty while nothing is."""
    seconds, known, unfinished = known_seconds_left(facts.nodes)
    if not known:
        return ""
    of_some = "" if known == unfinished else f" for {known} of {unfinished} nodes"
    return f"{in_words(seconds)} left{of_some}"


def in_words(seconds: float) -> str:
    """Time left, as fine as it is known."""
    if seconds < 5:
        return "a few seconds"
    if seconds < 100:
        return f"about {5 * round(seconds / 5)} s"
    if seconds < 600:
        return f"about {seconds / 60:.1f} min"
    minutes = round(seconds / 60)
    return f"about {minutes} min" if minutes < 100 else f"about {minutes // 60} h {minutes % 60:02d} min"


# --- the live view ----------------------------------------------------------------------------------------------------


def view(facts: Progress, now: float, height: int) -> Group:
    """All lines, `now` being the time of day in seconds; of more nodes than fit, those around the ones at work."""
    nodes, before, after = around(facts.nodes, max(3, height - AROUND))
    lines: list[RenderableType] = [headline(facts, now)]
    lines += [line(f"{before} done before", "dim")] if before else []
    lines += [bars(nodes, now)]
    lines += [line(f"{after} to come", "dim")] if after else []
    lines += [line(speed(facts))] if facts.workers or facts.read else []
    lines += [line(workers(facts)), *drops(facts)]
    return Group(*lines)


def line(text: str, style: str = "") -> Text:
    return Text(plain(text), style, no_wrap=True, overflow="ellipsis")


def headline(facts: Progress, now: float) -> Text:
    left = time_left(facts) if facts.workers or facts.documents else ""  # kernels may have to be compiled first
    name = line(facts.name, "bold")
    name.truncate(LONGEST_NAME, overflow="ellipsis")
    return name.append(f"  {elapsed_in_words(now - facts.started)}" + (f", {left}" if left else ""), "not bold")


def elapsed_in_words(seconds: float) -> str:
    """In whole seconds, for tenths would only flicker."""
    return f"{max(0, round(seconds))} s" if seconds < 99.5 else as_seconds(seconds)


def bars(nodes: Sequence[NodeProgress], now: float) -> RichTable:
    """A line for each map node and global stage."""
    grid = RichTable.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, overflow="ellipsis", max_width=LONGEST_NAME)
    grid.add_column(max_width=LONGEST_BAR)
    for _ in range(2):
        grid.add_column(no_wrap=True, overflow="ellipsis", justify="right", style="dim")
    for node in nodes:
        style = {"running": "bold cyan", "done": "green"}.get(node.state, "dim")
        bar = (
            "" if node.state == "waiting" else ProgressBar(1.0, node.share, complete_style=style, finished_style=style)
        )
        grid.add_row(line(node.name, "" if node.state == "done" else style), bar, doing_of(node), time_of(node, now))
    return grid


def around(nodes: Sequence[NodeProgress], most: int) -> tuple[Sequence[NodeProgress], int, int]:
    """As many nodes as fit, with those at work among them, and how many stand before and after."""
    at_work = next((place for place, node in enumerate(nodes) if node.state != "done"), len(nodes))
    first = max(0, min(at_work - most // 3, len(nodes) - most))
    return nodes[first : first + most], first, max(0, len(nodes) - first - most)


def doing_of(node: NodeProgress) -> str:
    """`34 of 80 parts`, or the round of a global stage and its tasks."""
    if node.state == "waiting":
        return ""
    if node.state == "done":
        return f"{as_number(node.parts or 0)} part{'s' * (node.parts != 1)}"
    if node.kind == "global":
        tasks = f"{as_number(node.round_done)} of {as_number(node.round_tasks)}"
        return f"round {node.round}, {tasks}" if node.round_tasks else "starting"
    return f"{as_number(node.done)} of {as_number(node.parts or 0)} parts"


def time_of(node: NodeProgress, now: float) -> str:
    return "" if node.began is None else elapsed_in_words((node.ended or now) - node.began)


def speed(facts: Progress) -> str:
    recently, text = facts.recently, f"{as_number(facts.read)} documents read"
    if recently.seconds >= 1 and recently.documents:
        documents, size = recently.documents / recently.seconds, recently.bytes / recently.seconds
        text += f", now {as_number(documents)}/s, {as_bytes(size)}/s"
    return text


def workers(facts: Progress) -> str:
    if not facts.workers:
        return "starting workers; on a new machine kernels are compiled first, once"
    memory = facts.memory
    number = memory.workers if memory else facts.workers
    text = f"{as_number(number)} worker{'s' if number != 1 else ''}"
    if memory and memory.largest:
        of = f" of {as_bytes(memory.limit)}" if memory.limit else ""
        text += f", memory {as_bytes(memory.largest)}{of}" + (" (the largest)" if number > 1 else "")
    for count, what in ((facts.deaths, "died"), (len(facts.alarms), "alarms")):
        text += f", {as_number(count)} {what}" if count else ""
    return text + (f", {facts.dashboard}" if facts.dashboard else "")


def drops(facts: Progress) -> list[Text]:
    """What was dropped so far, the most frequent reasons first."""
    counts: Counter[str] = Counter()
    for stage, by_source in facts.stages.items():
        for count in by_source.values():
            lost = {**count.dropped, "quarantined": count.quarantined}
            counts.update({f"{stage}: {reason}": number for reason, number in lost.items() if number})
    rows = [(as_number(number), reason) for reason, number in counts.most_common(REASONS)]
    more = len(counts) - len(rows)
    others = f", the rest for {more} other reason{'s' * (more > 1)}" if more else ""
    wide = max((len(number) for number, _ in rows), default=0)
    reasons = [line(f"{number.rjust(wide)}  {reason}", "dim") for number, reason in rows]
    return [line(f"{as_number(counts.total())} dropped{others}"), *reasons] if rows else []


# --- at the end -------------------------------------------------------------------------------------------------------


def final_table(record: RunRecord) -> TerminalTable:
    """The counts of a run, stage by stage."""
    failed = any(entry.count.quarantined for entry in record.stages)
    heads = ["stage", "in", "kept", "dropped", *(["quarantined"] if failed else []), "worker seconds", "mostly because"]
    title = f"{record.name}: {record.status} in {record.seconds or 0.0:,.1f} s"
    rows = []
    for entry in record.stages:
        count = entry.count
        most = sorted(count.dropped.items(), key=lambda x: -x[1])[:3]
        reasons = [f"{one_line(reason)} {n:,}" for reason, n in most]
        numbers = [count.docs_in, count.kept, count.lost]
        quarantined = [count.quarantined] if failed else []
        rows.append((entry.name, *numbers, *quarantined, f"{count.seconds:,.1f}", reasons))
    return TerminalTable.of(title, heads, rows, words={0, len(heads) - 1}, spared=[len(heads) - 2])
