"""Rows of a global stage that a run saves for later runs (an index): where they lie, and who owns them."""

from __future__ import annotations

from typing import cast

from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.fingerprint import digest
from gristmill.pipeline.flow.rows import StoredRows
from gristmill.pipeline.json_types import JSONObject
from gristmill.pipeline.recipe.recipe import Recipe, Step
from gristmill.pipeline.store.checksums import open_checked
from gristmill.pipeline.store.journal import Journal
from gristmill.pipeline.store.records import FileFacts, SavedIndex
from gristmill.pipeline.store.store import Store
from gristmill.stages.paths import located
from gristmill.stages.stage import Global

COPIED_AT_ONCE = 8 << 20


def save_rows(store: Store, kept: Store, rows: StoredRows, owner: str, facts: JSONObject, journal: Journal) -> None:
    """Copy the files of some rows into a folder for later runs; those that are there already stay."""
    kept.make_root()
    files: list[FileFacts] = []
    for file in rows.files:
        name = f"{file['checksum']}.arrow"
        if not journal.holds(kept, name, file["checksum"]):
            with open_checked(store, file) as rows_of_file, kept.commit(name) as copy:
                while piece := rows_of_file.read(COPIED_AT_ONCE):
                    copy.write(piece)
        files.append({**file, "path": name})
    write_index(kept, {"of": owner, "facts": facts, "by": rows.by, "buckets": rows.buckets, "files": files})


def load_rows(kept: Store, node: str) -> tuple[StoredRows, JSONObject]:
    """The rows that an earlier run saved, and its facts on how they were made."""
    saved = read_index(kept)
    if saved is None:
        raise RunFailed(f"{node}: {kept.address} holds no saved index (there is no index.json)")
    files: list[FileFacts] = [{**file, "store": kept.anywhere} for file in saved["files"]]
    return StoredRows(tuple(files), saved["buckets"], saved["by"]), saved["facts"]


def kept_at(address: str, step: Step) -> Store:
    """Where rows are kept for other runs: an address, or a path that is the recipe's as its other paths are."""
    return Store(located(address, step.folder.resolve()))


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
        takes = {kept_at(address, step).address for address in step.stage.loads}
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
    return [digest(read_index(kept_at(address, step))) for address in cast(Global, step.stage).loads]


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
    """Indexes of earlier versions have no checksum."""
    return "checksum" not in index or index["checksum"] == digest(
        {name: value for name, value in index.items() if name != "checksum"}
    )
