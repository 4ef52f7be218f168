"""On which side each document is: the join of two runs (`fates.py`) counted by source and by way, with a few documents
of each.

A mix draws at the end, often by chance, so that what it left out says little of the recipe: where a run has one, a
document is on the side on which it came to the mix, and what the draws changed is counted apart, of the documents that
reached the mix in both runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow.parquet as pq

from gristmill.pipeline.compare.fates import ABSENT, ComparedRun, Fate, FileOf, Joined, Pair, smallest
from gristmill.pipeline.look.history import text_in
from gristmill.pipeline.report_data.documents import Row

PREVIEW = 600  # characters of a document that is shown
WAYS = 24  # ways to change sides of which documents are shown, the most frequent
SHOWN = ("url", "source", "detail", "text")


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
    dropped_by: str  # A, B, or both
    examples: list[MovedDocument] = field(default_factory=list)


@dataclass(frozen=True)
class JoinedDocuments:
    """The join of both runs. `share` is how much of all documents it looked at (runs may keep a share of their
    rejects)."""

    share: float
    before_mix: bool  # sides and ways are those before the mix that a run ends with
    sides: list[Sides]  # by source; all of them last
    ways: list[Way]  # that changed sides
    other_reasons: list[Way]  # dropped by both, but not by the same rule
    drawn: list[Sides]  # of what reached the mix in both, what each drew; by source, all last; none without a mix
    end: Sides  # all documents, by what is kept at the end


def documents_of(join: Joined, runs: Sequence[ComparedRun], share: float) -> JoinedDocuments:
    before, at_the_mix = Counter[tuple[str, Fate, Fate]](), Counter[tuple[str, Fate, Fate]]()
    ways, samples = Counter[Pair](), dict[Pair, list[int]]()
    for (source, a, b), count in join.counts.items():
        pair = runs[0].before_mix(a), runs[1].before_mix(b)
        before[source, *pair] += count
        ways[pair] += count
        samples[pair] = smallest({*samples.get(pair, []), *join.samples[a, b]})
        if pair[0].kept and pair[1].kept:
            at_the_mix[source, a, b] += count
    ordered = sorted(ways.items(), key=lambda item: (-item[1], item[0]))
    changed = [(pair, count) for pair, count in ordered if side_of(*pair) in ("only_a", "only_b")]
    shown = examples({pair: samples[pair] for pair, _ in changed[:WAYS]}, runs)
    mixed = any(run.drawing for run in runs)
    return JoinedDocuments(
        share,
        mixed,
        sides_of(before),
        [way(pair, count, shown.get(pair, [])) for pair, count in changed],
        [way(pair, count, []) for pair, count in ordered if side_of(*pair) == "both_gone" and pair[0] != pair[1]],
        sides_of(at_the_mix) if mixed else [],
        sides_of(join.counts)[-1],
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
    return Way(str(a), str(b), count, "both" if a.gone and b.gone else "A" if a.gone else "B", shown)


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
    """What these files hold of documents and is not known yet. uids are read of every file, the rest only of groups of
    rows that have one."""
    for path in (path for _, path in files if wanted):
        with run.folder.open(path) as file:
            parquet = pq.ParquetFile(file, pre_buffer=False)
            columns = ["uid", *(name for name in SHOWN if name in parquet.schema_arrow.names)]
            for group in range(parquet.num_row_groups):
                uid = parquet.read_row_group(group, columns=["uid"]).column("uid").to_numpy()
                places = np.flatnonzero(np.isin(uid, np.array(sorted(wanted), np.uint64)))
                here = parquet.read_row_group(group, columns=columns).take(places).to_pylist() if len(places) else []
                for row in here:
                    rows[row["uid"]] = row | {name: value for name, value in rows[row["uid"]].items() if value}
                    wanted.discard(row["uid"])


def example(uid: int, row: Row) -> MovedDocument:
    source, url, detail, text = (text_in(row, name) for name in ("source", "url", "detail", "text"))
    if text and len(text) > PREVIEW:
        text = f"{text[:PREVIEW]}…"
    return MovedDocument(f"{uid:016x}", source or "", url, detail, text or None)
