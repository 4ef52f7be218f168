"""Making the public summary of a run, and writing its files: `summary/eu.html` and `summary/eu.json`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import xxhash
from markupsafe import Markup
from rich.console import Group, RenderableType
from rich.text import Text

from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.formatting import one_line
from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.report.page import Page, Section, alarms, facts, fragment, page_of, paragraphs, settings, tables
from gristmill.pipeline.store.storage import Store, json_bytes
from gristmill.pipeline.summary.content import content_of
from gristmill.pipeline.summary.points import DRAFT, LAW, NOT_VERIFIED, Cell, Point, PublicSummary, summary_of
from gristmill.pipeline.tables import TerminalTable

FOLDER = "summary"
LAWS = ("eu",)
FILES_HASH = "hash of the files' names"
MOST = 1000  # rows of a table for people; the JSON file has all


def write_summary(
    folder: RunFolder, law: str, sink: str | None = None, synthetic: Sequence[str] = ()
) -> tuple[PublicSummary, list[str]]:
    """Of a run that has ended well, for one of `LAWS`; and the paths of the files that were written."""
    if law not in LAWS:
        raise RecipeError(f"--for {law}: no such summary; there is {', '.join(LAWS)}")
    run = folder.record
    if not run.done:
        raise RecipeError(
            f"{folder.out}: the run is {run.status or 'not finished'}; a summary is made of one that is done"
        )
    known = [reader.name for reader in run.readers]
    if unknown := [name for name in synthetic if name not in known]:
        raise RecipeError(f"--synthetic {unknown[0]}: no such source; there is {', '.join(known)}")
    content = content_of(folder, sink)
    summary = summary_of(run, folder.reports(), content, synthetic)
    summary.run[FILES_HASH] = names_hash(content.files)
    files = {
        f"{FOLDER}/{law}.html": html_of(summary).encode("utf-8", "replace"),
        f"{FOLDER}/{law}.json": json_bytes(summary.plain()),
    }
    for path, data in files.items():
        folder.store.write(path, data)
    return summary, list(files)


def names_hash(paths: Iterable[str]) -> str:
    """Of the files that were counted; their names hold the fingerprints of what made them."""
    return xxhash.xxh3_128_hexdigest("\n".join(sorted(paths)).encode())


def files_of_other_documents(store: Store, present: Collection[str]) -> list[str]:
    """Files of a summary whose documents are not those in `present`, paths of what sinks wrote."""
    made: dict[str, Any] = store.read_json_if_whole(f"{FOLDER}/eu.json") or {}
    run = made.get("run") or {}
    counted = [path for path in present if path.startswith(f"{run.get('documents written by')}/")]
    if counted and run.get(FILES_HASH) == names_hash(counted):
        return []
    return list(store.files(FOLDER))


# --- for people -------------------------------------------------------------------------------------------------------


def shown(value: Cell) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def html_of(summary: PublicSummary) -> str:
    """One page of HTML, offline and without a script."""
    about = paragraphs([f"{LAW['act']}: {LAW['template']}; {LAW['applies']}."])
    about += settings(((name, shown(value)) for name, value in summary.run.items()), "")
    lines = [DRAFT, f"What the run does not know is left empty and says “{NOT_VERIFIED}”."]
    page = Page("public summary of training content", summary.name, about, FOOTER)
    return page_of(page, [alarms("draft", "What this is", lines), *map(section_of, summary.points)])


FOOTER = Markup(
    "Made by <code>gristmill report --for eu</code> from <code>run.json</code> and the documents that the run wrote. Names"
    " of domains, crawlers and licenses are crawled text, shown as it is."
)


def section_of(point: Point) -> Section:
    look = {NOT_VERIFIED: " wrong", "from the run": " done"}.get(point.status, "")
    html = fragment('<p><span class="status{{ look }}">{{ status }}</span></p>', {"look": look, "status": point.status})
    known = [(name, None if value is None else shown(value)) for name, value in point.facts]
    html += facts(known, NOT_VERIFIED) if known else Markup("")
    html += paragraphs(point.notes) + tables(*(each.first(MOST, "the JSON file") for each in point.tables))
    return Section(point.key, point.title, html)


def render(summary: PublicSummary) -> RenderableType:
    """For a terminal."""
    known = {
        point.key: "; ".join(f"{name} {shown(value)}" for name, value in point.facts if value is not None)
        for point in summary.points
    }
    rows = [(point.title, point.status, known[point.key]) for point in summary.points]
    head = Text.assemble((one_line(summary.name), "bold"), f"  {LAW['act']}")
    points = TerminalTable.of("", ("point", "status", "facts"), rows, 3)
    return Group(head, Text(DRAFT, style="dim"), Text(), points)
