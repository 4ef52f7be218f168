"""How fast shards go into other formats, beside the writers of megatron-core and mosaicml-streaming on the same tokens.

    python -m benchmarks.tokens.export [--tokens 100_000_000] [--rounds 3] [--folder FOLDER]

The shards are random tokens in documents of log-normal length, 900 on average, in rows of 2,048. MB are of stored
tokens (uint16), what is written may be more (labels are int32). The peers run where GRISTMILL_MEGATRON_PYTHON and
GRISTMILL_MOSAIC_PYTHON name a Python that has them; they get their tokens from memory. Prints one JSON line for each
result.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from gristmill.kernels.rows.pack import best_fit, windows
from gristmill.shards.export.export import FORMATS, Options, export
from gristmill.shards.format import Documents, ShardMeta, shard_table
from gristmill.shards.reader import open_shards
from gristmill.shards.writer import index_of, shard_facts, write_shard

ROW = 2048
SHARD_TOKENS = 50_000_000
PEERS = {"megatron": "GRISTMILL_MEGATRON_PYTHON", "mds": "GRISTMILL_MOSAIC_PYTHON"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=100_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder if left out")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        make(folder / "shards", arguments.tokens)
        tokens = open_shards(folder / "shards").index.total("tokens")
        cases = [(to, Options()) for to in FORMATS] + [(to, Options(files="arrow")) for to in ("trl", "torchtune")]
        for to, options in cases:
            times, size = [], 0
            for _ in range(arguments.rounds):
                start = time.perf_counter()
                size = export(folder / "shards", to, folder / "out", options).bytes
                times.append(time.perf_counter() - start)
                shutil.rmtree(folder / "out")
            peer = seconds_of_peer(to, folder, arguments.rounds)
            show(f"export {to}{' arrow' if options.files else ''}", tokens, size, times, peer)


def make(folder: Path, tokens: int) -> None:
    random = np.random.default_rng(0)
    meta = ShardMeta("random", "", 32_768, ROW, 0, None, 1, "best_fit", 0, "")
    folder.mkdir()
    entries = []
    for number in range(-(-tokens // SHARD_TOKENS)):
        count = min(tokens, SHARD_TOKENS) // 900
        lengths = np.maximum(1, random.lognormal(np.log(900) - 0.5, 1, count)).astype(np.int64)
        flat = Documents(
            random.integers(2, 32_768, lengths.sum(), np.uint16),
            np.concatenate([[0], np.cumsum(lengths)]),
            np.arange(count, dtype=np.uint64) + (number << 32),
            np.zeros(count, np.int64),
            np.full(count, -1, np.int16),
            np.full(count, np.nan, np.float32),
        )
        table = shard_table(meta, ["random"], flat, best_fit(lengths, ROW, windows(count, 100_000)))
        path = folder / f"shard-{number:05}.arrow"
        with path.open("wb") as file:
            write_shard(file, table)
        checksum = xxhash.xxh3_128_hexdigest(path.read_bytes())
        entries.append({**shard_facts(table), "path": path.name, "bytes": path.stat().st_size, "checksum": checksum})
    (folder / "index.json").write_text(json.dumps(index_of(meta, entries)), encoding="utf-8")


def seconds_of_peer(to: str, folder: Path, rounds: int) -> dict[str, Any] | None:
    python = os.environ.get(PEERS.get(to, ""))
    if not python:
        return None
    shards = open_shards(folder / "shards")
    tokens, lengths = folder / "tokens.npy", folder / "lengths.npy"
    if to == "megatron":
        texts = [document.tokens for document in shards.documents()]
        np.save(tokens, np.concatenate(texts))
        np.save(lengths, np.array([len(text) for text in texts]))
    else:
        np.save(tokens, shards.rows(0, len(shards)))
        np.save(lengths, np.zeros(0, np.int64))
    script = Path(__file__).with_name("export_peers.py")
    done = subprocess.run(
        [python, script, to, tokens, lengths, folder / "peer", str(rounds)],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def show(what: str, tokens: int, size: int, times: list[float], peer: dict[str, Any] | None) -> None:
    line = {
        "what": what,
        "machine": platform.processor() or platform.machine(),
        "versions": {name: version(name) for name in ("numpy", "pyarrow")},
        "sizes": {"tokens": tokens, "bytes_written": size},
        "unit": "MB of tokens a second",
        "median": round(2 * tokens / statistics.median(times) / 1e6, 1),
        "spread": [round(2 * tokens / seconds / 1e6, 1) for seconds in (max(times), min(times))],
    }
    if peer:
        seconds = statistics.median(peer["seconds"])
        line |= {
            "peer": peer["name"],
            "peer_median": round(2 * tokens / seconds / 1e6, 1),
            "ratio": round(seconds / statistics.median(times), 2),
        }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
