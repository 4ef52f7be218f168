"""`gristmill maintain warm`: kernels compiled before they are needed, and packed for wheels.

A pack is a zstd tar of the cache's files. It is code, and the files are pickle: whoever can write a pack can run
anything where it is used. So only the one that came with the package is read (kernels/base/portable.py).
"""

from __future__ import annotations

import io
import multiprocessing
import os
import tarfile
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated

import typer

from gristmill.pipeline.cli.command import UPKEEP, Command
from gristmill.pipeline.json_types import StageSpec
from gristmill.pipeline.screen import console, escape

SLOWEST_FIRST = ("extract", "personal_data", "text_signals", "repair")  # the others are alike
URL_RULES, LIST = "url_rules", "blocked_domains_file"  # it must name a list


def warm(
    recipe: Annotated[
        Path | None,
        typer.Argument(help="compile what this recipe needs; without one, everything", show_default=False),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to", help="compile for any processor of the last ten years, and pack into this folder for a wheel"
        ),
    ] = None,
) -> None:
    """Compile kernels ahead, or pack them for a wheel."""
    from gristmill.kernels.base import portable
    from gristmill.kernels.common.files import write_whole

    os.environ.update([portable.REFUSED])
    if to is not None:
        os.environ.update(portable.ENVIRONMENT)  # numba is not here yet
    start = time.monotonic()
    show = console()
    count = compile_all(specs_of(recipe))
    if recipe is None:
        run_demo()
    show.print(f"kernels of {count} stages are ready after {time.monotonic() - start:.1f} s")
    if to is not None:
        path, content = to / portable.file().name, packed()
        write_whole(path, content)
        show.print(escape(f"{path}: {len(content) / 1e6:.1f} MB"), soft_wrap=True)


def packed() -> bytes:
    """The kernels that this machine has compiled, and their tables, of this version. Equal files make equal bytes."""
    import zstandard

    import gristmill.kernels
    from gristmill.kernels.base.code_cache import KERNELS, cache_folder, folder_name

    root, cache = Path(gristmill.kernels.__file__).parent, cache_folder()
    modules = (path.relative_to(root).with_suffix("") for path in root.rglob("*.py") if path.name != "__init__.py")
    folders = [folder_name(KERNELS + ".".join(path.parts)) for path in modules]
    there = [path for name in folders for path in (cache / name).glob("*.nbc")]
    hashes = {name.removeprefix("kernels-") for name in folders}
    there += [path for path in cache.glob("table-*.npy") if hashes & set(path.stem.split("-"))]
    files = {path.relative_to(cache).as_posix(): path.read_bytes() for path in there}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for member, content in sorted(files.items()):
            facts = tarfile.TarInfo(member)
            facts.size = len(content)
            tar.addfile(facts, io.BytesIO(content))
    return zstandard.compress(buffer.getvalue(), 3)


def specs_of(recipe: Path | None) -> list[StageSpec]:
    """Stages to prepare: of a recipe, or all of the mill that have something to prepare and need no setting for it."""
    from gristmill.pipeline.plan.plan import make_plan
    from gristmill.pipeline.recipe import recipe as recipes, registry
    from gristmill.pipeline.recipe.recipe import Step
    from gristmill.stages.stage import Stage

    if recipe is not None:
        steps = [thing for _, thing in make_plan(recipes.load(recipe)).stage_order() if isinstance(thing, Step)]
        return [step.spec for step in steps if type(step.stage).prepare is not Stage.prepare]
    kinds = {name: kind for name, kind in registry.built_in().items() if kind.prepare is not Stage.prepare}
    names = [name for name, kind in kinds.items() if not any(f.is_required() for f in kind.model_fields.values())]
    return [{"stage": name, "settings": {}, "code": None} for name in names]


def compile_all(specs: Sequence[StageSpec]) -> int:
    """In as many processes as there are cores; how many stages."""
    from gristmill.pipeline.processes import cores_here

    def rank(spec: StageSpec) -> int:
        return SLOWEST_FIRST.index(spec["stage"]) if spec["stage"] in SLOWEST_FIRST else len(SLOWEST_FIRST)

    processes = min(cores_here(), len(specs))
    if processes:
        with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
            list(pool.map(compile_one, sorted(specs, key=rank)))
    return len(specs)


def run_demo() -> None:
    """What stages compile only as they work: training a tokenizer, packing."""
    from gristmill.pipeline.demo.crawl import write_crawl
    from gristmill.pipeline.engine.cluster import Where
    from gristmill.pipeline.progress.progress import Quiet
    from gristmill.pipeline.recipe import recipe as recipes
    from gristmill.pipeline.run.run import run

    with tempfile.TemporaryDirectory() as folder:
        write_crawl(Path(folder))
        run(recipes.load(Path(folder) / "demo.yaml"), f"{folder}/run", Where(1), Quiet())


def compile_one(spec: StageSpec) -> None:
    from gristmill.pipeline.recipe import registry

    with tempfile.NamedTemporaryFile("w", suffix=".txt") as made_up:
        if spec["stage"] == URL_RULES and not spec["settings"]:
            made_up.write("mill.example\n")
            made_up.flush()
            spec = {"stage": URL_RULES, "settings": {LIST: made_up.name}, "code": None}
        registry.prepare(registry.build(spec))


COMMAND = Command(warm, UPKEEP, ("maintain warm", "maintain warm recipe.yaml"))
