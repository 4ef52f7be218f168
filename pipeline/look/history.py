"""One document's whole story: where it was read, each segment it passed, what every stage said of it and why, and where
it was written.

Only the column of uids is read to find it; then the one row group that it lies in. A later segment is searched only in
the parts that come from one where the document was found. Many documents are looked for in one pass over the files.
"""

from __future__ import annotations

import gzip
import json
import mmap
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pyarrow.compute as pc

from gristmill.pipeline.formatting import as_hex, one_line, uids_meant
from gristmill.pipeline.look.run_folder import NotFound, RunFolder, one_of
from gristmill.pipeline.report_data.documents import Row, Value
from gristmill.pipeline.report_data.histograms import CutCounts
from gristmill.pipeline.report_data.rejects import CANNOT_ASK, SIGNS, Held, reasons_in_part, rows_of
from gristmill.pipeline.store.records import InputSpan, Partition
from gristmill.pipeline.store.run_records import PartFiles, PartName, RejectRow, RunRecord, SegmentManifest
from gristmill.pipeline.tasks.bound_rule import BoundRule
from gristmill.stages.documents import BASE, PAGE, uid_of

PREVIEW = 600  # characters of text, as in samples
SHOWN = 50  # members of a cluster that are named
NOT_SIGNALS = {*BASE.names, *PAGE.names}
# How a record begins in files of whose records a reader makes uids from their places.
BEGINS = {
    ".warc.gz": re.compile(rb"\x1f\x8b\x08"),
    ".warc.zst": re.compile(rb"\x28\xb5\x2f\xfd"),
    ".warc": re.compile(rb"WARC/"),
    ".jsonl": re.compile(rb"^", re.MULTILINE),
}


@dataclass(frozen=True)
class FileSpan:
    """A stretch of a file. `certain` when the uid proves the file; else the document came from one of those listed.
    `offset` is the byte at which its record begins (of packed JSON lines, when unpacked), where that can be told."""

    source: str
    path: str
    start: int
    end: int | None
    certain: bool
    offset: int | None = None


@dataclass(frozen=True)
class Passage:
    """A part in which the document lies, and the signals that it got there."""

    segment: str
    part: str
    file: str
    row: int
    signals: Row


@dataclass(frozen=True)
class Judgement:
    """What a stage said: kept, dropped, quarantined, damaged or skipped."""

    stage: str
    verdict: str
    reason: str | None = None
    detail: str | None = None


@dataclass(frozen=True)
class Cluster:
    """Documents that a stage found to be the same; `kept` is the one that stayed."""

    stage: str
    reason: str
    kept: str
    size: int
    dropped: list[str]
    kept_url: str | None = None


@dataclass(frozen=True)
class Written:
    """A file of a sink that holds the document; `row` is None where the row could not be confirmed."""

    stage: str
    file: str
    row: int | None


@dataclass
class Story:
    """All that a run knows of one document; `uid` is None for a record that never became one."""

    uid: str | None
    source: str | None = None
    id: str | None = None
    url: str | None = None
    date: str | None = None
    meta: str | None = None
    text: str | None = None
    characters: int = 0
    read_from: list[FileSpan] = field(default_factory=list)
    passages: list[Passage] = field(default_factory=list)
    verdicts: list[Judgement] = field(default_factory=list)
    why: list[Held] = field(
        default_factory=list
    )  # every reason that held where it went, the first and those that would have taken it as well
    clusters: list[Cluster] = field(default_factory=list)
    written: list[Written] = field(default_factory=list)
    same_url: list[str] = field(default_factory=list)
    same_id: list[str] = field(default_factory=list)

    @property
    def outcome(self) -> str:
        last = self.verdicts[-1] if self.verdicts else None
        if last is None or last.verdict == "kept":
            return "kept"
        return f"{last.verdict} by {last.stage}" + (
            f": {last.reason}" if last.reason and last.reason != last.verdict else ""
        )


