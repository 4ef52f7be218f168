"""JSON files of a run's folder as types: manifests, rules and run.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NotRequired, TypedDict

from gristmill.pipeline.json_types import JSON, JSONObject
from gristmill.pipeline.store.counts import CountsRecord
from gristmill.pipeline.store.records import Partition, RuleSpec
from gristmill.pipeline.store.serialize import read_as
from gristmill.pipeline.store.storage import Store

# Where the documents of a partition came from: a span of an input file, or a partition of an earlier node.
PartInput = TypedDict(
    "PartInput",
    {"source": str, "path": str, "start": int, "end": int | None, "from": str, "key": str},
    total=False,
)
# The node whose documents the rows of a global stage lie beside.
PartOwner = TypedDict("PartOwner", {"from": str}, total=False)
ManifestPart = TypedDict(
    "ManifestPart",
    {
        "key": str,
        "source": str,
        "from": NotRequired[str],  # as in `PartOwner`
        "inputs": Sequence[PartInput],
        "rows": int,
        "kept": int,
        "files": dict[str, str],
        "checksums": dict[str, str],
    },
)


class Manifest(TypedDict):
    """`partitions/NODE/manifest.json`: the parts of a segment or a global stage."""

    segment: str
    stages: list[str]
    feeds: list[str]
    fingerprint: str
    made_of: dict[str, str]  # stages' settings, code and packages in the fingerprint, by name
    rows: int
    parts: list[ManifestPart]


@dataclass(frozen=True)
class SegmentRules:
    """`partitions/SEGMENT/rules.json`: what the rules of a segment decide on, and where that is stored."""

    rules: tuple[RuleSpec, ...]
    parts: tuple[Partition, ...]


def rules_by_segment(store: Store) -> dict[str, SegmentRules]:
    """What the rules of each segment of a run decide on, by its name."""
    paths = sorted(path for path in store.files("partitions") if path.endswith("/rules.json"))
    return {path.split("/")[1]: read_as(SegmentRules, store.read_json(path)) for path in paths}


class SlowRecord(TypedDict):
    """A document, and how long a stage took over it."""

    uid: str | None
    url: str | None
    source: str | None
    bytes: int
    seconds: float


class StageRecord(CountsRecord):
    """A stage in run.json."""

    name: str
    stage: str
    kind: str
    about: str
    settings: JSONObject
    adds: list[str]
    peak_memory: int
    slowest: list[SlowRecord]
    cost: float | None
    sources: dict[str, CountsRecord]
    earlier_runs: NotRequired[list[JSONObject]]  # whose saved indexes the documents were held against


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
    cost: Cost | None


class InputRecord(TypedDict, total=False):
    """The input files of a source in run.json."""

    files: int
    bytes: int
    passed_over: PassedOver
    gone: GoneFiles
    estimate: WholeRecord
    fetch: FetchRecord


class Cost(TypedDict):
    amount: float
    currency: str


class RunFacts(TypedDict):
    """What only the run itself knows of run.json."""

    status: str
    error: str | None
    requests: dict[str, int] | None  # to object stores: by kind, retries among them, bytes in and out
    disk_bytes: int
    alarms: list[str]


class RejectsRecord(TypedDict, total=False):
    keep: float
    text: bool


class RecipeRecord(TypedDict, total=False):
    """The recipe as it was resolved; stages are a name, or a name with settings."""

    rejects: RejectsRecord
    sources: dict[str, JSONObject]
    stages: list[JSON]
    published: JSONObject | None  # what its publisher reports


class RunRecord(RunFacts):
    """run.json of a run that has ended, well or not."""

    name: str
    gristmill: str
    recipe: RecipeRecord
    versions: dict[str, str]
    machine: JSONObject
    started: str
    finished: str
    seconds: float
    start: dict[str, float]
    joules: float | None
    inputs: dict[str, InputRecord]
    bytes_written: dict[str, int]  # of results, rejects and intermediates
    cost: Cost | None
    stages: list[StageRecord]
