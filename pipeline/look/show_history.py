"""A document's whole story in a terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from gristmill.pipeline.formatting import one_line, plain
from gristmill.pipeline.look.history import FileSpan, Passage, Story
from gristmill.pipeline.tables import TerminalTable, cell


def render_history(story: Story) -> RenderableType:
    head = Text.assemble((story.uid or "a record without a uid", "bold"), f"  {one_line(story.outcome)}")
    facts = [(name, getattr(story, name)) for name in ("url", "source", "id", "date", "meta")]
    read = [("read from", span_text(span)) for span in story.read_from]
    others = [
        (name, ", ".join(uids)) for name, uids in (("same URL", story.same_url), ("same id", story.same_id)) if uids
    ]
    parts: list[RenderableType] = [head, TerminalTable.of("", ("", ""), iter([*facts, *read, *others]), 2)]
    parts += [
        Text(),
        TerminalTable.of(
            "Segments", ("segment", "part", "row", "signals"), (passage_row(passage) for passage in story.passages), 4
        ),
    ]
    verdicts = (
        (verdict.stage, verdict.verdict, verdict.reason or "", verdict.detail or "") for verdict in story.verdicts
    )
    parts += [Text(), TerminalTable.of("Verdicts", ("stage", "verdict", "reason", "detail"), verdicts, 4)]
    why = ((held.stage, held.reason or "", held.words, held.field or "") for held in story.why)
    parts += (
        [
            Text(),
            TerminalTable.of(
                "Every reason that held", ("stage", "reason", "in numbers", "setting"), why, 4, spared=(3,)
            ),
        ]
        if story.why
        else []
    )
    for cluster in story.clusters:
        more = (
            f" and {cluster.size - 1 - len(cluster.dropped):,} more" if cluster.size - 1 > len(cluster.dropped) else ""
        )
        parts += [
            Text(),
            Text(f"Cluster of {cluster.size:,} ({one_line(cluster.stage)}: {one_line(cluster.reason)})", style="bold"),
        ]
        url = f" ({one_line(cluster.kept_url)})" if cluster.kept_url else ""
        parts += [Text(f"kept {cluster.kept}{url}; dropped {', '.join(cluster.dropped)}{more}")]
    if story.written:
        rows = ((sink.stage, sink.file, "?" if sink.row is None else sink.row) for sink in story.written)
        parts += [Text(), TerminalTable.of("Written to", ("stage", "file", "row"), rows, 3)]
    parts += [
        Text(),
        cell(f"Text, {story.characters:,} characters"),
        Padding(Text(plain(story.text or "")), (0, 0, 0, 2)),
    ]
    return Group(*parts)


def span_text(span: FileSpan) -> str:
    """The file, with the byte of the record; or, where the file is gone, what of it a worker read."""
    if span.offset is not None:
        return f"{span.path}, byte {span.offset:,}"
    read = "read whole" if span.start == 0 and span.end is None else f"read from byte {span.start:,} to {end_of(span)}"
    among = "one of the records in" if span.certain else "perhaps one of the records in"
    return f"{among} {span.path} ({read})"


def end_of(span: FileSpan) -> str:
    return "its end" if span.end is None else f"{span.end:,}"


def passage_row(passage: Passage) -> Sequence[object]:
    signals = ", ".join(f"{name}={signal_text(value)}" for name, value in passage.signals.items())
    return (passage.segment, passage.part, passage.row, signals)


def signal_text(value: object) -> str:
    if isinstance(value, bytes):  # packed numbers, such as the ids of tokens
        return f"{len(value):,} bytes"
    return f"{value:.6g}" if isinstance(value, float) else json.dumps(value, default=str)