def history(folder: RunFolder, uid: int | str | None = None, url: str | None = None, id: str | None = None) -> Story:
    """The story of the document with this uid, or of the first with this URL or with this id of its source (the others
    are named in `same_url` and `same_id`)."""
    if sum(given is not None for given in (uid, url, id)) != 1:
        raise ValueError("history wants a uid, a URL or an id, one of them")
    if uid is not None:
        story = of_uid(folder, uid)
        find_records(folder, [story])
        return story
    return next(iter(histories(folder, "id" if url is None else "url", [str(id if url is None else url)])))


def histories(folder: RunFolder, column: str, values: Sequence[str]) -> Iterator[Story]:
    """The stories of documents by their URLs or ids, in this order; where one is not there, NotFound once the others
    are told. All are looked for in one pass."""
    wanted = dict.fromkeys(values)
    found: dict[str, dict[int, str]] = {value: {} for value in wanted}  # uids, each with the part it was read in
    for file in folder.documents:
        for row in folder.rows(file.path, ["uid", column], column, one_of(*wanted)):
            found[row[column]].setdefault(row["uid"], file.key)
    # What is dropped before documents are kept for later stages lies in the rejects alone.
    never: dict[str, Story] = {}
    for file in folder.rejects():
        for stage, reject in folder.reject_rows([file], column, one_of(*wanted)):
            value = str(getattr(reject, column))
            if reject.uid is not None:
                found[value].setdefault(reject.uid, file.key)
            else:
                never.setdefault(value, refused(stage, reject, folder.record))
    stories: dict[str, Story] = {}
    for value, uids in sorted(found.items(), key=lambda item: [*item[1].values()]):  # part by part
        if uids:
            first, *others = uids
            stories[value] = follow(folder, first, uids[first])
            setattr(stories[value], f"same_{column}", [f"{other:016x}" for other in others])
        elif value in never:
            stories[value] = never[value]
    find_records(folder, stories.values())
    yield from (stories[value] for value in wanted if value in stories)
    name = "URL" if column == "url" else column
    missing = [
        f"no document or skipped record of this run has the {name} {one_line(value)}"
        for value in wanted
        if value not in stories
    ]
    if missing:
        raise NotFound("\n".join(missing))


def refused(stage: str, row: RejectRow, run: RunRecord) -> Story:
    """The story of a record that lies in rejects alone."""
    text = row.text or ""
    story = Story(as_hex(row.uid), row.source, row.id, row.url, text=text[:PREVIEW], characters=len(text))
    trouble = row.reason in ("damaged", "quarantined")
    plainly = "skipped" if stage in [reader.name for reader in run.readers] else "dropped"
    story.verdicts.append(Judgement(stage, row.reason if trouble else plainly, row.reason, row.detail))
    return story


# --- where its record is ----------------------------------------------------------------------------------------------


def find_records(folder: RunFolder, stories: Iterable[Story]) -> None:
    """Give stories the byte at which their records begin, as far as input files are still there and of a kind in which
    a uid tells. A file is read once."""
    from gristmill.pipeline.inputs.files import REMEMBERED, remembered_in

    by_file: dict[tuple[str, str], dict[int, Story]] = {}
    for story in stories:
        for span in story.read_from if story.uid is not None else ():
            by_file.setdefault((span.source, span.path), {})[int(story.uid or "", 16)] = story
    try:
        addresses = remembered_in(folder.read(REMEMBERED)) if by_file else {}
    except (OSError, NotFound):
        return
    for (source, path), wanted in by_file.items():
        for address in (address for address in addresses if address == path or address.endswith(f"/{path}")):
            if wanted and Path(address).is_file():
                for offset, name in places_in(Path(address)):
                    uid = uid_of(source, path, name)
                    if uid in wanted:
                        story = wanted.pop(uid)
                        span = next(span for span in story.read_from if (span.source, span.path) == (source, path))
                        story.read_from = [replace(span, certain=True, offset=offset)]
                    if not wanted:
                        break


