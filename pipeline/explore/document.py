"""One document: found by its uid, its story, and its text in pieces."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow.parquet as pq

from gristmill.pipeline.explore.reading_turns import Turn
from gristmill.pipeline.explore.search import READ_ERRORS, unread
from gristmill.pipeline.formatting import as_hex
from gristmill.pipeline.look.history import Story, follow, refused, rejected
from gristmill.pipeline.look.run_folder import NotFound, RunFile, RunFolder, one_of
from gristmill.pipeline.store.run_records import RejectRow

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
    folder: RunFolder, uids: Sequence[int], part: int | None, skip: int, turn: Turn
) -> FoundDocument | StillSearching:
    """The document that has one of these uids (`uids_meant`). `part` says where a list saw it; `skip`, how many parts
    an earlier search went through."""
    troubles: list[str] = []
    files = folder.documents
    if part is not None and part < len(files):
        for uid in uids:
            if holds(folder, files[part], uid, troubles):
                return told(folder, uid, part, troubles)
    for number in range(skip, len(files)):
        if turn.over:
            return StillSearching(number, len(files))
        for uid in uids:
            if holds(folder, files[number], uid, troubles):
                return told(folder, uid, number, troubles)
    for uid in uids:
        for stage, row in reject_rows(folder, uid, turn, troubles):
            return FoundDocument(refused(stage, row, folder.record), None, troubles=troubles)
    named = " or ".join(str(as_hex(uid)) for uid in uids)
    raise NotFound(f"no document {named} in this run, and nothing that its stages rejected has that uid")


def holds(folder: RunFolder, file: RunFile, uid: int, troubles: list[str]) -> bool:
    try:
        return folder.row_with(file.path, uid) is not None
    except (*READ_ERRORS, IndexError) as error:
        troubles.append(unread(file, error))
        return False


def reject_rows(folder: RunFolder, uid: int, turn: Turn, troubles: list[str]) -> list[tuple[str, RejectRow]]:
    """A document that broke the stage which read it lies in rejects alone."""
    for file in folder.rejects(folder.stage_names):
        if turn.over:
            raise NotFound(
                f"{as_hex(uid)} is in no part of this run; time was up before all rejects were looked through"
            )
        if holds(folder, file, uid, troubles):
            return list(folder.reject_rows([file], "uid", one_of(uid), limit=1))
    return []


def told(folder: RunFolder, uid: int, number: int, troubles: list[str]) -> FoundDocument:
    """The story of a document of one part; where a file of it cannot be read, as much as its part and the rejects
    say."""
    file = folder.documents[number]
    try:
        story = follow(folder, uid, file.key)
    except (NotFound, *READ_ERRORS, TypeError, IndexError) as error:
        troubles.append(f"its story is not whole: {type(error).__name__}: {error}"[:400])
        story = Story(as_hex(uid), file.source)
        for stage, row in rejected(folder, uid, file.key):
            story = refused(stage, row, folder.record)
    versions = [
        Version(passage.segment, passage.file, passage.row)
        for passage in story.passages
        if passage.file.endswith(".documents.parquet")
    ]
    row_in_part = folder.row_with(file.path, uid) if not versions else None
    versions += [Version(file.stage, file.path, row_in_part)] if row_in_part is not None else []
    return FoundDocument(story, number, versions, troubles)


class TextCache:
    """Whole texts of documents, read one row at a time; the last few are kept for whoever pages through them."""

    KEPT = 4

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, int], str] = OrderedDict()

    def piece(self, folder: RunFolder, version: Version, start: int) -> TextPiece:
        text = self.whole(folder, version)
        start = min(start, len(text))
        return TextPiece(text[start : start + PIECE], start, len(text))

    def whole(self, folder: RunFolder, version: Version) -> str:
        text = self._kept.get((version.path, version.row))
        if text is None:
            text = text_of(folder, version.path, version.row)
            self._kept[version.path, version.row] = text
            for old in list(self._kept)[: -self.KEPT]:
                self._kept.pop(old, None)
        return text


def text_of(folder: RunFolder, path: str, row: int) -> str:
    """The text in a row of a file; only its row group's texts are read, and few at a time."""
    with folder.open(path) as opened:
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
