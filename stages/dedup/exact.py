"""Documents with the same text: 128 bits of the normalised text, one survivor of each cluster by a stated policy.

The 128 bits are trusted without a look at the texts: among 10**11 documents the chance of a single false match is below
2e-17. `kernels/duplicates/same_text.py` says what normalised is. Figures: benchmarks/dedup/exact_dedup.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import add
from typing import Annotated, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from gristmill.kernels.duplicates.same_text import signatures
from gristmill.stages.dedup.policy import PREFER, Preference, SurvivorPolicy
from gristmill.stages.dedup.survivors import RUN, members
from gristmill.stages.flow import Dataset, Flow, Rows
from gristmill.stages.stage import CannotRun

INDEX_FORMAT = 2


class ExactDedup(SurvivorPolicy):
    """Keep one of all documents that have the same text.

    Which one: by `prefer`, in its order, and of those still equal the one with the smallest uid; the order of documents
    never matters. Documents without text (null or only white space) are no duplicates of each other and pass. All
    members of a cluster of two or more, the survivor too, get `exact_cluster_size`; other documents have null there.
    """

    normalise: Annotated[
        bool, Field(description="compare in Unicode normal form, caseless, white space collapsed; else byte for byte")
    ] = True
    prefer: list[Preference] = Field(default=["source", "earliest"], description=PREFER)
    against: list[str] = Field(
        default=[],
        description=(
            "indexes that earlier runs saved, or folders of such: what has the text of a document in them goes. Of the "
            "folder that this run saves into too, those whose names come before its own"
        ),
    )
    save_index: Annotated[
        str | None, Field(description="folder to keep the hashes of what stays in, for `against` of a later run")
    ] = None

    cluster_size: ClassVar[str] = "exact_cluster_size"
    signal_types: ClassVar[Mapping[str, pa.DataType]] = {
        "exact_cluster_size": pa.uint32(),
    }
    expect_drops: ClassVar[float] = 0.9
    takes_views: ClassVar[bool] = True

    def prepare(self) -> None:
        uid, text = pa.array([1, 2], pa.uint64()), ["a text that is there twice"] * 2
        columns = {"uid": uid, "text": text, "source": ["a"] * 2, "date": pa.nulls(2, pa.string())}
        signed = self.sign(pa.table({**columns, **{name: [1.0] * 2 for name in self.wants}}))
        self.duplicates(signed.append_column("home", uid))

    def run(self, docs: Dataset, flow: Flow) -> Dataset:
        keys = flow.map(self.sign, docs, columns=self.read, by="key")
        if self.against:
            saved = reduce(add, [self.saved_keys(flow, address) for address in self.loads])
            found = flow.reduce(self.duplicates_of_all, keys, saved)
        else:
            found = flow.reduce(self.duplicates, keys)
        kept = flow.drop(docs, self.report_clusters(found, flow))
        for address in self.saves:
            saved = flow.map(self.to_save, kept, columns=self.read, by="key")
            flow.run.save(saved, address, self.index_facts, docs=kept)
        return kept

    @property
    def loads(self) -> tuple[str, ...]:
        return tuple(f"{address}/hashes" for address in self.against)

    @property
    def saves(self) -> tuple[str, ...]:
        return () if self.save_index is None else (f"{self.save_index}/hashes",)

    @property
    def index_facts(self) -> dict[str, int]:
        """What an index and a run that uses it have to have in common."""
        return {"format": INDEX_FORMAT, "normalise": int(self.normalise)}

    def saved_keys(self, flow: Flow, address: str) -> Rows:
        rows, facts = flow.run.load(address, named=True)
        if facts and facts != self.index_facts:
            raise CannotRun(f"{address} was made with other settings ({facts} and not {self.index_facts})")
        return rows

    def to_save(self, docs: pa.Table) -> pa.Table:
        return self.sign(docs).select(["key", "low", "uid"])

    def sign(self, docs: pa.Table) -> pa.Table:
        """A row for each document with text: the 128 bits of it in two halves, and what the policy looks at."""
        found = signatures(docs["text"], self.normalise)
        rows = {"key": found.high, "low": found.low, "uid": docs["uid"], **self.policy_columns(docs)}
        return pa.table(rows) if found.with_text.all() else pa.table(rows).filter(pa.array(found.with_text))

    def duplicates(self, rows: pa.Table) -> pa.Table:
        """Of rows whose like is all here: the members of clusters, the survivor without a reason, the others with
        one."""
        return members(rows, self.survivor_sort_keys(), "exact_duplicate", "same text as", self.cluster_size)

    def duplicates_of_all(self, rows: pa.Table | None, saved: pa.Table | None) -> pa.Table:
        """The same where earlier runs kept documents too: these stay. A document that is saved itself stays as well."""
        if rows is None or saved is None:
            return pa.table({}) if rows is None else self.duplicates(rows)
        both = pa.concat_tables([rows, saved.select(["key", "low", "uid", RUN])], promote_options="default")
        both = both.append_column("new", pc.is_valid(both["home"]).cast(pa.uint8()))
        order = [("new", "ascending"), *self.survivor_sort_keys()]
        found = members(both, order, "exact_duplicate", "same text as", self.cluster_size, RUN)
        itself = pc.and_(pc.is_valid(found["reason"]), pc.is_in(found["uid"], value_set=saved["uid"].combine_chunks()))
        for name in ("reason", "detail"):
            column = found[name]
            kept = pc.if_else(itself, pa.scalar(None, column.type), column)
            found = found.set_column(found.column_names.index(name), name, kept)
        return found.filter(pc.is_valid(found["home"]))
