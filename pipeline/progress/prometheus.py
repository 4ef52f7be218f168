"""How far a run is, as Prometheus reads it: `--metrics FILE.prom` for the node exporter's textfile collector,
`--metrics-port` for a scrape of this process.

Made of the same facts as `logs/progress.json`, in the text format 0.0.4: a HELP and a TYPE line for each family, then
its samples. Counters begin again with each process; documents and drops count finished work of earlier processes too.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from gristmill.kernels.common.files import write_whole
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.progress.progress import Progress
from gristmill.pipeline.progress.progress_file import Watcher

STATES = ("running", "done", "failed", "interrupted")
TYPE = "text/plain; version=0.0.4; charset=utf-8"
PATIENCE = 10.0  # seconds that a client has for its request


@dataclass
class Family:
    """The samples of one name."""

    name: str
    kind: str  # gauge or counter
    help: str
    samples: list[tuple[dict[str, str], float]] = field(default_factory=list)

    def add(self, value: float, **labels: str) -> None:
        self.samples.append((labels, value))

    def lines(self, run: str) -> Iterator[str]:
        name = f"gristmill_{self.name}"
        yield f"# HELP {name} {escaped(self.help)}"
        yield f"# TYPE {name} {self.kind}"
        for labels, value in self.samples:
            inside = ",".join(
                f'{label}="{escaped(text, quoted=True)}"' for label, text in {"run": run, **labels}.items()
            )
            yield f"{name}{{{inside}}} {as_value(value)}"


def escaped(text: str, quoted: bool = False) -> str:
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if quoted else text


def as_value(value: float) -> str:
    return "NaN" if math.isnan(value) else str(int(value)) if float(value).is_integer() else repr(float(value))


def exposition(facts: Progress) -> str:
    """The facts of a run as text for Prometheus."""
    return "".join(f"{line}\n" for family in families(facts) if family.samples for line in family.lines(facts.name))


def families(facts: Progress) -> list[Family]:
    of_run = [
        ("start_time_seconds", "gauge", "Unix time at which this process began.", facts.started),
        ("updated_time_seconds", "gauge", "Unix time of these numbers.", facts.updated),
        ("workers", "gauge", "Workers that were there when work began.", facts.workers),
        ("worker_deaths_total", "counter", "Workers that died; what they were at was sent again.", facts.deaths),
        ("alarms", "gauge", "Alarms so far.", len(facts.alarms)),
        ("documents_total", "counter", "Documents worked on by this process, once for each leg.", facts.documents),
        ("bytes_total", "counter", "Bytes of input worked on by this process.", facts.bytes),
    ]
    state = Family("run_state", "gauge", "1 for the state that the run is in.")
    for name in STATES:
        state.add(facts.state == name, state=name)
    left = Family("seconds_left", "gauge", "Seconds that the run will still take.")
    if facts.seconds_left is not None:
        left.add(round(facts.seconds_left, 1))
    tasks = Family("tasks_total", "counter", "Tasks finished by this process, by kind.")
    for kind, number in facts.tasks.items():
        tasks.add(number, kind=kind)
    single = (Family(name, kind, help, [({}, value)]) for name, kind, help, value in of_run)
    return [state, *single, left, tasks, *of_nodes(facts), *of_stages(facts)]


def of_nodes(facts: Progress) -> list[Family]:
    parts = Family("node_parts", "gauge", "Parts of a leg or global stage, once it has begun.")
    done = Family("node_parts_done", "gauge", "Of these, the parts that are done.")
    for node in facts.nodes:
        if node.parts is not None:
            parts.add(node.parts, node=node.name)
            done.add(node.parts if node.state == "done" else node.done, node=node.name)
    return [parts, done]


def of_stages(facts: Progress) -> list[Family]:
    taken, kept, quarantined, seconds, size = (
        Family(f"stage_{name}_total", "counter", help)
        for name, help in (
            ("documents", "Documents that came to a stage."),
            ("kept", "Documents that stayed after a stage."),
            ("quarantined", "Documents that a stage failed on."),
            ("seconds", "Seconds of workers at a stage."),
            ("bytes", "Bytes that a stage took in."),
        )
    )
    dropped = Family("stage_dropped_total", "counter", "Documents that a stage dropped, by reason.")
    memory = Family("stage_peak_memory_bytes", "gauge", "Most memory of a worker at a stage.")
    for stage, by_source in facts.stages.items():
        for source, count in by_source.items():
            taken.add(count["docs_in"], stage=stage, source=source)
            kept.add(count["kept"], stage=stage, source=source)
            quarantined.add(count["quarantined"], stage=stage, source=source)
            seconds.add(count["seconds"], stage=stage, source=source)
            size.add(count["bytes_in"], stage=stage, source=source)
            for reason, number in count["dropped"].items():
                dropped.add(number, stage=stage, source=source, reason=reason)
        if facts.peak_memory.get(stage):
            memory.add(facts.peak_memory[stage], stage=stage)
    return [taken, kept, dropped, quarantined, seconds, size, memory]


class Latest:
    """The last text, for whoever asks."""

    text = b""


@contextlib.contextmanager
def metrics_to(path: Path | None, port: int | None) -> Iterator[Watcher | None]:
    """What writes the numbers of a run to a file, whole or not at all, and answers with them on a port of this machine
    alone."""
    if path is None and port is None:
        yield None
        return
    if path is not None and (path.suffix != ".prom" or not path.parent.is_dir()):
        raise RecipeError(f"--metrics {path}: a file whose name ends in .prom, in a folder that is there, was expected")
    latest = Latest()

    def watch(facts: Progress) -> None:
        latest.text = exposition(facts).encode()
        if path is not None:
            with contextlib.suppress(OSError):  # a disk that is full is the run's to complain of
                write_whole(path, latest.text, durable=False)

    with contextlib.ExitStack() as stack:
        if port is not None:
            stack.enter_context(served(latest, port))
        yield watch


@contextlib.contextmanager
def served(latest: Latest, port: int) -> Iterator[None]:
    class Answers(BaseHTTPRequestHandler):
        timeout = PATIENCE

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Type", TYPE)
            self.send_header("Content-Length", str(len(latest.text)))
            self.end_headers()
            self.wfile.write(latest.text)

        def log_message(self, format: str, *args: object) -> None: ...

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Answers)
    except OSError as error:
        raise RecipeError(f"--metrics-port {port}: {error.strerror or error}") from error
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
