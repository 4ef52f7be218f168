"""`gristmill export`: shards or documents in the format of another tool, or on a Hugging Face hub."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from gristmill.pipeline.cli.command import HAND_ON, Command
from gristmill.pipeline.screen import console


def export_command(
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
            help="what another tool reads, such as megatron, mds, trl or hf (of shards), dolma or webdataset (of documents);"
            " hub: a data set on a Hugging Face hub. A name that is none lists them all",
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
    message: Annotated[str | None, typer.Option(help="hub: of the commits; default: Data made with Gristmill")] = None,
) -> None:
    """Write shards or documents for another tool, or push to a hub.

    Formats: the book's chapter Export. Of a hub's data set, only what it lacks is sent.
    """
    from rich.progress import DownloadColumn, Progress

    from gristmill.pipeline.door.exports import HUB, export

    columns = (*Progress.get_default_columns(), *([DownloadColumn()] if to == HUB else []))
    with Progress(*columns, console=console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        row = bar.add_task("pushed" if to == HUB else "exported", total=None)
        done = export(
            folder, destination, to, row_length=row_length, eod=eod, shard_bytes=shard_bytes, files=files,
            revision=revision, public=public, message=message,
            progress=lambda now, whole: bar.update(row, completed=now, total=whole),
        )  # fmt: skip
    console().print(done, soft_wrap=True)


COMMAND = Command(
    export_command, HAND_ON, ("export out/mine/shards/2048 meg/ --to megatron", "export out/mine owner/name --to hub")
)
