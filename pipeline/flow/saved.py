"""Rows of a global stage that a run saves for later runs (an index): where they lie, and who owns them.

An index is a folder with `index.json` and the files that it names. An address that is no index stands for all indexes
below it, one a name: `index/` with `index/2024-10/bands` and `index/2024-11/bands` is `index/bands`. A stage that saves
into such a folder takes the names before its own, so that a month that is run again does not see later ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import cast

import numpy as np
from numpy.typing import NDArray

from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.fingerprint import digest
from gristmill.pipeline.flow.rows import StoredRows, rows_schema, write_without
from gristmill.pipeline.json_types import JSONObject
from gristmill.pipeline.recipe.recipe import Recipe, Step
from gristmill.pipeline.store.journal import Journal
from gristmill.pipeline.store.records import EarlierRun, FileFacts, SavedIndex
from gristmill.pipeline.store.storage import Store, open_checked
from gristmill.stages.paths import located
from gristmill.stages.stage import Global

COPIED_AT_ONCE = 8 << 20


@dataclass(frozen=True)
class KeptIndex:
    """One index that a stage reads, and the name by which its rejects and records call it."""

    name: str
    store: Store


def save_rows(
    store: Store, kept: Store, rows: StoredRows, made: tuple[str, JSONObject, str, int], journal: Journal
) -> None:
    """Copy the files of some rows into a folder for later runs; those that are there already stay, and those of an
    index that is replaced go when the new one counts. `made`: by whom, its facts, the stage's fingerprint, documents.
    """
    kept.make_root()
    files: list[FileFacts] = []
    for file in rows.files:
        name = f"{file['checksum']}.arrow"
        if not journal.holds(kept, name, file["checksum"]):
            with open_checked(store, file) as rows_of_file, kept.commit(name) as copy:
                while piece := rows_of_file.read(COPIED_AT_ONCE):
                    copy.write(piece)
        files.append({**file, "path": name})
    owner, facts, stage_fingerprint, documents = made
    name, _, stage = owner.partition("/")
    run: EarlierRun = {
        "name": name,
        "stage": stage,
        "fingerprint": stage_fingerprint,
        "documents": documents,
        "rows": rows.count,
    }
    index: SavedIndex = {
        "of": owner, "facts": facts, "by": rows.by, "buckets": rows.buckets, "files": files, "run": run,
    }  # fmt: skip
    before: SavedIndex | None = kept.read_json_if_whole("index.json")
    if before is None or not is_as_written(before) or undigested(before) != undigested(index):
        write_index(kept, index)
    named = {file["path"] for file in files}
    kept.remove([path for path in kept.files("") if path.endswith(".arrow") and path not in named])


def undigested(index: SavedIndex) -> JSONObject:
    return cast(JSONObject, {name: value for name, value in index.items() if name != "checksum"})


def load_rows(kept: KeptIndex, node: str, named: bool) -> tuple[StoredRows, SavedIndex]:
    """The rows that an earlier run saved, and what its index says. `named`: with a column for the run's name."""
    saved = read_index(kept.store)
    if saved is None:
        raise RunFailed(f"{node}: {kept.store.address} holds no saved index (there is no index.json)")
    files: list[FileFacts] = [{**file, "store": kept.store.anywhere} for file in saved["files"]]
    files = [{**file, "run": kept.name} for file in files] if named else files
    return StoredRows(tuple(files), saved["buckets"], saved["by"]), saved


def load_all(address: str, step: Step, named: bool) -> tuple[StoredRows, JSONObject, list[JSONObject]]:
    """The rows of all indexes at an address, the facts that they share, and which runs they are of."""
    rows, facts, earlier = StoredRows((), 1, None), None, []
    for kept in indexes_at(address, step):
        more, saved = load_rows(kept, step.called, named)
        if facts is not None and saved["facts"] != facts:
            raise RunFailed(
                f"{step.called}: {kept.store.address} was made with other settings than the indexes before it "
                f"({saved['facts']} and not {facts})"
            )
        facts = saved["facts"]
        rows = StoredRows(rows.files + more.files, max(rows.buckets, more.buckets), more.by)
        run = cast(JSONObject, saved["run"])
        saved_at = kept.store.modified("index.json").isoformat(timespec="seconds")
        earlier.append({"index": kept.name, "address": kept.store.address, "saved": saved_at, **run})
    return rows, facts or {}, earlier


