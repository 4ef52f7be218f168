"""An embedding of either kind, by its folder."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from gristmill.classifiers.card import JudgeError
from gristmill.classifiers.embedding.static import is_static, read_static
from gristmill.kernels.base.types import Array
from gristmill.kernels.common.extras import install

ENCODER = "gristmill.classifiers.embedding.encoder"  # imported when one is read, so that no other asks for torch


class Embedder(Protocol):
    @property
    def width(self) -> int: ...

    def vectors(self, texts: pa.Array) -> Array:
        """float32_NW; zeros for a text that has no vector."""
        ...


def read_embedder(folder: str, most: int, device: str) -> Embedder:
    """`most`: tokens read of a text. JudgeError where the folder is none."""
    path = Path(folder)
    if is_static(path):
        return read_static(path, most)
    try:
        model: Embedder = import_module(ENCODER).read_embedding_encoder(path, most, device)
    except ImportError as error:
        raise JudgeError(f"{folder} is an encoder, which needs torch: {install('gpu')}") from error
    return model
