"""`gristmill.run` and `gristmill.open_run`: a recipe run from Python, and what it left behind as an object."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from rich.console import Console

from gristmill.pipeline.door.scripts import refuse_in_a_worker
from gristmill.pipeline.door.views import View, render_signal
from gristmill.pipeline.engine.cluster import Where
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.formatting import nearest, one_line
from gristmill.pipeline.look import overview, stage_view, tune as tuning
from gristmill.pipeline.look.history import history
from gristmill.pipeline.look.run_folder import NotFound, RunFolder
from gristmill.pipeline.look.show_history import render_history
from gristmill.pipeline.progress.progress import Quiet
from gristmill.pipeline.progress.terminal import LiveView
from gristmill.pipeline.recipe import recipe as recipes
from gristmill.pipeline.recipe.recipe import Recipe
from gristmill.pipeline.report_data.histograms import cuts_of, merged_signal
from gristmill.pipeline.run import run as runs


class Run:
    """A run's folder: counts, documents that stayed and that went, histories, other thresholds. It may still go on."""

    def __init__(self, out: str) -> None:
        self.out = out
        _ = self._folder.record  # raises where there is no run

    @property
    def _folder(self) -> RunFolder:
        """As it is now."""
        return RunFolder(self.out)

    @property
    def record(self) -> dict[str, Any]:
        """run.json."""
        return self._folder.record.to_json()

    @property
    def alarms(self) -> list[str]:
        return list(self._folder.record.alarms)

    @property
    def funnel(self) -> View:
        """Documents, text and tokens that are left after each stage, times, drops and alarms."""
        seen = overview.overview(self._folder)
        return View(overview.plain(seen), overview.render(seen))

    def stage(self, name: str, reason: str | None = None, limit: int = 10) -> View:
        """What a stage dropped and why, with samples."""
        view = stage_view.stage_view(self._folder, name, reason, limit)
        return View(view.as_data(), stage_view.render_stage(view))

    def history(self, uid: str | int | None = None, url: str | None = None, id: str | None = None) -> View:
        """All that happened to a document."""
        story = history(self._folder, uid=uid, url=url, id=id)
        return View(asdict(story), render_history(story))

    def tune(self, *settings: str, samples: int = 5, where: str = "") -> View:
        """What other thresholds would keep and drop, from stored signals: `run.tune("gopher_quality.min_words=80")`."""
        answer = tuning.tune(self._folder, list(settings), samples, where=where)
        return View(answer, tuning.render(answer))

    def signal(self, name: str) -> View:
        """How a signal is distributed over the documents that rules saw, in all segments, and where rules cut it."""
        surveys = self._folder.surveys
        known = sorted({known for survey in surveys for known in survey["signals"]})
        if name not in known:
            raise NotFound(f"this run has no histogram of {one_line(name)!r}{nearest(name, known)}")
        signal = merged_signal(name, surveys)
        return View(signal, render_signal(name, signal, cuts_of(name, surveys)))

    def kept(self, sink: str | None = None, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
        """The documents that a sink (`write` unless named) has written, one after the other."""
        folder = self._folder
        sinks = [stage.name for stage in folder.record.sinks]
        files = {name: parquet_in(folder, name) for name in sinks}
        name = sink or next((name for name in sinks if files[name]), "write")
        if name not in sinks:
            raise RecipeError(f"no stage {one_line(name)!r} of this run writes documents{nearest(name, sinks)}")
        for batch in folder.batches(files[name], columns):
            yield from batch.to_pylist()

    def dropped(self, stage: str, reason: str | None = None) -> Iterator[dict[str, Any]]:
        """The documents that a stage dropped, with `reason` and `detail`; as many as the recipe's `rejects` keep."""
        folder = self._folder
        paths = [file.path for file in folder.rejects([folder.stage(stage).name])]
        where = None if reason is None else pc.field("reason") == reason
        for batch in folder.batches(paths, where=where):
            yield from batch.to_pylist()

    def __repr__(self) -> str:
        return f"Run({self.out!r}, {self._folder.record.status or 'going on'})"

    def _repr_html_(self) -> str:
        return self.funnel._repr_html_()


def parquet_in(folder: RunFolder, path: str) -> list[str]:
    """Also what sinks of an unfinished run wrote, which no manifest names yet."""
    return [f"{path}/{name}" for name in folder.names(path) if name.endswith(".parquet")]


def run(
    recipe: Recipe | str | Path,
    out: str | Path,
    *,
    workers: int | None = None,
    memory: str = "auto",
    scheduler: str | None = None,
    cluster: str | None = None,
    progress: bool | None = None,
) -> Run:
    """Run a recipe into the folder `out`. Run it again to resume: finished work is not repeated.

    `workers` are processes of this machine, one a core by default, and `memory` is the limit of each; with 0 all tasks
    run in this process. `scheduler` is the address of a Dask scheduler, `cluster` a YAML file for dask-jobqueue.
    `progress`: bars while it goes; by default in notebooks that have ipywidgets. Raises `GristmillError` with a message
    for people.
    """
    refuse_in_a_worker()
    loaded = recipe if isinstance(recipe, Recipe) else recipes.load(Path(recipe))
    notebook = "ipykernel" in sys.modules and find_spec("ipywidgets") is not None
    shown = notebook if progress is None else progress
    with LiveView(Console(stderr=True, force_jupyter=notebook or None)) if shown else Quiet() as ui:
        runs.run(loaded, str(out), Where(workers, memory, scheduler, cluster), ui)
    return Run(str(out))


def open_run(out: str | Path) -> Run:
    """The run in a folder, which may still go on."""
    return Run(str(out))
