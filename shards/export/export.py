"""Token shards into the formats that others train from: `export(folder, to, destination)`. What each format keeps:
docs/export.md.

A destination appears whole or not at all: everything is written into a hidden folder beside it, which then takes its
name.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gristmill.kernels.common.files import whole_folder
from gristmill.shards.export.columns import FORMATS as FILES, SCHEMAS, columns_of, write_columns
from gristmill.shards.export.datatrove import write_datatrove
from gristmill.shards.export.hub import write_hub
from gristmill.shards.export.mds import SHARD_BYTES, write_mds
from gristmill.shards.export.megatron import rows_as_documents, write_megatron
from gristmill.shards.export.rows import ExportError, documents
from gristmill.shards.format import BadShards
from gristmill.shards.reader import ShardSet, open_shards
from gristmill.shards.rows import Rows
from gristmill.shards.verify import checksum_of

MEGATRON_PREFIX = "tokens"

Progress = Callable[[int, int], None]  # rows done, rows in all


@dataclass(frozen=True)
class Options:
    """Options of some formats; None is the format's default."""

    eod: int | None = None  # megatron-rows: the token that ends a document and fills rows; the shards' eos
    hashes: tuple[str, ...] | None = None  # mds: checksums in index.json; xxh64
    shard_bytes: int | None = None  # mds: of a file at most; 64 MiB
    files: str | None = None  # trl, torchtune: parquet or arrow; parquet


class Exported(NamedTuple):
    """What was written. `items` are documents for megatron and datatrove, rows for all others."""

    destination: Path
    items: int
    bytes: int
    opens_with: str


class Format(NamedTuple):
    write: Callable[[ShardSet, Path, Options, Progress], int]
    options: frozenset[str]
    opens_with: str


def export(
    folder: str | os.PathLike[str],
    to: str,
    destination: str | os.PathLike[str],
    options: Options = Options(),
    progress: Progress = lambda done, rows: None,
) -> Exported:
    """Writes the shards of a folder into a new or empty folder, in the format `to` (a name of FORMATS)."""
    kind = _format(to, options)
    target = Path(destination)
    if "://" in str(destination):
        raise ExportError(f"{destination}: exports are written to a local folder; copy it from there")
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise ExportError(f"{target}: not empty; name a new or empty folder")
    shards = open_shards(folder)
    if not len(shards):
        raise ExportError(f"{folder}: these shards hold no rows, so there is nothing to export")
    for entry in shards.index.shards:
        path = Path(shards.folder) / entry.path
        if path.is_file() and checksum_of(path) != entry.checksum:
            raise BadShards(
                f"{path}: its content is not what was written, so it is not exported; run its recipe again to repair it"
            )
    with whole_folder(target) as draft:
        items = kind.write(shards, draft, options, progress)
        size = sum(path.stat().st_size for path in draft.rglob("*") if path.is_file())
    return Exported(target, items, size, kind.opens_with.format(str(target), shards.meta.row_length))


def check_format(to: str, options: Options, others: tuple[str, ...] = ()) -> None:
    """Raises ExportError where there is no such format, or an option that it does not have; `others` are formats of
    another exporter."""
    _format(to, options, others)


def given_in(options: Options) -> list[str]:
    """The options that are not None, by name."""
    names = (field.name for field in dataclasses.fields(options))
    return sorted(name for name in names if getattr(options, name) is not None)


def _format(to: str, options: Options, others: tuple[str, ...] = ()) -> Format:
    if to not in FORMATS:
        known = [*FORMATS, *others]
        near = difflib.get_close_matches(to.lower(), known, 1)
        hint = f"did you mean {near[0]}? There are" if near else "there are"
        raise ExportError(f"unknown format {to!r}; {hint} {', '.join(known)}")
    foreign = [name for name in given_in(options) if name not in FORMATS[to].options]
    if foreign:
        users = ", ".join(name for name, kind in FORMATS.items() if foreign[0] in kind.options)
        raise ExportError(f"{foreign[0]} means nothing to {to}; it is an option of {users}")
    return FORMATS[to]


def _megatron(shards: ShardSet, folder: Path, options: Options, progress: Progress) -> int:
    def each() -> Iterator[list[Rows]]:
        for number in range(len(shards.index.shards)):
            yield shards.shard(number).batches
            progress(shards.first_rows[number + 1], len(shards))

    return write_megatron(folder / MEGATRON_PREFIX, documents(each()), shards.meta.vocab_size)


def _megatron_rows(shards: ShardSet, folder: Path, options: Options, progress: Progress) -> int:
    eod = shards.meta.eos_id if options.eod is None else options.eod
    if eod is None:
        raise ExportError(
            f"{shards.folder}: the tokenizer names no end of text to fill rows with; say which token with eod"
        )
    if not 0 <= eod < shards.meta.vocab_size:
        raise ExportError(f"eod {eod:,} is not in the vocabulary of {shards.meta.vocab_size:,}")
    return write_megatron(
        folder / MEGATRON_PREFIX, rows_as_documents(_told(shards, progress), eod), shards.meta.vocab_size
    )


def _mds(shards: ShardSet, folder: Path, options: Options, progress: Progress) -> int:
    hashes = ("xxh64",) if options.hashes is None else options.hashes
    most = SHARD_BYTES if options.shard_bytes is None else options.shard_bytes
    return write_mds(folder, _told(shards, progress), shards.meta.row_length, shards.meta.dtype, hashes, most)


def _datatrove(shards: ShardSet, folder: Path, options: Options, progress: Progress) -> int:
    count = 0
    for number in range(len(shards.index.shards)):
        whole = documents([shards.shard(number).batches])
        count += write_datatrove(folder, number, whole, shards.meta.dtype, shards.meta.tokenizer)
        progress(shards.first_rows[number + 1], len(shards))
    return count


def _columns(names: str) -> Callable[[ShardSet, Path, Options, Progress], int]:
    def write(shards: ShardSet, folder: Path, options: Options, progress: Progress) -> int:
        files = options.files or FILES[0]
        if files not in FILES:
            raise ExportError(f"files {files!r}: there are {' and '.join(FILES)}")
        count = 0
        for number in range(len(shards.index.shards)):
            batches = columns_of(shards.shard(number).batches, names)
            count += write_columns(folder / f"shard-{number:05}.{files}", batches, SCHEMAS[names])
            progress(count, len(shards))
        return count

    return write


def _hub(shards: ShardSet, folder: Path, options: Options, progress: Progress) -> int:
    done = 0

    def copied(rows: int) -> None:
        nonlocal done
        done += rows
        progress(done, len(shards))

    return write_hub(folder, shards, copied)


def _told(shards: ShardSet, progress: Progress) -> Iterable[Rows]:
    done = 0
    for batch in shards.blocks():
        yield batch
        done += len(batch.bucket)
        progress(done, len(shards))


FORMATS = {
    "megatron": Format(_megatron, frozenset(), "--data-path {}/tokens"),
    "megatron-rows": Format(_megatron_rows, frozenset({"eod"}), "--data-path {0}/tokens --seq-length {1}"),
    "mds": Format(_mds, frozenset({"hashes", "shard_bytes"}), "StreamingDataset(local={!r})"),
    "datatrove": Format(_datatrove, frozenset(), "DatatroveFolderDataset({0!r}, {1}, filename_pattern='*.ds')"),
    "trl": Format(_columns("trl"), frozenset({"files"}), "load_dataset({!r})"),
    "torchtune": Format(_columns("torchtune"), frozenset({"files"}), "load_dataset({!r})"),
    "hf": Format(_hub, frozenset(), "load_dataset({!r})"),
}
