"""Arrays that are made once on a machine and mapped by all its processes: a folder of them appears whole, or not at
all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from gristmill.kernels.base.types import Array
from gristmill.kernels.common.files import whole_folder


def publish(folder: Path, arrays: Mapping[str, Array], notes: Mapping[str, str] | None = None) -> None:
    """Write arrays, and small texts beside them. Of several processes that make the same the first one's stay."""
    try:
        with whole_folder(folder, durable=False) as draft:
            for name, array in arrays.items():
                np.save(draft / f"{name}.npy", array)
            for name, text in (notes or {}).items():
                (draft / name).write_text(text, encoding="utf-8")
    except OSError:
        if not folder.is_dir():
            raise


def mapped(folder: Path, name: str) -> Array:
    array: Array = np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False).view(np.ndarray)
    array.flags.writeable = False
    return array
