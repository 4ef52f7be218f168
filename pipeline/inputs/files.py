"""The input files of a source: found, and identified by content.

Files of a run are no inputs of the next: files in a run's folder count only where a path leads into that folder by
name.
"""

from __future__ import annotations

import glob as globbing
import json
import socket
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import BinaryIO, TypeAlias, TypedDict, cast

import xxhash

from gristmill.pipeline.crawls.listing import crawl_of
from gristmill.pipeline.crawls.wires import tag_of
from gristmill.pipeline.errors import RecipeError, RunFailed, of_storage, refusal
from gristmill.pipeline.inputs.listing import LOOP, SPECIAL, Folders, is_hidden, may_hold
from gristmill.pipeline.inputs.passed_over import by_ending, in_words
from gristmill.pipeline.json_types import JSON
from gristmill.pipeline.recipe.recipe import Source
from gristmill.pipeline.store.objects import file_system, open_object
from gristmill.pipeline.store.records import FileStretch
from gristmill.pipeline.store.store import Store
from gristmill.stages.paths import located
from gristmill.stages.read.cc import Cc
from gristmill.stages.stage import Reader

REMEMBERED = "journal/inputs.json"
PROTOCOLS = "inputs lie on this machine, or behind s3://, gs://, hf://, https:// or another address that fsspec opens"


@dataclass(frozen=True)
class InputFile:
    """One file of a source; `path` is below the source's root and is its name for good."""

    address: str
    path: str
    size: int
    # of a local file `listing.stamp_of`, else what the object store says; only tells whether a known hash still holds
    stamp: str
    content: str = ""
    identity: str = ""  # equal where two addresses lead to one file
    records: str = ""  # those that are wanted, if not all are (crawls/listing.py)


@dataclass(frozen=True)
class Span:
    """A stretch of a file that one part reads."""

    file: InputFile
    start: int
    end: int | None
    bytes: int  # of the file; start and end may be numbers of another kind (row groups)

    def plain(self) -> FileStretch:
        return {
            "address": self.file.address,
            "path": self.file.path,
            "size": self.file.size,
            "start": self.start,
            "end": self.end,
            "bytes": self.bytes,
            **fetched(self.file),
        }


class Fetched(TypedDict, total=False):
    """What else has to be known of a file to read it, of one that is fetched or of which not all is read."""

    stamp: str
    records: str
    changed: int
    content: str


def fetched(file: InputFile) -> Fetched:
    more: Fetched = {}
    if "://" in file.address and file.stamp:
        more["stamp"] = file.stamp
    elif "://" not in file.address and file.content:
        more["changed"], more["content"] = int(file.stamp.split()[0]), file.content
    if file.records:
        more["records"] = file.records
    return more


@dataclass(frozen=True)
class Listing:
    """The files that a path names, and those passed over beside them."""

    files: list[InputFile]
    passed_over: dict[str, int] = field(
        default_factory=dict
    )  # address -> size; their endings are none that the reader takes
    asked: tuple[int, int] = (0, 0)  # requests and bytes that a crawl was listed with


def find_files(source: Source, folder: Path, who: str) -> Listing:
    """Every file that a source names, in order of path; RecipeError, which begins with `who` asks, where a path leads
    nowhere."""
    reader = cast(Reader, source.reader.stage)
    if isinstance(reader, Cc):
        return list_crawl(reader, folder, who)
    addresses = [reader.path] if isinstance(reader.path, str) else list(reader.path)
    if not addresses or not all(addresses):
        raise RecipeError(
            f"{who}: the path is empty; a file, a folder or a glob was expected (`.` for the recipe's own folder)"
        )
    files: dict[str, InputFile] = {}
    passed_over: dict[str, int] = {}
    for address in addresses:
        listing = list_at(address, folder, reader.suffixes, who)
        passed_over |= listing.passed_over
        for file in listing.files:
            other = files.get(file.path)
            if other is not None and other.address != file.address:
                raise RecipeError(
                    f"{who}: {file.address} and {other.address} have the same path {file.path} below their roots; "
                    "make them two sources"
                )
            files[file.path] = file
    return Listing([files[path] for path in sorted(files)], passed_over)


def list_crawl(reader: Cc, folder: Path, who: str) -> Listing:
    """Files of dumps by their names in lists."""
    crawl = crawl_of(reader, folder, who)
    here, files = Folders(), []
    for file in crawl.files:
        address = f"{crawl.root}/{file.name}"
        if "://" in address:
            files.append(InputFile(address, file.name, file.size, file.tag, file.content, address, file.records))
            continue
        try:
            facts = here.info(address)
        except FileNotFoundError as error:
            raise RecipeError(f"{who}: {address}: no such file, though the dump's list names it") from error
        refuse_special(who, address, facts)
        stamp, identity = str(facts["stamp"]), str(facts["identity"])
        files.append(InputFile(address, file.name, file.size, stamp, "", identity, file.records))
    return Listing(files, asked=crawl.asked)


