"""A recipe run in a folder: one run there at a time, again where files turn out to be damaged or gone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from gristmill.pipeline import processes
from gristmill.pipeline.engine.budget import Budget
from gristmill.pipeline.engine.cluster import Where
from gristmill.pipeline.errors import DamagedFile, RetiredFiles, RunFailed
from gristmill.pipeline.inputs.portion import Portion
from gristmill.pipeline.processes import single_interrupt
from gristmill.pipeline.progress.progress import UI, ProgressRecorder, Watcher, recording_progress
from gristmill.pipeline.recipe.recipe import Recipe
from gristmill.pipeline.run.alarms import alarms_of_stages
from gristmill.pipeline.run.estimate import seconds_of_nodes
from gristmill.pipeline.run.execution import Execution, Summary
from gristmill.pipeline.run.record import (
    check_folder,
    is_done,
)
from gristmill.pipeline.shuffle.saved_index import check_saved
from gristmill.pipeline.store.forgotten import WORK
from gristmill.pipeline.store.journal import Journal
from gristmill.pipeline.store.lock import one_run_at_a_time
from gristmill.pipeline.store.storage import Store


def run(
    recipe: Recipe,
    out: str,
    where: Where,
    ui: UI,
    portion: Portion | None = None,
    check_inputs: bool = False,
    budget: float | None = None,
    metrics: Watcher | None = None,
) -> Summary:
    """Run a recipe; finished work is not repeated. `check_inputs` hashes all inputs anew, whatever their times say.
    `budget`: what it may cost in all. `metrics` is shown how far the run is, every second."""
    store = Store(out)
    where.check()
    store.make_root()
    where.check_reaches(store.address)
    with single_interrupt(), one_run_at_a_time(store, ui.note):
        if store.local and store.exists(WORK):
            raise RunFailed(
                f"{store.address}: documents are being forgotten here, and that was broken off; "
                f"finish it first: gristmill forget {store.address}"
            )
        journal = Journal(store)
        check_folder(recipe, store, journal)
        check_saved(recipe, portion is None or portion.whole)
        store.remove_temporary()
        with processes.fork_server():
            if where.forked and not is_done(store):
                processes.start_fork_server(recipe.path)
            while True:
                try:
                    money = None if budget is None else Budget(budget, recipe.head.prices)
                    running = Execution(recipe, store, where, ui, portion or Portion(), journal, check_inputs, money)
                    with in_progress(running, metrics):
                        return running.carry_out()
                except RetiredFiles as error:
                    journal.bring_back(error.paths)
                    ui.note(f"{len(error.paths):,} files that the last run did not keep are needed; they are made anew")
                except DamagedFile as error:
                    journal.suspect(error)
                    ui.note(f"{error.path} is damaged or was changed; the work that wrote it is repeated")


@contextlib.contextmanager
def in_progress(running: Execution, metrics: Watcher | None) -> Iterator[None]:
    """While a run is carried out, let other processes see how far it is."""
    size = sum(inputs.bytes for inputs in running.inputs.values())
    recorder = ProgressRecorder(
        running.ui,
        running.recipe.name,
        running.plan.nodes,
        lambda account: alarms_of_stages(running.plan, account),
        seconds_of_nodes(running.plan, running.store, size) if running.portion.whole else {},
        running.stopwatch.began,
        running.where.expected,
    )
    running.recording = recorder
    with recording_progress(recorder, running.store, metrics) as running.ui:
        yield
