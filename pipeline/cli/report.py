"""`gristmill report`: the pages of a run or an ablation, what differs between two runs, and the public summary."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gristmill.pipeline.cli.command import LOOK, Command
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.screen import console, escape

if TYPE_CHECKING:
    from gristmill.pipeline.store.storage import Store


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
    from gristmill.pipeline.look.run_folder import NotFound, RunFolder

    if law is None and (documents or synthetic):
        raise RecipeError("--documents and --synthetic are for the public summary: gristmill report OUT --for eu")
    if law is not None and (other or to):
        raise RecipeError("--for writes the public summary of one run; leave out OTHER and --to")
    if other is None and law is None and (to or as_json):
        raise RecipeError("--to and --json are for two runs: gristmill report A B")
    try:
        if law is not None:
            summarize(out, law, documents, synthetic or (), as_json)
            return
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


def summarize(out: str, law: str, documents: str | None, synthetic: Sequence[str], as_json: bool) -> None:
    from gristmill.pipeline.formatting import as_json as in_json
    from gristmill.pipeline.look.run_folder import RunFolder
    from gristmill.pipeline.summary.files import render, write_summary

    made, paths = write_summary(RunFolder(out), law, documents, synthetic)
    if as_json:
        print(in_json(made.plain()))
        return
    console().print(render(made))
    for path in paths:
        console().print(f"wrote: {escape(address(out, path))}", soft_wrap=True)


def write(store: Store, name: str, page: str) -> None:
    store.write(name, page.encode("utf-8", "replace"))
    console().print(f"report: {escape(address(store.address, name))}", soft_wrap=True)


def address(out: str, name: str = "report.html") -> str:
    return f"{out.rstrip('/')}/{name}" if "://" in out else (Path(out).resolve() / name).as_uri()


COMMAND = Command(report, LOOK, ("report out/mine", "report out/a out/b", "report out/mine --for eu"))
