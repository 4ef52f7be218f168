"""The commands for token shards and files of other tools: `gristmill verify`, which also looks at a whole run, `export`
and `import`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.screen import console, escape, say

if TYPE_CHECKING:
    from gristmill.shards.verify import Fault


def verify(
    folder: Annotated[str, typer.Argument(help="a run, or a folder of token shards", show_default=False)],
    read: Annotated[
        bool,
        typer.Option("--read", help="at s3://: fetch and check every byte, of shards too; else lengths of files alone"),
    ] = False,
) -> None:
    """Verify every byte of a run and every count of its token shards; exit code 1 if anything differs from what was
    written."""
    from gristmill.pipeline.cli.upkeep import check_files
    from gristmill.pipeline.look.token_sets import faults_in_store, faults_of
    from gristmill.pipeline.store.storage import Store

    show, count, store = console(), 0, Store(folder)
    told: set[Path] = set()  # files that are known to be damaged
    is_run = store.exists("run.json") and store.exists("journal")
    with_content = store.local or read
    fine = "as written" if with_content else "there, of the written lengths"
    if not is_run and store.exists("run.json"):
        say(show, f"{folder}: the run's journal is not here, so that only token shards are checked")
    if not with_content:
        say(show, f"{folder}: lengths of files are checked, contents with --read")
    if is_run:
        files = check_files(store, read)
        told.update(Path(store.at(path)).resolve() for path in files.damaged)
        for line in files.faults:
            show.print(f"[red]fault[/red]  {escape(line)}", soft_wrap=True)
        count += len(files.faults)
        first = "" if files.next_run_knows else "remove what is not as written, and "
        show.print(
            f"{escape(folder)}: {counted(files.there, 'file')} checked, {counted(len(files.faults), 'fault')};"
            f" {first}run the recipe again to repair {'them' if len(files.faults) > 1 else 'it'}"
            if files.faults
            else f"{escape(folder)}: {counted(files.there, 'file')}, all {fine}"
        )
    sets: Iterable[tuple[Path | str, int, list[Fault]]] = ()
    if not is_run or store.exists("shards"):
        sets = faults_of(folder) if store.local else faults_in_store(store, read)
    for path, shards, faults in sets:
        for fault in faults:
            if fault.row is None and told and (Path(path) / fault.shard).resolve() in told:
                continue
            show.print(f"[red]fault[/red]  {escape(str(path))}: {escape(str(fault))}", soft_wrap=True)
            count += 1
        show.print(
            f"{escape(str(path))}: {counted(shards, 'shard')} checked, {counted(len(faults), 'fault')}"
            if faults
            else f"{escape(str(path))}: {counted(shards, 'shard')}, all {fine}"
        )
    if count:
        raise RunFailed(counted(count, "fault"))


def counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'s' if number != 1 else ''}"


def export(
    folder: Annotated[
        str, typer.Argument(help="a local run, or a local folder of its shards or documents", show_default=False)
    ],
    destination: Annotated[str, typer.Argument(help="a new local folder", show_default=False)],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="shards: megatron, megatron-rows, mds, datatrove, trl, torchtune, hf;"
            " documents: dolma, webdataset, datasketch, datatrove-minhash",
        ),
    ],
    row_length: Annotated[int | None, typer.Option(help="which set of shards, if a run has several")] = None,
    eod: Annotated[
        int | None,
        typer.Option(help="megatron-rows: the token that ends a document and pads rows; default: that of the shards"),
    ] = None,
    shard_bytes: Annotated[
        str | None, typer.Option(help="mds, webdataset: largest file, such as 100MB; default: 64 MiB, 256 MiB")
    ] = None,
    files: Annotated[str | None, typer.Option(help="trl, torchtune: parquet or arrow")] = None,
) -> None:
    """Write token shards or documents in the format of another tool (the book's chapter Export)."""
    from rich.progress import Progress

    from gristmill.kernels.common.settings import bytes_of
    from gristmill.pipeline.look.token_sets import exported
    from gristmill.shards.export.export import Options

    try:
        largest = bytes_of(shard_bytes)
    except ValueError as error:
        raise RecipeError(f"--shard-bytes: {error}") from error
    if largest == 0:
        raise RecipeError("--shard-bytes: a file holds a byte at least")
    with Progress(console=console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        rows_bar = bar.add_task("exported", total=None)
        options = Options(eod=eod, shard_bytes=largest, files=files)
        done = exported(
            folder,
            to,
            destination,
            row_length,
            options,
            lambda rows, of: bar.update(rows_bar, completed=rows, total=of),
        )
    console().print(
        f"{escape(str(done.destination))}: {done.items:,} items, {done.bytes / 1e6:,.1f} MB."
        f" Opens with: {escape(done.opens_with)}",
        soft_wrap=True,
    )


def import_(
    source: Annotated[Path, typer.Argument(help="a file, or a folder of token files", show_default=False)],
    destination: Annotated[Path, typer.Argument(help="a new folder", show_default=False)],
    kind: Annotated[
        str, typer.Option("--from", help="token files: datatrove, megatron; judges: fasttext, sklearn (skops)")
    ],
    tokenizer: Annotated[
        str | None, typer.Option(help="of token files: the tokenizer that made them (a folder, file or hub id)")
    ] = None,
    eos_token: Annotated[str | None, typer.Option(help="of token files: the end of a text, if it does not say")] = None,
    row_length: Annotated[int | None, typer.Option(min=16, help="of token files: tokens in a row; 2048")] = None,
    head: Annotated[str | None, typer.Option(help="of a judge: the name of its score; quality")] = None,
    good_label: Annotated[str | None, typer.Option(help="of a judge with two labels: which one is good")] = None,
    classes: Annotated[str | None, typer.Option(help="of a judge: its labels from worst to best, by commas")] = None,
    between: Annotated[str | None, typer.Option(help="of a regressor: lowest and highest value, 0,5")] = None,
    steps: Annotated[
        str | None, typer.Option(help="fasttext: what was done to texts before training (chapter Judges), by commas")
    ] = None,
) -> None:
    """Take in files of another tool: tokens as shards, a model as a judge (the book's chapter Export)."""
    from gristmill.pipeline.interchange.imports import Importing, bring_in

    how = Importing(tokenizer, eos_token, row_length, head, good_label, classes, between, steps)
    console().print(escape(bring_in(source, destination, kind, how)), soft_wrap=True)
