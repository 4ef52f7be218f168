"""A few pages for the report and `inspect`: the text that was extracted, and all that they show, read again from the
inputs.

Only pages that passed extraction are shown, so that nothing is parsed that crashed a worker before. The task is small
and is sent with those of the next wave.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict, cast

import pyarrow as pa

from gristmill.pipeline.inputs.files import open_stretch, origin_of
from gristmill.pipeline.plan.plan import Segment
from gristmill.pipeline.recipe import fingerprint, registry
from gristmill.pipeline.recipe.recipe import Recipe
from gristmill.pipeline.report_data.documents import stored_batches
from gristmill.pipeline.store.partitions import identity
from gristmill.pipeline.store.records import FileSpan, PageSample, PagesResult, PagesTask, Partition, Result
from gristmill.pipeline.store.storage import Store, digest
from gristmill.stages.inputs import InputFile
from gristmill.stages.read.payload import is_pdf
from gristmill.stages.stage import Map, Reader

PAGES = 3
CHARACTERS = 3000
LARGEST_PAGE = 2 << 20  # bytes of markup; the report is for eyes
BEGINNING = 1 << 20  # bytes of a file that are searched first, where its reader can read a stretch


def task_of_pages(
    segment: Segment, recipe: Recipe, store: Store, parts: list[Partition], files: Mapping[str, InputFile]
) -> PagesTask | None:
    """The task that looks at a few pages of the first part of a segment which extracts what it reads; None where there
    is nothing to see."""
    part = next((p for p in parts if p.rows and p.node == segment.name), None)
    if segment.source is None or part is None or part.inputs[0].path not in files:
        return None
    span = part.inputs[0]
    shown_by = [step.stage for step in segment.steps if isinstance(step.stage, Map) and step.stage.shows_pages]
    file = files[span.path]
    return PagesTask(
        task=digest(["pages", fingerprint.code_of_engine("pages"), segment.fingerprint(recipe), identity(part)]),
        node=segment.name,
        key=part.key,
        cost=BEGINNING,
        out=store.anywhere,
        reader=segment.source.reader.spec,
        source=segment.source.name,
        part=part,
        span=FileSpan(file, span.start, span.end, file.size),
        patience=max((stage.patience for stage in shown_by), default=Map.patience),
    )


def run_pages(task: PagesTask) -> Result:
    """A few pages: url, uid, what was extracted, and all that is visible."""
    columns = ["uid", "url", "text"]
    first = next(stored_batches(Store(task.out), task.part, columns, needed=columns), None)
    if first is None:
        return PagesResult(pages=())
    extracted: dict[int, ExtractedPage] = {row["uid"]: row for row in first.to_pylist()}
    reader = cast(Reader, registry.build(task.reader))
    samples: list[PageSample] = []
    for end in ends(reader, task.span):
        pages = pages_until(reader, task, end)
        samples = samples_of(pages, extracted) if pages is not None else []
        if samples:
            break
    return PagesResult(pages=samples)


def ends(reader: Reader, span: FileSpan) -> list[int | None]:
    """How far to read: not far, and if that shows nothing, all of the first batch."""
    file, start, end = span.file, span.start, span.end
    size = (end or file.size) - start
    with open_stretch(reader, span) as stream:
        apart = size > BEGINNING and len(reader.spans(stream, file.path, file.size, BEGINNING)) > 1
    return [start + BEGINNING, end] if apart else [end]


def pages_until(reader: Reader, task: PagesTask, end: int | None) -> pa.RecordBatch | None:
    """The first batch of pages of the task's file."""
    with open_stretch(reader, task.span, end) as stream:
        reading = next(reader.read(stream, origin_of(task.source, task.span, end)), None)
    return reading.documents if reading is not None and "html" in reading.documents.schema.names else None


class ExtractedPage(TypedDict):
    """A document as extraction left it."""

    uid: int
    url: str
    text: str | None


def samples_of(pages: pa.RecordBatch, extracted: Mapping[int, ExtractedPage]) -> list[PageSample]:
    """What the report shows of those pages that were extracted."""
    from gristmill.stages.extract.engines import compare

    samples: list[PageSample] = []
    rows = {uid: row for row, uid in enumerate(pages.column("uid").to_pylist()) if uid in extracted}
    for uid, row in sorted(rows.items()):
        html = pages.column("html")[row].as_py()
        if html is None or len(html) > LARGEST_PAGE or is_pdf(html):
            continue
        document = extracted[uid]
        text = document["text"] or ""
        _, visible = compare(html, document["url"], pages.column("charset")[row].as_py())
        samples.append(
            PageSample(
                uid=f"{uid:016x}",
                url=document["url"],
                extracted=text[:CHARACTERS],
                visible=visible[:CHARACTERS],
                extracted_characters=len(text),
                visible_characters=len(visible),
            )
        )
        if len(samples) == PAGES:
            break
    return samples
