"""The folder of a run, read: its record, segments and parts, rejects, rules, surveys, reports, and rows of its files.

`RunFolder` is opened once, from an address on disk or in an object store, and reads a file when it is asked for it. All
that shows a run asks it and opens no file by itself. A run may have ended, failed, been killed, or be under way: what
`logs/progress.json` adds is in its record. A file that is not as Gristmill writes it is an error, or, in a lenient
folder, one of the `troubles` that are told beside the rest.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gristmill.pipeline.errors import NotJson, OtherShape, RecipeError
from gristmill.pipeline.formatting import nearest, one_line
from gristmill.pipeline.progress.progress import PATH as PROGRESS, state_of
from gristmill.pipeline.store.counts import Counts, RunAccount
from gristmill.pipeline.store.run_records import (
    OTHER_SHAPE,
    PartFiles,
    RejectRow,
    RunRecord,
    SegmentManifest,
    SegmentRules,
    StageRecord,
)
from gristmill.pipeline.store.serialize import read_as
from gristmill.pipeline.store.storage import Store

if TYPE_CHECKING:
    from gristmill.pipeline.report_data.documents import Places
    from gristmill.pipeline.report_data.histograms import SurveyRecord
    from gristmill.pipeline.store.records import Partition
    from gristmill.pipeline.tasks.bound_rule import BoundRule
    from gristmill.stages.stage import Stage

BATCH = 1024  # rows read at once
REJECT_COLUMNS = tuple(each.name for each in fields(RejectRow))

T = TypeVar("T")
Told = Mapping[str, Any]  # a stage's report.json
Matches = Callable[[pa.ChunkedArray], pa.ChunkedArray]  # which values of a column are meant


class NotFound(RecipeError, LookupError):
    """A run, stage, reason or document that is not there; the message says what is."""


@dataclass(frozen=True)
class RunFile:
    """A Parquet file of documents or of rejects."""

    path: str
    stage: str  # of rejects: who took them; of documents: the segment
    key: str  # the part, which gives rejects their names too
    source: str = ""

    @property
    def name(self) -> str:
        """Of the file alone: what tells it from the others of its stage, also while a run goes on and more come."""
        return self.path.rsplit("/", 1)[-1]


class RunFolder:
    """The output folder of a run as it is at one moment. Paths are relative to it."""

    def __init__(self, out: str | Path, lenient: bool = False) -> None:
        self.out, self.lenient = str(out), lenient
        self.store = Store(self.out)
        self.fs, self.root = self.store.fs, self.store.root
        self.troubles: list[str] = []

    # --- files --------------------------------------------------------------------------------------------------------

    def full(self, path: str) -> str:
        return f"{self.root}/{path}"

    def has(self, path: str) -> bool:
        return bool(self.fs.exists(self.full(path)))

    def names(self, path: str) -> list[str]:
        """Names directly below a folder, sorted; none where there is no such folder."""
        try:
            return sorted(
                str(address).rstrip("/").rsplit("/", 1)[-1] for address in self.fs.ls(self.full(path), detail=False)
            )
        except FileNotFoundError:
            return []

    def open(self, path: str) -> IO[bytes]:
        file: IO[bytes] = self.fs.open(self.full(path), "rb")
        return file

    def read(self, path: str) -> bytes:
        try:
            return bytes(self.fs.cat_file(self.full(path)))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFound(f"{self.full(path)}: no such file; is {self.root} the output folder of a run?") from error

    def json(self, path: str) -> dict[str, Any]:
        """A JSON object."""
        try:
            return dict(json.loads(self.read(path)))
        except (ValueError, TypeError, RecursionError) as error:
            raise NotJson(self.full(path), error) from error

    def shaped(self, path: str, shape: Callable[[dict[str, Any]], T]) -> T | None:
        """A JSON file as what `shape` makes of it. None where there is none, and where a lenient folder has one that
        is not as Gristmill writes it."""
        try:
            data = self.json(path)
            try:
                return shape(data)
            except OTHER_SHAPE as error:
                raise OtherShape(self.full(path), error) from error
        except NotFound:
            return None
        except (NotJson, OtherShape, OSError) as error:
            if not self.lenient:
                raise
            self.troubles.append(str(error))
            return None

    # --- the run ------------------------------------------------------------------------------------------------------

    @cached_property
    def record(self) -> RunRecord:
        """run.json of a run that ended, well or not; of one under way or killed, what it would have by now."""
        written, live = self._written, self._so_far.record
        if live is not None and (written is None or written.status == "running"):
            return live
        if written is None:
            if not self.lenient:
                self.read("run.json")  # says that there is none
            if not self.troubles:
                self.troubles.append(
                    "there is no run.json: nothing was run in this folder, or the run stopped before it began"
                )
        return written or RunRecord()

    @cached_property
    def _written(self) -> RunRecord | None:
        return self.shaped("run.json", RunRecord.from_json)

    @cached_property
    def _so_far(self) -> SoFar:
        before = self._written or RunRecord()
        return self.shaped(PROGRESS, lambda data: SoFar.of(data, before)) or SoFar()

    @property
    def state(self) -> str:
        """As `state_of` says of a run that left progress.json; of any other its status, `stopped` where it has none."""
        if self._so_far.record is not None:
            return self._so_far.state
        return "stopped" if self.record.status in ("", "running") else self.record.status

    @property
    def under_way(self) -> bool:
        return self.state in ("running", "silent")

    def stage(self, name: str) -> StageRecord:
        names = [stage.name for stage in self.record.stages]
        if name not in names:
            raise NotFound(f"no stage {one_line(name)!r} in this run{nearest(name, names)}")
        return self.record.stages[names.index(name)]

    @cached_property
    def stage_names(self) -> list[str]:
        """The run's stages; where nothing says which these are, those that left something."""
        return [stage.name for stage in self.record.stages] or self.names("stages")

    def report(self, stage: str) -> dict[str, Any]:
        """report.json of a stage; empty where there is none."""
        path = f"stages/{stage}/report.json"
        return self.json(path) if self.has(path) else {}

    def reports(self, kind: str | None = None) -> dict[str, Told]:
        """report.json of stages by name: of this kind (global ones alone count tokens), or of all. A failed run has
        fewer."""
        names = [stage.name for stage in self.record.stages if kind is None or stage.kind == kind]
        return {name: told for name in names if (told := self.report(name))}

    # --- segments and their parts -------------------------------------------------------------------------------------

    @cached_property
    def segments(self) -> list[SegmentManifest]:
        """Manifests of this run's segments and global stages, in the order in which documents pass them."""
        place = {name: order for order, name in enumerate(self.stage_names)}
        placed: list[tuple[int, str, SegmentManifest]] = []
        for name, segment in self._of_segments("manifest.json", SegmentManifest.from_json).items():
            if all(stage in place for stage in segment.stages):  # else left from another version of the recipe
                first = any(span.path for part in segment.parts for span in part.inputs)
                without_stages = -1 if first else len(place)
                placed.append((min((place[stage] for stage in segment.stages), default=without_stages), name, segment))
        return [segment for _, _, segment in sorted(placed, key=lambda item: item[:2])]

    @property
    def parts(self) -> Iterator[PartFiles]:
        return (part for segment in self.segments for part in segment.parts)

    def row_of(self, part: PartFiles, uid: int) -> int | None:
        """The row of a document in a part; a segment that only writes for others has it in what it wrote."""
        kept = [part.files[name] for name in ("documents", "verdicts") if name in part.files]
        path = next(iter([*kept, *part.sinks]), None)
        return None if path is None else self.row_with(path, uid)

    def url_of(self, segment: SegmentManifest, uid: int) -> str | None:
        """The URL of a document of which a global stage wrote signals or verdicts."""
        homes = {(part.owner, part.key) for part in segment.parts}
        for home in self.segments:
            for part in home.parts:
                if (home.segment, part.key) in homes and "documents" in part.files:
                    for row in self.rows(part.files["documents"], ["url"], "uid", one_of(uid), 1):
                        return None if row.get("url") is None else str(row["url"])
        return None

    @cached_property
    def documents(self) -> list[RunFile]:
        """Parts as they were read from the sources; where a segment wrote for others alone, what it wrote."""
        return [
            RunFile(path, segment.segment, part.key, part.source)
            for segment in self.segments
            for part in segment.parts
            if not part.parents and (path := part.files.get("documents") or next(iter(part.sinks), ""))
        ]

    @cached_property
    def part_of(self) -> dict[str, int]:
        """The place of each part among the documents' files, by its key."""
        return {file.key: number for number, file in enumerate(self.documents)}

    def sink_files(self, sink: str) -> list[str]:
        """What a sink wrote, of this version of the run."""
        return sorted({path for part in self.parts for name, path in part.files.items() if name == f"sink/{sink}"})

    @cached_property
    def rules(self) -> dict[str, SegmentRules]:
        """What the rules of each segment decide on, by its name."""
        return self._of_segments("rules.json", lambda data: read_as(SegmentRules, data))

    def _of_segments(self, name: str, shape: Callable[[dict[str, Any]], T]) -> dict[str, T]:
        """The files of a name that lie in folders of segments."""
        segments = self.names("partitions")
        found = {segment: self.shaped(f"partitions/{segment}/{name}", shape) for segment in segments}
        return {segment: data for segment, data in found.items() if data is not None}

    @cached_property
    def rules_by_name(self) -> dict[str, list[tuple[BoundRule, Partition]]]:
        """Rules of ours that decide on stored signals, each with the parts that it looked at. A user's own code is not
        run here, and a rule that cannot be made any more is left out."""
        from gristmill.pipeline.report_data.rejects import CANNOT_ASK  # with rules and their kernels
        from gristmill.pipeline.tasks.bound_rule import BoundRule

        by_name: dict[str, list[tuple[BoundRule, Partition]]] = {}
        for segment in (self.rules.get(segment.segment) for segment in self.segments):
            for spec in segment.rules if segment is not None else ():
                if segment is not None and spec.stage.get("code") is None:
                    try:
                        bound = BoundRule.of(spec)
                    except CANNOT_ASK:
                        continue
                    by_name.setdefault(bound.rule.called, []).extend((bound, part) for part in segment.parts)
        return by_name

    @cached_property
    def places(self) -> Places:
        """Where in texts reasons show themselves, as rules say and the stages that measured for them. Code of a user's
        own is not run here."""
        from gristmill.pipeline.recipe import registry
        from gristmill.pipeline.report_data.documents import Places
        from gristmill.pipeline.report_data.rejects import CANNOT_ASK

        stages: list[Stage] = []
        wanted: set[str] = set()
        for stage in sorted(self.record.stages, key=lambda stage: stage.kind != "rule"):
            asked = stage.kind == "rule" or wanted & set(stage.adds) or (stage.kind == "rewrite" and stage.drops)
            if asked and ".py:" not in stage.recipe_name:
                with suppress(*CANNOT_ASK):  # it cannot be made any more: a list is gone, say
                    stages.append(registry.find(stage.recipe_name)(**{**stage.settings, "name": stage.name}))
                    wanted |= {name for limit in getattr(stages[-1], "limits", ()) for name in limit.signals}
        return Places(stages)

    @cached_property
    def surveys(self) -> list[SurveyRecord]:
        """Histograms and thresholds of each segment, as its first rules come in the run."""
        from gristmill.pipeline.report_data.histograms import SurveyRecord  # with rules and their kernels

        place = {name: number for number, name in enumerate(self.stage_names)}
        found = self._of_segments("survey.json", lambda data: read_as(SurveyRecord, data))
        return sorted(
            found.values(),
            key=lambda survey: (min((place.get(name, 0) for name in survey.rules), default=0), survey.segment),
        )

    # --- rejects ------------------------------------------------------------------------------------------------------

    def rejects(self, stages: Sequence[str] | None = None) -> list[RunFile]:
        """What these stages took, or all, in their order."""
        return [file for stage in (self.stage_names if stages is None else stages) for file in self._rejects_of(stage)]

    def rejects_of_part(self, key: str) -> list[RunFile]:
        return self._rejects_by_key.get(key, [])

    @property
    def rejects_are_whole(self) -> bool:
        """Does the recipe keep every reject? Then what is in none was kept."""
        return bool(self.record.recipe) and self.record.share_of_rejects >= 1.0

    @cached_property
    def _rejects(self) -> dict[str, list[RunFile]]:
        return {}

    def _rejects_of(self, stage: str) -> list[RunFile]:
        """Names of files begin with the part's key."""
        if stage not in self._rejects:
            folder = f"stages/{stage}/rejects"
            names = [name for name in self.names(folder) if name.endswith(".parquet") and not name.startswith(".")]
            self._rejects[stage] = [RunFile(f"{folder}/{name}", stage, name.split(".")[0]) for name in names]
        return self._rejects[stage]

    @cached_property
    def _rejects_by_key(self) -> dict[str, list[RunFile]]:
        by_key: dict[str, list[RunFile]] = {}
        for file in self.rejects():
            by_key.setdefault(file.key, []).append(file)
        return by_key

    def reject_rows(
        self, files: Sequence[RunFile], column: str, matches: Matches, limit: int | None = None
    ) -> Iterator[tuple[str, RejectRow]]:
        """Rejects whose value in a column matches, each with the stage that took it."""
        for file in files:
            for row in self.rows(file.path, REJECT_COLUMNS, column, matches, limit):
                yield file.stage, RejectRow(**row)

    # --- Parquet ------------------------------------------------------------------------------------------------------

    def schema(self, path: str) -> pa.Schema:
        with self.open(path) as file:
            return pq.read_schema(file)

    def column(self, path: str, columns: Sequence[str]) -> pa.Table:
        """Whole columns of a file, as far as it has them."""
        with self.open(path) as file:
            parquet = pq.ParquetFile(file)
            return parquet.read(columns=[name for name in columns if name in parquet.schema_arrow.names])

    def rows(
        self, path: str, columns: Sequence[str], column: str, matches: Matches, limit: int | None = None
    ) -> list[dict[str, Any]]:
        """Rows of a file whose value in a column matches, with these columns as far as the file has them. That column
        is read first; the others of row groups with such a row alone."""
        found: list[dict[str, Any]] = []
        with self.open(path) as file:
            parquet = pq.ParquetFile(file, pre_buffer=False)
            there = parquet.schema_arrow.names
            for group in range(parquet.num_row_groups if column in there else 0):
                mask = matches(parquet.read_row_group(group, columns=[column]).column(0))
                if pc.any(mask).as_py():
                    names = [name for name in columns if name in there]
                    found += parquet.read_row_group(group, columns=names).filter(mask).to_pylist()
                if limit is not None and len(found) >= limit:
                    return found[:limit]
        return found

    def batches(
        self, paths: Sequence[str], columns: Sequence[str] | None = None, where: pc.Expression | None = None
    ) -> Iterator[pa.RecordBatch]:
        """All rows of files, file after file, few at a time."""
        names = None if columns is None else list(columns)
        for path in paths:
            yield from self._dataset(path).scanner(columns=names, filter=where, batch_size=BATCH).to_batches()

    def _dataset(self, path: str) -> Any:
        import pyarrow.dataset as pads  # with pandas

        return pads.dataset(self.full(path), filesystem=self.fs, format="parquet", partitioning=None)

    def row_with(self, path: str, uid: int) -> int | None:
        """The row of a file that has a uid."""
        rows = pc.indices_nonzero(one_of(uid)(self.column(path, ["uid"]).column(0)))
        return rows[0].as_py() if len(rows) else None

    def length(self, path: str) -> int:
        """Rows of a file, from its footer."""
        with self.open(path) as file:
            return int(pq.read_metadata(file).num_rows)


