"""What an ablation shows: a live table while jobs run, a line for each that ends, and the verdicts."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TypedDict

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gristmill.pipeline.ablate.plan import CONTROL
from gristmill.pipeline.ablate.records import Job, JobResult
from gristmill.pipeline.formatting import as_energy
from gristmill.pipeline.report.ablation_record import AblationRecord
from gristmill.pipeline.screen import escape
from gristmill.pipeline.tables import TerminalTable

BEST, MEASURES = 10, 4  # proxy runs, and tasks of each, that are shown
TAIL = 4096  # bytes of metrics.jsonl that are looked at
COLOURS = {"adopt": "green", "reject": "red", "inconclusive": "yellow"}


class AblationUi:
    """Says what happens in lines, on standard error and in log.txt of the folder."""

    def __init__(self, out: Path, stream: IO[str] | None = None) -> None:
        self.out = out
        self.stream = stream or sys.stderr
        self.to_come = 0

    @contextlib.contextmanager
    def watching(self, jobs: Sequence[Job]) -> Iterator[None]:
        self.to_come = len(jobs)
        yield

    def begins(self, job: Job) -> None:
        self.say(f"{name_of(job)}: started")

    def ends(self, job: Job, result: JobResult) -> None:
        self.to_come -= 1
        if "failed" in result:
            self.say(
                f"{name_of(job)}: failed: {result['failed']}"
                + (f"\n{result['trace'].rstrip()}" if result.get("trace") else "")
            )
        elif not result["anew"]:
            self.say(f"{name_of(job)}: is already done")
        else:
            self.say(
                f"{name_of(job)}: done, loss {result['loss']:.4f}, {result['tokens']:,} tokens in"
                f" {result['seconds']:,.1f} s; {self.to_come} to come"
            )

    def note(self, message: str) -> None:
        self.say(message)

    def say(self, line: str) -> None:
        self.record(line)
        print(line, file=self.stream, flush=True)

    def record(self, line: str) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        with (self.out / "log.txt").open("a", encoding="utf-8") as log:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {line}\n")


class LiveAblationUi(AblationUi):
    """A table of jobs on a terminal, with what each has come to."""

    def __init__(self, out: Path, console: Console) -> None:
        super().__init__(out)
        self.console = console
        self.jobs: Sequence[Job] = ()
        self.states: dict[str, str] = {}

    @contextlib.contextmanager
    def watching(self, jobs: Sequence[Job]) -> Iterator[None]:
        self.jobs, self.to_come = jobs, len(jobs)
        with Live(get_renderable=self.view, console=self.console, refresh_per_second=2, transient=True):
            yield

    def begins(self, job: Job) -> None:
        self.states[job["folder"]] = "at work"
        self.record(f"{name_of(job)}: started")

    def ends(self, job: Job, result: JobResult) -> None:
        self.states[job["folder"]] = "failed" if "failed" in result else "done"
        super().ends(job, result)

    def say(self, line: str) -> None:
        self.record(line)
        self.console.print(line, markup=False, soft_wrap=True)

    def view(self) -> Group:
        table = Table(box=None)
        for name in ("arm", "seed", "", "update", "loss", "tokens/s"):
            table.add_column(name, justify="left" if name in ("arm", "") else "right")
        for job in sorted(self.jobs, key=lambda job: self.states.get(job["folder"], "~") != "at work")[
            : max(4, self.console.height - 6)
        ]:
            state = self.states.get(job["folder"], "")
            last: MetricsLine = {}
            if state == "at work":
                last = last_metrics(Path(job["folder"]) / "metrics.jsonl")
            table.add_row(
                escape(job["arm"]),
                str(job["seed"]),
                state,
                f"{last['step']:,} of {job['training']['updates']:,}" if last else "",
                f"{last['loss']:.4f}" if isinstance(last.get("loss"), float) else "",
                f"{last['tokens_per_second']:,.0f}" if isinstance(last.get("tokens_per_second"), int | float) else "",
            )
        return Group(table, f"{self.to_come} jobs to come")


def ui_for(out: Path, console: Console) -> AblationUi:
    return LiveAblationUi(out, console) if console.is_terminal else AblationUi(out)


class MetricsLine(TypedDict, total=False):
    """A line of metrics.jsonl."""

    step: int
    loss: float
    tokens_per_second: float


def last_metrics(path: Path) -> MetricsLine:
    """The last whole line of a file that somebody else is writing."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return {}
    for line in reversed(lines):
        with contextlib.suppress(ValueError):
            metrics: MetricsLine = json.loads(line)
            if isinstance(metrics, dict) and {"step", "loss"} <= metrics.keys():
                return metrics
    return {}


