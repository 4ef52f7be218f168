"""Recipes, and what is done with them: `gristmill.run`, `gristmill.plan` and `gristmill.estimate`, which the commands
of those names share their work with. A recipe in code has the same stages and the same checks as one in YAML; tables
may be its sources."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from rich.console import Console, Group
from rich.text import Text

from gristmill.kernels.common.files import draft_of, whole_file
from gristmill.pipeline.demo.crawl import write_crawl
from gristmill.pipeline.door.runs import Run
from gristmill.pipeline.door.scripts import refuse_in_a_worker
from gristmill.pipeline.door.views import View
from gristmill.pipeline.errors import RecipeError, RunFailed, in_words
from gristmill.pipeline.forget.outside import rows_of_table, tables_folder, with_empty_rows
from gristmill.pipeline.progress.progress import Quiet
from gristmill.pipeline.progress.prometheus import metrics_to
from gristmill.pipeline.progress.terminal import LiveView
from gristmill.pipeline.recipe import recipe as recipes, registry
from gristmill.pipeline.run.dry_run import foresee, render
from gristmill.pipeline.run.forecast import forecast_of
from gristmill.pipeline.run.launch import Launch
from gristmill.pipeline.store.forgotten import Forgotten, read_list
from gristmill.pipeline.store.storage import Store
from gristmill.stages.frames import as_arrow, as_column
from gristmill.stages.stage import Reader, Stage

CALLED = Path("<recipe>")  # in messages; paths are relative to the folder that Python runs in
REFUSED = (pa.ArrowException, UnicodeEncodeError, OverflowError)  # by Arrow, of values
Item = Stage | str | Mapping[str, Any]


@dataclass(frozen=True)
class Source:
    """A source with stages of its own, and the shared stage at which it joins the others."""

    reader: Any
    stages: Sequence[Item] = ()
    join: str | None = None


class Recipe:
    """A recipe in code.

        Recipe(sources={"crawl": Warc(path="crawl/*.warc.gz")}, stages=[Extract(), GopherQuality(min_words=40)])

    A source is a reader, a table (`gristmill.stages.frames`), or a `Source`. A stage is an object, its name, or
    `{name: settings}`. All other fields of a recipe are keywords (`keep="signals"`). Whatever is wrong with it is said
    at once, by `RecipeError`; its lines are those of `yaml()`.
    """

    def __init__(
        self, sources: Mapping[str, Any] | Any, stages: Sequence[Item] = (), *, name: str = "recipe", **fields: Any
    ) -> None:
        by_name = sources if isinstance(sources, Mapping) else {"documents": sources}
        self._tables: dict[str, tuple[str, pa.Table]] = {}  # by source: the name of the file to be, and what it holds
        self.data: dict[str, Any] = {
            "name": name,
            **fields,
            "sources": {called: self._source(called, source) for called, source in by_name.items()},
            "stages": [item_of(stage) for stage in stages],
        }
        self.checked = self._check(Path())

    def yaml(self) -> str:
        """As a file of its own would hold it, with the name of the file that a run writes for a table."""
        return written(self.data)

    def run(
        self,
        out: str | Path | None = None,
        *,
        workers: int | None = None,
        memory: str | None = None,
        scheduler: str | None = None,
        cluster: str | None = None,
        limit: int | None = None,
        sample: str | float | None = None,
        check_inputs: bool = False,
        budget: float | None = None,
        metrics: str | Path | None = None,
        progress: bool | None = None,
    ) -> Run:
        """`gristmill.run` of this recipe."""
        return run(
            self, out, workers=workers, memory=memory, scheduler=scheduler, cluster=cluster, limit=limit, sample=sample,
            check_inputs=check_inputs, budget=budget, metrics=metrics, progress=progress,
        )  # fmt: skip

    def with_tables(self, out: str) -> recipes.Recipe:
        """The recipe of a run into a folder. Tables are written into a folder beside it, OUT-tables."""
        if self._tables and "://" in out:
            raise RecipeError(f"{out}: tables are sources only of runs on this machine's disks; write them to files")
        forgotten = read_list(Store(out)) if self._tables else None
        for name, (file, table) in self._tables.items():
            write_source(table, tables_folder(out) / file, name, forgotten)
        return self._check(tables_folder(out))

    def _source(self, name: str, source: Any) -> dict[str, Any]:
        whole = source if isinstance(source, Source) else Source(source)
        rest: dict[str, Any] = {"stages": [item_of(stage) for stage in whole.stages]} if whole.stages else {}
        rest |= {"join": whole.join} if whole.join else {}
        if isinstance(whole.reader, Reader):
            return {**dict([settings_of(whole.reader)]), **rest}
        if isinstance(whole.reader, Mapping):
            return {**whole.reader, **rest}
        try:
            table, _ = as_arrow(whole.reader)
        except REFUSED as error:
            what = misfit(whole.reader) or " ".join(map(str, error.args))
            raise RecipeError(f"{CALLED}: sources.{name}: {what}") from error
        except TypeError as error:
            raise RecipeError(f"{CALLED}: sources.{name}: a reader, or {error}") from error
        file = f"{name}-{of_content(table)}.parquet"
        self._tables[name] = file, table
        return {"parquet": {"path": file}, **rest}

    def _check(self, folder: Path) -> recipes.Recipe:
        """With its tables as files in a folder."""
        data = {**self.data, "sources": dict(self.data["sources"])}
        for name, (file, _) in self._tables.items():
            path = folder.resolve() / file
            data["sources"][name] = {**data["sources"][name], "parquet": {"path": str(path)}}
        return recipes.load(CALLED, written(data))


def run(
    recipe: Recipe | str | Path,
    out: str | Path | None = None,
    *,
    workers: int | None = None,
    memory: str | None = None,
    scheduler: str | None = None,
    cluster: str | None = None,
    limit: int | None = None,
    sample: str | float | None = None,
    check_inputs: bool = False,
    budget: float | None = None,
    metrics: str | Path | None = None,
    progress: bool | None = None,
) -> Run:
    """Run a recipe, or resume it, as `gristmill run` does: finished work is not repeated.

    `out` is the folder; unless given it is the recipe's `out`, else out/NAME beside the recipe. With `limit`, a number
    of documents of each source, or `sample`, a share such as "1%" or 0.01, a part of the input goes into OUT-sample,
    and `Run.estimate` says what the whole would come to.

    `workers` are processes of this machine, one a core by default, and `memory` is the limit of each, such as "4GB";
    with 0 all tasks run in this process. `scheduler` is the address of a Dask scheduler, `cluster` a YAML file for
    dask-jobqueue. `check_inputs` reads every input file to find changes that size and time do not show. `budget` stops
    the run before all work in the folder costs more, at the recipe's `prices`.

    `metrics`, a file FILE.prom, tells Prometheus how far the run is. `progress` shows bars; by default in notebooks
    that have ipywidgets. Raises `GristmillError` with a message for people.
    """
    refuse_in_a_worker()
    loaded, folder = at_its_place(recipe, out)
    launch = Launch.of(
        loaded, folder, workers=workers, memory=memory, scheduler=scheduler, cluster=cluster,
        limit=limit, sample=sample, check_inputs=check_inputs, budget=budget,
    )  # fmt: skip
    notebook = "ipykernel" in sys.modules and find_spec("ipywidgets") is not None
    shown = notebook if progress is None else progress
    watcher = metrics_to(None if metrics is None else Path(metrics))
    with LiveView(Console(stderr=True, force_jupyter=notebook or None)) if shown else Quiet() as ui:
        launch.carry_out(ui, watcher)
    return Run(launch.out)


def plan(recipe: Recipe | str | Path, out: str | Path | None = None, *, check_inputs: bool = False) -> View:
    """What `run` would do into the same folder, as `gristmill plan` shows it: what is up to date, why the rest is not,
    which stages were inserted or moved. What `run` refuses is refused. Tables of a recipe in code are written beside
    the folder; nothing else is changed."""
    notes: list[str] = []
    loaded, folder = at_its_place(recipe, out)
    seen = foresee(loaded, folder, check_inputs, notes.append)
    return View([asdict(node) for node in seen], Group(render(seen), *(Text(note) for note in notes)))


def estimate(
    recipe: Recipe | str | Path,
    *,
    workers: int | None = None,
    cores: int = 1,
    memory: str | None = None,
    core_hour: float | None = None,
    object_store: bool = False,
    sample: str | float = "1%",
    sample_of: str | Path | None = None,
) -> View:
    """Time, cost, memory and disk of the whole input on a cluster, as `gristmill estimate` tells them: from a run on a
    share of the input (`sample`), or from a finished one in the folder `sample_of`.

    `workers` of the cluster, one a core of this machine by default; `cores` paid for a worker, and the `memory` that it
    has, such as "4GB"; `core_hour`, the price of a core, that of the recipe by default. `object_store`: the run's
    folder is on one, and requests are counted.
    """
    refuse_in_a_worker()
    with TemporaryDirectory(prefix="gristmill-estimate-") as folder:
        loaded, _ = at_its_place(recipe, f"{folder}/run")
        found = forecast_of(
            loaded, Quiet(), workers=workers, cores=cores, memory=memory, core_hour=core_hour,
            object_store=object_store, sample=sample, sample_of=None if sample_of is None else str(sample_of),
        )  # fmt: skip
    return View(found.as_json(), found)


def at_its_place(recipe: Recipe | str | Path, out: str | Path | None) -> tuple[recipes.Recipe, str]:
    """A recipe that is checked, and the folder of its run; its tables are files then."""
    checked = recipe.checked if isinstance(recipe, Recipe) else recipes.load(Path(recipe))
    folder = checked.out(None if out is None else str(out))
    return recipe.with_tables(folder) if isinstance(recipe, Recipe) else checked, folder


def write_source(table: pa.Table, path: Path, source: str, forgotten: Forgotten | None) -> None:
    """Write a table for a reader, without the rows that the run is to forget. A file that is there stays."""
    if path.exists():
        return
    draft = draft_of(path)
    try:
        with whole_file(draft) as file:
            pq.write_table(table, file)
        if forgotten is not None and (rows := rows_of_table(draft, source, path.name, forgotten)):
            with whole_file(draft) as file:
                pq.write_table(with_empty_rows(table, rows), file)
        draft.replace(path)
    except OSError as error:
        where = in_words(error, str(path.parent))
        raise RunFailed(f"tables lie in a folder beside the run, which cannot be written: {where}") from error


def misfit(data: Any) -> str:
    """The first value that keeps rows from being a table, in words; nothing where none is found."""
    rows = data if isinstance(data, Sequence) else data.to_dict("records") if hasattr(data, "iloc") else ()
    before: dict[str, Any] = {}
    for number, row in enumerate(rows):
        where = f"row {number} (the first is 0)"
        for column, value in row.items():
            if before.get(column) is None:
                before[column] = value
            try:
                as_column([before[column], value], from_pandas=True)
            except UnicodeEncodeError as error:
                return f"{where}: {column}: character {error.start} is half of a surrogate pair, which no file can hold"
            except REFUSED as error:
                earlier, kind = type(before[column]).__name__, type(value).__name__
                of_a_kind = f"is {kind}, and {earlier} in rows before it; a column holds values of one kind"
                return f"{where}: {column} {of_a_kind if kind != earlier else f'cannot be stored: {error}'}"
    return ""


def demo_crawl(folder: str | Path = "crawl") -> Path:
    """Write the small crawl of `gristmill demo` into a folder: two WARC files with planted copies, spam and damage, the
    recipe demo.yaml, and truth.json, which says what was planted. Returns the folder."""
    write_crawl(Path(folder))
    return Path(folder)


def item_of(stage: Item) -> Any:
    """As a recipe has it."""
    if isinstance(stage, Stage):
        address, settings = settings_of(stage)
        return {address: settings} if settings else address
    return stage if isinstance(stage, str) else dict(stage)


def settings_of(stage: Stage) -> tuple[str, dict[str, Any]]:
    """A stage's address, and the settings that are not as they would be anyway."""
    return address_of(type(stage)), stage.model_dump(mode="json", exclude_unset=True)


def address_of(kind: type[Stage]) -> str:
    """By what name a recipe finds a class."""
    if registry.comes_with_the_mill(kind):
        return kind.recipe_name()
    for name, entry in registry.installed().items():
        if entry.value == f"{kind.__module__}:{kind.__qualname__}":
            return name
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    if kind.__module__ == "__main__" or file is None or not file.endswith(".py"):
        raise RecipeError(
            f"{CALLED}: {kind.__name__}: workers cannot see a class of a notebook or of the script that runs; put it "
            f"into a file of its own and import it: from my_stages import {kind.__name__}"
        )
    return f"{Path(file).resolve()}:{kind.__qualname__}"


def written(data: Mapping[str, Any]) -> str:
    text: str = yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True, width=100)
    return text


def of_content(table: pa.Table) -> str:
    """A name for what a table holds."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table.combine_chunks())
    return hashlib.sha256(sink.getvalue()).hexdigest()[:16]
