"""Rows of a global stage that a run saves for later runs (an index): where they are, and who owns them.

An index is a folder with `index.json` and the files that it names. An address that is no index stands for all indexes
below it, one a name: `index/` with `index/2024-10/bands` and `index/2024-11/bands` is `index/bands`. A stage that saves
into such a folder takes the names before its own, so that a month that is run again does not see later ones.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
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
from gristmill.pipeline.shuffle.spill import StoredRows, write_batches
from gristmill.pipeline.store.checksums import checked_batch
from gristmill.pipeline.store.journal import Journal
from gristmill.pipeline.store.records import EarlierRun, FileRef, SavedIndex
from gristmill.pipeline.store.serialize import plain, read_as
from gristmill.pipeline.store.storage import HashingFile, Store, digest, json_bytes, open_checked
from gristmill.stages.stage import Global

LEDGER = "journal/indexes.json"  # folders of saved rows, as seen from the run's folder
COPIED_AT_ONCE = 8 << 20


# --- index.json -------------------------------------------------------------------------------------------------------


def write_index(store: Store, index: SavedIndex) -> None:
    """Write what a saved index holds; it counts once this is there."""
    data = plain(index)
    store.write_json("index.json", {**data, "checksum": digest(data)})


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
    store: Store, target: Store, rows: StoredRows, made: tuple[str, JSONObject, str, int], journal: Journal
) -> None:
    """Copy the files of some rows into a folder for later runs; those that are there already stay, and those of an
    index that is replaced go when the new one counts. `made`: by whom, its facts, the stage's fingerprint, documents.
    """
    target.make_root()
    files: list[FileRef] = []
    for file in rows.files:
        name = f"{file.checksum}.arrow"
        if not journal.holds(target, name, file.checksum):
            with open_checked(store, file) as rows_of_file, target.commit(name) as copy:
                while piece := rows_of_file.read(COPIED_AT_ONCE):
                    copy.write(piece)
        files.append(replace(file, path=name))
    owner, facts, stage_fingerprint, documents = made
    recipe, _, stage = owner.partition("/")
    run = EarlierRun(recipe, stage, stage_fingerprint, documents, rows.count)
    index = SavedIndex(owner, facts, rows.by, rows.buckets, tuple(files), run)
    before = index_if_intact(target)
    if before is None or plain(before) != plain(index):
        write_index(target, index)
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
    rows, facts, earlier = StoredRows((), 1, None), None, []
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
    """The indexes that an address stands for: itself, or those below the folder it names, in order of their names."""
    store, path = saved_at(address, step), PurePosixPath(address)
    if store.exists("index.json") or not is_library(store, address, step):
        return [NamedIndex(path.parent.name, store)]
    own = own_name(store, address, step)
    names = sorted((name for name in names_below(store) if own is None or in_order(name) < in_order(own)), key=in_order)
    below = [NamedIndex(name, Store(f"{library_of(store)}/{name}/{path.name}")) for name in names]
    return [index for index in below if index.store.exists("index.json")]


def is_library(store: Store, address: str, step: Step) -> bool:
    """Does an address that is no index stand for indexes below it? One into which the stage saves does so before there
    is any."""
    if own_name(store, address, step) is not None:
        return True
    part = PurePosixPath(address).name
    return any(Store(f"{library_of(store)}/{name}/{part}").exists("index.json") for name in names_below(store))


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


def owner_of(recipe: Recipe, step: Step) -> str:
    """What saved rows say that they are of: rows of another recipe's stage are never replaced."""
    return f"{recipe.name}/{step.called}"


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
            if there is not None and there.of != owner_of(recipe, step):
                raise RecipeError(f"{where}: {address} is of {there.of}; save into another folder, or remove it")
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
    files: list[FileRef] = []
    for facts in index.files:
        holds_uids = "uid" in rows_schema(saved, facts.path).names
        files.append((write_without(saved, facts, uids) if holds_uids else None) or facts)
    went = sum(facts.rows for facts in index.files) - sum(facts.rows for facts in files)
    if went:
        run = replace(index.run, rows=sum(facts.rows for facts in files))
        write_index(saved, replace(index, files=tuple(files), run=run))
    remove_unnamed(saved, files)
    return went


def rows_in_index(saved: Store, uids: NDArray[np.uint64]) -> int:
    """How many rows of a saved index are of these documents."""
    index, count = read_index(saved), 0
    for facts in index.files if index else ():
        if "uid" in rows_schema(saved, facts.path).names:
            with saved.open(facts.path) as file:
                column = pa.ipc.open_file(file).read_all().column("uid")
            count += int(np.isin(column.to_numpy(), uids).sum())
    return count


def rows_schema(store: Store, path: str) -> pa.Schema:
    with store.open(path) as file:
        return pa.ipc.open_file(file).schema


def write_without(store: Store, facts: FileRef, uids: NDArray[np.uint64]) -> FileRef | None:
    """Rows that were saved for later runs, without those of some documents, in a file beside; None where none of them
    is of one."""
    with store.open(facts.path) as file:
        reader = pa.ipc.open_file(file)
        schema, count = reader.schema.serialize(), reader.num_record_batches
        batches = [checked_batch(reader, schema, place, facts.path) for place in range(count)]
        kept = [batch.filter(pa.array(~np.isin(batch.column("uid").to_numpy(), uids))) for batch in batches]
        rows = sum(map(len, kept))
        if rows == sum(map(len, batches)):
            return None
        content = io.BytesIO()
        hashing = HashingFile(content)
        write_batches(hashing, reader.schema, kept)
    path = f"{hashing.checksum}.arrow"
    store.write(path, content.getvalue())
    return replace(facts, path=path, bytes=hashing.length, checksum=hashing.checksum, rows=rows)
