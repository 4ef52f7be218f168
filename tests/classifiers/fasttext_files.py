"""Small fastText models for tests: a description, a writer of the file format, and prediction in plain Python, as
loss.cc reads.

The writer and the plain prediction know nothing of the reader under test; both were checked against models that
fastText itself trained.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

HS, NS, SOFTMAX, OVA = 1, 2, 3, 4


@dataclass
class Codes:
    """A product-quantised matrix: codes_RP, centroids as the file has them, norm codes and their centroids."""

    codes: np.ndarray
    width: int
    centroids: np.ndarray
    norm_codes: np.ndarray | None = None
    norms: np.ndarray | None = None

    def dense(self) -> np.ndarray:
        dim = len(self.centroids) // 256
        rows = np.zeros((len(self.codes), dim), np.float32)
        for row, codes in enumerate(self.codes):
            for part, code in enumerate(codes):
                start = part * self.width
                size = min(self.width, dim - start)
                at = start * 256 + int(code) * size
                rows[row, start : start + size] = self.centroids[at : at + size]
            if self.norm_codes is not None:
                rows[row] *= self.norms[self.norm_codes[row]]
        return rows


@dataclass
class Small:
    """A classifier in full view."""

    words: list[bytes]
    labels: list[bytes]
    counts: list[int]
    rows: np.ndarray | Codes
    outputs: np.ndarray | Codes
    buckets: int = 50
    minn: int = 2
    maxn: int = 4
    word_ngrams: int = 1
    loss: int = SOFTMAX
    version: int = 12
    pruned: dict[int, int] | None = None
    kind: int = 3
    dim: int = field(init=False)

    def __post_init__(self) -> None:
        self.dim = self.matrix(self.rows).shape[1]

    @staticmethod
    def matrix(rows: np.ndarray | Codes) -> np.ndarray:
        return rows.dense() if isinstance(rows, Codes) else rows

    def write(self, path: Path) -> Path:
        settings = (
            self.dim,
            5,
            5,
            1,
            5,
            self.word_ngrams,
            self.loss,
            self.kind,
            self.buckets,
            self.minn,
            self.maxn,
            100,
        )
        out = struct.pack("<2i12id", 793712314, self.version, *settings, 1e-4)
        pruned = -1 if self.pruned is None else len(self.pruned)
        out += struct.pack("<3i2q", len(self.words) + len(self.labels), len(self.words), len(self.labels), 1000, pruned)
        out += b"".join(word + b"\0" + struct.pack("<qb", 7, 0) for word in self.words)
        for label, count in zip(self.labels, self.counts, strict=True):
            out += label + b"\0" + struct.pack("<qb", count, 1)
        for bucket, row in (self.pruned or {}).items():
            out += struct.pack("<2i", bucket, row)
        out += bytes([isinstance(self.rows, Codes)]) + matrix_bytes(self.rows)
        out += bytes([isinstance(self.outputs, Codes)]) + matrix_bytes(self.outputs)
        path.write_bytes(out)
        return path

    def rows_of(self, text: bytes) -> list[int]:
        hashes, found = [], []
        tokens = [t for t in re.split(rb"[ \n\r\t\v\f\0]+", text) if t]
        for token in [*tokens, b"</s>"]:
            if token in self.labels or (token not in self.words and token.startswith(b"__label__")):
                continue
            if token in self.words:
                found.append(len(self.words) - 1 - self.words[::-1].index(token))
            if token != b"</s>" and self.version > 11:
                found += self.subwords(b"<" + token + b">")
            hashes.append(fnv(token))
            if token == b"</s>":
                break
        for i in range(len(hashes)):
            value = signed(hashes[i])
            for other in hashes[i + 1 : i + self.word_ngrams]:
                value = (value * 116049371 + signed(other)) % 2**64
                found += self.bucket(value % 2**64 % self.buckets)
        return found

    def subwords(self, word: bytes) -> list[int]:
        starts = [i for i in range(len(word)) if word[i] & 0xC0 != 0x80] + [len(word)]
        found = []
        for i in range(len(starts) - 1):
            for n in range(1, self.maxn + 1):
                if i + n >= len(starts):
                    break
                if n >= self.minn and not (n == 1 and (i == 0 or i + n == len(starts) - 1)):
                    found += self.bucket(fnv(word[starts[i] : starts[i + n]]) % self.buckets)
        return found

    def bucket(self, bucket: int) -> list[int]:
        if self.pruned is None:
            return [len(self.words) + bucket]
        return [len(self.words) + self.pruned[bucket]] if bucket in self.pruned else []

    def probabilities(self, text: bytes) -> dict[str, float] | None:
        """Every label's probability, in double precision; None where fastText gives nothing."""
        rows = self.rows_of(text)
        if not rows:
            return None
        hidden = self.matrix(self.rows).astype(np.float64)[rows].mean(axis=0)
        scores = self.matrix(self.outputs).astype(np.float64) @ hidden
        if self.loss == SOFTMAX:
            chances = np.exp(scores - scores.max())
            logs = np.log(chances / chances.sum() + 1e-5)
        elif self.loss == HS:
            logs = self.walk(scores)
        else:
            steps = [int((min(max(s, -8), 8) + 8) * 512 / 8 / 2) for s in scores]
            table = [
                0.0 if s < -8 else 1.0 if s > 8 else 1 / (1 + math.exp(-(n * 16 / 512 - 8)))
                for s, n in zip(scores, steps, strict=True)
            ]
            logs = np.log(np.array(table) + 1e-5)
        return {
            name.decode().removeprefix("__label__"): float(np.exp(x)) for name, x in zip(self.labels, logs, strict=True)
        }

    def walk(self, scores: np.ndarray) -> np.ndarray:
        """The lightest two nodes are joined again and again; of equals, inner nodes go before labels, and each kind in
        its order."""
        count = len(self.labels)
        leaves, inner, children = [(c, i) for i, c in enumerate(self.counts)], [], {}
        for node in range(count, 2 * count - 1):
            pair = [
                leaves.pop() if leaves and (not inner or leaves[-1][0] < inner[0][0]) else inner.pop(0)
                for _ in range(2)
            ]
            children[node] = (pair[0][1], pair[1][1])
            inner.append((pair[0][0] + pair[1][0], node))
        logs = np.zeros(count)

        def down(node: int, so_far: float) -> None:
            if node < count:
                logs[node] = so_far
                return
            right = 1 / (1 + math.exp(-scores[node - count]))
            down(children[node][0], so_far + math.log(1 - right + 1e-5))
            down(children[node][1], so_far + math.log(right + 1e-5))

        down(2 * count - 2, 0.0)
        return logs


