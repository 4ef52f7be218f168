"""`gristmill forget`: take documents out of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gristmill.pipeline.cli.command import HAND_ON, Command
from gristmill.pipeline.cli.options import note, show


def forget(
    out: Annotated[str, typer.Argument(help="the output folder of a finished run", show_default=False)],
    names: Annotated[
        Path | None,
        typer.Option(
            "--list",
            help="a file with a uid, url, host, e-mail address or hash of a text on each line; without it an unfinished"
            " `forget` goes on",
        ),
    ] = None,
    with_copies: Annotated[
        bool,
        typer.Option(
            "--with-copies", help="also forget documents with the same text, and those dropped as their duplicates"
        ),
    ] = False,
    skip_inputs: Annotated[
        bool,
        typer.Option(
            "--skip-inputs",
            help="do not read the inputs again for what `personal_data` has masked in the run; the receipt says so",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only show what would be forgotten")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="the receipt as JSON on standard output")] = False,
) -> None:
    """Take documents out of a run, its shards and exports.

    Also out of rejects, reports, indexes, its sample and copies of its inputs. Later runs leave them out;
    duplicates that were dropped for them may come back then.
    """
    from gristmill.pipeline.door.runs import Run

    receipt = Run(out).forget(names, with_copies=with_copies, skip_inputs=skip_inputs, dry_run=dry_run, note=note)
    show(receipt, as_json, soft_wrap=True)


COMMAND = Command(forget, HAND_ON, ("forget out/mine --list ids.txt",))
