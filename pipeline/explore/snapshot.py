"""What a run's folder holds, as lists in which requests are looked up: run.json, segments with their parts, rejects,
and how it goes.

A run that goes on, or broke off, has no run.json worth the name: its stages and counts come from `logs/progress.json`,
its parts from the manifests of segments that ended and from the journal.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import IO, Any, cast

import pyarrow.parquet as pq

from gristmill.pipeline.explore.live import live_view
from gristmill.pipeline.explore.unfinished_parts import finished_parts
from gristmill.pipeline.look.records import ReadRunRecord, SegmentManifest
from gristmill.pipeline.look.run_folder import Folder, NotFound, Read, RecordedRun, record_so_far
from gristmill.pipeline.look.segments import parents, read_manifest, segments_of, sinks_of
from gristmill.pipeline.progress.progress import PATH as PROGRESS, state_of
from gristmill.pipeline.report_data.rejects import CANNOT_ASK
from gristmill.pipeline.store.records import Partition
from gristmill.pipeline.store.run_records import SegmentRules
from gristmill.pipeline.store.serialize import read_as
from gristmill.pipeline.tasks.bound_rule import BoundRule

READ_WRONG = (TypeError, ValueError, AttributeError, LookupError)  # what JSON of another shape brings about
FRESH = 2.0  # seconds for which what was found in the folder is taken as it was
FRESH_REMOTE = 10.0


@dataclass(frozen=True)
class File:
    """A Parquet file of documents or of rejects, and where its rows stand among all of its kind."""

    path: str
    stage: str  # of rejects: who took them; of documents: the segment
    key: str  # the part, which gives rejects their names too
    source: str

    @property
    def name(self) -> str:
        """Of the file alone: what tells it from the others of its stage, also while a run goes on and more come."""
        return self.path.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Snapshot:
    """A run's folder at one moment."""

    folder: Folder
    record: ReadRunRecord  # run.json, or what a run that has not ended says of itself
    run: RecordedRun
    live: dict[str, Any] | None  # logs/progress.json
    state: str  # of the run, as `state_of` says; `stopped` without that file
    segments: list[SegmentManifest]
    troubles: list[str]

    @property
    def going_on(self) -> bool:
        return self.state in ("running", "silent")

    @cached_property
    def stage_names(self) -> list[str]:
        """The run's stages; where nothing says which these are, those that left something."""
        return [stage.name for stage in self.run.stages] or self.folder.names("stages")

    @property
    def source_names(self) -> list[str]:
        return [stage.name for stage in self.run.readers]

    @property
    def rejects_are_whole(self) -> bool:
        """Does the recipe keep every reject? Then what is in none was kept."""
        recipe = self.record.get("recipe") or {}
        rejects = (recipe.get("rejects") or {}) if isinstance(recipe, dict) else {"keep": 0.0}
        return float(rejects.get("keep", 1.0)) >= 1.0

    @cached_property
    def documents(self) -> list[File]:
        """Parts as they were read from the sources; where a segment wrote for others alone, what it wrote."""
        files = []
        for segment in self.segments:
            for part in (part for part in segment["parts"] if not parents(part)):
                path = part["files"].get("documents") or next(iter(sinks_of(part)), None)
                if path is not None:
                    files.append(
                        File(str(path), str(segment["segment"]), str(part["key"]), str(part.get("source") or ""))
                    )
        return files

    @cached_property
    def part_of(self) -> dict[str, int]:
        """The place of each part among the documents' files, by its key."""
        return {file.key: number for number, file in enumerate(self.documents)}

    @cached_property
    def signal_files(self) -> dict[str, list[str]]:
        """Files with signals of each part, by its key: documents, and what stages laid beside them."""
        by_key: dict[str, list[str]] = {}
        for segment in self.segments:
            for part in segment["parts"]:
                paths = [str(part["files"][kind]) for kind in ("documents", "signals") if kind in part["files"]]
                by_key.setdefault(str(part["key"]), []).extend(paths)
        return by_key

    @cached_property
    def rules(self) -> dict[str, list[tuple[BoundRule, Partition]]]:
        """Rules of ours that decide on stored signals, by name, each with the parts that it looked at. A user's own
        code is not run here."""
        by_name: dict[str, list[tuple[BoundRule, Partition]]] = {}
        for segment in self.segments:
            path = f"partitions/{segment['segment']}/rules.json"
            try:
                if not self.folder.has(path):
                    continue
                of_segment = read_as(SegmentRules, self.folder.json(path))
                ours = [BoundRule.of(rule) for rule in of_segment.rules if rule.stage.get("code") is None]
                for deciding in ours:
                    by_name.setdefault(deciding.rule.called, []).extend((deciding, part) for part in of_segment.parts)
            except (*READ_WRONG, *CANNOT_ASK):
                continue
        return by_name

    def folder_open(self, path: str) -> IO[bytes]:
        file: IO[bytes] = self.folder.fs.open(self.folder.full(path), "rb")
        return file

    def rejects(self, stages: Sequence[str]) -> list[File]:
        """What these stages took, in their order."""
        return [file for stage in stages for file in self._rejects.get(stage, [])]

    def rejects_of_part(self, key: str) -> list[File]:
        return self._rejects_by_key.get(key, [])

    @cached_property
    def _rejects(self) -> dict[str, list[File]]:
        return {stage: list(self._rejects_of(stage)) for stage in self.stage_names}

    @cached_property
    def _rejects_by_key(self) -> dict[str, list[File]]:
        by_key: dict[str, list[File]] = {}
        for file in self.rejects(self.stage_names):
            by_key.setdefault(file.key, []).append(file)
        return by_key

    def _rejects_of(self, stage: str) -> Iterator[File]:
        """Names of files begin with the part's key."""
        for name in self.folder.names(f"stages/{stage}/rejects"):
            if name.endswith(".parquet") and not name.startswith("."):
                yield File(f"stages/{stage}/rejects/{name}", stage, name.split(".")[0], "")


