"""Where a passage stands in packed token shards: an index of hashed stretches of text, made when it is first asked for.

Documents are decoded and folded (case and white space do not count). Of every LENGTH bytes one hash is kept in each
stretch of SPREAD (winnowing: Schleimer, Wilkerson and Aiken 2003), so that a passage of LENGTH + SPREAD - 1 bytes and
more is found wherever it begins. The index nominates documents; the text itself decides. Shorter passages are looked
for in all documents. An index takes about two bytes for each of text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.base.types import Array
from gristmill.kernels.common.files import whole_folder
from gristmill.kernels.duplicates.windows import window_hashes
from gristmill.shards.documents import Document, documents_of
from gristmill.shards.format import BadShards
from gristmill.shards.reader import ShardSet

LENGTH, SPREAD = 24, 16  # bytes
AT_ONCE = 256  # documents
FACTS = "facts.json"
VERSION = 1

Progress = Callable[[int, int], None]  # shards done, shards in all


class Hit(NamedTuple):
    """A document of a shard with the passage in it. `begins` counts characters of its text as it is decoded, less
    repeated white space."""

    shard: str
    uid: int
    source: str
    begins: int
    text: str


def folded(text: str) -> str:
    return " ".join(text.lower().split())


def fingerprints(text: str) -> Array:
    """The hashes that are kept of a folded text: the smallest of each SPREAD in a row."""
    hashes, _ = window_hashes(text_column(pa.array([text.encode()], pa.large_binary())), LENGTH)
    if len(hashes) <= SPREAD:
        return np.unique(hashes)[:1]
    rows = np.lib.stride_tricks.sliding_window_view(hashes, SPREAD)
    return np.unique(rows.min(axis=1))


class Decoder:
    """Token ids to text, by the tokenizer beside the shards."""

    def __init__(self, shards: ShardSet) -> None:
        from tokenizers import Tokenizer

        path = shards.folder / "tokenizer/tokenizer.json"
        if not path.is_file():
            raise BadShards(f"{shards.folder}: there is no tokenizer beside these shards, so their text cannot be read")
        self._tokenizer = Tokenizer.from_file(str(path))

    def texts(self, documents: Sequence[Document]) -> list[str]:
        decoded: list[str] = self._tokenizer.decode_batch([d.tokens.tolist() for d in documents])
        return decoded


def documents_at_once(shards: ShardSet, number: int) -> Iterator[tuple[int, list[Document]]]:
    """The documents of a shard, some at a time, with the place of the first."""
    some: list[Document] = []
    first = 0
    for document in documents_of(shards.shard(number).batches):
        some.append(document)
        if len(some) == AT_ONCE:
            yield first, some
            first, some = first + len(some), []
    if some:
        yield first, some


def make_index(shards: ShardSet, folder: Path, progress: Progress = lambda done, of: None) -> None:
    """An index of a set of shards in a folder of its own, which appears whole."""
    decoder = Decoder(shards)
    with whole_folder(folder, replace=True) as draft:
        count = len(shards.index.shards)
        for number in range(count):
            hashes, places = [], []
            for first, documents in documents_at_once(shards, number):
                for place, text in enumerate(decoder.texts(documents), first):
                    kept = fingerprints(folded(text))
                    hashes.append(kept)
                    places.append(np.full(len(kept), place, np.uint32))
            all_hashes = np.concatenate([*hashes, np.zeros(0, np.uint64)])
            order = np.argsort(all_hashes, kind="stable")
            np.save(draft / f"hashes-{number:05d}.npy", all_hashes[order])
            np.save(draft / f"documents-{number:05d}.npy", np.concatenate([*places, np.zeros(0, np.uint32)])[order])
            progress(number + 1, count)
        facts = {"version": VERSION, "fingerprint": shards.fingerprint, "length": LENGTH, "spread": SPREAD}
        (draft / FACTS).write_text(json.dumps(facts))


def is_index_of(folder: Path, shards: ShardSet) -> bool:
    """Is there an index of just these shards?"""
    try:
        facts: dict[str, Any] = json.loads((folder / FACTS).read_text())
    except (OSError, ValueError):
        return False
    expected = {"version": VERSION, "fingerprint": shards.fingerprint, "length": LENGTH, "spread": SPREAD}
    return facts == expected


def find(shards: ShardSet, folder: Path, passage: str, most: int) -> Iterator[Hit]:
    """Documents with a passage, shard by shard, at most so many."""
    wanted, found = folded(passage), 0
    if not wanted:
        return
    decoder = Decoder(shards)
    kept = fingerprints(wanted) if len(wanted.encode()) >= LENGTH + SPREAD - 1 else None
    for number, entry in enumerate(shards.index.shards):
        nominated = None if kept is None else nominees(folder, number, kept)
        if nominated is not None and not len(nominated):
            continue
        for first, documents in documents_at_once(shards, number):
            if nominated is not None:
                documents = [documents[place - first] for place in nominated if first <= place < first + len(documents)]
            for document, text in zip(documents, map(folded, decoder.texts(documents)), strict=True):
                begins = text.find(wanted)
                if begins >= 0:
                    yield Hit(entry.path, document.uid, shards.sources[document.source], begins, text)
                    found += 1
                    if found == most:
                        return


def nominees(folder: Path, number: int, kept: Array) -> list[int]:
    """Documents of a shard that have all of these hashes."""
    hashes = np.load(folder / f"hashes-{number:05d}.npy", mmap_mode="r")
    documents = np.load(folder / f"documents-{number:05d}.npy", mmap_mode="r")
    left: set[int] | None = None
    for value in kept.tolist():
        start, end = np.searchsorted(hashes, np.uint64(value)), np.searchsorted(hashes, np.uint64(value), side="right")
        some = set(documents[start:end].tolist())
        left = some if left is None else left & some
        if not left:
            return []
    return sorted(left or ())
