"""Plain data of a run by kind: tasks, results, parts and counts.

Tasks and results travel to workers and back as they are. Parts, results and counts lie in the journal and in JSON files
of the run's folder. The keys here are those on the wire and on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict, cast, final

from gristmill.pipeline.json_types import JSONObject, StageSpec

# --- files ------------------------------------------------------------------------------------------------------------


class FilePath(TypedDict):
    """A file of the run, by its path below the run's folder."""

    path: str


class FileFacts(FilePath):
    """A file with its length, the checksum of its content, and what is known of the rows in it."""

    bytes: int
    checksum: str
    rows: NotRequired[int]
    schema: NotRequired[str]  # a hash of names and types of the columns
    store: NotRequired[str]  # the address of the folder, of a file outside the run's (a saved index)
    cells: NotRequired[tuple[int, int, int]]  # of rows of some buckets: the first, how many, of how many in all
    run: NotRequired[str]  # of a saved index: the earlier run, for the column of that name
    own_columns: NotRequired[str]  # of a file of a sink that was given the columns of others: those that it had


Files: TypeAlias = dict[str, FileFacts]  # of a task's result, by their role: `documents`, `signals`, `rejects/STAGE`


@final
class FewRows(TypedDict):
    """Rows of a round, in files that are named here."""

    files: Sequence[FileFacts]
    by: NotRequired[str | None]  # the column by which they were cut into buckets


@final
class ManyRows(TypedDict):
    """Rows of a round in so many files that a file of the run lists them."""

    list: str  # the path of that file
    checksum: str
    by: str | None


RowsHandle: TypeAlias = FewRows | ManyRows  # how a task is told which rows to read


class EarlierRun(TypedDict):
    """The run that saved an index: the part of a record that later runs name."""

    name: str  # of the recipe
    stage: str
    fingerprint: str  # of the stage
    documents: int  # that it kept
    rows: int


class SavedIndex(TypedDict):
    """`index.json` beside rows that a run has saved for later runs."""

    of: str  # recipe and stage that own it
    facts: JSONObject
    by: str | None
    buckets: int
    files: list[FileFacts]
    run: EarlierRun
    checksum: NotRequired[str]


# --- parts ------------------------------------------------------------------------------------------------------------

# Where the documents of a part came from: a stretch of an input file (source, path, start, end), or a part of an
# earlier leg (from, key).
PartInput = TypedDict(
    "PartInput",
    {"source": str, "path": str, "start": int, "end": int | None, "from": str, "key": str},
    total=False,
)


class Part(TypedDict):
    """A part of a data set: its documents file, and the verdict and signal files beside it."""

    leg: NotRequired[str]  # that wrote its documents
    key: str  # its name for good
    source: str
    home: int  # a hash of the key, by which rows of a global stage find back
    rows: int  # in its documents file
    kept: int  # of these, the documents that are still in
    text_bytes: int
    documents: FileFacts | None
    verdicts: list[FileFacts]
    signals: list[FileFacts]
    inputs: Sequence[PartInput]
    sinks: NotRequired[dict[str, str]]  # by sink, the path of the file that it wrote


class FileStretch(TypedDict):
    """A stretch of an input file that a task reads."""

    start: int
    end: int | None
    bytes: int
    address: str
    path: str
    size: int  # of the whole file
    stamp: NotRequired[str]  # of the version of a file that is fetched
    changed: NotRequired[int]  # of a local file: modification time, and hash of its content
    content: NotRequired[str]
    records: NotRequired[str]  # those that are read, if not all are


# --- counts -----------------------------------------------------------------------------------------------------------

# Of one input file: damaged records, the first of them (where, what), whether that is all of the file, and remarks.
FaultRecord: TypeAlias = tuple[int, tuple[int, str] | None, bool, list[str]]


@final
class CountRecord(TypedDict):
    """One stage's account of one source, as plain data (`counts.Count`)."""

    docs_in: int
    kept: int
    dropped: dict[str, int]
    quarantined: int
    seconds: float
    bytes_in: int
    bytes_out: int
    text_bytes: int
    made: NotRequired[int]
    absent: NotRequired[dict[str, int]]
    noted: NotRequired[dict[str, int]]
    nuls: NotRequired[int]
    faults: NotRequired[dict[str, FaultRecord]]  # by path


CountsByStage: TypeAlias = dict[str, CountRecord]
CountsBySource: TypeAlias = dict[str, CountsByStage]  # by source, then by stage


class SlowDocument(TypedDict):
    """A document, and how long a stage took over it."""

    uid: str | None
    url: str | None
    source: str | None
    bytes: int  # of its page, or of its text
    seconds: float


class PageSample(TypedDict):
    """A page as it was extracted, beside all that it shows."""

    uid: str
    url: str | None
    extracted: str
    visible: str
    extracted_characters: int
    visible_characters: int


# --- tasks ------------------------------------------------------------------------------------------------------------


class RejectsSettings(TypedDict):
    """`rejects` of the recipe."""

    keep: float
    text: bool


class RuleSpec(TypedDict):
    """A rule, and where it finds what it looks at (`plan.signals.seen_by`)."""

    stage: StageSpec
    columns: dict[str, str]
    texts: list[str]


class TaskHead(TypedDict):
    """What every task has."""

    task: str  # its fingerprint, under which the journal knows it
    node: str
    key: str
    cost: int  # bytes
    out: str  # the run's folder


