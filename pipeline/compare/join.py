"""What became of each document in two runs, joined by uid; and on which side each is.

A document is kept if it reached the end of the run and lies in no rejects. uids are hashes, so their top bits cut both
runs into piles on disk of about a million documents; one pile of each run is in memory at a time, 16 bytes a document,
whatever the size of the runs.

A mix draws at the end, often by chance, so that what it left out says little of the recipe: where a run has one, a
document is on the side on which it came to the mix.
"""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gristmill.kernels.base.types import Array, Hashes, Integers
from gristmill.pipeline.look.overview import Overview, overview
from gristmill.pipeline.look.run_folder import RunFolder, one_of
from gristmill.pipeline.report_data.documents import Row
from gristmill.pipeline.store.partitions import TOP
from gristmill.pipeline.store.run_records import RunRecord
from gristmill.stages.blend.copies import COPIES

PREVIEW = 600  # characters of a document that is shown
WAYS = 24  # ways to change sides of which documents are shown, the most frequent
SHOWN = ("url", "source", "detail", "text")
PILE = 1 << 20  # documents in a pile
BATCH = 1 << 18  # rows read at once; uids and reasons only
RECORD = np.dtype([("uid", "<u8"), ("fate", "<u4"), ("source", "<u4")])
SAMPLES = 4  # documents shown of each way to change sides

Records = Array  # of RECORD
FileOf = tuple[str, str]  # a source or stage, and the path of a file of it


class CannotJoin(Exception):
    """A run whose documents cannot be followed; the message says why."""


class Fate(NamedTuple):
    """What became of a document: kept, not in this run, or dropped by a stage for a reason."""

    stage: str
    reason: str

    @property
    def kept(self) -> bool:
        return self in (KEPT, REACHED_MIX)

    @property
    def gone(self) -> bool:
        return not self.kept and self != ABSENT

    def __str__(self) -> str:
        return f"{self.stage}: {self.reason}" if self.gone else self.reason


KEPT, ABSENT, REACHED_MIX = Fate("", "kept"), Fate("", "not in this run"), Fate("", "reached the mix")
Pair = tuple[Fate, Fate]


@dataclass(frozen=True)
class ComparedRun:
    """One of two runs."""

    letter: str
    folder: RunFolder

    @cached_property
    def overview(self) -> Overview:
        return overview(self.folder)

    @property
    def out(self) -> str:
        return self.folder.out

    @property
    def run(self) -> RunRecord:
        return self.folder.record

    @property
    def sources(self) -> set[str]:
        return {reader.name for reader in self.run.readers}

    @cached_property
    def drawing(self) -> set[str]:
        """The mix of the run with all stages after it; none without a mix, which is the stage that leaves `copies`."""
        stages = [stage for stage in self.run.stages if stage.kind != "read"]
        mixes = [place for place, stage in enumerate(stages) if COPIES in stage.adds]
        return {stage.name for stage in stages[mixes[0] :]} if mixes else set()

    def before_mix(self, fate: Fate) -> Fate:
        """What had become of a document when the mix drew."""
        return REACHED_MIX if self.drawing and (fate.kept or fate.stage in self.drawing) else fate

    @cached_property
    def rejects(self) -> list[FileOf]:
        return [(file.stage, file.path) for file in self.folder.rejects()]

    @cached_property
    def arrived(self) -> list[FileOf]:
        """Files that hold every document which reached the last stages (with what was dropped beside them still in),
        one file for each of their parts; where those were cleaned away, what a sink wrote of the same parts."""
        segments = self.folder.segments
        fed = {name for segment in segments for name in segment.feeds}
        parts = {(segment.segment, part.key): part for segment in segments for part in segment.parts}
        paths = []
        for segment in (segment for segment in segments if segment.segment not in fed):
            for part in (part for part in segment.parts if part.rows):
                home = parts.get((part.owner or segment.segment, part.key), part)
                beside = [other for other in parts.values() if other.key == part.key]
                files = [home.files["documents"]] if "documents" in home.files else []
                files += [path for other in (home, *reversed(beside)) for path in other.sinks]
                path = next((path for path in files if self.folder.has(path)), None)
                if path is None:
                    raise CannotJoin(f"the documents of part {part.key} are gone (was the run cleaned?)")
                paths.append((part.source, path))
        return paths

    def batches(self, path: str, columns: list[str]) -> Iterator[pa.RecordBatch]:
        with self.folder.open(path) as file:
            yield from pq.ParquetFile(file, pre_buffer=False).iter_batches(batch_size=BATCH, columns=columns)


