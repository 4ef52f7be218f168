"""`gristmill forget`: take documents out of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from gristmill.pipeline.cli.command import HAND_ON, Command
from gristmill.pipeline.screen import console, escape


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
    from gristmill.pipeline.forget.receipt import in_words
    from gristmill.pipeline.forget.request import read_request
    from gristmill.pipeline.forget.takedown import forget as carry_out

    request = None if names is None else read_request(names)
    screen = console(stderr=True)
    receipt = carry_out(
        out, request, with_copies=with_copies, skip_inputs=skip_inputs, dry_run=dry_run,
        note=lambda message: screen.print(f"[dim]{escape(message)}[/dim]", soft_wrap=True),
    )  # fmt: skip
    if as_json:
        print(json.dumps(receipt))
        return
    console().print(escape(in_words(receipt)), end="", soft_wrap=True)
    if "receipt" not in receipt and not dry_run:
        console().print("\nthere was nothing to do: this run has none of it, and its list names it already")
    elif not dry_run:
        console().print(f"\nreceipt: {escape(receipt['receipt'])}", soft_wrap=True)


COMMAND = Command(forget, HAND_ON, ("forget out/mine --list ids.txt",))
