"""Documents with the same text: xxh3-128 of the normalised text, one survivor of each cluster by a stated policy.

The 128 bits are trusted without a look at the texts: among 10**11 documents the chance of a single false match is below 2e-17.
"""

from __future__ import annotations

import unicodedata
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from pydantic import Field

from stages.dedup.policy import PREFER, WithPolicy
from stages.stage import Dataset, Flow

HALF = (1 << 64) - 1
HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)


class ExactDedup(WithPolicy):
    """Keep one of all documents that have the same text.

    Which one: by `prefer`, in its order, and of those still equal the one with the smallest uid; the order of documents never
    matters. Documents without text (null or only white space) are no duplicates of each other and pass. All members of a cluster
    of two or more, the survivor too, get `exact_cluster_size`; other documents have null there.
    """

    normalise: Annotated[bool, Field(description="compare in Unicode NFC, caseless, white space collapsed; else byte for byte")] = True
    prefer: list[Literal["source", "longest", "earliest", "best"]] = Field(default=["source", "earliest"], description=PREFER)

    cluster_size: ClassVar[str] = "exact_cluster_size"
    expect_drops: ClassVar[float] = 0.9

    def run(self, docs: Dataset, flow: Flow) -> Dataset:
        keys = flow.map(self.sign, docs, columns=self.read, by="key")
        losers = self.tell_clusters(flow.exchange(self.losers, keys), flow)
        return flow.drop(docs, losers)

    def sign(self, docs: pa.Table) -> pa.Table:
        """A row for each document with text: its hash in two halves, and what the policy looks at."""
        text = docs["text"]
        high, low = np.zeros(len(docs), np.uint64), np.zeros(len(docs), np.uint64)
        with_text = np.zeros(len(docs), dtype=bool)
        for row, value in enumerate(text):
            content = value.as_py()
            if content and not content.isspace():
                digest = xxhash.xxh3_128_intdigest((normalised(content) if self.normalise else content).encode())
                high[row], low[row], with_text[row] = digest >> 64, digest & HALF, True
        rows = {"key": pa.array(high), "low": pa.array(low), "uid": docs["uid"], **self.standing(docs)}
        return pa.table(rows).filter(pa.array(with_text))

    def losers(self, rows: pa.Table) -> pa.Table:
        """Of rows whose like is all here: the members of clusters, the survivor without a reason, the others with one."""
        rows = rows.take(pc.sort_indices(rows, sort_keys=[("key", "ascending"), ("low", "ascending"), *self.order()]))
        key, low, uid = (rows[name].to_numpy() for name in ("key", "low", "uid"))
        begins = np.ones(len(rows), dtype=bool)
        begins[1:] = (key[1:] != key[:-1]) | (low[1:] != low[:-1])
        first = np.flatnonzero(begins)  # the survivors
        sizes = np.diff(np.append(first, len(rows)))
        cluster = np.cumsum(begins) - 1  # of each row
        loses = pa.array(~begins)
        nothing = pa.scalar(None, pa.string())
        detail = pc.binary_join_element_wise("same text as ", hexadecimal(uid[first][cluster]), "")
        members = {
            "home": rows["home"],
            "uid": rows["uid"],
            "reason": pc.if_else(loses, pa.scalar("exact_duplicate"), nothing),
            "detail": pc.if_else(loses, detail, nothing),
            "exact_cluster_size": pa.array(sizes[cluster].astype(np.uint32)),
        }
        return pa.table(members).filter(pa.array(sizes[cluster] > 1))


def normalised(text: str) -> str:
    """Text as far as it matters for being the same. Folding case can undo NFC, so NFC comes again after it."""
    if text.isascii():
        return " ".join(text.lower().split())
    folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())
    return " ".join(folded.split())


def hexadecimal(values: np.ndarray[Any, np.dtype[np.uint64]]) -> pa.Array:
    """Sixteen hex digits each, without a Python object a row."""
    octets = np.ascontiguousarray(values.astype(">u8")).view(np.uint8).reshape(-1, 8)
    digits = HEX[np.stack([octets >> 4, octets & 15], axis=2).reshape(-1, 16)]
    buffer = pa.py_buffer(np.ascontiguousarray(digits).tobytes())
    return pa.Array.from_buffers(pa.binary(16), len(values), [None, buffer]).cast(pa.binary()).cast(pa.string())
