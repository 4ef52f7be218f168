"""MinHash signatures as datasketch and DataTrove compute them, from shingles that are hashes already.

datasketch 2.0 ("affine32"): the smallest of `a * fmix32(h) + b` in 32 bits for each of the signature's places; before
("legacy"): of `(a * h + b) % (2**61 - 1)`, cut to 32 bits. DataTrove 0.10: the same in 64 bits, without the cut. `a`
and `b` come from numpy's RandomState of the seed, in the order in which each package draws them. Tests hold these equal
to the packages where they are installed.
"""

from __future__ import annotations

import struct
from typing import Literal, NamedTuple

import numpy as np

from gristmill.kernels.base.types import Array, Hashes, Offsets

Scheme = Literal["affine32", "legacy"]
PRIME = (1 << 61) - 1
LOW = (1 << 32) - 1
AT_ONCE = 2048  # shingles that meet all places together: what stays in cache
AFFINE32 = 1  # the code of the scheme in a LeanMinHash
LEAN = struct.Struct("<qi")  # seed and number of values, negative from 2.0 on


class Places(NamedTuple):
    """The functions of a signature's places."""

    a: Array
    b: Array
    scheme: Scheme | Literal["datatrove", "datatrove32"]


def datasketch_places(places: int, seed: int = 1, scheme: Scheme = "affine32") -> Places:
    random = np.random.RandomState(seed)
    if scheme == "affine32":
        a = random.randint(0, 1 << 31, places, dtype=np.uint32) * np.uint32(2) + np.uint32(1)
        return Places(a, random.randint(0, 1 << 32, places, dtype=np.uint32), scheme)
    drawn = [[random.randint(low, PRIME, dtype=np.uint64) for low in (1, 0)] for _ in range(places)]
    a, b = np.array(drawn, np.uint64).T
    return Places(np.ascontiguousarray(a), np.ascontiguousarray(b), scheme)


def datatrove_places(places: int, seed: int = 1, precision: int = 64) -> Places:
    random = np.random.RandomState(seed)
    a, b = (random.randint(low, PRIME, dtype=np.uint64, size=places) for low in (1, 0))
    return Places(a, b, "datatrove" if precision == 64 else "datatrove32")


def signatures_of(shingles: Hashes, first: Offsets, places: Places) -> Array:
    """uint64 or uint32 [documents, places]; document d has the shingles `shingles[first[d]:first[d + 1]]`. All ones
    where it has none."""
    affine = places.scheme == "affine32"
    hashes = (
        fmix32((shingles & LOW).astype(np.uint32))
        if affine
        else shingles & LOW
        if places.scheme == "legacy"
        else shingles
    )
    most = np.uint32(LOW) if affine else np.uint64((1 << 64) - 1)
    out = np.full((len(first) - 1, len(places.a)), most)
    for document, (start, end) in enumerate(zip(first[:-1].tolist(), first[1:].tolist(), strict=True)):
        for begin in range(start, end, AT_ONCE):
            values = hashes[begin : min(begin + AT_ONCE, end), None] * places.a + places.b
            if not affine:
                values %= np.uint64(PRIME)
            if places.scheme in ("legacy", "datatrove32"):
                values &= np.uint64(LOW)
            np.minimum(out[document], values.min(axis=0), out=out[document])
    return out if places.scheme == "datatrove" else out.astype(np.uint32)


def fmix32(values: Array) -> Array:
    """MurmurHash3's last step, on uint32."""
    values = values ^ (values >> np.uint32(16))
    values = values * np.uint32(0x85EBCA6B)
    values = values ^ (values >> np.uint32(13))
    values = values * np.uint32(0xC2B2AE35)
    return np.asarray(values ^ (values >> np.uint32(16)))


def lean_minhashes(signatures: Array, seed: int = 1) -> list[bytes]:
    """Each signature (affine32) as `LeanMinHash.serialize` writes it, little-endian."""
    head = LEAN.pack(seed, -signatures.shape[1]) + bytes([AFFINE32])
    return [head + row.tobytes() for row in np.ascontiguousarray(signatures, "<u4")]


def of_lean_minhashes(rows: list[bytes]) -> tuple[Array, int, Scheme]:
    """uint32 [documents, places], their seed and scheme; ValueError where rows are none, or of several kinds."""
    heads = {
        (row[: LEAN.size], row[LEAN.size : LEAN.size + 1] if row[11:12] > b"\x7f" else b"", len(row)) for row in rows
    }
    if len(heads) != 1:
        raise ValueError(
            "its signatures have different seeds, schemes or lengths" if heads else "it holds no signatures"
        )
    head, code, size = heads.pop()
    if len(head) < LEAN.size:
        raise ValueError("it holds no signatures as LeanMinHash.serialize writes them")
    seed, count = LEAN.unpack(head)
    start = LEAN.size + (count < 0)
    if (count < 0 and code != bytes([AFFINE32])) or size != start + 4 * abs(count) or not 0 <= seed <= LOW:
        raise ValueError("it holds no 32-bit signatures as LeanMinHash.serialize writes them, little-endian")
    values = np.frombuffer(b"".join(row[start:] for row in rows), "<u4").reshape(len(rows), abs(count))
    return values, seed, "affine32" if count < 0 else "legacy"
