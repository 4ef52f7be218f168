"""Exports of a run's token shards and documents, as the run remembers them: where to, in what format, with what
options. Whoever changes shards or documents writes them anew."""

from __future__ import annotations

import dataclasses
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from gristmill.kernels.common.files import whole_folder
from gristmill.pipeline.interchange.documents import FORMATS as DOCUMENTS, export_documents
from gristmill.pipeline.store.partitions import swap
from gristmill.pipeline.store.storage import Store
from gristmill.shards.export.export import Options, export

LEDGER = "journal/exports.json"


class Export(TypedDict):
    """An export: absolute paths, but for a place in the run's folder."""

    set: str  # the folder of its shards, or of its documents, below the run's
    to: str
    destination: str
    below: NotRequired[str | None]  # of a destination in the run's folder
    options: dict[str, Any]


def remember(shards: Path, to: str, destination: str, options: Options) -> None:
    """Note an export with the run whose shards or documents they are, if they are a run's and its folder can be
    written."""
    runs = [folder for folder in shards.resolve().parents if (folder / "run.json").is_file()]
    if not runs:
        return
    store = Store(str(runs[0]))
    place = Path(destination).resolve()
    entry: Export = {
        "set": shards.resolve().relative_to(runs[0]).as_posix(),
        "to": to,
        "destination": str(place),
        "below": place.relative_to(runs[0]).as_posix() if place.is_relative_to(runs[0]) else None,
        "options": {name: value for name, value in dataclasses.asdict(options).items() if value is not None},
    }
    others = [other for other in store.read_json_if_whole(LEDGER) or [] if other["destination"] != entry["destination"]]
    with suppress(OSError):  # a folder that is only read
        store.write_json(LEDGER, [*others, entry])


def exports_of(store: Store) -> list[Export]:
    """Those that the run remembers and whose folder is still there, as a run that was moved has it."""
    known: list[Export] = []
    entries: list[Export] = store.read_json_if_whole(LEDGER) or []
    for entry in entries:
        below = entry.get("below")
        destination = store.at(below) if below else entry["destination"]
        if Path(destination).is_dir() and any(Path(destination).iterdir()):
            known.append({**entry, "destination": destination, "below": below})
    return known


def export_again(store: Store, entry: Export) -> None:
    """Write an export anew out of what it was made of, as that is now; the old one stays until the new one is whole."""
    place = Path(entry["destination"])
    draft = place.with_name(f".{place.name}.forget")
    shutil.rmtree(draft, ignore_errors=True)
    options: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in entry["options"].items()
    }
    if entry["to"] in DOCUMENTS:
        export_documents(store.at(entry["set"]), entry["to"], draft, Options(**options))
    else:
        export(store.at(entry["set"]), entry["to"], draft, Options(**options))
    if swap(place, draft):
        shutil.rmtree(draft)
    else:
        with whole_folder(place, replace=True) as new:
            shutil.copytree(draft, new, dirs_exist_ok=True)
        shutil.rmtree(draft)
