"""A few rejects for each reason, for reports: the first by uid in the first files, so that two runs show the same."""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq

from pipeline.store import Store

FILES = 32
EACH = 5
CHARACTERS = 600


def samples_of(store: Store, stage: str) -> dict[str, list[dict[str, Any]]]:
    """Reason -> rejected documents, with the beginning of their texts."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(p for p in store.files(f"stages/{stage}/rejects") if p.endswith(".parquet"))[:FILES]:
        with store.open(path) as file:
            table = pq.ParquetFile(file)
            for group in range(min(2, table.num_row_groups)):
                reasons = table.read_row_group(group, columns=["reason"]).column("reason").to_pylist()
                wanted = []
                for row, reason in enumerate(reasons):
                    if len(found.get(reason, [])) < EACH:
                        found.setdefault(reason, []).append({})
                        wanted.append(row)
                if not wanted:
                    continue
                taken = table.read_row_group(group).take(wanted).to_pylist()
                for row in taken:
                    place = next(i for i, sample in enumerate(found[row["reason"]]) if not sample)
                    found[row["reason"]][place] = {
                        "uid": None if row["uid"] is None else f"{row['uid']:016x}",
                        "url": row["url"],
                        "source": row["source"],
                        "detail": row["detail"],
                        "text": (row["text"] or "")[:CHARACTERS],
                    }
    return dict(sorted(found.items()))
