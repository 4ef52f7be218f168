"""What a global stage came to, kept beside the journal: its metrics, its account, and the files that it wrote.

A run goes through the rounds of a global stage every time, and finds each task done. Once documents were forgotten
those rounds can no longer be gone through: their rows are gone, and what came of them was rewritten. Then what is kept
here stands for them, as long as the stage would be given the same documents and settings.
"""

from __future__ import annotations

import os
from typing import NotRequired, TypedDict, cast

from gristmill.pipeline.engine.engine import Engine
from gristmill.pipeline.plan.plan import GlobalNode
from gristmill.pipeline.run.findings import Findings
from gristmill.pipeline.shuffle.saved_index import saved_at
from gristmill.pipeline.shuffle.shuffle import Shuffle
from gristmill.pipeline.store.partitions import StoredDocuments
from gristmill.pipeline.store.records import CountsByStage, Files, StageMetrics
from gristmill.pipeline.store.storage import Store, json_bytes
from gristmill.stages.stage import Global

FOLDER = "journal/outcomes"


class Outcome(TypedDict):
    """`journal/outcomes/STAGE.json`."""

    task: str
    metrics: StageMetrics
    shared: StageMetrics
    counts: CountsByStage  # by source
    peak_memory: int
    files: Files  # by path, less rows between rounds
    others: list[str]  # files that no task wrote
    saved: list[str]  # local folders of rows for later runs, as seen from the run's folder
    forgotten: NotRequired[bool]  # were documents taken out of all this?


def path_of(node: str) -> str:
    return f"{FOLDER}/{node}.json"


def keep_outcome(task: str, node: GlobalNode, flow: Shuffle, store: Store, findings: Findings) -> None:
    """Only the last outcome of a stage is kept: those of object stores cannot forget, and are not needed."""
    if not store.local:
        return
    account = findings.account
    written = {facts["path"]: facts for files in flow.files for facts in files.values()}
    saved = [saved_at(address, node.step) for address in cast(Global, node.step.stage).saves]
    outcome: Outcome = {
        "task": task,
        "metrics": flow.metrics,
        "shared": flow.run.values,
        "counts": {source: count.plain() for source, count in sorted(account.stages.get(node.name, {}).items())},
        "peak_memory": account.peak_memory.get(node.name, 0),
        "files": {path: facts for path, facts in sorted(written.items()) if not path.startswith("flow/")},
        "others": sorted(path for path in flow.other_paths if not path.startswith("flow/")),
        "saved": sorted(os.path.relpath(folder.root, store.root) for folder in saved if folder.local),
    }
    store.write_if_other(path_of(node.name), json_bytes(outcome))


def settled(task: str, node: GlobalNode, store: Store, engine: Engine, findings: Findings) -> StoredDocuments | None:
    """The documents after a stage out of whose results documents were forgotten; None where its rounds can be gone
    through."""
    outcome: Outcome | None = store.read_json_if_whole(path_of(node.name)) if store.local else None
    parts = engine.journal.stage(task).parts
    if outcome is None or outcome["task"] != task or not outcome.get("forgotten") or parts is None:
        return None
    if any(not saved_at(address, node.step).exists("index.json") for address in cast(Global, node.step.stage).saves):
        return None
    for source, counts in outcome["counts"].items():
        findings.account.add(source, {node.name: counts}, outcome["peak_memory"])
    stage = cast(Global, node.step.stage)
    findings.take_told(node.name, stage, outcome["metrics"], outcome["shared"])
    findings.take_files(outcome["files"])
    findings.own_files |= set(outcome["others"])
    return StoredDocuments(tuple(parts))
