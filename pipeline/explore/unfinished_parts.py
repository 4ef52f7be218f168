"""A run that has not ended, or broke off: its parts so far, from the journal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TypedDict

from gristmill.pipeline.look.records import LegManifest, PartFiles
from gristmill.pipeline.look.run_folder import Folder, RecordedRun
from gristmill.pipeline.store.partitions import staged
from gristmill.pipeline.store.records import Part

LARGEST_JOURNAL = 256 << 20  # bytes; beyond that a page would wait too long for parts that the manifests will name


class JournalResult(TypedDict, total=False):
    """What the journal says of a task that is done."""

    part: Part


def finished_parts(folder: Folder, run: RecordedRun, legs: list[LegManifest], troubles: list[str]) -> list[LegManifest]:
    """The legs, and those of which only some parts are done: the journal knows these. Files that are not there are left
    out."""
    done = {leg["leg"] for leg in legs}
    stages = {stage.name for stage in run.stages}
    by_leg: dict[str, dict[str, PartFiles]] = {}
    for result in results(folder, troubles):
        part = result.get("part")
        if isinstance(part, dict) and part.get("key"):
            for leg, files in files_by_leg(folder, part).items():
                if leg not in done:
                    by_leg.setdefault(leg, {})[str(part["key"])] = part_files(leg, part, files)
    present = {leg: set(folder.names(f"legs/{leg}")) for leg in by_leg}
    for leg, parts in by_leg.items():
        whole = [
            part for part in parts.values() if all(is_there(path, leg, present[leg]) for path in part["files"].values())
        ]
        legs = [*legs, {"leg": leg, "stages": [leg] if leg in stages else [], "parts": whole, "feeds": []}]
    return legs


def part_files(leg: str, part: Part, files: dict[str, str]) -> PartFiles:
    """The part as the manifest of a leg would have it. Of a torn journal any of it may be missing."""
    entry: PartFiles = {
        "key": part["key"],
        "source": str(part.get("source") or ""),
        "rows": int(part.get("rows") or 0),
        "kept": int(part.get("kept") or 0),
        "inputs": part.get("inputs") or [],
        "files": files,
    }
    if leg != part.get("leg"):
        entry["from"] = part.get("leg")
    return entry


def is_there(path: str, leg: str, present: set[str]) -> bool:
    return not path.startswith(f"legs/{leg}/") or path.rsplit("/", 1)[-1] in present


def files_by_leg(folder: Folder, part: Part) -> dict[str, dict[str, str]]:
    """The files of a part by the leg that made them, named as manifests do; those of a sink where they wait for the
    others."""
    files = [part.get("documents"), *(part.get("verdicts") or []), *(part.get("signals") or [])]
    by_leg: dict[str, dict[str, str]] = {}
    for file in (file for file in files if file):
        path = str(file["path"])
        if path.startswith("legs/") and path.count("/") == 2 and ".." not in path:
            by_leg.setdefault(path.split("/")[1], {})[path.rsplit(".", 2)[1]] = path
    for name, path in (part.get("sinks") or {}).items():
        if ".." not in str(path):
            lying = str(path) if folder.has(str(path)) else staged(str(path))
            by_leg.setdefault(str(part.get("leg")), {})[f"sink/{name}"] = lying
    return by_leg


def results(folder: Folder, troubles: list[str]) -> Iterator[JournalResult]:
    """What the journal says of tasks that are done; a torn line is no line."""
    for name in folder.names("journal"):
        if not name.endswith(".jsonl"):
            continue
        path = folder.full(f"journal/{name}")
        try:
            if int(folder.fs.info(path)["size"]) > LARGEST_JOURNAL:
                troubles.append(f"{path}: too long to look through while the run goes on")
                continue
            lines = bytes(folder.fs.cat_file(path)).split(b"\n")
        except OSError as error:
            troubles.append(f"{path}: cannot be read: {error}")
            continue
        for line in lines:
            try:
                result: JournalResult = json.loads(line)["result"]
            except (ValueError, TypeError, KeyError):
                continue
            if isinstance(result, dict):
                yield result
