"""Rows of a global stage that a run saves for later runs (an index): where they are, and who owns them.

An index is a folder with `index.json` and the files that it names. An address that is no index stands for all indexes
below it, one a name: `index/` with `index/2024-10/bands` and `index/2024-11/bands` is `index/bands`. A stage that saves
into such a folder takes the names before its own, so that a month that is run again does not see later ones.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gristmill.kernels.common.paths import located
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.json_types import JSONObject
from gristmill.pipeline.recipe.recipe import Recipe, Step
from gristmill.pipeline.shuffle.spill import batches_of, keep_batches
from gristmill.pipeline.store.journal import Journal
from gristmill.pipeline.store.records import EarlierRun, FileRef, SavedIndex, StoredRows
from gristmill.pipeline.store.serialize import plain, read_as
from gristmill.pipeline.store.storage import Store, digest, json_bytes, open_checked
from gristmill.stages.stage import Global

LEDGER = "journal/indexes.json"  # folders of saved rows, as seen from the run's folder
COPIED_AT_ONCE = 8 << 20


# --- index.json -------------------------------------------------------------------------------------------------------


def write_index(store: Store, index: SavedIndex) -> None:
    """Write what a saved index holds; it counts once this is there."""
    data = plain(index)
    store.write_if_other("index.json", json_bytes({**data, "checksum": digest(data)}))


def read_index(store: Store) -> SavedIndex | None:
    """What a saved index holds; None where there is none, an error where it is not what was written."""
    if (index := index_if_intact(store)) is not None or not store.exists("index.json"):
        return index
    raise RunFailed(
        f"{store.at('index.json')}: this is not what was written; "
        "run the recipe that saved this index again, which mends it"
    )


def index_if_intact(store: Store) -> SavedIndex | None:
    data = store.read_json_if_whole("index.json")
    if isinstance(data, dict) and data.pop("checksum", None) == digest(data):
        with contextlib.suppress(AttributeError, KeyError, TypeError):
            return read_as(SavedIndex, data)
    return None


# --- saving and loading -----------------------------------------------------------------------------------------------


def save_rows(
    store: Store, target: Store, rows: StoredRows, facts: JSONObject, run: EarlierRun, journal: Journal
) -> None:
    """Copy the files of some rows into a folder for later runs; those that are there already stay, and those of an
    index that is replaced go when the new one counts."""
    target.make_root()
    files: list[FileRef] = []
    for file in rows.files:
        name = f"{file.checksum[:16]}.arrow"
        if not journal.holds(target, name, file.checksum):
            with open_checked(store, file) as rows_of_file, target.commit(name) as copy:
                shutil.copyfileobj(rows_of_file, copy, COPIED_AT_ONCE)
        files.append(replace(file, path=name))
    write_index(target, SavedIndex(facts, rows.by, rows.buckets, tuple(files), run))
    remove_unnamed(target, files)


def remember(store: Store, saved: Store) -> None:
    """Note a local folder of saved rows with the run, for takedowns."""
    if store.local and saved.local:
        known: list[str] = store.read_json_if_whole(LEDGER) or []
        store.write_if_other(LEDGER, json_bytes(sorted({*known, os.path.relpath(saved.root, store.root)})))


def saved_by(store: Store) -> list[str]:
    """Folders outside a run's own where it has saved rows, as absolute paths."""
    known: list[str] = store.read_json_if_whole(LEDGER) or []
    root = Path(store.root).resolve()
    folders = {Path(store.root, folder).resolve() for folder in known}
    return sorted(str(f) for f in folders if not f.is_relative_to(root) and Path(f, "index.json").exists())


def remove_unnamed(index: Store, files: list[FileRef]) -> None:
    """Remove files of rows that an index does not name."""
    named = {file.path for file in files}
    index.remove([path for path in index.files("") if path.endswith(".arrow") and path not in named])


@dataclass(frozen=True)
class NamedIndex:
    """One index that a stage reads, and the name by which its rejects and records call it."""

    name: str
    store: Store


def load_all(address: str, step: Step, named: bool) -> tuple[StoredRows, JSONObject, list[JSONObject]]:
    """The rows of all indexes at an address, the facts that they share, and which runs they are of. `named`: rows with
    a column for the run's name."""
    rows, facts, earlier = StoredRows(), None, []
    for index in indexes_at(address, step):
        saved = read_index(index.store)
        if saved is None:
            raise RunFailed(f"{step.called}: {index.store.address} holds no saved index (there is no index.json)")
        if facts is not None and saved.facts != facts:
            raise RunFailed(
                f"{step.called}: {index.store.address} was made with other settings than the indexes before it "
                f"({saved.facts} and not {facts})"
            )
        facts = saved.facts
        run = index.name if named else ""
        files = [replace(file, store=index.store.anywhere, run=run) for file in saved.files]
        rows = StoredRows((*rows.files, *files), max(rows.buckets, saved.buckets), saved.by)
        when = index.store.modified("index.json").isoformat(timespec="seconds")
        earlier.append({"index": index.name, "address": index.store.address, "saved": when, **vars(saved.run)})
    return rows, dict(facts or {}), earlier


# --- addresses --------------------------------------------------------------------------------------------------------


def saved_at(address: str, step: Step) -> Store:
    """Where rows are kept for other runs: an address, or a path that is the recipe's as its other paths are."""
    return Store(located(re.sub(r"(?<!:)//+", "/", address), step.folder.resolve()))


