"""How often a document is seen: what `mix` said, or once where nobody mixed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

COPIES = "copies"  # the signal that a stage leaves which draws documents for training


def copies_of(docs: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]]:
    if COPIES not in docs.column_names:
        return np.ones(len(docs), np.int64)
    copies: np.ndarray[Any, np.dtype[np.int64]] = docs[COPIES].to_numpy().astype(np.int64)
    return copies
