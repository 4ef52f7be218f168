"""How the files of a sink appear: together, once all are there, so that whoever reads `write/*.parquet` never sees two
versions of a part.

Workers write into a hidden folder beside the sink's (`.write.new/`). When the last part is done, the parts that stay
are linked into it and the two folders change places in one step of the file system. Until then, and after a run that
broke off, the sink holds all files of the run before. Object stores have no such step: there the files of the run
before go first, and then the new ones get their names.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path, PurePosixPath

from gristmill.pipeline.store.parts import OF_A_PART
from gristmill.pipeline.store.store import Store

AT_FDCWD, RENAME_EXCHANGE = -100, 2
NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)  # file systems that cannot, such as some of clusters


def staged(path: str) -> str:
    """Where a file of a sink lies until all of its sink are there."""
    sink, _, name = path.rpartition("/")
    return f".{sink}.new/{name}"


def as_lying(store: Store, path: str) -> str:
    """Where a file of a sink lies now."""
    return path if store.exists(path) else staged(path)


def waiting_for_names(present: Iterable[str]) -> dict[str, str]:
    """Of the files of a run's folder, those that wait for the others of their sink: by the name that each will have."""
    waiting = {}
    for path in present:
        folder, _, name = path.rpartition("/")
        if folder.startswith(".") and folder.endswith(".new"):
            waiting[f"{folder[1 : -len('.new')]}/{name}"] = path
    return waiting


def publish(store: Store, sink: str, wanted: Collection[str]) -> bool:
    """Make a sink hold the `wanted` files, and those of others that are in its folder; was there anything to do?"""
    waiting = names_in(store, PurePosixPath(staged(f"{sink}/x")).parent.name)
    if store.local:
        bring_back(Path(store.at(sink)))
    there = names_in(store, sink)
    names = {PurePosixPath(path).name for path in wanted}
    if not waiting and names >= {name for name in there if is_ours(name)}:
        return False
    stay = (there - waiting) & names | {name for name in there if not is_ours(name)}
    if store.local:
        _exchange(Path(store.at(sink)), Path(store.at(staged(f"{sink}/x"))).parent, stay, unwanted=waiting - names)
    else:
        store.remove([f"{sink}/{name}" for name in there - stay])
        store.remove([staged(f"{sink}/{name}") for name in waiting - names])
        for name in sorted(waiting & names):
            store.check_lease()
            store.fs.mv(store.at(staged(f"{sink}/{name}")), store.at(f"{sink}/{name}"))
    return True


def names_in(store: Store, folder: str) -> set[str]:
    return {path[len(folder) + 1 :] for path in store.files(folder)}


def is_ours(name: str) -> bool:
    """Does a file bear the name of a part? Others may lie beside them (`_SUCCESS`, a README)."""
    return bool(OF_A_PART.search(name))


def _exchange(sink: Path, new: Path, stay: Collection[str], unwanted: Collection[str]) -> None:
    new.mkdir(parents=True, exist_ok=True)
    for name in unwanted:
        (new / name).unlink()
    for name in stay:
        (new / name).parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(sink / name, new / name)
    if not any(new.iterdir()):  # no part has a document: no file, no folder
        new.rmdir()
        shutil.rmtree(sink, ignore_errors=True)
        return
    if not sink.exists():
        new.rename(sink)
        return
    if not swap(sink, new):
        old = old_of(sink)
        sink.rename(old)
        new.rename(sink)
        new = old
    shutil.rmtree(new)


def link_or_copy(file: Path, to: Path) -> None:
    """The same file under another name; a copy where the file system has no links."""
    try:
        os.link(file, to)
    except OSError:
        shutil.copy2(file, to)


def swap(left: Path, right: Path) -> bool:
    """Let two folders change places in one step; False where the file system cannot."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(AT_FDCWD, os.fsencode(left), AT_FDCWD, os.fsencode(right), RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in NO_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), str(left))


def old_of(sink: Path) -> Path:
    return sink.with_name(f".{sink.name}.old")


def bring_back(sink: Path) -> None:
    """Where folders cannot change places in one step, a run may have been killed between the two: the old files have
    their name again."""
    old = old_of(sink)
    if old.exists():
        if sink.exists():
            shutil.rmtree(old)
        else:
            old.rename(sink)
