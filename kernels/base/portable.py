"""Kernels that came compiled with the package, for any x86-64 processor of the last ten years. `make wheel` makes them,
in a file for one version of Python and of numba; a checkout has none.

They serve every process until there are some for the processor at hand, which are up to a fifth faster and give the
same results: a run makes those beside its work, and its workers go over to them (pipeline/engine/preload.py).
`GRISTMILL_PORTABLE=0` refuses them.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path

from gristmill.kernels.base.code_cache import PACKS, cache_folder
from gristmill.kernels.common.files import whole_folder

FEATURES = (
    "64bit", "avx", "avx2", "bmi", "bmi2", "cmov", "crc32", "cx16", "cx8", "f16c", "fma", "fxsr", "lzcnt", "mmx",
    "movbe", "popcnt", "sahf", "sse", "sse2", "sse3", "sse4.1", "sse4.2", "ssse3", "xsave",
)  # fmt: skip
PROCESSOR = "x86-64-v3", ",".join(f"+{name}" for name in FEATURES)  # as numba names one, in the names of files too
ENVIRONMENT = dict(zip(("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"), PROCESSOR, strict=True))  # to compile for it
REFUSED = "GRISTMILL_PORTABLE", "0"
FOLDER = Path(__file__).parents[1] / "compiled"
MEMBER = re.compile(r"kernels-[0-9a-f]{16}/[\w.<>-]+\.nbc|table-[\w.-]+\.npy")
MOST_BYTES = 1 << 30  # unpacked


def file() -> Path:
    """Where those for this Python and numba would be."""
    return FOLDER / f"{sys.implementation.cache_tag}-numba-{version('numba')}-{version('llvmlite')}.tar.zst"


def fits() -> bool:
    """Does this processor run them?"""
    import llvmlite.binding as llvm

    there = llvm.get_host_cpu_features()
    return all(there.get(name) for name in FEATURES)


def refused() -> bool:
    name, value = REFUSED
    return os.environ.get(name) == value


@cache
def serve() -> bool:
    """Are there any for this machine? If so, they are where kernels and tables look for them."""
    if refused() or not file().is_file() or not fits():
        return False
    content = file().read_bytes()
    unpack(content, hashlib.sha256(content).hexdigest())
    return True


def unpack(content: bytes, sha256: str) -> int:
    """Put a pack of kernels where they are looked for, whole or not at all; how many files there are. ValueError: it
    holds something else."""
    import tarfile

    import zstandard

    folder = cache_folder() / PACKS / sha256[:16]
    if folder.is_dir():
        return sum(1 for _ in folder.glob("*/*"))
    plain = zstandard.ZstdDecompressor().stream_reader(content).read(MOST_BYTES)
    try:
        with whole_folder(folder, durable=False) as draft, tarfile.open(fileobj=io.BytesIO(plain)) as tar:
            for member in tar:
                packed = tar.extractfile(member) if member.isfile() and MEMBER.fullmatch(member.name) else None
                if packed is None:
                    raise ValueError(f"the pack of kernels holds something else: {member.name!r}")
                target = draft / member.name
                target.parent.mkdir(mode=0o700, exist_ok=True)
                target.write_bytes(packed.read())
            for table in draft.glob("*.npy"):  # those lie in the cache itself
                if not (cache_folder() / table.name).exists():
                    table.replace(cache_folder() / table.name)
    except OSError:
        if not folder.is_dir():  # else another process was first
            raise
    return sum(1 for _ in folder.glob("*/*"))
