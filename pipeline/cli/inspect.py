"""`gristmill inspect`: what a run did, what a stage dropped and why, one document's history, where a passage is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gristmill.pipeline.cli.command import LOOK, Command
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.screen import console, escape, say

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gristmill.pipeline.look.run_folder import RunFolder

SHOWN = 200  # characters of a passage that is found


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
    from gristmill.pipeline.look.run_folder import NotFound, RunFolder

    if [uid, url or None, urls, id, text, text_file].count(None) < 5:
        raise RecipeError("--uid, --url, --urls, --id, --text and --text-file each name what to show: give one of them")
    folder = RunFolder(out)
    try:
        passage = text_of(text_file, "--text-file") if text_file is not None else text
        if urls is not None:
            url = [line.strip() for line in text_of(urls, "--urls").splitlines() if line.strip()]
            if not url:
                raise RecipeError(f"--urls: {urls}: it holds no URL; one a line was expected")
        if passage is not None:
            show_passages(folder, passage, limit, as_json)
        elif uid is not None or url or id is not None:
            show_histories(folder, uid, url or (), id, as_json, many=urls is not None or len(url or ()) > 1)
        elif stage is not None:
            from gristmill.pipeline.look.stage_view import render_stage, stage_view

            view = stage_view(folder, stage, reason, limit)
            show(view.as_data(), render_stage(view), as_json)
        else:
            from gristmill.pipeline.look import overview

            seen = overview.overview(folder)
            show(overview.plain(seen), overview.render(seen), as_json)
    except NotFound as error:
        raise RecipeError(str(error)) from error
    except ValueError as error:  # a file of the run that is torn
        raise RunFailed(str(error)) from error


def show(data: object, view: RenderableType, as_json: bool) -> None:
    from gristmill.pipeline.formatting import as_json as in_json

    if as_json:
        print(in_json(data))
    else:
        console().print(view)


def show_histories(
    folder: RunFolder, uid: str | None, urls: Sequence[str], id: str | None, as_json: bool, many: bool
) -> None:
    """The history of one document; of many URLs, an array in JSON. URLs that are not there are named at the end."""
    from gristmill.pipeline.formatting import as_json as in_json
    from gristmill.pipeline.look.history import histories, history
    from gristmill.pipeline.look.show_history import render_history

    if not many:
        story = history(folder, uid=uid, url=urls[0] if urls else None, id=id)
        show(asdict(story), render_history(story), as_json)
        return
    shown: list[dict[str, Any]] = []
    screen = console()
    try:
        for story in histories(folder, "url", urls):
            if shown and not as_json:
                screen.rule(style="dim")
            shown.append(asdict(story))
            if not as_json:
                screen.print(render_history(story))
    finally:
        if as_json:
            print(in_json(shown))


def show_passages(folder: RunFolder, passage: str, most: int, as_json: bool) -> None:
    """Documents of token shards that hold it, and the record that each came from."""
    from gristmill.pipeline.look.find import find_in_run

    log, screen, count = console(stderr=True), console(), 0
    for found in find_in_run(folder, passage, most, lambda message: log.print(f"[dim]{escape(message)}[/dim]")):
        count += 1
        if as_json:
            print(json.dumps(found.plain()))
            continue
        record = ", ".join(found.files[:3]) + (" or others of its part" if len(found.files) > 3 else "")
        where = f", byte {found.offset:,}" if found.offset is not None else ""
        held = found.passage if len(found.passage) <= SHOWN else f"{found.passage[:SHOWN]} [...] "
        say(screen, f"{found.source}  {found.url or ''}", "bold", str(found.uid))
        say(screen, f"  in {found.set}/{found.shard}")
        say(screen, f"  read from {record or 'a file that is not on record'}{where}")
        say(screen, f"  ...{found.before}{held}{found.after}...", "dim")
    if not count:
        if not as_json:
            screen.print("no document of these shards holds it")
        raise typer.Exit(1)


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