def read_snapshot(out: str) -> Snapshot:
    """The folder as it is now. What cannot be read is said in `troubles`, and the rest is there."""
    folder = Folder.open(out)
    if "file" not in folder.fs.protocol:
        folder.fs.invalidate_cache()
    troubles: list[str] = []
    record = json_or_trouble(folder, "run.json", ReadRunRecord, troubles)
    live = json_or_trouble(folder, PROGRESS, dict[str, Any], troubles)
    has_stages = bool(record and record.get("stages"))  # a run that broke off has them too, unless it was killed
    ended = has_stages and live is None  # a run that ends well removes the file
    if record is None and live is None and not troubles:
        troubles.append("there is no run.json: nothing was run in this folder, or the run stopped before it began")
    if live is not None and not is_progress(live):
        troubles.append(f"{PROGRESS}: not as the mill writes it")
        live = None
    state = "stopped" if live is None else state_of(live, time.time())
    going = state in ("running", "silent")
    chosen = (
        record
        if record is not None and (live is None or (has_stages and not going))
        else record_so_far(live or {}, record or {}, state)
    )
    try:
        run = RecordedRun.of(chosen)
    except READ_WRONG as error:
        troubles.append(f"run.json: not as the mill writes it ({type(error).__name__}: {error})")
        chosen = cast(ReadRunRecord, {})
        run = RecordedRun.of(chosen)
    segments = manifests(folder, run, troubles)
    if not ended:
        segments = finished_parts(folder, run, segments, troubles)
    return Snapshot(folder, chosen, run, live, state, segments, troubles)


def json_or_trouble(folder: Folder, path: str, kind: type[Read], troubles: list[str]) -> Read | None:
    try:
        return folder.json_as(path, kind)
    except NotFound:
        return None
    except (ValueError, TypeError, OSError) as error:
        troubles.append(str(error))
        return None


def manifest_or_none(folder: Folder, path: str) -> SegmentManifest:
    """A manifest that cannot be read, or is none, is one without parts."""
    without_parts: SegmentManifest = {"segment": path.split("/")[1], "stages": [], "parts": []}
    try:
        manifest = read_manifest(folder, path)
    except (ValueError, TypeError, OSError):
        return without_parts
    return manifest if is_manifest(manifest) else without_parts


def is_manifest(manifest: SegmentManifest) -> bool:
    stages, parts = manifest.get("stages", []), manifest.get("parts")
    whole = isinstance(stages, list) and isinstance(parts, list)
    return whole and all(
        isinstance(part, dict) and "key" in part and isinstance(part.get("files"), dict) for part in parts or []
    )


def is_progress(live: Mapping[str, Any]) -> bool:
    try:
        live_view(live, 0.0)
    except READ_WRONG:
        return False
    return True


def manifests(folder: Folder, run: RecordedRun, troubles: list[str]) -> list[SegmentManifest]:
    try:
        segments = segments_of(folder, run, manifest_or_none)
    except READ_WRONG as error:
        troubles.append(f"segments: a manifest is not as the mill writes it ({type(error).__name__}: {error})")
        segments = []
    for path in (f"partitions/{name}/manifest.json" for name in folder.names("partitions")):
        manifest = json_or_trouble(folder, path, SegmentManifest, troubles) if folder.has(path) else None
        if manifest is not None and not is_manifest(manifest):
            troubles.append(f"{folder.full(path)}: not as the mill writes it")
    return segments


@dataclass
class Snapshots:
    """The snapshot, looked at anew once it is no longer fresh and something in it has changed; and lengths of files,
    which never change."""

    out: str
    _snapshot: Snapshot | None = None
    _seen: float = 0.0
    _stamp: object = None
    _lengths: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def now(self) -> Snapshot:
        with self._lock:
            local = self._snapshot is None or "file" in self._snapshot.folder.fs.protocol
            if self._snapshot is None or time.monotonic() - self._seen > (FRESH if local else FRESH_REMOTE):
                stamp = stamp_of(self.out)
                if self._snapshot is None or stamp != self._stamp or self._snapshot.going_on:
                    self._snapshot, self._stamp = read_snapshot(self.out), stamp
                self._seen = time.monotonic()
            return self._snapshot

    def length(self, snapshot: Snapshot, file: File) -> int:
        """Rows of a file, from its footer."""
        length = self._lengths.get(file.path)
        if length is None:
            with snapshot.folder.fs.open(snapshot.folder.full(file.path), "rb") as opened:
                length = int(pq.read_metadata(opened).num_rows)
            self._lengths[file.path] = length
        return length


def stamp_of(out: str) -> object:
    """What changes when a run's manifests do."""
    folder = Folder.open(out)
    paths = ["run.json", PROGRESS, *(f"partitions/{name}/manifest.json" for name in folder.names("partitions"))]
    return [facts_of(folder, path) for path in paths]


def facts_of(folder: Folder, path: str) -> dict[str, object] | None:
    try:
        info = folder.fs.info(folder.full(path))
    except OSError:
        return None
    return {name: info.get(name) for name in ("size", "mtime", "ino", "ETag", "LastModified")}