class Piles:
    """Records of one run, cut by the top bits of their uids into files of a temporary folder."""

    def __init__(self, folder: Path, bits: int) -> None:
        self.folder, self.bits = folder, bits
        folder.mkdir()

    def add(self, records: Records) -> None:
        if not len(records):
            return
        uid = records["uid"]
        pile = (uid >> np.uint64(64 - self.bits)).astype(np.int64) if self.bits else np.zeros(len(uid), np.int64)
        order = np.argsort(pile, kind="stable")
        places, starts = np.unique(pile[order], return_index=True)
        for place, rows in zip(places.tolist(), np.split(order, starts[1:]), strict=True):
            with (self.folder / str(place)).open("ab") as file:
                file.write(records[rows].tobytes())

    def pile(self, place: int) -> Records:
        """Records of one pile by uid, one for each document: being dropped goes before having been there."""
        path = self.folder / str(place)
        records = np.fromfile(path, RECORD) if path.exists() else np.empty(0, RECORD)
        records = records[np.lexsort((-records["fate"].astype(np.int64), records["uid"]))]
        _, first = np.unique(records["uid"], return_index=True)
        return records[first]


def records_of(run: ComparedRun, fates: dict[Fate, int], sources: dict[str, int], limit: int) -> Iterator[Records]:
    """Every document of a run whose uid is below `limit`; those that were dropped may come twice."""
    for source, path in run.arrived:
        for batch in run.batches(path, ["uid"]):
            yield records_below(limit, batch, fates[run.before_mix(KEPT)], sources[source])
    for stage, path in run.rejects:
        for batch in run.batches(path, ["uid", "source", "reason"]):
            batch = batch.filter(pc.is_valid(batch.column("uid")))  # a record that was skipped never was a document
            reasons, of_row = encoded(batch.column("reason"))
            fate = np.array([fates[run.before_mix(Fate(stage, reason))] for reason in reasons], int)[of_row]
            names, of_row = encoded(batch.column("source"))
            yield records_below(limit, batch, fate, np.array([sources[name] for name in names], int)[of_row])


def records_below(limit: int, batch: pa.RecordBatch, fate: object, source: object) -> Records:
    records = np.empty(len(batch), RECORD)
    records["uid"] = batch.column("uid").to_numpy(zero_copy_only=False)
    records["fate"], records["source"] = fate, source
    return records if limit >= TOP else records[records["uid"] < np.uint64(limit)]


def encoded(values: pa.Array) -> tuple[list[str], Array]:
    """Names that repeat, each once, and the place of each value among them; a name that is missing is empty."""
    names = pc.fill_null(values.cast(pa.string()), "").dictionary_encode()
    return names.dictionary.to_pylist(), names.indices.to_numpy(zero_copy_only=False)


@dataclass
class Joined:
    """Exact counts of all pairs of fates, by source, and a few documents of each pair."""

    counts: Counter[tuple[str, Fate, Fate]] = field(default_factory=Counter)
    samples: dict[Pair, list[int]] = field(default_factory=dict)

    def add(self, a: Records, b: Records, fates: Sequence[Fate], sources: Sequence[str]) -> None:
        """One pile of each run, document by document. uids come in order, so that the first are the smallest."""
        uid = np.union1d(a["uid"], b["uid"])
        absent = fates.index(ABSENT)
        fate_a, fate_b = align(uid, a, "fate", absent), align(uid, b, "fate", absent)
        source = np.where(fate_a != absent, align(uid, a, "source", 0), align(uid, b, "source", 0))
        key = (source * len(fates) + fate_a) * len(fates) + fate_b
        _, first, back, counts = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
        for kind, (at, count) in enumerate(zip(first.tolist(), counts.tolist(), strict=True)):
            pair = fates[fate_a[at]], fates[fate_b[at]]
            self.counts[sources[source[at]], *pair] += count
            self.samples[pair] = smallest([*self.samples.get(pair, []), *uid[back == kind][:SAMPLES].tolist()])


def smallest(uids: Iterable[int]) -> list[int]:
    return sorted(uids)[:SAMPLES]


