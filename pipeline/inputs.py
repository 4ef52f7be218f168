"""The input files of a source: found, identified by content, split where they are large, grouped where they are small.

Files of a run are no inputs of the next: what lies in a run's folder counts only where a path leads into that folder by name.
Groups are cut where the hash of a path says so, not by counting: one file more changes the group it falls into and no other.
"""

from __future__ import annotations

import glob as globbing
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

import xxhash
from fsspec.core import url_to_fs

from pipeline.errors import RecipeError, RunFailed, of_storage
from pipeline.listing import LOOP, Folders, may_hold
from pipeline.recipe import Parts, Source
from pipeline.store import Store
from stages.paths import located
from stages.stage import Reader

REMEMBERED = "journal/inputs.json"


@dataclass(frozen=True)
class InputFile:
    """One file of a source; `path` is below the source's root and is its name for good."""

    address: str
    path: str
    size: int
    stamp: str  # modification time, or what the object store says instead; only tells whether a known hash still holds
    content: str = ""


@dataclass(frozen=True)
class Span:
    """A stretch of a file that one part reads."""

    file: InputFile
    start: int
    end: int | None

    def plain(self) -> dict[str, Any]:
        return {"address": self.file.address, "path": self.file.path, "size": self.file.size, "start": self.start, "end": self.end}


def find_files(source: Source, folder: Path) -> list[InputFile]:
    """Every file that a source names, in order of path; RecipeError where a path leads nowhere."""
    reader = cast(Reader, source.reader.stage)
    addresses = [reader.path] if isinstance(reader.path, str) else list(reader.path)
    if not addresses or not all(addresses):
        raise RecipeError(
            f"sources.{source.name}: the path is empty; a file, a folder or a glob was expected (`.` for the recipe's own folder)"
        )
    found: dict[str, InputFile] = {}
    for address in addresses:
        for file in files_at(address, folder, reader.suffixes, f"sources.{source.name}"):
            other = found.get(file.path)
            if other is not None and other.address != file.address:
                raise RecipeError(
                    f"sources.{source.name}: {file.address} and {other.address} have the same path {file.path} below their roots; make them two sources"
                )
            found[file.path] = file
    return [found[path] for path in sorted(found)]


def files_at(address: str, folder: Path, suffixes: tuple[str, ...], who: str) -> list[InputFile]:
    """Of a file, a folder or a glob, in order of path; RecipeError, which begins with `who` asks, where it leads nowhere."""
    address = located(address, folder)
    try:
        fs, path = url_to_fs(address)
    except (ValueError, ImportError) as error:  # a protocol that nobody knows, or one whose package is not installed
        raise RecipeError(f"{who}: {address}: {error}") from error
    path = str(path)
    is_local = "file" in fs.protocol
    try:
        if any(c in path for c in "*?[") and not fs.exists(path):
            root = _fixed_part(path)
            fs = Folders(root if "**" in path else None) if is_local else fs
            found = fs.glob(path, detail=True)
            if is_local:
                all_were_read([error for error in fs.unread if may_hold(str(error.filename), path)])
            named = named_by_glob(path)
            matching = {name: facts for name, facts in found.items() if facts["type"] not in ("directory", LOOP)}
            runs = runs_above(matching, root, fs.exists)
            chosen = {name: facts for name, facts in matching.items() if name not in runs or named & set(_steps_below(runs[name], name))}
            if matching and not chosen:
                raise RecipeError(f"{who}: {address}: only files of runs match ({min(runs.values())}); name the folder in it that is meant")
            if not chosen:
                raise RecipeError(f"{who}: {address}: nothing matches" + ("" if fs.exists(root) else f" (there is no folder {root})"))
        elif fs.isdir(path):
            root = path.rstrip("/")
            if is_local and not _readable(root):
                raise RecipeError(f"{who}: {address}: the folder may not be read (permission denied)")
            fs = Folders(root) if is_local else fs
            found = fs.find(path, detail=True)
            if is_local:
                all_were_read(fs.unread)
            if is_run(root, found.__contains__):
                raise RecipeError(
                    f"{who}: {address}: this is the folder of a run; name the folder in it that is meant, such as {address.rstrip('/')}/write"
                )
            files = {name: facts for name, facts in found.items() if facts["type"] != LOOP}
            matching = {name: facts for name, facts in files.items() if not suffixes or name.lower().endswith(suffixes)}
            runs = runs_above(matching, root, found.__contains__)
            chosen = {name: facts for name, facts in matching.items() if name not in runs}
            if matching and not chosen:
                raise RecipeError(
                    f"{who}: {address}: the folder has files of runs alone ({min(runs.values())}); name the folder in it that is meant"
                )
            if not chosen:
                raise RecipeError(
                    f"{who}: {address}: the folder has no file that ends in {', '.join(suffixes)}"
                    if found
                    else f"{who}: {address}: the folder is empty"
                )
        elif fs.exists(path):
            root = str(PurePosixPath(path).parent)
            chosen = {path: (Folders() if is_local else fs).info(path)}
        else:
            raise RecipeError(f"{who}: {address}: no such file or folder")
    except PermissionError as error:
        raise RecipeError(f"{who}: {address}: may not be read: {error}") from error
    except Exception as error:
        if not of_storage(error):
            raise
        raise RunFailed(f"{who}: {address}: cannot be reached: {error}") from error
    prefix = "" if is_local else f"{fs.protocol if isinstance(fs.protocol, str) else fs.protocol[0]}://"
    return [
        InputFile(
            prefix + name,
            name[len(root) :].lstrip("/"),
            int(facts["size"]),
            str(facts.get("ETag") or facts.get("etag") or facts.get("mtime") or facts.get("LastModified") or ""),
        )
        for name, facts in sorted(chosen.items())
    ]


