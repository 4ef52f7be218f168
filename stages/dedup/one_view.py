"""Of the views of a page that are left, one (`stages/extract/choices.py` says why a page has several)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator

from gristmill.stages.dedup.survivors import members
from gristmill.stages.extract.choices import View, each_once, other_uids
from gristmill.stages.flow import Dataset, Flow
from gristmill.stages.stage import Global


class OneView(Global):
    """Keep one view of each page of which several are left; `extract: {views: [precise, full]}` makes them.

    Put it after the filters that decide on texts, and before stages that look for duplicates. Documents that are no
    view pass. The one that stays gets `views_left`, the number of them that came so far.
    """

    prefer: list[View] = Field(
        default=["full", "precise"], description="which view stays, the best first", min_length=2
    )

    columns: ClassVar[tuple[str, ...]] = ("uid", "view")
    signal_types: ClassVar[Mapping[str, pa.DataType]] = {
        "views_left": pa.uint32(),
    }
    _once = field_validator("prefer")(each_once)

    @property
    def wants(self) -> tuple[str, ...]:
        return ("view",)

    def run(self, docs: Dataset, flow: Flow) -> Dataset:
        return flow.drop(docs, flow.reduce(self.others, flow.map(self.sign, docs, columns=self.columns, by="key")))

    def sign(self, docs: pa.Table) -> pa.Table:
        """A row for each view: the page's key, and its place in the order of preference."""
        uids = docs["uid"].to_numpy()
        is_precise = pc.fill_null(pc.equal(docs["view"], "precise"), False).to_numpy()
        page = np.where(is_precise, other_uids(uids), uids)  # the uid of the full view
        rows = {
            "key": pa.array(page),
            "low": pa.array(page),
            "uid": docs["uid"],
            "rank": pc.index_in(docs["view"].cast(pa.string()), value_set=pa.array(self.prefer, pa.string())),
        }
        return pa.table(rows).filter(pc.is_valid(docs["view"]))

    def others(self, rows: pa.Table) -> pa.Table:
        order = [("rank", "ascending"), ("uid", "ascending")]
        return members(rows, order, "other_view", "another view of the page of", "views_left")
