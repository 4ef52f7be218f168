"""Which of several like documents stays: a policy that a recipe states, with the uid where it leaves a tie."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from gristmill.kernels.common.settings import nearest
from gristmill.stages.blend.groups import numbers_of
from gristmill.stages.checks import Complaint, RecipeContext
from gristmill.stages.dedup.dates import moments
from gristmill.stages.dedup.figures import duplicate_figures
from gristmill.stages.figures import Report, StageFigures
from gristmill.stages.flow import Flow, Rows
from gristmill.stages.stage import Global

PREFER = (
    "who stays: of the source named first in `sources`, of most characters, of the earliest date (none, or one "
    "that cannot be read, is last), of the highest signal `best`; in the order given, then the smallest uid"
)

Preference = Literal["source", "longest", "earliest", "best"]
PolicyColumns = dict[str, pa.Array | pa.ChunkedArray]


class SurvivorPolicy(Global):
    """A stage that keeps one of many. `policy_columns()` are what the policy looks at, `survivor_sort_keys()` sort by
    them, the survivor first; nulls are last. A new preference is a name in `Preference`, words in `PREFER`, an entry in
    both, and in `columns` or `wants` the column of documents that it looks at."""

    prefer: list[Preference] = Field(default=["source", "longest", "earliest"], description=PREFER)
    sources: list[str] = Field(
        default=[], description="sources in order of preference; those not named come after, all equal"
    )
    best: Annotated[
        str | None,
        Field(description="a signal; the document where it is highest stays, if `prefer` says so (none is last)"),
    ] = None

    columns: ClassVar[tuple[str, ...]] = ("uid", "source", "date", "text")
    cluster_size: ClassVar[str]  # the signal with the number of documents of a cluster

    @model_validator(mode="after")
    def _policy_is_sound(self) -> Self:
        if len(set(self.prefer)) < len(self.prefer) or len(set(self.sources)) < len(self.sources):
            raise ValueError("prefer and sources may name each thing once")
        if self.sources and "source" not in self.prefer:
            raise ValueError("sources has no effect unless prefer contains 'source'")
        if (self.best is not None) != ("best" in self.prefer):
            raise ValueError("best names the signal that prefer's 'best' looks at: give both or neither")
        return self

    @property
    def wants(self) -> tuple[str, ...]:
        return (self.best,) if self.best else ()

    @property
    def read(self) -> tuple[str, ...]:
        """The columns of documents that the stage needs."""
        return tuple(dict.fromkeys((*self.columns, *self.wants)))

    def check_recipe(self, context: RecipeContext) -> list[Complaint]:
        """A source that there is not would be preferred in vain."""
        complaints: list[Complaint] = []
        for name in self.sources:
            if name not in context.sources:
                near = nearest(name, context.sources)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(context.sources)}"
                complaints.append(Complaint(f"{name} is no source; {hint}", ("sources",)))
        return complaints

    @classmethod
    def figures(cls, report: Report) -> StageFigures | None:
        if "clusters" not in report:
            return None
        return StageFigures("Clusters of duplicates", duplicate_figures(report))

    def policy_columns(self, docs: pa.Table) -> PolicyColumns:
        columns: PolicyColumns = {}
        if "source" in self.prefer:
            columns["rank"] = self.ranks(docs["source"])
        if "longest" in self.prefer:
            columns["length"] = pc.utf8_length(plain(docs["text"])).cast(pa.int64())
        if "earliest" in self.prefer:
            columns["date"] = moments(plain(docs["date"]))
        if self.best:
            columns["best"] = numbers_of(docs, self.best)
        return columns

    def ranks(self, source: pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
        """The places of documents' sources among `sources`."""
        if not self.sources:
            return pa.array(np.zeros(len(source), np.int32))
        rank = pc.index_in(source.cast(pa.string()), value_set=pa.array(self.sources, pa.string()))
        return pc.fill_null(rank, len(self.sources))

    def report_clusters(self, duplicates: Rows, flow: Flow) -> Rows:
        """How many clusters of which size there are, for the report."""
        sizes: Counter[int] = Counter()
        for row in flow.gather(flow.reduce(self.tally, duplicates, by="key")).to_pylist():
            sizes[row["size"]] += row["documents"]
        flow.report("clusters", [[size, documents // size] for size, documents in sorted(sizes.items())])
        return duplicates

    def tally(self, duplicates: pa.Table) -> pa.Table:
        sizes = pc.value_counts(duplicates[self.cluster_size].combine_chunks())
        rows = {"size": sizes.field("values").cast(pa.int64()), "documents": sizes.field("counts").cast(pa.int64())}
        return pa.table({"key": pa.array(np.zeros(len(sizes), np.uint64)), **rows})

    def survivor_sort_keys(self, prefix: str = "") -> list[tuple[str, str]]:
        """Sort keys over the columns of `policy_columns` and `uid`; pyarrow puts nulls last unless told otherwise."""
        keys = {
            "source": ("rank", "ascending"),
            "longest": ("length", "descending"),
            "earliest": ("date", "ascending"),
            "best": ("best", "descending"),
        }
        return [(prefix + keys[name][0], keys[name][1]) for name in self.prefer] + [(prefix + "uid", "ascending")]


def plain(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Views as strings, of which pyarrow has more functions."""
    return texts.cast(pa.large_string()) if pa.types.is_string_view(texts.type) else texts