def kept_at(address: str, step: Step) -> Store:
    """Where rows are kept for other runs: an address, or a path that is the recipe's as its other paths are."""
    return Store(located(re.sub(r"(?<!:)//+", "/", address), step.folder.resolve()))


def indexes_at(address: str, step: Step) -> list[KeptIndex]:
    """The indexes that an address stands for: itself, or those below the folder it names, in order of their names."""
    store, path = kept_at(address, step), PurePosixPath(address)
    if store.exists("index.json") or not is_library(store, address, step):
        return [KeptIndex(path.parent.name, store)]
    own = own_name(store, address, step)
    names = sorted((name for name in names_below(store) if own is None or in_order(name) < in_order(own)), key=in_order)
    below = [KeptIndex(name, Store(f"{library_of(store)}/{name}/{path.name}")) for name in names]
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
        folder, _, last = kept_at(saved, step).anywhere.rstrip("/").rpartition("/")
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
        takes = {kept.store.address for address in step.stage.loads for kept in indexes_at(address, step)}
        for address in sorted(takes - leaves):
            if read_index(Store(address)) is None:
                raise RecipeError(f"{where}: {address} holds no saved index (there is no index.json)")
        saves = {kept_at(address, step).address for address in step.stage.saves}
        for address in sorted(saves) if whole else ():
            if address in takes:
                raise RecipeError(
                    f"{where}: {address} would be replaced, and is what is compared with; "
                    "save into another folder, and name both in the next run"
                )
            there: SavedIndex | None = Store(address).read_json_if_whole("index.json")
            owner = there.get("of") if isinstance(there, dict) and is_as_written(there) else None
            if owner not in (None, owner_of(recipe, step)):
                raise RecipeError(f"{where}: {address} is of {owner}; save into another folder, or remove it")
        leaves |= saves


def saved_is_gone(step: Step) -> bool:
    """Whether something that the stage has left for later runs is not there."""
    return any(not kept_at(address, step).exists("index.json") for address in cast(Global, step.stage).saves)


def kept_before(step: Step) -> list[str]:
    """What tells the rows that a stage takes from earlier runs from others; nothing of a stage that takes none."""
    indexes = [kept for address in cast(Global, step.stage).loads for kept in indexes_at(address, step)]
    return [digest([kept.name, index and known_as(index)]) for kept in indexes for index in [read_index(kept.store)]]


def known_as(index: SavedIndex) -> JSONObject:
    """By what runs know an index: where documents were forgotten, by what it held before."""
    return index.get("was", undigested(index))


def forget_in_index(kept: Store, uids: NDArray[np.uint64], known: bool) -> int:
    """Take the rows of some documents out of saved rows; how many went. `known`: later runs are not to see a
    difference. Broken off, it can be called again: files that the index does not name go with the next call."""
    index = read_index(kept)
    if index is None:
        return 0
    files: list[FileFacts] = []
    for facts in index["files"]:
        holds_uids = "uid" in rows_schema(kept, facts["path"]).names
        files.append((write_without(kept, facts, uids) if holds_uids else None) or facts)
    went = sum(facts["rows"] for facts in index["files"]) - sum(facts["rows"] for facts in files)
    if went:
        before = known_as(index)
        changed = cast(SavedIndex, {**undigested(index), "files": files})
        changed["run"] = {**changed["run"], "rows": sum(facts["rows"] for facts in files)}
        if known:
            changed["was"] = {name: value for name, value in before.items() if name != "was"}
        write_index(kept, changed)
    named = {facts["path"] for facts in files}
    kept.remove([path for path in kept.files("") if path.endswith(".arrow") and path not in named])
    return went


def write_index(store: Store, index: SavedIndex) -> None:
    """What a saved index holds; it counts once this is there."""
    store.write_json("index.json", {**index, "checksum": digest(index)})


def read_index(store: Store) -> SavedIndex | None:
    """What a saved index holds; None where there is none, an error where it is not what was written."""
    index: SavedIndex | None = store.read_json_if_whole("index.json")
    if isinstance(index, dict) and is_as_written(index):
        return index
    if not store.exists("index.json"):
        return None
    raise RunFailed(
        f"{store.at('index.json')}: this is not what was written; "
        "run the recipe that saved this index again, which mends it"
    )


def is_as_written(index: SavedIndex) -> bool:
    return index.get("checksum") == digest({name: value for name, value in index.items() if name != "checksum"})