def all_were_read(unread: list[OSError]) -> None:
    """What lies in a folder that could not be looked into would be left out, and nobody would know."""
    if unread:
        raise unread[0]


def runs_above(names: Iterable[str], root: str, exists: Callable[[str], bool]) -> dict[str, str]:
    """Of the files that lie in the folder of a run below `root`: that folder."""
    run_at: dict[str, str] = {root: ""}

    def run_of(folder: str) -> str:
        above = folder.rpartition("/")[0]
        if folder not in run_at:
            run_at[folder] = (run_of(above) if above != folder else "") or (folder if is_run(folder, exists) else "")
        return run_at[folder]

    found = {name: run_of(name.rpartition("/")[0]) for name in names}
    return {name: run for name, run in found.items() if run}


def is_run(folder: str, exists: Callable[[str], bool]) -> bool:
    """Has a run left its records in a folder?"""
    return exists(f"{folder}/run.json") and exists(f"{folder}/{REMEMBERED}")


def named_by_glob(path: str) -> set[str]:
    """The folders that a glob names in full behind its first wildcard."""
    steps = path.split("/")[:-1]
    first = next((i for i, step in enumerate(steps) if globbing.has_magic(step)), len(steps))
    return {step for step in steps[first:] if step and not globbing.has_magic(step)}


def _steps_below(folder: str, name: str) -> list[str]:
    return name[len(folder) :].split("/")[1:-1]


def _readable(folder: str) -> bool:
    import os

    return os.access(folder, os.R_OK | os.X_OK)


def _fixed_part(path: str) -> str:
    """The folder above the first wildcard."""
    steps = []
    for step in path.split("/")[:-1]:
        if globbing.has_magic(step):
            break
        steps.append(step)
    return "/".join(steps) or "/"


def with_contents(files: list[InputFile], store: Store, who: str, remember: bool = True) -> list[InputFile]:
    """The files with the hash of their contents. A hash is remembered while size and stamp stay; object stores' etags serve as they are."""
    remembered: dict[str, list[Any]] = store.read_json(REMEMBERED) or {}

    def hashed(file: InputFile) -> InputFile:
        known = remembered.get(file.address)
        if known and known[:2] == [file.size, file.stamp]:
            content = known[2]
        elif "://" in file.address and file.stamp:
            content = f"{file.size}-{file.stamp}"
        else:
            content = _content_hash(file, who)
        return InputFile(file.address, file.path, file.size, file.stamp, content)

    with ThreadPoolExecutor(8) as threads:  # xxh3 lets go of the GIL; many small files wait on the disk
        done = list(threads.map(hashed, files, chunksize=64))
    fresh = {f.address: [f.size, f.stamp, f.content] for f in done}
    if remember and any(remembered.get(a) != facts for a, facts in fresh.items()):
        store.write(REMEMBERED, json.dumps(remembered | fresh).encode())
    return done


