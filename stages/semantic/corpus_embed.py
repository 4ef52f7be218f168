"""A vector for each text without any model: a projection of its TF-IDF that is fitted to a sample of the documents
(`gristmill.kernels.vectors.corpus`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.base.splitmix import mixed_all, mixed_plain
from gristmill.kernels.base.types import Array, Hashes
from gristmill.kernels.language.hashed_terms import Terms
from gristmill.kernels.vectors.corpus import TermTable, fit_terms, project, terms_of
from gristmill.kernels.vectors.int8 import WIDEST
from gristmill.stages.figures import FactList, Report, StageFigures
from gristmill.stages.flow import Dataset, Flow
from gristmill.stages.semantic.vectors import as_bytes, from_bytes, vector_column
from gristmill.stages.stage import Global

SCALE = 256.0  # of rows in half precision, whose numbers are small


class CorpusEmbed(Global):
    """Give each text a vector that is fitted to the documents themselves: `embedding`, a list of 8-bit numbers.

    Words that stand in the same documents point the same way (latent semantic analysis). It needs no model and no GPU,
    and knows only what the sample shows: a translation is near only where texts mix the languages. A text without a
    word of the sample has none (null).
    """

    width: Annotated[int, Field(description="numbers of a vector", ge=2, le=WIDEST)] = 256
    sample: Annotated[
        int, Field(description="about so many documents are fitted to, chosen by their uids", ge=2, le=1_000_000)
    ] = 20_000
    seed: Annotated[int, Field(description="of the sample and of the first projection", ge=0)] = 0

    columns: ClassVar[tuple[str, ...]] = ("uid", "text")
    adds: ClassVar[tuple[str, ...]] = ("embedding",)
    reads_text: ClassVar[bool] = True
    drops: ClassVar[bool] = False

    @property
    def added_types(self) -> dict[str, pa.DataType]:
        return {"embedding": pa.list_(pa.int8(), self.width)}

    def run(self, docs: Dataset, flow: Flow) -> Dataset:
        share = min(1.0, self.sample / max(docs.rows, 1))
        wanted = pa.table({"share": [share]})
        sampled = flow.map(self.sampled, docs, columns=self.columns, by="key", fan=share, broadcast=wanted)
        fitted = flow.scan(self.fit, sampled, by="key")
        flow.report("corpus_embed", {"documents": sampled.count, "terms": fitted.count, "width": self.width})
        flow.release(sampled)
        return flow.mark(self.embed, docs, columns=self.columns, broadcast=fitted)

    @classmethod
    def figures(cls, report: Report) -> StageFigures | None:
        if "corpus_embed" not in report:
            return None
        facts = report["corpus_embed"]
        pairs = [
            ("documents of the sample", f"{facts['documents']:,}"),
            ("words with a vector", f"{facts['terms']:,}"),
            ("numbers of a vector", f"{facts['width']:,}"),
        ]
        return StageFigures("Embedding", [FactList("", pairs)])

    def sampled(self, docs: pa.Table, wanted: pa.Table) -> pa.Table:
        key = keys_of(docs["uid"].to_numpy(), self.seed)
        docs = docs.filter(pa.array(below(key, wanted["share"][0].as_py())))
        terms = terms_of(text_column(docs["text"]))
        first = pa.array(terms.first)
        return pa.table(
            {
                "key": keys_of(docs["uid"].to_numpy(), self.seed),
                "uid": docs["uid"],
                "numbers": pa.LargeListArray.from_arrays(first, pa.array(terms.numbers)),
                "values": pa.LargeListArray.from_arrays(first, pa.array(terms.values)),
            }
        )

    def fit(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        rows = pa.concat_tables(list(tables)).sort_by("uid").combine_chunks()
        numbers, values = (rows[name].combine_chunks() for name in ("numbers", "values"))
        first = np.concatenate([[0], np.cumsum(numbers.value_lengths().to_numpy())]).astype(np.int64)
        terms = Terms(numbers.flatten().to_numpy(), values.flatten().to_numpy(), first)
        table = fit_terms(terms, self.width, self.seed)
        yield pa.table(
            {
                "key": mixed_all(table.numbers.astype(np.uint64)),
                "number": pa.array(table.numbers),
                "row": as_bytes((table.rows_FW * SCALE).astype(np.float16)),
            }
        )

    def embed(self, docs: pa.Table, fitted: pa.Table | None) -> pa.Table:
        none = pa.nulls(len(docs), pa.string())
        return pa.table(
            {"uid": docs["uid"], "reason": none, "detail": none, "embedding": vector_column(self.vectors(docs, fitted))}
        )

    def vectors(self, docs: pa.Table, fitted: pa.Table | None) -> Array:
        if fitted is None or not len(fitted):
            return np.zeros((len(docs), self.width), np.float32)
        fitted = fitted.sort_by("number")
        table = TermTable(fitted["number"].to_numpy(), from_bytes(fitted["row"], np.float16).astype(np.float32))
        return project(terms_of(text_column(docs["text"])), table)


def keys_of(uid: Hashes, seed: int) -> Hashes:
    """Well-mixed, another for each seed."""
    return mixed_all(uid ^ np.uint64(mixed_plain((seed + 1) % (1 << 64))))


def below(key: Hashes, share: float) -> Array:
    """The keys in the lowest share of all there can be."""
    return np.ones(len(key), bool) if share >= 1 else key < np.uint64(int(share * 2.0**64))
