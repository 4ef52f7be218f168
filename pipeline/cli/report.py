"""`gristmill report`: the pages of a run or an ablation, what differs between two runs, and the public summary."""

from __future__ import annotations

from typing import Annotated

import typer

from gristmill.pipeline.cli.command import LOOK, Command
from gristmill.pipeline.cli.options import show
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.screen import address, console, escape


def report(
    out: Annotated[str, typer.Argument(help="the folder of a run, or of an ablation", show_default=False)],
    other: Annotated[str | None, typer.Argument(help="a second run to compare with", show_default=False)] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", help="with two runs: the file to write; default: compare.html in the second folder"),
    ] = None,
    law: Annotated[
        str | None,
        typer.Option(
            "--for",
            help="write the public summary of training content instead, by the template of eu (the AI Act's Article"
            " 53(1)(d))",
        ),
    ] = None,
    documents: Annotated[
        str | None,
        typer.Option("--documents", help="with --for: the stage whose files are counted; default: the last `write`"),
    ] = None,
    synthetic: Annotated[
        list[str] | None,
        typer.Option("--synthetic", help="with --for: a source that holds synthetic data; may be repeated"),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="with two runs: what differs; with --for: the summary; JSON on standard output"),
    ] = False,
) -> None:
    """Rewrite report.html; of two runs, show what differs.

    Of an ablation ablation.html; of two runs also compare.html. With --for, write the public summary of
    training content.
    """
    from gristmill.pipeline.door.runs import open_run
    from gristmill.pipeline.look.run_folder import RunFolder

    if law is None and (documents or synthetic):
        raise RecipeError("--documents and --synthetic are for the public summary: gristmill report OUT --for eu")
    if law is not None and (other or to):
        raise RecipeError("--for writes the public summary of one run; leave out OTHER and --to")
    if other is None and law is None and (to or as_json):
        raise RecipeError("--to and --json are for two runs: gristmill report A B")
    folder = RunFolder(out)
    try:
        if law is not None:
            show(open_run(out).summarize(law, documents, synthetic or ()), as_json)
        elif other is not None:
            show(open_run(out).compare(other, to), as_json)
        elif folder.has("run.json"):
            open_run(out).report()
            console().print(f"report: {escape(address(out))}", soft_wrap=True)
        elif folder.has("ablation.json"):
            from gristmill.pipeline.report.ablation import build_page

            folder.store.write("ablation.html", build_page(folder).encode("utf-8", "replace"))
            console().print(f"report: {escape(address(out, 'ablation.html'))}", soft_wrap=True)
        else:
            raise RecipeError(f"{out}: no run is here (there is no run.json), and no ablation (no ablation.json)")
    except ValueError as error:  # a file of the run that is torn
        raise RunFailed(str(error)) from error


COMMAND = Command(report, LOOK, ("report out/mine", "report out/a out/b", "report out/mine --for eu"))
