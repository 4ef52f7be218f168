"""Two runs side by side, as plain data: what cannot be compared, what they were told to do, what they kept, what it
took.

The page and the terminal (`sections.py`) and `--json` show this and nothing else. Counts of documents are exact: both
runs are joined by uid (`fates.py`), and the join is checked against run.json before it is believed.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gristmill.pipeline.compare.fates import CannotJoin, ComparedRun, Joined, joined
from gristmill.pipeline.compare.sides import JoinedDocuments, documents_of
from gristmill.pipeline.formatting import as_number
from gristmill.pipeline.inputs.files import REMEMBERED, remembered_in
from gristmill.pipeline.look import recipe_differences as recipes
from gristmill.pipeline.look.funnel import READ, SourceLevel, Volume
from gristmill.pipeline.look.recipe_differences import Difference, StagePair
from gristmill.pipeline.look.run_folder import NotFound, RunFolder
from gristmill.pipeline.store.partitions import TOP


@dataclass(frozen=True)
class LevelPair:
    """What is left after a stage in each run, of all sources or of one; null where the run has no such stage."""

    stage: str
    source: str | None
    a: int | None
    b: int | None
    gone_a: int | None
    gone_b: int | None
    volume_a: Volume
    volume_b: Volume


@dataclass(frozen=True)
class Reason:
    """How many documents a stage dropped for a reason, in each run."""

    stage: str
    reason: str
    a: int
    b: int


@dataclass(frozen=True)
class CostPair:
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

    runs: tuple[ComparedRun, ComparedRun]
    unlike: list[str]  # what cannot be compared, or only with care
    head: list[Difference]
    stages: list[StagePair]
    versions: list[Difference]
    funnel: list[LevelPair]
    reasons: list[Reason]
    documents: JoinedDocuments | None
    costs: list[CostPair]


def compare(a: RunFolder, b: RunFolder) -> Comparison:
    both = ComparedRun("A", a), ComparedRun("B", b)
    runs = both[0].run, both[1].run
    pairs = recipes.stage_pairs(*runs)
    versions = recipes.differences(runs[0].versions, runs[1].versions)
    unlike = [*caveats(both), *(["The versions of packages differ (below)."] if versions else []), *changed_files(both)]
    documents: JoinedDocuments | None = None
    try:
        documents = follow(both)
        unlike += read_by_one(both, documents)
    except (CannotJoin, FileNotFoundError, NotFound) as error:
        unlike.append(f"Documents cannot be followed: {error}")
    names = [pair.name for pair in pairs]
    head = recipes.head_differences(*runs)
    tables = levels(both, names), reasons(both, names), documents, costs(both, names)
    return Comparison(both, unlike, head, pairs, versions, *tables)


# --- what cannot be compared ------------------------------------------------------------------------------------------


def caveats(runs: Sequence[ComparedRun]) -> list[str]:
    """What run.json alone says against holding two runs beside each other."""
    notes = []
    if len({folder_of(run) for run in runs}) == 1:
        notes.append("A and B are the same folder: a run beside itself differs in nothing.")
    for one in runs:
        state = one.run.status or "of unknown state"
        if state != "done":
            notes.append(f"{one.letter} is not done (it is {state}): its numbers are those of a part.")
    for one, other in (runs, runs[::-1]):
        if only := sorted(one.sources - other.sources):
            read = sum(reader.count.kept for reader in one.run.readers if reader.name in only)
            names = f"source{'s' if len(only) > 1 else ''} {', '.join(only)}"
            notes.append(f"Only {one.letter} has the {names}: {counted(read)} that {other.letter} never read.")
    for source in sorted(runs[0].sources & runs[1].sources):
        entries = [run.run.inputs.get(source) or {} for run in runs]
        sizes = [(entry.get("files"), entry.get("bytes")) for entry in entries]
        if sizes[0] != sizes[1]:
            a, b = (f"{as_number(files)} files of {as_number(size)} bytes" for files, size in sizes)
            notes.append(f"The inputs of {source} differ: A read {a}, B {b}.")
    if runs[0].run.machine != runs[1].run.machine:
        notes.append("The machines differ: times and memory say as much about them as about the recipes.")
    return notes


def folder_of(run: ComparedRun) -> tuple[object, str]:
    """A link to a folder is that folder."""
    root, kind = run.folder.root, run.folder.fs.protocol
    return kind, os.path.realpath(root) if "file" in kind else root


def counted(documents: int) -> str:
    return f"{as_number(documents)} document{'' if documents == 1 else 's'}"


def changed_files(runs: Sequence[ComparedRun]) -> list[str]:
    """Files of one name that both runs read, with other contents: the same uid is another document then."""
    folders = [run.folder for run in runs]
    a, b = (remembered_in(folder.read(REMEMBERED)) if folder.has(REMEMBERED) else {} for folder in folders)
    changed = sum(a[file][-1] != b[file][-1] for file in a.keys() & b.keys())
    note = f"{as_number(changed)} of the files that both runs read changed between them: texts there may differ."
    return [note] if changed else []


def follow(runs: Sequence[ComparedRun]) -> JoinedDocuments:
    """The join, checked against what both runs counted."""
    share = min(run.run.share_of_rejects for run in runs)
    if share <= 0:
        letter = next(run.letter for run in runs if run.run.share_of_rejects <= 0)
        raise CannotJoin(f"{letter} kept no rejects (rejects: {{keep: 0}}).")
    limit = int(share * 2.0**64)  # uids below it lie in the rejects of both runs if they were dropped
    join = joined(runs, limit)
    if limit >= TOP:
        for side, run in enumerate(runs):
            check(run, join, side)
    return documents_of(join, runs, share)


def check(run: ComparedRun, join: Joined, side: int) -> None:
    """What the files say must be what run.json counted."""
    there: Counter[bool] = Counter()
    for (_, *both), count in join.counts.items():
        if both[side].kept or both[side].gone:
            there[both[side].kept] += count
    gone = sum(stage.count.gone for stage in run.run.stages if stage.kind != "read")
    kept = run.overview.totals.kept
    if (there[True], there[False]) != (kept, gone):
        raise CannotJoin(
            f"the files of {run.letter} hold {as_number(there[True])} kept and {as_number(there[False])} dropped"
            f" documents, but its run.json counts {as_number(kept)} and {as_number(gone)} (were rejects removed?)."
        )


def read_by_one(runs: Sequence[ComparedRun], documents: JoinedDocuments) -> list[str]:
    """What the join says against comparing. Of sources that one run alone has, `caveats` tells."""
    notes = []
    if documents.share < 1:
        notes.append(f"Documents are followed on a share of {documents.share:.2%}: that much of the rejects was kept.")
    sides = [side for side in documents.sides if side.source in runs[0].sources & runs[1].sources]
    counts = (("A", sum(side.missing_b for side in sides)), ("B", sum(side.missing_a for side in sides)))
    alone = [f"{as_number(count)} documents were read by {letter} alone" for letter, count in counts if count]
    return notes + ([f"Inputs differ: {', '.join(alone)}; they are on no side below."] if alone else [])


# --- what run.json counts ---------------------------------------------------------------------------------------------


def levels(runs: Sequence[ComparedRun], names: Sequence[str]) -> list[LevelPair]:
    """The funnel of both, stage by stage: all sources together, then each that the stage saw."""
    tables: list[dict[tuple[str, str | None], SourceLevel]] = [{}, {}]
    for table, run in zip(tables, runs, strict=True):
        for step in run.overview.funnel.steps:
            table |= {(step.name, None): step.whole} if step.passed else {}
            table |= {(step.name, level.source): level for level in step.passed}
    sources = list(dict.fromkeys(reader.name for run in runs for reader in run.run.readers))
    pairs = []
    for stage in [READ, *(name for name in names if name not in sources)]:
        for source in [None, *(sources if len(sources) > 1 else [])]:
            a, b = (table.get((stage, source)) for table in tables)
            if a or b:
                left, gone = ([getattr(level, key, None) for level in (a, b)] for key in ("left", "gone"))
                volumes = [level.volume if level else Volume() for level in (a, b)]
                pairs.append(LevelPair(stage, source, left[0], left[1], gone[0], gone[1], volumes[0], volumes[1]))
    return pairs


def reasons(runs: Sequence[ComparedRun], names: Sequence[str]) -> list[Reason]:
    """Reasons for which both did not drop the same number, in the order of work."""
    drops = [{stage.name: stage.drops for stage in run.run.stages} for run in runs]
    differing = []
    for stage in names:
        a, b = (by_stage.get(stage, {}) for by_stage in drops)
        of_stage = [Reason(stage, name, a.get(name, 0), b.get(name, 0)) for name in {**a, **b}]
        of_stage.sort(key=lambda reason: (-max(reason.a, reason.b), reason.reason))
        differing += [reason for reason in of_stage if reason.a != reason.b]
    return differing


def costs(runs: Sequence[ComparedRun], names: Sequence[str]) -> list[CostPair]:
    a, b = ({cost.stage: cost for cost in run.overview.costs} for run in runs)
    keys = ("seconds", "documents_per_second", "bytes_out", "peak_memory", "cost")
    return [
        CostPair(name, *((getattr(a.get(name), key, None), getattr(b.get(name), key, None)) for key in keys))
        for name in names
    ]


# --- for `--json` -----------------------------------------------------------------------------------------------------


def plain(comparison: Comparison) -> Mapping[str, object]:
    heads = {
        one.letter.lower(): {
            "out": one.out,
            **{key: getattr(one.run, key) for key in ("name", "status", "started", "seconds")},
            "totals": dataclasses.asdict(one.overview.totals),
        }
        for one in comparison.runs
    }
    lists = ("head", "stages", "versions", "funnel", "reasons", "costs")
    return {
        **heads,
        "unlike": comparison.unlike,
        **{name: [dataclasses.asdict(each) for each in getattr(comparison, name)] for name in lists},
        "documents": dataclasses.asdict(comparison.documents) if comparison.documents else None,
    }
