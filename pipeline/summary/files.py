"""Making the public summary of a run, and writing its files: `summary/eu.html`, `.json`, `.docx`, `summary/README.md`
(the card) and `croissant.json`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import xxhash

from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.store.storage import Store, json_bytes
from gristmill.pipeline.summary.card import card_of
from gristmill.pipeline.summary.content import content_of
from gristmill.pipeline.summary.croissant import croissant_of
from gristmill.pipeline.summary.page import page_of
from gristmill.pipeline.summary.points import PublicSummary, summary_of
from gristmill.pipeline.summary.word import word_of

FOLDER, CROISSANT = "summary", "croissant.json"
LAWS = ("eu",)
FILES_HASH = "hash of the files' names"


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
    stated = next((str(each["license"]) for each in reversed(packed) if each.get("license")), None)
    schema = folder.schema(content.files[0]) if content.files else pa.schema([])  # that of all
    croissant = croissant_of(summary, content, schema, stated, run.gristmill)
    files = {
        f"{FOLDER}/{law}.html": page_of(summary).encode("utf-8", "replace"),
        f"{FOLDER}/{law}.json": json_bytes(summary.plain()),
        f"{FOLDER}/{law}.docx": word_of(summary),
        f"{FOLDER}/README.md": card_of(summary, before).encode("utf-8", "replace"),
        CROISSANT: json_bytes(croissant),
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
    return [*store.files(FOLDER), *([CROISSANT] if store.exists(CROISSANT) else [])]
