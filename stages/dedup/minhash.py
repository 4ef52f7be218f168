"""Documents that are nearly the same: MinHash bands nominate, the Jaccard similarity of the real shingles decides
(Broder 1997; Leskovec et al., ch. 3).

Two documents of similarity s share a band with the chance 1 - (1 - s**rows)**bands, and a shared band is all that most
tools ask before they delete. Here it only brings two documents together; `gristmill.stages.dedup.near` has the rest of
the road. Definitions of words and shingles: `gristmill.kernels.words.token_rules`. Recall by kind of edit and speed
beside others: benchmarks/dedup/minhash.py, docs/dedup.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import reduce
from operator import add
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from gristmill.kernels.base.columns import TextColumn, text_column
from gristmill.kernels.base.types import Array
from gristmill.kernels.common.extras import install
from gristmill.kernels.common.settings import PLACEMENT
from gristmill.kernels.duplicates.minhash import band_hashes, bands_for, chance_of_meeting, signatures
from gristmill.kernels.duplicates.nominate import pairs_in_buckets, pairs_with_saved, siblings
from gristmill.kernels.words.tokens import jaccard_of_pairs, shingle_sets
from gristmill.stages.dedup.near import (
    NO_CLUSTER,
    SAVED,
    NearDuplicates,
    Sketches,
    each_pair_once,
    edges_of,
    rows_of,
)
from gristmill.stages.dedup.policy import PolicyColumns, SurvivorPolicy
from gristmill.stages.dedup.survivors import RUN
from gristmill.stages.flow import Dataset, Flow, Rows
from gristmill.stages.stage import CannotRun

BandHashes = Callable[..., tuple[Array, Array]]

SKETCH = 256  # places of the signature that an index keeps of a document
INDEX_FORMAT = 2
# Of a longer document the smallest so many hashes: a similarity is then off by 0.002 (standard deviation), and memory
# is bounded.
MOST_SHINGLES = 1 << 16


class MinhashDedup(SurvivorPolicy):
    """Keep one of documents that share most of their word n-grams.

    A document goes only if the Jaccard similarity of its n-grams with those of a document that stays is at least
    `threshold`. Who stays: by `prefer`, then by uid. Words are runs of letters and digits, caseless; in scripts without
    spaces each letter is a word. A document of fewer words than `ngram` is like another only if all its words are the
    same; one without words is like none. All members of a cluster get its name and size; one that stays gets
    `minhash_copies`, how many documents it stands for.
    """

    threshold: Annotated[
        float, Field(description="the Jaccard similarity from which two documents are alike", gt=0, le=1)
    ] = 0.8
    ngram: Annotated[int, Field(description="words in a shingle", ge=1, le=64)] = 5
    hashes: Annotated[int, Field(description="length of a signature", ge=1, le=1 << 14)] = 128
    recall: Annotated[
        float,
        Field(
            description="bands are cut so that a pair at the threshold is nominated with this chance at least",
            gt=0,
            lt=1,
        ),
    ] = 0.97
    bands: Annotated[
        int | None, Field(description="bands, if they are not to follow from threshold and recall; with rows", ge=1)
    ] = None
    rows: Annotated[int | None, Field(description="rows of a band", ge=1)] = None
    seed: Annotated[int, Field(description="of all hashes", ge=0)] = 0

    against: list[str] = Field(
        default=[],
        description=(
            "indexes that earlier runs saved, or folders of such: what is like a document in them goes. Of the folder "
            "that this run saves into too, those whose names come before its own"
        ),
    )
    within: Annotated[bool, Field(description="compare the documents with each other too")] = True
    save_index: Annotated[
        str | None,
        Field(description="folder to keep the bands and sketches of what stays in, for `against` of a later run"),
    ] = None

    device: Literal["auto", "cpu", "gpu"] = Field(
        default="cpu",
        description=(
            "where band hashes are computed, with the same bits; auto: on a GPU if there is one (a GPU needs "
            "the extra `gpu`)"
        ),
        json_schema_extra=PLACEMENT,
    )

    cluster_size: ClassVar[str] = "minhash_cluster_size"
    signal_types: ClassVar[Mapping[str, pa.DataType]] = {
        "minhash_cluster": pa.uint64(),
        "minhash_cluster_size": pa.uint32(),
        "minhash_copies": pa.uint32(),
    }

    @model_validator(mode="after")
    def _bands_fit(self) -> Self:
        if (self.bands is None) != (self.rows is None):
            raise ValueError("bands and rows go together: give both or neither")
        if self.bands is not None and self.rows is not None and self.bands * self.rows > self.hashes:
            raise ValueError(
                f"{self.bands} bands of {self.rows} rows need {self.bands * self.rows} hashes; there are {self.hashes}"
            )
        if not self.within and not self.against:
            raise ValueError("nothing to compare with: `within` is false and `against` names no index")
        if self.bands is None:
            bands_for(self.threshold, self.hashes, self.recall)
        return self

    @property
    def shape(self) -> tuple[int, int]:
        """Bands and rows."""
        if self.bands is not None and self.rows is not None:
            return self.bands, self.rows
        return bands_for(self.threshold, self.hashes, self.recall)

    @property
    def chances(self) -> list[tuple[float, float]]:
        """The chance that a pair is compared, by its similarity."""
        return [(step / 20, chance_of_meeting(step / 20, *self.shape)) for step in range(4, 20)]

    @property
    def near(self) -> NearDuplicates:
        return NearDuplicates(self, prefix="minhash", at_least=self.threshold)

    @property
    def round_helpers(self) -> tuple[object, ...]:
        return self.near.helpers

    @property
    def loads(self) -> tuple[str, ...]:
        return tuple(f"{address}/{part}" for address in self.against for part in ("bands", "sketches"))

    @property
    def saves(self) -> tuple[str, ...]:
        return () if self.save_index is None else tuple(f"{self.save_index}/{part}" for part in ("bands", "sketches"))

    def unreached(self, pdf: bool) -> tuple[str, ...]:
        return ("torch", "triton")  # a GPU gives the same result

    @property
    def gpu(self) -> bool:
        return self.device != "cpu"

    def run(self, docs: Dataset, flow: Flow) -> Dataset:
        bands, rows = self.shape
        flow.report("bands", {"bands": bands, "rows": rows, "threshold": self.threshold, "chances": self.chances})
        duplicates = self.near.duplicates(docs, flow, self.nominated_and_compared(docs, flow))
        kept = flow.drop(docs, self.report_clusters(duplicates, flow))
        if self.save_index is not None:
            facts = self.index_facts
            saved = flow.map(self.saved_bands, kept, columns=("uid", "text"), by="key", fan=bands, gpu=self.gpu)
            flow.run.save(saved, f"{self.save_index}/bands", facts, docs=kept)
            flow.run.save(
                flow.map(self.saved_sketches, kept, columns=("uid", "text"), by="uid"),
                f"{self.save_index}/sketches",
                facts,
                docs=kept,
            )
        return kept

    def prepare(self) -> None:
        self.near.prepare()
        uid, text = (
            pa.chunked_array([pa.array([1, 2], pa.uint64())]),
            pa.chunked_array([["a text that is there twice"] * 2]),
        )
        if self.device == "gpu":  # not touched here: the process that prepares is forked
            keys, shingles = np.ones((2, self.shape[0]), np.uint64), np.ones(2, np.int64)
        else:
            keys, shingles = band_hashes(text_column(text), **self.kernel_settings)
        rows = rows_of_bands(uid, keys, shingles)
        self.nominate(rows.append_column("home", rows["uid"]))

    def nominated_and_compared(self, docs: Dataset, flow: Flow) -> Rows:
        """Edges, cut by `left`."""
        saved_bands, sketches = (
            [load_index(flow, f"{address}/{part}", self.index_facts, part == "sketches") for address in self.against]
            for part in ("bands", "sketches")
        )
        bands = flow.map(self.sign, docs, columns=("uid", "text"), by="key", fan=self.shape[0], gpu=self.gpu)
        edges = [self.near.compared(self.nominated(bands, flow), docs, flow, by="left")] if self.within else []
        if self.against:  # all at once: rounds do not grow with the number of indexes
            met = reduce(add, [bands, *saved_bands])
            pairs = flow.reduce(self.nominate_saved, met, by="right", fan=1 / self.shape[0])
            sketched = flow.reduce(self.with_sketch, pairs, reduce(add, sketches))
            edges.append(flow.join(self.compare_saved, sketched, docs, columns=self.read, by="left", uids="left"))
        return reduce(add, edges)

    def nominated(self, bands: Rows, flow: Flow) -> Rows:
        """Pairs, after which only indexes ask for bands."""
        pairs = flow.reduce(self.nominate, bands, fan=1 / self.shape[0])
        if not self.against:
            flow.release(bands)
        return pairs

    def sign(self, docs: pa.Table) -> pa.Table:
        """A row for each band of each document that has words; what `sibling` is for says
        `gristmill.kernels.duplicates.nominate`."""
        kernel = kernel_on(self.device)
        return rows_of_bands(docs["uid"], *kernel(text_column(docs["text"]), **self.kernel_settings))

    @property
    def kernel_settings(self) -> dict[str, int]:
        bands, rows = self.shape
        return {"width": self.ngram, "bands": bands, "rows": rows, "seed": self.seed, "places": self.hashes}

    def nominate(self, rows: pa.Table) -> pa.Table:
        """Pairs of documents that share a band."""
        met = those_that_meet(rows)
        uid, home = met["uid"].to_numpy(), met["home"].to_numpy()
        a, b = pairs_in_buckets(met["key"].to_numpy(), met["sibling"].to_numpy(), uid)
        left, right = np.where(uid[a] < uid[b], a, b), np.where(uid[a] < uid[b], b, a)
        return pa.table(
            {
                "home": pa.array(home[left]),
                "left": pa.array(uid[left]),
                "right": pa.array(uid[right]),
                "right_home": pa.array(home[right]),
                "cluster": pa.array(np.full(len(left), NO_CLUSTER, np.uint64)),
            }
        )

    @property
    def index_facts(self) -> dict[str, int]:
        """What an index and a run that uses it have to have in common."""
        bands, rows = self.shape
        return {
            "format": INDEX_FORMAT,
            "ngram": self.ngram,
            "hashes": self.hashes,
            "bands": bands,
            "rows": rows,
            "seed": self.seed,
        }

    def saved_bands(self, docs: pa.Table) -> pa.Table:
        rows = self.sign(docs)
        return rows.append_column("home", pa.array(np.full(len(rows), SAVED, np.uint64)))

    def saved_sketches(self, docs: pa.Table) -> pa.Table:
        return pa.table({"uid": docs["uid"], "sketch": self.sketch(docs["text"])})

    def sketch(self, text: pa.ChunkedArray) -> pa.Array:
        """A long signature, 16 bits a place: what is left of a document whose text is far away."""
        values = signatures(text_column(text), width=self.ngram, places=SKETCH, seed=self.seed).astype(np.uint16)
        return pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(2 * SKETCH), len(text), [None, pa.py_buffer(values.tobytes())]
        )

    def nominate_saved(self, rows: pa.Table) -> pa.Table:
        """Pairs of a document and a saved one that share a band."""
        met = those_that_meet(rows)
        uid, home = met["uid"].to_numpy(), met["home"].to_numpy()
        new, old = pairs_with_saved(met["key"].to_numpy(), met["sibling"].to_numpy(), uid, home == SAVED)
        return pa.table({"home": pa.array(home[new]), "left": pa.array(uid[new]), "right": pa.array(uid[old])})

    def with_sketch(self, pairs: pa.Table | None, saved: pa.Table | None) -> pa.Table:
        if pairs is None or saved is None:
            return pa.table({})
        pairs = each_pair_once(pairs)
        places = pc.index_in(pairs["right"], value_set=saved["uid"].combine_chunks())
        return pairs.append_column("sketch", saved["sketch"].take(places)).append_column(RUN, saved[RUN].take(places))

    def compare_saved(self, pairs: pa.Table, docs: pa.Table) -> pa.Table:
        """Edges to saved documents. Their text is far away: the similarity is estimated from SKETCH places (standard
        deviation 0.025 at 0.8)."""
        left, places = np.unique(pairs["left"].to_numpy(), return_inverse=True)
        docs = rows_of(docs, left)
        ours, theirs = (as_places(sketch) for sketch in (self.sketch(docs["text"]), pairs["sketch"].combine_chunks()))
        similarity = (ours[places] == theirs).mean(axis=1)
        kept = np.flatnonzero(similarity >= self.threshold)
        pairs, places = pairs.take(pa.array(kept)), places[kept]
        same = {"cluster": NO_CLUSTER, "key": NO_CLUSTER, "right_home": SAVED}
        rows = {
            "left": pairs["left"],
            "right": pairs["right"],
            "left_home": pairs["home"],
            "similarity": pa.array(similarity[kept]),
        }
        rows |= {name: pa.array(np.full(len(kept), value, np.uint64)) for name, value in same.items()}
        for name, column in self.policy_columns(docs).items():
            rows |= {
                f"left_{name}": pc.take(column, pa.array(places)),
                f"right_{name}": pairs[RUN] if name == RUN else pa.nulls(len(kept), column.type),
            }
        return edges_of(rows)

    def policy_columns(self, docs: pa.Table) -> PolicyColumns:
        """With the earlier run that a document is of, where there are any: none for documents of this one."""
        columns = super().policy_columns(docs)
        return {**columns, RUN: pa.nulls(len(docs), pa.string())} if self.against else columns

    def sketches(self, docs: pa.Table) -> Sketches:
        values, first = shingle_sets(text_column(docs["text"]), self.ngram, self.seed)
        counts = np.diff(first)
        if counts.max(initial=0) <= MOST_SHINGLES:
            return values, first
        kept = np.concatenate(
            [values[a : a + min(n, MOST_SHINGLES)] for a, n in zip(first[:-1].tolist(), counts.tolist(), strict=True)]
        )
        return kept, np.concatenate([[0], np.cumsum(np.minimum(counts, MOST_SHINGLES))]).astype(np.int64)

    def similarities(self, sketches: Sketches, left: Array, right: Array) -> Array:
        values, first = sketches
        jaccard = jaccard_of_pairs(values, first, left, right)
        long = np.diff(first) == MOST_SHINGLES
        for pair in np.flatnonzero(long[left] | long[right]).tolist():
            jaccard[pair] = jaccard_of_least(
                *(values[first[side] : first[side + 1]] for side in (left[pair], right[pair]))
            )
        return jaccard


def jaccard_of_least(a: Array, b: Array) -> float:
    """From the smallest MOST_SHINGLES of each set (all of one that has fewer): of what lies below the end of both
    samples."""
    end = min([int(s[-1]) for s in (a, b) if len(s) == MOST_SHINGLES])
    a, b = a[a <= end], b[b <= end]
    shared = len(np.intersect1d(a, b, assume_unique=True))
    return shared / (len(a) + len(b) - shared)


def rows_of_bands(uid: pa.ChunkedArray, keys: Array, shingles: Array) -> pa.Table:
    uids, keys = uid.to_numpy()[shingles > 0], keys[shingles > 0]
    sibling = siblings(keys).reshape(-1)
    return pa.table(
        {
            "key": pa.array(keys.reshape(-1)),
            "uid": pa.array(np.repeat(uids, keys.shape[1])),
            "sibling": pa.array(sibling),
        }
    )


def kernel_on(device: str) -> BandHashes:
    """The kernel that computes band hashes on a device. CannotRun if that is `gpu` and this machine lacks what it
    needs."""
    if device == "cpu":
        return band_hashes
    lacking = lacking_for_gpu()
    if lacking is None:
        return band_hashes_on_gpu
    if device == "auto":
        return band_hashes
    raise CannotRun(f"`device: gpu`: {lacking}; `device: cpu` gives the same result")


def lacking_for_gpu() -> str | None:
    try:
        from gristmill.kernels.gpu.transfer import default_device
    except ImportError as error:
        return f"torch and triton are needed, {install('gpu')} ({error})"
    if (
        default_device().type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1"
    ):  # its interpreter runs kernels on the CPU, for tests
        return "torch sees no GPU on this machine"
    return None


def band_hashes_on_gpu(column: TextColumn, **settings: Any) -> tuple[Array, Array]:
    """A batch goes through the GPU in pieces of bounded size (`gristmill.kernels.gpu.transfer`), so what it holds does
    not grow with the documents."""
    import torch

    from gristmill.kernels.gpu import minhash

    try:
        return minhash.band_hashes(column, **settings)
    except torch.OutOfMemoryError as error:
        words = str(error).partition(". ")[0]
        raise CannotRun(
            f"`device: gpu`: the GPU has too little memory ({words}); `device: cpu` gives the same result"
        ) from error


def load_index(flow: Flow, address: str, facts: dict[str, int], named: bool) -> Rows:
    rows, saved_facts = flow.run.load(address, named=named)
    differ = saved_facts and [
        f"{name} {saved_facts.get(name)} and not {value}"
        for name, value in facts.items()
        if saved_facts.get(name) != value
    ]
    if differ:
        raise CannotRun(
            f"{address} was made with other settings ({', '.join(differ)}): its bands and ours would never meet"
        )
    return rows


def as_places(sketch: pa.FixedSizeBinaryArray) -> Array:
    return np.frombuffer(sketch.buffers()[1], np.uint16).reshape(-1, SKETCH)[
        sketch.offset : sketch.offset + len(sketch)
    ]


def those_that_meet(rows: pa.Table) -> pa.Table:
    """Rows whose key another has too, in order of key, sibling and uid."""
    key = rows["key"].to_numpy()
    order = np.argsort(key)
    key = key[order]
    same = key[1:] == key[:-1]
    met = order[np.concatenate([same, [False]]) | np.concatenate([[False], same])]
    rows = rows.take(pa.array(met))
    return rows.take(pa.array(np.lexsort((rows["uid"].to_numpy(), rows["sibling"].to_numpy(), rows["key"].to_numpy()))))
