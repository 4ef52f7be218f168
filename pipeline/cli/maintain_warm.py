"""`gristmill maintain warm`: kernels compiled before they are needed, and handed on in one file."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated

import typer

from gristmill.pipeline.cli.command import UPKEEP, Command
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.json_types import StageSpec
from gristmill.pipeline.screen import console, escape

SLOWEST_FIRST = ("extract", "personal_data", "text_signals", "repair")  # the others are alike
URL_RULES, LIST = "url_rules", "blocked_domains_file"  # it must name a list


def warm(
    recipe: Annotated[
        Path | None,
        typer.Argument(help="compile what this recipe needs; without one, everything", show_default=False),
    ] = None,
    to: Annotated[Path | None, typer.Option("--to", help="pack what is compiled, into this folder or file")] = None,
    from_: Annotated[
        Path | None, typer.Option("--from", help="unpack this pack first; it is code, so give its --sha256")
    ] = None,
    sha256: Annotated[
        str | None, typer.Option("--sha256", help="of that pack, as `maintain warm --to` prints it")
    ] = None,
    portable: Annotated[
        bool, typer.Option("--portable", help="for any processor of the last ten years, as a wheel has them")
    ] = False,
) -> None:
    """Compile kernels ahead, or pack them for other machines."""
    from gristmill.kernels.base import portable as portable_kernels
    from gristmill.kernels.common.files import write_whole

    os.environ.update([portable_kernels.REFUSED])
    if portable:
        os.environ.update(portable_kernels.ENVIRONMENT)  # numba is not here yet
    from gristmill.pipeline.cli.kernel_packs import file_name, packed, unpack

    if (from_ is None) != (sha256 is None):
        raise RecipeError("--from and --sha256 go together: a pack is code, and is used only if it is the one you mean")
    start = time.monotonic()
    show = console()
    if from_ is not None and sha256 is not None:
        show.print(f"unpacked {unpack(from_.read_bytes(), sha256):,} files of {escape(str(from_))}", soft_wrap=True)
    count = compile_all(specs_of(recipe))
    if recipe is None:
        run_demo()
    show.print(f"kernels of {count} stages are ready after {time.monotonic() - start:.1f} s")
    if to is not None:
        name = portable_kernels.file().name if portable else file_name()
        path = to if to.suffix and not to.is_dir() else to / name
        content = packed()
        write_whole(path, content)
        digest = hashlib.sha256(content).hexdigest()
        show.print(escape(f"{path}: {len(content) / 1e6:.1f} MB, sha256 {digest}"), soft_wrap=True)


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


COMMAND = Command(warm, UPKEEP, ("maintain warm", "maintain warm recipe.yaml --to packs/"))
