#!/usr/bin/env python3
"""Tokens a second from one process: our loader in each of its orders, what others read the same rows with, and what
makes shards and verifies them. One JSON line a result.

    python -m benchmarks.tokens.loader [--rows N] [--batch-rows N] [--hf PYTHON] [--mosaic PYTHON]

Rows of 2,048 tokens of uint16 from a seed, in four shards, in the page cache. `views`: batches are made and not looked
at, which says what the loader itself costs. `copied`: every batch is copied into one buffer, which would be pinned
memory. `int64`: a torch tensor that a model takes. Beside `int64` stand others with the same rows in the same batches,
each as their documentation says, tensors of int64 at the end, one process, no workers: Hugging Face datasets
(`load_dataset("arrow")` of our very files, torch format, torch's DataLoader) and mosaicml-streaming (MDS that its own
writer made of the rows, an ndarray column). Each order and each peer in a process of its own; seconds are CPU seconds.
`lay_rows`, `shard_table`: documents that are packed already become rows, and a table with all columns; `verify`: looks
at every byte of the set; `permuted`: places of a shuffle.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill.kernels.rows.pack import Packed
    from gristmill.shards.format import Documents, ShardMeta

SEED = 5
REPEATS = 5
ROW_LENGTH = 2048
SHARDS = 4
SOURCES = ("web", "code", "books")
TOKENS = "million tokens a second"
ORDERS = ("as_written", "shuffled", "windows", "stretches")
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

TIMED = """
import json, sys, time, warnings, numpy as np, torch
torch.set_num_threads(1)
folder, given = sys.argv[1], json.loads(sys.argv[2])
def timed(passes):
    for _ in range(given["repeats"] + 1):
        started, tokens, total = time.process_time(), 0, 0
        for ids in passes():
            tokens += ids.numel()
            total += int(ids[0, 0]) + int(ids[-1, -1])
        seconds.append(time.process_time() - started)
    print(json.dumps({"seconds": seconds[1:], "tokens": tokens, "version": found}))
seconds = []
"""
HF = (
    TIMED
    + """
import datasets; from torch.utils.data import DataLoader
found = "datasets " + datasets.__version__
datasets.disable_progress_bars()
rows = datasets.load_dataset("arrow", data_files=folder + "/set/*.arrow", split="train", cache_dir=folder + "/hf").select_columns(["input_ids"]).with_format("torch")
timed(lambda: (b["input_ids"].to(torch.int64) for b in DataLoader(rows, batch_size=given["batch_rows"], shuffle=given["order"] == "shuffled", drop_last=True)))
"""
)
MOSAIC = (
    TIMED
    + """
import os, types
try:
    import torchvision
