"""Medians of the signals of two runs: of all documents that were measured, and of those that each run kept.

Measured are the documents that came to the leg which measured the signal, also those that its rules and later stages
dropped: later legs hold copies of signals, of what is left. Exact up to `SAMPLE` documents; beyond, those of the
smallest uids, which are hashes: the same documents in both runs, a fair sample of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gristmill.pipeline.formatting import as_short
from gristmill.pipeline.look.legs import legs_of
from gristmill.pipeline.look.records import LegManifest, ReadRunRecord
from gristmill.pipeline.look.run_folder import Folder, RecordedRun
from gristmill.pipeline.store.parts import TOP
from gristmill.stages.documents import BASE, PAGE

SAMPLE = 100_000
BATCH = 1 << 16

Values = tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]  # of a signal, and which of those documents were kept


@dataclass(frozen=True)
class Medians:
    """Of one signal in one run."""

    measured: float
    kept: float | None  # none of its documents was kept
    documents: int  # that were measured
    documents_kept: int


@dataclass(frozen=True)
class SignalMedians:
    """A signal in both runs; null where a run does not measure it."""

    name: str
    a: Medians | None
    b: Medians | None

    @property
    def same(self) -> bool:
        """To the digits that are shown."""
        return self.a is not None and self.b is not None and digits(self.a) == digits(self.b)


def digits(medians: Medians) -> tuple[str, str]:
    return as_median(medians.measured), as_median(medians.kept)


def as_median(value: float | None) -> str:
    return "–" if value is None else as_short(value).replace("-", "−")


def sampled_below(documents: int) -> int:
    """uids below it are about as many as the sample takes."""
    return TOP if documents <= SAMPLE else TOP * SAMPLE // documents


def signals(
    folders: tuple[Folder, Folder],
    runs: tuple[RecordedRun, RecordedRun],
    records: tuple[ReadRunRecord, ReadRunRecord],
    kept: tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]],
    limit: int,
) -> list[SignalMedians]:
    """`records` are both run.json; `kept` the uids below `limit` that each run kept, in order."""
    of_runs = [medians(*each, limit) for each in zip(folders, runs, records, kept, strict=True)]
    return [
        SignalMedians(name, of_runs[0].get(name), of_runs[1].get(name))
        for name in dict.fromkeys([*of_runs[0], *of_runs[1]])
    ]


def medians(
    folder: Folder, run: RecordedRun, record: ReadRunRecord, kept: npt.NDArray[np.uint64], limit: int
) -> dict[str, Medians]:
    """By signal: of each source, as the last leg that measures it left it, or where none does, as it was read."""
    adds = {str(entry["name"]): set(entry.get("adds") or []) for entry in record.get("stages") or []}
    by_signal: dict[str, dict[str, list[Values]]] = {}
    for leg in legs_of(folder, run):
        added = {name for stage in leg["stages"] for name in adds.get(stage, ())}
        for name, by_source in values_of(folder, leg, kept, limit).items():
            of_sources = by_signal.setdefault(name, {})
            of_sources |= {
                source: values for source, values in by_source.items() if name in added or source not in of_sources
            }
    return {
        name: of_signal
        for name, by_source in by_signal.items()
        if (
            of_signal := median_of([values_of_part for each in by_source.values() for values_of_part in each])
        ).documents
    }


def values_of(
    folder: Folder, leg: LegManifest, kept: npt.NDArray[np.uint64], limit: int
) -> dict[str, dict[str, list[Values]]]:
    """What the files of a leg hold of each signal, by source."""
    by_signal: dict[str, dict[str, list[Values]]] = {}
    for part in leg["parts"]:
        for path in (part["files"][name] for name in ("documents", "signals") if name in part["files"]):
            if folder.has(path):
                for name, values in measured(folder, path, kept, limit):
                    by_signal.setdefault(name, {}).setdefault(str(part["source"]), []).append(values)
    return by_signal


def median_of(parts: list[Values]) -> Medians:
    values, stays = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    if not len(values):
        return Medians(0.0, None, 0, 0)
    return Medians(
        float(np.median(values)),
        float(np.median(values[stays])) if stays.any() else None,
        len(values),
        int(stays.sum()),
    )


def measured(folder: Folder, path: str, kept: npt.NDArray[np.uint64], limit: int) -> Iterator[tuple[str, Values]]:
    """Signals of one file with their values, and which of those documents were kept."""
    with folder.fs.open(folder.full(path), "rb") as file:
        parquet = pq.ParquetFile(file, pre_buffer=False)
        names = [field.name for field in parquet.schema_arrow if is_signal(field)]
        if not names or "uid" not in parquet.schema_arrow.names:
            return
        pieces: dict[str, list[Values]] = {name: [] for name in names}
        for batch in parquet.iter_batches(batch_size=BATCH, columns=["uid", *names]):
            uid = batch.column("uid").to_numpy(zero_copy_only=False)
            rows = np.ones(len(uid), bool) if limit >= TOP else uid < np.uint64(limit)
            stays = among(uid, kept)
            for name in names:
                column = batch.column(name)
                there = rows & pc.is_valid(column).to_numpy(zero_copy_only=False)
                numbers = column.fill_null(0).cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
                pieces[name].append((numbers[there], stays[there]))
        for name, of_signal in pieces.items():
            if of_signal:
                yield (
                    name,
                    (
                        np.concatenate([values for values, _ in of_signal]),
                        np.concatenate([stays for _, stays in of_signal]),
                    ),
                )


def among(uid: npt.NDArray[np.uint64], kept: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    if not len(kept):
        return np.zeros(len(uid), bool)
    places = np.minimum(np.searchsorted(kept, uid), len(kept) - 1)
    return np.asarray(kept[places] == uid)


def is_signal(field: pa.Field) -> bool:
    """A number measured on the document: no identity or hash (uint64), and not what is kept of earlier versions of the
    text (`words@c4_lines`)."""
    number = pa.types.is_floating(field.type) or (
        pa.types.is_integer(field.type) and not pa.types.is_uint64(field.type)
    )
    return number and "@" not in field.name and field.name not in {*BASE.names, *PAGE.names}


def as_plain(signal: SignalMedians) -> Mapping[str, object]:
    return {"name": signal.name, "a": signal.a and vars(signal.a), "b": signal.b and vars(signal.b)}
