"""The legs of a run and their parts, as manifests have them, and rows of documents in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.pipeline.look.records import LegManifest, PartFiles, UrlRow
from gristmill.pipeline.look.run_folder import Folder, RecordedRun

ManifestReader: TypeAlias = Callable[[Folder, str], LegManifest]
PartName: TypeAlias = tuple[str, str]  # leg and key


def read_manifest(folder: Folder, path: str) -> LegManifest:
    return folder.json_as(path, LegManifest)


def legs_of(folder: Folder, run: RecordedRun, read: ManifestReader = read_manifest) -> list[LegManifest]:
    """Manifests of this run's legs and global stages, in the order in which documents pass them."""
    place = {stage.name: order for order, stage in enumerate(run.stages)}
    placed: list[tuple[int, str, LegManifest]] = []
    for name in folder.names("legs"):
        if not folder.has(f"legs/{name}/manifest.json"):
            continue
        leg = read(folder, f"legs/{name}/manifest.json")
        leg.setdefault("leg", name)
        leg.setdefault("stages", [name] if name in place else [])
        if all(stage in place for stage in leg["stages"]):  # else it is left from another version of the recipe
            first = any("path" in origin for part in leg["parts"] for origin in part.get("inputs") or [])
            without_stages = -1 if first else len(place)
            placed.append((min((place[stage] for stage in leg["stages"]), default=without_stages), name, leg))
    return [leg for _, _, leg in sorted(placed, key=lambda item: item[:2])]


def parents(part: PartFiles) -> set[PartName]:
    """The parts that a part was made of; none where it was read from files."""
    above = {(str(origin["from"]), str(origin["key"])) for origin in part.get("inputs") or [] if "from" in origin}
    beside = part.get("from")
    return above | ({(str(beside), str(part["key"]))} if beside else set())


def sinks_of(part: PartFiles) -> list[str]:
    """What sinks wrote of a part; a leg that only writes for others keeps its documents nowhere else."""
    return [path for name, path in sorted(part["files"].items()) if name.startswith("sink/")]


def row_of(folder: Folder, part: PartFiles, uid: int) -> int | None:
    """The row of a document in a part; a leg that only writes for others has it in what it wrote."""
    kept = [part["files"][name] for name in ("documents", "verdicts") if name in part["files"]]
    path = next(iter(kept + sinks_of(part)), None)
    if path is None:
        return None
    rows = np.flatnonzero(folder.column(path, ["uid"]).column(0).to_numpy() == np.uint64(uid))
    return int(rows[0]) if len(rows) else None


def url_of(folder: Folder, legs: Sequence[LegManifest], leg: LegManifest, uid: int) -> str | None:
    """The URL of a document of which a global stage wrote signals or verdicts."""
    homes = {(part.get("from"), part["key"]) for part in leg["parts"]}
    has_uid = pc.field("uid") == pa.scalar(uid, pa.uint64())
    for part in (part for home in legs for part in home["parts"] if (home["leg"], part["key"]) in homes):
        if "documents" in part["files"]:
            for row in folder.rows(part["files"]["documents"], UrlRow, has_uid, 1):
                return None if row.get("url") is None else str(row["url"])
    return None
