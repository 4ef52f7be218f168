"""What travels between driver, workers and the journal: files, partitions, tasks and their results.

All are frozen dataclasses. They become JSON at the boundary alone (`serialize.py`): in the answer of a worker or a
child process, in the journal and in files of the run's folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

from gristmill.pipeline.json_types import StageSpec
from gristmill.pipeline.store.counts import Counts, SlowDocument
from gristmill.stages.inputs import InputFile

# --- files ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileRef:
    """A file by its path below the run's folder, with its length, the checksum of its content, and what is known of the
    rows in it."""

    path: str
    bytes: int
    checksum: str
    content: str = ""  # of documents: the checksum that the file has without compression
    rows: int = 0
    schema: str = ""  # a hash of names and types of the columns
    store: str = ""  # the address of the folder, of a file outside the run's (a saved index)
    cells: tuple[int, int, int] | None = None  # of rows of some buckets: the first, how many, of how many in all
    run: str = ""  # of a saved index: the earlier run, for the column of that name
    own_columns: str = ""  # of a file of a sink that was given the columns of others: those that it had


Files: TypeAlias = dict[str, FileRef]  # of a task's result, by their role: `documents`, `signals`, `rejects/STAGE`


@dataclass(frozen=True)
class StoredRows:
    """Rows of a shuffle on disk, cut into buckets; the files of one round or of several."""

    files: tuple[FileRef, ...] = ()
    buckets: int = 1
    by: str | None = None  # the column by which they were cut
    listed: FileRef | None = None  # a file that names them, in tasks, where they are many

    def __add__(self, more: StoredRows) -> StoredRows:
        if not self.files and self.by is None:  # of an index that holds nothing yet
            return more
        if more.files and self.by != more.by:
            raise ValueError(f"rows cut by {self.by} and by {more.by} do not meet")
        return StoredRows(self.files + more.files, self.buckets, self.by)

    @property
    def count(self) -> int:
        return sum(f.rows for f in self.files)

    @property
    def bytes(self) -> int:
        return sum(f.bytes for f in self.files)


@dataclass(frozen=True)
class EarlierRun:
    """The run that saved an index: the part of a record that later runs name."""

    name: str  # of the recipe
    stage: str
    fingerprint: str  # of the stage
    documents: int  # that it kept
    rows: int


@dataclass(frozen=True)
class SavedIndex:
    """`index.json` beside rows that a run has saved for later runs."""

    facts: Mapping[str, Any]
    by: str | None
    buckets: int
    files: tuple[FileRef, ...]
    run: EarlierRun  # whose recipe and stage own it


# --- partitions -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InputSpan:
    """Where documents of a partition came from: a span of an input file, or a partition that another node stored."""

    source: str = ""
    path: str = ""
    start: int = 0
    end: int | None = None
    node: str = ""  # that stored the partition
    key: str = ""  # of that partition


@dataclass(frozen=True)
class Partition:
    """A partition of a data set: its documents file, and the verdict and signal files beside it."""

    key: str  # its name for good
    source: str
    home: int  # a hash of the key, by which rows of a global stage find back
    rows: int  # in its documents file
    kept: int  # of these, the documents that are still in
    text_bytes: int
    documents: FileRef | None
    verdicts: tuple[FileRef, ...] = ()
    signals: tuple[FileRef, ...] = ()
    inputs: tuple[InputSpan, ...] = ()
    node: str = ""  # that stored its documents
    sinks: Mapping[str, str] = field(default_factory=dict)  # by sink, the path of the file that it wrote


@dataclass(frozen=True)
class FileSpan:
    """A span of an input file that a task reads."""

    file: InputFile
    start: int
    end: int | None
    bytes: int  # of the file; start and end may be numbers of another kind (row groups)


# --- tasks ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RejectsSettings:
    """`rejects` of the recipe."""

    keep: float
    text: bool


@dataclass(frozen=True)
class RuleSpec:
    """A rule, and where it finds what it looks at (`plan.signals.seen_by`)."""

    stage: StageSpec
    columns: Mapping[str, str]
    texts: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Task:
    """A unit of work for a worker."""

    kind: str
    task: str  # its fingerprint, under which the journal knows it
    node: str
    key: str
    cost: int  # bytes
    out: str  # the run's folder
    gpu: bool = False
    lease: str | None = None  # the token of the driver's lease on the folder, once it is handed to a worker


@dataclass(frozen=True)
class Phase:
    """What a map task does with a partition and stores: the stages of a segment, or its rules. It is journaled by
    itself, so that a later run resumes behind it."""

    task: str  # a fingerprint of the inputs and of all phases up to this one
    segment: str
    stages: tuple[StageSpec, ...]  # empty where `rules` are not
    rules: tuple[RuleSpec, ...]
    documents: bool  # store documents, for later nodes or runs
    beside: bool  # store signals alone, beside the documents that are read
    measured_again: Mapping[str, Sequence[str]]
    texts_kept: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class MapTask(Task):
    """A partition through the phases of a map node that are not done yet."""

    kind: Literal["partition"] = "partition"
    phases: tuple[Phase, ...]
    rejects: RejectsSettings
    batch_bytes: int
    source: str
    reader: StageSpec | None = None
    part: Partition | None = None  # None where a reader gives the documents
    files: tuple[FileSpan, ...] = ()
    inputs: tuple[InputSpan, ...] = ()  # the same, as its partition notes them
    limit: int | None = None
    forgotten: str = ""  # the checksum of the list of documents that a reader leaves out
    compress: bool = True  # the documents that it stores


@dataclass(frozen=True, kw_only=True)
class ConformTask(Task):
    """A file of a sink that lacks columns which other files of the sink have."""

    kind: Literal["conform"] = "conform"
    file: FileRef
    columns: str  # a schema, as text
    own_columns: str  # those that a map task wrote


@dataclass(frozen=True, kw_only=True)
class NumbersTask(Task):
    """The numbers of a documents file that goes when the run has ended (`keep: signals`)."""

    kind: Literal["numbers"] = "numbers"
    documents: FileRef


@dataclass(frozen=True, kw_only=True)
class LookTask(Task):
    """A step of a look at what a run left, for the report. It is not of the journal: whoever needs it asks again."""

    kind: Literal["look"] = "look"
    step: str
    given: Any  # plain data; which depends on the step


RoundKind: TypeAlias = Literal[
    "map", "reduce", "join", "combine", "scan", "regroup", "publish", "mark", "drop", "rewrite"
]


@dataclass(frozen=True, kw_only=True)
class RoundTask(Task):
    """One task of a round of a global stage: what it reads and how it cuts what it writes."""

    kind: RoundKind
    stage: StageSpec
    method: str
    round: int
    parts: tuple[Partition, ...] = ()  # map, join, mark, drop, rewrite
    columns: tuple[str, ...] = ()  # of the documents: map, join, mark, rewrite
    rows: tuple[StoredRows, ...] = ()  # all but map and mark; several of reduce
    broadcast: StoredRows | None = None  # of a table that the method is called with
    bucket: int = 0
    buckets: int = 1  # into how many the rows are cut
    order: str | None = None  # scan
    uids: str | None = None  # join: the column that names the documents to read
    by: str | None = None  # the column by which its rows are cut
    cut: int = 1  # into how many buckets
    rejects: RejectsSettings = RejectsSettings(keep=1.0, text=True)  # mark, drop, rewrite


FOR_REPORTS = ("look",)  # kinds of tasks that only the report needs: a failure of one does not fail the run
NOT_JOURNALED = ("look", "conform")  # whoever needs them asks again


# --- results ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of a task: the files that it wrote, and what it took. This class is of tasks that only write files,
    such as rows of a shuffle."""

    kind: ClassVar[str] = "files"
    files: Files = field(default_factory=dict)
    log: Sequence[str] = ()
    peak_memory: int = 0
    seconds: float = 0.0
    requests: Mapping[str, int] = field(default_factory=dict)  # to object stores: by kind, retries, bytes in and out


