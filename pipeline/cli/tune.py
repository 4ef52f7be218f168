"""`gristmill tune`: what another threshold would keep and drop."""

from __future__ import annotations

from typing import Annotated

import typer

from gristmill.pipeline.cli.command import LOOK, Command
from gristmill.pipeline.cli.options import AsJson, OutPath
from gristmill.pipeline.screen import console


def tune(
    out: OutPath,
    settings: Annotated[
        list[str], typer.Argument(help="what to change: gopher_quality.min_words=80", metavar="STAGE.FIELD=VALUE")
    ],
    samples: Annotated[
        int,
        typer.Option(
            "--samples",
            min=0,
            help="documents to show that would be newly dropped, and as many that would be newly kept",
        ),
    ] = 3,
    where: Annotated[
        str, typer.Option("--where", help="only documents with these values of signals", metavar="SIGNAL=VALUE,...")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Show what another threshold would keep and drop.

    From stored signals, without a run, in seconds.
    """
    from gristmill.pipeline.door.runs import open_run
    from gristmill.pipeline.look.tune import as_json as as_json_text

    answer = open_run(out).tune(*settings, samples=samples, where=where)
    if as_json:
        print(as_json_text(answer.data))
    else:
        console().print(answer)


COMMAND = Command(tune, LOOK, ("tune out/mine gopher_quality.min_words=80",))
