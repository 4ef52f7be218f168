"""How a run goes on, as plain data that a page asks for every few seconds: segments and stages, speed, time left,
alarms."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from gristmill.pipeline.formatting import as_bytes, as_number, as_seconds, as_share, one_line
from gristmill.pipeline.look.run_folder import DocumentCounts, Folder, NotFound, RecordedRun, record_so_far
from gristmill.pipeline.progress.progress import PATH, NodeProgress, Progress, Speed, state_of
from gristmill.pipeline.report.sections import is_web


class NodeView(TypedDict):
    """A segment or global stage on the page."""

    name: str
    stages: str
    state: str
    share: float  # percent
    parts: str
    seconds: str
    left: float | None
    left_words: str


class ProgressView(TypedDict, total=False):
    """What the page shows; only `state` where there is no progress.json, or none that can be read."""

    state: str
    words: dict[str, str]
    dashboard: str | None
    nodes: list[NodeView]
    stages: list[dict[str, str]]
    alarms: list[str]
    notes: list[str]


def live_of(out: str) -> ProgressView:
    """What `logs/progress.json` says by now; `state` is done where there is none."""
    try:
        record = Folder.open(out).json(PATH)
    except NotFound:
        return {"state": "done"}
    except (ValueError, TypeError, OSError):
        return {"state": "unreadable"}
    try:
        return live_view(record, time.time())
    except (TypeError, ValueError, AttributeError, LookupError):
        return {"state": "unreadable"}


def live_view(record: Mapping[str, Any], now: float) -> ProgressView:
    """In words and shares; everything is text or a number, and the page takes it for nothing else."""
    facts, state = Progress.of(record), state_of(record, now)
    host = str(facts.process.get("host"))
    end = now if state == "running" else float(facts.updated)
    seconds = max(0.0, end - float(facts.started))
    recent = facts.recently if facts.recently.seconds >= 1 else Speed(facts.documents, facts.bytes, max(1.0, seconds))
    nodes = [node_of(node, end) for node in facts.nodes]
    if state not in ("running", "silent"):
        for node in nodes:
            if node["state"] == "running":
                node.update({"state": "broke off", "left": None, "left_words": ""})
    run = RecordedRun.of(record_so_far(record, {}, state))
    dashboard = facts.dashboard
    since = now - float(facts.updated)
    return {
        "state": state,
        "words": {
            "state": STATES.get(state, state)
            + (f" on {one_line(host)}" if host != platform.node() and state == "running" else ""),
            "elapsed": as_seconds(seconds),
            "documents": as_number(sum(reader.count.kept for reader in run.readers)),
            "speed": f"{as_number(recent.documents / recent.seconds)}/s",
            "volume": f"{as_bytes(recent.bytes / recent.seconds)}/s",
            "workers": as_number(float(facts.workers)),
            "left": left_of(nodes, facts.seconds_left if state == "running" else None, since),
            "news": f"{as_seconds(max(0.0, since))} ago",
            "message": str(facts.message or ""),
        },
        "dashboard": dashboard if is_web(dashboard) and state == "running" else None,
        "nodes": nodes,
        "stages": [stage_of(stage.count) for stage in run.stages],
        "alarms": [str(alarm) for alarm in facts.alarms],
        "notes": [str(note) for note in facts.notes],
    }


STATES = {
    "running": "is running",
    "silent": "has given no sign of life for minutes: it is suspended, or cut off from this folder. The figures below "
    "are older",
    "stopped": "stopped without a message: its process is gone. Run the same command to resume",
    "failed": "failed. Run the same command to resume",
    "interrupted": "was interrupted. Run the same command to resume",
}


def stage_of(count: DocumentCounts) -> dict[str, str]:
    gone = count.lost + count.quarantined
    numbers = {name: as_number(getattr(count, name)) for name in ("docs_in", "kept", "lost", "quarantined")}
    return numbers | {"gone": as_share(gone, count.docs_in)}


def node_of(node: NodeProgress, now: float) -> NodeView:
    """One segment or global stage: how much of it is done, and how long the rest will take."""
    state, parts, done = str(node.state), node.parts, int(node.done)
    seconds = float(node.ended or now) - float(node.began) if node.began else None
    share = 1.0 if state == "done" else done / parts if parts and node.kind == "map" else 0.0
    left = None if state == "done" else node.seconds_left
    doing = f" · {node.doing}" if node.doing and state == "running" else ""
    of = f"{done:,} of {parts:,} parts" if parts and node.kind == "map" else f"{parts:,} parts" if parts else ""
    return {
        "name": str(node.name),
        "stages": ", ".join(str(stage) for stage in node.stages if stage != node.name),
        "state": state,
        "share": round(100 * share, 2),
        "parts": of + doing,
        "seconds": as_seconds(seconds),
        "left": left,
        "left_words": as_seconds(left) if left is not None else "",
    }


def left_of(nodes: Sequence[NodeView], whole: float | None, since: float) -> str:
    """Time left of the run, as it was known some seconds ago; else of the nodes of which it is known."""
    if whole is not None:
        return as_seconds(float(round(max(0.0, whole - max(0.0, since)))))
    unfinished = [node["left"] for node in nodes if node["state"] != "done"]
    known = [left for left in unfinished if left is not None]
    return f"{as_seconds(sum(known))} for {len(known)} of {len(unfinished)} nodes" if known else "not known yet"
