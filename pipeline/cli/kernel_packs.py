"""Compiled kernels of this machine in one file, for others of its kind.

A pack is a zstd tar of the cache's files, named by a hash of the processor, the versions and the sources of all kernels
(`kind`). It is code, and the files are pickle: whoever can write a pack can run anything where it is
used. So it is only read from a file that the user names, and nothing in it is read before its sha256 is the one that
came by another way: from the user.
"""

from __future__ import annotations

import hashlib
import io
import platform
import tarfile
from functools import cache
from pathlib import Path

import zstandard

import gristmill.kernels
from gristmill.kernels.base import portable
from gristmill.kernels.base.code_cache import KERNELS, cache_folder, folder_name
from gristmill.pipeline.errors import RunFailed


def folders() -> list[str]:
    """The names of the cache folders of all kernels, as they are in this version."""
    root = Path(gristmill.kernels.__file__).parent
    files = (path.relative_to(root).with_suffix("") for path in root.rglob("*.py"))
    return sorted(folder_name(KERNELS + ".".join(path.parts)) for path in files if path.name != "__init__")


@cache
def kind() -> str:
    """Of machines that can use each other's compiled kernels. `folders` are hashes of sources and versions."""
    from numba.core.registry import cpu_target  # slow to import

    triple, processor, features = cpu_target.target_context.codegen().magic_tuple()
    facts = [platform.python_implementation(), triple, processor, features, *folders()]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def file_name() -> str:
    return f"kernels-{kind()}.tar.zst"


def packed() -> bytes:
    """The kernels that this machine has compiled, and their tables, of this version. Equal files make equal bytes."""
    cache = cache_folder()
    there = [path for name in folders() for path in (cache / name).glob("*.nbc")]
    hashes = {name.removeprefix("kernels-") for name in folders()}
    there += [path for path in cache.glob("table-*.npy") if hashes & set(path.stem.split("-"))]
    files = {path.relative_to(cache).as_posix(): path.read_bytes() for path in there}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for member, content in sorted(files.items()):
            facts = tarfile.TarInfo(member)
            facts.size = len(content)
            tar.addfile(facts, io.BytesIO(content))
    return zstandard.compress(buffer.getvalue(), 3)


def unpack(content: bytes, sha256: str) -> int:
    """Put a pack where kernels find it, whole or not at all; how many files there are."""
    if hashlib.sha256(content).hexdigest() != sha256:
        raise RunFailed("the pack of kernels is not the one that was announced (its sha256 differs)")
    try:
        return portable.unpack(content, sha256)
    except ValueError as error:
        raise RunFailed(str(error)) from error
