"""A run that has not ended, or broke off: its parts so far, from the journal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gristmill.pipeline.look.run_folder import Folder, RecordedRun
from gristmill.pipeline.store.sinks import staged

LARGEST_JOURNAL = 256 << 20  # bytes; beyond that a page would wait too long for parts that the manifests will name


def finished_parts(
    folder: Folder, run: RecordedRun, legs: list[dict[str, Any]], troubles: list[str]
) -> list[dict[str, Any]]:
    """The legs, and those of which only some parts are done: the journal knows these. Files that are not there are left
    out."""
    done = {leg["leg"] for leg in legs}
    stages = {stage.name for stage in run.stages}
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for result in results(folder, troubles):
        part = result.get("part")
        if isinstance(part, dict) and part.get("key"):
            for leg, files in files_by_leg(folder, part).items():
                if leg not in done:
                    home = {} if leg == part.get("leg") else {"from": part.get("leg")}
                    facts = {name: part.get(name) for name in ("key", "source", "rows", "kept")}
                    origin = {"inputs": part.get("inputs") or []}
                    found.setdefault(leg, {})[str(part["key"])] = facts | home | origin | {"files": files}
    present = {leg: set(folder.names(f"legs/{leg}")) for leg in found}
    for leg, parts in found.items():
        whole = [
            part for part in parts.values() if all(is_there(path, leg, present[leg]) for path in part["files"].values())
        ]
        legs = [*legs, {"leg": leg, "stages": [leg] if leg in stages else [], "parts": whole, "feeds": []}]
    return legs


def is_there(path: str, leg: str, present: set[str]) -> bool:
    return not path.startswith(f"legs/{leg}/") or path.rsplit("/", 1)[-1] in present


def files_by_leg(folder: Folder, part: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """The files of a part by the leg that made them, named as manifests do; those of a sink where they wait for the
    others."""
    made = [part["documents"]] if part.get("documents") else []
    made += [*(part.get("verdicts") or []), *(part.get("signals") or [])]
    found: dict[str, dict[str, str]] = {}
    for facts in made:
        path = str(facts["path"])
        if path.startswith("legs/") and path.count("/") == 2 and ".." not in path:
            found.setdefault(path.split("/")[1], {})[path.rsplit(".", 2)[1]] = path
    for name, path in (part.get("sinks") or {}).items():
        if ".." not in str(path):
            lying = str(path) if folder.has(str(path)) else staged(str(path))
            found.setdefault(str(part.get("leg")), {})[f"sink/{name}"] = lying
    return found


def results(folder: Folder, troubles: list[str]) -> Iterator[dict[str, Any]]:
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
                entry = json.loads(line)
                result = entry["result"]
            except (ValueError, TypeError, KeyError):
                continue
            if isinstance(result, dict):
                yield result