def joined(runs: Sequence[ComparedRun], limit: int) -> Joined:
    """Both runs, of documents whose uids are below `limit`."""
    documents = sum(run.overview.totals.documents for run in runs)
    bits = max(0, (max(1, documents) - 1) // PILE).bit_length()
    # Small numbers for what repeats, in the order in which it came.
    fates: dict[Fate, int] = defaultdict(lambda: len(fates), {KEPT: 0, ABSENT: 1, REACHED_MIX: 2})
    sources: dict[str, int] = defaultdict(lambda: len(sources))
    found = Joined()
    with tempfile.TemporaryDirectory(prefix="gristmill-compare-") as temporary:
        piles = [Piles(Path(temporary, run.letter), bits) for run in runs]
        for run, of_run in zip(runs, piles, strict=True):
            for records in records_of(run, fates, sources, limit):
                of_run.add(records)
        for place in range(1 << bits):
            found.add(piles[0].pile(place), piles[1].pile(place), list(fates), list(sources))
    return found


def align(uid: Hashes, records: Records, name: str, absent: int) -> Integers:
    """A field of a run's records along the uids of both."""
    values = np.full(len(uid), absent, np.int64)
    values[np.searchsorted(uid, records["uid"])] = records[name]
    return values


# --- sides ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sides:
    """Documents of one source (of all: null), by what both runs did with them."""

    source: str | None
    both_kept: int = 0
    only_a: int = 0  # kept by A, dropped by B
    only_b: int = 0
    both_gone: int = 0
    missing_b: int = 0  # read by A alone
    missing_a: int = 0

    @property
    def changed(self) -> int:
        return self.only_a + self.only_b


@dataclass(frozen=True)
class MovedDocument:
    """A document that changed sides; `detail` is what the run that dropped it noted."""

    uid: str
    source: str
    url: str | None
    detail: str | None
    text: str | None


@dataclass(frozen=True)
class Way:
    """Documents with the same fate in A and the same in B."""

    a: str
    b: str
    documents: int
    dropped_by: str  # A or B
    examples: list[MovedDocument] = field(default_factory=list)


@dataclass(frozen=True)
class JoinedDocuments:
    """The join of both runs. `share` is how much of all documents it looked at (runs may keep a share of their
    rejects)."""

    share: float
    before_mix: bool  # sides and ways are those before the mix that a run ends with
    sides: list[Sides]  # by source; all of them last
    ways: list[Way]  # that changed sides


def documents_of(join: Joined, runs: Sequence[ComparedRun], share: float) -> JoinedDocuments:
    ways = Counter[Pair]()
    for (_, *pair), count in join.counts.items():
        ways[pair[0], pair[1]] += count
    ordered = sorted(ways.items(), key=lambda item: (-item[1], item[0]))
    changed = [(pair, count) for pair, count in ordered if side_of(*pair) in ("only_a", "only_b")]
    shown = examples({pair: join.samples[pair] for pair, _ in changed[:WAYS]}, runs)
    return JoinedDocuments(
        share,
        any(run.drawing for run in runs),
        sides_of(join.counts),
        [way(pair, count, shown.get(pair, [])) for pair, count in changed],
    )


def sides_of(counts: Mapping[tuple[str, Fate, Fate], int]) -> list[Sides]:
    """By source; all of them last."""
    sides: dict[str, Counter[str]] = {}
    for (source, a, b), count in counts.items():
        sides.setdefault(source, Counter())[side_of(a, b)] += count
    whole: Counter[str] = sum(sides.values(), Counter())
    return [*(Sides(source, **sides[source]) for source in sorted(sides)), Sides(None, **whole)]


def side_of(a: Fate, b: Fate) -> str:
    if ABSENT in (a, b):
        return "missing_a" if a == ABSENT else "missing_b"
    return ("both_kept" if b.kept else "only_a") if a.kept else ("only_b" if b.kept else "both_gone")


def way(pair: Pair, count: int, shown: list[MovedDocument]) -> Way:
    a, b = pair
    return Way(str(a), str(b), count, "A" if a.gone else "B", shown)


def examples(samples: Mapping[Pair, Sequence[int]], runs: Sequence[ComparedRun]) -> dict[Pair, list[MovedDocument]]:
    """The sampled documents with their texts: from the rejects of the run that dropped them, else from where the other
    kept them."""
    rows: dict[int, Row] = {uid: {} for uids in samples.values() for uid in uids}
    for side, run in enumerate(runs):
        stages = {pair[side].stage for pair in samples}
        dropped = {uid for pair, uids in samples.items() if pair[side].gone for uid in uids}
        fill(rows, dropped, run, [file for file in run.rejects if file[0] in stages])
    for side, run in enumerate(runs):
        kept = {uid for pair, uids in samples.items() if pair[side].kept for uid in uids}
        fill(rows, {uid for uid in kept if not rows[uid].get("text")}, run, run.arrived)
    return {pair: [example(uid, rows[uid]) for uid in uids] for pair, uids in samples.items()}


def fill(rows: dict[int, Row], wanted: set[int], run: ComparedRun, files: Sequence[FileOf]) -> None:
    """What these files hold of documents and is not known yet."""
    for path in (path for _, path in files if wanted):
        for row in run.folder.rows(path, ["uid", *SHOWN], "uid", one_of(*wanted)):
            rows[row["uid"]] = row | {name: value for name, value in rows[row["uid"]].items() if value}
            wanted.discard(row["uid"])


def example(uid: int, row: Row) -> MovedDocument:
    url, source, detail, text = (None if row.get(name) is None else str(row[name]) for name in SHOWN)
    if text and len(text) > PREVIEW:
        text = f"{text[:PREVIEW]}…"
    return MovedDocument(f"{uid:016x}", source or "", url, detail, text or None)
