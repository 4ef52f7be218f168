"""Which texts are about the same: clusters of their vectors, as a signal for `mix`, `order` and `semantic_dedup`."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from gristmill.kernels.base.splitmix import mixed_all
from gristmill.kernels.common.settings import PLACEMENT
from gristmill.kernels.vectors.int8 import nearest
from gristmill.stages.dedup.minhash import lacking_for_gpu
from gristmill.stages.figures import FactList, Report, StageFigures, count_bars
from gristmill.stages.flow import Dataset, Flow, Rows
from gristmill.stages.semantic.learning import (
    CANDIDATES,
    ROOT,
    Learning,
    assigned,
    no_centres,
)
from gristmill.stages.semantic.vectors import vectors_in
from gristmill.stages.stage import CannotRun, Global

A_CLUSTER = 500  # documents for a cluster, where their number is not given
MOST = 65_536
SPARE = 64  # documents to begin with beyond CANDIDATES a centre
LEVELS = 4
SHOWN = 16
SIMILAR = 1 << 20


class SemanticClusters(Global):
    """Put documents into clusters of like vectors by k-means: `cluster` and `cluster_similarity`.

    `cluster` is a number without an order that means nothing outside the run, `cluster_similarity` the cosine with its
    centre. Centres are learned from a sample, chosen by uids, and each document gets the nearest. A cluster of more
    than `largest` documents is cut again, up to 3 times; its number is then not used. A document without a vector has
    none (null).
    """

    embedding: Annotated[str, Field(description="the signal with the vectors: lists of numbers, all of one length")] = (
        "embedding"
    )
    clusters: Annotated[
        int | None, Field(description=f"how many; a {A_CLUSTER}th of the documents unless given", ge=1, le=MOST)
    ] = None
    largest: Annotated[int, Field(description="a cluster of more documents is cut", ge=2)] = 20_000
    rounds: Annotated[int, Field(description="times that centres move", ge=0, le=100)] = 10
    learn_from: Annotated[int, Field(description="documents for each centre that it is learned from", ge=1)] = 256
    seed: Annotated[int, Field(description="of the sample and of the first centres", ge=0)] = 0
    called_after: Annotated[
        str, Field(description="the signals are called so: NAME and NAME_similarity", pattern=r"^[a-z][a-z0-9_]*$")
    ] = "cluster"
    device: Literal["auto", "cpu", "gpu"] = Field(
        default="cpu",
        description="where documents get their cluster, with the same result; auto: on a GPU if there is one",
        json_schema_extra=PLACEMENT,
    )

    signal_types: ClassVar[Mapping[str, pa.DataType]] = {
        "cluster": pa.int32(),
        "cluster_similarity": pa.float32(),
    }
    reads_text: ClassVar[bool] = True
    drops: ClassVar[bool] = False

    @property
    def added(self) -> tuple[str, ...]:
        return (self.called_after, f"{self.called_after}_similarity")

    @property
    def wants(self) -> tuple[str, ...]:
        return (self.embedding,)

    def unreached(self, pdf: bool) -> tuple[str, ...]:
        return ("torch", "triton")  # a GPU gives the same result

    @property
    def gpu(self) -> bool:
        return self.device != "cpu"

    @property
    def learning(self) -> Learning:
        return Learning(self.embedding, self.rounds, self.seed)

    @property
    def round_helpers(self) -> tuple[object, ...]:
        return (self.learning,)

    def run(self, docs: Dataset, flow: Flow) -> Dataset:
        wanted = {ROOT: (self.clusters or min(max(docs.rows // A_CLUSTER, 1), MOST), docs.rows)}
        tree, used, cut = no_centres(), 0, 0
        for level in range(LEVELS):
            table = self.wanted_table(wanted, used)
            used += sum(centres for centres, _ in wanted.values())
            centres = self.learning.centres(docs, flow, tree, table)
            tree = pa.concat_tables([tree, centres]) if len(tree) else centres
            rows = flow.map(self.assign, docs, columns=("uid", self.embedding), by="home", broadcast=tree, gpu=self.gpu)
            sizes = self.sizes(flow, rows)
            wanted = {
                name: (ceil(1.5 * count / self.largest) + 1, count)
                for name, count, _ in sizes
                if count > self.largest and name != ROOT
            }
            if not wanted or level == LEVELS - 1:
                break
            cut += len(wanted)
            flow.release(rows)
        self.tell(flow, sizes, cut, len(wanted), docs.rows)
        return flow.drop(docs, rows)

    def wanted_table(self, wanted: dict[int, tuple[int, int]], used: int) -> pa.Table:
        """What `Learning.centres` is asked for: clusters, into how many each is cut, and how many documents it has."""
        names = sorted(wanted)
        centres = np.array([wanted[name][0] for name in names])
        count = np.array([max(wanted[name][1], 1) for name in names])
        return pa.table(
            {
                "cluster": pa.array(names, pa.int32()),
                "centres": centres.astype(np.int64),
                "first": (used + np.cumsum(centres) - centres).astype(np.int64),
                "share": np.minimum(1, np.maximum(self.learn_from, CANDIDATES) * (centres + 2) / count),
                "tried": np.minimum(1, (CANDIDATES * centres + SPARE) / count),
            }
        )

    def assign(self, docs: pa.Table, tree: pa.Table | None) -> pa.Table:
        """Each document with its cluster, as `Flow.drop` takes rows that only bring signals."""
        vectors, there = vectors_in(docs, self.embedding)
        leaf, cosine = assigned(vectors, no_centres() if tree is None else tree, kernel_on(self.device))
        none = pa.nulls(len(leaf), pa.string())
        return pa.table(
            {
                "uid": docs["uid"].filter(pa.array(there)),
                "reason": none,
                "detail": none,
                self.called_after: leaf.astype(np.int32),
                f"{self.called_after}_similarity": cosine.astype(np.float32),
            }
        )

    def sizes(self, flow: Flow, rows: Rows) -> list[tuple[int, int, int]]:
        """Of each cluster its number, its documents, and the sum of their cosines in millionths."""
        met = flow.reduce(self.tally, rows, by="key")
        found = flow.gather(flow.reduce(self.tally_again, met, by="key"))
        return sorted((row["cluster"], row["documents"], row["similar"]) for row in found.to_pylist())

    def tally(self, rows: pa.Table) -> pa.Table:
        similar = pc.round(pc.multiply(rows[f"{self.called_after}_similarity"].cast(pa.float64()), SIMILAR))
        return tallied(rows[self.called_after], pa.array(np.ones(len(rows), np.int64)), similar.cast(pa.int64()))

    def tally_again(self, rows: pa.Table) -> pa.Table:
        return tallied(rows["cluster"], rows["documents"], rows["similar"])

    def tell(self, flow: Flow, sizes: list[tuple[int, int, int]], cut: int, above: int, documents: int) -> None:
        counts = [count for _, count, _ in sizes]
        inside = sum(counts)
        flow.report(
            "semantic_clusters",
            {
                "clusters": len(counts),
                "documents": inside,
                "without_vector": documents - inside,
                "largest": max(counts, default=0),
                "smallest": min(counts, default=0),
                "median": int(np.median(counts)) if counts else 0,
                "cut": cut,
                "above_largest": above,
                "similarity": sum(similar for *_, similar in sizes) / SIMILAR / max(inside, 1),
                "sizes": histogram(counts),
            },
        )

    @classmethod
    def figures(cls, report: Report) -> StageFigures | None:
        if "semantic_clusters" not in report:
            return None
        facts = report["semantic_clusters"]
        pairs = [
            ("clusters", f"{facts['clusters']:,}"),
            ("documents in them", f"{facts['documents']:,}"),
            ("documents without a vector", f"{facts['without_vector']:,}"),
            (
                "documents of the smallest, median and largest",
                f"{facts['smallest']:,}, {facts['median']:,}, {facts['largest']:,}",
            ),
            ("mean cosine with the centre", f"{facts['similarity']:.3f}"),
            ("clusters that were too large and cut", f"{facts['cut']:,}"),
            ("too large still", f"{facts['above_largest']:,}"),
        ]
        bars = count_bars(
            "Clusters by size",
            "documents",
            [(str(a), int(b)) for a, b in facts["sizes"]],
            facts["clusters"],
            "clusters",
        )
        return StageFigures("Clusters of like texts", [FactList("", pairs), bars])


def tallied(cluster: pa.ChunkedArray, documents: Any, similar: Any) -> pa.Table:
    table = pa.table({"cluster": cluster, "documents": documents, "similar": similar})
    table = table.group_by("cluster").aggregate([("documents", "sum"), ("similar", "sum")])
    table = table.select(["cluster", "documents_sum", "similar_sum"]).rename_columns(
        ["cluster", "documents", "similar"]
    )
    return table.append_column("key", pa.array(mixed_all(table["cluster"].to_numpy().astype(np.int64).view(np.uint64))))


def histogram(counts: list[int]) -> list[list[Any]]:
    """Clusters by size, in powers of two."""
    sizes: dict[int, int] = {}
    for count in counts:
        sizes[count.bit_length()] = sizes.get(count.bit_length(), 0) + 1
    return [[f"{1 << bits - 1:,} to {(1 << bits) - 1:,}" if bits > 1 else "1", n] for bits, n in sorted(sizes.items())]


def kernel_on(device: str) -> Any:
    if device == "cpu":
        return nearest
    lacking = lacking_for_gpu()
    if lacking is None:
        from gristmill.kernels.gpu import nearest as on_gpu

        return on_gpu.nearest
    if device == "auto":
        return nearest
    raise CannotRun(f"`device: gpu`: {lacking}; `device: cpu` gives the same result")
