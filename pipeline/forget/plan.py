"""What is to be done to forget: found before anything is changed, and kept until all is done.

A kill before it is written leaves the run as it was; one after it is mended by the same command, which goes on from the
plan. All that cannot be done twice is in it: which rows of which version of a file go, and JSON files as they will be.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NotRequired, TypedDict

from gristmill.pipeline.json_types import JSONObject
from gristmill.pipeline.look.exports import Export

FOLDER = "forgotten"
DRAFT = f"{FOLDER}/journal.jsonl"  # entries of the run's journal as they will be, with the facts of files as they were
NEW_LIST = f"{FOLDER}/new-list.json"
VERSION = 1


class Document(TypedDict):
    """A document that goes: forgotten, or held back as a copy that was dropped for one."""

    copy: bool
    key: str | None  # of its part
    source: str | None
    stage: str | None  # that dropped it; None: it came to the end
    reason: str | None
    bytes: int  # of its text
    made: bool  # is it another view of a page that goes too, or what a model wrote of a document?
    rephrased: NotRequired[bool]  # the latter


class TableEdit(TypedDict):
    """Rows that go from one version of a Parquet file, and rows that come (of rejects)."""

    checksum: str  # of the file as it was; none where there was no file
    goes: list[int]
    comes: NotRequired[list[JSONObject]]
    nameless: NotRequired[list[int]]  # rows that stay, without what names a page


class OutsideEdit(TypedDict):
    """Rows of a table that are emptied; None: the table is removed, because no source reads it."""

    checksum: str
    rows: list[int] | None


class Plan(TypedDict):
    version: int
    asked: str  # a hash of the list and the options, for the same command
    number: int  # of the receipt
    journal: str  # the checksum of the run's journal as it was
    documents: dict[str, Document]  # by uid
    tables: dict[str, TableEdit]
    remove: list[str]
    sets: list[str]
    indexes: list[str]  # folders, below the run's or elsewhere
    texts: dict[str, str]  # checksum of each file of lines, as it was, by path
    lines: dict[str, list[int]]  # lines of these that go
    json: dict[str, Any]  # files that are written as they are here
    set_counts: dict[str, dict[str, dict[str, int]]]  # documents and tokens by source that go, by set
    exports: list[Export]
    outside: dict[str, OutsideEdit]  # tables of `Recipe` in OUT-tables, by absolute path
    cached: list[str]  # folders of the cache of crawls that are removed
    restore: bool
    receipt: JSONObject


class Where(TypedDict):
    """What was found in one kind of place."""

    files: int
    rows: int


def noted(found: dict[str, Where], place: str, rows: int, files: int = 1) -> None:
    before = found.get(place, {"files": 0, "rows": 0})
    found[place] = {"files": before["files"] + files, "rows": before["rows"] + rows}


def fates(documents: dict[str, Document]) -> Counter[str]:
    return Counter("copy" if document["copy"] else "forgotten" for document in documents.values())
