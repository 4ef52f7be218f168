"""The writers of megatron-core and mosaicml-streaming on tokens that benchmarks/tokens/export.py hands over; needs
nothing of ours.

PYTHON export_peers.py megatron|mds TOKENS.npy LENGTHS.npy FOLDER ROUNDS
"""

from __future__ import annotations

import json
import shutil
import sys
import time
import types
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np


def megatron(tokens: Any, lengths: Any, folder: Path) -> float:
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    ends = np.cumsum(lengths)
    start = time.perf_counter()
    builder = IndexedDatasetBuilder(str(folder / "tokens.bin"), dtype=np.uint16)
    for begin, end in zip((ends - lengths).tolist(), ends.tolist(), strict=True):
        builder.add_document(torch.from_numpy(tokens[begin:end]), [end - begin])
    builder.finalize(str(folder / "tokens.idx"))
    return time.perf_counter() - start


def mds(tokens: Any, lengths: Any, folder: Path) -> float:
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):  # streaming imports it for pictures
        import transformers.feature_extraction_utils  # noqa: F401

        for name in (
            "torchvision",
            "torchvision.datasets",
            "torchvision.transforms",
            "torchvision.transforms.functional",
        ):
            sys.modules[name] = types.ModuleType(name)
        sys.modules["torchvision.datasets"].VisionDataset = object  # type: ignore[attr-defined]
        sys.modules["torchvision.transforms.functional"].to_tensor = None  # type: ignore[attr-defined]
    from streaming import MDSWriter

    start = time.perf_counter()
    with MDSWriter(
        out=str(folder / "mds"), columns={"tokens": f"ndarray:uint16:{tokens.shape[1]}"}, hashes=["xxh64"]
    ) as writer:
        for row in tokens:
            writer.write({"tokens": row})
    return time.perf_counter() - start


def main() -> None:
    to, tokens, lengths, folder, rounds = sys.argv[1:]
    given = np.load(tokens), np.load(lengths)
    seconds = []
    for _ in range(int(rounds)):
        Path(folder).mkdir()
        seconds.append({"megatron": megatron, "mds": mds}[to](*given, Path(folder)))
        shutil.rmtree(folder)
    package = {"megatron": "megatron-core", "mds": "mosaicml-streaming"}[to]
    print(json.dumps({"name": f"{package} {version(package)}", "seconds": seconds}))


if __name__ == "__main__":
    main()
