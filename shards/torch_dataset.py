"""The loader as a torch IterableDataset: any number of workers, the same batches in the same order.

Worker w of W makes every W-th batch and DataLoader takes from its workers in turn, so batches come as from one process.
Workers run ahead of training: save the `state` that comes with the last batch that was trained on, not one that is
queried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.dlpack import from_dlpack

from gristmill.kernels.base.types import Array
from gristmill.shards.batch import Batch, cumulative_lengths, document_numbers, labels, positions
from gristmill.shards.loader import Loader

DERIVED = {
    "labels": labels,
    "position_ids": positions,
    "document_numbers": document_numbers,
    "cu_seqlens": cumulative_lengths,
}


class TokenBatches(IterableDataset[dict[str, Any]]):
    """For `DataLoader(dataset, batch_size=None, num_workers=any)`: this rank's share of each batch, as tensors. Every
    pass begins at the place of `loader`. A batch has `input_ids` (N, L), `bucket` and `difficulty` of its rows,
    `state`, and the names in `also` of shards/batch.py. With `dtype` None `input_ids` is in the type of the shards
    (uint16 or uint32), and, where rows are adjacent and without workers, it is the mapped file itself: send it to the
    device and convert it there. Writing to it kills the process. Another type makes a copy, which is yours."""

    def __init__(self, loader: Loader, dtype: torch.dtype | None = None, also: Sequence[str] = ("cu_seqlens",)) -> None:
        unknown = sorted(set(also) - set(DERIVED))
        if unknown:
            raise ValueError(f"{', '.join(unknown)}: not among {', '.join(DERIVED)}")
        self.loader = loader
        self.dtype = dtype
        self.also = tuple(also)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        loader = self.loader.standing_here()
        loader.skip(number)
        while (batch := loader.next_batch()) is not None:
            yield self.tensors(batch)
            loader.skip(workers - 1)

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Call it before the DataLoader is iterated."""
        self.loader.load_state_dict(state)

    def tensors(self, batch: Batch) -> dict[str, Any]:
        ids = as_tensor(batch.input_ids)
        return {
            "input_ids": ids if self.dtype is None else ids.to(self.dtype),
            "bucket": as_tensor(batch.rows.bucket),
            "difficulty": as_tensor(batch.rows.difficulty),
            **{name: as_tensor(DERIVED[name](batch.rows)) for name in self.also},
            "state": batch.state,
        }


def as_tensor(array: Array) -> torch.Tensor:
    """Without a copy. Arrow does not say what is writable, where torch would warn and numpy before 2.1 refuse."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return from_dlpack(pa.array(flat)).view(array.shape)
