"""Part of other benchmarks: a reader that makes its documents, so that a hundred million of them need no input files.

Each file names a range of numbers, and a document is a function of its number: 60 to 140 words drawn by rank from
50,000, the most frequent first; a fifth are copies of another document with one word changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, BinaryIO, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.stages.documents import BASE, Collector, Reading
from gristmill.stages.stage import Origin, Reader

COPIES = 0.2
CHANGED = 1
VOCABULARY = 50_000
SHORTEST, LONGEST = 60, 140
IN_A_BATCH = 10_000


class Made(Reader):
    """Documents of a range of numbers, `{"first": 0, "count": 50000}` in a file."""

    shape: str = "random"
    suffixes: ClassVar[tuple[str, ...]] = (".range",)

    def read(self, file: BinaryIO, origin: Origin) -> Iterator[Reading]:
        span = json.loads(file.read())
        account = Collector(origin.source, origin.path)
        for first in range(span["first"], span["first"] + span["count"], IN_A_BATCH):
            number = np.arange(first, min(first + IN_A_BATCH, span["first"] + span["count"]), dtype=np.uint64)
            reading = account.take()
            reading.documents = documents(number, origin.source, self.shape)
            yield reading


def documents(number: np.ndarray[Any, Any], source: str, shape: str) -> pa.RecordBatch:
    nothing = pa.nulls(len(number), pa.string())
    columns = {
        "uid": pa.array(mixed(number + np.uint64(1))),
        "source": pa.DictionaryArray.from_arrays(
            pa.array(np.zeros(len(number), np.int32)), pa.array([source], pa.string())
        ),
        "text": SHAPES[shape](number).cast(BASE.field("text").type),
    }
    return pa.RecordBatch.from_arrays(
        [columns.get(f.name, nothing).cast(f.type) if f.name != "source" else columns["source"] for f in BASE],
        schema=BASE,
    )


def random_texts(number: np.ndarray[Any, Any], times: int = 1) -> pa.Array:
    is_copy, origin = origins(number)
    lengths = (SHORTEST + mixed(origin + np.uint64(7)) % np.uint64(LONGEST - SHORTEST + 1)).astype(np.int64) * times
    ends = np.concatenate([[0], np.cumsum(lengths)])
    place = np.arange(ends[-1], dtype=np.uint64) - np.repeat(ends[:-1], lengths).astype(np.uint64)
    drawn = mixed(np.repeat(origin, lengths) * np.uint64(0x9E3779B97F4A7C15) + place)
    for change in range(CHANGED):
        at = ends[:-1] + (mixed(number + np.uint64(change + 100)) % lengths.astype(np.uint64)).astype(np.int64)
        drawn[at[is_copy]] = mixed(number + np.uint64(change + 1000))[is_copy]
    return joined(drawn, ends)


def page_texts(number: np.ndarray[Any, Any]) -> pa.Array:
    """As long as pages are: ten times as many words."""
    return random_texts(number, 10)


def origins(number: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Which documents are copies, and of which other: a copy of a copy is one of the first."""
    is_copy = (mixed(number ^ np.uint64(0xC0FFEE)) % np.uint64(1000) < 1000 * COPIES) & (number > 0)
    origin = np.where(is_copy, mixed(number) % np.maximum(number, 1), number)
    for _ in range(8):
        of_copy = (mixed(origin ^ np.uint64(0xC0FFEE)) % np.uint64(1000) < 1000 * COPIES) & (origin > 0)
        origin = np.where(of_copy, mixed(origin) % np.maximum(origin, 1), origin)
    return is_copy, origin


def equal_texts(number: np.ndarray[Any, Any]) -> pa.Array:
    """One cluster: the same hundred words."""
    return windows(np.zeros(len(number), np.uint64), 100)


def chained_texts(number: np.ndarray[Any, Any]) -> pa.Array:
    """One cluster: a window of a hundred words that moves by three, so that each is like three on either side (0.94,
    0.88, 0.83). At that likeness bands miss one neighbour in a hundred million, and the chain does not break."""
    return windows(number * np.uint64(3), 100)


def starred_texts(number: np.ndarray[Any, Any]) -> pa.Array:
    """Clusters of a hundred: a hub, and leaves that are like it and not like each other."""
    hub = number // np.uint64(100) * np.uint64(1000)
    return windows(hub, 85, own=number, changes=number % np.uint64(100) > 0)


def windows(start: np.ndarray[Any, Any], length: int, own: Any = None, changes: Any = 1) -> pa.Array:
    """Texts of so many words that follow each other in one endless text, with a stretch of the document's own."""
    ends = np.arange(len(start) + 1, dtype=np.int64) * length
    place = np.repeat(start, length) + np.tile(np.arange(length, dtype=np.uint64), len(start))
    drawn = mixed(place * np.uint64(0x9E3779B97F4A7C15) + np.uint64(5)).reshape(-1, length)
    if own is not None:
        at = (mixed(own + np.uint64(77)) % np.uint64(length)).astype(np.int64)
        rows = np.flatnonzero(np.broadcast_to(changes, len(start)))
        drawn[rows, at[rows]] = mixed(own[rows] + np.uint64(1000))
    return joined(drawn.reshape(-1), ends)


def joined(drawn: np.ndarray[Any, Any], ends: np.ndarray[Any, Any]) -> pa.Array:
    rank = (VOCABULARY * ((drawn >> np.uint64(11)) / 2.0**53) ** 3).astype(np.int32)
    words = pa.array(WORDS).take(pa.array(rank))
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), words), " ")


SHAPES = {
    "random": random_texts,
    "pages": page_texts,
    "equal": equal_texts,
    "chain": chained_texts,
    "stars": starred_texts,
}


def mixed(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def word(number: int) -> str:
    letters = "etaoinshrdlucmfwypvbgkqjxz"
    found = letters[number % 26]
    while number := number // 26:
        found += letters[number % 26]
    return found + letters[number % 7] * (len(found) < 3)


WORDS = [word(n) for n in range(VOCABULARY)]
