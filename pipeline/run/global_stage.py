"""Run one global stage: its rounds, the check of its account, and its entry in the journal."""

from __future__ import annotations

import traceback
from typing import cast

from gristmill.pipeline.engine.engine import Engine
from gristmill.pipeline.errors import STAGE_ERRORS, GristmillError, NotConserved, RunFailed, of_storage
from gristmill.pipeline.formatting import plain
from gristmill.pipeline.plan.plan import GlobalNode
from gristmill.pipeline.recipe import registry
from gristmill.pipeline.recipe.recipe import Recipe
from gristmill.pipeline.run.findings import Findings
from gristmill.pipeline.run.map_tasks import global_task, rejects_settings
from gristmill.pipeline.shuffle.saved_index import identities_of_loaded
from gristmill.pipeline.shuffle.shuffle import Shuffle
from gristmill.pipeline.shuffle.verdicts import untouched
from gristmill.pipeline.store.counts import RunAccount
from gristmill.pipeline.store.partitions import StoredDocuments
from gristmill.pipeline.store.records import VerdictsResult
from gristmill.pipeline.store.storage import Store
from gristmill.stages.contract import kind_of
from gristmill.stages.stage import CannotRun, Global


def run_global_stage(
    node: GlobalNode,
    docs: StoredDocuments,
    recipe: Recipe,
    store: Store,
    engine: Engine,
    findings: Findings,
    partial: bool,
) -> StoredDocuments:
    """The documents after a global stage. `partial`: they are not all that the inputs hold."""
    stage_fingerprint = node.fingerprint(recipe)
    task = global_task(stage_fingerprint, docs.parts, identities_of_loaded(node.step))
    flow = Shuffle(
        engine,
        store,
        node.step,
        node.name,
        stage_fingerprint,
        rejects_settings(recipe),
        findings.account,
        before=findings.shared_values,
        partial=partial,
        recipe=recipe.name,
        keeps_maps=recipe.head.keep == "all",
    )
    stage = cast(Global, node.step.stage)
    after = run_rounds(stage, docs, flow, store)
    findings.take_flow(node.name, stage, flow)
    check_account(node.name, stage, docs, after, flow, findings.account)
    for files in flow.files:
        findings.take_files(files)
    findings.own_files |= flow.other_paths
    left = VerdictsResult(parts=after.parts, files=flow.files_left(after), counts={})
    if engine.journal.done.get(task) != left:  # for `plan`, which does not go through rounds
        engine.journal.add(task, left)
    return after


def run_rounds(stage: Global, docs: StoredDocuments, flow: Shuffle, store: Store) -> StoredDocuments:
    """Run a stage's own program. An error that is none for people is put in words, with its trace."""
    try:
        after = stage.run(docs, flow)
    except (GristmillError, OSError):
        raise
    except STAGE_ERRORS as error:
        if of_storage(error):
            raise
        raise RunFailed(failure_of(stage, error, store)) from error
    if not isinstance(after, StoredDocuments):
        raise RunFailed(f"{registry.named(stage)}: run() answered with {kind_of(after)}; the documents were expected")
    return after


def failure_of(stage: Global, error: BaseException, store: Store) -> str:
    """What is wrong with a global stage, and where in its code unless it says that itself."""
    if isinstance(error, CannotRun):
        return f"{registry.named(stage)}: {error}"
    store.write("logs/trace.txt", plain("".join(traceback.format_exception(error))).encode("utf-8", "replace"))
    where = f"(where in the code: {store.at('logs/trace.txt')})"
    return f"{registry.named(stage)}: {type(error).__name__}: {error} {where}"


def check_account(
    name: str, stage: Global, docs: StoredDocuments, after: StoredDocuments, flow: Shuffle, account: RunAccount
) -> None:
    """Hold a stage to the law that every document is kept or dropped with a reason. All its rounds count into its time
    and memory."""
    if name not in account.stages:  # a stage that only looks: all stay
        for part in docs.parts:
            account.of(name, part.source).add(untouched(part))
    count = account.total(name)
    by_source = account.stages.get(name, {})
    for of_source in by_source.values():  # rounds before the last one cost too
        of_source.seconds += max(0.0, flow.seconds - count.seconds) / len(by_source)
    account.peak_memory[name] = max(account.peak_memory.get(name, 0), flow.peak_memory)
    count.check(name)
    if count.docs_in != docs.rows or count.kept != after.rows:
        raise NotConserved(
            f"{name}: {docs.rows:,} documents were handed over and {after.rows:,} are left, "
            f"but it says {count.docs_in:,} and {count.kept:,}"
        )
    if count.kept < count.docs_in and not stage.drops:
        raise RunFailed(
            f"{name} dropped {count.docs_in - count.kept:,} documents, "
            "and it declares that it drops none (`drops = False`)"
        )
