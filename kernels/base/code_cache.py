"""Where compiled kernels are kept: in a cache that is never stale and works on a read-only install.

numba's own cache only checks the file of a function, so it misses a change in a helper of another file. Here the cache
folder is named by a hash of the kernel's file, of every kernel file that it imports, and of the versions of the
compiler, and by nothing else: numba would add the path of the file, and compile anew for each install. It is in the
user's cache, or, where that is not writable, in a temporary folder that only this user can write
to (a cache is code).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import stat
import sys
import tempfile
from functools import cache
from importlib.metadata import version
from pathlib import Path

KERNELS = "gristmill.kernels."
PACKS = "packs"
# Syntax trees would take a third of a second for the kernels of a usual recipe. What looks like an import and is none
# changes a hash, and no result.
IMPORT = re.compile(r"(?m)^[ \t]*(?:from|import) (gristmill\.kernels[\w.]*)(?: import (?:\(([^)]*)\)|([^\n]*)))?")


@cache
def cache_folder() -> Path:
    """The user's folder for what is costly to make and cheap to keep: compiled code and tables."""
    for folder in _candidates():
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            continue
    return Path(tempfile.mkdtemp(prefix="gristmill-"))  # for this process alone


def code_folder(module: str) -> Path:
    folder = cache_folder() / folder_name(module)
    folder.mkdir(exist_ok=True, mode=0o700)
    return folder


def stored(folder: str, name: str) -> bytes | None:
    """A file of compiled code: of this machine, or of a pack that came from elsewhere."""
    for root in (cache_folder(), *sorted((cache_folder() / PACKS).glob("[0-9a-f]*"))):
        with contextlib.suppress(FileNotFoundError):
            return (root / folder / name).read_bytes()
    return None


def folder_name(module: str) -> str:
    return f"kernels-{hash_of_code(module)}"


def _candidates() -> list[Path]:
    folders = []
    chosen = os.environ.get("GRISTMILL_CACHE") or os.environ.get("XDG_CACHE_HOME")
    if chosen:
        folders.append(Path(chosen) / "gristmill")
    with contextlib.suppress(RuntimeError):  # no HOME and no entry in the password file
        folders.append(Path.home() / ".cache" / "gristmill")
    temporary = Path(tempfile.gettempdir()) / f"gristmill-{os.getuid() if hasattr(os, 'getuid') else 'user'}"
    try:
        temporary.mkdir(mode=0o700, exist_ok=True)
        facts = temporary.lstat()
        if stat.S_ISDIR(facts.st_mode) and (
            not hasattr(os, "getuid") or (facts.st_uid == os.getuid() and not facts.st_mode & 0o022)
        ):
            folders.append(temporary)
    except OSError:
        pass
    return folders


@cache
def hash_of_code(module: str) -> str:
    """A hash of a kernel's file, of all kernel files that it imports, of the compiler and of the processor."""
    digest = hashlib.sha256(
        f"{version('numba')} {version('llvmlite')} {sys.implementation.cache_tag} {platform.machine()}".encode()
    )
    waiting, seen = [module], set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        source, imported = _source_of(name)
        waiting += imported
        digest.update(name.encode() + b"\0" + source + b"\0")
    return digest.hexdigest()[:16]


@cache
def _source_of(module: str) -> tuple[bytes, list[str]]:
    """The source of a module and the kernel modules that it imports; empty for a name that is no module."""
    if module.startswith(KERNELS):
        path = Path(__file__).parents[1].joinpath(*module.removeprefix(KERNELS).split(".")).with_suffix(".py")
    else:
        path = Path(getattr(sys.modules.get(module), "__file__", None) or "")
    if not path.is_file():
        return b"", []
    source = path.read_bytes()
    imported: set[str] = set()
    for base, listed, line in IMPORT.findall(source.decode("utf-8", "replace")):
        imported |= {base, *(f"{base}.{name}" for name in re.findall(r"\w+", listed or line))}
    return source, sorted(imported)