def matrix_bytes(matrix: np.ndarray | Codes) -> bytes:
    if not isinstance(matrix, Codes):
        return struct.pack("<2q", *matrix.shape) + matrix.astype("<f4").tobytes()
    rows, parts = matrix.codes.shape
    dim = len(matrix.centroids) // 256
    out = (
        struct.pack("<b2qi", matrix.norm_codes is not None, rows, dim, rows * parts)
        + matrix.codes.astype(np.uint8).tobytes()
    )
    out += (
        struct.pack("<4i", dim, parts, matrix.width, dim - (parts - 1) * matrix.width)
        + matrix.centroids.astype("<f4").tobytes()
    )
    if matrix.norm_codes is not None:
        out += (
            matrix.norm_codes.astype(np.uint8).tobytes()
            + struct.pack("<4i", 1, 1, 1, 1)
            + matrix.norms.astype("<f4").tobytes()
        )
    return out


def fnv(data: bytes) -> int:
    value = 2166136261
    for byte in data:
        value = (value ^ ((byte | 0xFFFFFF00) if byte >= 128 else byte)) * 16777619 % 2**32
    return value


def signed(value: int) -> int:
    return value - 2**32 if value >= 2**31 else value


def small(
    seed: int = 1,
    *,
    dim: int = 5,
    labels: int = 7,
    loss: int = SOFTMAX,
    quantised: str = "",
    pruned: bool = False,
    scale: float = 2.0,
    **more,
) -> Small:
    """A random classifier; `quantised` names what is: `rows`, `rows norms`, `rows outputs norms`."""
    random = np.random.default_rng(seed)
    words = [b"</s>", b"the", b"der", "été".encode(), "是的".encode(), b"a", b"zebra"]
    buckets = more.pop("buckets", 50)
    kept = {int(b): i for i, b in enumerate(random.permutation(buckets)[: buckets // 2])} if pruned else None

    def matrix(rows: int, name: str) -> np.ndarray | Codes:
        if name not in quantised:
            return (random.standard_normal((rows, dim)) * scale).astype(np.float32)
        parts = -(-dim // 2)
        codes, centroids = (
            random.integers(0, 256, (rows, parts), np.uint8),
            (random.standard_normal(dim * 256) * scale).astype(np.float32),
        )
        if "norms" not in quantised:
            return Codes(codes, 2, centroids)
        return Codes(codes, 2, centroids, random.integers(0, 256, rows, np.uint8), random.random(256, np.float32) * 2)

    rows = len(words) + (len(kept) if kept is not None else buckets)
    counts = sorted(random.integers(1, 100, labels).tolist(), reverse=True)
    names = [f"__label__{chr(97 + i)}{chr(97 + i)}".encode() for i in range(labels)]
    return Small(
        words,
        names,
        counts,
        matrix(rows, "rows"),
        matrix(labels, "outputs"),
        buckets=buckets,
        loss=loss,
        pruned=kept,
        **more,
    )
