"""Reads a folder with mosaicml-streaming's StreamingDataset, hashes checked, and its LocalDataset; prints the samples
in order.

The tokens become a tensor in the way of llm-foundry's StreamingTextDataset.
"""

import json
import sys
import types

import numpy as np
import torch

try:
    import torchvision  # noqa: F401
except (
    ImportError,
    RuntimeError,
):  # built for another torch; streaming imports it for pictures, of which there are none here
    import transformers.feature_extraction_utils  # noqa: F401 which looks for torchvision and must not find what follows

    for name in ("torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["torchvision.datasets"].VisionDataset = object  # type: ignore[attr-defined]
    sys.modules["torchvision.transforms.functional"].to_tensor = None  # type: ignore[attr-defined]

from streaming import LocalDataset, StreamingDataset

if __name__ == "__main__":
    streamed = StreamingDataset(local=sys.argv[1], batch_size=1, shuffle=False, validate_hash="xxh64")
    local = LocalDataset(sys.argv[1])
    assert len(streamed) == len(local)
    samples = []
    for i in range(len(streamed)):
        sample = streamed[i]
        assert isinstance(sample["tokens"], np.ndarray)
        assert all(np.array_equal(sample[name], local[i][name]) for name in ("tokens", "seq_lens"))
        tokens = torch.from_numpy(sample["tokens"].copy()).to(torch.int64)
        samples.append([tokens.tolist(), sample["seq_lens"].tolist()])
    walked = [sample["tokens"].tolist() for sample in streamed]
    assert walked == [tokens for tokens, _ in samples]
    print(json.dumps(samples))