@dataclass(frozen=True, kw_only=True)
class PhaseResult(Result):
    """What a phase of a map task made of its partition."""

    kind: ClassVar[str] = "phase"
    part: Partition
    counts: Mapping[str, Counts]  # by stage
    slowest: Mapping[str, Sequence[SlowDocument]] = field(default_factory=dict)
    rests_on: str = ""  # the identity of the partition that it was given


@dataclass(frozen=True, kw_only=True)
class MapResult(Result):
    """The results of the phases of a map task; None for rules that no document came to."""

    kind: ClassVar[str] = "partition"
    phases: tuple[PhaseResult | None, ...]


@dataclass(frozen=True, kw_only=True)
class VerdictsResult(Result):
    """Partitions after the last round of a global stage, or after the stage as a whole."""

    kind: ClassVar[str] = "verdicts"
    parts: tuple[Partition, ...]
    counts: Mapping[str, Counts]  # by source


@dataclass(frozen=True, kw_only=True)
class PublishResult(Result):
    """Files for others: of each, path, length, checksum, and what the stage says of it."""

    kind: ClassVar[str] = "published"
    published: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class LookResult(Result):
    """What a look saw: plain data, a few kilobytes."""

    kind: ClassVar[str] = "look"
    seen: Any


@dataclass(frozen=True, kw_only=True)
class Failure(Result):
    """Why there is no result."""

    kind: ClassVar[str] = "failure"
    message: str
    error: str = "RunFailed"  # the class of the error
    damaged: str = ""  # the path of a file that is not what was written
    trace: str = ""


def counts_by_source(task: Task, result: Result) -> dict[str, dict[str, Counts]]:
    """The counts of any task: by source, then by stage."""
    if isinstance(task, MapTask) and isinstance(result, MapResult):
        phases = [phase for phase in result.phases if phase is not None]
        return {task.source: {name: count for phase in phases for name, count in phase.counts.items()}}
    if isinstance(task, RoundTask) and isinstance(result, VerdictsResult):
        return {source: {task.node: count} for source, count in result.counts.items()}
    return {}


# What a global stage has for its report and for later stages, by name; each stage has keys of its own.
StageMetrics: TypeAlias = dict[str, Any]
