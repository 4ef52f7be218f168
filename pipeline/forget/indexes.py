"""Rows that a run saved for later runs: in its folder, or where its recipe says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.kernels.base.types import Array
from gristmill.pipeline.shuffle.saved_index import read_index, rows_schema
from gristmill.pipeline.store.storage import Store


def saved_by(store: Store, outcomes: Iterable[Mapping[str, Any]]) -> list[str]:
    """Folders of indexes that a run's stages saved elsewhere, by their whole paths."""
    folders = {Path(store.root, folder).resolve() for outcome in outcomes for folder in outcome["saved"]}
    root = Path(store.root).resolve()
    return sorted(str(f) for f in folders if not f.is_relative_to(root) and Path(f, "index.json").exists())


def index_at(store: Store, folder: str) -> Store:
    return Store(folder if folder.startswith("/") else store.at(folder))


def rows_in_index(index: Store, uids: Array) -> int:
    """How many rows of an index are of these documents."""
    facts, count = read_index(index), 0
    for file in facts["files"] if facts else ():
        if "uid" in rows_schema(index, file["path"]).names:
            with index.open(file["path"]) as opened:
                column = pa.ipc.open_file(opened).read_all().column("uid")
            count += int(np.isin(column.to_numpy(), uids).sum())
    return count
