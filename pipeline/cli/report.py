"""The commands that show the results of a run: `gristmill report` and `gristmill inspect`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.screen import console, escape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType

    from gristmill.pipeline.store.storage import Store

AsJson = Annotated[bool, typer.Option("--json", help="JSON on standard output")]


def inspect(
    out: Annotated[str, typer.Argument(help="the folder of a run", show_default=False)],
    stage: Annotated[str | None, typer.Argument(help="a stage or source")] = None,
    reason: Annotated[str | None, typer.Option("--reason", help="only documents dropped for this reason")] = None,
    uid: Annotated[str | None, typer.Option("--uid", help="the history of the document with this uid")] = None,
    url: Annotated[str | None, typer.Option("--url", help="the history of the document with this URL")] = None,
    id: Annotated[
        str | None, typer.Option("--id", help="the history of the document with this id of its source")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1)] = 10,
    as_json: AsJson = False,
) -> None:
    """Inspect a run: its funnel and cost, what a stage dropped and why, or the history of one document."""
    from gristmill.pipeline.formatting import as_json as in_json
    from gristmill.pipeline.look import overview
    from gristmill.pipeline.look.history import history
    from gristmill.pipeline.look.run_folder import NotFound, RunFolder
    from gristmill.pipeline.look.show_history import render_history
    from gristmill.pipeline.look.stage_view import render_stage, stage_view

    data: Mapping[str, object]
    view_of: RenderableType
    folder = RunFolder(out)
    try:
        if (uid, url, id) != (None, None, None):
            if [uid, url, id].count(None) < 2:
                raise RecipeError("--uid, --url and --id each name one document: give one of them")
            story = history(folder, uid=uid, url=url, id=id)
            data, view_of = asdict(story), render_history(story)
        elif stage is not None:
            view = stage_view(folder, stage, reason, limit)
            data, view_of = view.as_data(), render_stage(view)
        else:
            seen = overview.overview(folder)
            data, view_of = overview.plain(seen), overview.render(seen)
    except NotFound as error:
        raise RecipeError(str(error)) from error
    except ValueError as error:  # a file of the run that is torn
        raise RunFailed(str(error)) from error
    if as_json:
        print(in_json(data))
    else:
        console().print(view_of)


def report(
    out: Annotated[str, typer.Argument(help="the folder of a run, or of an ablation", show_default=False)],
    other: Annotated[
        str | None, typer.Argument(help="a second run to compare with", metavar="[OTHER]", show_default=False)
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", help="with two runs: the file to write; default: compare.html in the second folder"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="with two runs: what differs, as JSON on standard output")
    ] = False,
) -> None:
    """Rewrite report.html of a run or ablation.html of an ablation; with two runs, show what differs and write
    compare.html."""
    from gristmill.pipeline.look.run_folder import NotFound, RunFolder

    if other is None and (to or as_json):
        raise RecipeError("--to and --json are for two runs: gristmill report A B")
    try:
        if other is not None:
            compare(out, other, to, as_json)
            return
        folder = RunFolder(out)
        if folder.has("run.json"):
            from gristmill.pipeline.report.build import build_report

            write(folder.store, "report.html", build_report(folder))
        elif folder.has("ablation.json"):
            from gristmill.pipeline.report.ablation import build_page

            write(folder.store, "ablation.html", build_page(folder))
        else:
            raise RecipeError(f"{out}: no run is here (there is no run.json), and no ablation (no ablation.json)")
    except NotFound as error:
        raise RecipeError(str(error)) from error
    except ValueError as error:  # a file of the run that is torn
        raise RunFailed(str(error)) from error


def compare(out: str, other: str, to: str | None, as_json: bool) -> None:
    from gristmill.pipeline.compare.compare import compare, plain
    from gristmill.pipeline.compare.sections import page_of, render
    from gristmill.pipeline.look.run_folder import RunFolder

    folders = RunFolder(out), RunFolder(other)
    comparison = compare(*folders)
    if as_json:
        print(json.dumps(plain(comparison)))
    else:
        console().print(render(comparison))
    page = page_of(comparison).encode("utf-8", "replace")
    if to is None:
        folders[1].store.write("compare.html", page)
    else:
        Path(to).write_bytes(page)
    if not as_json:
        where = address(other, "compare.html") if to is None else Path(to).resolve().as_uri()
        console().print(f"compare: {escape(where)}", soft_wrap=True)


def write(store: Store, name: str, page: str) -> None:
    store.write(name, page.encode("utf-8", "replace"))
    console().print(f"report: {escape(address(store.address, name))}", soft_wrap=True)


def address(out: str, name: str = "report.html") -> str:
    return f"{out.rstrip('/')}/{name}" if "://" in out else (Path(out).resolve() / name).as_uri()
