"""JSON files of a run's folder, and rows of its rejects, as types: who writes them and who reads them has the same.

Read once, at the boundary (`from_json`); written as they lie on disk (`to_json`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeAlias, TypedDict, TypeVar, cast

from gristmill.pipeline.errors import OtherShape
from gristmill.pipeline.json_types import JSONObject
from gristmill.pipeline.store.counts import COUNTED, DocumentCounts, SlowDocument
from gristmill.pipeline.store.records import InputSpan, Partition, RuleSpec
from gristmill.pipeline.store.serialize import checked, plain, read_as
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
        """No times, so that runs can be compared."""
        return cast(JSONObject, plain(self))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SegmentManifest:
        return read_as(cls, data, lenient=True)


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
    earlier_runs: Sequence[Mapping[str, Any]] = ()  # whose saved indexes the documents were held against
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
        data: JSONObject = {
            **vars(self),
            "slowest": [asdict(document) for document in self.slowest],
            "sources": {source: count.to_json() for source, count in self.sources.items()},
            **self.count.to_json(),
        }
        return {name: held for name, held in data.items() if name != "count" and (held or name not in RARE)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StageRecord:
        """Its counts stand beside its name."""
        count = {name: data[name] for name in COUNTED if name in data}
        return read_as(cls, {"earlier_runs": [], **data, "count": count}, lenient=True)


RARE = ("earlier_runs", "inserted_for", "moved_behind")  # of few stages


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
        stages = [StageRecord.from_json(stage) for stage in checked(data.get("stages", []), (list,))]
        return replace(read_as(cls, {**data, "stages": []}, lenient=True), stages=stages)


OTHER_SHAPE = (TypeError, ValueError, AttributeError, LookupError)  # what JSON of another shape brings about
Shape = TypeVar("Shape", RunRecord, SegmentManifest)


def read_record(store: Store) -> RunRecord | None:
    """run.json as it lies in a run's folder; None where there is none."""
    data = store.read_json("run.json")
    try:
        return None if data is None else RunRecord.from_json(data)
    except OTHER_SHAPE as error:
        raise OtherShape(store.at("run.json"), error) from error


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
