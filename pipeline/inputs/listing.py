"""Folders of this machine, searched for inputs: linked folders are entered, and folders that may not be read are
reported. fsspec leaves both out without a word."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from fsspec.implementations.local import LocalFileSystem

from gristmill.pipeline.json_types import JSON

LOOP = "loop"  # the kind of a linked folder that is not entered
SPECIAL = "special"  # the kind of what is neither file nor folder: opening it could wait for ever, or fail
KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
UNREAD = "only regular files are read; save what it gives to a file first"
NOWHERE = "which is not there or cannot be reached; mend the link or remove it"
OF_THE_SYSTEM = "lost+found"  # lies on many a disk, for nobody to read


class Folders(LocalFileSystem):  # type: ignore[misc]
    """What `find` and `glob` see. A link is not entered where it leads around itself, nor, where all below `whole` is
    taken, back below it: those files are found in their own place."""

    cachable = False

    def __init__(self, whole: str | None = None) -> None:
        super().__init__()
        self.whole = None if whole is None else Path(whole).resolve()
        self.unread: list[OSError] = []  # folders that could not be looked into

    def info(self, path: str | os.DirEntry[str], **options: JSON) -> dict[str, JSON]:
        facts: dict[str, JSON] = super().info(path, **options)
        entry = path if isinstance(path, os.DirEntry) else Path(str(facts["name"]))
        there = entry.stat(follow_symlinks=False)
        if facts["islink"]:
            link = Path(str(facts["name"]))
            try:
                there = link.stat()
            except OSError:
                return {**facts, "type": SPECIAL, "kind": f"a link to {link.readlink()}, {NOWHERE}"}
            if stat.S_ISDIR(there.st_mode):
                is_listed = isinstance(path, os.DirEntry)  # and not named by whoever asks
                facts["type"] = LOOP if is_listed and self.is_loop(link) else "directory"
            elif stat.S_ISREG(there.st_mode):
                facts["type"] = "file"
        facts["stamp"] = stamp_of(there)
        facts["identity"] = f"{there.st_dev} {there.st_ino} {there.st_size}"
        if facts["type"] == "other":
            facts["type"] = SPECIAL
            facts["kind"] = f"{next((kind for is_kind, kind in KINDS if is_kind(there.st_mode)), 'no file')}; {UNREAD}"
        return facts

    def is_loop(self, link: Path) -> bool:
        target = link.resolve()
        if self.whole is not None and target.is_relative_to(self.whole):
            return True
        return any(above.resolve().is_relative_to(target) for above in link.parents)

    def walk(
        self,
        path: str,
        maxdepth: int | None = None,
        topdown: bool = True,
        on_error: Callable[[OSError], None] | None = None,
        **options: JSON,
    ) -> Iterator[tuple[str, Mapping[str, JSON], Mapping[str, JSON]]]:
        walked: Iterator[tuple[str, Mapping[str, JSON], Mapping[str, JSON]]] = super().walk(
            path, maxdepth, topdown, on_error or self.note, **options
        )
        return walked

    def note(self, error: OSError) -> None:
        if not isinstance(error, FileNotFoundError) and Path(str(error.filename)).name != OF_THE_SYSTEM:
            self.unread.append(error)


def stamp_of(facts: os.stat_result) -> str:
    """Differs once a file was written to or replaced, even if its modification time was set back; the first word is
    that time."""
    return f"{facts.st_mtime_ns} {facts.st_ctime_ns} {facts.st_ino}"


def is_hidden(root: str, name: str) -> bool:
    """As of macOS's `._a.jsonl`, and of what other programs keep beside their data."""
    return "/." in name[len(root.rstrip("/")) :]


def may_hold(folder: str, glob: str) -> bool:
    """Could a folder have files that match?"""
    steps, wanted = folder.split("/"), glob.split("/")[:-1]
    for step, pattern in zip(steps, wanted, strict=False):
        if pattern == "**":
            return True
        if not fnmatchcase(step, pattern):
            return False
    return len(steps) <= len(wanted)
