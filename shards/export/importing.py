"""Tokens of others as token shards: DataTrove's `.ds` files and Megatron's `.bin` with `.idx`.

Documents are packed by best fit, a window of them at a time, in the order in which they stand in their files; a window
is a shard. Nothing is tokenized: the ids are those of the files, and the tokenizer is the one that is named. Files may
come from anywhere, so every length and place is checked before it is used.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash

from gristmill.kernels.base.types import Array
from gristmill.kernels.common.files import whole_folder
from gristmill.kernels.rows.pack import best_fit
from gristmill.shards.export.megatron import HEADER, MAGIC, VERSION
from gristmill.shards.format import UNKNOWN_BUCKET, Documents, ShardMeta, shard_table
from gristmill.shards.index import NAME
from gristmill.shards.verify import TOKENIZER
from gristmill.shards.writer import index_of, shard_facts, write_shard

WINDOW_TOKENS = 1 << 25
TYPES: dict[int, np.dtype[Any]] = {4: np.dtype(np.int32), 5: np.dtype(np.int64), 8: np.dtype(np.uint16)}

Progress = Callable[[int, int], None]  # bytes done, bytes in all


class NotImported(ValueError):
    """Files that are not what they should be; the message says which and why."""


class TokenFile(NamedTuple):
    """Tokens of many documents, mapped: document d is tokens[starts[d]:starts[d] + lengths[d]]."""

    path: Path
    name: str  # below the folder that is imported
    tokens: Array
    starts: Array
    lengths: Array


class Stretch(NamedTuple):
    """Documents of a file, from one up to another."""

    file: TokenFile
    first: int
    after: int


class Known(NamedTuple):
    """What is known of the tokenizer that made the tokens."""

    name: str
    text: str  # its tokenizer.json
    hash: str
    vocab_size: int
    bos: int | None
    eos: int | None
    pad: int


class Imported(NamedTuple):
    destination: Path
    documents: int
    tokens: int
    rows: int


def import_tokens(
    source: Path,
    kind: str,
    destination: Path,
    tokenizer: Known,
    row_length: int,
    progress: Progress = lambda done, size: None,
) -> Imported:
    """Writes a set of shards into a new or empty folder, from a file or a folder of files."""
    if destination.is_file() or (destination.is_dir() and any(destination.iterdir())):
        raise NotImported(f"{destination}: not empty; name a new or empty folder")
    files = files_of(source, kind)
    content = xxhash.xxh3_128()
    for file in files:  # first, so that a damaged file is named before anything is written
        content.update(struct.pack("<QQ", len(file.lengths), len(file.tokens)))
        content.update(np.ascontiguousarray(file.lengths).data)
        content.update(np.ascontiguousarray(file.tokens).data)
    fingerprint = xxhash.xxh3_128_hexdigest(f"{kind} {row_length} {tokenizer.hash} {content.hexdigest()}".encode())
    try:
        meta = ShardMeta(
            *(tokenizer.name, tokenizer.hash, tokenizer.vocab_size, row_length, tokenizer.pad),
            *(tokenizer.bos, tokenizer.eos, "best_fit", 0, fingerprint),
        )
    except ValueError as error:
        raise NotImported(str(error)) from error
    size, done = sum(len(file.tokens) for file in files), 0
    entries = []
    with whole_folder(destination) as draft:
        for number, window in enumerate(windows(files, meta)):
            bounds = np.array([0, len(window.uid)], np.int64)
            table = shard_table(meta, [source.name], window, best_fit(np.diff(window.offsets), row_length, bounds))
            path = draft / f"shard-{number:05}.arrow"
            with path.open("wb") as shard:
                write_shard(shard, table)
            written = {"path": path.name, "bytes": path.stat().st_size, "checksum": checksum_of(path)}
            entries.append({**shard_facts(table), **written})
            done += len(window.tokens)
            progress(done, size)
        if not entries:
            raise NotImported(f"{source}: there are no tokens in it")
        (draft / NAME).write_text(json.dumps(index_of(meta, entries), indent=1) + "\n", encoding="utf-8")
        (draft / TOKENIZER).parent.mkdir()
        (draft / TOKENIZER).write_text(tokenizer.text, encoding="utf-8")
    total = {name: sum(entry[name] for entry in entries) for name in ("documents", "tokens", "rows")}
    return Imported(destination, total["documents"], total["tokens"], total["rows"])


def files_of(source: Path, kind: str) -> list[TokenFile]:
    """The files of a folder, by name, or the one file."""
    suffix, opened = {"datatrove": (".ds", datatrove_file), "megatron": (".idx", megatron_file)}[kind]
    if source.is_dir():
        paths = sorted(path for path in source.rglob(f"*{suffix}") if path.is_file())
    else:
        path = source if source.name.endswith(suffix) else source.with_name(source.name + suffix)
        paths = [path] if path.is_file() else []
    if not paths:
        raise NotImported(f"{source}: name a {suffix} file, or a folder that holds some")
    top = source if source.is_dir() else source.parent
    files = [opened(path, path.relative_to(top).as_posix()) for path in paths]
    # a file without tokens has no width
    kinds = sorted({file.tokens.dtype.name for file in files if len(file.tokens)})
    if len(kinds) > 1:
        raise NotImported(f"{source}: files of {' and '.join(kinds)}, which are of different tokenizers; import each")
    return files


def datatrove_file(path: Path, name: str) -> TokenFile:
    index = path.with_name(f"{path.name}.index")
    if not index.is_file():
        raise NotImported(f"{path}: its index {index.name} is missing, so its documents cannot be told apart")
    if index.stat().st_size % 8:
        raise NotImported(f"{index}: {index.stat().st_size:,} bytes are no list of 64-bit numbers; was it cut off?")
    ends = mapped(index, "<u8")
    size, last = path.stat().st_size, int(ends[-1]) if len(ends) else 0
    itemsize = next((each for each in (2, 4) if last * each == size), 0)
    lengths = np.diff(ends.astype(np.int64), prepend=0)
    if not itemsize or (len(ends) and int(ends.max()) > last) or (lengths < 0).any():
        raise NotImported(
            f"{path}: {size:,} bytes, and the last document ends at token {last:,} by {index.name}: "
            "file and index are not of each other, or one was cut off"
        )
    return TokenFile(path, name, mapped(path, f"<u{itemsize}"), ends.astype(np.int64) - lengths, lengths)


def megatron_file(index: Path, name: str) -> TokenFile:
    path = index.with_suffix(".bin")
    content = index.read_bytes()
    if not path.is_file():
        raise NotImported(f"{index}: {path.name} is missing beside it")
    if len(content) < HEADER.size:
        raise NotImported(f"{index}: not an index of Megatron's: it is too short")
    magic, version, code, count, ends = HEADER.unpack_from(content)
    if (magic, version) != (MAGIC, VERSION) or code not in TYPES:
        raise NotImported(f"{index}: not an index of Megatron's that is known here (version {VERSION}, whole numbers)")
    if not 1 <= ends <= count + 1 or HEADER.size + 12 * count + 8 * ends > len(content):
        raise NotImported(f"{index}: {count:,} sequences do not fit into {len(content):,} bytes; was it cut off?")
    dtype = TYPES[code].newbyteorder("<")
    lengths = np.frombuffer(content, "<i4", count, HEADER.size).astype(np.int64)
    places = np.frombuffer(content, "<i8", count, HEADER.size + 4 * count)
    bounds = np.frombuffer(content, "<i8", ends, HEADER.size + 12 * count)
    follows = np.cumsum(lengths) - lengths  # a document's sequences lie one after the other
    fits = bounds[0] == 0 and bounds[-1] == count and (np.diff(bounds) >= 0).all() and (lengths >= 0).all()
    if (
        not fits
        or (places != follows * dtype.itemsize).any()
        or int(lengths.sum()) * dtype.itemsize > path.stat().st_size
    ):
        raise NotImported(f"{index}: its lengths and places are not those of {path.name}")
    starts = np.append(follows, lengths.sum())[bounds]
    return TokenFile(path, name, mapped(path, dtype.str)[: int(lengths.sum())], starts[:-1], np.diff(starts))


def mapped(path: Path, dtype: str) -> Array:
    return np.memmap(path, dtype, "r") if path.stat().st_size else np.zeros(0, dtype)


def checksum_of(path: Path) -> str:
    checksum = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(1 << 24):
            checksum.update(block)
    return str(checksum.hexdigest())


def windows(files: list[TokenFile], meta: ShardMeta) -> Iterator[Documents]:
    """Documents of about WINDOW_TOKENS tokens at a time, in the order of their files; empty documents are left out."""
    held: list[Stretch] = []
    size = 0
    for file in files:
        ends = np.cumsum(file.lengths)
        first = 0
        while first < len(ends):
            before = int(ends[first - 1]) if first else 0
            after = max(first + 1, int(np.searchsorted(ends, before + WINDOW_TOKENS - size, "right")))
            held.append(Stretch(file, first, after))
            size += int(ends[after - 1]) - before
            first = after
            if size >= WINDOW_TOKENS or first < len(ends):
                yield from gathered(held, meta)
                held, size = [], 0
    yield from gathered(held, meta)


def gathered(held: list[Stretch], meta: ShardMeta) -> Iterator[Documents]:
    tokens, lengths, uids = [], [], []
    for file, first, after in held:
        there = first + np.flatnonzero(file.lengths[first:after])
        if not len(there):
            continue
        taken = file.tokens[int(file.starts[there[0]]) : int(file.starts[there[-1]] + file.lengths[there[-1]])]
        if not 0 <= int(taken.min()) <= int(taken.max()) < meta.vocab_size:
            strange = int(taken.min()) if taken.min() < 0 else int(taken.max())
            raise NotImported(
                f"{file.path}: token {strange:,} is not in the vocabulary of {meta.vocab_size:,} of {meta.tokenizer}: "
                "is it the tokenizer that made these files?"
            )
        tokens.append(taken.astype(meta.dtype))
        lengths.append(file.lengths[there])
        salt = xxhash.xxh3_64_intdigest(file.name.encode())
        uids.append(np.array([xxhash.xxh3_64_intdigest(b"%d" % row, salt) for row in there.tolist()], np.uint64))
    if not tokens:
        return
    ends = np.cumsum(np.concatenate(lengths), dtype=np.int64)
    yield Documents(
        np.concatenate(tokens),
        np.concatenate([np.zeros(1, np.int64), ends]),
        np.concatenate(uids),
        np.zeros(len(ends), np.int16),
        np.full(len(ends), UNKNOWN_BUCKET, np.int16),
        np.full(len(ends), np.nan, np.float32),
    )
