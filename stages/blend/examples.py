"""A few documents of each cell, for a report: those of the smallest hashes, so that two runs show the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from gristmill.mixing import draw
from gristmill.stages.blend.groups import group_names
from gristmill.stages.flow import Dataset, Flow

EACH, CHARACTERS = 3, 160
EXAMPLES = 0x6578616D  # added to the seed, so that examples say nothing about the draw


@dataclass(frozen=True)
class CellExamples:
    """Rounds of `mix`. Texts are read only in parts that hold one of the documents."""

    by: tuple[str, ...]
    seed: int

    def gather(self, docs: Dataset, flow: Flow, cells: pa.Table) -> dict[str, list[dict[str, Any]]]:
        """Documents by cell; `cells` has the cell of each group of `by`."""
        rows = flow.map(self.first_of_part, docs, columns=("uid", *self.by), by="key", broadcast=cells)
        chosen = flow.reduce(self.first_of_cell, rows, by="home")
        columns = ("uid", "url", "text")
        shown = flow.gather(flow.join(self.with_text, chosen, docs, columns=columns, by="key", uids="uid"))
        examples: dict[str, list[dict[str, Any]]] = {}
        for row in shown.sort_by([("cell", "ascending"), ("hash", "ascending")]).to_pylist() if len(shown) else ():
            example = {"uid": f"{row['uid']:016x}", "url": row["url"], "text": row["text"]}
            examples.setdefault(row["cell"], []).append(example)
        return examples

    def first_of_part(self, docs: pa.Table, cells: pa.Table) -> pa.Table:
        groups = group_names(docs, self.by, "to tell sources apart by")
        cell = cells["cell"].combine_chunks().take(pc.index_in(groups, value_set=cells["group"].combine_chunks()))
        keys = {name: xxhash.xxh3_64_intdigest(name.encode()) for name in cell.unique().to_pylist()}
        rows = {
            "cell": cell,
            "key": pa.array([keys[name] for name in cell.to_pylist()], pa.uint64()),
            "uid": docs["uid"],
            "hash": draw.draw_hashes(docs["uid"].to_numpy(), self.seed + EXAMPLES),
        }
        return first_by_cell(pa.table(rows))

    def first_of_cell(self, rows: pa.Table) -> pa.Table:
        return first_by_cell(rows)

    def with_text(self, rows: pa.Table, docs: pa.Table) -> pa.Table:
        place = pc.index_in(rows["uid"], value_set=docs["uid"].combine_chunks())
        rows, place = rows.filter(pc.is_valid(place)), pc.drop_null(place)
        nothing = pa.nulls(len(rows), pa.string())
        columns = {
            name: docs[name].take(place).cast(pa.string()) if name in docs.column_names else nothing
            for name in ("url", "text")
        }
        return pa.table(
            {
                **{name: rows[name] for name in ("cell", "uid", "hash")},
                "url": columns["url"],
                "text": pc.utf8_slice_codeunits(columns["text"], 0, CHARACTERS),
                "key": rows["hash"],
            }
        )


def first_by_cell(rows: pa.Table) -> pa.Table:
    """Of each cell the documents of the smallest hashes."""
    rows = rows.take(pc.sort_indices(rows, sort_keys=[("cell", "ascending"), ("hash", "ascending")]))
    cell = pc.rank(rows["cell"], tiebreaker="dense").to_numpy() if len(rows) else np.zeros(0, np.int64)
    starts = np.searchsorted(cell, cell)
    return rows.filter(pa.array(np.arange(len(rows)) - starts < EACH))
