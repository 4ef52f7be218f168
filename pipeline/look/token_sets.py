"""What a person does with the token shards of a run: find them, verify them, export them. A run remembers its exports:
whoever changes shards or documents writes them again."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from gristmill.kernels.common.files import whole_folder
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.interchange.documents import FORMATS as DOCUMENTS, export_documents, files_in
from gristmill.pipeline.store.partitions import swap
from gristmill.pipeline.store.storage import Store
from gristmill.shards.export.export import Exported, Options, Progress, check_format, export, given_in
from gristmill.shards.export.rows import ExportError
from gristmill.shards.format import BadShards
from gristmill.shards.index import NAME
from gristmill.shards.verify import Fault, verify
from gristmill.stages.tokens.folders import CELLS

EXPORTS = "journal/exports.json"
FOLDER = re.compile(r"[a-z0-9-]{1,60}")


def sets_in(folder: str) -> list[Path]:
    """The sets of a run, or the one set that a folder is."""
    top = Path(folder)
    if "://" in folder:
        raise RecipeError(f"{folder}: shards are read from a local folder; copy them here first")
    if (top / NAME).is_file():
        return [top]
    found = sorted(path.parent for path in (top / "shards").rglob(NAME)) or sorted(
        path.parent for path in top.glob(f"*/{NAME}")
    )
    if not found:
        raise RecipeError(
            f"{folder}: no token shards are here (there is no {NAME}, and no shards/*/{NAME}); did the recipe end "
            f"in `pack`?"
        )
    return found


def the_set(folder: str, row_length: int | None) -> Path:
    """The one set that is meant."""
    sets = sets_in(folder)
    if row_length is not None:
        lengths = {path: json.loads((path / NAME).read_text()).get("meta", {}).get("row_length") for path in sets}
        sets = [path for path in sets if lengths[path] == row_length]
        if not sets:
            raise RecipeError(
                f"{folder}: no set has rows of {row_length:,} tokens; there are "
                f"{', '.join(sorted(map(str, set(lengths.values()))))}"
            )
    if len(sets) != 1:
        there = ", ".join(str(path) for path in sets_in(folder))
        raise RecipeError(
            f"{folder}: {len(sets)} sets of shards fit; name one of {there} as the folder"
            " (`export` takes --row-length too)"
        )
    return sets[0]


def sets_of_cells(folder: Path) -> dict[str, str]:
    """The sets that `pack: {by: ...}` left in a run, by cell."""
    lists = [path for path in (folder / CELLS, folder / "shards" / CELLS) if path.is_file()]
    lists = lists or sorted(folder.glob(f"shards/*/{CELLS}"))
    if len(lists) != 1:
        raise RecipeError(
            f"{folder}: {'several lists' if lists else 'no list'} of cells ({CELLS}); name the folder that a"
            " `pack` with `by` wrote, or the sets one by one"
        )
    try:
        cells = json.loads(lists[0].read_text(encoding="utf-8"))["cells"]
        sets = {str(name): str(lists[0].parent.resolve() / str(place)) for name, place in cells.items()}
        wrong = [place for place in cells.values() if not FOLDER.fullmatch(place)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecipeError(f"{lists[0]}: no list of cells as `pack` writes it ({error})") from error
    if wrong or not sets:
        raise RecipeError(f"{lists[0]}: no list of cells as `pack` writes it")
    return sets


def faults_of(folder: str) -> Iterator[tuple[Path, int, list[Fault]]]:
    """Each set, how many shards it has, and what is wrong with it."""
    for path in sets_in(folder):
        looked_at: list[int] = []
        faults = verify(path, looked_at.append)
        yield path, len(looked_at), faults


def exported(
    folder: str, to: str, destination: str, row_length: int | None, options: Options, progress: Progress
) -> Exported:
    """Token shards or documents in the format of others, as the run remembers it."""
    if "://" in destination:
        raise RecipeError(f"{destination}: exports are written to a local folder; copy it from there")
    try:
        check(to, options, row_length)  # before the folder is looked into, for a typing error
        if (Path(folder) / "run.json").is_file():
            status = (Store(folder).read_json("run.json") or {}).get("status")
            if status != "done":
                raise RecipeError(
                    f"{folder}: the run is {status or 'not finished'}, so documents may be missing; run its recipe again"
                    " first, or name the folder of its shards or documents to export what is there"
                )
        if to in DOCUMENTS:
            place = files_in(folder)[0].parent
            done = export_documents(str(place), to, Path(destination), options, progress)
        else:
            place = the_set(folder, row_length)
            done = export(place, to, destination, options, progress)
    except ExportError as error:
        raise RecipeError(str(error)) from error
    except BadShards as error:
        raise RunFailed(str(error)) from error
    remember(place, to, destination, options)
    return done


def check(to: str, options: Options, row_length: int | None) -> None:
    if to not in DOCUMENTS:
        check_format(to, options, (*DOCUMENTS, "hub"))
    elif row_length is not None:
        raise ExportError(f"--row-length is for token shards; {to} is a format of documents")
    elif foreign := [name for name in given_in(options) if name not in DOCUMENTS[to].options]:
        raise ExportError(f"{foreign[0]} means nothing to {to}")


# --- exports that a run remembers -------------------------------------------------------------------------------------


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
    others = [
        other for other in store.read_json_if_whole(EXPORTS) or [] if other["destination"] != entry["destination"]
    ]
    with suppress(OSError):  # a folder that is only read
        store.write_json(EXPORTS, [*others, entry])


def exports_of(store: Store) -> list[Export]:
    """Those that the run remembers and whose folder is still there, as a run that was moved has it."""
    known: list[Export] = []
    entries: list[Export] = store.read_json_if_whole(EXPORTS) or []
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
