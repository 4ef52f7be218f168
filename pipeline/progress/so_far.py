"""What a run's folder says of a run that has not ended, or broke off: run.json, or, as long as it tells nothing,
`logs/progress.json`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from gristmill.pipeline.plan.plan import in_one_order
from gristmill.pipeline.progress.progress_file import PATH, state_of
from gristmill.pipeline.store.accounting import Count, RunAccount


class RecordFolder(Protocol):
    """A run's folder, as far as JSON files are asked of it."""

    def has(self, path: str) -> bool: ...

    def json(self, path: str) -> dict[str, Any]: ...


def record_in(folder: RecordFolder) -> dict[str, Any]:
    """run.json of a run that ended, well or not; of one that goes on or was killed, what it would say by now."""
    record = folder.json("run.json")
    if record.get("stages") or record.get("status") != "running" or not folder.has(PATH):
        return record
    live = folder.json(PATH)
    state = state_of(live, time.time())
    return record_so_far(live, record, "interrupted" if state == "stopped" else state)


def record_so_far(live: Mapping[str, Any], before: Mapping[str, Any], state: str) -> dict[str, Any]:
    """What run.json would say by now, of a run in this state."""
    nodes = [node for node in live.get("nodes") or [] if isinstance(node, dict)]
    account = RunAccount()
    for stage, sources in (live.get("stages") or {}).items():
        for source, count in sources.items():
            account.of(str(stage), str(source)).add(Count.from_plain(count))
    readers = dict.fromkeys(str(node["source"]) for node in nodes if node.get("source"))
    names = dict.fromkeys(
        [*readers, *in_one_order([[str(stage) for stage in node.get("stages") or []] for node in nodes])]
    )
    kinds = {str(node["name"]): "global" for node in nodes if node.get("kind") == "global"}
    recorded = {str(entry.get("name")): entry for entry in before.get("stages") or [] if isinstance(entry, dict)}
    started = float(live.get("started") or 0)
    return {
        "name": live.get("name") or before.get("name"),
        "status": state,
        "error": live.get("message"),
        "started": datetime.fromtimestamp(started, UTC).isoformat(timespec="seconds") if started else "",
        "seconds": float(live.get("updated") or started) - started if started else None,
        "alarms": list(live.get("alarms") or []),
        "recipe": before.get("recipe") or {},
        "gristmill": before.get("gristmill") or "",
        "stages": [
            {
                "name": name,
                "kind": "read" if name in readers else kinds.get(name, str(recorded.get(name, {}).get("kind") or "")),
                "about": recorded.get(name, {}).get("about") or "",
                "settings": recorded.get(name, {}).get("settings") or {},
                **account.total(name).plain(),
                "sources": {source: count.plain() for source, count in sorted(account.stages.get(name, {}).items())},
            }
            for name in names
        ],
    }
