"""How a run goes on, as plain data that a page asks for every few seconds: legs and stages, speed, time left,
alarms."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from typing import TypedDict

from gristmill.pipeline.formatting import as_bytes, as_number, as_seconds, as_share, one_line
from gristmill.pipeline.json_types import JSON
from gristmill.pipeline.look.run_folder import DocumentCounts, Folder, NotFound, RecordedRun, record_so_far
from gristmill.pipeline.progress.progress import PATH, state_of
from gristmill.pipeline.report.sections import is_web


class LiveNode(TypedDict, total=False):
    """A leg or global stage in progress.json."""

    name: str
    kind: str
    stages: list[str]
    state: str
    doing: str | None
    parts: int | None
    done: int
    began: float | None
    ended: float | None
    seconds_left: float | None


class RecentSpeed(TypedDict, total=False):
    documents: int
    bytes: int
    seconds: float


class LiveRecord(TypedDict, total=False):
    """logs/progress.json."""

    state: str
    message: str | None
    process: dict[str, JSON]  # `pipeline/process_id.py`
    started: float
    updated: float
    workers: int
    dashboard: str | None
    documents: int
    bytes: int
    recently: RecentSpeed
    nodes: list[LiveNode]
    alarms: list[str]
    notes: list[str]
    seconds_left: float | None


class NodeView(TypedDict):
    """A leg or global stage on the page."""

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
        record = Folder.open(out).json_as(PATH, LiveRecord)
    except NotFound:
        return {"state": "done"}
    except (ValueError, TypeError, OSError):
        return {"state": "unreadable"}
    try:
        return live_view(record, time.time())
    except (TypeError, ValueError, AttributeError, LookupError):
        return {"state": "unreadable"}


def live_view(facts: LiveRecord, now: float) -> ProgressView:
    """In words and shares; everything is text or a number, and the page takes it for nothing else."""
    state = state_of(facts, now)
    host = str((facts.get("process") or {}).get("host"))
    end = now if state == "running" else float(facts.get("updated") or now)
    seconds = max(0.0, end - float(facts.get("started") or end))
    recently: RecentSpeed = facts.get("recently") or {}
    within = float(recently.get("seconds") or 0)
    speed = (
        float(recently.get("documents") or 0) / within
        if within >= 1
        else float(facts.get("documents") or 0) / max(1.0, seconds)
    )
    volume = (
        float(recently.get("bytes") or 0) / within
        if within >= 1
        else float(facts.get("bytes") or 0) / max(1.0, seconds)
    )
    nodes = [node_of(node, end) for node in facts.get("nodes") or []]
    if state not in ("running", "silent"):
        for node in nodes:
            if node["state"] == "running":
                node.update({"state": "broke off", "left": None, "left_words": ""})
    run = RecordedRun.of(record_so_far(facts, {}, state))
    dashboard = facts.get("dashboard")
    return {
        "state": state,
        "words": {
            "state": STATES.get(state, state)
            + (f" on {one_line(host)}" if host != platform.node() and state == "running" else ""),
            "elapsed": as_seconds(seconds),
            "documents": as_number(sum(reader.count.kept for reader in run.readers)),
            "speed": f"{as_number(speed)}/s",
            "volume": f"{as_bytes(volume)}/s",
            "workers": as_number(float(facts.get("workers") or 0)),
            "left": left_of(nodes, facts.get("seconds_left") if state == "running" else None, now - end_of(facts, now)),
            "news": f"{as_seconds(max(0.0, now - float(facts.get('updated') or now)))} ago",
            "message": str(facts.get("message") or ""),
        },
        "dashboard": dashboard if is_web(dashboard) and state == "running" else None,
        "nodes": nodes,
        "stages": [stage_of(stage.count) for stage in run.stages],
        "alarms": [str(alarm) for alarm in facts.get("alarms") or []],
        "notes": [str(note) for note in facts.get("notes") or []],
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


def node_of(node: LiveNode, now: float) -> NodeView:
    """One leg or global stage: how much of it is done, and how long the rest will take."""
    state, parts, done = str(node.get("state")), node.get("parts"), int(node.get("done") or 0)
    began, ended = node.get("began"), node.get("ended")
    seconds = (float(ended) if ended else now) - float(began) if began else None
    share = 1.0 if state == "done" else done / parts if parts and node.get("kind") == "map" else 0.0
    left = None if state == "done" else node.get("seconds_left")
    doing = f" · {node['doing']}" if node.get("doing") and state == "running" else ""
    of = f"{done:,} of {parts:,} parts" if parts and node.get("kind") == "map" else f"{parts:,} parts" if parts else ""
    return {
        "name": str(node.get("name")),
        "stages": ", ".join(str(stage) for stage in node.get("stages") or [] if stage != node.get("name")),
        "state": state,
        "share": round(100 * share, 2),
        "parts": of + doing,
        "seconds": as_seconds(seconds),
        "left": left,
        "left_words": as_seconds(left) if left is not None else "",
    }


def end_of(facts: LiveRecord, now: float) -> float:
    return float(facts.get("updated") or now)


def left_of(nodes: Sequence[NodeView], whole: float | None, since: float) -> str:
    """Time left of the run, as it was known some seconds ago; else of the nodes of which it is known."""
    if whole is not None:
        return as_seconds(float(round(max(0.0, whole - max(0.0, since)))))
    unfinished = [node["left"] for node in nodes if node["state"] != "done"]
    known = [left for left in unfinished if left is not None]
    return f"{as_seconds(sum(known))} for {len(known)} of {len(unfinished)} nodes" if known else "not known yet"
