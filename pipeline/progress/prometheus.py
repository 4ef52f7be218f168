"""How far a run is, as Prometheus reads it: `--metrics FILE.prom` for the node exporter's textfile collector.

Made of the same facts as `logs/progress.json`, in the text format 0.0.4: a HELP and a TYPE line for each family, then
its samples. Counters begin again with each process; documents and drops count finished work of earlier processes too.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path

from gristmill.kernels.common.files import write_whole
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.progress.progress import Progress, Watcher

STATES = ("running", "done", "failed", "interrupted")
Samples = list[tuple[dict[str, str], float]]  # labels and value


def exposition(facts: Progress) -> str:
    """The facts of a run as text for Prometheus."""
    lines = []
    for name, help, samples in families(facts):
        if samples:
            lines.append(f"# HELP gristmill_{name} {help}")
            lines.append(f"# TYPE gristmill_{name} {'counter' if name.endswith('_total') else 'gauge'}")
        for labels, value in samples:
            pairs = {"run": facts.name, **labels}.items()
            inside = ",".join(f'{label}="{escaped(text)}"' for label, text in pairs)
            lines.append(f"gristmill_{name}{{{inside}}} {as_value(value)}")
    return "".join(f"{line}\n" for line in lines)


def escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def as_value(value: float) -> str:
    return "NaN" if math.isnan(value) else str(int(value)) if float(value).is_integer() else repr(float(value))


def families(facts: Progress) -> Iterator[tuple[str, str, Samples]]:
    """The samples of each name, with its help; a name that ends in `_total` is a counter, any other a gauge."""
    states: Samples = [({"state": state}, facts.state == state) for state in STATES]
    yield "run_state", "1 for the state that the run is in.", states
    for name, help, value in (
        ("start_time_seconds", "Unix time at which this process began.", facts.started),
        ("updated_time_seconds", "Unix time of these numbers.", facts.updated),
        ("workers", "Workers that were there when work began.", facts.workers),
        ("worker_deaths_total", "Workers that died; what they were at was sent again.", facts.deaths),
        ("alarms", "Alarms so far.", len(facts.alarms)),
        ("documents_total", "Documents worked on by this process, once for each segment.", facts.documents),
        ("bytes_total", "Bytes of input worked on by this process.", facts.bytes),
    ):
        yield name, help, [({}, value)]
    left: Samples = [] if facts.seconds_left is None else [({}, round(facts.seconds_left, 1))]
    yield "seconds_left", "Seconds that the run will still take.", left
    tasks: Samples = [({"kind": kind}, number) for kind, number in facts.tasks.items()]
    yield "tasks_total", "Tasks finished by this process, by kind.", tasks
    begun = [(node, node.parts) for node in facts.nodes if node.parts is not None]
    parts: Samples = [({"node": node.name}, parts) for node, parts in begun]
    yield "node_parts", "Parts of a segment or global stage, once it has begun.", parts
    done: Samples = [({"node": node.name}, parts if node.state == "done" else node.done) for node, parts in begun]
    yield "node_parts_done", "Of these, the parts that are done.", done
    yield from of_stages(facts)


def of_stages(facts: Progress) -> Iterator[tuple[str, str, Samples]]:
    counts = [
        ({"stage": stage, "source": source}, count)
        for stage, by_source in facts.stages.items()
        for source, count in by_source.items()
    ]
    yield "stage_documents_total", "Documents that came to a stage.", [(at, count.docs_in) for at, count in counts]
    yield "stage_kept_total", "Documents that stayed after a stage.", [(at, count.kept) for at, count in counts]
    dropped: Samples = [
        ({**at, "reason": reason}, number) for at, count in counts for reason, number in count.dropped.items()
    ]
    yield "stage_dropped_total", "Documents that a stage dropped, by reason.", dropped
    quarantined: Samples = [(at, count.quarantined) for at, count in counts]
    yield "stage_quarantined_total", "Documents that a stage failed on.", quarantined
    yield "stage_seconds_total", "Seconds of workers at a stage.", [(at, count.seconds) for at, count in counts]
    yield "stage_bytes_total", "Bytes that a stage took in.", [(at, count.bytes_in) for at, count in counts]
    memory: Samples = [({"stage": stage}, facts.peak_memory.get(stage, 0)) for stage in facts.stages]
    peaks = [(at, size) for at, size in memory if size]
    yield "stage_peak_memory_bytes", "Most memory of a worker at a stage.", peaks


def metrics_to(path: Path | None) -> Watcher | None:
    """What writes the numbers of a run to a file, whole or not at all."""
    if path is None:
        return None
    if path.suffix != ".prom" or not path.parent.is_dir():
        raise RecipeError(f"--metrics {path}: a file whose name ends in .prom, in a folder that is there, was expected")

    def watch(facts: Progress) -> None:
        with contextlib.suppress(OSError):  # a disk that is full is the run's to complain of
            write_whole(path, exposition(facts).encode(), durable=False)

    return watch
