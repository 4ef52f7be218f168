"""The segments of a run and their parts, as manifests have them, and rows of documents in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.pipeline.look.records import PartFiles, SegmentManifest, UrlRow
from gristmill.pipeline.look.run_folder import Folder, RecordedRun

ManifestReader: TypeAlias = Callable[[Folder, str], SegmentManifest]
PartName: TypeAlias = tuple[str, str]  # segment and key


def read_manifest(folder: Folder, path: str) -> SegmentManifest:
    return folder.json_as(path, SegmentManifest)


def segments_of(folder: Folder, run: RecordedRun, read: ManifestReader = read_manifest) -> list[SegmentManifest]:
    """Manifests of this run's segments and global stages, in the order in which documents pass them."""
    place = {stage.name: order for order, stage in enumerate(run.stages)}
    placed: list[tuple[int, str, SegmentManifest]] = []
    for name in folder.names("partitions"):
        if not folder.has(f"partitions/{name}/manifest.json"):
            continue
        segment = read(folder, f"partitions/{name}/manifest.json")
        segment.setdefault("segment", name)
        segment.setdefault("stages", [name] if name in place else [])
        if all(stage in place for stage in segment["stages"]):  # else it is left from another version of the recipe
            first = any("path" in origin for part in segment["parts"] for origin in part.get("inputs") or [])
            without_stages = -1 if first else len(place)
            placed.append((min((place[stage] for stage in segment["stages"]), default=without_stages), name, segment))
    return [segment for _, _, segment in sorted(placed, key=lambda item: item[:2])]


def parents(part: PartFiles) -> set[PartName]:
    """The parts that a part was made of; none where it was read from files."""
    above = {(str(origin["from"]), str(origin["key"])) for origin in part.get("inputs") or [] if "from" in origin}
    beside = part.get("from")
    return above | ({(str(beside), str(part["key"]))} if beside else set())


def sinks_of(part: PartFiles) -> list[str]:
    """What sinks wrote of a part; a segment that only writes for others keeps its documents nowhere else."""
    return [path for name, path in sorted(part["files"].items()) if name.startswith("sink/")]


def row_of(folder: Folder, part: PartFiles, uid: int) -> int | None:
    """The row of a document in a part; a segment that only writes for others has it in what it wrote."""
    kept = [part["files"][name] for name in ("documents", "verdicts") if name in part["files"]]
    path = next(iter(kept + sinks_of(part)), None)
    if path is None:
        return None
    rows = np.flatnonzero(folder.column(path, ["uid"]).column(0).to_numpy() == np.uint64(uid))
    return int(rows[0]) if len(rows) else None


def url_of(folder: Folder, segments: Sequence[SegmentManifest], segment: SegmentManifest, uid: int) -> str | None:
    """The URL of a document of which a global stage wrote signals or verdicts."""
    homes = {(part.get("from"), part["key"]) for part in segment["parts"]}
    has_uid = pc.field("uid") == pa.scalar(uid, pa.uint64())
    for part in (part for home in segments for part in home["parts"] if (home["segment"], part["key"]) in homes):
        if "documents" in part["files"]:
            for row in folder.rows(part["files"]["documents"], UrlRow, has_uid, 1):
                return None if row.get("url") is None else str(row["url"])
    return None
