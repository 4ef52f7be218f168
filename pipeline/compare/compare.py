"""Two runs side by side, as plain data: what cannot be compared, what they were told to do, what they kept, what it
took.

The page and the terminal (`sections.py`) and `--json` show this and nothing else. Counts of documents are exact: both
runs are joined by uid (`join.py`), and the join is checked against run.json before it is believed.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

from gristmill.pipeline.compare.join import CannotJoin, ComparedRun, Joined, JoinedDocuments, documents_of, joined
from gristmill.pipeline.formatting import as_number, flat
from gristmill.pipeline.inputs.files import REMEMBERED, remembered_in
from gristmill.pipeline.look.overview import plain as plain_overview
from gristmill.pipeline.look.run_folder import NotFound, RunFolder
from gristmill.pipeline.store.partitions import TOP
from gristmill.pipeline.store.run_records import RunRecord

NOT_COMPARED = ("name", "out", "description", "sources", "stages")  # of a recipe's head: stages have their own lines
OF_RUN = ("name", "status", "started", "seconds", "totals", "stages", "funnel", "costs")  # for `--json`


@dataclass(frozen=True)
class Difference:
    """A field that is not the same; null where a side has none."""

    field: str
    a: str | None
    b: str | None


@dataclass(frozen=True)
class StagePair:
    """A stage of both runs by its name, or of one of them."""

    name: str
    state: str  # same, changed, only in A, only in B
    moved: bool
    inserted: bool  # no recipe names it: it measures what a rule needs
    differences: list[Difference] = field(default_factory=list)


@dataclass(frozen=True)
class Comparison:
    """All of it; counts, drops and costs of each run are in its overview."""

    runs: tuple[ComparedRun, ComparedRun]
    unlike: list[str]  # what cannot be compared, or only with care
    head: list[Difference]
    stages: list[StagePair]
    versions: list[Difference]
    documents: JoinedDocuments | None


def compare(a: RunFolder, b: RunFolder) -> Comparison:
    both = ComparedRun("A", a), ComparedRun("B", b)
    runs = both[0].run, both[1].run
    versions = differences(runs[0].versions, runs[1].versions)
    unlike = [*caveats(both), *(["The versions of packages differ (below)."] if versions else []), *changed_files(both)]
    documents: JoinedDocuments | None = None
    try:
        documents = follow(both)
        unlike += read_by_one(both, documents)
    except (CannotJoin, FileNotFoundError, NotFound) as error:
        unlike.append(f"Documents cannot be followed: {error}")
    head = differences(*(flat(head_of(run)) for run in runs))
    return Comparison(both, unlike, head, stage_pairs(*runs), versions, documents)


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
    if unlike := differences(*(flat(run.run.machine) for run in runs)):
        words = "; ".join(f"{each.field} {each.a or '–'} and {each.b or '–'}" for each in unlike)
        notes.append(f"The machines differ ({words}): times and memory say as much about them as about the runs.")
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
    gone = sum(stage.count.gone for stage in run.run.stages if stage.kind != "read" and stage.name not in run.drawing)
    kept = run.overview.totals.kept + sum(stage.count.gone for stage in run.run.stages if stage.name in run.drawing)
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


# --- recipes ----------------------------------------------------------------------------------------------------------


def stage_pairs(a: RunRecord, b: RunRecord) -> list[StagePair]:
    """Every source and stage of either run, in one order that agrees with both as far as one can."""
    settings_a, settings_b = (
        {stage.name: flat({"stage": stage.stage or None, **stage.settings, "name": None}) for stage in run.stages}
        for run in (a, b)
    )
    named = named_in(a) | named_in(b)
    pairs = []
    for name, moved in aligned([stage.name for stage in a.stages], [stage.name for stage in b.stages]):
        fields = differences(settings_a.get(name, {}), settings_b.get(name, {}))
        state = "changed" if fields else "same"
        if not (name in settings_a and name in settings_b):
            state = "only in A" if name in settings_a else "only in B"
        pairs.append(StagePair(name, state, moved, name not in named, fields))
    return pairs


def aligned(a: Sequence[str], b: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Names of both lists, each once, and whether it stands elsewhere in the other."""
    for kind, a0, a1, b0, b1 in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if kind == "equal":
            yield from ((name, False) for name in a[a0:a1])
        else:
            yield from ((name, False) for name in a[a0:a1] if name not in b)
            yield from ((name, name in a) for name in b[b0:b1])


def differences(a: Mapping[str, str], b: Mapping[str, str]) -> list[Difference]:
    return [Difference(key, a.get(key), b.get(key)) for key in dict.fromkeys([*a, *b]) if a.get(key) != b.get(key)]


def named_in(run: RunRecord) -> set[str]:
    """Names that a recipe itself gives: sources, stages of sources, shared stages."""
    sources = run.recipe.get("sources") or {}
    steps = [
        *(run.recipe.get("stages") or []),
        *(step for source in sources.values() for step in stages_in(source)),
    ]
    named = {
        str((settings.get("name") if isinstance(settings, Mapping) else None) or stage)
        for step in steps
        if isinstance(step, Mapping)
        for stage, settings in step.items()
    }
    return named | {str(name) for name in sources}


def head_of(run: RunRecord) -> dict[str, Any]:
    """The recipe without what has its own lines."""
    return {key: value for key, value in run.recipe.items() if key not in NOT_COMPARED}


def stages_in(source: Mapping[str, Any]) -> Sequence[Any]:
    stages = source.get("stages")
    return stages if isinstance(stages, list) else []


# --- for `--json` -----------------------------------------------------------------------------------------------------


def plain(comparison: Comparison) -> Mapping[str, object]:
    heads = {}
    for one in comparison.runs:
        seen = plain_overview(one.overview)
        heads[one.letter.lower()] = {"out": one.out, **{name: seen[name] for name in OF_RUN}}
    return {
        **heads,
        "unlike": comparison.unlike,
        **{name: list(map(dataclasses.asdict, getattr(comparison, name))) for name in ("head", "stages", "versions")},
        "documents": dataclasses.asdict(comparison.documents) if comparison.documents else None,
    }
