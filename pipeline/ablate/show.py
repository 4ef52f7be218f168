"""What an ablation shows: a live table while jobs run, a line for each that ends, and the verdicts."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gristmill.pipeline.ablate.plan import CONTROL
from gristmill.pipeline.formatting import as_energy, as_number, as_seconds
from gristmill.pipeline.json_types import JSON
from gristmill.pipeline.progress.terminal import in_words
from gristmill.pipeline.report.ablation_record import AblationRecord, as_compute, bound
from gristmill.pipeline.screen import escape
from gristmill.pipeline.tables import TerminalTable
from gristmill.pipeline.train.progress import RunProgress, progress_in
from gristmill.pipeline.train.records import Job, JobResult, run_of

Event = dict[str, JSON]

POINTS = 6  # of a curve in a terminal
BEST, MEASURES = 10, 4  # proxy runs, and tasks of each, that are shown
LOOKS = 0.5  # seconds between two looks at the jobs at work
COLOURS = {"adopt": "green", "reject": "red", "disagree": "yellow", "inconclusive": "yellow"}


class AtWork:
    """A job at work, as the driver sees it."""

    def __init__(self, job: Job) -> None:
        self.job, self.begun, self.seen, self.tenths = job, time.monotonic(), time.monotonic(), 0
        self.progress: RunProgress | None = None

    def look(self) -> None:
        progress = progress_in(Path(self.job["folder"]))
        if progress != self.progress:
            self.progress, self.seen = progress, time.monotonic()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.begun

    def left(self, at_end: float | None) -> float | None:
        """Seconds; `at_end` are those of measuring a model that is trained. None while nothing is known."""
        if self.progress is None:
            return None
        since = time.monotonic() - self.seen
        measuring = (at_end or 0.0) if self.job["evaluate"] else 0.0
        if self.progress.measuring:
            return max(0.0, measuring - since)
        return max(0.0, self.progress.left - since) + measuring


class AblationUi:
    """Says what happens in lines, on standard error and in log.txt of the folder."""

    def __init__(self, out: Path, stream: IO[str] | None = None) -> None:
        self.out = out
        self.stream = stream or sys.stderr
        self.to_come = 0
        self.workers = 1
        self.at_work: dict[str, AtWork] = {}
        self.taken: list[float] = []  # seconds of each run that was done now, the base aside
        self.taken_at_end: list[float] = []  # of them for measuring the trained model

    @contextlib.contextmanager
    def watching(self, jobs: Sequence[Job], workers: int) -> Iterator[None]:
        self.to_come, self.workers = len(jobs), max(1, workers)
        over = threading.Event()
        watch = threading.Thread(target=self._watch, args=(over,), daemon=True, name="ablation-progress")
        watch.start()
        try:
            yield
        finally:
            over.set()
            watch.join()

    def _watch(self, over: threading.Event) -> None:
        while not over.wait(LOOKS):
            for job in list(self.at_work.values()):
                with contextlib.suppress(OSError):  # a folder of another machine, for a moment
                    job.look()
                self.report(job)

    def report(self, at_work: AtWork) -> None:
        """A line for each tenth of a job."""
        progress, left = at_work.progress, at_work.left(self.at_end)
        if progress is None or left is None:
            return
        tenths = min(9, int(10 * at_work.elapsed / max(1e-9, at_work.elapsed + left)))
        if tenths <= at_work.tenths:
            return
        at_work.tenths = tenths
        job, updates = at_work.job, at_work.job["training"]["updates"]
        doing = "measuring" if progress.measuring else f"update {progress.update:,} of {updates:,}"
        loss = "" if progress.loss is None else f", loss {progress.loss:.4f}"
        self.say(
            f"{name_of(job)}: {tenths / 10:.0%}, {doing}{loss}; {self.time_left()}",
            {
                **event("progress", job), "share": tenths / 10, "update": progress.update, "updates": updates,
                "loss": progress.loss, "measuring": progress.measuring, "seconds_left": self.seconds_left(),
            },
        )  # fmt: skip

    @property
    def at_end(self) -> float | None:
        """Seconds of measuring a trained model, once that is known."""
        return sum(self.taken_at_end) / len(self.taken_at_end) if self.taken_at_end else None

    def seconds_left(self) -> float | None:
        """Of the whole ablation; None while only the base has been at work."""
        at_work = [job.left(self.at_end) for job in list(self.at_work.values())]
        of_arms = [job for job in list(self.at_work.values()) if job.job["evaluate"] and job.progress]
        if self.taken:
            each = sum(self.taken) / len(self.taken)
        elif of_arms:
            each = sum(job.elapsed + (job.left(None) or 0.0) for job in of_arms) / len(of_arms)
        else:
            return None
        known = [each if seconds is None else seconds for seconds in at_work]
        waiting = self.to_come - len(known)
        return max(max(known, default=0.0), (sum(known) + waiting * each) / min(self.workers, max(1, self.to_come)))

    def time_left(self) -> str:
        seconds = self.seconds_left()
        if seconds is None:
            return f"{self.to_come - 1:,} runs to come"
        return f"{'' if self.taken else 'at least '}{in_words(seconds)} left in all"

    def begins(self, job: Job) -> None:
        self.at_work[job["folder"]] = AtWork(job)
        self.say(f"{name_of(job)}: started", event("started", job))

    def ends(self, job: Job, result: JobResult) -> None:
        self.to_come -= 1
        at_work = self.at_work.pop(job["folder"], None)
        if "failed" in result:
            self.say(
                f"{name_of(job)}: failed: {result['failed']}"
                + (f"\n{result['trace'].rstrip()}" if result.get("trace") else ""),
                {**event("failed", job), "error": result["failed"]},
            )
        elif not result["anew"]:
            self.say(f"{name_of(job)}: is already done", event("already done", job))
        else:
            measuring = result.get("seconds_measuring", 0.0)
            if at_work is not None and job["evaluate"]:
                self.taken.append(at_work.elapsed)
                self.taken_at_end.append(measuring - result.get("seconds_on_the_way", 0.0))
            of_it = f" ({as_seconds(measuring)} of it measuring)" if job["evaluate"] else ""
            left = f", {self.time_left()}" if self.to_come and self.taken else ""
            self.say(
                f"{name_of(job)}: done, loss {result['loss']:.4f}, {result['tokens']:,} tokens in"
                f" {as_seconds(result['seconds'] + measuring)}{of_it}; {self.to_come} to come{left}",
                {
                    **event("done", job), "loss": result["loss"], "tokens": result["tokens"],
                    "seconds": result["seconds"] + measuring, "seconds_measuring": measuring,
                    "to_come": self.to_come, "seconds_left": self.seconds_left(),
                },
            )  # fmt: skip

    def note(self, message: str) -> None:
        self.say(message, {"event": "note", "message": message})

    def say(self, line: str, event: Event) -> None:
        self.record(line)
        self.stream.write(f"{line}\n")
        self.stream.flush()

    def record(self, line: str) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        with (self.out / "log.txt").open("a", encoding="utf-8") as log:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {line}\n")


class AblationEvents(AblationUi):
    """A JSON line for each event, on standard error; lines for people in log.txt alone."""

    def say(self, line: str, event: Event) -> None:
        self.record(line)
        self.stream.write(f"{json.dumps(event)}\n")
        self.stream.flush()


class LiveAblationUi(AblationUi):
    """A table of jobs on a terminal, with what each has come to."""

    def __init__(self, out: Path, console: Console) -> None:
        super().__init__(out)
        self.console = console
        self.jobs: Sequence[Job] = ()
        self.states: dict[str, str] = {}

    @contextlib.contextmanager
    def watching(self, jobs: Sequence[Job], workers: int) -> Iterator[None]:
        self.jobs = jobs
        live = Live(get_renderable=self.view, console=self.console, refresh_per_second=2, transient=True)
        with live, super().watching(jobs, workers):
            yield

    def ends(self, job: Job, result: JobResult) -> None:
        self.states[job["folder"]] = "failed" if "failed" in result else "done"
        super().ends(job, result)

    def say(self, line: str, event: Event) -> None:
        self.record(line)
        if event["event"] not in ("started", "progress"):  # the table shows these
            self.console.print(line, markup=False, soft_wrap=True)

    def view(self) -> Group:
        table = Table(box=None)
        for name in ("arm", "seed", "", "update", "loss", "tokens/s"):
            table.add_column(name, justify="left" if name in ("arm", "") else "right")
        for job in sorted(self.jobs, key=lambda job: job["folder"] not in self.at_work)[
            : max(4, self.console.height - 6)
        ]:
            at_work = self.at_work.get(job["folder"])
            progress = at_work.progress if at_work else None
            state = self.states.get(job["folder"], "")
            if at_work is not None:
                state = f"{at_work.tenths / 10:.0%}" + (", measuring" if progress and progress.measuring else "")
            table.add_row(
                escape(job["arm"]),
                run_of(job).words.partition(", seed ")[2],
                state,
                f"{progress.update:,} of {job['training']['updates']:,}" if progress else "",
                f"{progress.loss:.4f}" if progress and progress.loss is not None else "",
                f"{progress.tokens_per_second:,.0f}" if progress and progress.tokens_per_second else "",
            )
        left = f", {self.time_left()}" if self.seconds_left() is not None else ""
        return Group(table, f"{self.to_come} jobs to come{left}")


def ui_for(out: Path, console: Console, as_json: bool) -> AblationUi:
    if as_json:
        return AblationEvents(out)
    return LiveAblationUi(out, console) if console.is_terminal else AblationUi(out)


def event(kind: str, job: Job) -> Event:
    run = run_of(job)
    return {
        "event": kind, "arm": run.arm, "seed": run.seed, "order": run.order, "second_rate": run.second_rate,
        "length": run.length,
    }  # fmt: skip


def name_of(job: Job) -> str:
    return run_of(job).words


def verdicts(record: AblationRecord) -> TerminalTable:
    """Every arm with its target, its guard and what is to be done."""
    target = next((m for m in record["measures"] if m["role"] == "target" and m["domain"] is None), None)
    measured = f"{target['task']} in {target['unit']} ({target['better']} is better), " if target else ""
    orders = record["plan"].get("orders", 1)
    seeds = f"{len(record['seeds'])} seeds" + (f" in {orders} data orders" if orders != 1 else "")
    title = f"{record['name']}: {measured}{seeds}, {record['tokens']:,} tokens a run"
    rows: list[tuple[object, ...]] = []
    for arm in record["arms"]:
        if arm["verdict"] is None:
            state = Text("failed", style="red") if arm["error"] else arm["status"]
            rows.append((arm["name"], "", "", "", "", "", state))
            continue
        found = next(d for d in arm["differences"] if d["role"] == "target" and d["domain"] is None)
        word, guard = arm["verdict"]["word"], arm["guard"]
        rows.append(
            (
                arm["name"],
                f"{found['difference']:+.5f}",
                f"{bound(found['low'])} to {bound(found['high'])}",
                as_compute(found.get("multiplier")),
                f"{arm['p_holm']:.3g}",
                f"{guard['rise']:+.2%} ({_up_to(guard['high'])})" if guard else "none",
                Text(word, style=COLOURS[word]),
            )
        )
    head = ("arm", "difference", f"{record['confidence']:.0%} interval", "compute", "p (Holm)", "guard", "verdict")
    return TerminalTable.of(title, head, rows, words={0, 6})


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
            seeds, second = arm["verdict"]["seeds_needed"], arm.get("second_rate")
            line = f"{arm['name']}: {arm['verdict']['why']}" + (f"; {seeds} seeds would settle it" if seeds else "")
            if second is not None:
                ends = f"{bound(second['low'])} to {bound(second['high'])}"
                line += f"; at the rate {second['rate']:g} it differs by {second['difference']:+.5f} ({ends})"
            lines.append(line)
        elif arm["error"]:
            lines.append(f"{arm['name']}: {arm['error']}")
    return lines


def others(record: AblationRecord) -> TerminalTable:
    """All other measures: the guard, and those that decide nothing."""
    heads = ("arm", "measure", "control", "difference", "interval", "compute", "better")
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
                    f"{bound(found['low'])} to {bound(found['high'])}",
                    as_compute(found.get("multiplier")),
                    f"{found['better']} {found['unit']}",
                )
            )
    return TerminalTable.of("reported", heads, rows, words={0, 1, 6})


def curves(record: AblationRecord) -> TerminalTable | None:
    """The target, and each domain of it, by the tokens that a run has seen."""
    found = record.get("curves") or []
    at = sorted({tokens for curve in found for tokens in curve["tokens"]})
    if not at:
        return None
    shown = [at[round(k * (len(at) - 1) / (POINTS - 1))] for k in range(POINTS)] if len(at) > POINTS else at
    rows = []
    for curve in found:
        values = dict(zip(curve["tokens"], curve["mean"], strict=True))
        rows.append((curve["task"], curve["arm"], *(f"{values[each]:.3f}" if each in values else "" for each in shown)))
    heads = ("bits per byte after tokens", "arm", *(as_number(tokens) for tokens in shown))
    return TerminalTable.of("on the way, on a part of the target's documents", heads, rows, words={0, 1})


def cost_line(record: AblationRecord) -> str:
    cost = record["cost"]
    joules = "energy not measured" if cost["joules"] is None else as_energy(cost["joules"])
    return f"{cost['jobs']} jobs, {cost['tokens']:,} tokens, {cost['seconds'] / 3600:,.2f} hours of training, {joules}"


def _up_to(value: float | None) -> str:
    return "unbounded" if value is None else f"up to {value:+.2%}"
