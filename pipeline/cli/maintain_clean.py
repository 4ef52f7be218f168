"""`gristmill maintain clean`: remove intermediate files of a finished run."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

from gristmill.pipeline.cli.command import UPKEEP, Command
from gristmill.pipeline.cli.options import OutPath
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.formatting import as_bytes
from gristmill.pipeline.screen import console, say

WITHOUT_PARTITIONS = (
    "without them `tune` does not work, nor `inspect --url` and `--uid` of most documents, and a changed recipe starts"
    " from the source"
)


def clean(
    out: OutPath,
    shuffle: Annotated[
        bool, typer.Option(help="data that global stages exchanged between rounds; the next run recomputes it")
    ] = True,
    partitions: Annotated[
        bool,
        typer.Option(help=f"also documents and signals between segments; {WITHOUT_PARTITIONS}"),
    ] = False,
    rejects: Annotated[bool, typer.Option(help="documents that were dropped, which `inspect` shows")] = False,
    unused: Annotated[
        bool, typer.Option(help="shards and other results of stages that are no longer in the recipe")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only show what would be removed")] = False,
) -> None:
    """Remove intermediate files of a finished run.

    And, with --unused, results of earlier versions of its recipe.
    """
    show = console()
    files = clean_up(out, shuffle=shuffle, partitions=partitions, rejects=rejects, unused=unused, dry_run=dry_run)
    for line in by_folder(files) if dry_run else ():
        say(show, f"  {line}")
    say(show, f"{'would remove' if dry_run else 'removed'} {len(files):,} files, {sum(files.values()) / 1e6:,.1f} MB")
    if any(path.startswith("partitions/") for path in files):
        say(show, f"partitions/: {WITHOUT_PARTITIONS}", "yellow", "note")


def clean_up(
    out: str, *, shuffle: bool, partitions: bool, rejects: bool, unused: bool, dry_run: bool
) -> dict[str, int]:
    """Remove intermediates, and if asked results that the recipe no longer makes; the files that went, and their
    bytes."""
    from gristmill.pipeline.run.record import stages_of, unused_results
    from gristmill.pipeline.store.lock import one_run_at_a_time
    from gristmill.pipeline.store.storage import Store

    store = Store(out)
    record = store.read_json("run.json")
    if record is None:
        raise RecipeError(f"{out}: no run is here (there is no run.json)")
    with one_run_at_a_time(store):
        present = store.files("")
        results = unused_results(present, stages_of(record["recipe"])) if unused else {}
        chosen = [path for paths in results.values() for path in paths]
        chosen += [
            path
            for path in present
            if (shuffle and path.startswith("shuffle/") and path.endswith(".arrow"))
            or (partitions and path.startswith("partitions/") and path.endswith(".parquet"))
            or (rejects and path.startswith("stages/") and "/rejects/" in path and path.endswith(".parquet"))
        ]
        if not dry_run:
            store.remove(chosen)
    return {path: present[path] for path in chosen}


def by_folder(files: dict[str, int]) -> list[str]:
    """One line for each kind of files, as they lie: partitions/crawl, stages/extract/rejects."""
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for path, size in files.items():
        folder = "/".join(path.split("/")[: 3 if path.startswith("stages/") else 2]) if path.count("/") > 1 else path
        counts[folder] += 1
        sizes[folder] += size
    return [f"{folder}: {n:,} file{'s' * (n > 1)}, {as_bytes(sizes[folder])}" for folder, n in sorted(counts.items())]


COMMAND = Command(clean, UPKEEP, ("maintain clean out/mine --dry-run",))