def places_in(path: Path) -> Iterator[tuple[int, str]]:
    """Bytes at which records may begin in a file, and what a reader calls such a place."""
    if path.name.endswith(".jsonl.gz"):
        at = 0
        with gzip.open(path) as lines:
            for line in lines:
                yield at, str(at)
                at += len(line)
        return
    ending = next((ending for ending in BEGINS if path.name.endswith(ending)), None)
    if ending is None or not path.stat().st_size:
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for match in BEGINS[ending].finditer(data):
            yield match.start(), f"{match.start()}" if ending == ".jsonl" else f"{match.start()}:0"


# --- following one document -------------------------------------------------------------------------------------------


def of_uid(folder: RunFolder, uid: int | str) -> Story:
    """The story of a document by its uid, as a number or as people write it."""
    readings = [uid] if isinstance(uid, int) else uids_meant(uid)
    stories, missing = (
        [],
        [f"{one_line(str(uid))!r} is no uid; write its 16 hex digits, or a decimal number below 2**64"],
    )
    for reading in readings:
        try:
            stories.append(follow(folder, reading))
        except NotFound as error:
            missing.append(str(error))
    if len(stories) > 1:
        both = " and ".join(f"0x{story.uid}" for story in stories)
        raise NotFound(f"{uid} is the uid of two documents, in hex and as a decimal number: {both}; name one of these")
    if not stories:
        raise NotFound("; ".join(missing[1:] or missing))
    return stories[0]


def follow(folder: RunFolder, uid: int, key: str | None = None) -> Story:
    """The story of a document; whoever knows the part in which it was read names it, and no other is searched."""
    story = Story(as_hex(uid))
    rows: dict[PartName, int] = {}  # the document's row, by segment and part
    for segment in folder.segments:
        if story.verdicts and story.verdicts[-1].verdict != "kept":
            break  # a global stage still has a row for it, beside those that it judged
        for part in segment.parts:
            above = part.parents
            if (above and not above & rows.keys()) or (key is not None and part.key != key):
                continue
            home = part.owner or segment.segment
            # A global stage that changes texts writes its parts again.
            rewritten = "documents" in part.files or home == segment.segment
            row = folder.row_of(part, uid) if rewritten else rows.get((home, part.key))
            if row is None:
                rows.pop((home, part.key), None)  # rows of later stages lie beside what was rewritten
                continue
            rows[segment.segment, part.key] = rows[home, part.key] = row
            pass_through(folder, segment, part, row, story)
            if part.owner:  # a global stage
                story.clusters += cluster_of(folder, segment, story)
            break
    for stage, reject in rejected(folder, uid, key):
        if not story.passages:
            story = refused(stage, reject, folder.record)
        elif story.verdicts[-1].verdict == "kept":  # quarantined: it is in no file of the segment that failed on it
            story.verdicts += refused(stage, reject, folder.record).verdicts
    if not story.verdicts:
        raise NotFound(
            f"no document {as_hex(uid)} in this run: not in its {len(folder.segments)} segments, and not in what its"
            " stages rejected"
        )
    return story


def rejected(folder: RunFolder, uid: int, key: str | None) -> Iterator[tuple[str, RejectRow]]:
    """Rejects of a document, by stage; with a key, those of one part."""
    files = folder.rejects() if key is None else folder.rejects_of_part(key)
    return folder.reject_rows(files, "uid", one_of(uid))


def pass_through(folder: RunFolder, segment: SegmentManifest, part: PartFiles, row: int, story: Story) -> None:
    """Add to a story what one part knows of the document in its row."""
    files = part.files
    document = row_of(folder, files["documents"], row) if "documents" in files else {}
    if not story.passages and not files.keys() & {"documents", "verdicts"}:
        # What it wrote has the columns of those who read it, so that nothing there is a signal.
        document = {
            name: value
            for path in part.sinks[:1]
            for name, value in row_of(folder, path, row).items()
            if name in NOT_SIGNALS
        }
    verdict: Row = row_of(folder, files["verdicts"], row) if "verdicts" in files else {"kept": True}
    if document:
        text = text_in(document, "text") or ""
        story.text, story.characters = text[:PREVIEW], len(text)
        story.source, story.id = text_in(document, "source"), text_in(document, "id")
        story.url, story.date, story.meta = (text_in(document, name) for name in ("url", "date", "meta"))
    columns = document | (row_of(folder, files["signals"], row) if "signals" in files else {})
    before = {name: value for passage in story.passages for name, value in passage.signals.items()}
    shown = {name: as_signal(name, value) for name, value in columns.items() if is_signal(name)}
    signals = {name: value for name, value in shown.items() if name not in before or before[name] != value}
    file = files.get("documents") or files.get("verdicts") or ""
    story.passages.append(Passage(segment.segment, part.key, file, row, signals))
    if not story.verdicts and story.source is not None:
        story.read_from = spans_of(part, story)
        story.verdicts.append(Judgement(story.source, "kept"))
    story.verdicts += judgements(folder.record, segment, verdict)
    if not verdict["kept"]:
        story.why = why_it_went(folder, segment.segment, part.key, files["verdicts"], row)
    story.written += [*written(folder, segment, part, story)]