def not_in(store: Store, files: list[InputFile], who: str) -> list[InputFile]:
    """The files outside the folder of the run that is to read them: else each run would read what the one before it wrote."""
    own = f"{store.root}/"
    outside = [file for file in files if not without_protocol(file.address).startswith(own)]
    if files and not outside:
        raise RecipeError(
            f"sources.{who}: {files[0].address} is of the run in {store.address} itself; choose another --out, or other inputs"
        )
    return outside


def changed_since(files: list[InputFile]) -> list[str]:
    """Paths of the local files that are not as they were when they were found, below their source's root."""
    here, changed = Folders(), []
    for file in files:
        if "://" not in file.address:
            try:
                facts = here.info(file.address)
            except OSError:
                changed.append(file.path)
                continue
            if (int(facts["size"]), str(facts["mtime"])) != (file.size, file.stamp):
                changed.append(file.path)
    return changed


def without_protocol(address: str) -> str:
    return address.partition("://")[2] or address


def _content_hash(file: InputFile, who: str) -> str:
    state = xxhash.xxh3_128()
    try:
        with open_input(file.address) as stream:
            while data := stream.read(1 << 20):
                state.update(data)
    except OSError as error:
        raise RunFailed(f"sources.{who}: {file.address} cannot be read: {error.strerror or error}") from error
    return str(state.hexdigest())


def open_input(address: str) -> BinaryIO:
    """An input file, opened to be read in order with few jumps."""
    if "://" not in address:
        return Path(address).open("rb")
    fs, path = url_to_fs(address)
    return cast(BinaryIO, fs.open(path, "rb", block_size=8 << 20, cache_type="readahead"))


def cut_into_parts(files: list[InputFile], reader: Reader, parts: Parts, who: str) -> Iterator[list[Span]]:
    """The spans of each part: a large file gives several, small files share one."""
    waiting: list[Span] = []
    waiting_bytes = 0
    for file in files:
        if file.size > parts.max_bytes:
            try:
                with open_input(file.address) as stream:
                    spans = reader.spans(stream, file.path, file.size, parts.max_bytes)
            except OSError as error:
                raise RunFailed(f"sources.{who}: {file.address} cannot be read: {error.strerror or error}") from error
            yield from ([Span(file, start, end)] for start, end in spans)
        elif file.size >= parts.small_file or parts.files == 1:
            yield [Span(file, 0, None)]
        else:
            if waiting and waiting_bytes + file.size > parts.max_bytes:
                yield waiting
                waiting, waiting_bytes = [], 0
            waiting.append(Span(file, 0, None))
            waiting_bytes += file.size
            if xxhash.xxh3_64_intdigest(file.path.encode("utf-8", "surrogateescape")) % parts.files == 0:
                yield waiting
                waiting, waiting_bytes = [], 0
    if waiting:
        yield waiting


def key_of(source: str, spans: list[Span]) -> str:
    """A name for a part that stays as long as it reads the same stretches: what a person recognises, then a hash."""
    facts = json.dumps([source, [[s.file.path, s.start, s.end] for s in spans]], ensure_ascii=True)
    stem = "".join(c if c.isascii() and c.isalnum() else "-" for c in PurePosixPath(spans[0].file.path).name.split(".")[0])[:40]
    return f"{stem or 'part'}-{xxhash.xxh3_64_hexdigest(facts.encode())[:12]}"


def contents_of(spans: list[Span]) -> list[Mapping[str, Any]]:
    return [{"path": s.file.path, "content": s.file.content, "start": s.start, "end": s.end} for s in spans]