def files_at(address: str, folder: Path, suffixes: tuple[str, ...], who: str) -> list[InputFile]:
    """Of a file, a folder or a glob, in order of path; RecipeError, which begins with `who` asks, where it leads
    nowhere."""
    return list_at(address, folder, suffixes, who).files


def list_at(address: str, folder: Path, suffixes: tuple[str, ...], who: str) -> Listing:
    """The same, with the files of a folder that are passed over for their ending. A glob passes nothing over: it names
    what is wanted."""
    address = located(address, folder)
    try:
        fs, path = file_system(address)
    except (ValueError, ImportError) as error:  # a protocol that nobody knows, or one whose package is not installed
        raise RecipeError(f"{who}: {address}: {error}; {PROTOCOLS}") from error
    except OSError as error:  # some file systems connect at once
        raise not_reached(error, address, who) from error
    is_local = "file" in fs.protocol
    passed_over: dict[str, int] = {}
    try:
        if any(c in path for c in "*?[") and not fs.exists(path):
            root = _fixed_part(path)
            fs = Folders(root if "**" in path else None) if is_local else fs
            there = fs.glob(path, detail=True)
            if is_local:
                all_were_read([error for error in fs.unread if may_hold(str(error.filename), path)])
            named = named_by_glob(path)
            matching = {
                name: facts
                for name, facts in there.items()
                if facts["type"] not in ("directory", LOOP) and (is_hidden(root, path) or not is_hidden(root, name))
            }
            runs = runs_above(matching, root, fs.exists)
            chosen = {
                name: facts
                for name, facts in matching.items()
                if name not in runs or named & set(_steps_below(runs[name], name))
            }
            if matching and not chosen:
                raise RecipeError(
                    f"{who}: {address}: only files of runs match ({min(runs.values())}); "
                    "name the folder in it that is meant"
                )
            if not chosen:
                raise RecipeError(
                    f"{who}: {address}: nothing matches" + ("" if fs.exists(root) else f" (there is no folder {root})")
                )
        elif fs.isdir(path):
            root = path.rstrip("/")
            if is_local and not _readable(root):
                raise RecipeError(f"{who}: {address}: the folder may not be read (permission denied)")
            fs = Folders(root) if is_local else fs
            there = fs.find(path, detail=True)
            if is_local:
                all_were_read(fs.unread)
            if is_run(root, there.__contains__):
                raise RecipeError(
                    f"{who}: {address}: this is the folder of a run; name the folder in it that is meant, "
                    f"such as {address.rstrip('/')}/write"
                )
            files = {name: facts for name, facts in there.items() if facts["type"] != LOOP}
            matching = {
                name: facts
                for name, facts in files.items()
                if (not suffixes or name.lower().endswith(suffixes)) and not is_hidden(root, name)
            }
            runs = runs_above(files, root, there.__contains__)
            passed_over = {
                name: int(facts["size"]) for name, facts in files.items() if name not in matching and name not in runs
            }
            chosen = {name: facts for name, facts in matching.items() if name not in runs}
            if matching and not chosen:
                raise RecipeError(
                    f"{who}: {address}: the folder has files of runs alone ({min(runs[name] for name in matching)}); "
                    "name the folder in it that is meant"
                )
            if not chosen:
                raise RecipeError(
                    f"{who}: {address}: the folder has no file that ends in {', '.join(suffixes)}; "
                    f"it has {in_words(by_ending(files))}"
                    if files
                    else f"{who}: {address}: the folder is empty"
                )
        elif fs.exists(path):
            root = str(PurePosixPath(path).parent)
            chosen = {path: (Folders() if is_local else fs).info(path)}
        else:
            raise RecipeError(f"{who}: {address}: no such file or folder")
    except PermissionError as error:
        if refused := refusal(error):
            raise RunFailed(f"{who}: {address}: {refused}") from error
        raise RecipeError(f"{who}: {address}: may not be read: {error}") from error
    except OSError as error:
        raise not_reached(error, address, who) from error
    except Exception as error:
        if not of_storage(error):
            raise
        raise RunFailed(f"{who}: {address}: {refusal(error) or f'cannot be reached: {error}'}") from error
    prefix = "" if is_local else f"{fs.protocol if isinstance(fs.protocol, str) else fs.protocol[0]}://"
    for name, facts in chosen.items():
        refuse_special(who, prefix + name, facts)
    inputs = [
        InputFile(
            prefix + name,
            name[len(root) :].lstrip("/"),
            int(facts["size"]),
            str(facts.get("stamp") or tag_of(facts)),
            identity=str(facts.get("identity") or prefix + name),
        )
        for name, facts in sorted(chosen.items())
    ]
    return Listing(inputs, {prefix + name: size for name, size in passed_over.items()})


