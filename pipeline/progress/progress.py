"""What a run shows while it goes: a live table on a terminal, a plain line a minute elsewhere, one JSON line an event
with --json."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from gristmill.pipeline.formatting import plain
from gristmill.pipeline.json_types import JSON
from gristmill.pipeline.plan.plan import Node
from gristmill.pipeline.progress.ui import UI
from gristmill.pipeline.screen import escape
from gristmill.pipeline.store.records import CountRecord, Result, Task, counts_by_source, counts_by_stage
from gristmill.pipeline.store.run_records import RunRecord

EVERY = 60.0  # seconds between two lines of a log


class Tally:
    """What has been done in this run: documents read, documents and bytes worked on, which count once for each leg, and
    drops."""

    def __init__(self) -> None:
        self.start = time.monotonic()
        self.read = 0
        self.documents = 0
        self.bytes = 0
        self.drops: Counter[str] = Counter()

    def add(self, task: Task, result: Result) -> None:
        if task["kind"] == "leg" and "counts" in result:
            first = next(iter(counts_by_stage(result).values()), None)
            documents = 0 if first is None else first["docs_in"]
            self.read += documents if task["reader"] else 0
            self.documents += documents
            self.bytes += 0 if first is None else task["cost"]
        if task["kind"] == "leg" or task["kind"] == "decide" or task["kind"] == "drop":
            for by_stage in counts_by_source(task, result).values():
                for stage, count in by_stage.items():
                    self.drop(stage, count)

    def drop(self, stage: str, count: CountRecord) -> None:
        for reason, times in count["dropped"].items():
            self.drops[f"{stage}: {reason}"] += times
        if count["quarantined"]:
            self.drops[f"{stage}: quarantined"] += count["quarantined"]

    def rates(self) -> str:
        seconds = max(1e-6, time.monotonic() - self.start)
        speed = f"{self.documents / seconds:,.0f} documents/s, {self.bytes / seconds / 1e6:,.1f} MB/s"
        return f"{self.read:,} documents read; at work {speed}"


class Quiet(UI):
    """Says nothing but notes, on standard error."""

    def begins(self, node: Node, parts: int) -> None: ...

    def ends(self, node: Node) -> None: ...

    def finished(self, task: Task, result: Result, anew: bool) -> None: ...

    def connected(self, dashboard: str | None, workers: int) -> None: ...

    def stopping(self) -> None: ...

    def note(self, message: str) -> None:
        print(plain(message), file=sys.stderr, flush=True)

    def __enter__(self) -> Quiet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Lines(Quiet):
    """For a log: a line a minute on standard error, while parts are finished; a run that takes less is quiet."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self.last_line = now()
        self.tally = Tally()
        self.parts: dict[str, int] = {}
        self.done: Counter[tuple[str, str]] = Counter()

    def begins(self, node: Node, parts: int) -> None:
        self.parts[node.name] = parts

    def finished(self, task: Task, result: Result, anew: bool) -> None:
        if task["kind"] == "pages" or task["kind"] == "numbers" or task["kind"] == "look":
            return
        self.done[task["node"], task["kind"]] += 1
        if anew:
            self.tally.add(task, result)
        if anew and self.now() - self.last_line >= EVERY:
            self.last_line = self.now()
            if task["kind"] == "leg" or task["kind"] == "decide":
                done = f"{self.done[task['node'], task['kind']]:,} of {self.parts[task['node']]:,} parts"
                done += ", by its rules" if task["kind"] == "decide" else ""
            else:
                done = f"{task['kind']}, round {task['round'] + 1}"
            self.note(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {task['node']}: {done}; {self.tally.rates()}")


class Events(Quiet):
    """One JSON line for each thing that happens, on standard error; standard output is for the result."""

    def say(self, what: str, **facts: JSON) -> None:  # the facts of an event are its line, as they come
        print(json.dumps({"event": what} | facts), file=sys.stderr, flush=True)

    def begins(self, node: Node, parts: int) -> None:
        self.say("begins", node=node.name, parts=parts)

    def ends(self, node: Node) -> None:
        self.say("ends", node=node.name)

    def finished(self, task: Task, result: Result, anew: bool) -> None:
        self.say(
            "finished", node=task["node"], kind=task["kind"], key=task["key"], anew=anew, seconds=result.get("seconds")
        )

    def connected(self, dashboard: str | None, workers: int) -> None:
        self.say("connected", dashboard=dashboard, workers=workers)

    def stopping(self) -> None:
        self.say("stopping")

    def note(self, message: str) -> None:
        self.say("note", message=message)


class LiveView(Quiet):
    """A bar for each leg and stage, rates, and what is being dropped."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.tally = Tally()
        self.progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console
        )
        self.bars: dict[str, TaskID] = {}
        self.where = "starting"
        self.live = Live(get_renderable=self.view, console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> LiveView:
        self.live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.__exit__(None, None, None)

    def view(self) -> Group:
        drops = Table.grid(padding=(0, 2))
        for reason, times in self.tally.drops.most_common(8):
            drops.add_row(f"{times:,}", escape(reason))
        return Group(self.progress, f"{self.tally.rates()}    [dim]{escape(self.where)}[/dim]", drops)

    def begins(self, node: Node, parts: int) -> None:
        if node.name in self.bars:  # its parts had too few documents: these are more
            self.progress.update(self.bars[node.name], total=parts)
        else:
            self.bars[node.name] = self.progress.add_task(escape(node.name), total=parts)

    def ends(self, node: Node) -> None:
        bar = self.bars[node.name]
        total = self.progress.tasks[bar].total
        self.progress.update(bar, completed=total)

    def finished(self, task: Task, result: Result, anew: bool) -> None:
        bar = self.bars[task["node"]]
        if task["kind"] == "pages" or task["kind"] == "numbers" or task["kind"] == "look":
            return
        if task["kind"] == "leg":
            self.progress.advance(bar)
        elif task["kind"] == "decide":
            self.progress.update(bar, description=escape(f"{task['node']} (rules)"))
        else:
            self.progress.update(bar, description=escape(f"{task['node']} ({task['kind']} {task['round'] + 1})"))
        if anew:
            self.tally.add(task, result)

    def connected(self, dashboard: str | None, workers: int) -> None:
        self.where = f"{workers} workers" + (f", {dashboard}" if dashboard else "")

    def stopping(self) -> None:
        self.note("stopping the workers")

    def note(self, message: str) -> None:
        self.console.print(plain(message), markup=False, style="yellow")


def ui_for(json_events: bool, console: Console) -> Quiet:
    """The one that suits where the output goes."""
    if json_events:
        return Events()
    return LiveView(console) if console.is_terminal else Lines()


def final_table(record: RunRecord) -> Table:
    """The counts of a run, stage by stage."""
    table = Table(
        title=f"{escape(record['name'])}: {record['status']} in {record['seconds']:,.1f} s", title_justify="left"
    )
    for name in ("stage", "in", "kept", "dropped", "quarantined", "worker seconds", "mostly because"):
        table.add_column(name, justify="left" if name in ("stage", "mostly because") else "right")
    for entry in record["stages"]:
        dropped = sum(entry["dropped"].values())
        most = ", ".join(f"{reason} {n:,}" for reason, n in sorted(entry["dropped"].items(), key=lambda x: -x[1])[:3])
        table.add_row(
            escape(entry["name"]),
            f"{entry['docs_in']:,}",
            f"{entry['kept']:,}",
            f"{dropped:,}",
            f"{entry['quarantined']:,}",
            f"{entry['seconds']:,.1f}",
            escape(most),
        )
    return table
