"""What lies in a run's folder, as it is read: the keys are those on disk.

A run may have failed, be of an earlier version or still go on, so that any key of run.json may be missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NotRequired, TypeAlias, TypedDict

from gristmill.pipeline.store.run_records import PartInput, RunRecord

# --- run.json ---------------------------------------------------------------------------------------------------------


ReadRunRecord: TypeAlias = RunRecord  # of any run: keys of one that failed may be missing


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
