"""Indexes of near duplicates that datasketch and DataTrove keep, as rules: a document that is in one of them goes.

Their indexes hold signatures and no texts, so nothing can be verified: the decision is theirs. `minhash_dedup:
{against: ...}` compares with indexes of our own runs.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import AfterValidator, Field

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.base.splitmix import mixed_all
from gristmill.kernels.base.types import Array, Hashes, Offsets
from gristmill.kernels.common.extras import install
from gristmill.kernels.common.paths import RecipePath
from gristmill.kernels.duplicates.minhash import bands_for
from gristmill.kernels.words.tokens import shingle_sets
from gristmill.stages.others.signatures import (
    Scheme,
    datasketch_places,
    datatrove_places,
    of_lean_minhashes,
    signatures_of,
)
from gristmill.stages.stage import CannotRun, Rule, Signals, Verdict

LEAN = "lean_minhash"  # the column of signatures
KEYS = ("uid", "key", "id")
MOST_ALIKE = 64  # rows of an index with one band that a document is compared with
RECALL = 0.97


def _there(path: str) -> str:
    if not Path(path).exists():
        raise ValueError(f"{path}: no such file or folder")
    return path


IndexPath = Annotated[RecipePath, AfterValidator(_there)]


class DatasketchIndex(Rule):
    """Drop documents that are in a set of datasketch's signatures: Parquet with a column `lean_minhash`, each as
    `LeanMinHash.serialize` writes it, and a column `uid`, `key` or `id`.

    Bands nominate as in `minhash_dedup`; a document goes if the estimated similarity is at least `threshold`. Every
    worker holds the set, about 0.8 KB a signature of 128 places. `gristmill export --to datasketch` writes such a set.
    """

    index_path: Annotated[IndexPath, Field(description="a Parquet file, or a folder of them")]
    threshold: Annotated[float, Field(description="estimated Jaccard similarity", gt=0, le=1)] = 0.8
    shingles: Annotated[
        Literal["gristmill", "words"],
        Field(
            description=(
                "what was hashed: shingles of `minhash_dedup`, as our export does; or runs of lower-cased words "
                "between spaces, joined by a space, with datasketch's own sha1"
            )
        ),
    ] = "gristmill"
    ngram: Annotated[int, Field(description="words of a shingle", ge=1, le=64)] = 5

    needs: ClassVar[tuple[str, ...]] = ("text",)
    costly: ClassVar[bool] = True

    def unreached(self, pdf: bool) -> tuple[str, ...]:
        return ("datatrove",)

    def prepare(self) -> None:
        bands_of(self.index_path, self.threshold)

    def verdict(self, signals: Signals) -> Verdict:
        texts = signals.column("text")
        index = bands_of(self.index_path, self.threshold)
        make = words_by_sha1 if self.shingles == "words" else shingles_of
        hashes, first = make(texts, self.ngram)
        ours = signatures_of(hashes, first, index.places)
        best, row = index.nearest(ours)
        found = (best >= self.threshold) & (np.diff(first) > 0)
        details = [f"{value:.3f} like {index.keys[at]}" for value, at in zip(best.tolist(), row.tolist(), strict=True)]
        return Verdict.keep(len(texts)).drop(found, "in_datasketch_index", details)


class DatatroveIndex(Rule):
    """Drop documents that share a bucket of MinHash signatures with those in a folder that DataTrove wrote: the
    signatures of `MinhashDedupSignature` or an index of `MinhashDedupBuckets` or `MinhashBuildIndex`.

    The decision is that of `MinhashDedupBuckets(index_folder=..., only_dedup_in_index=True)`. The settings are those
    of the `MinhashConfig` that made it. Needs DataTrove for its shingles. `gristmill export --to datatrove-minhash`
    writes such a folder.
    """

    index_path: Annotated[IndexPath, Field(description="the folder with bucket_000, bucket_001, …")]
    shingles: Annotated[
        Literal["datatrove", "gristmill"],
        Field(description="what was hashed: DataTrove's shingles (xxhash), or those of `minhash_dedup`, as our export"),
    ] = "datatrove"
    language: Annotated[str, Field(description="whose words DataTrove took, as it names languages")] = "eng"
    ngram: Annotated[int, Field(description="`n_grams`: words of a shingle", ge=1, le=64)] = 5
    rows: Annotated[int, Field(description="`hashes_per_bucket`", ge=1, le=1024)] = 8
    precision: Annotated[Literal[32, 64], Field(description="bits of a hash")] = 64
    seed: Annotated[int, Field(description="of the hash functions", ge=0, lt=1 << 32)] = 1

    needs: ClassVar[tuple[str, ...]] = ("text",)
    costly: ClassVar[bool] = True

    def unreached(self, pdf: bool) -> tuple[str, ...]:
        return () if self.shingles == "datatrove" else ("datatrove",)

    def prepare(self) -> None:
        buckets_of(self.index_path, self.rows, self.precision)
        if self.shingles == "datatrove":
            datatrove_shingles(self.ngram, self.precision, self.language)

    def verdict(self, signals: Signals) -> Verdict:
        texts = signals.column("text")
        buckets = buckets_of(self.index_path, self.rows, self.precision)
        if self.shingles == "datatrove":
            block = datatrove_shingles(self.ngram, self.precision, self.language)
            hashes, first = flat([block.get_shingles(text or "").reshape(-1) for text in texts.to_pylist()])
        else:
            hashes, first = shingles_of(texts, self.ngram)
            hashes = hashes & np.uint64((1 << 32) - 1) if self.precision == 32 else hashes
        places = datatrove_places(len(buckets) * self.rows, self.seed, self.precision)
        ours = signatures_of(hashes, first, places).reshape(len(texts), len(buckets), self.rows)
        details = [""] * len(texts)
        for number, files in enumerate(buckets):
            for name, records in files:
                for row in np.flatnonzero(in_records(records, ours[:, number])).tolist():
                    details[row] = details[row] or f"bucket {number} of {name}"
        found = np.array([bool(detail) for detail in details], bool) & (np.diff(first) > 0)
        return Verdict.keep(len(texts)).drop(found, "in_datatrove_index", details)


def shingles_of(texts: pa.ChunkedArray | pa.Array, width: int) -> tuple[Hashes, Offsets]:
    """Those of `minhash_dedup`, each once in a document."""
    return shingle_sets(text_column(texts), width, 0)


def words_by_sha1(texts: pa.ChunkedArray | pa.Array, width: int) -> tuple[Hashes, Offsets]:
    """Runs of words between spaces, by the first 32 bits of their SHA-1, as datasketch hashes bytes."""
    rows = []
    for text in texts.to_pylist():
        words = (text or "").lower().split()
        runs = {" ".join(words[at : at + width]) for at in range(max(len(words) - width + 1, min(len(words), 1)))}
        digests = [hashlib.sha1(run.encode("utf-8", "replace")).digest()[:4] for run in sorted(runs)]
        rows.append(np.frombuffer(b"".join(digests), "<u4").astype(np.uint64))
    return flat(rows)


def flat(rows: list[Hashes]) -> tuple[Hashes, Offsets]:
    first = np.concatenate([np.zeros(1, np.int64), np.cumsum([len(row) for row in rows], dtype=np.int64)])
    return np.concatenate([np.zeros(0, np.uint64), *rows]), first


class Bands(NamedTuple):
    """Signatures of an index, found by their bands."""

    keys: list[str]
    values: Array  # uint32 [documents, places]
    places: Any
    rows: int
    sorted_bands: list[tuple[Hashes, Array]]  # of each band: hashes in order, and whose they are

    def nearest(self, ours: Array) -> tuple[Array, Array]:
        """The best estimated similarity of each signature with one that shares a band, and which that is."""
        best, where = np.zeros(len(ours)), np.zeros(len(ours), np.int64)
        for number, (hashes, owners) in enumerate(self.sorted_bands):
            wanted = band_of(ours[:, number * self.rows : (number + 1) * self.rows])
            start = np.searchsorted(hashes, wanted, "left")
            ends = np.minimum(np.searchsorted(hashes, wanted, "right"), start + MOST_ALIKE)
            for row in np.flatnonzero(ends > start).tolist():
                candidates = owners[start[row] : ends[row]]
                alike = (self.values[candidates] == ours[row]).mean(axis=1)
                if alike.max() > best[row]:
                    best[row], where[row] = alike.max(), candidates[alike.argmax()]
        return best, where


def band_of(values: Array) -> Hashes:
    hashes = np.zeros(len(values), np.uint64)
    for column in values.T:
        hashes = mixed_all(hashes ^ column.astype(np.uint64))
    return hashes


@lru_cache(maxsize=4)
def bands_of(path: str, threshold: float) -> Bands:
    top = Path(path)
    files = sorted(top.glob("*.parquet")) if top.is_dir() else [top]
    keys: list[str] = []
    rows: list[bytes] = []
    for file in files:
        try:
            names = pq.read_schema(file).names
            key = next((name for name in KEYS if name in names), None)
            if LEAN not in names or key is None:
                raise CannotRun(f"{file}: it needs a column {LEAN} and one of {', '.join(KEYS)}")
            table = pq.ParquetFile(file).read(columns=[LEAN, key])
        except (pa.ArrowException, OSError) as error:
            raise CannotRun(f"{file}: not a Parquet file that can be read ({error})") from error
        rows += table[LEAN].cast(pa.binary()).to_pylist()
        keys += [f"{value:016x}" if isinstance(value, int) else str(value) for value in table[key].to_pylist()]
    try:
        scheme: Scheme
        values, seed, scheme = of_lean_minhashes([row or b"" for row in rows])
        bands, height = bands_for(threshold, values.shape[1], RECALL)
    except ValueError as error:
        raise CannotRun(f"{path}: {error}") from error
    found = []
    for number in range(bands):
        hashes = band_of(values[:, number * height : (number + 1) * height])
        order = np.argsort(hashes, kind="stable")
        found.append((hashes[order], order))
    return Bands(keys, values, datasketch_places(values.shape[1], seed, scheme), height, found)


@lru_cache(maxsize=4)
def buckets_of(path: str, rows: int, precision: int) -> list[list[tuple[str, Array]]]:
    """Of each bucket the mapped files: records of `rows` hashes, those of signatures with a number of a document
    behind."""
    folders = sorted(Path(path).glob("bucket_*"))
    if not folders or [folder.name for folder in folders] != [f"bucket_{at:03d}" for at in range(len(folders))]:
        raise CannotRun(f"{path}: no folder with bucket_000, bucket_001, … as DataTrove writes it")
    buckets: list[list[tuple[str, Array]]] = []
    for folder in folders:
        files: list[tuple[str, Array]] = []
        for file in sorted([*folder.glob("*.minhash.sig"), *folder.glob("*.minhash.index")]):
            fields: list[Any] = [("hashes", f"<u{precision // 8}", (rows,))]
            kind = np.dtype(fields + [("document", "<u4")] * file.name.endswith(".sig"))
            if file.stat().st_size % kind.itemsize:
                raise CannotRun(
                    f"{file}: {file.stat().st_size:,} bytes are no records of {rows} hashes of {precision} bits; "
                    "give `rows` and `precision` of the MinhashConfig that made it"
                )
            if file.stat().st_size:
                files.append((f"{folder.parent.name}/{file.name}", np.memmap(file, kind, "r")))
        buckets.append(files)
    if not any(buckets):
        raise CannotRun(f"{path}: its buckets hold no .minhash.sig or .minhash.index files")
    return buckets


def in_records(records: Array, wanted: Array) -> Array:
    """Which rows of `wanted` are among the records, which stand in order of their hashes."""
    hashes = records["hashes"]
    low, high = np.zeros(len(wanted), np.int64), np.full(len(wanted), len(records), np.int64)
    while (low < high).any():  # by the first hash; nothing of the file is read but the places that are looked at
        middle = (low + high) // 2
        less = hashes[np.minimum(middle, len(records) - 1), 0] < wanted[:, 0]
        open_ = low < high
        low, high = np.where(open_ & less, middle + 1, low), np.where(open_ & ~less, middle, high)
    found = np.zeros(len(wanted), bool)
    alive = low < len(records)
    while alive.any():
        at = np.minimum(low, len(records) - 1)
        alive &= hashes[at, 0] == wanted[:, 0]
        found |= alive & (hashes[at] == wanted).all(axis=1)
        low = low + 1
        alive &= ~found & (low < len(records))
    return found


@lru_cache(maxsize=4)
def datatrove_shingles(ngram: int, precision: int, language: str) -> Any:
    """DataTrove's own block, for what it makes of a text."""
    try:
        from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupSignature
        from datatrove.utils.hashing import HashConfig

        config = MinhashConfig(n_grams=ngram, hash_config=HashConfig(precision=precision))
        block = MinhashDedupSignature("memory://signatures", config, language)
        block.get_shingles("what its words need is loaded by the first text")
        return block
    except Exception as error:  # whatever another's code comes to: no document is to blame
        raise CannotRun(
            f"`shingles: datatrove` needs DataTrove and what its words need, {install('datatrove')} "
            f"({type(error).__name__}: {error})"
        ) from error
