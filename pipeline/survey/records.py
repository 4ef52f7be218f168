"""What a survey leaves (`legs/LEG/survey.json`), and sample documents in reports: the keys are those on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, TypedDict

from gristmill.pipeline.json_types import JSONObject

Value: TypeAlias = "bool | int | float | str | bytes | Sequence[Value] | Mapping[str, Value] | None"  # a Parquet cell
Row: TypeAlias = "dict[str, Value]"  # all columns of a Parquet row


class SampleEntry(TypedDict, total=False):
    """A document in report.json or survey.json."""

    uid: str | None
    url: str | None
    source: str | None
    detail: str | None
    text: str | None


class CutEntry(TypedDict):
    """A threshold of a rule."""

    stage: str
    field: str
    signal: str
    side: Literal["low", "high"]  # low: documents below it go; high: those above
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
