"""What a run left behind, as plain data: its counts, its drops with samples, and how to show them in a terminal.

Functions that read return dataclasses, so that `--json` prints the same facts; functions that render make rich tables
of them. Crawled text is hostile: nothing of it reaches a terminal before `plain` took its control characters, or as
rich markup.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, TypedDict, TypeVar, cast

import fsspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gristmill.pipeline.errors import NotJson
from gristmill.pipeline.figures import FactList, Figures, Plane, Warnings, figures_of, recipe_name_of
from gristmill.pipeline.formatting import (
    as_bytes,
    as_hex,
    as_number,
    as_seconds,
    as_share,
    for_machines,
    nearest,
    one_line,
    plain,
)
from gristmill.pipeline.json_types import JSONObject
from gristmill.pipeline.look.records import PageEntry, ReadRunRecord, RejectRow
from gristmill.pipeline.plan.plan import in_one_order
from gristmill.pipeline.progress.progress import PATH as PROGRESS, state_of
from gristmill.pipeline.report_data.documents import Row, SampleEntry
from gristmill.pipeline.store.counts import Counts, CountsRecord, RunAccount
from gristmill.pipeline.store.run_records import RecipeRecord, StageRecord
from gristmill.pipeline.store.serialize import read_as
from gristmill.pipeline.store.storage import Store
from gristmill.pipeline.tables import Grid, cell
from gristmill.stages.figures import StageFigures

SHOWN_OF_PAGE = 800  # characters of a page in a terminal
SLOW_SHOWN = 5


Read = TypeVar("Read")


class NotFound(LookupError):
    """A run, stage, reason or document that is not there; the message says what is."""


# --- reading ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Folder:
    """An output folder, local or not; paths are relative to it."""

    fs: fsspec.AbstractFileSystem
    root: str

    @classmethod
    def open(cls, out: str) -> Folder:
        store = Store(out)
        return cls(store.fs, store.root)

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

    def read(self, path: str) -> bytes:
        try:
            return bytes(self.fs.cat_file(self.full(path)))
        except FileNotFoundError as error:
            raise NotFound(f"{self.full(path)}: no such file; is {self.root} the output folder of a run?") from error

    def json(self, path: str) -> JSONObject:
        """An object; `json_as` where the keys that it has are known."""
        return self.json_as(path, dict)

    def json_as(self, path: str, kind: type[Read]) -> Read:
        """A JSON object as a typed dictionary of this kind; which keys it has is not checked."""
        try:
            data: Read = dict(json.loads(self.read(path)))  # type: ignore[assignment]
            return data
        except (ValueError, RecursionError) as error:
            raise NotJson(self.full(path), error) from error

    def rows(self, path: str, kind: type[Read], where: pc.Expression, limit: int | None = None) -> list[Read]:
        """Rows of a Parquet file that satisfy a filter; read are the columns of this kind of row, as far as the file
        has them."""
        import pyarrow.dataset as pads  # with pandas

        columns = list(kind.__annotations__)
        dataset = pads.dataset(self.full(path), filesystem=self.fs, format="parquet", partitioning=None)
        scanner = dataset.scanner(columns=[name for name in columns if name in dataset.schema.names], filter=where)
        table = scanner.to_table() if limit is None else scanner.head(limit)
        return list(table.to_pylist())

    def columns(self, path: str) -> set[str]:
        with self.fs.open(self.full(path), "rb") as file:
            return set(pq.read_schema(file).names)

    def column(self, path: str, columns: Sequence[str]) -> pa.Table:
        with self.fs.open(self.full(path), "rb") as file:
            parquet = pq.ParquetFile(file)
            return parquet.read(columns=[name for name in columns if name in parquet.schema_arrow.names])

    def row(self, path: str, index: int) -> Row:
        """One row, all columns; only its row group is read."""
        with self.fs.open(self.full(path), "rb") as file:
            parquet = pq.ParquetFile(file)
            for group in range(parquet.num_row_groups):
                rows = parquet.metadata.row_group(group).num_rows
                if index < rows:
                    return dict(parquet.read_row_group(group).slice(index, 1).to_pylist()[0])
                index -= rows
        raise IndexError(f"{self.full(path)} has no row {index}")


@dataclass(frozen=True)
class DocumentCounts:
    """What came in and what became of it."""

    docs_in: int = 0
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    quarantined: int = 0
    text_bytes: int | None = None  # of what is kept
    made: int = 0  # of others, beside them

    @property
    def lost(self) -> int:
        return sum(self.dropped.values())

    @classmethod
    def of(cls, entry: CountsRecord) -> DocumentCounts:
        dropped = {str(reason): int(n) for reason, n in (entry.get("dropped") or {}).items()}
        kept, quarantined = int(entry.get("kept") or 0), int(entry.get("quarantined") or 0)
        docs_in, made = int(entry.get("docs_in") or 0), int(entry.get("made") or 0)
        return cls(docs_in, kept, dropped, quarantined, entry.get("text_bytes"), made)


@dataclass(frozen=True)
class SlowRow:
    """A document on which a stage spent long; `bytes` are those of its page, or text."""

    uid: str | None
    url: str | None
    source: str | None
    bytes: int
    seconds: float


@dataclass(frozen=True)
class StageCount:
    """One stage's entry in run.json."""

    name: str
    kind: str
    about: str
    settings: JSONObject
    count: DocumentCounts
    sources: dict[str, DocumentCounts]
    seconds: float | None
    bytes_in: int | None
    bytes_out: int | None
    peak_memory: int | None
    cost: float | None = None  # at the recipe's prices
    slowest: list[SlowRow] = field(default_factory=list)

    @classmethod
    def of(cls, entry: StageRecord) -> StageCount:
        sources = {str(source): DocumentCounts.of(counts) for source, counts in (entry.get("sources") or {}).items()}
        words = (str(entry.get("name") or ""), str(entry.get("kind") or ""), str(entry.get("about") or ""))
        sizes = (entry.get("bytes_in"), entry.get("bytes_out"), entry.get("peak_memory"))
        slowest = [
            SlowRow(slow.get("uid"), slow.get("url"), slow.get("source"), slow["bytes"], slow["seconds"])
            for slow in entry.get("slowest") or []
        ]
        settings = dict(entry.get("settings") or {})
        return cls(
            *words,
            settings,
            DocumentCounts.of(entry),
            sources,
            entry.get("seconds"),
            *sizes,
            entry.get("cost"),
            slowest,
        )

    @property
    def troubled(self) -> str:
        """The reason under which its quarantined documents lie."""
        return "damaged" if self.kind == "read" else "quarantined"

    @property
    def drops(self) -> dict[str, int]:
        """Documents that went, by reason, quarantined ones among them."""
        return self.count.dropped | ({self.troubled: self.count.quarantined} if self.count.quarantined else {})