def one_of(*values: str | int) -> Matches:
    """Values that are one of these texts, or uids. `pa.array` would do, and imports pandas: 0.2 s of a command."""
    if all(isinstance(value, str) for value in values):
        texts = [str(value).encode("utf-8", "surrogatepass") for value in values]
        ends = np.cumsum([0, *map(len, texts)]).astype(np.int64)
        buffers, kind = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(texts))], pa.large_string()
    else:
        buffers, kind = [None, pa.py_buffer(np.array(values, np.uint64))], pa.uint64()
    wanted = pa.Array.from_buffers(kind, len(values), buffers)
    return lambda column: pc.is_in(column, value_set=wanted.cast(column.type))


@dataclass(frozen=True)
class SoFar:
    """A run under way or killed, by what it told on the way."""

    state: str = "stopped"
    record: RunRecord | None = None

    @classmethod
    def of(cls, live: Mapping[str, Any], before: RunRecord) -> SoFar:
        state = state_of(live, time.time())
        return cls(state, record_so_far(live, before, "interrupted" if state == "stopped" else state))


def record_so_far(live: Mapping[str, Any], before: RunRecord, state: str) -> RunRecord:
    """What run.json would have by now, of a run in this state; `live` is `logs/progress.json`, and `before` what
    run.json says until the run has ended."""
    from gristmill.pipeline.plan.plan import in_one_order  # with recipes and fingerprints

    nodes = [node for node in live.get("nodes") or [] if isinstance(node, dict)]
    account = RunAccount()
    for stage, sources in (live.get("stages") or {}).items():
        for source, count in sources.items():
            account.of(str(stage), str(source)).add(read_as(Counts, count))
    readers = dict.fromkeys(str(node["source"]) for node in nodes if node.get("source"))
    stages = [[str(stage) for stage in node.get("stages") or []] for node in nodes]
    names = dict.fromkeys([*readers, *in_one_order(stages)])
    kinds = {str(node["name"]): "global" for node in nodes if node.get("kind") == "global"} | dict.fromkeys(
        readers, "read"
    )
    known = {stage.name: stage for stage in before.stages}

    def so_far(name: str) -> StageRecord:
        old = known.get(name, StageRecord(name))
        return StageRecord(
            name,
            kind=kinds.get(name, old.kind),
            about=old.about,
            settings=old.settings,
            count=account.total(name).in_record(),
            sources={source: its.in_record() for source, its in sorted(account.stages.get(name, {}).items())},
        )

    started = float(live.get("started") or 0)
    return RunRecord(
        name=str(live.get("name") or before.name),
        status=state,
        error=None if live.get("message") is None else str(live["message"]),
        gristmill=before.gristmill,
        recipe=before.recipe,
        started=datetime.fromtimestamp(started, UTC).isoformat(timespec="seconds") if started else "",
        seconds=float(live.get("updated") or started) - started if started else None,
        alarms=[str(alarm) for alarm in live.get("alarms") or []],
        stages=[so_far(name) for name in names],
    )
