"""What became of each document in two runs: fates read from Parquet and rejects, piled by uid on disk, and joined pile
by pile.

A document is kept if it reached the end of the run and lies in no rejects. uids are hashes, so their top bits cut both
runs into piles of about a million documents; one pile of each run is in memory at a time, 16 bytes a document, whatever
the size of the runs.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gristmill.pipeline.look.legs import legs_of
from gristmill.pipeline.look.run_folder import Folder, RecordedRun
from gristmill.pipeline.store.parts import TOP
from gristmill.stages.blend.copies import COPIES

PILE = 1 << 20  # documents in a pile
BATCH = 1 << 18  # rows read at once; uids and reasons only
RECORD = np.dtype([("uid", "<u8"), ("fate", "<u4"), ("source", "<u4")])
KEPT, ABSENT = 0, 1  # codes of fates that are no drop
SAMPLES = 4  # documents shown of each way to change sides


@dataclass(frozen=True, order=True)
class Fate:
    """What became of a document: kept, not in this run, or dropped by a stage for a reason."""

    stage: str
    reason: str

    @property
    def kept(self) -> bool:
        return self in (KEPT_FATE, REACHED_FATE)

    @property
    def absent(self) -> bool:
        return self == ABSENT_FATE

    @property
    def gone(self) -> bool:
        return not (self.kept or self.absent)

    def __str__(self) -> str:
        return f"{self.stage}: {self.reason}" if self.gone else self.reason


KEPT_FATE, REACHED_FATE, ABSENT_FATE = Fate("", "kept"), Fate("", "reached the mix"), Fate("", "not in this run")


@dataclass(frozen=True)
class Draw:
    """The mix of a run, with all that comes after it; no stages where it has none."""

    stages: frozenset[str] = frozenset()

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Draw:
        """From run.json: a mix is the stage that leaves `copies`."""
        entries = [entry for entry in found.get("stages") or [] if entry.get("kind") != "read"]
        first = next(
            (place for place, entry in enumerate(entries) if COPIES in (entry.get("adds") or ())), len(entries)
        )
        return cls(frozenset(str(entry["name"]) for entry in entries[first:]))

    def before(self, fate: Fate) -> Fate:
        """What had become of a document when the mix drew."""
        return REACHED_FATE if self.stages and (fate.kept or fate.stage in self.stages) else fate


@dataclass
class Codes:
    """Small numbers for things that repeat."""

    known: dict[Any, int] = field(default_factory=dict)

    def of(self, thing: Any) -> int:
        return self.known.setdefault(thing, len(self.known))

    def things(self) -> list[Any]:
        return list(self.known)


def fate_codes() -> Codes:
    return Codes({KEPT_FATE: KEPT, ABSENT_FATE: ABSENT})


class CannotJoin(Exception):
    """A run whose documents cannot be followed; the message says why."""


@dataclass(frozen=True)
class Files:
    """Where a run's documents lie: those that reached its end (with what was dropped beside them still in), and its
    rejects, by stage."""

    arrived: list[tuple[str, str]]  # source, path
    rejects: list[tuple[str, str]]  # stage, path


def files_of(folder: Folder, run: RecordedRun) -> Files:
    stages = [(stage.name, f"stages/{stage.name}/rejects") for stage in run.stages]
    return Files(
        arrived(folder, run), [(name, f"{path}/{file}") for name, path in stages for file in folder.names(path)]
    )


def arrived(folder: Folder, run: RecordedRun) -> list[tuple[str, str]]:
    """Files that hold every document which reached the last stages, one file for each of their parts; where those were
    cleaned away, what a sink wrote of the same parts."""
    legs = legs_of(folder, run)
    fed = {name for leg in legs for name in leg.get("feeds") or []}
    parts = {(leg["leg"], part["key"]): part for leg in legs for part in leg["parts"]}
    found: list[tuple[str, str]] = []
    for leg in (leg for leg in legs if leg["leg"] not in fed):
        for part in leg["parts"]:
            if not part["rows"]:
                continue
            home = parts.get((part.get("from") or leg["leg"], part["key"]), part)
            beside = [other for other in parts.values() if other["key"] == part["key"]]
            path = next((path for path in candidates(home, beside) if folder.has(path)), None)
            if path is None:
                raise CannotJoin(f"the documents of part {part['key']} are gone (was the run cleaned?)")
            found.append((str(part["source"]), path))
    return found


def candidates(home: Mapping[str, Any], beside: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Files that name the documents of a part: where it lives, else the last sink that wrote it."""
    if "documents" in home["files"]:
        yield home["files"]["documents"]
    for part in (home, *reversed(beside)):
        yield from (path for name, path in sorted(part["files"].items()) if name.startswith("sink/"))


