"""Files in a run's folder that earlier versions of the run wrote and this one does not use."""

from __future__ import annotations

import re

from pipeline.journal import Journal, files_of
from pipeline.parts import OF_A_PART
from pipeline.plan import Plan
from pipeline.recipe import Step
from pipeline.store import Store
from stages.stage import Sink

OF_A_SET = re.compile(
    r"shards/([a-z0-9_]+/)?(\d+/(shard-\d{5}\.[0-9a-f]{8}\.arrow|index\.json|tokenizer/tokenizer(_config)?\.json)|README\.md)$"
)


def stale_files(store: Store, plan: Plan, journal: Journal, mine: set[str]) -> list[str]:
    """Files that the journal knows to be ours, and, where a run was killed before it could note them, files that bear the name of a part in
    folders of ours; less those that are `mine`, of this version of the run."""
    present = store.files("")
    folders = (
        "legs/",
        "stages/",
        "flow/",
        *(f"{x.called}/" for _, x in plan.stage_order() if isinstance(x, Step) and isinstance(x.stage, Sink)),
    )
    stale = {path for result in journal.done.values() for path, _ in files_of(result)} - mine
    stale |= {path for path in present if path.startswith(folders) and OF_A_PART.search(path)} - mine
    stale |= {path for path in present if OF_A_SET.match(path)} - mine
    names = {n.name for n in plan.nodes} | {name for name, _ in plan.stage_order()}
    stale |= {
        p
        for p in present
        if p.endswith(("/manifest.json", "/rules.json", "/survey.json", "/report.json"))
        and p.startswith(("legs/", "stages/"))
        and p.split("/")[1] not in names
    }
    return sorted(stale)
