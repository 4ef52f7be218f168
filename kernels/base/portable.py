"""Kernels that came compiled with the package, for any x86-64 processor of the last ten years, so that `gristmill demo`
need not compile. `make wheel` makes them; a checkout has none.

A file of them is for one version of Python and of numba. Runs use what is compiled for the processor that is there,
which is faster.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path

PROCESSOR = "x86-64-v3"
FEATURES = (
    "64bit", "avx", "avx2", "bmi", "bmi2", "cmov", "crc32", "cx16", "cx8", "f16c", "fma", "fxsr", "lzcnt", "mmx",
    "movbe", "popcnt", "sahf", "sse", "sse2", "sse3", "sse4.1", "sse4.2", "ssse3", "xsave",
)  # fmt: skip
ENVIRONMENT = {"NUMBA_CPU_NAME": PROCESSOR, "NUMBA_CPU_FEATURES": ",".join(f"+{name}" for name in FEATURES)}
FOLDER = Path(__file__).parents[1] / "compiled"


def file() -> Path:
    """Where those for this Python and numba would be."""
    return FOLDER / f"{sys.implementation.cache_tag}-numba-{version('numba')}-{version('llvmlite')}.tar.zst"


def fits() -> bool:
    """Does this processor run them?"""
    import llvmlite.binding as llvm

    there = llvm.get_host_cpu_features()
    return all(there.get(name) for name in FEATURES)


def choose() -> bytes | None:
    """From here on, this process and those that it starts compile for any such processor; what is compiled already.
    None: there is nothing for this machine, or numba is at work here already."""
    path = file()
    if not path.is_file() or "numba" in sys.modules or not fits():
        return None
    os.environ.update(ENVIRONMENT)
    return path.read_bytes()
