"""What a person does with the token shards of a run: find them, verify them, export them; and the dataset card that
lies beside them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.look.exports import remember
from gristmill.shards.export.export import Exported, Options, Progress, check_format, export
from gristmill.shards.export.rows import ExportError
from gristmill.shards.format import BadShards
from gristmill.shards.index import NAME
from gristmill.shards.verify import Fault, verify


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
        raise RecipeError(f"{folder}: {len(sets)} sets of shards fit; name one of {there}, or give --row-length")
    return sets[0]


def faults_of(folder: str) -> Iterator[tuple[Path, int, list[Fault]]]:
    """Each set, how many shards it has, and what is wrong with it."""
    for path in sets_in(folder):
        looked_at: list[int] = []
        faults = verify(path, looked_at.append)
        yield path, len(looked_at), faults


def exported(
    folder: str, to: str, destination: str, row_length: int | None, options: Options, progress: Progress
) -> Exported:
    try:
        check_format(to, options)  # before the folder is looked into, for a typing error
        shards = the_set(folder, row_length)
        done = export(shards, to, destination, options, progress)
    except ExportError as error:
        raise RecipeError(str(error)) from error
    except BadShards as error:
        raise RunFailed(str(error)) from error
    remember(shards, to, destination, options)
    return done
