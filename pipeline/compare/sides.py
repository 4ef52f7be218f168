"""On which side each document is: the join of two runs (`compare_fates.py`) counted by source and by way, with a few
documents of each.

A mix draws at the end, often by chance, so that what it left out says little of the recipe: where a run has one, a
document is on the side on which it came to the mix, and what the draws changed is counted apart, of the documents that
reached the mix in both runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gristmill.pipeline.compare.fates import Draw, Fate, Files, Joined, rows_of
from gristmill.pipeline.look.history import text_in
from gristmill.pipeline.look.run_folder import Folder
from gristmill.pipeline.survey.records import Row

PREVIEW = 600  # characters of a document that is shown
WAYS = 24  # ways to change sides of which documents are shown, the most frequent


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


Pair = tuple[Fate, Fate]


def documents_of(
    join: Joined, draws: tuple[Draw, Draw], folders: tuple[Folder, Folder], files: tuple[Files, Files], share: float
) -> JoinedDocuments:
    before: Counter[tuple[str, Fate, Fate]] = Counter()
    at_the_mix: Counter[tuple[str, Fate, Fate]] = Counter()
    ways: Counter[Pair] = Counter()
    for (source, a, b), count in join.counts.items():
        pair = draws[0].before(a), draws[1].before(b)
        before[source, *pair] += count
        ways[pair] += count
        if pair[0].kept and pair[1].kept:
            at_the_mix[source, a, b] += count
    ordered = sorted(ways.items(), key=lambda item: (-item[1], item[0]))
    changed = [(pair, count) for pair, count in ordered if side_of(*pair) in ("only_a", "only_b")]
    with_texts = examples({pair: join.samples[pair] for pair, _ in changed[:WAYS]}, folders, files)
    mixed = any(draw.stages for draw in draws)
    return JoinedDocuments(
        share,
        mixed,
        sides_of(before),
        [way(pair, count, with_texts.get(pair, [])) for pair, count in changed],
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
    if a.absent or b.absent:
        return "missing_a" if a.absent else "missing_b"
    return ("both_kept" if b.kept else "only_a") if a.kept else ("only_b" if b.kept else "both_gone")


def way(pair: Pair, count: int, shown: list[MovedDocument]) -> Way:
    a, b = pair
    return Way(str(a), str(b), count, "both" if a.gone and b.gone else "A" if a.gone else "B", shown)


def examples(
    samples: Mapping[Pair, Sequence[int]], folders: tuple[Folder, Folder], files: tuple[Files, Files]
) -> dict[Pair, list[MovedDocument]]:
    """The sampled documents with their texts: from the rejects of the run that dropped them, else from where the other
    kept them."""
    columns = ("url", "source", "detail", "text")
    rows: dict[int, Row] = {}
    for side, (folder, of_run) in enumerate(zip(folders, files, strict=True)):
        wanted = {uid: pair[side].stage for pair, uids in samples.items() if pair[side].gone for uid in uids}
        stages = set(wanted.values())
        rows |= rows_of(folder, [path for stage, path in of_run.rejects if stage in stages], set(wanted), columns)
    for side, (folder, of_run) in enumerate(zip(folders, files, strict=True)):
        bare = {
            uid
            for pair, uids in samples.items()
            if pair[side].kept
            for uid in uids
            if not rows.get(uid, {}).get("text")
        }
        kept = rows_of(folder, [path for _, path in of_run.arrived], bare, columns) if bare else {}
        rows |= {
            uid: {**row, **{key: value for key, value in rows.get(uid, {}).items() if value}}
            for uid, row in kept.items()
        }
    return {pair: [example(uid, rows.get(uid, {})) for uid in uids] for pair, uids in samples.items()}


def example(uid: int, row: Row) -> MovedDocument:
    text = text_in(row, "text")
    source, url, detail = text_in(row, "source"), text_in(row, "url"), text_in(row, "detail")
    return MovedDocument(f"{uid:016x}", source or "", url, detail, text[:PREVIEW] if text else None)