except (ImportError, RuntimeError):  # streaming asks for it, though no tokens need it
    import transformers.feature_extraction_utils  # which must not find what follows
    for name in ("torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["torchvision.datasets"].VisionDataset = object
    sys.modules["torchvision.transforms.functional"].to_tensor = None
import streaming; from streaming import MDSWriter, StreamingDataset; from torch.utils.data import DataLoader
found = "mosaicml-streaming " + streaming.__version__
raw = np.load(folder + "/rows.npy", mmap_mode="r")
if not os.path.exists(folder + "/mds"):
    with MDSWriter(out=folder + "/mds", columns={"tokens": f"ndarray:uint16:{raw.shape[1]}"}) as out:
        for row in raw: out.write({"tokens": np.array(row)})
rows = StreamingDataset(local=folder + "/mds", shuffle=given["order"] == "shuffled", batch_size=given["batch_rows"])
stack = lambda samples: torch.from_numpy(np.stack([s["tokens"] for s in samples]).astype(np.int64))
timed(lambda: iter(DataLoader(rows, batch_size=given["batch_rows"], collate_fn=stack, drop_last=True)))
"""
)
PEERS = {"hf": HF, "mosaic": MOSAIC}


def make(folder: Path, rows: int) -> None:
    """The set, and its rows as one plain array for those who write their own files."""
    import numpy as np
    import xxhash

    from gristmill.shards.format import shard_table
    from gristmill.shards.writer import index_of, shard_facts, write_shard

    rng = np.random.default_rng(SEED)
    facts, raw = [], []
    (folder / "set").mkdir()
    for number in range(SHARDS):
        meta, documents, packed = packed_documents(rng, rows * ROW_LENGTH // SHARDS, 897)
        table = shard_table(meta, SOURCES, documents, packed)
        path = folder / "set" / f"shard-{number:05d}.arrow"
        with path.open("wb") as file:
            write_shard(file, table)
        content = path.read_bytes()
        facts.append(
            {
                **shard_facts(table),
                "path": path.name,
                "bytes": len(content),
                "checksum": xxhash.xxh3_128_hexdigest(content),
            }
        )
        raw.append(table["input_ids"].combine_chunks().values.to_numpy().reshape(-1, ROW_LENGTH))
    total = sum(shard["rows"] for shard in facts)
    (folder / "set" / "index.json").write_text(json.dumps(index_of(meta, facts, [0, total // 7, total // 2])))
    np.save(folder / "rows.npy", np.concatenate(raw))


def packed_documents(rng: Any, tokens: int, mean: int) -> tuple[ShardMeta, Documents, Packed]:
    """About so many tokens in log-normal documents of a mean length, and where best fit puts them."""
    import numpy as np

    from gristmill.kernels.rows.pack import best_fit, windows
    from gristmill.shards.format import Documents, ShardMeta

    lengths = np.exp(rng.normal(math.log(mean) - 0.5, 1.0, tokens // mean)).astype(np.int64) + 1
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    of = len(lengths)
    documents = Documents(
        rng.integers(0, 50_000, offsets[-1]).astype(np.uint16),
        offsets,
        rng.integers(0, 2**64, of, np.uint64),
        rng.integers(0, 3, of),
        rng.integers(0, 5, of).astype(np.int16),
        rng.random(of).astype(np.float32),
    )
    meta = ShardMeta("none", "none", 50_000, ROW_LENGTH, 0, None, 1, "best_fit", SEED, "benchmark")
    return meta, documents, best_fit(lengths, ROW_LENGTH, windows(of, 100_000))


def parts(folder: str, given: dict) -> dict:
    """In a child."""
    import numpy as np

    from gristmill.kernels.base.feistel import permuted
    from gristmill.kernels.rows.lay_rows import lay_rows
    from gristmill.shards.format import shard_table
    from gristmill.shards.verify import verify

    rng, found = np.random.default_rng(SEED), {}

    def timed(what: str, unit: str, count: float, sizes: dict, work: Callable[[], object]) -> None:
        seconds = []
        for _ in range(given["repeats"] + 1):
            started = time.process_time()
            work()
            seconds.append(time.process_time() - started)
        found[what] = {"seconds": seconds[1:], "count": count, "unit": unit, "sizes": sizes}

    for mean in (897, 12):
        meta, documents, packed = packed_documents(rng, given["rows"] * ROW_LENGTH // SHARDS, mean)
        tokens = len(documents.tokens)
        sizes = {"row_length": ROW_LENGTH, "documents": len(documents.uid), "tokens": tokens}
        of = (documents.tokens, documents.offsets, packed, ROW_LENGTH, 0)
        timed(f"lay_rows, documents of {mean} tokens", TOKENS, tokens, sizes, lambda of=of: lay_rows(*of))
        of = (meta, SOURCES, documents, packed)
        timed(f"shard_table, documents of {mean} tokens", TOKENS, tokens, sizes, lambda of=of: shard_table(*of))
    size = sum(path.stat().st_size for path in Path(folder, "set").glob("*.arrow"))
    assert verify(f"{folder}/set") == []
    timed("verify", "GB a second", size / 1000, {"bytes": size, "shards": SHARDS}, lambda: verify(f"{folder}/set"))
    places = np.arange(1 << 20)
    of = (places, np.full(len(places), 3_000_000), np.full(len(places), SEED, np.uint64))
    timed(
        "permuted",
        "million places a second",
        len(places),
        {"places": len(places), "of": 3_000_000},
        lambda: permuted(*of),
    )
    return found


def ours(folder: str, given: dict) -> dict:
    """In a child."""
    import numpy as np
    import torch

    from gristmill.shards.loader import Loader
    from gristmill.shards.orders import AsWritten, Shuffled, ShuffledInWindows, segment_stretches
    from gristmill.shards.reader import open_shards
    from gristmill.shards.torch_dataset import TokenBatches

    torch.set_num_threads(1)
    shards = open_shards(f"{folder}/set")
    order = {
        "as_written": AsWritten(),
        "shuffled": Shuffled(),
        "windows": ShuffledInWindows(4096),
        "stretches": segment_stretches(shards),
    }[given["order"]]
    buffer = np.empty((given["batch_rows"], ROW_LENGTH), shards.meta.dtype)

    def views(loader: Loader) -> None:
        for _ in loader:
            pass

    def copied(loader: Loader) -> None:
        while loader.next_batch(buffer) is not None:
            pass

    def as_int64(loader: Loader) -> None:
        for _ in TokenBatches(loader, torch.int64, also=()):
            pass

    seconds: dict[str, list[float]] = {"views": [], "copied": [], "int64": []}
    for how, read in (("views", views), ("copied", copied), ("int64", as_int64)):
        for _ in range(given["repeats"] + 1):
            loader = Loader(shards, given["batch_rows"], order, seed=SEED, epochs=1)
            started = time.process_time()
            read(loader)
            seconds[how].append(time.process_time() - started)
    tokens = len(shards) // given["batch_rows"] * given["batch_rows"] * ROW_LENGTH
    return {how: {"seconds": each[1:], "tokens": tokens} for how, each in seconds.items()}


def child(arguments: list[str]) -> dict:
    done = subprocess.run(arguments, stdout=subprocess.PIPE, check=True, env=ONE_THREAD)
    return json.loads(done.stdout.splitlines()[-1])


def speeds(seconds: list[float], count: float, unit: str = TOKENS) -> dict:
    """In millions of what was counted."""
    each = sorted(count / took / 1e6 for took in seconds)
    return {
        "unit": unit,
        "median": round(statistics.median(each), 1),
        "spread": [round(each[0], 1), round(each[-1], 1)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--batch-rows", type=int, default=16)
    for peer in PEERS:
        parser.add_argument(f"--{peer}", help=f"a Python that has {peer}")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        given = json.loads(arguments.child[1])
        print(json.dumps((ours if "order" in given else parts)(arguments.child[0], given)))
        return
    common = {
        "machine": f"{platform.machine()}, one process, one thread of {os.cpu_count()}",
        "versions": {name: version(name) for name in ("numpy", "pyarrow", "torch")},
    }
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), arguments.rows)
        size = {"row_length": ROW_LENGTH, "batch_rows": arguments.batch_rows, "shards": SHARDS}
        settings = {"batch_rows": arguments.batch_rows, "repeats": REPEATS}
        given = json.dumps({"repeats": REPEATS, "rows": arguments.rows})
        for what, found in child([sys.executable, "-m", "benchmarks.tokens.loader", "--child", folder, given]).items():
            print(
                json.dumps(
                    {
                        "what": what,
                        **common,
                        "sizes": found["sizes"],
                        **speeds(found["seconds"], found["count"], found["unit"]),
                    }
                ),
                flush=True,
            )
        in_int64 = {}
        for order in ORDERS:
            runs = child(
                [
                    sys.executable,
                    "-m",
                    "benchmarks.tokens.loader",
                    "--child",
                    folder,
                    json.dumps({**settings, "order": order}),
                ]
            )
            for how, found in runs.items():
                line = {"what": f"loader {order}, {how}", **common, "sizes": {**size, "tokens": found["tokens"]}}
                line |= speeds(found["seconds"], found["tokens"])
                in_int64[order] = line["median"]  # the last
                print(json.dumps(line), flush=True)
        for peer, script in PEERS.items():
            for order in ("as_written", "shuffled") if getattr(arguments, peer) else ():
                given = json.dumps({**settings, "repeats": 2, "order": order})
                found = child([getattr(arguments, peer), "-c", script, folder, given])
                peers = {"peer": found["version"], **speeds(found["seconds"], found["tokens"])}
                ratio = round(in_int64[order] / peers["median"], 1)
                line = {
                    "what": f"loader {order}, int64",
                    **common,
                    "sizes": {**size, "tokens": found["tokens"]},
                    **peers,
                    "ratio": ratio,
                }
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
