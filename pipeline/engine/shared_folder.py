"""Do the workers of other machines see the run's folder? The driver leaves a file there whose name nobody else knows;
each worker reads it, and writes beside it, before its first task."""

from __future__ import annotations

import contextlib
import platform
import secrets
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.store.journal import FOLDER
from gristmill.pipeline.store.store import Store

READS, PAUSE = 5, 0.2  # a shared file system may be a moment late


@contextlib.contextmanager
def nonce_in(store: Store) -> Iterator[str]:
    """The driver's half: where the file lies, for the time of a block."""
    nonce = secrets.token_hex(8)
    path = Path(store.at(f"{FOLDER}/.seen-{nonce}.tmp"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(nonce)
    try:
        yield str(path)
    finally:
        path.unlink(missing_ok=True)


@cache  # once in a process; an error is raised anew
def check_seen(nonce: str) -> None:
    """A worker's half. It makes no folder: one of that name on another disk would look like the run's."""
    path = Path(nonce)
    folder, host = path.parent.parent, platform.node()
    if not _reads(path):
        raise RunFailed(
            f"the worker on {host} does not see the output folder {folder}; mount it there under the same path "
            "(a shared file system), or give --out s3://..."
        )
    mine = path.with_name(f"{path.stem}-{host}-{secrets.token_hex(4)}.tmp")
    try:
        mine.write_text("")
        mine.unlink()
    except OSError as error:
        raise RunFailed(
            f"the worker on {host} cannot write into the output folder {folder} ({error.strerror}); "
            "let its user write there"
        ) from error


def _reads(path: Path) -> bool:
    for _ in range(READS):
        with contextlib.suppress(OSError):
            if path.read_text() in path.name:
                return True
        time.sleep(PAUSE)
    return False
