"""The commands `gristmill forget`, which takes documents out of a run, and `gristmill find`, which looks for a passage
in its shards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from gristmill.pipeline.screen import console, escape, say

SHOWN = 200  # characters of a passage that is found


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
        bool, typer.Option("--with-copies", help="also forget documents with the same or nearly the same text")
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
    """Take documents out of a run: documents, rejects, reports, indexes, shards, exports, its sample and copies of its
    inputs. Later runs leave them out; duplicates that were dropped for them may come back then."""
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
    console().print(escape(in_words(receipt, done=not dry_run)), end="", soft_wrap=True)
    if "receipt" not in receipt and not dry_run:
        console().print("\nthere was nothing to do: this run has none of it, and its list names it already")
    elif not dry_run:
        console().print(f"\nreceipt: {escape(receipt['receipt'])}", soft_wrap=True)


def find(
    out: Annotated[str, typer.Argument(help="a run, or a folder of token shards", show_default=False)],
    text: Annotated[str | None, typer.Option("--text", help="the passage; case and white space do not count")] = None,
    file: Annotated[Path | None, typer.Option("--file", help="a file with the passage")] = None,
    most: Annotated[int, typer.Option("--most", min=1, help="documents to show of each set of shards")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="a line of JSON for each document")] = False,
) -> None:
    """Find a passage in the token shards of a run: the documents that hold it, and the records they came from. Exit
    code 1 if there is none."""
    from gristmill.pipeline.errors import RecipeError
    from gristmill.pipeline.look.find import find_in_run
    from gristmill.pipeline.look.run_folder import RunFolder

    if (text is None) == (file is None):
        raise RecipeError("give the passage with --text, or a file that holds it with --file; one of them")
    try:
        passage = text if text is not None else Path(str(file)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"--file: {file}: {error}") from error
    screen, show, count = console(stderr=True), console(), 0
    for found in find_in_run(
        RunFolder(out), passage, most, lambda message: screen.print(f"[dim]{escape(message)}[/dim]")
    ):
        count += 1
        if as_json:
            print(json.dumps(found.plain()))
            continue
        record = ", ".join(found.files[:3]) + (" or others of its part" if len(found.files) > 3 else "")
        where = f", byte {found.offset:,}" if found.offset is not None else ""
        say(show, f"{found.source}  {found.url or ''}", "bold", str(found.uid))
        passage = found.passage if len(found.passage) <= SHOWN else f"{found.passage[:SHOWN]} [...] "
        say(show, f"  in {found.set}/{found.shard}")
        say(show, f"  read from {record or 'a file that is not on record'}{where}")
        say(show, f"  ...{found.before}{passage}{found.after}...", "dim")
    if not count:
        if not as_json:
            show.print("no document of these shards holds it")
        raise typer.Exit(1)
