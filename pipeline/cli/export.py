"""`gristmill export`: shards or documents in the format of another tool, or on a Hugging Face hub."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from gristmill.pipeline.cli.command import HAND_ON, Command
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.screen import console, escape

HUB = "hub"
MESSAGE = "Data made with Gristmill"


def export(
    folder: Annotated[
        str,
        typer.Argument(
            help="a local run, or a local folder of its shards or documents; for hub also any folder of files",
            show_default=False,
        ),
    ],
    destination: Annotated[
        str,
        typer.Argument(help="a new local folder; for hub: OWNER/NAME", show_default=False),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="shards: megatron, megatron-rows, mds, datatrove, trl, torchtune, hf;"
            " documents: dolma, webdataset, datasketch, datatrove-minhash; documents or a folder of files:"
            " hub (a data set on a Hugging Face hub)",
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
    revision: Annotated[str | None, typer.Option(help="hub: a branch, which is made if need be; default: main")] = None,
    public: Annotated[
        bool, typer.Option("--public", help="hub: anybody may see a data set that is new; else you")
    ] = False,
    message: Annotated[str | None, typer.Option(help=f"hub: of the commits; default: {MESSAGE}")] = None,
) -> None:
    """Write shards or documents for another tool, or push to a hub.

    Formats: the book's chapter Export. Of a hub's data set, only what it lacks is sent.
    """
    if to == HUB:
        if (row_length, eod, shard_bytes, files) != (None,) * 4:
            raise RecipeError(
                "--row-length, --eod, --shard-bytes and --files are for formats; hub takes files as they are"
            )
        push(Path(folder), destination, revision, public, message or MESSAGE)
        return
    if revision or public or message:
        raise RecipeError(f"--revision, --public and --message are for --to {HUB}")
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


def push(folder: Path, repo: str, revision: str | None, public: bool, message: str) -> None:
    """Documents of a run, or a folder of files, to a data set on a Hugging Face hub."""
    from rich.progress import DownloadColumn, Progress

    from gristmill.shards.export.push import files_below, push as push_files
    from gristmill.shards.export.rows import ExportError

    if not folder.is_dir():
        raise RecipeError(f"{folder}: no such folder; runs in an object store are copied to a disk first")
    files = documents_of(folder) if (folder / "run.json").is_file() else files_below(folder)
    columns, is_shown = (*Progress.get_default_columns(), DownloadColumn()), sys.stderr.isatty()
    with Progress(*columns, console=console(stderr=True), transient=True, disable=not is_shown) as bar:
        row = bar.add_task("push", total=None)
        try:
            done = push_files(
                files, repo, revision, not public, message, lambda now, size: bar.update(row, completed=now, total=size)
            )
        except ExportError as error:
            raise RunFailed(str(error)) from error
    console().print(
        f"{escape(done.url)}: {done.files:,} files, {done.bytes / 1e6:,.1f} MB; {done.sent:,} were sent in "
        f"{done.commits:,} commits, {done.files - done.sent:,} were there",
        soft_wrap=True,
    )


def documents_of(folder: Path) -> dict[str, Any]:
    """The files of each sink, and a card with which a hub's viewer opens them."""
    from gristmill.pipeline.store.run_records import read_record
    from gristmill.pipeline.store.storage import Store
    from gristmill.shards.card import StageFacts, dataset_card, with_configs

    record = read_record(Store(str(folder)))
    if not record or not record.done:
        raise RecipeError(f"{folder}: this run is not finished")
    sinks = [stage.name for stage in record.sinks if (folder / stage.name).is_dir()]
    files: dict[str, Any] = {
        f"{sink}/{path.name}": path for sink in sinks for path in sorted((folder / sink).glob("*.parquet"))
    }
    if not files:
        raise RecipeError(f"{folder}: this run wrote no documents; token shards go by `gristmill export --to hf` first")
    configs: list[dict[str, Any]] = [
        {"config_name": sink, "data_files": [{"split": "train", "path": f"{sink}/*.parquet"}]} for sink in sinks
    ]
    configs[0]["default"] = True
    kept = record.stages[-1].sources
    card = dataset_card(
        {
            "title": record.name,
            "summary": "Documents for pretraining, made with Gristmill.",
            "sources": [{"name": name, "documents": count.kept} for name, count in kept.items()],
            "stages": [
                StageFacts(
                    name=stage.name,
                    docs_in=stage.count.docs_in,
                    kept=stage.count.kept,
                    dropped=dict(stage.count.dropped),
                    quarantined=stage.count.quarantined,
                )
                for stage in record.stages
            ],
        }
    )
    return files | {"README.md": with_configs(card, configs).encode()}


COMMAND = Command(
    export, HAND_ON, ("export out/mine/shards/2048 meg/ --to megatron", "export out/mine owner/name --to hub")
)
