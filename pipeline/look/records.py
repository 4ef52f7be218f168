"""What lies in a run's folder, as it is read: the keys are those on disk.

A run may have failed, be of an earlier version or still go on, so that any key of run.json may be missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NotRequired, TypedDict

from gristmill.pipeline.json_types import JSON, JSONObject
from gristmill.pipeline.store.run_records import InputRecord, PartInput

# --- run.json ---------------------------------------------------------------------------------------------------------


class CountEntry(TypedDict, total=False):
    """What came into a stage, of one source or of all, and what became of it."""

    docs_in: int
    made: int
    kept: int
    dropped: dict[str, int]  # by reason
    quarantined: int
    seconds: float
    bytes_in: int
    bytes_out: int
    text_bytes: int
    noted: dict[str, int]  # what readers and stages had to say of documents, by name


class SlowEntry(TypedDict):
    """A document, and how long a stage took over it."""

    uid: str | None
    url: str | None
    source: str | None
    bytes: int
    seconds: float


class StageEntry(CountEntry, total=False):
    """A stage in run.json."""

    name: str
    stage: str  # its name in recipes
    kind: str
    about: str
    settings: JSONObject
    adds: list[str]
    peak_memory: int
    slowest: list[SlowEntry]
    cost: float | None
    sources: dict[str, CountEntry]


class CostEntry(TypedDict, total=False):
    amount: float
    currency: str


class ReadRejectsSettings(TypedDict, total=False):
    keep: float
    text: bool


class RecipeEntry(TypedDict, total=False):
    """The recipe as it was resolved; stages are a name, or a name with settings."""

    rejects: ReadRejectsSettings
    sources: dict[str, JSONObject]
    stages: list[JSON]
    published: JSONObject | None  # what its publisher reports


class ReadRunRecord(TypedDict, total=False):
    """run.json."""

    name: str
    status: str
    error: str | None
    gristmill: str
    recipe: RecipeEntry
    versions: dict[str, str]
    machine: JSONObject
    started: str
    finished: str
    seconds: float | None
    alarms: list[str]
    joules: float | None
    requests: dict[str, int] | None
    disk_bytes: int
    bytes_written: dict[str, int]
    inputs: dict[str, InputRecord]
    cost: CostEntry | None
    stages: list[StageEntry]


# --- stages/STAGE/ ----------------------------------------------------------------------------------------------------


class PageEntry(TypedDict):
    """A page as it was extracted, beside all that it shows."""

    uid: str
    url: str | None
    extracted: str
    visible: str
    extracted_characters: int
    visible_characters: int


class RejectRow(TypedDict):
    """A row of stages/STAGE/rejects/*.parquet."""

    uid: int | None
    url: str | None
    source: str
    reason: str
    detail: str | None
    id: NotRequired[str | None]  # of the source's own; runs of earlier versions have none
    text: NotRequired[str | None]


class UidRow(TypedDict):
    uid: int


class UrlRow(TypedDict):
    url: str | None


class DroppedRow(TypedDict):
    """Of a file of verdicts."""

    uid: int
    reason: str


class VerdictRow(TypedDict, total=False):
    """A row of a file of verdicts."""

    kept: bool
    stage: str
    reason: str | None
    detail: str | None


# --- partitions/LEG/ --------------------------------------------------------------------------------------------------

# Where the documents of a part came from: a stretch of an input file, or a part of an earlier segment.
PartFiles = TypedDict(
    "PartFiles",
    {
        "key": str,
        "source": str,
        "from": NotRequired[str | None],  # the segment beside whose documents the rows of a global stage lie
        "inputs": NotRequired[Sequence[PartInput]],
        "rows": int,
        "kept": int,
        "files": dict[str, str],  # documents, verdicts, signals, sink/NAME: their paths
    },
)
"""A part in a manifest."""


class SegmentManifest(TypedDict):
    """partitions/LEG/manifest.json, of a segment or of a global stage."""

    segment: str
    stages: list[str]
    parts: list[PartFiles]
    feeds: NotRequired[list[str]]
