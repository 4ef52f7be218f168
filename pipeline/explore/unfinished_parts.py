"""A run that has not ended, or broke off: its parts so far, from the journal."""

from __future__ import annotations

from collections.abc import Iterator

from gristmill.pipeline.look.records import PartFiles, SegmentManifest
from gristmill.pipeline.look.run_folder import Folder, RecordedRun
from gristmill.pipeline.run.record import input_of
from gristmill.pipeline.store.journal import OtherLayout, TaskDone, entry_in
from gristmill.pipeline.store.partitions import staged
from gristmill.pipeline.store.records import Partition, PhaseResult

LARGEST_JOURNAL = 256 << 20  # bytes; beyond that a page would wait too long for parts that the manifests will name


def finished_parts(
    folder: Folder, run: RecordedRun, segments: list[SegmentManifest], troubles: list[str]
) -> list[SegmentManifest]:
    """The segments, and those of which only some parts are done: the journal knows these. Files that are not there are
    left out."""
    done = {segment["segment"] for segment in segments}
    stages = {stage.name for stage in run.stages}
    by_segment: dict[str, dict[str, PartFiles]] = {}
    for part in stored_partitions(folder, troubles):
        for segment, files in files_by_segment(folder, part).items():
            if segment not in done:
                by_segment.setdefault(segment, {})[part.key] = part_files(segment, part, files)
    present = {segment: set(folder.names(f"partitions/{segment}")) for segment in by_segment}
    for segment, parts in by_segment.items():
        whole = [
            part
            for part in parts.values()
            if all(is_there(path, segment, present[segment]) for path in part["files"].values())
        ]
        segments = [
            *segments,
            {"segment": segment, "stages": [segment] if segment in stages else [], "parts": whole, "feeds": []},
        ]
    return segments


def part_files(segment: str, part: Partition, files: dict[str, str]) -> PartFiles:
    """The part as the manifest of a segment would have it."""
    entry: PartFiles = {
        "key": part.key,
        "source": part.source,
        "rows": part.rows,
        "kept": part.kept,
        "inputs": [input_of(span) for span in part.inputs],
        "files": files,
    }
    if segment != part.node:
        entry["from"] = part.node
    return entry


def is_there(path: str, segment: str, present: set[str]) -> bool:
    return not path.startswith(f"partitions/{segment}/") or path.rsplit("/", 1)[-1] in present


def files_by_segment(folder: Folder, part: Partition) -> dict[str, dict[str, str]]:
    """The files of a part by the segment that made them, named as manifests do; those of a sink where they wait for the
    others."""
    by_segment: dict[str, dict[str, str]] = {}
    for file in (part.documents, *part.verdicts, *part.signals):
        if (
            file is not None
            and file.path.startswith("partitions/")
            and file.path.count("/") == 2
            and ".." not in file.path
        ):
            by_segment.setdefault(file.path.split("/")[1], {})[file.path.rsplit(".", 2)[1]] = file.path
    for name, path in part.sinks.items():
        if ".." not in path:
            by_segment.setdefault(part.node, {})[f"sink/{name}"] = path if folder.has(path) else staged(path)
    return by_segment


def stored_partitions(folder: Folder, troubles: list[str]) -> Iterator[Partition]:
    """The partitions that map tasks have left, from the journal; a torn line is no line."""
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
                entry = entry_in(line)
            except OtherLayout:
                continue
            if isinstance(entry, TaskDone) and isinstance(entry.result, PhaseResult):
                yield entry.result.part
