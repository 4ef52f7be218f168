"""`gristmill maintain verify`: check every byte and count of a run or of token shards."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gristmill.pipeline.cli.command import UPKEEP, Command
from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.screen import console, escape, say

if TYPE_CHECKING:
    from gristmill.pipeline.store.journal import Journal
    from gristmill.pipeline.store.storage import Store


def verify(
    folder: Annotated[str, typer.Argument(help="a run, or a folder of token shards", show_default=False)],
    read: Annotated[
        bool,
        typer.Option("--read", help="at s3://: fetch and check every byte; else lengths of files alone"),
    ] = False,
) -> None:
    """Check every byte of a run and every count of its shards.

    Exit code 1 if anything differs from what was written.
    """
    from gristmill.pipeline.look.token_sets import faults_of
    from gristmill.pipeline.store.storage import Store

    show, count, store = console(), 0, Store(folder)
    told: set[Path] = set()  # files that are known to be damaged
    is_run = store.exists("run.json") and store.exists("journal")
    with_content = store.local or read
    fine = "as written" if with_content else "there, of the written lengths"
    if not is_run and store.exists("run.json"):
        say(show, f"{folder}: the run's journal is not here, so that only token shards are checked")
    if not with_content:
        say(show, f"{folder}: lengths of files are checked, contents with --read")
    if is_run:
        files = check_files(store, read)
        told.update(Path(store.at(path)).resolve() for path in files.damaged)
        for line in files.faults:
            show.print(f"[red]fault[/red]  {escape(line)}", soft_wrap=True)
        count += len(files.faults)
        first = "" if files.next_run_knows else "remove what is not as written, and "
        show.print(
            f"{escape(folder)}: {counted(files.there, 'file')} checked, {counted(len(files.faults), 'fault')};"
            f" {first}run the recipe again to repair {'them' if len(files.faults) > 1 else 'it'}"
            if files.faults
            else f"{escape(folder)}: {counted(files.there, 'file')}, all {fine}"
        )
    for path, shards, faults in faults_of(folder) if not is_run or (store.local and store.exists("shards")) else ():
        for fault in faults:
            if fault.row is None and told and (path / fault.shard).resolve() in told:
                continue
            show.print(f"[red]fault[/red]  {escape(str(path))}: {escape(str(fault))}", soft_wrap=True)
            count += 1
        show.print(
            f"{escape(str(path))}: {counted(shards, 'shard')} checked, {counted(len(faults), 'fault')}"
            if faults
            else f"{escape(str(path))}: {counted(shards, 'shard')}, all {fine}"
        )
    if count:
        raise RunFailed(counted(count, "fault"))


def counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'s' if number != 1 else ''}"


@dataclass(frozen=True)
class CheckedFiles:
    there: int  # files that the run is known to have written
    faults: list[str]
    damaged: list[str]  # paths of files with another content
    next_run_knows: bool  # it makes the damaged ones anew


def check_files(store: Store, read: bool = False) -> CheckedFiles:
    """Each local file of a run is read, whatever its stamp says; of an object store with `read`. Else lengths are
    compared."""
    from gristmill.pipeline.store.journal import READERS, Journal
    from gristmill.pipeline.store.run_records import SegmentManifest
    from gristmill.pipeline.store.storage import hash_of_object

    journal = Journal(store, looks_only=True)
    known = journal.files
    journal.suspects = set(known)
    present = store.stamps("")
    files = {path: facts for path, facts in known.items() if path in present}
    journal.check(present)
    if read and not store.local:
        fine = sorted(files.keys() - set(journal.damaged))
        with ThreadPoolExecutor(READERS) as threads:
            hashes = threads.map(lambda path: hash_of_object(store, path), fine)
            other = [path for path, found in zip(fine, hashes, strict=True) if found != files[path].checksum]
        journal.damaged = sorted([*journal.damaged, *other])
    manifests = [
        path
        for path in present
        if path.startswith("partitions/") and path.endswith("/manifest.json") and path not in journal.damaged
    ]
    parts = [part for name in manifests for part in SegmentManifest.from_json(store.read_json(name)).parts]
    written = [path for part in parts for path in part.files.items()]
    results = {path for name, path in written if name.startswith("sink/")}
    sinks = tuple({f"{path.split('/')[0]}/" for path in results})
    strange = {
        path for path in present if known and path.startswith(sinks) and path.endswith(".parquet")
    } - known.keys()
    gone = {*results, *journal.results} - present.keys()
    damaged_lines = journal.damaged_lines if journal.results else 0  # of a run that has ended
    faults = [
        *(f"{path}: its content is not what was written" for path in journal.damaged),
        *(f"{path}: is gone" for path in sorted(gone)),
        *(f"{path}: lies among the documents, but the run did not write it: move it away" for path in sorted(strange)),
        *([f"journal: {damaged_lines:,} lines are not what was written"] if damaged_lines else []),
        *([] if known else ["journal: is empty; what the run wrote is not known"]),
    ]
    return CheckedFiles(len(files), faults, journal.damaged, tell_the_next_run(store, journal))


def tell_the_next_run(store: Store, journal: Journal) -> bool:
    """Does it know of the damaged files? Not at object stores, whose listings tell lengths alone, and not where the
    journal cannot be written to."""
    from gristmill.pipeline.store.lock import one_run_at_a_time

    if journal.damaged and store.local:
        try:
            with one_run_at_a_time(store):
                journal.tell_the_next_run()
        except (OSError, RunFailed):
            return False
    return store.local or not journal.damaged


COMMAND = Command(verify, UPKEEP, ("maintain verify out/mine",))
