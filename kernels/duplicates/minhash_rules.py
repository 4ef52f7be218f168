"""The definition of MinHash signatures, in plain Python: `gristmill.kernels.duplicates.minhash` and the
kernel for GPUs equal it bit for bit.

Fast similarity sketching (Dahlgaard, Knudsen, Thorup 2017): in a round each shingle falls into one place of the
signature, which keeps the least value. In further rounds all shingles fall again, into places that are still empty; so
a signature of 128 places costs one or two hashes a shingle, where the classical method takes 128. Each place is the
minimum of a hash function over the set, as in the classical method: two signatures agree in a place with the Jaccard
similarity as probability, and the variance is no higher (their theorem 1).
"""

from __future__ import annotations

from gristmill.kernels.base.splitmix import ALL, mixed_plain
from gristmill.kernels.words.token_rules import TOKEN_CHUNK

ROUND_STEP = 0x9E3779B97F4A7C15
HALF = (1 << 32) - 1


def signature_plain(shingles: list[int], places: int) -> list[int]:
    """`places` values of 32 bits; all zero for an empty set.

    In round r < places a shingle falls into the place that the upper half of its hash selects; in round places + i all
    fall into place i, so that no place stays empty. Round 0 takes the shingle's own hash.
    """
    held: list[int | None] = [None] * places
    if not shingles:
        return [0] * places
    for round_ in range(2 * places):
        empty = [value is None for value in held]
        if not any(empty):
            break
        for shingle in shingles:
            h = mixed_plain(shingle + round_ * ROUND_STEP & ALL) if round_ else shingle
            place = (h >> 32) * places >> 32 if round_ < places else round_ - places
            if empty[place]:
                held[place] = h & HALF if held[place] is None else min(held[place], h & HALF)
    return [value or 0 for value in held]


def bands_plain(signature: list[int], bands: int, rows: int) -> list[int]:
    """A hash of 64 bits for each run of `rows` places and the number of the band."""
    hashes = []
    for band in range(bands):
        h = mixed_plain(band + 1)
        for value in signature[band * rows : (band + 1) * rows]:
            h = (h ^ value) * TOKEN_CHUNK & ALL
            h ^= h >> 32
        hashes.append(mixed_plain(h))
    return hashes
