"""Stale files: what earlier versions of a run wrote and this one does not use.

Intermediates go with the run that replaces them. Results (token shards, what sinks wrote) of a stage that the recipe no
longer has are kept, and an alarm says so: somebody may be training on them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, cast

from gristmill.pipeline.formatting import as_bytes
from gristmill.pipeline.json_types import JSONObject
from gristmill.pipeline.plan.plan import Plan
from gristmill.pipeline.recipe.recipe import FOLDERS, Step
from gristmill.pipeline.store.journal import Journal
from gristmill.pipeline.store.partitions import OF_A_PART
from gristmill.pipeline.store.storage import Store
from gristmill.stages.stage import Sink, snake_case
from gristmill.stages.tokens.folders import owner_of_set

OF_A_FOLDER = re.compile(r"partitions/[^/]+/(manifest|rules|survey)\.json|stages/[^/]+/report\.json")


def stale_files(store: Store, plan: Plan, journal: Journal, own_files: set[str]) -> list[str]:
    """Files that the journal knows to be ours, and, where a run was killed before it could note them, files that bear
    the name of a part in folders of ours; less `own_files`, those of this version of the run."""
    present = store.files("")
    folders = (
        "partitions/",
        "stages/",
        "shuffle/",
        *(f"{x.called}/" for _, x in plan.stage_order() if isinstance(x, Step) and isinstance(x.stage, Sink)),
    )
    stale = journal.made.keys() - own_files
    stale |= {path for path in present if path.startswith(folders) and OF_A_PART.search(path)} - own_files
    stale |= {path for path in present if owner_of_set(path) is not None} - own_files
    names = {name for name, _ in plan.stage_order()}
    used = {f"partitions/{node.name}/manifest.json" for node in plan.stored} | {
        f"stages/{name}/report.json" for name in names
    }
    for segment in plan.segments:  # a stage that began a segment before may now stand within one
        used |= {f"partitions/{segment.name}/rules.json", f"partitions/{segment.name}/survey.json"}
    stale |= {path for path in present if OF_A_FOLDER.fullmatch(path)} - used
    unused = {path for paths in unused_results(present, names).values() for path in paths}
    return sorted(stale - unused)


def unused_results(paths: Iterable[str], stages: Collection[str]) -> dict[str, list[str]]:
    """Results of stages that are not among `stages`: their files, by the stage that wrote them."""
    unused: dict[str, list[str]] = {}
    for path in sorted(paths):
        owner = owner_of(path)
        if owner is not None and owner not in stages:
            unused.setdefault(owner, []).append(path)
    return unused


def owner_of(path: str) -> str | None:
    """The stage whose result a file is, by its path; None for files that are no results."""
    owner = owner_of_set(path)
    if owner is not None:
        return owner
    folder, _, name = path.partition("/")
    return folder if folder not in FOLDERS and "/" not in name and OF_A_PART.search(name) else None


def alarms_of_unused(store: Store, plan: Plan) -> list[str]:
    present = store.files("")
    unused = unused_results(present, {name for name, _ in plan.stage_order()})
    return [
        f"{stage} is no longer in the recipe; its results in {folder_of(paths)} ({len(paths):,} files, "
        f"{as_bytes(sum(present[path] for path in paths))}) are those of an earlier run and are kept; "
        f"`gristmill clean {store.address} --unused` removes them"
        for stage, paths in unused.items()
    ]


def folder_of(paths: list[str]) -> str:
    """The folder that files lie in, at whatever depth."""
    first, last = paths[0].split("/")[:-1], paths[-1].split("/")[:-1]
    return "".join(f"{step}/" for step, other in zip(first, last, strict=False) if step == other)


def stages_of(resolved: JSONObject) -> set[str]:
    """Names of all stages of a recipe as run.json has it."""
    settings = cast(Mapping[str, Any], resolved)
    lists = [settings.get("stages", []), *(each.get("stages", []) for each in settings.get("sources", {}).values())]
    return {
        str(own.get("name") or snake_case(address.rpartition(":")[2]))
        for steps in lists
        for step in steps
        for address, own in step.items()
    }