@dataclass(frozen=True)
class RecordedRun:
    """run.json."""

    name: str
    status: str
    error: str | None  # of one that failed
    started: str
    finished: str
    seconds: float | None
    alarms: list[str]
    gristmill: str
    versions: dict[str, str]
    machine: JSONObject
    recipe: RecipeRecord
    stages: list[StageCount]

    @classmethod
    def of(cls, record: ReadRunRecord) -> RecordedRun:
        return cls(
            name=str(record.get("name") or ""),
            status=str(record.get("status") or ""),
            error=None if record.get("error") is None else str(record["error"]),
            started=str(record.get("started") or ""),
            finished=str(record.get("finished") or ""),
            seconds=record.get("seconds"),
            alarms=[str(alarm) for alarm in record.get("alarms") or []],
            gristmill=str(record.get("gristmill") or ""),
            versions=dict(record.get("versions") or {}),
            machine=dict(record.get("machine") or {}),
            recipe=record.get("recipe") or {},
            stages=[StageCount.of(entry) for entry in record.get("stages") or []],
        )

    @property
    def readers(self) -> list[StageCount]:
        return [stage for stage in self.stages if stage.kind == "read"]

    def stage(self, name: str) -> StageCount:
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise NotFound(f"no stage {one_line(name)!r} in this run{nearest(name, [stage.name for stage in self.stages])}")


@dataclass(frozen=True)
class SampleDocument:
    """A document that went, and why."""

    reason: str
    uid: str | None
    url: str | None
    source: str | None
    detail: str | None
    text: str | None


def record_in(folder: Folder) -> ReadRunRecord:
    """run.json of a run that ended, well or not; of one that goes on or was killed, what it would have by now."""
    record = folder.json_as("run.json", ReadRunRecord)
    if record.get("stages") or record.get("status") != "running" or not folder.has(PROGRESS):
        return record
    live = folder.json(PROGRESS)
    state = state_of(live, time.time())
    return record_so_far(live, record, "interrupted" if state == "stopped" else state)