def row_of(folder: RunFolder, path: str, row: int) -> Row:
    [found] = rows_of(folder.open, path, [row]).to_pylist()
    return dict(found)


def is_signal(column: str) -> bool:
    """Not what the reader knew, and no earlier version of the text."""
    return column not in NOT_SIGNALS and not column.startswith(("@", "text@"))


def as_signal(name: str, value: Value) -> Value:
    """A cluster goes by the uid of one of its documents."""
    return as_hex(value) if name.endswith("_cluster") and isinstance(value, int) else value


def text_in(row: Row, name: str) -> str | None:
    value = row.get(name)
    return value if isinstance(value, str) else None if value is None else str(value)


def spans_of(part: PartFiles, story: Story) -> list[FileSpan]:
    """The file it was read from: the one whose path gives the uid, else every file of its source in the part."""
    files: list[InputSpan] = [span for span in part.inputs if span.path and span.source == story.source]
    proven = [file for file in files if story.id and as_hex(uid_of(file.source, file.path, story.id)) == story.uid]
    chosen = proven or files
    return [FileSpan(file.source, file.path, file.start, file.end, len(chosen) == 1) for file in chosen]


def judgements(run: RunRecord, segment: SegmentManifest, verdict: Row) -> list[Judgement]:
    """One for each stage of a segment, up to the one that dropped the document."""
    readers = {stage.name for stage in run.readers}
    passed: list[Judgement] = []
    by = None if verdict["kept"] else str(verdict.get("stage"))
    for stage in (name for name in segment.stages if name not in readers):
        if stage == by:
            break
        passed.append(Judgement(stage, "kept"))
    if by is not None:
        reason, detail = text_in(verdict, "reason"), text_in(verdict, "detail")
        passed.append(Judgement(by, "quarantined" if reason == "quarantined" else "dropped", reason, detail))
    return passed


def written(folder: RunFolder, segment: SegmentManifest, part: PartFiles, story: Story) -> Iterator[Written]:
    """Files of sinks in this segment that the document reached, and its row there."""
    passed = {verdict.stage for verdict in story.verdicts if verdict.verdict == "kept"}
    sinks = {stage.name for stage in folder.record.sinks} & passed
    for sink in (name for name in segment.stages if name in sinks):
        file = part.files.get(f"sink/{sink}")
        row = None if file is None else folder.row_with(file, int(story.uid or "0", 16))
        if file is not None and row is not None:
            yield Written(sink, file, row)


def cluster_of(folder: RunFolder, segment: SegmentManifest, story: Story) -> list[Cluster]:
    """The documents that went with this one, where a detail names the one that stayed by its uid in hex."""
    last = story.verdicts[-1]
    named = [word.strip(".,;:()[]") for word in (last.detail or "").split()]
    kept = (
        next((word for word in named if len(word) == 16 and is_hex(word)), None)
        if last.verdict == "dropped"
        else story.uid
    )
    if kept is None:
        return []
    dropped: list[str] = []
    reason = ""
    for part in segment.parts:
        if "verdicts" not in part.files:
            continue
        naming = partial(pc.match_substring, pattern=kept)
        for row in folder.rows(part.files["verdicts"], ["uid", "reason"], "detail", naming):
            dropped.append(f"{row['uid']:016x}")
            reason = row["reason"]
    if not dropped:
        return []
    url = story.url if kept == story.uid else folder.url_of(segment, int(kept, 16))
    return [Cluster(segment.segment, reason, kept, len(dropped) + 1, sorted(dropped)[:SHOWN], url)]


