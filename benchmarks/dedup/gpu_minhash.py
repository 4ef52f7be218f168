#!/usr/bin/env python3
"""MinHash on the GPU: is it the CPU's to the bit, and how many documents a second, from memory of the GPU, pinned
memory, and any memory.

    python -m benchmarks.dedup.gpu_minhash [TEXTS.parquet] [--documents 1000000] [--size 4096] [--times 5] [--settings]
      [--profile]

Documents are made (words of Zipf's law, one in two hundred beyond ASCII), about 4 KB each, 128 hashes in 16 bands. A
Parquet file with a column `text` is measured beside them, and long and repetitious documents for what they cost. One
JSON line a result; `--settings` tries tiles, warps, sizes of piece and numbers of lanes, `--profile` tells what each
kernel takes. Exits 1 where a bit differs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from gristmill.kernels.base.columns import TextColumn, text_column
from gristmill.kernels.duplicates import minhash
from gristmill.kernels.duplicates.minhash_rules import bands_plain, signature_plain
from gristmill.kernels.gpu.minhash import banded, sign, signatures
from gristmill.kernels.gpu.tokens import Tiles
from gristmill.kernels.gpu.transfer import column_tensor
from gristmill.kernels.words.token_rules import shingles_plain

PLACES, BANDS, ROWS, WIDTH, SEED = 128, 16, 8, 5, 0
LONG_FOR_PLAIN = 20_000  # bytes
DIFFERENT = 65_536  # documents that are made; more are these again
DEVICE = torch.device("cuda", 0)
BEYOND = [
    "naïve",
    "café",
    "straße",
    "Größe",
    "Москва",
    "город",
    "Αθήνα",
    "中文",
    "東京都",
    "“quoted”",
    "don’t",
    "ภาษาไทย",
    "हिन्दी",
]

PIECES = [{"piece_bytes": size << 20, "lanes": lanes} for size in (64, 128, 256) for lanes in (2, 3, 4, 6)]


def made_text(documents: int, size: int) -> TextColumn:
    """Words by Zipf's law, cut where a word ends."""
    random = np.random.default_rng(5)
    letters = np.frombuffer(b"etaoinshrdlucmfwypvbgkjqxz", np.uint8)
    words = [bytes(letters[random.integers(0, 20, random.integers(2, 11))]).decode() for _ in range(30_000)]
    words = [word.title() if i % 9 == 0 else word for i, word in enumerate(words)] + BEYOND * 12
    order = random.permutation(len(words))
    pool = [(words[i] + (". " if k % 12 == 0 else " ")).encode() for k, i in enumerate(order)]
    lengths = np.array([len(word) for word in pool], np.int64)
    places, flat = np.cumsum(lengths) - lengths, np.frombuffer(b"".join(pool), np.uint8)
    parts, total = [], 0
    while total < documents * size:
        drawn = np.minimum(random.zipf(1.05, 2_000_000) - 1, 10**9) % len(pool)
        long = lengths[drawn]
        ends = np.cumsum(long)
        parts.append(flat[np.repeat(places[drawn] - (ends - long), long) + np.arange(ends[-1])])
        total += len(parts[-1])
    data = np.concatenate(parts)[: documents * size + 64]
    spaces = np.flatnonzero(data == ord(" ")) + 1
    cuts = spaces[np.searchsorted(spaces, np.arange(1, documents) * size)]
    offsets = np.concatenate([[0], cuts, [spaces[-1]]]).astype(np.int64)
    return TextColumn(data, offsets)


