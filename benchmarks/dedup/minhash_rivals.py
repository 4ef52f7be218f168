"""The sides of rensa, datasketch and FastSketchLSH in the races of `minhash.py`, and which pairs the first two find.

Each package is used as its own documents and benchmarks use it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from benchmarks.dedup.minhash import megabytes, shingles_given, texts_of
from benchmarks.races import Side, Work

PLACES, SEED, WIDTH = 128, 42, 5
BANDS, PROBES = 8, 4  # of rensa's own benchmark, at 0.8
THRESHOLD = 0.8


def five_grams(text: str) -> list[str]:
    """As rensa's benchmark makes its three-grams."""
    words = text.lower().split()
    if len(words) < WIDTH:
        return words
    return [" ".join(words[i : i + WIDTH]) for i in range(len(words) - WIDTH + 1)]


Sets = list[list[str]]


def from_texts(data: str, name: str, start: str, way: Callable[[Sets], object]) -> Work:
    array = texts_of(data, name)
    texts, shingled = array.to_pylist(), five_grams if start == "text" else str.split
    return Work(lambda: way([shingled(text) for text in texts]), megabytes(array))


def datasketch_bulk(sets: Sets) -> list[object]:
    from datasketch import MinHash

    return MinHash.bulk(([shingle.encode("utf8") for shingle in shingles] for shingles in sets), num_perm=PLACES)


def rensa_update(sets: Sets) -> list[object]:
    from rensa import RMinHash

    made = []
    for shingles in sets:
        sketch = RMinHash(num_perm=PLACES, seed=SEED)
        sketch.update(shingles)
        made.append(sketch)
    return made


def of_datasketch(data: str, name: str, start: str) -> Work:
    return from_texts(data, name, start, datasketch_bulk)


def of_rensa(data: str, name: str, start: str) -> Work:
    from rensa import RMinHash

    def way(sets: Sets) -> object:
        return RMinHash.digest_matrix_from_token_sets(sets, num_perm=PLACES, seed=SEED)

    return from_texts(data, name, start, way)


def of_rensa_rho(data: str, name: str, start: str) -> Work:
    """Its fast path, which reads 15 shingles of a long text."""
    from rensa import RMinHash

    def way(sets: Sets) -> object:
        return RMinHash.digest_matrix_from_token_sets_rho(sets, num_perm=PLACES, seed=SEED, probes=PROBES)

    return from_texts(data, name, start, way)


def of_fastsketch(data: str, name: str, start: str) -> Work:
    from FastSketchLSH import FastSimilaritySketch

    return from_texts(data, name, start, FastSimilaritySketch(size=PLACES, seed=SEED).batch)


FROM_TEXT = {
    "datasketch, bulk": Side(of_datasketch, ("datasketch",)),
    "rensa, matrix": Side(of_rensa, ("rensa",)),
    "rensa, rho": Side(of_rensa_rho, ("rensa",)),
    "FastSketchLSH": Side(of_fastsketch, ("fastsketchlsh",)),
}


def datasketch_hashes(data: str, name: str, start: str) -> Work:
    from datasketch import MinHash

    hashes, first = shingles_given(data, name)
    low = [(hashes[a:b] & 0xFFFFFFFF).tolist() for a, b in pairwise(first.tolist())]  # it takes 32 bits

    def call() -> list[object]:
        made = []
        for shingles in low:
            sketch = MinHash(num_perm=PLACES, hashfunc=int)
            sketch.update_batch(shingles)
            made.append(sketch)
        return made

    return Work(call, len(hashes) / 1e6)


def rensa_hashes(data: str, name: str, start: str) -> Work:
    from rensa import RMinHash

    hashes, first = shingles_given(data, name)
    first = first.astype(np.uint64)
    return Work(lambda: RMinHash.digest_matrix_from_flat_token_hashes(hashes, first, PLACES, SEED), len(hashes) / 1e6)


def rensa_rho_hashes(data: str, name: str, start: str) -> Work:
    from rensa import RMinHash

    hashes, first = shingles_given(data, name)
    first = first.astype(np.uint64)
    return Work(
        lambda: RMinHash.digest_matrix_from_flat_token_hashes_rho(hashes, first, PLACES, SEED, PROBES),
        len(hashes) / 1e6,
    )


FROM_HASHES = {
    "datasketch, update_batch": Side(datasketch_hashes, ("datasketch",)),
    "rensa, flat matrix": Side(rensa_hashes, ("rensa",)),
    "rensa, flat rho": Side(rensa_rho_hashes, ("rensa",)),
}


def datasketch_finds(left: list[str], right: list[str]) -> bool:
    from datasketch import MinHashLSH

    index = MinHashLSH(threshold=THRESHOLD, num_perm=PLACES)
    a, b = datasketch_bulk([left, right])
    index.insert("left", a)
    return bool(index.query(b))


def rensa_finds(left: list[str], right: list[str]) -> bool:
    from rensa import RMinHashLSH

    index = RMinHashLSH(threshold=THRESHOLD, num_perm=PLACES, num_bands=BANDS)
    a, b = rensa_update([left, right])
    index.insert(0, a)
    return bool(index.query(b))


def rensa_deduplicator_finds(left: list[str], right: list[str]) -> bool:
    from rensa import RMinHashDeduplicator

    kept = RMinHashDeduplicator(threshold=THRESHOLD, num_perm=PLACES, use_lsh=True).add_pairs(
        [("left", left), ("right", right)]
    )
    return kept == [True, False]


def rensa_rho_finds(left: list[str], right: list[str]) -> bool:
    from rensa import RMinHash, RMinHashLSH

    index = RMinHashLSH(threshold=THRESHOLD, num_perm=PLACES, num_bands=BANDS)
    matrix = RMinHash.digest_matrix_from_token_sets_rho([left, right], num_perm=PLACES, seed=SEED, probes=PROBES)
    return bool(index.query_duplicate_flags_matrix_one_shot(matrix)[1])


FINDERS = {
    "datasketch": datasketch_finds,
    "rensa": rensa_finds,
    "rensa deduplicator": rensa_deduplicator_finds,
    "rensa rho": rensa_rho_finds,
}
