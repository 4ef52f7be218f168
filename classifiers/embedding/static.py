"""Static embeddings from a folder: the mean of tokens' vectors, as model2vec has it (Tulkens and van Dongen 2024).

The folder has tokenizer.json, model.safetensors (`embeddings`, and `weights` and `mapping` where the vocabulary was
quantised; `embedding.weight` of sentence-transformers) and config.json. Vectors equal those of the package `model2vec`
to float32's rounding (tests/classifiers/test_embeddings.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.classifiers.artifact import read_json
from gristmill.classifiers.card import JudgeError
from gristmill.kernels.base.types import Array
from gristmill.kernels.vectors.pooling import pooled

TABLES = ("embeddings", "embedding.weight")
TEXTS = 1024  # that are tokenised at a time


@dataclass(frozen=True)
class StaticEmbedding:
    """`table_VW` by token, `weights_T` and `mapping_T` (token to row) where a model has them."""

    json: str
    table_VW: Array
    weights_T: Array | None
    mapping_T: Array | None
    most: int  # tokens read of a text

    @property
    def width(self) -> int:
        return int(self.table_VW.shape[1])

    def vectors(self, texts: pa.Array) -> Array:
        """float32_NW; zeros for a text without known tokens."""
        parts = [self._vectors(texts[start : start + TEXTS]) for start in range(0, len(texts), TEXTS)]
        return np.concatenate(parts) if parts else np.zeros((0, self.width), np.float32)

    def _vectors(self, texts: pa.Array) -> Array:
        whole = texts.cast(pa.large_string()).fill_null("")
        cut = pc.utf8_slice_codeunits(whole, 0, self.most * self._letters)
        encodings = self._tokenizer.encode_batch_fast(cut.to_pylist(), add_special_tokens=False)
        ids = [np.array(encoding.ids, np.int64) for encoding in encodings]
        if self._unknown is not None:
            ids = [row[row != self._unknown] for row in ids]
        first = np.cumsum([0, *map(len, ids)])
        tokens = np.concatenate(ids) if ids else np.empty(0, np.int64)
        values = np.repeat(1 / np.maximum(np.diff(first), 1), np.diff(first)).astype(np.float32)
        if self.weights_T is not None:
            values *= self.weights_T[tokens]
        return pooled(tokens if self.mapping_T is None else self.mapping_T[tokens], values, first, self.table_VW)

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_str(self.json)
        tokenizer.no_padding()
        tokenizer.enable_truncation(self.most)
        return tokenizer

    @cached_property
    def _letters(self) -> int:
        """Of a token in the middle of all, by length: texts are cut at so many for each token that is read, as
        model2vec does."""
        return max(1, int(np.median([len(token) for token in self._tokenizer.get_vocab()])))

    @cached_property
    def _unknown(self) -> int | None:
        import json

        model = json.loads(self.json)["model"]
        name = model.get("unk_token")
        if name is None and isinstance(number := model.get("unk_id"), int):
            return number
        return None if name is None else self._tokenizer.token_to_id(name)


def read_static(folder: Path, most: int) -> StaticEmbedding:
    """JudgeError where the folder is no static embedding."""
    from safetensors import SafetensorError, safe_open

    try:
        json = (folder / "tokenizer.json").read_text(encoding="utf-8")
        with safe_open(folder / "model.safetensors", "numpy") as file:
            names = set(file.keys())
            tensors = {name: file.get_tensor(name) for name in (*TABLES, "weights", "mapping") if name in names}
    except (OSError, UnicodeDecodeError, SafetensorError, TypeError) as error:
        raise JudgeError(f"{folder}: no static embedding that can be read ({error})") from error
    table = next((tensors[name] for name in TABLES if name in tensors), None)
    if table is None or table.ndim != 2:
        raise JudgeError(f"{folder}/model.safetensors: no matrix {' or '.join(TABLES)}")
    model = StaticEmbedding(
        json, table.astype(np.float32), _row(tensors, "weights", np.float32), _row(tensors, "mapping", np.int64), most
    )
    try:
        highest = max(model._tokenizer.get_vocab().values(), default=-1)
    except Exception as error:  # the library raises nothing narrower
        raise JudgeError(f"{folder}/tokenizer.json cannot be read: {error}") from error
    lengths = [len(rows) for rows in (model.weights_T, model.mapping_T) if rows is not None]
    rows = len(table) if model.mapping_T is None else min(lengths)
    if highest >= min([rows, *lengths]) or (
        model.mapping_T is not None
        and not (0 <= model.mapping_T.min(initial=0) <= model.mapping_T.max(initial=0) < len(table))
    ):
        raise JudgeError(f"{folder}: the tokenizer makes ids up to {highest:,}, and there are {rows:,} rows for them")
    if not np.isfinite(model.table_VW).all():
        raise JudgeError(f"{folder}/model.safetensors has numbers that are not finite")
    return model


def _row(tensors: dict[str, Array], name: str, kind: type) -> Array | None:
    return tensors[name].reshape(-1).astype(kind) if name in tensors else None


def is_static(folder: Path) -> bool:
    """Does the folder's config name no encoder?"""
    config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    return not isinstance(config, dict) or config.get("model_type") in (None, "model2vec")
