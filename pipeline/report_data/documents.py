"""What tasks for the report share: the task itself, and documents as a report shows them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypedDict

import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.pipeline.errors import STAGE_ERRORS
from gristmill.pipeline.formatting import as_hex
from gristmill.pipeline.store.partitions import as_lying, read_part
from gristmill.pipeline.store.records import LookTask, Partition
from gristmill.pipeline.store.serialize import plain
from gristmill.pipeline.store.storage import Store, digest
from gristmill.stages.documents import BATCH_ROWS
from gristmill.stages.stage import Map, Rule, Stage

Value: TypeAlias = "bool | int | float | str | bytes | Sequence[Value] | Mapping[str, Value] | None"  # a Parquet cell
Row: TypeAlias = "dict[str, Value]"  # all columns of a Parquet row
Span: TypeAlias = tuple[int, int]  # from and to, in characters
CHARACTERS = 600  # of the text of a sample
CUT = "… "


class SampleEntry(TypedDict, total=False):
    """A document in report.json or survey.json."""

    uid: str | None
    url: str | None
    source: str | None
    detail: str | None
    text: str | None
    match: Span | None  # of the text, what the document went for


def sample_entry(row: Mapping[str, Any], source: str, detail: str | None, place: Span | None = None) -> SampleEntry:
    """A document with the beginning of its text, or with what stands around a place in it."""
    text, match = around(row["text"] or "", place)
    entry: SampleEntry = {
        "uid": as_hex(row["uid"]), "url": row["url"], "source": source, "detail": detail, "text": text
    }  # fmt: skip
    return entry if match is None else entry | {"match": match}


def around(text: str, place: Span | None, size: int = CHARACTERS) -> tuple[str, Span | None]:
    """The part of a text that a sample shows, and where in it the place is: a third stands before the place, from the
    beginning of a line or a word on."""
    start = max(0, place[0] - size // 3) if place is not None and place[1] > size else 0
    if place is None or start == 0:
        return text[:size], None if place is None else (place[0], min(place[1], size))
    before = text[start : place[0]]
    begins = re.search(r"(?<=\n)(?=.)", before) or re.search(r"(?<=\s)(?=\S)", before)
    start += begins.start() if begins else 0
    shift = len(CUT) - start
    return CUT + text[start : start + size], (place[0] + shift, min(place[1], start + size) + shift)


class Places:
    """Where in a text the reason for a drop shows itself, as far as the stages say that dropped or measured
    (`Map.place`)."""

    def __init__(self, stages: Iterable[Stage]) -> None:
        self._stages = {stage.called: stage for stage in stages if isinstance(stage, Map)}
        self._measures = {
            signal: stage for stage in self._stages.values() if names_places(stage) for signal in stage.added
        }

    def of(self, stage: str, reason: str, text: str) -> Span | None:
        asked = [(self._stages[stage], reason)] if stage in self._stages else []
        for limit in asked[0][0].limits if asked and isinstance(asked[0][0], Rule) else ():
            if limit.reason == reason:
                asked += [(self._measures[name], name) for name in limit.signals if name in self._measures]
        for by, what in asked:
            try:
                place = by.place(what, text)
            except STAGE_ERRORS:  # of a user's own stage; the sample shows the beginning
                continue
            if place is not None and 0 <= place[0] < place[1] <= len(text):
                return place
        return None


def names_places(stage: Stage) -> bool:
    return isinstance(stage, Map) and type(stage).place is not Map.place


def report_task(store: Store, step: str, node: str, key: str, cost: int, given: dict[str, Any]) -> LookTask:
    """A task that reads documents for the report."""
    return LookTask(
        task=digest([step, node, key, plain(given)]),
        node=node,
        key=key,
        cost=cost,
        out=store.anywhere,
        step=step,
        given=given,
    )


def stored_batches(store: Store, part: Partition, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The documents of a part; where none are stored, those in the first of its sinks."""
    if part.documents is not None:
        yield from read_part(store, part, columns)
        return
    for path in list(part.sinks.values())[:1]:
        with store.open(as_lying(store, path)) as file:
            written = pq.ParquetFile(file)
            there = written.schema_arrow.names
            yield from written.iter_batches(BATCH_ROWS, columns=[name for name in columns if name in there])
