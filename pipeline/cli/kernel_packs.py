"""Compiled kernels of this machine in one file, for others of its kind.

A pack is a zstd tar of numba's cache files, named by a hash of the processor, the versions and the sources of all
kernels (`kind`). It is code, and numba's index files are pickle: whoever can write a pack can run anything where it is
used. So it is only read from a file that the user names, and nothing in it is read before its sha256 is the one that
came by another way: from the user.
"""

from __future__ import annotations

import hashlib
import io
import platform
import re
import tarfile
from functools import cache
from pathlib import Path

import zstandard

import gristmill.kernels
from gristmill.kernels.base.code_cache import KERNELS, PACKS, cache_folder, folder_name
from gristmill.kernels.common.files import whole_folder
from gristmill.pipeline.errors import RunFailed

MEMBER = re.compile(r"kernels-[0-9a-f]{16}/[\w.<>-]+\.nb[ic]|table-[\w.-]+\.npy")
MOST_BYTES = 1 << 30  # unpacked


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
    there = [path for name in folders() for path in (cache / name).glob("*.nb[ic]")]
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
    folder = cache_folder() / PACKS / sha256[:16]
    if folder.is_dir():
        return sum(1 for _ in folder.glob("*/*"))
    plain = zstandard.ZstdDecompressor().stream_reader(content).read(MOST_BYTES)
    try:
        with whole_folder(folder, durable=False) as draft, tarfile.open(fileobj=io.BytesIO(plain)) as tar:
            for member in tar:
                file = tar.extractfile(member) if member.isfile() and MEMBER.fullmatch(member.name) else None
                if file is None:
                    raise RunFailed(f"the pack of kernels holds something else: {member.name!r}")
                target = draft / member.name
                target.parent.mkdir(mode=0o700, exist_ok=True)
                target.write_bytes(file.read())
            for table in draft.glob("*.npy"):  # those lie in the cache itself
                if not (cache_folder() / table.name).exists():
                    table.replace(cache_folder() / table.name)
    except OSError:
        if not folder.is_dir():  # else another process was first
            raise
    return sum(1 for _ in folder.glob("*/*"))
