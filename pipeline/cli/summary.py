"""`gristmill summary`: what a run would train on, for the public."""

from __future__ import annotations

from typing import Annotated

import typer

from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.screen import console, escape


def summary(
    out: Annotated[str, typer.Argument(help="the folder of a run", show_default=False)],
    law: Annotated[str, typer.Option("--for", help="whose template: eu, of the AI Act's Article 53(1)(d)")] = "eu",
    documents: Annotated[
        str | None, typer.Option("--documents", help="the stage whose files are counted; default: the last `write`")
    ] = None,
    synthetic: Annotated[
        list[str] | None, typer.Option("--synthetic", help="a source that holds synthetic data; may be repeated")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output")] = False,
) -> None:
    """Write the public summary of training content, Croissant metadata and the card of the data set."""
    from gristmill.pipeline.cli.report import address
    from gristmill.pipeline.formatting import as_json as in_json
    from gristmill.pipeline.look.run_folder import NotFound, RunFolder
    from gristmill.pipeline.summary.files import write_summary
    from gristmill.pipeline.summary.page import render

    try:
        made, paths = write_summary(RunFolder(out), law, documents, synthetic or ())
    except NotFound as error:
        raise RecipeError(str(error)) from error
    except ValueError as error:  # a file of the run that is torn
        raise RunFailed(str(error)) from error
    if as_json:
        print(in_json(made.plain()))
        return
    console().print(render(made))
    for path in paths:
        console().print(f"wrote: {escape(address(out, path))}", soft_wrap=True)