def indexes_at(address: str, step: Step) -> list[NamedIndex]:
    """The indexes that an address stands for: itself, or those below the folder it names, in order of their names. A
    folder into which the stage saves stands for those before its own, and there may be none yet."""
    store, path = saved_at(address, step), PurePosixPath(address)
    itself = NamedIndex(path.parent.name, store)
    if store.exists("index.json"):
        return [itself]
    own = own_name(store, address, step)
    names = sorted((name for name in names_below(store) if own is None or in_order(name) < in_order(own)), key=in_order)
    below = [NamedIndex(name, Store(f"{library_of(store)}/{name}/{path.name}")) for name in names]
    there = [index for index in below if index.store.exists("index.json")]
    return there if there or own is not None else [itself]


def library_of(store: Store) -> str:
    """The folder whose name a recipe has; addresses of indexes are of a part in it, such as its bands."""
    return store.anywhere.rstrip("/").rpartition("/")[0]


def names_below(store: Store) -> list[str]:
    folder = Store(library_of(store))
    try:
        entries = folder.fs.ls(folder.root, detail=True, **({} if folder.local else {"refresh": True}))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [str(entry["name"]).rstrip("/").rpartition("/")[2] for entry in entries if entry["type"] == "directory"]


def own_name(store: Store, address: str, step: Step) -> str | None:
    """The name under which the stage itself saves into this folder."""
    part = PurePosixPath(address).name
    for saved in cast(Global, step.stage).saves:
        folder, _, last = saved_at(saved, step).anywhere.rstrip("/").rpartition("/")
        library, _, name = folder.rpartition("/")
        if last == part and library == library_of(store):
            return name
    return None


def in_order(name: str) -> list[tuple[int, str]]:
    """Names as people count: 2024-9 before 2024-10."""
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in re.split(r"([0-9]+)", name)]


def check_saved(recipe: Recipe, whole: bool) -> None:
    """RecipeError, before any work, where an index that a global stage reads is missing, or one that it saves would
    replace another's."""
    leaves: set[str] = set()
    for step in recipe.all_steps:
        if not isinstance(step.stage, Global):
            continue
        where = f"{recipe.path}:{step.line}: {step.called}"
        takes = {index.store.address for address in step.stage.loads for index in indexes_at(address, step)}
        for address in sorted(takes - leaves):
            if read_index(Store(address)) is None:
                raise RecipeError(f"{where}: {address} holds no saved index (there is no index.json)")
        saves = {saved_at(address, step).address for address in step.stage.saves}
        for address in sorted(saves) if whole else ():
            if address in takes:
                raise RecipeError(
                    f"{where}: {address} would be replaced, and is what is compared with; "
                    "save into another folder, and name both in the next run"
                )
            there = index_if_intact(Store(address))
            if there is not None and (there.run.name, there.run.stage) != (recipe.name, step.called):
                owner = f"{there.run.name}/{there.run.stage}"
                raise RecipeError(f"{where}: {address} is of {owner}; save into another folder, or remove it")
        leaves |= saves


def saved_is_gone(step: Step) -> bool:
    """Is something missing that the stage saved for later runs?"""
    return any(not saved_at(address, step).exists("index.json") for address in cast(Global, step.stage).saves)


def identities_of_loaded(step: Step) -> list[str]:
    """Hashes of the indexes that a stage loads; its task depends on them."""
    indexes = [index for address in cast(Global, step.stage).loads for index in indexes_at(address, step)]
    return [digest([index.name, plain(saved)]) for index in indexes for saved in [read_index(index.store)]]


# --- takedowns --------------------------------------------------------------------------------------------------------


def forget_in_index(saved: Store, uids: NDArray[np.uint64]) -> int:
    """Remove the rows of some documents from a saved index; how many went. After a kill it can be called again: files
    that the index does not name go with the next call."""
    index = read_index(saved)
    if index is None:
        return 0
    files = [without(saved, facts, uids) for facts in index.files]
    went = sum(facts.rows for facts in index.files) - sum(facts.rows for facts in files)
    if went:
        run = replace(index.run, rows=sum(facts.rows for facts in files))
        write_index(saved, replace(index, files=tuple(files), run=run))
    remove_unnamed(saved, files)
    return went


def without(saved: Store, facts: FileRef, uids: NDArray[np.uint64]) -> FileRef:
    """A file of rows without those of some documents: another beside it, or itself if none of its rows is of one."""
    batches = batches_of(saved, facts)
    rows_of_uids = [are_of(batch, uids) for batch in batches]
    if not any(rows.any() for rows in rows_of_uids):
        return facts
    kept = [batch.filter(pa.array(~rows)) for batch, rows in zip(batches, rows_of_uids, strict=True)]
    return replace(keep_batches(saved, "", kept), cells=facts.cells)


def rows_in_index(saved: Store, uids: NDArray[np.uint64]) -> int:
    """How many rows of a saved index are of these documents."""
    index = read_index(saved)
    files = index.files if index else ()
    return sum(int(are_of(batch, uids).sum()) for facts in files for batch in batches_of(saved, facts))


def are_of(rows: pa.RecordBatch, uids: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which rows are of some documents; none of rows without uids."""
    return np.isin(rows["uid"].to_numpy(), uids) if "uid" in rows.schema.names else np.zeros(len(rows), np.bool_)