class HeldTask(TaskHead):
    """A task as it is run, in a folder on which the driver has a lease. Tasks are made without one."""

    lease: NotRequired[str]  # the token of that lease


class Phase(TypedDict):
    """What a map task does with a partition and stores: the stages of a segment, or its rules. It is journaled by
    itself, so that a later run resumes behind it."""

    task: str  # a fingerprint of the inputs and of all phases up to this one
    segment: str
    stages: list[StageSpec]  # empty where `rules` are not
    rules: list[RuleSpec]
    documents: bool  # store documents, for later nodes or runs
    beside: bool  # store signals alone, beside the documents that are read
    measured_again: dict[str, list[str]]
    texts_kept: list[str]


class MapTask(TaskHead):
    """A partition through the phases of a map node that are not done yet."""

    kind: Literal["partition"]
    phases: list[Phase]
    rejects: RejectsSettings
    batch_bytes: int
    reader: StageSpec | None
    source: str
    part: Part | None  # None where a reader gives the documents
    files: list[FileStretch]
    inputs: list[PartInput]
    limit: int | None
    gpu: bool
    forgotten: NotRequired[str]  # the checksum of the list of documents that a reader leaves out


class ConformTask(TaskHead):
    """A file of a sink that lacks columns which other files of the sink have."""

    kind: Literal["conform"]
    file: FileFacts
    columns: str  # a schema, as text
    own_columns: str  # those that a map task wrote


class PagesFile(TypedDict):
    """The input file of a few pages for the report."""

    address: str
    path: str
    size: int
    start: int
    end: int | None
    stamp: NotRequired[str]
    records: NotRequired[str]
    changed: NotRequired[int]
    content: NotRequired[str]


class PagesTask(TaskHead):
    """A look at a few pages, for the report."""

    kind: Literal["pages"]
    reader: StageSpec
    source: str
    part: Part
    file: PagesFile
    patience: float


class NumbersTask(TaskHead):
    """The numbers of a documents file that goes when the run has ended (`keep: signals`)."""

    kind: Literal["numbers"]
    documents: FileFacts


class LookTask(TaskHead):
    """A step of a look at what a run left, for the report. It is not of the journal: whoever needs it asks again."""

    kind: Literal["look"]
    step: str
    given: Any  # plain data; which depends on the step


RoundKind: TypeAlias = Literal[
    "map", "reduce", "join", "combine", "scan", "regroup", "publish", "mark", "drop", "rewrite"
]


class RoundInputs(TypedDict, total=False):
    """What one task of a round reads and how it cuts what it writes; which of these it has depends on the round."""

    parts: list[Part]  # map, join, mark, drop, rewrite
    columns: list[str]  # of the documents: map, join, mark, rewrite
    rows: list[RowsHandle]  # all but map and mark; several of reduce
    broadcast: RowsHandle  # of a table that the method is called with
    bucket: int
    buckets: int  # into how many the rows are cut
    order: str | None  # scan
    uids: str | None  # join: the column that names the documents to read
    by: str | None  # the column by which its rows are cut
    cut: int  # into how many buckets
    rejects: RejectsSettings  # mark, drop, rewrite
    gpu: bool


class RoundTask(TaskHead, RoundInputs):
    """One task of a round of a global stage."""

    kind: RoundKind
    stage: StageSpec
    method: str
    round: int


Task: TypeAlias = MapTask | ConformTask | PagesTask | NumbersTask | LookTask | RoundTask
FOR_REPORTS = ("pages", "look")  # kinds of tasks that only the report needs: a failure of one does not fail the run
NOT_JOURNALED = ("look", "conform")  # whoever needs them asks again


# --- results ----------------------------------------------------------------------------------------------------------


class Result(TypedDict, total=False):
    """What came of a task, as a worker answers and as the journal keeps it; which keys it has depends on the kind."""

    phases: list[Result]  # partition; one for each phase, empty for rules that no document came to
    part: Part  # of a phase
    rests_on: str  # of a phase: the identity of the partition that it was given
    parts: list[Part]  # mark, drop, rewrite
    rows: int  # of the other rounds
    published: list[FileFacts]  # publish; with what the stage says of each file
    pages: list[PageSample]  # pages
    seen: Any  # look; plain data, a few kilobytes
    files: Files
    counts: CountsByStage | CountsBySource  # of a phase; mark, drop and rewrite
    log: list[str]
    peak_memory: int
    slowest: dict[str, list[SlowDocument]]  # of a phase
    seconds: float
    requests: dict[str, int]  # to object stores: by kind, retries, bytes in and out
    failed: str  # why there is no result
    error: str  # the class of that error
    damaged: str  # the path of a file that is not what was written
    trace: str
    searched: bool  # of a child that searched a batch: all its rows live
    died: bool  # of a worker that was given what one before it died over


def counts_by_stage(result: Result) -> CountsByStage:
    """The counts of a phase."""
    return cast(CountsByStage, result.get("counts", {}))


def counts_by_source(task: Task, result: Result) -> CountsBySource:
    """The counts of any task."""
    if task["kind"] == "partition":
        phases = result.get("phases", [])
        return {task["source"]: {name: count for phase in phases for name, count in counts_by_stage(phase).items()}}
    return cast(CountsBySource, result.get("counts") or {})


# What a global stage has for its report and for later stages, by name; each stage has keys of its own.
StageMetrics: TypeAlias = dict[str, Any]
