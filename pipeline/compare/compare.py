"""Two runs side by side, as plain data: what cannot be compared, what they were told to do, what they kept, what it
took.

The page (`compare_page.py`), the terminal (`compare_text.py`) and `--json` show this and nothing else. Counts of
documents are exact: both runs are joined by uid (`compare_fates.py`), and what the join finds is held against run.json
before it is believed.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gristmill.pipeline.compare.counts import CostPair, LevelPair, Reason, costs, levels, reasons
from gristmill.pipeline.compare.fates import CannotJoin, Draw, Fate, Joined, files_of, joined
from gristmill.pipeline.compare.sides import JoinedDocuments, documents_of
from gristmill.pipeline.compare.signals import SignalMedians, as_plain, sampled_below, signals
from gristmill.pipeline.formatting import as_number
from gristmill.pipeline.inputs.files import REMEMBERED, remembered_in
from gristmill.pipeline.look import recipe_differences as recipes
from gristmill.pipeline.look.overview import Overview, overview_of, reports_of
from gristmill.pipeline.look.recipe_differences import Difference, StagePair
from gristmill.pipeline.look.records import ReadRunRecord
from gristmill.pipeline.look.run_folder import Folder, NotFound, RecordedRun, record_in
from gristmill.pipeline.store.parts import TOP
from gristmill.pipeline.store.run_records import InputRecord

Uids = npt.NDArray[np.uint64]
Records = tuple[ReadRunRecord, ReadRunRecord]


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
    funnel: list[LevelPair]
    reasons: list[Reason]
    documents: JoinedDocuments | None
    signals: list[SignalMedians]
    signals_of: int | None  # documents at most, where medians are of a sample
    costs: list[CostPair]


def compare(a: str, b: str) -> Comparison:
    folders = (Folder.open(a), Folder.open(b))
    records = (record_in(folders[0]), record_in(folders[1]))
    seen = (
        overview_of(records[0], reports_of(folders[0], records[0])),
        overview_of(records[1], reports_of(folders[1], records[1])),
    )
    runs = (seen[0].run, seen[1].run)
    unlike = [*same_folder(folders), *caveats(runs, records), *changed_files(folders)]
    documents: JoinedDocuments | None = None
    kept: tuple[Uids, Uids] = (np.empty(0, np.uint64),) * 2
    most = max(overview.totals.documents for overview in seen)
    # Beyond the uids that are followed, nobody knows what was kept.
    few = min(sampled_below(most), followed_below(records) or TOP)
    try:
        documents, kept, notes = follow(folders, runs, seen, records, few)
        unlike += notes
    except (CannotJoin, FileNotFoundError, NotFound) as error:
        unlike.append(f"Documents cannot be followed: {error}")
    pairs = recipes.stage_pairs(*runs, records)
    versions, machine = recipes.version_differences(*runs), recipes.machine_differences(*runs)
    measured = signals(folders, runs, records, kept, few)
    medians = [medians for signal in measured for medians in (signal.a, signal.b) if medians]
    sampled = None if few >= TOP else max((each.documents for each in medians), default=0)
    return Comparison(
        (a, b),
        seen,
        unlike,
        recipes.head_differences(*runs),
        pairs,
        versions,
        machine,
        levels(seen, pairs),
        reasons(runs, pairs),
        documents,
        measured,
        sampled,
        costs(seen, pairs),
    )


def same_folder(folders: tuple[Folder, Folder]) -> list[str]:
    """A run beside itself says nothing; a link to a folder is that folder."""
    a, b = (
        (folder.fs.protocol, os.path.realpath(folder.root) if is_local(folder) else folder.root) for folder in folders
    )
    return ["A and B are the same folder: a run beside itself differs in nothing."] if a == b else []


def is_local(folder: Folder) -> bool:
    return "file" in ([folder.fs.protocol] if isinstance(folder.fs.protocol, str) else folder.fs.protocol)


def caveats(runs: tuple[RecordedRun, RecordedRun], records: Records) -> list[str]:
    """What run.json alone says against holding two runs beside each other."""
    notes = []
    for name, run in zip("AB", runs, strict=True):
        if run.status != "done":
            notes.append(
                f"{name} is not done (it is {run.status or 'of unknown state'}): its numbers are those of a part."
            )
    sources = [{reader.name for reader in run.readers} for run in runs]
    for name, other, run, only in (
        ("A", "B", runs[0], sources[0] - sources[1]),
        ("B", "A", runs[1], sources[1] - sources[0]),
    ):
        if only:
            documents = sum(reader.count.kept for reader in run.readers if reader.name in only)
            notes.append(
                f"Only {name} has {plural('source', sorted(only))}: {as_number(documents)}"
                f" document{'' if documents == 1 else 's'} that {other} never read."
            )
    inputs = [record.get("inputs") or {} for record in records]
    for source in sorted(sources[0] & sources[1]):
        a, b = (sizes_of(entries.get(source)) for entries in inputs)
        if a != b:
            sizes = [f"{as_number(files)} files of {as_number(size)} bytes" for files, size in (a, b)]
            notes.append(f"The inputs of {source} differ: A read {sizes[0]}, B {sizes[1]}.")
    if recipes.version_differences(*runs):
        notes.append("The versions of packages differ (below): the same setting may decide otherwise.")
    if recipes.machine_differences(*runs):
        notes.append("The machines differ (below): times and memory say as much about them as about the recipes.")
    return notes


def sizes_of(entry: InputRecord | None) -> tuple[int | None, int | None]:
    """Files and bytes that a source had."""
    return (entry.get("files"), entry.get("bytes")) if entry else (None, None)


def changed_files(folders: tuple[Folder, Folder]) -> list[str]:
    """Files of one name that both runs read, with other contents: the same uid is another document then."""
    a, b = (remembered_in(folder.read(REMEMBERED)) if folder.has(REMEMBERED) else {} for folder in folders)
    changed = sum(a[file][-1] != b[file][-1] for file in a.keys() & b.keys())
    return (
        [
            f"{as_number(changed)} of the files that both runs read changed between them: a document there may have"
            " another text."
        ]
        if changed
        else []
    )


def follow(
    folders: tuple[Folder, Folder],
    runs: tuple[RecordedRun, RecordedRun],
    seen: tuple[Overview, Overview],
    records: Records,
    few: int,
) -> tuple[JoinedDocuments, tuple[Uids, Uids], list[str]]:
    """The join, checked against what both runs counted; and what it says against comparing."""
    shares = [share_of_rejects(record) for record in records]
    if min(shares) <= 0:
        raise CannotJoin(f"{'AB'[shares.index(0)]} kept no rejects (rejects: {{keep: 0}}).")
    limit = followed_below(records)
    files = (files_of(folders[0], runs[0]), files_of(folders[1], runs[1]))
    draws = (Draw.of(records[0]), Draw.of(records[1]))
    join = joined(folders, files, draws, sum(overview.totals.documents for overview in seen), limit, few)
    if limit >= TOP:
        for side, (name, overview) in enumerate(zip("AB", seen, strict=True)):
            check(name, overview, join, side)
    notes = (
        []
        if limit >= TOP
        else [f"Documents are followed on a share of {min(shares):.2%}: that much of the rejects was kept."]
    )
    documents = documents_of(join, draws, folders, files, min(shares))
    notes += read_by_one(documents, runs)
    kept = [np.concatenate(piles) if piles else np.empty(0, np.uint64) for piles in join.kept]
    return documents, (kept[0], kept[1]), notes


def read_by_one(documents: JoinedDocuments, runs: tuple[RecordedRun, RecordedRun]) -> list[str]:
    """Documents that one run alone read, of sources that both have: what one source is to one run alone is said
    already."""
    shared = set.intersection(*({reader.name for reader in run.readers} for run in runs))
    sides = [side for side in documents.sides if side.source in shared]
    counts = (("A", sum(side.missing_b for side in sides)), ("B", sum(side.missing_a for side in sides)))
    notes = [f"{as_number(count)} documents were read by {name} alone" for name, count in counts if count]
    return [f"Inputs differ: {', '.join(notes)}; they are on no side below."] if notes else []


def share_of_rejects(record: ReadRunRecord) -> float:
    recipe = record.get("recipe") or {}
    return float((recipe.get("rejects") or {}).get("keep", 1.0))


def followed_below(records: Records) -> int:
    """uids below it lie in the rejects of both runs if they were dropped."""
    return min(int(share_of_rejects(record) * 2.0**64) for record in records)


def check(name: str, seen: Overview, join: Joined, side: int) -> None:
    """What the files say must be what run.json counted."""
    fates: Counter[Fate] = Counter()
    for (_, *both), count in join.counts.items():
        fates[both[side]] += count
    kept, gone = (
        fates[next(iter([fate for fate in fates if fate.kept]), Fate("", "kept"))],
        sum(fates[fate] for fate in fates if fate.gone),
    )
    counted = sum(stage.count.lost + stage.count.quarantined for stage in seen.run.stages if stage.kind != "read")
    if (kept, gone) != (seen.totals.kept, counted):
        raise CannotJoin(
            f"the files of {name} hold {as_number(kept)} kept and {as_number(gone)} dropped documents, but its "
            f"run.json counts "
            f"{as_number(seen.totals.kept)} and {as_number(counted)} (were rejects removed?)."
        )


def plural(word: str, names: Sequence[str]) -> str:
    return f"the {word}{'s' if len(names) > 1 else ''} {', '.join(names)}"


def plain(comparison: Comparison) -> Mapping[str, object]:
    """For `--json`."""
    heads = [
        {
            "out": out,
            "name": each.run.name,
            "status": each.run.status,
            "started": each.run.started,
            "seconds": each.run.seconds,
        }
        | {"totals": dataclasses.asdict(each.totals)}
        for out, each in zip(comparison.outs, comparison.overviews, strict=True)
    ]
    lists = ("head", "stages", "versions", "machine", "funnel", "reasons", "costs")
    return {
        "a": heads[0],
        "b": heads[1],
        "unlike": comparison.unlike,
        **{name: [dataclasses.asdict(each) for each in getattr(comparison, name)] for name in lists},
        "documents": dataclasses.asdict(comparison.documents) if comparison.documents else None,
        "signals": [as_plain(each) for each in comparison.signals],
        "signals_of": comparison.signals_of,
    }