def name_of(job: Job) -> str:
    return f"{job['arm']}, seed {job['seed']}"


def verdicts(record: AblationRecord) -> TerminalTable:
    """Every arm with its target, its guard and what is to be done."""
    target = next((m for m in record["measures"] if m["role"] == "target" and m["domain"] is None), None)
    measured = f"{target['task']} in {target['unit']} ({target['better']} is better), " if target else ""
    title = f"{record['name']}: {measured}{len(record['seeds'])} seeds, {record['tokens']:,} tokens a run"
    rows: list[tuple[object, ...]] = []
    for arm in record["arms"]:
        if arm["verdict"] is None:
            state = Text("failed", style="red") if arm["error"] else arm["status"]
            rows.append((arm["name"], "", "", "", "", state))
            continue
        found = next(d for d in arm["differences"] if d["role"] == "target" and d["domain"] is None)
        word, guard = arm["verdict"]["word"], arm["guard"]
        rows.append(
            (
                arm["name"],
                f"{found['difference']:+.5f}",
                f"{_bound(found['low'])} to {_bound(found['high'])}",
                f"{arm['p_holm']:.3g}",
                f"{guard['rise']:+.2%} ({_up_to(guard['high'])})" if guard else "none",
                Text(word, style=COLOURS[word]),
            )
        )
    head = ("arm", "difference", f"{record['confidence']:.0%} interval", "p (Holm)", "guard", "verdict")
    return TerminalTable.of(title, head, rows, words={0, 5})


def proxy_runs(record: AblationRecord) -> TerminalTable:
    """The best runs of a plan with proxies, and the mix by tokens."""
    runs = record.get("proxies") or []
    tasks = [str(measure["task"]) for measure in record["measures"]][:MEASURES]
    rows = [
        (
            "by tokens" if found["name"] == CONTROL else found["name"],
            *(f"{found['levels'][task]:.4f}" for task in tasks),
        )
        for place, found in enumerate(runs)
        if place < BEST or found["name"] == CONTROL
    ]
    return TerminalTable.of(f"{record['name']}: {len(runs):,} proxy runs, the best first", ("mix", *tasks), rows)


def reasons(record: AblationRecord) -> list[str]:
    """A line for each arm that was run."""
    lines = []
    for arm in record["arms"]:
        if arm["verdict"] is not None:
            seeds = arm["verdict"]["seeds_needed"]
            lines.append(
                f"{arm['name']}: {arm['verdict']['why']}" + (f"; {seeds} seeds would settle it" if seeds else "")
            )
        elif arm["error"]:
            lines.append(f"{arm['name']}: {arm['error']}")
    return lines


def others(record: AblationRecord) -> TerminalTable:
    """All other measures: the guard, and those that decide nothing."""
    heads = ("arm", "measure", "control", "difference", "interval", "better")
    rows = []
    levels = {measure["task"]: measure["control"]["mean"] for measure in record["measures"]}
    for arm in record["arms"]:
        for found in arm["differences"]:
            if found["role"] == "target" and found["domain"] is None:
                continue
            rows.append(
                (
                    arm["name"],
                    found["task"] + (" (guard)" if found["role"] == "guard" and found["domain"] is None else ""),
                    f"{levels[found['task']]:.4f}",
                    f"{found['difference']:+.5f}",
                    f"{_bound(found['low'])} to {_bound(found['high'])}",
                    f"{found['better']} {found['unit']}",
                )
            )
    return TerminalTable.of("reported", heads, rows, words={0, 1, 5})


def cost_line(record: AblationRecord) -> str:
    cost = record["cost"]
    joules = "energy not measured" if cost["joules"] is None else as_energy(cost["joules"])
    return f"{cost['jobs']} jobs, {cost['tokens']:,} tokens, {cost['seconds'] / 3600:,.2f} hours of training, {joules}"


def _up_to(value: float | None) -> str:
    return "unbounded" if value is None else f"up to {value:+.2%}"


def _bound(value: float | None) -> str:
    return "unbounded" if value is None else f"{value:+.5f}"
