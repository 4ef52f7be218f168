#!/usr/bin/env python3
"""What `minhash.py` asks of datasketch and rensa, run by a Python that has them: JSON of seconds, or of which pairs
each finds.

    python minhash_rivals.py speed FOLDER TIMES
    python minhash_rivals.py pairs FOLDER

Each package is used as its own documents and benchmarks use it. FOLDER holds texts.json, hashes.npy and first.npy, or
pairs.json, and shingles.json.
"""

import json
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

import numpy as np
from datasketch import MinHash, MinHashLSH
from rensa import RMinHash, RMinHashDeduplicator, RMinHashLSH

PLACES, SEED, WIDTH = 128, 42, 5
BANDS, PROBES = 8, 4  # of rensa's own benchmark, at 0.8
THRESHOLD = 0.8


def five_grams(text: str) -> list[str]:
    """As rensa's benchmark makes its three-grams."""
    words = text.lower().split()
    if len(words) < WIDTH:
        return words
    return [" ".join(words[i : i + WIDTH]) for i in range(len(words) - WIDTH + 1)]


def datasketch_one_by_one(sets: list[list[str]]) -> list[MinHash]:
    made = []
    for shingles in sets:
        sketch = MinHash(num_perm=PLACES)
        for shingle in shingles:
            sketch.update(shingle.encode("utf8"))
        made.append(sketch)
    return made


def datasketch_bulk(sets: list[list[str]]) -> list[MinHash]:
    return MinHash.bulk(([shingle.encode("utf8") for shingle in shingles] for shingles in sets), num_perm=PLACES)


def rensa_update(sets: list[list[str]]) -> list[RMinHash]:
    made = []
    for shingles in sets:
        sketch = RMinHash(num_perm=PLACES, seed=SEED)
        sketch.update(shingles)
        made.append(sketch)
    return made


def rensa_token_sets(sets: list[list[str]]) -> list[RMinHash]:
    return RMinHash.from_token_sets(sets, num_perm=PLACES, seed=SEED)


def rensa_matrix(sets: list[list[str]]) -> object:
    return RMinHash.digest_matrix_from_token_sets(sets, num_perm=PLACES, seed=SEED)


def rensa_rho(sets: list[list[str]]) -> object:
    return RMinHash.digest_matrix_from_token_sets_rho(sets, num_perm=PLACES, seed=SEED, probes=PROBES)


PATHS: dict[str, Callable[[list[list[str]]], object]] = {
    "datasketch update": datasketch_one_by_one,
    "datasketch bulk": datasketch_bulk,
    "rensa update": rensa_update,
    "rensa from_token_sets": rensa_token_sets,
    "rensa matrix": rensa_matrix,
    "rensa rho": rensa_rho,
}


def own_number(number: int) -> int:
    return number


def datasketch_hashes(hashes: list[np.ndarray]) -> list[MinHash]:
    made = []
    for shingles in hashes:
        sketch = MinHash(num_perm=PLACES, hashfunc=own_number)
        sketch.update_batch(shingles)
        made.append(sketch)
    return made


def seconds(work: Callable[[], object], times: int) -> list[float]:
    taken = []
    for _ in range(times):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return taken


def speeds(folder: Path, times: int) -> dict[str, dict[str, list[float]]]:
    texts = json.loads((folder / "texts.json").read_text("utf-8"))
    shingles = [five_grams(text) for text in texts]
    quick = {name: path for name, path in PATHS.items() if name != "datasketch update"}
    found = {
        "text": {
            name: seconds(lambda path=path: path([five_grams(text) for text in texts]), times)
            for name, path in PATHS.items()
        },
        "single words": {
            name: seconds(lambda path=path: path([text.split() for text in texts]), times)
            for name, path in quick.items()
        },
        "shingles as text": {name: seconds(lambda path=path: path(shingles), times) for name, path in quick.items()},
    }
    hashes, first = np.load(folder / "hashes.npy"), np.load(folder / "first.npy")
    low = [(hashes[a:b] & 0xFFFFFFFF).tolist() for a, b in pairwise(first.tolist())]  # it takes 32 bits
    numbers, rows = hashes.tolist(), first.tolist()
    lists = [numbers[a:b] for a, b in pairwise(rows)]
    found["shingles as hashes"] = {
        "datasketch update_batch": seconds(lambda: datasketch_hashes(low), times),
        "rensa matrix": seconds(lambda: RMinHash.digest_matrix_from_token_hash_sets(lists, PLACES, SEED), times),
        "rensa matrix, flat": seconds(
            lambda: RMinHash.digest_matrix_from_flat_token_hashes(hashes, first.astype(np.uint64), PLACES, SEED), times
        ),
        "rensa rho, flat": seconds(
            lambda: RMinHash.digest_matrix_from_flat_token_hashes_rho(
                hashes, first.astype(np.uint64), PLACES, SEED, PROBES
            ),
            times,
        ),
    }
    return found


def datasketch_finds(left: list[str], right: list[str]) -> bool:
    index = MinHashLSH(threshold=THRESHOLD, num_perm=PLACES)
    a, b = datasketch_bulk([left, right])
    index.insert("left", a)
    return bool(index.query(b))


def rensa_finds(left: list[str], right: list[str]) -> bool:
    index = RMinHashLSH(threshold=THRESHOLD, num_perm=PLACES, num_bands=BANDS)
    a, b = rensa_update([left, right])
    index.insert(0, a)
    return bool(index.query(b))


def rensa_deduplicator_finds(left: list[str], right: list[str]) -> bool:
    kept = RMinHashDeduplicator(threshold=THRESHOLD, num_perm=PLACES, use_lsh=True).add_pairs(
        [("left", left), ("right", right)]
    )
    return kept == [True, False]


def rensa_rho_finds(left: list[str], right: list[str]) -> bool:
    index = RMinHashLSH(threshold=THRESHOLD, num_perm=PLACES, num_bands=BANDS)
    return bool(index.query_duplicate_flags_matrix_one_shot(rensa_rho([left, right]))[1])


FINDERS = {
    "datasketch": datasketch_finds,
    "rensa": rensa_finds,
    "rensa deduplicator": rensa_deduplicator_finds,
    "rensa rho": rensa_rho_finds,
}


def pairs_found(folder: Path) -> dict[str, list[bool]]:
    shingles = json.loads((folder / "shingles.json").read_text("utf-8"))
    pairs = json.loads((folder / "pairs.json").read_text("utf-8"))
    return {name: [finds(shingles[a], shingles[b]) for a, b in pairs] for name, finds in FINDERS.items()}


def main() -> None:
    what, folder = sys.argv[1], Path(sys.argv[2])
    found = speeds(folder, int(sys.argv[3])) if what == "speed" else pairs_found(folder)
    print(json.dumps({"found": found, "versions": {name: version(name) for name in ("datasketch", "rensa", "numpy")}}))


if __name__ == "__main__":
    main()
