"""JSON files of a run's folder, and rows of its rejects, as types: who writes them and who reads them has the same.

Read once, at the boundary (`from_json`); written as they lie on disk (`to_json`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias, TypedDict, TypeVar

from gristmill.pipeline.errors import OtherShape
from gristmill.pipeline.json_types import JSONObject
from gristmill.pipeline.store.counts import DocumentCounts, SlowDocument
from gristmill.pipeline.store.records import InputSpan, Partition, RuleSpec
from gristmill.pipeline.store.serialize import read_as
from gristmill.pipeline.store.storage import Store

PartName: TypeAlias = tuple[str, str]  # segment and key

# --- partitions/NODE/ -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PartFiles:
    """A part in a manifest: the files that its segment or global stage wrote itself."""

    key: str
    source: str = ""
    owner: str = ""  # the node whose documents the rows of a global stage lie beside
    inputs: Sequence[InputSpan] = ()
    rows: int = 0
    kept: int = 0
    files: Mapping[str, str] = field(default_factory=dict)  # documents, verdicts, signals, sink/NAME: their paths
    checksums: Mapping[str, str] = field(default_factory=dict)

    @property
    def parents(self) -> set[PartName]:
        """The parts that it was made of; none where it was read from files."""
        above = {(span.node, span.key) for span in self.inputs if span.node}
        return above | ({(self.owner, self.key)} if self.owner else set())

    @property
    def sinks(self) -> list[str]:
        """What sinks wrote of it; a segment that only writes for others keeps its documents nowhere else."""
        return [path for name, path in sorted(self.files.items()) if name.startswith("sink/")]

    def to_json(self) -> JSONObject:
        """No times, so that runs can be compared."""
        return {
            "key": self.key,
            "source": self.source,
            **({"from": self.owner} if self.owner else {}),
            "inputs": [span_to_json(span) for span in self.inputs],
            "rows": self.rows,
            "kept": self.kept,
            "files": dict(self.files),
            "checksums": dict(self.checksums),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PartFiles:
        return cls(
            str(data["key"]),
            str(data.get("source") or ""),
            str(data.get("from") or ""),
            tuple(span_from_json(span) for span in data.get("inputs") or ()),
            int(data.get("rows") or 0),
            int(data.get("kept") or 0),
            {str(name): str(path) for name, path in data["files"].items()},
            dict(data.get("checksums") or {}),
        )


def span_to_json(span: InputSpan) -> JSONObject:
    if span.node:
        return {"from": span.node, "key": span.key}
    return {"source": span.source, "path": span.path, "start": span.start, "end": span.end}


def span_from_json(data: Mapping[str, Any]) -> InputSpan:
    if "from" in data:
        return InputSpan(node=str(data["from"]), key=str(data["key"]))
    return InputSpan(str(data["source"]), str(data["path"]), int(data.get("start") or 0), data.get("end"))


@dataclass(frozen=True)
class SegmentManifest:
    """`partitions/NODE/manifest.json`: the parts of a segment or a global stage."""

    segment: str
    stages: Sequence[str] = ()
    feeds: Sequence[str] = ()
    fingerprint: str = ""
    made_of: Mapping[str, str] = field(default_factory=dict)  # settings, code and packages in the fingerprint, by name
    rows: int = 0
    parts: Sequence[PartFiles] = ()

    def to_json(self) -> JSONObject:
        return {**vars(self), "parts": [part.to_json() for part in self.parts]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SegmentManifest:
        return cls(
            str(data["segment"]),
            [str(stage) for stage in listed(data, "stages")],
            [str(node) for node in listed(data, "feeds")],
            str(data.get("fingerprint") or ""),
            dict(data.get("made_of") or {}),
            int(data.get("rows") or 0),
            [PartFiles.from_json(part) for part in listed(data, "parts")],
        )


def listed(data: Mapping[str, Any], name: str) -> list[Any]:
    """A list, empty where it is missing; anything else is a TypeError."""
    held = data.get(name) or []
    if not isinstance(held, list):
        raise TypeError(f"{name}: a list was expected")
    return held


@dataclass(frozen=True)
class SegmentRules:
    """`partitions/SEGMENT/rules.json`: what the rules of a segment decide on, and where that is stored."""

    rules: tuple[RuleSpec, ...]
    parts: tuple[Partition, ...]


def rules_by_segment(store: Store) -> dict[str, SegmentRules]:
    """What the rules of each segment of a run decide on, by its name."""
    paths = sorted(path for path in store.files("partitions") if path.endswith("/rules.json"))
    return {path.split("/")[1]: read_as(SegmentRules, store.read_json(path)) for path in paths}


# --- the inputs in run.json -------------------------------------------------------------------------------------------


class PassedOver(TypedDict):
    """Files in the folders of a source that no source reads."""

    files: int
    bytes: int
    endings: dict[str, int]


class GoneFiles(TypedDict):
    """Files of the last run that are no longer among the inputs."""

    files: int
    named: list[str]


class WholeRecord(TypedDict):
    """How many documents a source has in all, from those that a part of it gave."""

    parts: int
    of: int
    documents: int
    low: int | None
    high: int | None


class FetchCost(TypedDict):
    amount: float
    currency: str


class FetchRecord(TypedDict):
    """What fetching the files of a crawl takes, as far as the run knows before it works."""

    root: str
    files: int
    requests: int  # still to be made, at most
    bytes: int
    cached_bytes: int  # that this machine has already
    gap: int | None  # bytes between records that are fetched with them
    listing_requests: int  # made to learn this
    listing_bytes: int
    cost: FetchCost | None


class InputRecord(TypedDict, total=False):
    """The input files of a source in run.json."""

    files: int
    bytes: int
    passed_over: PassedOver
    gone: GoneFiles
    estimate: WholeRecord
    fetch: FetchRecord


# --- run.json ---------------------------------------------------------------------------------------------------------


def place_in_words(inserted_for: str, moved_behind: str) -> str:
    """What the plan did with a stage; empty where it stands as in the recipe."""
    if inserted_for:
        return f"inserted for {inserted_for}"
    return f"moved: the recipe has it before {moved_behind}" if moved_behind else ""


@dataclass(frozen=True)
class StageRecord:
    """A stage in run.json."""

    name: str
    stage: str = ""  # its name in recipes
    kind: str = ""
    about: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    adds: Sequence[str] = ()
    count: DocumentCounts = field(default_factory=DocumentCounts)
    peak_memory: int | None = None
    slowest: Sequence[SlowDocument] = ()
    cost: float | None = None  # at the recipe's prices
    sources: Mapping[str, DocumentCounts] = field(default_factory=dict)
    earlier_runs: Sequence[JSONObject] = ()  # whose saved indexes the documents were held against
    inserted_for: str = ""  # the stage that needs what it measures, where the recipe does not name it
    moved_behind: str = ""  # a stage that the recipe has after it, and that documents met before it

    @property
    def place(self) -> str:
        """Where it stands, if the recipe does not have it there."""
        return place_in_words(self.inserted_for, self.moved_behind)

    @property
    def recipe_name(self) -> str:
        """Its name in recipes, where it may have a name of its own too."""
        return self.stage or self.name

    @property
    def troubled(self) -> str:
        """The reason under which its quarantined documents lie."""
        return "damaged" if self.kind == "read" else "quarantined"

    @property
    def drops(self) -> dict[str, int]:
        """Documents that went, by reason, quarantined ones among them."""
        return {**self.count.dropped} | ({self.troubled: self.count.quarantined} if self.count.quarantined else {})

    def to_json(self) -> JSONObject:
        return {
            "name": self.name,
            "stage": self.stage,
            "kind": self.kind,
            "about": self.about,
            "settings": dict(self.settings),
            "adds": list(self.adds),
            **self.count.to_json(),
            "peak_memory": self.peak_memory,
            "slowest": [asdict(document) for document in self.slowest],
            "cost": self.cost,
            "sources": {source: count.to_json() for source, count in self.sources.items()},
            **({"earlier_runs": list(self.earlier_runs)} if self.earlier_runs else {}),
            **({"inserted_for": self.inserted_for} if self.inserted_for else {}),
            **({"moved_behind": self.moved_behind} if self.moved_behind else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StageRecord:
        words: dict[str, Any] = {name: str(data.get(name) or "") for name in ("name", "stage", "kind", "about")}
        return cls(
            **words,
            settings=dict(data.get("settings") or {}),
            adds=[str(name) for name in listed(data, "adds")],
            count=DocumentCounts.from_json(data),
            peak_memory=data.get("peak_memory"),
            slowest=[SlowDocument(**slow) for slow in listed(data, "slowest")],
            cost=data.get("cost"),
            sources={str(name): DocumentCounts.from_json(its) for name, its in (data.get("sources") or {}).items()},
            earlier_runs=listed(data, "earlier_runs"),
            inserted_for=str(data.get("inserted_for") or ""),
            moved_behind=str(data.get("moved_behind") or ""),
        )


@dataclass(frozen=True)
class Cost:
    amount: float
    currency: str


@dataclass(frozen=True)
class RunRecord:
    """run.json of a run that has ended, well or not; of one under way, what it would have by now."""

    name: str = ""
    status: str = ""
    error: str | None = None  # of one that failed
    gristmill: str = ""
    recipe: Mapping[str, Any] = field(default_factory=dict)  # as it was resolved
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    started: str = ""
    finished: str = ""
    seconds: float | None = None
    start: Mapping[str, float] = field(default_factory=dict)
    joules: float | None = None  # of the driver's machine; None: no meter
    disk_bytes: int | None = None
    bytes_written: Mapping[str, int] = field(default_factory=dict)  # of results, rejects and intermediates
    inputs: Mapping[str, InputRecord] = field(default_factory=dict)
    alarms: Sequence[str] = ()
    cost: Cost | None = None
    requests: Mapping[str, int] | None = None  # to object stores: by kind, retries among them, bytes in and out
    stages: Sequence[StageRecord] = ()

    @property
    def done(self) -> bool:
        return self.status == "done"

    @property
    def readers(self) -> list[StageRecord]:
        return [stage for stage in self.stages if stage.kind == "read"]

    @property
    def sources(self) -> list[str]:
        """Their names, of the recipe."""
        return list(self.recipe.get("sources") or {})

    @property
    def sinks(self) -> list[StageRecord]:
        return [stage for stage in self.stages if stage.kind == "sink"]

    @property
    def share_of_rejects(self) -> float:
        """How much of what goes the recipe keeps."""
        return float((self.recipe.get("rejects") or {}).get("keep", 1.0))

    def to_json(self) -> JSONObject:
        return {
            **vars(self),
            "cost": None if self.cost is None else asdict(self.cost),
            "stages": [stage.to_json() for stage in self.stages],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RunRecord:
        """Of a run that failed, was killed or is under way any key may be missing; data of another shape is a
        TypeError, ValueError, AttributeError or LookupError."""
        given: dict[str, Any] = {
            name: str(data.get(name) or "") for name in ("name", "status", "gristmill", "started", "finished")
        }
        tables = ("recipe", "versions", "machine", "start", "bytes_written", "inputs")
        given |= {name: dict(data.get(name) or {}) for name in tables}
        given |= {name: data.get(name) for name in ("seconds", "joules", "disk_bytes", "requests")}
        return cls(
            **given,
            error=None if data.get("error") is None else str(data["error"]),
            alarms=[str(alarm) for alarm in listed(data, "alarms")],
            cost=Cost(**data["cost"]) if data.get("cost") else None,
            stages=[StageRecord.from_json(stage) for stage in listed(data, "stages")],
        )


OTHER_SHAPE = (TypeError, ValueError, AttributeError, LookupError)  # what JSON of another shape brings about
Shape = TypeVar("Shape", RunRecord, SegmentManifest)


def read_record(store: Store) -> RunRecord | None:
    """run.json as it lies in a run's folder; None where there is none."""
    data = store.read_json("run.json")
    return None if data is None else shaped(RunRecord, data, store.at("run.json"))


def shaped(kind: type[Shape], data: Any, path: str) -> Shape:
    try:
        return kind.from_json(data)
    except OTHER_SHAPE as error:
        raise OtherShape(path, error) from error


def read_if_whole(store: Store, path: str, kind: type[Shape]) -> Shape | None:
    """A file that the run can make again: None where there is none, or one that was cut off or altered."""
    data = store.read_json_if_whole(path)
    try:
        return None if data is None else kind.from_json(data)
    except OTHER_SHAPE:
        return None


# --- stages/STAGE/rejects/*.parquet -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class RejectRow:
    uid: int | None
    url: str | None
    source: str
    reason: str
    detail: str | None
    id: str | None = None  # of the source's own
    text: str | None = None