def record_so_far(live: Mapping[str, Any], before: Mapping[str, Any], state: str) -> ReadRunRecord:
    """What run.json would have by now, of a run in this state; `live` is `logs/progress.json`."""
    nodes = [node for node in live.get("nodes") or [] if isinstance(node, dict)]
    account = RunAccount()
    for stage, sources in (live.get("stages") or {}).items():
        for source, count in sources.items():
            account.of(str(stage), str(source)).add(read_as(Counts, count))
    readers = dict.fromkeys(str(node["source"]) for node in nodes if node.get("source"))
    names = dict.fromkeys(
        [*readers, *in_one_order([[str(stage) for stage in node.get("stages") or []] for node in nodes])]
    )
    kinds = {str(node["name"]): "global" for node in nodes if node.get("kind") == "global"}
    recorded = {str(entry.get("name")): entry for entry in before.get("stages") or [] if isinstance(entry, dict)}
    started = float(live.get("started") or 0)
    record = {
        "name": live.get("name") or before.get("name"),
        "status": state,
        "error": live.get("message"),
        "started": datetime.fromtimestamp(started, UTC).isoformat(timespec="seconds") if started else "",
        "seconds": float(live.get("updated") or started) - started if started else None,
        "alarms": list(live.get("alarms") or []),
        "recipe": before.get("recipe") or {},
        "gristmill": before.get("gristmill") or "",
        "stages": [
            {
                "name": name,
                "kind": "read" if name in readers else kinds.get(name, str(recorded.get(name, {}).get("kind") or "")),
                "about": recorded.get(name, {}).get("about") or "",
                "settings": recorded.get(name, {}).get("settings") or {},
                **account.total(name).in_record(),
                "sources": {
                    source: count.in_record() for source, count in sorted(account.stages.get(name, {}).items())
                },
            }
            for name in names
        ],
    }
    return cast(ReadRunRecord, record)


class ReportSamples(TypedDict, total=False):
    """Documents in the report.json of a stage."""

    samples: dict[str, list[SampleEntry]]  # by reason
    pages: list[PageEntry]


@dataclass(frozen=True)
class StageView:
    """A stage's counts and some of what it dropped."""

    stage: StageCount
    reason: str | None
    samples: list[SampleDocument]
    pages: list[PageEntry] = field(
        default_factory=list
    )  # of extraction: what was taken, beside all that the page shows
    told: JSONObject = field(default_factory=dict)  # what the stage itself put into its report
    figures: StageFigures | None = None  # of `told`, for a terminal

    def as_data(self) -> dict[str, Any]:
        data = asdict(self)
        del data["figures"]
        return data


def stage_view(out: str, stage: str, reason: str | None = None, limit: int = 10) -> StageView:
    """A stage's counts with up to `limit` samples of what it dropped, of one reason or evenly of all."""
    folder = Folder.open(out)
    run = record_in(folder)
    entry = RecordedRun.of(run).stage(stage)
    reasons = list(entry.drops)
    if reason is not None and reason not in reasons:
        raise NotFound(f"stage {stage} dropped nothing for reason {one_line(reason)!r}{nearest(reason, reasons)}")
    wanted = [reason] if reason is not None else reasons
    path = f"stages/{stage}/report.json"
    report = folder.json(path) if folder.has(path) else {}
    shown: ReportSamples = folder.json_as(path, ReportSamples) if report else {}
    by_reason = {name: samples_of(folder, stage, name, shown.get("samples") or {}, limit) for name in wanted}
    turns = [
        (turn, order, sample) for order, group in enumerate(by_reason.values()) for turn, sample in enumerate(group)
    ]
    chosen = sorted(sorted(turns, key=lambda item: item[:2])[:limit], key=lambda item: (item[1], item[0]))
    samples = [sample for _, _, sample in chosen]
    if reason is not None:
        return StageView(entry, reason, samples)
    counted = next(stage_entry for stage_entry in run["stages"] if stage_entry["name"] == stage)
    told = {key: value for key, value in report.items() if key not in {*counted, "samples", "pages"}}
    figures = figures_of(recipe_name_of(counted), report)
    return StageView(entry, reason, samples, list(shown.get("pages") or []), told, figures)


