"""Documents with the same text: xxh3-128 of the normalised text, one survivor of each cluster by a stated policy.

The 128 bits are trusted without a look at the texts: among 10**11 documents the chance of a single false match is below
2e-17.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
import pyarrow as pa
import xxhash
from pydantic import Field

from gristmill.kernels.repair.normal_form import in_normal_form
from gristmill.stages.dedup.policy import PREFER, Preference, SurvivorPolicy
from gristmill.stages.dedup.survivors import members
from gristmill.stages.flow import Dataset, Flow

HALF = (1 << 64) - 1


class ExactDedup(SurvivorPolicy):
    """Keep one of all documents that have the same text.

    Which one: by `prefer`, in its order, and of those still equal the one with the smallest uid; the order of documents
    never matters. Documents without text (null or only white space) are no duplicates of each other and pass. All
    members of a cluster of two or more, the survivor too, get `exact_cluster_size`; other documents have null there.
    """

    normalise: Annotated[
        bool, Field(description="compare in Unicode NFC, caseless, white space collapsed; else byte for byte")
    ] = True
    prefer: list[Preference] = Field(default=["source", "earliest"], description=PREFER)

    cluster_size: ClassVar[str] = "exact_cluster_size"
    expect_drops: ClassVar[float] = 0.9

    def run(self, docs: Dataset, flow: Flow) -> Dataset:
        keys = flow.map(self.sign, docs, columns=self.read, by="key")
        duplicates = self.report_clusters(flow.exchange(self.duplicates, keys), flow)
        return flow.drop(docs, duplicates)

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
        rows = {"key": pa.array(high), "low": pa.array(low), "uid": docs["uid"], **self.policy_columns(docs)}
        return pa.table(rows).filter(pa.array(with_text))

    def duplicates(self, rows: pa.Table) -> pa.Table:
        """Of rows whose like is all here: the members of clusters, the survivor without a reason, the others with
        one."""
        return members(rows, self.survivor_sort_keys(), "exact_duplicate", "same text as", self.cluster_size)


def normalised(text: str) -> str:
    """Text as far as it matters for being the same. Folding case can undo NFC, so NFC comes again after it."""
    if text.isascii():
        return " ".join(text.lower().split())
    folded = in_normal_form(in_normal_form(text, "NFC").casefold(), "NFC")
    return " ".join(folded.split())
