"""Arrays that are made once on a machine and mapped by all its processes: a folder of them appears whole, or not at
all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from gristmill.kernels.base.types import Array


def publish(folder: Path, arrays: Mapping[str, Array], notes: Mapping[str, str] | None = None) -> None:
    """Write arrays, and small texts beside them. Of several processes that make the same the first one's stay."""
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{folder.name}-", suffix=".tmp"))
    for name, array in arrays.items():
        np.save(temporary / f"{name}.npy", array)
    for name, text in (notes or {}).items():
        (temporary / name).write_text(text, encoding="utf-8")
    try:
        os.rename(temporary, folder)  # noqa: PTH104  Path.rename would read the same
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        if not folder.is_dir():
            raise


def mapped(folder: Path, name: str) -> Array:
    array: Array = np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False).view(np.ndarray)
    array.flags.writeable = False
    return array
