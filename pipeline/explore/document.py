"""One document: found by its uid, its story, and its text in pieces."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gristmill.pipeline.explore.reading_turns import Turn
from gristmill.pipeline.explore.search import READ_ERRORS, unread
from gristmill.pipeline.explore.snapshot import File, Snapshot
from gristmill.pipeline.formatting import as_hex
from gristmill.pipeline.look.history import Story, follow, refused, rejected
from gristmill.pipeline.look.records import RejectRow
from gristmill.pipeline.look.run_folder import NotFound

PIECE = 20_000  # characters of a text on a page
ROWS = 64  # of a row group at a time, on the way to one text


@dataclass(frozen=True)
class Version:
    """The text of a document as a segment left it."""

    segment: str
    path: str
    row: int


@dataclass
class FoundDocument:
    """A document and all that the run knows of it."""

    story: Story
    part: int | None  # the place of its part among the documents' files
    versions: list[Version] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class TextPiece:
    """A stretch of a text."""

    text: str
    start: int
    characters: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


@dataclass(frozen=True)
class StillSearching:
    """Time was up before the document was found: so many parts were looked through."""

    parts: int
    of: int


def find(
    snapshot: Snapshot, uids: Sequence[int], part: int | None, skip: int, turn: Turn
) -> FoundDocument | StillSearching:
    """The document that has one of these uids (`uids_meant`). `part` says where a list saw it; `skip`, how many parts
    an earlier search went through."""
    troubles: list[str] = []
    files = snapshot.documents
    if part is not None and part < len(files):
        for uid in uids:
            if holds(snapshot, files[part], uid, troubles):
                return told(snapshot, uid, part, troubles)
    for number in range(skip, len(files)):
        if turn.over:
            return StillSearching(number, len(files))
        for uid in uids:
            if holds(snapshot, files[number], uid, troubles):
                return told(snapshot, uid, number, troubles)
    for uid in uids:
        for stage, row in reject_rows(snapshot, uid, turn, troubles):
            return FoundDocument(refused(stage, row, snapshot.run), None, troubles=troubles)
    named = " or ".join(str(as_hex(uid)) for uid in uids)
    raise NotFound(f"no document {named} in this run, and nothing that its stages rejected has that uid")


def rows_of(snapshot: Snapshot, file: File, uid: int) -> list[int]:
    """The rows of a file that have a uid: one, or none."""
    uids = snapshot.folder.column(file.path, ["uid"]).column(0).to_numpy()
    return [int(row) for row in np.flatnonzero(uids == np.uint64(uid))[:1]]


def holds(snapshot: Snapshot, file: File, uid: int, troubles: list[str]) -> bool:
    try:
        return bool(rows_of(snapshot, file, uid))
    except (*READ_ERRORS, IndexError) as error:
        troubles.append(unread(file, error))
        return False


def reject_rows(snapshot: Snapshot, uid: int, turn: Turn, troubles: list[str]) -> list[tuple[str, RejectRow]]:
    """A document that broke the stage which read it lies in rejects alone."""
    for file in snapshot.rejects(snapshot.stage_names):
        if turn.over:
            raise NotFound(
                f"{as_hex(uid)} is in no part of this run; time was up before all rejects were looked through"
            )
        if holds(snapshot, file, uid, troubles):
            rows = snapshot.folder.rows(file.path, RejectRow, pc.field("uid") == pa.scalar(uid, pa.uint64()), 1)
            return [(file.stage, row) for row in rows]
    return []


def told(snapshot: Snapshot, uid: int, number: int, troubles: list[str]) -> FoundDocument:
    """The story of a document of one part; where a file of it cannot be read, as much as its part and the rejects
    say."""
    file = snapshot.documents[number]
    try:
        story = follow(snapshot.folder, snapshot.run, snapshot.segments, uid, file.key)
    except (NotFound, *READ_ERRORS, TypeError, IndexError) as error:
        troubles.append(f"its story is not whole: {type(error).__name__}: {error}"[:400])
        story = Story(as_hex(uid), file.source)
        for stage, row in rejected(
            snapshot.folder, snapshot.run, pc.field("uid") == pa.scalar(uid, pa.uint64()), file.key
        ):
            story = refused(stage, row, snapshot.run)
    versions = [
        Version(passage.segment, passage.file, passage.row)
        for passage in story.passages
        if passage.file.endswith(".documents.parquet")
    ]
    versions = versions or [Version(file.stage, file.path, row) for row in rows_of(snapshot, file, uid)]
    return FoundDocument(story, number, versions, troubles)


class TextCache:
    """Whole texts of documents, read one row at a time; the last few are kept for whoever pages through them."""

    KEPT = 4

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, int], str] = OrderedDict()

    def piece(self, snapshot: Snapshot, version: Version, start: int) -> TextPiece:
        text = self.whole(snapshot, version)
        start = min(start, len(text))
        return TextPiece(text[start : start + PIECE], start, len(text))

    def whole(self, snapshot: Snapshot, version: Version) -> str:
        text = self._kept.get((version.path, version.row))
        if text is None:
            text = text_of(snapshot, version.path, version.row)
            self._kept[version.path, version.row] = text
            for old in list(self._kept)[: -self.KEPT]:
                self._kept.pop(old, None)
        return text


def text_of(snapshot: Snapshot, path: str, row: int) -> str:
    """The text in a row of a file; only its row group's texts are read, and few at a time."""
    with snapshot.folder.fs.open(snapshot.folder.full(path), "rb") as opened:
        parquet = pq.ParquetFile(opened, pre_buffer=False)
        if "text" not in parquet.schema_arrow.names:
            return ""
        for group in range(parquet.num_row_groups):
            rows = parquet.metadata.row_group(group).num_rows
            if row < rows:
                for batch in parquet.iter_batches(batch_size=ROWS, row_groups=[group], columns=["text"]):
                    if row < len(batch):
                        return str(batch.column(0)[row].as_py() or "")
                    row -= len(batch)
            row -= rows
    return ""
