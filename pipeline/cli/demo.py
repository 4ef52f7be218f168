"""`gristmill demo`: a small crawl with known answers, from its pages to shards."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from gristmill.pipeline.cli.command import START, Command
from gristmill.pipeline.cli.options import Workers
from gristmill.pipeline.errors import GristmillError
from gristmill.pipeline.screen import address, console, escape

NEXT = (
    ("inspect {run}", "the funnel, and what each stage dropped"),
    ("tune {run} gopher_quality.min_words=80", "what another threshold would do"),
    ("init FOLDER", "a recipe for files of your own"),
)


def demo(
    out: Annotated[Path, typer.Option("--out", help="output folder of the demo")] = Path("demo"),
    workers: Workers = None,
) -> None:
    """Make a small crawl with known answers, run it and check the result."""
    from gristmill.kernels.base import portable
    from gristmill.pipeline.demo.check import check
    from gristmill.pipeline.demo.check_shards import check_shards
    from gristmill.pipeline.demo.crawl import ROW_LENGTH, write_crawl
    from gristmill.pipeline.engine.cluster import Where
    from gristmill.pipeline.progress.terminal import final_table, ui_for
    from gristmill.pipeline.recipe import recipe as recipes
    from gristmill.pipeline.run.run import run

    crawl, folder = out / "crawl", str(out / "run")
    crawl.mkdir(parents=True, exist_ok=True)
    show, log = console(), console(stderr=True)
    log.print(f"making a crawl of planted duplicates, bad pages and secrets in {escape(str(crawl))}")
    truth = write_crawl(crawl)
    if portable.file().is_file():
        log.print("running it, by the kernels that came with the package")
    else:
        log.print("running it; on a new machine kernels are compiled first, which takes a minute once")
    with ui_for(False, log) as ui:
        summary = run(recipes.load(crawl / "demo.yaml"), folder, Where(workers), ui)
    show.print(final_table(summary.record))
    findings = [*check(out / "run", truth), *check_shards(out / "run", ROW_LENGTH)]
    wrong = [finding for finding in findings if not finding.ok]
    for finding in wrong:
        show.print(
            f"[red]not so[/red]  {escape(finding.what)}: {escape(str(finding.found))}, expected "
            f"{escape(str(finding.expected))}"
        )
    show.print(
        f"{len(findings) - len(wrong)} of {len(findings)} facts of the crawl came out as they were planted: what is "
        "spam, copied,\nforeign or damaged went, each for its reason, and shards give back every text"
    )
    show.print(f"report: {escape(address(folder))}")
    if wrong:
        raise GristmillError("the demo's result is not what was planted in it")
    lines = [(f"gristmill {command.format(run=shlex.quote(folder))}", about) for command, about in NEXT]
    show.print("next:")
    for command, about in lines:
        show.print(f"  {escape(command)}\n    [dim]{about}[/dim]", soft_wrap=True)


COMMAND = Command(demo, START, ("demo", "demo --out /tmp/demo"))