def samples_of(
    folder: Folder, stage: str, reason: str, reported: Mapping[str, Sequence[SampleEntry]], limit: int
) -> list[SampleDocument]:
    """Samples that the stage's report holds; where they are too few, the rejects themselves."""
    samples = [
        SampleDocument(reason, row.get("uid"), row.get("url"), row.get("source"), row.get("detail"), row.get("text"))
        for row in reported.get(reason) or []
    ]
    if len(samples) >= limit:
        return samples[:limit]
    rejected: list[SampleDocument] = []
    for name in folder.names(f"stages/{stage}/rejects"):
        path, of_reason = f"stages/{stage}/rejects/{name}", pc.field("reason") == reason
        for row in folder.rows(path, RejectRow, of_reason, limit - len(rejected)):
            rejected.append(
                SampleDocument(reason, as_hex(row["uid"]), row["url"], row["source"], row["detail"], row.get("text"))
            )
        if len(rejected) >= limit:
            break
    return rejected if len(rejected) > len(samples) else samples


def as_json(data: object) -> str:
    """For `--json`. Every control character is escaped, so that it is safe to print too."""
    return json.dumps(data, default=for_machines).replace("\x7f", "\\u007f")


# --- terminal ---------------------------------------------------------------------------------------------------------


def grid(
    title: str,
    columns: Sequence[str],
    rows: Iterator[Sequence[object]],
    words: int | Collection[int] = 1,
    spared: Sequence[int] = (),
) -> Grid:
    """A table whose first columns are words and whose others are numbers."""
    table = Grid(title, columns, words, spared)
    for row in rows:
        table.add_row(*row)
    return table


def by_size(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def render_stage(view: StageView) -> RenderableType:
    count = view.stage.count
    reasons = by_size(view.stage.drops)
    rows = ((reason, as_number(n), as_share(n, count.docs_in)) for reason, n in reasons)
    settings = [
        Text(f"  {one_line(str(key))} = {one_line(json.dumps(value))}", style="dim")
        for key, value in view.stage.settings.items()
    ]
    head = Text.assemble((one_line(view.stage.name), "bold"), f"  {one_line(view.stage.about)}")
    made = f"{as_number(count.made)} made of them, " if count.made else ""
    passed = Text(f"{as_number(count.docs_in)} in, {made}{as_number(count.kept)} kept", style="dim")
    parts: list[RenderableType] = [head, *settings, passed]
    parts += [Text(), grid("Drops", ("reason", "documents", "of its input"), rows)] if reasons else []
    slowest = (
        (slow.uid, slow.url, as_bytes(slow.bytes), as_seconds(slow.seconds)) for slow in view.stage.slowest[:SLOW_SHOWN]
    )
    parts += (
        [Text(), grid("Slowest documents", ("uid", "url", "size", "time"), slowest, 2)] if view.stage.slowest else []
    )
    for block in view.figures.blocks if view.figures is not None else ():
        if isinstance(block, FactList | Warnings | Figures | Plane):  # the others are for a page
            parts += [Text(), *render_block(block)]
    for sample in view.samples:
        title = " · ".join(one_line(part) for part in (sample.reason, sample.source, sample.uid, sample.detail) if part)
        lines = [Text(title, style="bold"), Text(one_line(sample.url or "no URL"), style="cyan")]
        parts += [Text(), *lines, Padding(Text(plain(sample.text or "")), (0, 0, 0, 2))]
    for page in view.pages:
        table = Table(title=cell(page["url"]), title_justify="left", show_lines=False, expand=True)
        for name, characters in (
            ("extracted", page["extracted_characters"]),
            ("visible", page["visible_characters"]),
        ):
            table.add_column(f"{name}, {as_number(characters)} characters", ratio=1, overflow="fold")
        table.add_row(*(Text(plain(text[:SHOWN_OF_PAGE])) for text in (page["extracted"], page["visible"])))
        parts += [Text(), table]
    return Group(*parts)


def render_block(block: FactList | Warnings | Figures | Plane) -> list[RenderableType]:
    """What a stage shows of itself, in a terminal."""
    if isinstance(block, FactList):
        title = [Text(one_line(block.title), style="bold")] if block.title else []
        pairs = Table.grid(padding=(0, 2))
        for name, value in block.pairs:
            pairs.add_row(Text(one_line(name), style="dim"), cell(value))
        return [*title, pairs]
    if isinstance(block, Warnings):
        return [Text(f"warning: {one_line(line)}", style="bold red") for line in block.lines]
    figures = block.table if isinstance(block, Plane) else block
    note = [Text(figures.note, style="dim")] if figures.note else []
    heading = Text(one_line(figures.title), style="bold")  # not the grid's own, which is no wider than the table
    return [heading, grid("", figures.head, iter(figures.rows), figures.words), *note]
