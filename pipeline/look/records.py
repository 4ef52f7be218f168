"""What lies in a run's folder, as it is read: the keys are those on disk.

A run may have failed, be of an earlier version or still go on, so that any key of run.json may be missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NotRequired, TypeAlias, TypedDict

from gristmill.pipeline.json_types import JSON, JSONObject
from gristmill.pipeline.store.records import PartInput
from gristmill.pipeline.store.run_records import InputRecord

Value: TypeAlias = "bool | int | float | str | bytes | Sequence[Value] | Mapping[str, Value] | None"  # a Parquet cell
Row: TypeAlias = "dict[str, Value]"  # all columns of a Parquet row


# --- run.json ---------------------------------------------------------------------------------------------------------


class CountEntry(TypedDict, total=False):
    """What came into a stage, of one source or of all, and what became of it."""

    docs_in: int
    kept: int
    dropped: dict[str, int]  # by reason
    quarantined: int
    seconds: float
    bytes_in: int
    bytes_out: int
    text_bytes: int


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
    disk_bytes: int
    inputs: dict[str, InputRecord]
    cost: CostEntry | None
    stages: list[StageEntry]


# --- stages/STAGE/ ----------------------------------------------------------------------------------------------------


class SampleEntry(TypedDict, total=False):
    """A document in report.json or survey.json."""

    uid: str | None
    url: str | None
    source: str | None
    detail: str | None
    text: str | None


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


# --- legs/LEG/ --------------------------------------------------------------------------------------------------------

# Where the documents of a part came from: a stretch of an input file, or a part of an earlier leg.
PartFiles = TypedDict(
    "PartFiles",
    {
        "key": str,
        "source": str,
        "from": NotRequired[str | None],  # the leg beside whose documents the rows of a global stage lie
        "inputs": NotRequired[Sequence[PartInput]],
        "rows": int,
        "kept": int,
        "files": dict[str, str],  # documents, verdicts, signals, sink/NAME: their paths
    },
)
"""A part in a manifest."""


class LegManifest(TypedDict):
    """legs/LEG/manifest.json, of a leg or of a global stage."""

    leg: str
    stages: list[str]
    parts: list[PartFiles]
    feeds: NotRequired[list[str]]


# --- legs/LEG/survey.json ---------------------------------------------------------------------------------------------


class CutEntry(TypedDict):
    """A threshold of a rule."""

    stage: str
    field: str
    signal: str
    side: Literal["low", "high"]  # low: documents below it go; high: those above
    at_goes: bool  # does a document exactly at it go?
    value: float


class CutCounts(CutEntry):
    """A threshold, and how many documents it takes. Lists by bin are over the edges of its signal; lists by group are
    over the sources of the survey, each of documents and of what they weigh."""

    at: int  # its place among the edges
    takes: int
    reached: list[int]  # by bin
    free: list[list[int]]  # by group
    documents: list[list[int]]  # by group and bin
    weights: list[list[int]]


class SignalCounts(TypedDict):
    """The histogram of a signal."""

    edges: list[float]
    counts: list[int]
    places: list[float]  # of the edges in a drawing
    decades: bool
    knee: float | None
    low: float
    high: float


class RuleLines(TypedDict):
    """A rule as a recipe has it."""

    stage: str
    settings: JSONObject


class SurveySample(TypedDict):
    """Some documents of each group; what is packed is base64 of a byte a document."""

    sizes: list[int]
    groups: list[int]
    weights: list[int]
    gone: str
    bins: list[str]


class SurveyRecord(TypedDict):
    """The survey of a leg."""

    version: int
    leg: str
    weight: str | None
    sources: list[str]
    reach: list[list[int]]  # by group: documents that came to the rules, and what they weigh
    stay: list[list[int]]
    rules: dict[str, RuleLines]
    cuts: list[CutCounts]
    signals: dict[str, SignalCounts]
    languages: list[tuple[str, int, int]]  # name, documents that came, documents that stay
    more_languages: tuple[int, int, int]
    kept: list[SampleEntry]
    sample: SurveySample
