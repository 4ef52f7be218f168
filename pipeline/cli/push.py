"""`gristmill push`: documents of a run, or a folder that `export --to hf` made, to a data set on a Hugging Face hub."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.screen import console, escape


def push(
    folder: Annotated[Path, typer.Argument(help="a run, or any folder of files", show_default=False)],
    repo: Annotated[str, typer.Argument(help="the data set, as OWNER/NAME", show_default=False)],
    revision: Annotated[str | None, typer.Option(help="a branch, which is made if need be; default: main")] = None,
    public: Annotated[bool, typer.Option("--public", help="anybody may see a data set that is new; else you")] = False,
    message: Annotated[str, typer.Option(help="of the commits")] = "Data made with Gristmill",
) -> None:
    """Push the documents of a run, or a folder of files, to a data set on a Hugging Face hub. Again: only what the hub
    lacks is sent."""
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
