"""Medians of the signals of two runs: of all documents that were measured, and of those that each run kept.

Exact up to `SAMPLE` documents; beyond, those of the smallest uids, which are hashes: the same documents in both runs, a fair sample of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.history import legs_of
from pipeline.inspect import Folder, Run
from stages.documents import BASE, PAGE

SAMPLE = 100_000
TOP = 1 << 64
BATCH = 1 << 16


@dataclass(frozen=True)
class Medians:
    """Of one signal in one run."""

    measured: float
    kept: float | None  # none of its documents was kept
    documents: int


@dataclass(frozen=True)
class Signal:
    """A signal in both runs; null where a run does not measure it."""

    name: str
    a: Medians | None
    b: Medians | None

    @property
    def same(self) -> bool:
        return self.a is not None and self.b is not None and (self.a.measured, self.a.kept) == (self.b.measured, self.b.kept)


def sampled_below(documents: int) -> int:
    """uids below it are about as many as the sample takes."""
    return TOP if documents <= SAMPLE else TOP * SAMPLE // documents


def signals(folders: tuple[Folder, Folder], runs: tuple[Run, Run], kept: tuple[Any, Any], limit: int) -> list[Signal]:
    found = [medians(folder, run, its, limit) for folder, run, its in zip(folders, runs, kept, strict=True)]
    return [Signal(name, found[0].get(name), found[1].get(name)) for name in dict.fromkeys([*found[0], *found[1]])]


def medians(folder: Folder, run: Run, kept: npt.NDArray[np.uint64], limit: int) -> dict[str, Medians]:
    """By signal, of each part as the last leg measured it. `kept` are the uids below `limit` that the run kept, in order."""
    found: dict[str, dict[str, tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]]] = {}
    for leg in legs_of(folder, run):
        for part in leg["parts"]:
            for path in (part["files"][name] for name in ("documents", "signals") if name in part["files"]):
                if folder.has(path):
                    for name, values, stays in measured(folder, path, kept, limit):
                        found.setdefault(name, {})[part["key"]] = (values, stays)
    joined = {name: [np.concatenate(of_parts) for of_parts in zip(*parts.values(), strict=True)] for name, parts in found.items()}
    return {name: its for name, (values, stays) in joined.items() if (its := median_of(values, stays)).documents}


def median_of(values: npt.NDArray[np.float64], stays: npt.NDArray[np.bool_]) -> Medians:
    if not len(values):
        return Medians(0.0, None, 0)
    return Medians(float(np.median(values)), float(np.median(values[stays])) if stays.any() else None, len(values))


def measured(
    folder: Folder, path: str, kept: npt.NDArray[np.uint64], limit: int
) -> Iterator[tuple[str, npt.NDArray[np.float64], npt.NDArray[np.bool_]]]:
    """Signals of one file with their values, and which of those documents were kept."""
    with folder.fs.open(folder.full(path), "rb") as file:
        parquet = pq.ParquetFile(file, pre_buffer=False)
        names = [field.name for field in parquet.schema_arrow if is_signal(field)]
        if not names or "uid" not in parquet.schema_arrow.names:
            return
        pieces: dict[str, list[tuple[Any, Any]]] = {name: [] for name in names}
        for batch in parquet.iter_batches(batch_size=BATCH, columns=["uid", *names]):
            uid = batch.column("uid").to_numpy(zero_copy_only=False)
            rows = np.ones(len(uid), bool) if limit >= TOP else uid < np.uint64(limit)
            stays = among(uid, kept)
            for name in names:
                column = batch.column(name)
                there = rows & pc.is_valid(column).to_numpy(zero_copy_only=False)
                numbers = column.fill_null(0).cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
                pieces[name].append((numbers[there], stays[there]))
        for name, its in pieces.items():
            if its:
                yield name, np.concatenate([values for values, _ in its]), np.concatenate([stays for _, stays in its])


def among(uid: npt.NDArray[np.uint64], kept: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    if not len(kept):
        return np.zeros(len(uid), bool)
    places = np.minimum(np.searchsorted(kept, uid), len(kept) - 1)
    return np.asarray(kept[places] == uid)


def is_signal(field: pa.Field) -> bool:
    """A number measured on the document: no identity or hash (uint64), and not what is kept of earlier versions of the text (`words@c4_lines`)."""
    number = pa.types.is_floating(field.type) or (pa.types.is_integer(field.type) and not pa.types.is_uint64(field.type))
    return number and "@" not in field.name and field.name not in {*BASE.names, *PAGE.names}


def as_plain(signal: Signal) -> Mapping[str, Any]:
    return {"name": signal.name, "a": signal.a and vars(signal.a), "b": signal.b and vars(signal.b)}