class Piles:
    """Records of one run, cut by the top bits of their uids into files of a temporary folder."""

    def __init__(self, folder: Path, bits: int) -> None:
        self.folder, self.bits = folder, bits
        folder.mkdir()

    def add(self, uid: npt.NDArray[np.uint64], fate: npt.NDArray[np.uint32], source: npt.NDArray[np.uint32]) -> None:
        if not len(uid):
            return
        records = np.empty(len(uid), RECORD)
        records["uid"], records["fate"], records["source"] = uid, fate, source
        pile = (uid >> np.uint64(64 - self.bits)).astype(np.int64) if self.bits else np.zeros(len(uid), np.int64)
        order = np.argsort(pile, kind="stable")
        places, starts = np.unique(pile[order], return_index=True)
        for place, rows in zip(places.tolist(), np.split(order, starts[1:]), strict=True):
            with (self.folder / str(place)).open("ab") as file:
                file.write(records[rows].tobytes())

    def pile(self, place: int) -> npt.NDArray[Any]:
        """Records of one pile by uid, one for each document: being dropped goes before having been there."""
        path = self.folder / str(place)
        records = np.fromfile(path, RECORD) if path.exists() else np.empty(0, RECORD)
        records = records[np.lexsort((-records["fate"].astype(np.int64), records["uid"]))]
        return (
            records[np.flatnonzero(np.diff(records["uid"], prepend=~records["uid"][:1]))] if len(records) else records
        )


def piled(folder: Folder, files: Files, piles: Piles, fates: Codes, sources: Codes, limit: int) -> None:
    """Every document of a run whose uid is below `limit`, into piles."""
    for source, path in files.arrived:
        for batch in batches(folder, path, ["uid"]):
            uid = below(batch.column("uid").to_numpy(zero_copy_only=False), limit)
            piles.add(uid, np.full(len(uid), KEPT, np.uint32), np.full(len(uid), sources.of(source), np.uint32))
    for stage, path in files.rejects:
        for batch in batches(folder, path, ["uid", "source", "reason"]):
            batch = batch.filter(
                pc.is_valid(batch.column("uid"))
            )  # a record that was skipped or damaged never was a document
            uid = batch.column("uid").to_numpy(zero_copy_only=False)
            fate = coded(batch.column("reason"), partial(fate_code, fates, stage))
            home = coded(batch.column("source"), sources.of)
            wanted = uid < np.uint64(limit) if limit < TOP else np.ones(len(uid), bool)
            piles.add(uid[wanted], fate[wanted], home[wanted])


def fate_code(fates: Codes, stage: str, reason: str) -> int:
    return fates.of(Fate(stage, reason))


def batches(folder: Folder, path: str, columns: list[str]) -> Iterator[pa.RecordBatch]:
    with folder.fs.open(folder.full(path), "rb") as file:
        yield from pq.ParquetFile(file, pre_buffer=False).iter_batches(batch_size=BATCH, columns=columns)


def below(uid: npt.NDArray[np.uint64], limit: int) -> npt.NDArray[np.uint64]:
    return uid if limit >= TOP else uid[uid < np.uint64(limit)]


def coded(values: pa.Array, code_of: Callable[[str], int]) -> npt.NDArray[np.uint32]:
    """A small number for each name; a name that is missing is empty."""
    names = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
    codes = [code_of(str(name)) for name in names.dictionary.to_pylist()]
    codes += [code_of("")] if names.null_count else []
    places: npt.NDArray[np.int64] = (
        pc.fill_null(names.indices, len(names.dictionary)).cast(pa.int64()).to_numpy(zero_copy_only=False)
    )
    return np.array(codes, np.uint32)[places]


