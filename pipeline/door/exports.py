"""`gristmill.export`, which `gristmill export` calls: shards or documents in the format of another tool, or on a
Hugging Face hub."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from gristmill.kernels.common.settings import bytes_of
from gristmill.pipeline.door.views import View
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.formatting import plain
from gristmill.pipeline.look.token_sets import exported
from gristmill.pipeline.store.run_records import read_record
from gristmill.pipeline.store.storage import Store
from gristmill.shards.card import StageFacts, dataset_card, with_configs
from gristmill.shards.export.export import Options
from gristmill.shards.export.push import files_below, push
from gristmill.shards.export.rows import ExportError

if TYPE_CHECKING:
    from gristmill.pipeline.door.runs import Run

HUB = "hub"
MESSAGE = "Data made with Gristmill"


def export(
    folder: Run | str | Path,
    destination: str | Path,
    to: str,
    *,
    row_length: int | None = None,
    eod: int | None = None,
    shard_bytes: str | int | None = None,
    files: str | None = None,
    revision: str | None = None,
    public: bool = False,
    message: str | None = None,
    progress: Callable[[int, int], None] = lambda done, whole: None,
) -> View:
    """Write shards or documents for another tool, or push them to a hub, as `gristmill export` does.

    `folder` is a local run, or a local folder of its shards or documents, for a hub any folder of files; `destination`
    a new local folder, for a hub OWNER/NAME. `to` is what another tool reads, such as megatron, mds or hf of shards,
    dolma of documents, or hub; a name that is none lists them all.

    `row_length`: which set of shards, if a run has several. `eod`: of megatron-rows, the token that ends a document and
    pads rows. `shard_bytes`: of mds and webdataset, the largest file, such as "100MB". `files`: of trl and torchtune,
    parquet or arrow. Of a hub: `revision`, a branch; `public`, whether anybody may see a data set that is new;
    `message`, of the commits. `progress` is told of rows, or bytes of a hub: how many are done, and how many there are.
    """
    source = str(getattr(folder, "out", folder))
    if to == HUB:
        if (row_length, eod, shard_bytes, files) != (None,) * 4:
            raise RecipeError(
                "--row-length, --eod, --shard-bytes and --files are for formats; hub takes files as they are"
            )
        return pushed(Path(source), str(destination), revision, public, message or MESSAGE, progress)
    if revision or public or message:
        raise RecipeError(f"--revision, --public and --message are for --to {HUB}")
    try:
        largest = bytes_of(shard_bytes)
    except ValueError as error:
        raise RecipeError(f"--shard-bytes: {error}") from error
    if largest == 0:
        raise RecipeError("--shard-bytes: a file holds a byte at least")
    options = Options(eod=eod, shard_bytes=largest, files=files)
    done = exported(source, to, str(destination), row_length, options, progress)
    says = f"{done.destination}: {done.items:,} items, {done.bytes / 1e6:,.1f} MB. Opens with: {done.opens_with}"
    return View({**done._asdict(), "destination": str(done.destination)}, Text(plain(says)))


def pushed(
    folder: Path, repo: str, revision: str | None, public: bool, message: str, progress: Callable[[int, int], None]
) -> View:
    """Documents of a run, or a folder of files, to a data set on a Hugging Face hub."""
    if not folder.is_dir():
        raise RecipeError(f"{folder}: no such folder; runs in an object store are copied to a disk first")
    files = documents_of(folder) if (folder / "run.json").is_file() else files_below(folder)
    try:
        done = push(files, repo, revision, not public, message, progress)
    except ExportError as error:
        raise RunFailed(str(error)) from error
    says = (
        f"{done.url}: {done.files:,} files, {done.bytes / 1e6:,.1f} MB; {done.sent:,} were sent in "
        f"{done.commits:,} commits, {done.files - done.sent:,} were there"
    )
    return View(asdict(done), Text(plain(says)))


def documents_of(folder: Path) -> dict[str, Any]:
    """The files of each sink, and a card with which a hub's viewer opens them."""
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
