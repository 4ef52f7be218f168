"""Two runs side by side, as plain data: what cannot be compared, what they were told to do, what they kept, what it took.

The page (`compare_page.py`), the terminal (`compare_text.py`) and `--json` show this and nothing else. Counts of documents are exact:
both runs are joined by uid (`compare_fates.py`), and what the join finds is held against run.json before it is believed.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipeline.inspect import Folder, NotFound, Run
from pipeline.overview import Overview, overview_of, reports_of
from pipeline.report import compare_recipes as recipes
from pipeline.report.compare_fates import TOP, CannotJoin, Fate, Files, Joined, files_of, joined, rows_of
from pipeline.report.compare_recipes import Difference, StagePair
from pipeline.report.compare_signals import Signal, as_plain, sampled_below, signals
from pipeline.words import as_number

PREVIEW = 600  # characters of a document that is shown
WAYS = 24  # ways to change sides of which documents are shown, the most frequent


@dataclass(frozen=True)
class Level:
    """What is left after a stage in each run, of all sources or of one; null where the run has no such stage."""

    stage: str
    source: str | None
    a: int | None
    b: int | None
    gone_a: int | None
    gone_b: int | None


@dataclass(frozen=True)
class Reason:
    """How many documents a stage dropped for a reason, in each run."""

    stage: str
    reason: str
    a: int
    b: int


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
class Example:
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
    examples: list[Example] = field(default_factory=list)


@dataclass(frozen=True)
class Documents:
    """The join of both runs. `share` is how much of all documents it looked at (runs may keep a share of their rejects)."""

    share: float
    sides: list[Sides]
    ways: list[Way]  # that changed sides
    other_reasons: list[Way]  # dropped by both, but not by the same rule


@dataclass(frozen=True)
class Cost:
    """What a stage took in each run."""

    stage: str
    seconds: tuple[float | None, float | None]
    rate: tuple[float | None, float | None]
    bytes_out: tuple[int | None, int | None]
    memory: tuple[int | None, int | None]
    cost: tuple[float | None, float | None]  # at the prices of each recipe


@dataclass(frozen=True)
class Comparison:
    """All of it."""

    outs: tuple[str, str]
    overviews: tuple[Overview, Overview]
    unlike: list[str]  # what cannot be compared, or only with care
    head: list[Difference]
    stages: list[StagePair]
    versions: list[Difference]
    machine: list[Difference]
    funnel: list[Level]
    reasons: list[Reason]
    documents: Documents | None
    signals: list[Signal]
    signals_of: int | None  # documents at most, where medians are of a sample
    costs: list[Cost]


def compare(a: str, b: str) -> Comparison:
    folders = (Folder.open(a), Folder.open(b))
    found = (folders[0].json("run.json"), folders[1].json("run.json"))
    seen = (overview_of(found[0], reports_of(folders[0], found[0])), overview_of(found[1], reports_of(folders[1], found[1])))
    runs = (seen[0].run, seen[1].run)
    unlike = [*caveats(runs, found), *changed_files(folders)]
    documents: Documents | None = None
    kept: tuple[Any, Any] = (np.empty(0, np.uint64),) * 2
    most = max(one.totals.documents for one in seen)
    few = sampled_below(most)
    try:
        documents, kept, said = follow(folders, runs, seen, found, few)
        unlike += said
    except (CannotJoin, FileNotFoundError, NotFound) as error:
        unlike.append(f"Documents cannot be followed: {error}")
    pairs = recipes.stage_pairs(*runs, found)
    versions, machine = recipes.version_differences(*runs), recipes.machine_differences(*runs)
    measured = signals(folders, runs, kept, few)
    sampled = None if few >= TOP else max((its.documents for one in measured for its in (one.a, one.b) if its), default=0)
    return Comparison(
        (a, b), seen, unlike, recipes.head_differences(*runs), pairs, versions, machine, levels(seen, pairs), reasons(runs, pairs), documents,
        measured, sampled, costs(seen, pairs),
    )  # fmt: skip


def caveats(runs: tuple[Run, Run], found: tuple[Mapping[str, Any], Mapping[str, Any]]) -> list[str]:
    """What run.json alone says against holding two runs beside each other."""
    said = []
    for name, run in zip("AB", runs, strict=True):
        if run.status != "done":
            said.append(f"{name} is not done (it is {run.status or 'of unknown state'}): its numbers are those of a part.")
    sources = [{reader.name for reader in run.readers} for run in runs]
    for name, only in (("A", sources[0] - sources[1]), ("B", sources[1] - sources[0])):
        if only:
            said.append(f"Only {name} has {plural('source', sorted(only))}; nothing of it can be found in the other.")
    inputs = [one.get("inputs") or {} for one in found]
    for source in sorted(sources[0] & sources[1]):
        a, b = (its.get(source) or {} for its in inputs)
        if a != b:
            sizes = [f"{as_number(its.get('files'))} files of {as_number(its.get('bytes'))} bytes" for its in (a, b)]
            said.append(f"The inputs of {source} differ: A read {sizes[0]}, B {sizes[1]}.")
    if recipes.version_differences(*runs):
        said.append("The versions of packages differ (below): the same setting may decide otherwise.")
    if recipes.machine_differences(*runs):
        said.append("The machines differ (below): times and memory say as much about them as about the recipes.")
    return said


def changed_files(folders: tuple[Folder, Folder]) -> list[str]:
    """Files of one name that both runs read, with other contents: the same uid is another document then."""
    path = "journal/inputs.json"
    a, b = (folder.json(path) if folder.has(path) else {} for folder in folders)
    changed = sum(a[file][-1] != b[file][-1] for file in a.keys() & b.keys())
    return (
        [f"{as_number(changed)} of the files that both runs read changed between them: a document there may have another text."]
        if changed
        else []
    )


def follow(
    folders: tuple[Folder, Folder],
    runs: tuple[Run, Run],
    seen: tuple[Overview, Overview],
    found: tuple[Mapping[str, Any], Mapping[str, Any]],
    few: int,
) -> tuple[Documents, tuple[Any, Any], list[str]]:
    """The join, checked against what both runs counted; and what it says against comparing."""
    shares = [share_of_rejects(one) for one in found]
    if min(shares) <= 0:
        raise CannotJoin(f"{'AB'[shares.index(0)]} kept no rejects (rejects: {{keep: 0}}).")
    limit = min(int(share * 2.0**64) for share in shares)
    files = (files_of(folders[0], runs[0]), files_of(folders[1], runs[1]))
    join = joined(folders, files, sum(one.totals.documents for one in seen), limit, few)
    if limit >= TOP:
        for side, (name, one) in enumerate(zip("AB", seen, strict=True)):
            check(name, one, join, side)
    said = [] if limit >= TOP else [f"Documents are followed on a share of {min(shares):.2%}: that much of the rejects was kept."]
    documents = documents_of(join, folders, files, min(shares))
    whole = documents.sides[-1]
    for name, missing in (("A", whole.missing_b), ("B", whole.missing_a)):
        if missing:
            said.append(f"Inputs differ: {as_number(missing)} documents were read by {name} alone; they are on no side below.")
    kept = [np.concatenate(piles) if piles else np.empty(0, np.uint64) for piles in join.kept]
    return documents, (kept[0], kept[1]), said


def share_of_rejects(found: Mapping[str, Any]) -> float:
    return float(((found.get("recipe") or {}).get("rejects") or {}).get("keep", 1.0))


def check(name: str, seen: Overview, join: Joined, side: int) -> None:
    """What the files say must be what run.json counted."""
    fates: Counter[Fate] = Counter()
    for (_, *both), count in join.counts.items():
        fates[both[side]] += count
    kept, gone = fates[next(iter([fate for fate in fates if fate.kept]), Fate("", "kept"))], sum(fates[fate] for fate in fates if fate.gone)
    counted = sum(stage.count.lost + stage.count.quarantined for stage in seen.run.stages if stage.kind != "read")
    if (kept, gone) != (seen.totals.kept, counted):
        raise CannotJoin(
            f"the files of {name} hold {as_number(kept)} kept and {as_number(gone)} dropped documents, but its run.json counts "
            f"{as_number(seen.totals.kept)} and {as_number(counted)} (were rejects removed?)."
        )


def documents_of(join: Joined, folders: tuple[Folder, Folder], files: tuple[Files, Files], share: float) -> Documents:
    sides: dict[str, Counter[str]] = {}
    ways: Counter[tuple[Fate, Fate]] = Counter()
    for (source, a, b), count in join.counts.items():
        sides.setdefault(source, Counter())[side_of(a, b)] += count
        ways[a, b] += count
    by_source = [Sides(source, **sides[source]) for source in sorted(sides)]
    totals = Counter({name: sum(its[name] for its in sides.values()) for its in sides.values() for name in its})
    ordered = sorted(ways.items(), key=lambda item: (-item[1], item[0]))
    changed = [(pair, count) for pair, count in ordered if side_of(*pair) in ("only_a", "only_b")]
    shown = examples({pair: join.samples[pair] for pair, _ in changed[:WAYS]}, folders, files)
    other = [Way(str(a), str(b), count) for (a, b), count in ordered if a.gone and b.gone and a != b]
    moved = [Way(str(a), str(b), count, shown.get((a, b), [])) for (a, b), count in changed]
    return Documents(share, [*by_source, Sides(None, **totals)], moved, other)


def side_of(a: Fate, b: Fate) -> str:
    if a.absent or b.absent:
        return "missing_a" if a.absent else "missing_b"
    return ("both_kept" if b.kept else "only_a") if a.kept else ("only_b" if b.kept else "both_gone")


def examples(
    samples: Mapping[tuple[Fate, Fate], Sequence[int]], folders: tuple[Folder, Folder], files: tuple[Files, Files]
) -> dict[tuple[Fate, Fate], list[Example]]:
    """The sampled documents with their texts: from the rejects of the run that dropped them, else from where the other kept them."""
    columns = ("url", "source", "detail", "text")
    rows: dict[int, dict[str, Any]] = {}
    for side, (folder, its) in enumerate(zip(folders, files, strict=True)):
        wanted = {uid: pair[side].stage for pair, uids in samples.items() if pair[side].gone for uid in uids}
        stages = set(wanted.values())
        rows |= rows_of(folder, [path for stage, path in its.rejects if stage in stages], set(wanted), columns)
    for side, (folder, its) in enumerate(zip(folders, files, strict=True)):
        bare = {uid for pair, uids in samples.items() if pair[side].kept for uid in uids if not rows.get(uid, {}).get("text")}
        kept = rows_of(folder, [path for _, path in its.arrived], bare, columns) if bare else {}
        rows |= {uid: {**row, **{key: value for key, value in rows.get(uid, {}).items() if value}} for uid, row in kept.items()}
    return {pair: [example(uid, rows.get(uid, {})) for uid in uids] for pair, uids in samples.items()}


def example(uid: int, row: Mapping[str, Any]) -> Example:
    text = row.get("text")
    return Example(f"{uid:016x}", str(row.get("source") or ""), row.get("url"), row.get("detail"), text[:PREVIEW] if text else None)


def levels(seen: tuple[Overview, Overview], pairs: Sequence[StagePair]) -> list[Level]:
    """The funnel of both, stage by stage: all sources together, then each. What a stage does not see stays as it was."""
    tables = [funnel_table(one) for one in seen]
    sources = list(dict.fromkeys(source for one in seen for source in (reader.name for reader in one.run.readers)))
    found = []
    for stage in ["read", *(pair.name for pair in pairs if pair.name not in sources)]:
        a, b = (table.get(stage) for table in tables)
        for source in [None, *(sources if len(sources) > 1 else [])]:
            cells = [(None, None) if its is None or source not in its else its[source] for its in (a, b)]
            if cells != [(None, None)] * 2:
                found.append(Level(stage, source, cells[0][0], cells[1][0], cells[0][1], cells[1][1]))
    return found


def funnel_table(seen: Overview) -> dict[str, dict[str | None, tuple[int, int]]]:
    """By stage, then by source (null: all), what is left and what went."""
    readers = {reader.name for reader in seen.run.readers}
    table: dict[str, dict[str | None, tuple[int, int]]] = {}
    alive: dict[str, int] = {}
    for level in seen.funnel:
        stage = "read" if level.stage in readers else level.stage
        table.setdefault(stage, {})[level.source] = (level.left, level.gone)
    for its in table.values():
        alive |= {str(source): left for source, (left, _) in its.items()}
        its[None] = (sum(alive.values()), sum(gone for _, gone in its.values()))
    return table


def reasons(runs: tuple[Run, Run], pairs: Sequence[StagePair]) -> list[Reason]:
    """Reasons for which both did not drop the same number, in the order of work."""
    counts = [
        {stage.name: stage.count.dropped | ({stage.troubled: q} if (q := stage.count.quarantined) else {}) for stage in run.stages}
        for run in runs
    ]
    found = []
    for stage in (pair.name for pair in pairs):
        a, b = (its.get(stage, {}) for its in counts)
        names = sorted({*a, *b}, key=lambda name: (-max(a.get(name, 0), b.get(name, 0)), name))
        found += [Reason(stage, name, a.get(name, 0), b.get(name, 0)) for name in names if a.get(name, 0) != b.get(name, 0)]
    return found


def costs(seen: tuple[Overview, Overview], pairs: Sequence[StagePair]) -> list[Cost]:
    a, b = ({cost.stage: cost for cost in one.costs} for one in seen)
    found = []
    for name in (pair.name for pair in pairs):
        both = (a.get(name), b.get(name))
        numbers = [
            tuple(cost and getattr(cost, key) for cost in both)
            for key in ("seconds", "documents_per_second", "bytes_out", "peak_memory", "cost")
        ]
        found.append(Cost(name, *numbers))  # type: ignore[arg-type]
    return found


def plural(word: str, names: Sequence[str]) -> str:
    return f"the {word}{'s' if len(names) > 1 else ''} {', '.join(names)}"


def plain(found: Comparison) -> dict[str, Any]:
    """For `--json`."""
    heads = [
        {"out": out, "name": one.run.name, "status": one.run.status, "started": one.run.started, "seconds": one.run.seconds}
        | {"totals": dataclasses.asdict(one.totals)}
        for out, one in zip(found.outs, found.overviews, strict=True)
    ]
    lists = ("head", "stages", "versions", "machine", "funnel", "reasons", "costs")
    return {
        "a": heads[0],
        "b": heads[1],
        "unlike": found.unlike,
        **{name: [dataclasses.asdict(one) for one in getattr(found, name)] for name in lists},
        "documents": dataclasses.asdict(found.documents) if found.documents else None,
        "signals": [as_plain(one) for one in found.signals],
        "signals_of": found.signals_of,
    }
