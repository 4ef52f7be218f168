"""What a run shows while it goes: a live table on a terminal, a plain line a minute elsewhere, one JSON line an event
with --json."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from gristmill.pipeline.formatting import as_bytes, one_line, plain
from gristmill.pipeline.json_types import JSON
from gristmill.pipeline.plan.plan import Node
from gristmill.pipeline.progress import live
from gristmill.pipeline.progress.events import ASIDE, round_of
from gristmill.pipeline.progress.facts import ProgressFacts
from gristmill.pipeline.progress.tally import Tally
from gristmill.pipeline.progress.ui import UI
from gristmill.pipeline.store.records import Result, Task
from gristmill.pipeline.store.run_records import RunRecord, StageRecord
from gristmill.pipeline.tables import Grid

EVERY = 60.0  # seconds between two lines of a log
CLEARLY = 0.1  # share of the text that a stage takes beyond its share of documents
FEW = 0.05  # of the documents, where what a stage cuts from texts says more than why it drops them
REFRESH = 2  # times a second, on a terminal


class Quiet(UI):
    """Says nothing but notes, on standard error."""

    def follows(self, facts: Callable[[], ProgressFacts]) -> None: ...

    def expects(self, tasks: Sequence[Task]) -> None: ...

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
        self.facts: Callable[[], ProgressFacts] | None = None

    def follows(self, facts: Callable[[], ProgressFacts]) -> None:
        self.facts = facts

    def begins(self, node: Node, parts: int) -> None:
        self.parts[node.name] = parts

    def finished(self, task: Task, result: Result, anew: bool) -> None:
        if task["kind"] in ASIDE:
            return
        self.done[task["node"], task["kind"]] += 1
        if anew:
            self.tally.add(task, result)
        if anew and self.now() - self.last_line >= EVERY:
            self.last_line = self.now()
            if task["kind"] == "partition":
                done = f"{self.done[task['node'], task['kind']]:,} of {self.parts[task['node']]:,} parts"
            else:
                done = f"{task['kind']}, round {round_of(task) + 1}"
            self.note(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {task['node']}: {done}; {self.tally.rates()}{self.left()}")

    def left(self) -> str:
        seconds = self.facts()["seconds_left"] if self.facts else None
        return "" if seconds is None else f"; {live.in_words(seconds)} left"


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
    """On a terminal, twice a second: `live.view` of the run."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.facts: Callable[[], ProgressFacts] | None = None
        self.live = Live(get_renderable=self.view, console=console, refresh_per_second=REFRESH, transient=True)

    def __enter__(self) -> LiveView:
        self.live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.__exit__(None, None, None)

    def view(self) -> Text:
        if self.facts is None:
            return Text("starting")
        width, height = self.console.size
        return live.view(self.facts(), time.time(), width, height, self.console.options.ascii_only)

    def follows(self, facts: Callable[[], ProgressFacts]) -> None:
        self.facts = facts

    def stopping(self) -> None:
        self.note("stopping the workers")

    def note(self, message: str) -> None:
        self.console.print(plain(message), markup=False, style="yellow")


def ui_for(json_events: bool, console: Console) -> Quiet:
    """The one that suits where the output goes."""
    if json_events:
        return Events()
    return LiveView(console) if console.is_terminal and not console.is_dumb_terminal else Lines()


def final_table(record: RunRecord) -> Grid:
    """The counts of a run, stage by stage."""
    failed = any(entry["quarantined"] for entry in record["stages"])
    heads = ["stage", "in", "kept", "dropped", *(["quarantined"] if failed else []), "worker seconds", "mostly because"]
    title = f"{record['name']}: {record['status']} in {record['seconds']:,.1f} s"
    table = Grid(title, heads, words={0, len(heads) - 1}, spared=[len(heads) - 2])
    cuts = texts_cut(record["stages"])
    for entry in record["stages"]:
        most = sorted(entry["dropped"].items(), key=lambda x: -x[1])[:3]
        reasons = [f"{one_line(reason)} {n:,}" for reason, n in most]
        numbers = [entry["docs_in"], entry["kept"], sum(entry["dropped"].values())]
        cut = cuts.get(entry["name"], [])
        table.add_row(
            entry["name"],
            *(f"{number:,}" for number in [*numbers, *([entry["quarantined"]] if failed else [])]),
            f"{entry['seconds']:,.1f}",
            [*cut, *reasons] if numbers[2] < FEW * numbers[0] else [*reasons[:1], *cut, *reasons[1:]],
        )
    return table


def texts_cut(stages: Sequence[StageRecord]) -> dict[str, list[str]]:
    """What is left of texts where a stage takes clearly more text than documents: `text -87%, 10.0 MB to 1.3 MB`."""
    cuts, left = {}, {entry["name"]: entry["text_bytes"] for entry in stages if entry["kind"] == "read"}
    for entry in stages:
        here = entry["sources"] if entry["kind"] != "read" else {}
        before, after = sum(left.get(source, 0) for source in here), sum(each["text_bytes"] for each in here.values())
        if before and after / before < entry["kept"] / max(1, entry["docs_in"]) - CLEARLY:
            cuts[entry["name"]] = [f"text {after / before - 1:.0%}", f"{as_bytes(before)} to {as_bytes(after)}"]
        left |= {source: each["text_bytes"] for source, each in here.items()}
    return cuts
