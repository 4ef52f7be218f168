"""How kernels are compiled: by numba, without the GIL, into a cache that is never stale and works on a read-only
install.

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
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile, _CacheLocator

from gristmill.kernels.base.linking import HelperCompiler, KernelCompiler

F = TypeVar("F", bound=Callable[..., Any])
KERNELS = "gristmill.kernels."
PACKS = "packs"
# Syntax trees would take a third of a second for the kernels of a usual recipe. What looks like an import and is none
# changes a hash, and no result.
IMPORT = re.compile(r"(?m)^[ \t]*(?:from|import) (gristmill\.kernels[\w.]*)(?: import (?:\(([^)]*)\)|([^\n]*)))?")


class Locator(_CacheLocator):
    """Where numba keeps a kernel: in a folder that is named by its code alone, so that the same code finds it from any
    path of installation."""

    def __init__(self, function: Callable[..., Any], file: str) -> None:
        self._py_file, self._lineno = file, function.__code__.co_firstlineno
        self.folder = code_folder(function.__module__)

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> Locator:
        return cls(py_func, py_file)

    def get_cache_path(self) -> str:
        return str(self.folder)

    def get_source_stamp(self) -> str:
        return self.folder.name

    def get_disambiguator(self) -> str:
        return str(self._lineno)


class Implementation(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes: ClassVar[list[type]] = [Locator]


class KernelFiles(IndexDataCacheFile):  # type: ignore[misc]
    """The files of one kernel. numba numbers them, so that of two processes that compile for two signatures at once one
    may load what the other has compiled; here a file is named by its signature."""

    def save(self, key: Any, data: Any) -> None:
        name = f"{self._index_name.removesuffix('.nbi')}.{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.nbc"
        self._save_data(name, data)
        self._save_index(self._load_index() | {key: name})


class KernelCache(FunctionCache):  # type: ignore[misc]
    """numba's cache of a function, and behind it the packs that came from elsewhere: what is used of one is copied."""

    _impl_class = Implementation

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file = self._files_in(self._impl.locator.folder)

    def _files_in(self, folder: Path) -> KernelFiles:
        return KernelFiles(str(folder), self._impl.filename_base, self._impl.locator.get_source_stamp())

    def _load_overload(self, sig: Any, target_context: Any) -> Any:
        found = super()._load_overload(sig, target_context)
        if found is not None:
            return found
        key, folder = self._index_key(sig, target_context.codegen()), self._impl.locator.folder
        for pack in sorted((cache_folder() / PACKS).glob("[0-9a-f]*")):
            data = self._files_in(pack / folder.name).load(key)
            if data is not None:
                self._cache_file.save(key, data)
                return self._impl.rebuild(target_context, data)
        return None


def kernel(function: F, **options: Any) -> F:
    """Compiles a loop that releases the GIL, and caches it. Division by zero gives inf or NaN, never an exception."""
    compiled = numba.njit(nogil=True, error_model="numpy", pipeline_class=KernelCompiler, **options)(function)
    compiled._cache = KernelCache(function)
    return compiled


def helper(function: F, **options: Any) -> F:
    """Compiles a small function that kernels call and that is compiled into them."""
    return numba.njit(nogil=True, error_model="numpy", pipeline_class=HelperCompiler, **options)(function)


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