def is_hex(word: str) -> bool:
    return all(letter in "0123456789abcdef" for letter in word)


# --- why it went ------------------------------------------------------------------------------------------------------


def why_it_went(folder: RunFolder, segment: str, key: str, verdicts: str, row: int) -> list[Held]:
    """Every reason that held of a document that a segment's rules took, as the verdicts have it, with numbers as far as
    they can be had.

    A rule from a file of the user's own is not run again here: its numbers are those of the survey.
    """
    reasons = stored_reasons(folder, verdicts, row)
    rules = folder.rules.get(segment)
    if not any(reasons.values()) or rules is None:
        return [Held(stage, reason) for stage, of_stage in reasons.items() for reason in of_stage]
    part = next((part for part in rules.parts if part.key == key), None)
    cuts = cuts_of(folder)
    asked: list[Held] = []
    for rule in rules.rules:
        if part is not None and rule.stage.get("code") is None:
            try:
                bound = BoundRule.of(rule)
                if reasons.get(bound.rule.called):
                    asked += reasons_in_part(folder.open, [bound], part, [row])[0].held
            except CANNOT_ASK:  # it reads a table that is gone, say; the verdicts and the survey are there still
                continue
    held: list[Held] = []
    for stage, of_stage in reasons.items():
        answered = [answer for answer in asked if answer.stage == stage]
        if {answer.reason for answer in answered} == set(of_stage):
            held += answered
        elif of_stage:
            held += from_survey(folder, stage, of_stage, [cut for cut in cuts if cut.stage == stage], part, row)
    return held


def stored_reasons(folder: RunFolder, verdicts: str, row: int) -> dict[str, list[str]]:
    """For each rule of a segment, in their order, the reasons that held of a document."""
    schema = folder.schema(verdicts)
    try:
        names = dict(json.loads((schema.metadata or {}).get(b"gristmill.reasons", b"{}")))
    except ValueError:
        return {}
    bits = rows_of(folder.open, verdicts, [row], {f"failed:{stage}" for stage in names})
    failed = {name.removeprefix("failed:"): int(bits.column(name)[0].as_py() or 0) for name in bits.column_names}
    return {
        stage: [reason for bit, reason in enumerate(reasons) if failed.get(stage, 0) >> bit & 1]
        for stage, reasons in names.items()
    }


def cuts_of(folder: RunFolder) -> list[CutCounts]:
    """The thresholds that the survey of a run found, each once: where sources have segments of their own, a rule that
    they share is in each."""
    cuts = [cut for survey in folder.surveys for cut in survey.cuts]
    return list({(cut.stage, cut.field, cut.signal, cut.side): cut for cut in cuts}.values())


def from_survey(
    folder: RunFolder, stage: str, reasons: Sequence[str], cuts: Sequence[CutCounts], part: Partition | None, row: int
) -> list[Held]:
    """Reasons of a rule that cannot be asked, with the thresholds that the document lies beyond."""
    values: Row = {}
    files = [part.documents, *part.signals] if part is not None else []
    for file in (file for file in files if file is not None):
        taken = rows_of(folder.open, file.path, [row], {cut.signal for cut in cuts})
        values |= {name: taken.column(name)[0].as_py() for name in taken.column_names}
    beyond = []
    for cut in cuts:
        value, low, limit = values.get(cut.signal), cut.side == "low", cut.value
        if isinstance(value, int | float) and (value < limit if low else value > limit):
            signal, field = cut.signal, cut.field
            beyond.append(Held(stage, None, signal, value, SIGNS[cut.side], limit, field, signal))
    if len(beyond) == len(reasons) == 1:
        return [replace(beyond[0], reason=reasons[0])]
    return [*(Held(stage, reason) for reason in reasons), *beyond]
