"""Reads a prefix with megatron-core's own IndexedDataset; prints its documents, and the samples of an epoch that its
GPTDataset makes of them.

PYTHON with_megatron.py PREFIX ROW_LENGTH EOD
"""

import json
import sys
import tempfile

import numpy as np
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDataset
from megatron.core.datasets.utils import Split


class Tokenizer:
    """What GPTDataset asks of one."""

    def __init__(self, eod: int) -> None:
        self.eod = eod
        self.pad = 0
        self.vocab_size = 1 << 18
        self.unique_identifiers = {"eod": eod}


def samples(dataset: IndexedDataset, prefix: str, row_length: int, eod: int) -> list[list[int]]:
    with tempfile.TemporaryDirectory() as cache:
        config = GPTDatasetConfig(
            random_seed=1,
            sequence_length=row_length,
            split="1,0,0",
            reset_position_ids=True,
            reset_attention_mask=True,
            eod_mask_loss=True,
            tokenizer=Tokenizer(eod),
            path_to_cache=cache,
        )
        made = GPTDataset(dataset, prefix, np.arange(len(dataset), dtype=np.int32), None, Split.train, config)
        return [made[i]["tokens"].tolist() for i in range(len(made))]


if __name__ == "__main__":
    prefix, row_length, eod = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    found = {}
    for mmap in (True, False):
        dataset = IndexedDataset(prefix, mmap=mmap)
        found[mmap] = [dataset[i].tolist() for i in range(len(dataset))]
    assert found[True] == found[False]
    answer = {
        "documents": found[True],
        "ends": dataset.document_indices.tolist(),
        "dtype": dataset.index.dtype.__name__,
        "samples": samples(IndexedDataset(prefix), prefix, row_length, eod),
    }
    print(json.dumps(answer))
