"""How kernels are compiled: numba, without the GIL, into a cache that cannot be stale and works on a read-only install.

numba's own cache asks only whether the file of a function changed, so a change in a helper of another file goes unnoticed. Here the
folder is named by a hash of all kernel sources and of the versions that compile them. It lies in the user's cache, or, where there is
none to write to, in a temporary folder of this user's own (a cache is code: nobody else may write there).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import stat
import tempfile
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba import config

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """A loop in machine code that leaves the GIL to others, kept in the cache. Division by zero gives inf or NaN, never an exception."""
    before = config.CACHE_DIR  # numba's setting is of the whole process; other packages keep theirs
    config.CACHE_DIR = str(cache_folder())
    try:
        return numba.njit(nogil=True, error_model="numpy", cache=True)(function)  # type: ignore[no-any-return]
    finally:
        config.CACHE_DIR = before


def helper(function: F) -> F:
    """A small function that kernels call; it is compiled into them."""
    return numba.njit(nogil=True, error_model="numpy")(function)  # type: ignore[no-any-return]


@cache
def cache_folder() -> Path:
    name = f"kernels-{sources_hash()}"
    for base in _candidates():
        folder = base / name
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            continue
    return Path(tempfile.mkdtemp(prefix="gristmill-"))  # for this process alone


def _candidates() -> list[Path]:
    found = []
    chosen = os.environ.get("GRISTMILL_CACHE") or os.environ.get("XDG_CACHE_HOME")
    if chosen:
        found.append(Path(chosen) / "gristmill")
    with contextlib.suppress(RuntimeError):  # no HOME and no entry in the password file
        found.append(Path.home() / ".cache" / "gristmill")
    mine = Path(tempfile.gettempdir()) / f"gristmill-{os.getuid() if hasattr(os, 'getuid') else 'user'}"
    try:
        mine.mkdir(mode=0o700, exist_ok=True)
        facts = mine.lstat()
        if stat.S_ISDIR(facts.st_mode) and (not hasattr(os, "getuid") or (facts.st_uid == os.getuid() and not facts.st_mode & 0o022)):
            found.append(mine)
    except OSError:
        pass
    return found


@cache
def sources_hash() -> str:
    """Every kernel source, and what compiles it for which processor."""
    digest = hashlib.sha256(f"{version('numba')} {version('llvmlite')} {platform.python_version()} {platform.machine()}".encode())
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