def repeated(column: TextColumn, documents: int) -> np.ndarray:
    """Offsets of a column whose bytes are laid out again and again."""
    size, rounds = int(column.offsets[-1]), -(-documents // len(column))
    offsets = (column.offsets[None, :-1] + size * np.arange(rounds)[:, None]).reshape(-1)[: documents + 1]
    return np.append(offsets, size * rounds) if len(offsets) == documents else offsets


def run(data: torch.Tensor, offsets: np.ndarray, **settings) -> tuple[np.ndarray, np.ndarray]:
    return sign(data, offsets, banded(BANDS, ROWS, PLACES), WIDTH, PLACES, SEED, DEVICE, **settings)


def seconds_of(work: Callable[[], object], times: int) -> list[float]:
    for _ in range(2):
        work()
    taken = []
    for _ in range(times):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return taken


def tell(what: str, data: torch.Tensor, offsets: np.ndarray, times: int, **settings) -> None:
    taken = seconds_of(lambda: run(data, offsets, **settings), times)
    documents, size = len(offsets) - 1, int(offsets[-1] - offsets[0])
    result = {
        "what": f"gpu minhash, documents a second: {what}",
        "machine": torch.cuda.get_device_name(),
        "versions": {package: version(package) for package in ("torch", "triton")},
        "sizes": {
            "documents": documents,
            "bytes": size,
            "places": PLACES,
            "bands": BANDS,
            **{k: str(v) for k, v in settings.items()},
        },
        "median": round(documents / statistics.median(taken)),
        "spread": [round(documents / max(taken)), round(documents / min(taken))],
        "gigabytes_a_second": round(size / 1e9 / statistics.median(taken), 2),
    }
    print(json.dumps(result), flush=True)


def check(what: str, column: TextColumn, plain: int = 100) -> bool:
    """Bands, counts and signatures against the CPU's kernel, and against the reference on some."""
    hashes, counts = run(column_tensor(column), column.offsets, piece_bytes=8 << 20)
    wanted, wanted_counts = minhash.band_hashes(column, width=WIDTH, bands=BANDS, rows=ROWS, places=PLACES, seed=SEED)
    some = TextColumn(column.data, column.offsets[: plain * 10 + 1])
    values = signatures(some, width=WIDTH, places=PLACES, seed=SEED)
    equal = {
        "bands": bool((hashes == wanted).all()), "shingles": bool((counts == wanted_counts).all()),
        "signatures": bool((values == minhash.signatures(some, width=WIDTH, places=PLACES, seed=SEED)).all()),
    }  # fmt: skip
    for i in range(0, min(plain, len(column))):
        document = bytes(column.data[column.offsets[i] : column.offsets[i + 1]])
        if len(document) <= LONG_FOR_PLAIN and (text := document.decode(errors="replace")).encode() == document:
            shingles = shingles_plain(text, WIDTH, SEED)
            equal["plain"] = (
                equal.get("plain", True)
                and bands_plain(signature_plain(shingles, PLACES), BANDS, ROWS) == hashes[i].tolist()
            )
    print(json.dumps({"what": f"gpu minhash, equal bits: {what}", "documents": len(column), **equal}), flush=True)
    return all(equal.values())


def hostile() -> dict[str, TextColumn]:
    short, fox = ["", "a", "a b", "é", "\u0301", " "] * 1000, "the quick brown fox " * 500_000
    texts = {
        "empty, short and ten million bytes": [*short, fox, *short],
        "one word, ten million times": ["word " * 2_000_000],
        "a word of ten million letters": ["x" * 10_000_000, "a b"],
        "bytes that are no text": [],
    }
    columns = {name: text_column(pa.array(found)) for name, found in texts.items()}
    noise = np.random.default_rng(7).integers(0, 256, 4_000_000).astype(np.uint8)
    noise[::3] |= 0xC0
    columns["bytes that are no text"] = TextColumn(noise, np.arange(0, len(noise) + 1, 50, dtype=np.int64))
    return columns


def settings_to_try() -> list[dict[str, object]]:
    shapes = [
        Tiles(characters=size, character_warps=warps)
        for size, warps in ((128, 1), (256, 2), (512, 2), (512, 4), (1024, 4), (1024, 8))
    ]
    shapes += [
        Tiles(bytes=size, byte_warps=warps) for size, warps in ((512, 2), (512, 4), (1024, 4), (1024, 8), (2048, 8))
    ]
    shapes += [
        Tiles(tokens=size, token_warps=warps) for size, warps in ((128, 2), (128, 4), (256, 4), (256, 8), (512, 4))
    ]
    return [{"tiles": shape} for shape in shapes] + PIECES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", help="a Parquet file with a column `text`")
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--settings", action="store_true")
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("there is no GPU here; the kernels' tests run in Triton's interpreter")
    made = made_text(min(DIFFERENT, arguments.documents), arguments.size)
    equal = [check("made text", made)] + [check(name, column, 10) for name, column in hostile().items()]
    offsets = repeated(made, arguments.documents)
    source = column_tensor(made)[: int(made.offsets[-1])]
    text = source.to(DEVICE).repeat(-(-arguments.documents // len(made)))[: int(offsets[-1])]
    tell("resident in GPU memory", text, offsets, arguments.times)
    if arguments.profile:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
            run(text, offsets, lanes=1)
        print(found.key_averages().table(sort_by="cuda_time_total", row_limit=30, max_name_column_width=60))
    if arguments.settings:
        for settings in settings_to_try():
            tell("resident in GPU memory", text, offsets, 3, **settings)
    half = arguments.documents // 2
    pageable = text[: int(offsets[half])].cpu()
    del text
    pinned = pageable.pin_memory()
    tell("from pinned memory", pinned, offsets[: half + 1], arguments.times)
    if arguments.settings:
        for settings in PIECES:
            tell("from pinned memory", pinned, offsets[: half + 1], 3, **settings)
    del pinned
    tell("from any memory", pageable, offsets[: half + 1], arguments.times)
    short = np.arange(0, 512 << 20, 200, dtype=np.int64)  # some cut a character in two, which is then none
    tell("from any memory, 200 bytes each", pageable, short, arguments.times)
    for name, column in hostile().items():
        tell(f"from any memory, {name}", column_tensor(column), column.offsets, 3)
    if arguments.file:
        column = text_column(pq.read_table(arguments.file, columns=["text"])["text"])
        equal.append(check(arguments.file.name, column))
        begin = int(column.offsets[0])
        alone = TextColumn(column.data[begin:], column.offsets - begin)
        rounds = max((2 << 30) // int(alone.offsets[-1]), 1)
        text = column_tensor(alone)[: int(alone.offsets[-1])].to(DEVICE).repeat(rounds)
        tell(
            f"resident in GPU memory, {arguments.file.name}",
            text,
            repeated(alone, len(alone) * rounds),
            arguments.times,
        )
    sys.exit(0 if all(equal) else 1)


if __name__ == "__main__":
    main()
