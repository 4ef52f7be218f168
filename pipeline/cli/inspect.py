"""`gristmill inspect`: what a run did, what a stage dropped and why, one document's history, where a passage is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from gristmill.pipeline.cli.command import LOOK, Command
from gristmill.pipeline.cli.options import note, show
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.formatting import as_json as in_json
from gristmill.pipeline.screen import console


def inspect(
    out: Annotated[
        str,
        typer.Argument(help="the folder of a run; with --text also of token shards", show_default=False),
    ],
    stage: Annotated[str | None, typer.Argument(help="a stage or source")] = None,
    reason: Annotated[str | None, typer.Option("--reason", help="only documents dropped for this reason")] = None,
    uid: Annotated[str | None, typer.Option("--uid", help="the history of the document with this uid")] = None,
    url: Annotated[
        list[str] | None, typer.Option("--url", help="the history of the document with this URL; may be repeated")
    ] = None,
    id: Annotated[
        str | None, typer.Option("--id", help="the history of the document with this id of its source")
    ] = None,
    urls: Annotated[Path | None, typer.Option("--urls", help="the same for each URL in a file, one a line")] = None,
    text: Annotated[
        str | None,
        typer.Option(
            "--text",
            help="documents whose token shards hold this passage, and the records they came from; case and white space"
            " do not count; exit code 1 if there is none",
        ),
    ] = None,
    text_file: Annotated[Path | None, typer.Option("--text-file", help="the same for a passage in a file")] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="documents to show; with --text, of each set of shards")
    ] = 10,
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON on standard output; with --text, a line for each document")
    ] = False,
) -> None:
    """Show the funnel, what a stage dropped, a document's history.

    With --text: which documents of the token shards hold a passage, and which records they came from.
    """
    from gristmill.pipeline.door.runs import Run, open_run

    if [uid, url or None, urls, id, text, text_file].count(None) < 5:
        raise RecipeError("--uid, --url, --urls, --id, --text and --text-file each name what to show: give one of them")
    try:
        passage = text_of(text_file, "--text-file") if text_file is not None else text
        if urls is not None:
            url = [line.strip() for line in text_of(urls, "--urls").splitlines() if line.strip()]
            if not url:
                raise RecipeError(f"--urls: {urls}: it holds no URL; one a line was expected")
        if passage is not None:
            found = Run(out).find(passage, limit, note)
            if as_json:
                print("".join(f"{json.dumps(document)}\n" for document in found.data), end="")
            else:
                show(found, as_json)
            if not found.data:
                raise typer.Exit(1)
        elif urls is not None or len(url or ()) > 1:
            show_histories(out, url or (), as_json)
        elif uid is not None or url or id is not None:
            show(open_run(out).history(uid, url[0] if url else None, id), as_json)
        elif stage is not None:
            show(open_run(out).stage(stage, reason, limit), as_json)
        else:
            show(open_run(out).funnel, as_json)
    except ValueError as error:  # a file of the run that is torn
        raise RunFailed(str(error)) from error


def show_histories(out: str, urls: Sequence[str], as_json: bool) -> None:
    """The history of each document; an array in JSON. URLs that are not there are named at the end."""
    from gristmill.pipeline.look.history import histories
    from gristmill.pipeline.look.run_folder import RunFolder
    from gristmill.pipeline.look.show_history import render_history

    shown: list[dict[str, Any]] = []
    screen = console()
    try:
        for story in histories(RunFolder(out), "url", urls):
            if shown and not as_json:
                screen.rule(style="dim")
            shown.append(asdict(story))
            if not as_json:
                screen.print(render_history(story))
    finally:
        if as_json:
            print(in_json(shown))


def text_of(file: Path, option: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{option}: {file}: {error}") from error


COMMAND = Command(
    inspect,
    LOOK,
    (
        "inspect out/mine",
        "inspect out/mine gopher_quality --reason too_few_words",
        "inspect out/mine --url https://a.org/ --url https://b.org/",
        "inspect out/mine --urls urls.txt",
        "inspect out/mine --id doc-17",
        'inspect out/mine --text "to be or not"',
    ),
)