@dataclass
class Joined:
    """Exact counts of all pairs of fates, by source, and a few documents of each pair that had changed sides before the
    runs drew."""

    counts: Counter[tuple[str, Fate, Fate]] = field(default_factory=Counter)
    samples: dict[tuple[Fate, Fate], list[int]] = field(default_factory=dict)
    kept: tuple[list[npt.NDArray[np.uint64]], list[npt.NDArray[np.uint64]]] = field(default_factory=lambda: ([], []))


def joined(
    folders: tuple[Folder, Folder],
    files: tuple[Files, Files],
    draws: tuple[Draw, Draw],
    expected: int,
    limit: int,
    few: int,
) -> Joined:
    """Both runs, document by document. `expected` is about how many there are; uids below `few` are given back where
    they were kept."""
    bits = max(0, (max(1, expected) - 1) // PILE).bit_length()
    sources, found = Codes(), Joined()
    codes = (fate_codes(), fate_codes())
    with tempfile.TemporaryDirectory(prefix="gristmill-compare-") as temporary:
        piles = tuple(Piles(Path(temporary, name), bits) for name in ("a", "b"))
        for folder, of_run, its, fates in zip(folders, files, piles, codes, strict=True):
            piled(folder, of_run, its, fates, sources, limit)
        names = (codes[0].things(), codes[1].things())
        for place in range(1 << bits):
            a, b = (its.pile(place) for its in piles)
            for kept, records in zip(found.kept, (a, b), strict=True):
                kept.append(below(records["uid"][records["fate"] == KEPT], few))
            add_pile(found, a, b, names, sources.things(), draws)
    return found


def add_pile(
    found: Joined,
    a: npt.NDArray[Any],
    b: npt.NDArray[Any],
    names: tuple[Sequence[Fate], Sequence[Fate]],
    sources: Sequence[str],
    draws: tuple[Draw, Draw],
) -> None:
    """One pile of each run: their documents side by side, counted and sampled. uids come in order, so that the first
    are the smallest."""
    uid = np.union1d(a["uid"], b["uid"])
    fate_a, fate_b = laid(uid, a, "fate", ABSENT), laid(uid, b, "fate", ABSENT)
    source = np.where(fate_a != ABSENT, laid(uid, a, "source", 0), laid(uid, b, "source", 0)).astype(np.int64)
    key = (source * len(names[0]) + fate_a) * len(names[1]) + fate_b
    _, first, back, counts = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    for kind, (at, count) in enumerate(zip(first.tolist(), counts.tolist(), strict=True)):
        last = names[0][fate_a[at]], names[1][fate_b[at]]
        found.counts[sources[source[at]], *last] += count
        pair = draws[0].before(last[0]), draws[1].before(last[1])
        if changed_sides(*pair):
            here = uid[np.flatnonzero(back == kind)[:SAMPLES]].tolist()
            found.samples[pair] = sorted([*found.samples.get(pair, []), *here])[:SAMPLES]


def laid(uid: npt.NDArray[np.uint64], records: npt.NDArray[Any], name: str, absent: int) -> npt.NDArray[np.int64]:
    """A field of a run's records laid along the uids of both."""
    values = np.full(len(uid), absent, np.int64)
    values[np.searchsorted(uid, records["uid"])] = records[name]
    return values


def changed_sides(a: Fate, b: Fate) -> bool:
    return (a.kept and b.gone) or (a.gone and b.kept)


def rows_of(
    folder: Folder, paths: Iterable[str], wanted: set[int], columns: Sequence[str]
) -> dict[int, dict[str, Any]]:
    """Rows of some documents by uid, of the first file that has each: uids are read of every file, the rest where one
    is found."""
    found: dict[int, dict[str, Any]] = {}
    for path in paths:
        left = np.array(sorted(wanted - found.keys()), np.uint64)
        if not len(left):
            break
        with folder.fs.open(folder.full(path), "rb") as file:
            parquet = pq.ParquetFile(file, pre_buffer=False)
            there = [name for name in columns if name in parquet.schema_arrow.names]
            for group in range(parquet.num_row_groups):
                uid = parquet.read_row_group(group, columns=["uid"]).column("uid")
                places = np.flatnonzero(pc.is_in(uid, value_set=pa.array(left)).to_numpy(zero_copy_only=False))
                if len(places):
                    rows = parquet.read_row_group(group, columns=["uid", *there]).take(pa.array(places)).to_pylist()
                    found |= {row["uid"]: row for row in rows if row["uid"] not in found}
    return found
