#!/usr/bin/env python3
"""What `pack.py` asks of TRL, run by a Python that has it: JSON of seconds, rows, and what became of the documents, for
each of its paths.

    python pack_trl.py LENGTHS.npy ROW_LENGTH

`pack_dataset` gets a data set in memory with one column of lists, as its documentation shows: of uint16, all zero, the
smallest content that token ids of a small vocabulary could be. `batch_size` is that of `datasets.map`: 1,000 where
nothing is said, None for all at once. TRL has no function that packs lengths alone; `_pack_bfd` on lists of Arrow's
null type comes nearest: they have a length each, and no bytes to move. Building the columns is not timed.
"""

import json
import sys
import time
from collections.abc import Callable
from importlib.metadata import version

import datasets
import numpy as np
import pyarrow as pa
from trl.data_utils import _pack_bfd, pack_dataset

TIMES = 3


def lists(lengths: np.ndarray, content: pa.Array) -> pa.Table:
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.table({"input_ids": pa.ListArray.from_arrays(ends, content)})


def cut_though_they_fit(lengths: np.ndarray, row_ends: np.ndarray, row_length: int) -> float:
    """Of rows that hold the documents one after another: how many of those that fit have the end of a row inside them."""
    ends = np.cumsum(lengths)
    inside = np.searchsorted(row_ends, ends, "left") > np.searchsorted(row_ends, ends - lengths, "right")
    return round(float(inside[lengths <= row_length].mean()), 4)


def measured(
    pack: Callable[[], pa.Table | datasets.Dataset], lengths: np.ndarray, row_length: int
) -> dict[str, object]:
    taken = []
    for _ in range(TIMES):
        start = time.process_time()
        packed = pack()
        taken.append(time.process_time() - start)
    table = packed if isinstance(packed, pa.Table) else packed.data.table
    held = np.concatenate([chunk.value_lengths().to_numpy() for chunk in table["input_ids"].chunks]).astype(np.int64)
    found = {"seconds": taken, "rows": table.num_rows, "tokens": int(held.sum())}
    if "seq_lengths" not in table.column_names:
        return found | {"cut though they fit": cut_though_they_fit(lengths, np.cumsum(held), row_length)}
    pieces = np.concatenate([chunk.flatten().to_numpy() for chunk in table["seq_lengths"].chunks])
    wanted = np.bincount(lengths[lengths <= row_length], minlength=row_length + 1)
    missing = np.maximum(
        wanted - np.bincount(pieces, minlength=row_length + 1), 0
    )  # a document that is whole is a piece of its length
    return found | {"cut though they fit": round(float(missing.sum() / wanted.sum()), 4)}


def main() -> None:
    lengths, row_length = np.load(sys.argv[1]), int(sys.argv[2])
    datasets.disable_progress_bars()
    pa.set_cpu_count(1)
    no_bytes, with_bytes = (
        lists(lengths, pa.nulls(int(lengths.sum()))),
        lists(lengths, pa.array(np.zeros(lengths.sum(), np.uint16))),
    )
    paths = {"_pack_bfd, split, one batch, no content": lambda: _pack_bfd(no_bytes, row_length, "split")}
    for strategy in ("bfd_split", "bfd", "wrapped"):
        for called, size in (("batches of 1,000", 1000), ("one batch", None)):
            paths[f"pack_dataset, {strategy}, {called}"] = lambda strategy=strategy, size=size: pack_dataset(
                datasets.Dataset(with_bytes), row_length, strategy, {"batch_size": size}
            )
    found = {name: measured(pack, lengths, row_length) for name, pack in paths.items()}
    print(json.dumps({"paths": found, "versions": {name: version(name) for name in ("trl", "datasets", "pyarrow")}}))


if __name__ == "__main__":
    main()