def not_reached(error: OSError, address: str, who: str) -> RunFailed:
    """For a file system of another machine."""
    if isinstance(error, socket.gaierror):
        return RunFailed(f"{who}: {address}: the host cannot be found ({error.strerror}); {PROTOCOLS}")
    return RunFailed(f"{who}: {address}: {refusal(error) or f'cannot be reached: {error.strerror or error}'}")


def refuse_special(who: str, address: str, facts: Mapping[str, JSON]) -> None:
    """Pipes, sockets and devices are never opened: reading one could block for ever. Links may lead nowhere."""
    if facts["type"] == SPECIAL:
        raise RecipeError(f"{who}: {address} is {facts['kind']}")


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

    runs = {name: run_of(name.rpartition("/")[0]) for name in names}
    return {name: run for name, run in runs.items() if run}


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


Remembered: TypeAlias = "list[int | str]"  # size, stamp and content hash of a file


class Cache(TypedDict):
    """inputs.json."""

    sum: str
    files: dict[str, Remembered]


def remembered_in(data: bytes) -> dict[str, Remembered]:
    """The contents of inputs.json: size, stamp and content hash by address. The file is only a cache: if it is torn or
    altered, it counts as empty and is written anew."""
    try:
        record = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    if isinstance(record, dict) and record.keys() == {"sum", "files"}:
        return (
            dict(record["files"])
            if isinstance(record["files"], dict) and record["sum"] == sum_of(record["files"])
            else {}
        )
    # an earlier version wrote it, without a sum; its stamps match no file of today's, so no run relies on it
    return (
        {a: facts for a, facts in record.items() if isinstance(facts, list) and len(facts) == 3}
        if isinstance(record, dict)
        else {}
    )


def sum_of(files: Mapping[str, Remembered]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(files, sort_keys=True).encode())


def with_contents(
    files: list[InputFile], store: Store, who: str, remember: bool = True, check: bool = False
) -> list[InputFile]:
    """The files with the hash of their contents. A remembered hash serves while size and stamp stay the same, unless
    `check` is set; object stores' etags serve as they are."""
    try:
        remembered = remembered_in(store.read(REMEMBERED))
    except (FileNotFoundError, NotADirectoryError):
        remembered = {}

    def hashed(file: InputFile) -> InputFile:
        before = remembered.get(file.address)
        if "://" in file.address and file.stamp:
            content = f"{file.size}-{file.stamp}"
        elif before and before[:2] == [file.size, file.stamp] and not check:
            content = str(before[2])
        else:
            content = _content_hash(file, who)
        return replace(file, content=content)

    with ThreadPoolExecutor(8) as threads:  # xxh3 lets go of the GIL; many small files wait on the disk
        done = list(threads.map(hashed, files, chunksize=64))
    fresh: dict[str, Remembered] = {f.address: [f.size, f.stamp, f.content] for f in done}
    if remember and any(remembered.get(a) != facts for a, facts in fresh.items()):
        files_now = remembered | fresh
        cache: Cache = {"sum": sum_of(files_now), "files": files_now}
        store.write(REMEMBERED, json.dumps(cache).encode())
    return done


def not_in(store: Store, listing: Listing, who: str) -> Listing:
    """The files outside the folder of the run that is to read them: else each run would read what the one before it
    wrote."""
    own = f"{store.root}/"
    outside = [file for file in listing.files if not without_protocol(file.address).startswith(own)]
    if listing.files and not outside:
        raise RecipeError(
            f"{who}: {listing.files[0].address} is of the run in {store.address} itself; "
            "choose another --out, or other inputs"
        )
    passed_over = {a: size for a, size in listing.passed_over.items() if not without_protocol(a).startswith(own)}
    return replace(listing, files=outside, passed_over=passed_over)


def changed_since(files: list[InputFile], who: str) -> list[str]:
    """Paths of the local files that are not as they were when they were found, below their source's root."""
    here, changed = Folders(), []
    for file in files:
        if "://" not in file.address:
            try:
                facts = here.info(file.address)
            except OSError:
                changed.append(file.path)
                continue
            stamp = str(facts.get("stamp"))
            written = facts["size"] != file.size or facts["type"] != "file" or stamp.split()[0] != file.stamp.split()[0]
            # if size and modification time are the same, only the contents can tell a set-back time from a new mode or
            # a new link
            try:
                if written or (stamp != file.stamp and _content_hash(file, who) != file.content):
                    changed.append(file.path)
            except RunFailed:
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
    fs, path = file_system(address)
    return cast(BinaryIO, open_object(fs, path, block_size=8 << 20, cache_type="readahead"))
