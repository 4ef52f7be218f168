"""Documents of a part in runs whose tokens may be held at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

SLICE_BYTES = 16 << 20  # of text; the partition of a suffix array


def slices(docs: pa.Table) -> Iterator[pa.Table]:
    """The documents in runs of about SLICE_BYTES of text, at least one document each; one empty run where there is
    none."""
    for batch in docs.to_batches() or [pa.RecordBatch.from_pylist([], schema=docs.schema)]:
        size = np.cumsum(
            pc.fill_null(pc.binary_length(batch["text"]), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        )
        start = 0
        while start < max(len(batch), 1):
            before = size[start - 1] if start else 0
            stop = max(start + 1, int(np.searchsorted(size, before + SLICE_BYTES, side="right")))
            yield pa.Table.from_batches([batch.slice(start, stop - start)])
            start = stop
