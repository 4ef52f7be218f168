"""Which documents of a run's shards hold a passage, and which record of which input file each of them came from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.look.history import history
from gristmill.pipeline.look.run_folder import NotFound, RunFolder
from gristmill.pipeline.look.token_sets import sets_in
from gristmill.shards.format import BadShards
from gristmill.shards.passages import LENGTH, SPREAD, Hit, find, folded, is_index_of, make_index
from gristmill.shards.reader import open_shards

INDEX = "index/find-"  # and the name of a set of shards
AROUND = 60  # characters that are shown on both sides


@dataclass
class Found:
    """A document that holds the passage."""

    set: str
    shard: str
    uid: str
    source: str
    before: str
    passage: str
    after: str
    url: str | None = None
    id: str | None = None
    files: list[str] = field(default_factory=list)  # one, or those of the part that it was read in
    offset: int | None = None  # of its record in the file

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def find_in_run(
    run: RunFolder, passage: str, most: int, note: Callable[[str], None] = lambda message: None
) -> Iterator[Found]:
    """Documents of the shards of a run, set by set. The index of a set is made where there is none of just these
    shards."""
    if not folded(passage):
        raise RecipeError("--text: there is nothing to look for")
    store = run.store
    try:
        for folder in [found.resolve() for found in sets_in(run.out)]:
            shards = open_shards(folder)
            root = Path(store.root).resolve()
            name = folder.relative_to(root).as_posix() if folder != root else folder.name
            index = Path(store.at(f"{INDEX}{name.replace('/', '-')}"))
            if len(folded(passage).encode()) < LENGTH + SPREAD - 1:
                note(f"{name}: a short passage; all documents are looked through")
            elif not is_index_of(index, shards):
                note(f"{name}: an index is made, once for these shards")
                make_index(shards, index)
            for hit in find(shards, index, passage, most):
                yield told(run, name, hit, len(folded(passage)))
    except BadShards as error:
        raise RunFailed(str(error)) from error


def told(run: RunFolder, name: str, hit: Hit, length: int) -> Found:
    ends = hit.begins + length
    found = Found(
        name,
        hit.shard,
        f"{hit.uid:016x}",
        hit.source,
        hit.text[max(0, hit.begins - AROUND) : hit.begins],
        hit.text[hit.begins : ends],
        hit.text[ends : ends + AROUND],
    )
    with suppress(NotFound, OSError):
        story = history(run, hit.uid)
        found.url, found.id = story.url, story.id
        found.files = [span.path for span in story.read_from]
        found.offset = next((span.offset for span in story.read_from), None)
    return found
