"""No cell of a mix belongs to a few sites: at most a share of its tokens, or so many documents, from each registered
domain (stages/text/sites.py)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from pydantic import Field, model_validator

from gristmill.kernels.base.splitmix import mixed_all
from gristmill.mixing import draw
from gristmill.stages.blend.groups import group_names
from gristmill.stages.figures import FactList, Report, StageFigures, Table
from gristmill.stages.flow import Dataset, Flow
from gristmill.stages.formatting import as_number
from gristmill.stages.stage import CannotRun, Global
from gristmill.stages.text.sites import sites_of

DOMAINS = 0x646F6D61  # added to the seed: which documents stay says nothing about which a mix draws
REASON = "over_domain_cap"


class CapDomains(Global):
    """Drop documents of a domain beyond its cap, in each cell.

    The cap is a share of the cell's tokens as they come, or a number of documents; with both, whichever is reached
    first. Which documents stay is by hash; one of each domain always does. Documents without a domain stay. Put it
    before `mix`, and a share after `tokenize`.
    """

    by: list[str] = Field(default=["source"], description="columns that tell cells apart, as in `mix`")
    share: Annotated[float | None, Field(description="of a cell's tokens, from one domain at most", gt=0, lt=1)] = None
    documents: Annotated[int | None, Field(description="of a cell from one domain at most", ge=1)] = None
    seed: Annotated[int, Field(description="of the choice of documents", ge=0)] = 0

    groups_by: ClassVar[str] = "by"
    expect_drops: ClassVar[float] = 0.5

    @model_validator(mode="after")
    def _caps_something(self) -> Self:
        if self.share is None and self.documents is None:
            raise ValueError("give share or documents: without a cap nothing is dropped")
        return self

    @property
    def wants(self) -> tuple[str, ...]:
        return () if self.share is None else ("tokens",)

    def run(self, docs: Dataset, flow: Flow) -> Dataset:
        rows = flow.map(self.placed, docs, columns=("uid", "url", "tokens", *self.by), by="key")
        sums = flow.gather(flow.combine(self.summed, flow.reduce(self.totals, rows, by="key"), by="key"))
        beside = pa.table({"cell": sums["cell"], "cell_tokens": sums["tokens"]}) if len(sums) else None
        if beside is None:
            return docs
        over = flow.reduce(self.beyond, rows, by="key", broadcast=beside)
        dropped = flow.gather(flow.combine(self.summed, flow.reduce(self.totals, over, by="key"), by="key"))
        flow.report("domain_caps", self.account(sums, dropped))
        return flow.drop(docs, flow.reduce(self.reasons, over))

    def placed(self, docs: pa.Table) -> pa.Table:
        """Documents by cell and domain."""
        if "copies" in docs.column_names:
            raise CannotRun("documents were mixed before: put `cap_domains` before `mix`")
        cell = group_names(docs, self.by, "to tell cells apart by")
        hashes = {name: xxhash.xxh3_64_intdigest(name.encode()) for name in cell.unique().to_pylist()}
        uids = docs["uid"].to_numpy()
        site = sites_of(docs["url"])
        has_tokens = "tokens" in docs.column_names  # a number of documents needs none
        of_cell = np.array([hashes[name] for name in cell.to_pylist()], np.uint64)
        rows = {
            "cell": cell,
            "site": site,
            "uid": uids,
            "order": draw.draw_hashes(uids, self.seed + DOMAINS),
            "tokens": docs["tokens"].to_numpy().astype(np.int64) if has_tokens else np.zeros(len(docs), np.int64),
            "documents": np.ones(len(docs), np.int64),
            "key": mixed_all(of_cell ^ mixed_all(np.where(site == 0, uids, site))),
        }
        return pa.table(rows)

    def totals(self, rows: pa.Table) -> pa.Table:
        return self.summed([rows])

    def summed(self, tables: list[pa.Table]) -> pa.Table:
        columns = ["cell", "tokens", "documents"]
        rows = pa.concat_tables([table.select(columns) for table in tables])
        rows = (
            rows.group_by("cell")
            .aggregate([("tokens", "sum"), ("documents", "sum")])
            .select(["cell", "tokens_sum", "documents_sum"])
        )
        return rows.rename_columns(columns).append_column("key", pa.array(np.zeros(len(rows), np.uint64)))

    def beyond(self, rows: pa.Table, totals: pa.Table) -> pa.Table:
        """Documents beyond the cap of their domain. All of a cell and a domain are here."""
        rows = rows.filter(pc.not_equal(rows["site"], pa.scalar(0, pa.uint64())))
        keys = [(name, "ascending") for name in ("cell", "site", "order", "uid")]
        rows = rows.take(pc.sort_indices(rows, sort_keys=keys)).combine_chunks()
        cell = pc.index_in(rows["cell"], value_set=totals["cell"].combine_chunks()).to_numpy()
        site = rows["site"].to_numpy()
        first = np.flatnonzero(np.append(True, (cell[1:] != cell[:-1]) | (site[1:] != site[:-1]))[: len(rows)])
        run = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(rows))))
        place = np.arange(len(rows)) - first[run] if len(rows) else np.zeros(0, np.int64)
        tokens = rows["tokens"].to_numpy()
        upto = np.cumsum(tokens)
        upto = upto - (upto - tokens)[first][run] if len(rows) else upto
        gone = np.zeros(len(rows), np.bool_)
        if self.documents is not None:
            gone |= place >= self.documents
        if self.share is not None:
            gone |= upto > self.share * totals["cell_tokens"].to_numpy()[cell]
        gone &= place > 0
        return rows.filter(pa.array(gone)).select(["home", "uid", "cell", "tokens", "documents", "key"])

    def reasons(self, rows: pa.Table) -> pa.Table:
        reason = pa.array([REASON] * len(rows), pa.string())
        return pa.table({"home": rows["home"], "uid": rows["uid"], "reason": reason, "detail": rows["cell"]})

    def account(self, sums: pa.Table, dropped: pa.Table) -> list[dict[str, int | str]]:
        """Of each cell: what came, and what went."""
        gone = {row["cell"]: row for row in dropped.to_pylist()}
        nothing = {"tokens": 0, "documents": 0}
        return [
            {
                "cell": row["cell"],
                **{name: row[name] for name in nothing},
                **{f"dropped_{name}": gone.get(row["cell"], nothing)[name] for name in nothing},
            }
            for row in sums.sort_by("cell").to_pylist()
        ]

    @classmethod
    def figures(cls, report: Report) -> StageFigures | None:
        if "domain_caps" not in report:
            return None
        cells = sorted(report["domain_caps"], key=lambda c: (-c["dropped_tokens"], -c["dropped_documents"], c["cell"]))
        counted = ("documents", "tokens") if any(cell["tokens"] for cell in cells) else ("documents",)
        names = [name for each in counted for name in (each, f"dropped_{each}")]
        lost = [cell for cell in cells if cell["dropped_documents"]]
        rows = [(str(cell["cell"]), *(as_number(cell[name]) for name in names)) for cell in lost]
        head = ("cell", "documents", "dropped", "tokens", "dropped tokens")[: 1 + len(names)]
        went = FactList(
            "",
            [("cells", as_number(len(cells)))]
            + [(f"{name} dropped", as_number(sum(c[f"dropped_{name}"] for c in cells))) for name in counted],
        )
        table = [Table.of("What went of cells that lost something", head, rows).first()] if rows else []
        return StageFigures("Caps by domain", [went, *table])
