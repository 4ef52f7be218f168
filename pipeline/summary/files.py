"""Making the public summary of a run, and writing its files: `summary/eu.html`, `.json`, `summary/README.md` (the
dataset card that a hub shows), and `croissant.json` where mlcroissant is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterable, Sequence
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import xxhash
from markupsafe import Markup
from rich.console import Group, RenderableType
from rich.text import Text

from gristmill.kernels.common.extras import install
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.formatting import one_line
from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.report.page import Page, Section, alarms, facts, fragment, page_of, paragraphs, settings, tables
from gristmill.pipeline.store.storage import Store, json_bytes
from gristmill.pipeline.summary.content import Content, content_of
from gristmill.pipeline.summary.points import DRAFT, LAW, NOT_VERIFIED, Cell, Point, PublicSummary, summary_of
from gristmill.pipeline.tables import TerminalTable, as_markdown
from gristmill.shards.card import Facts, dataset_card
from gristmill.shards.card_text import plain, table

FOLDER, CROISSANT = "summary", "croissant.json"
NO_CROISSANT = f"{CROISSANT} is not written: it needs mlcroissant ({install('croissant')})"
LAWS = ("eu",)
FILES_HASH = "hash of the files' names"
MOST, MOST_IN_CARD = 1000, 50  # rows of a table for people; the JSON file has all
IN_CARD = "## Public summary of training content"


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
    reports = folder.reports()
    summary = summary_of(run, reports, content, synthetic)
    summary.run[FILES_HASH] = names_hash(content.files)
    packed = [report["packing"] for report in reports.values() if isinstance(report.get("packing"), dict)]
    cards = [str(PurePosixPath(each["folder"]) / "README.md") for each in packed]
    before = folder.read(cards[-1]).decode("utf-8", "replace") if cards and folder.has(cards[-1]) else None
    files = {
        f"{FOLDER}/{law}.html": html_of(summary).encode("utf-8", "replace"),
        f"{FOLDER}/{law}.json": json_bytes(summary.plain()),
        f"{FOLDER}/README.md": card_of(summary, before).encode("utf-8", "replace"),
    }
    if importlib.util.find_spec("mlcroissant"):
        stated = next((str(each["license"]) for each in reversed(packed) if each.get("license")), None)
        schema = folder.schema(content.files[0]) if content.files else pa.schema([])  # that of all
        files[CROISSANT] = json_bytes(croissant_of(summary, content, schema, stated, run.gristmill))
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
    return [*store.files(FOLDER), *([CROISSANT] if store.exists(CROISSANT) else [])]


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


def card_of(summary: PublicSummary, before: str | None) -> str:
    """The card that the run wrote beside its shards, with these facts; a short card where there is none."""
    short: Facts = {"title": summary.name, "summary": "Documents for pretraining, made with Gristmill."}
    parts = [(before if before is not None else dataset_card(short)).split(f"\n{IN_CARD}\n")[0].rstrip("\n")]
    parts += [IN_CARD, plain(f"{LAW['act']}: {LAW['template']}. {DRAFT}")]
    for point in summary.points:
        if point.key != "processing":  # the card has a funnel
            parts.append(f"### {plain(point.title)} ({point.status})")
            rows = [
                [plain(name), plain(NOT_VERIFIED if value is None else shown(value))] for name, value in point.facts
            ]
            parts += [table(["what", "value"], rows)] if rows else []
            parts += [plain(note) for note in point.notes]
            parts += [as_markdown(each, MOST_IN_CARD) for each in point.tables if each.rows]
    return "\n\n".join(parts) + "\n"


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


# --- for data set search engines --------------------------------------------------------------------------------------


def croissant_of(
    summary: PublicSummary, content: Content, schema: pa.Schema, license: str | None, version: str
) -> dict[str, Any]:
    """Croissant 1.0 (mlcommons.org/croissant). It lies at the top of the run's folder: paths in it are relative.
    `schema` is that of the files; `license` that of the data set, where somebody stated it."""
    import mlcroissant as mlc

    name, whole, files = one_line(summary.name), content.whole, "parquet-files"
    day = str(summary.run["finished"])[:10]
    fields = [
        mlc.Field(
            id=f"documents/{column.name}",
            name=f"documents/{column.name}",
            data_types=kind,
            source=mlc.Source(file_set=files, extract=mlc.Extract(column=column.name)),
        )
        for column in schema
        if (kind := kind_of(column.type)) is not None
    ]
    metadata = mlc.Metadata(
        name=name,
        description=f"{whole.documents:,} documents, {whole.text_bytes:,} bytes of text, written by Gristmill {version}.",
        license=one_line(license or "unknown"),
        url="report.html",
        version="1.0.0",
        date_published=day,
        cite_as=f"{name}, {day}",
        creators=mlc.Organization(name="not stated"),
        keywords=["pretraining", "text", "gristmill"],
        data_collection="; ".join(f"{point.title}: {point.status}" for point in summary.points),
        distribution=[
            mlc.FileSet(
                id=files,
                name=files,
                description=f"{len(content.files):,} Parquet files",
                encoding_formats="application/x-parquet",
                includes=f"{content.sink}/*.parquet",
            )
        ],
        record_sets=[mlc.RecordSet(id="documents", name="documents", fields=fields)],
    )
    return dict(metadata.to_json())


def kind_of(column: pa.DataType) -> str | None:
    """None: of lists and the like there is nothing to say in Croissant's words."""
    kinds = {
        "Text": pa.types.is_string(column) or pa.types.is_large_string(column) or pa.types.is_dictionary(column),
        "Boolean": pa.types.is_boolean(column),
        "Integer": pa.types.is_integer(column),
        "Float": pa.types.is_floating(column),
    }
    return next((f"https://schema.org/{name}" for name, it_is in kinds.items() if it_is), None)
