"""Input files of a source: found, identified by content, opened, and read again after the run.

Files of a run are no inputs of the next: files in a run's folder count only where a path leads into that folder by
name.
"""

from __future__ import annotations

import glob as globbing
import json
import os
import re
import socket
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias, TypedDict, cast

import xxhash
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from gristmill.kernels.common.paths import located
from gristmill.kernels.common.settings import SettingsError
from gristmill.pipeline.errors import STAGE_ERRORS, GristmillError, RecipeError, RunFailed, of_storage, refusal
from gristmill.pipeline.formatting import one_line
from gristmill.pipeline.json_types import JSON
from gristmill.pipeline.recipe import registry
from gristmill.pipeline.store.records import FileSpan
from gristmill.pipeline.store.run_records import FetchRecord
from gristmill.pipeline.store.storage import Store, file_system, hash_of_stream, open_object, tag_of
from gristmill.stages.contract import kind_of
from gristmill.stages.documents import Origin
from gristmill.stages.inputs import InputFile, InputFiles
from gristmill.stages.stage import Reader

if TYPE_CHECKING:
    from gristmill.pipeline.recipe.recipe import Source
    from gristmill.stages.read.cc import Cc

REMEMBERED = "journal/inputs.json"
PROTOCOLS = "inputs lie on this machine, or behind s3://, gs://, hf://, https:// or another address that fsspec opens"
S3 = ("s3://", "s3a://")
LOOP = "loop"  # the kind of a linked folder that is not entered
SPECIAL = "special"  # the kind of what is neither file nor folder: opening it could wait for ever, or fail
KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
UNREAD = "only regular files are read; save what it gives to a file first"
NOWHERE = "which is not there or cannot be reached; mend the link or remove it"
NO_ENDING, OTHERS = "without an ending", "with other endings"
MOST = 5  # endings that are named; the files of all others are counted together
# two endings of a packed file (.html.gz), of which the first begins with a letter (not 2024.gz)
ENDING = re.compile(r"(?<=.)(\.[a-z][a-z0-9]{0,7})?\.[a-z0-9_-]{1,12}$")
PACKED = (".gz", ".zst", ".zstd", ".bz2", ".xz", ".br", ".lz4")
OF_THE_SYSTEM = "lost+found"  # lies on many a disk, for nobody to read

# --- files of a source ------------------------------------------------------------------------------------------------


Found: TypeAlias = "dict[str, dict[str, JSON]]"  # by path, what a file system says of a file


@dataclass(frozen=True, kw_only=True)
class CrawlFiles(InputFiles):
    """Files of dumps by their names in lists."""

    reader: Cc
    asked: tuple[int, int]  # requests and bytes that listing them took

    def fetch_plan(self, spans: Iterable[tuple[InputFile, int, int | None]]) -> FetchRecord | None:
        remote = [(file, start, end) for file, start, end in spans if "://" in file.address]
        if not remote:
            return None
        stretches = ((file.address, file.stamp, file.size, file.records, start, end) for file, start, end in remote)
        from gristmill.pipeline.crawls.listing import plan_of  # with an HTTP client

        return plan_of(self.reader, stretches, self.asked)


@dataclass(frozen=True)
class Access:
    """What the engine does for readers (`stages.inputs.InputAccess`)."""

    folder: Path = Path()  # of the recipe
    who: str = ""  # what wants the files; messages begin with it

    def located(self, address: str) -> str:
        return located(address, self.folder)

    def list_files(self, addresses: str | Sequence[str], suffixes: tuple[str, ...]) -> InputFiles:
        addresses = [addresses] if isinstance(addresses, str) else list(addresses)
        if not addresses or not all(addresses):
            raise RecipeError(
                f"{self.who}: the path is empty; a file, a folder or a glob was expected "
                "(`.` for the recipe's own folder)"
            )
        files: list[InputFile] = []
        passed_over: dict[str, int] = {}
        for address in addresses:
            listing = list_at(address, self.folder, suffixes, self.who)
            passed_over |= listing.passed_over
            files += listing.files
        return InputFiles(files, passed_over)

    def list_crawl(self, reader: Cc) -> InputFiles:
        from gristmill.pipeline.crawls.listing import crawl_of

        crawl = crawl_of(reader, self.folder, self.who)
        here, files = Folders(), []
        for file in crawl.files:
            address = f"{crawl.root}/{file.name}"
            if "://" in address:
                files.append(InputFile(address, file.name, file.size, file.tag, file.content, address, file.records))
                continue
            try:
                facts = here.info(address)
            except FileNotFoundError as error:
                raise RecipeError(f"{self.who}: {address}: no such file, though the dump's list names it") from error
            refuse_special(self.who, address, facts)
            stamp, identity = str(facts["stamp"]), str(facts["identity"])
            files.append(InputFile(address, file.name, file.size, stamp, "", identity, file.records))
        return CrawlFiles(files, reader=reader, asked=crawl.asked)

    def open_file(self, origin: Origin) -> BinaryIO:
        if origin.address.startswith(S3):
            return open_listed(origin.address, origin.stamp)
        return open_input(origin.address)

    def open_crawl(self, reader: Cc, origin: Origin) -> BinaryIO:
        root = origin.address.removesuffix(f"/{origin.path}")
        from gristmill.pipeline.crawls.remote import Place, RemoteFile, stretches_of

        wanted = stretches_of(origin.size, origin.start, origin.end, origin.records, reader.gap)
        size = origin.size if origin.records is None else None
        return cast(BinaryIO, RemoteFile(reader, Place(root, origin.path, origin.stamp), wanted, size))


def find_files(source: Source, folder: Path, who: str) -> InputFiles:
    """Every input of a source, in order of path; RecipeError, which begins with `who` asks, where a path leads
    nowhere."""
    reader = cast(Reader, source.reader.stage)
    try:
        listing = reader.list_inputs(Access(folder, who))
    except (GristmillError, OSError):
        raise
    except STAGE_ERRORS as error:
        if of_storage(error):
            raise
        what = f"{type(error).__name__}: {error}"
        raise RunFailed(f"{who}: {registry.named(reader)} cannot list its inputs: {what}") from error
    if not isinstance(listing, InputFiles):
        raise RunFailed(f"{who}: list_inputs() answered with {kind_of(listing)}; InputFiles was expected")
    files: dict[str, InputFile] = {}
    for file in listing.files:
        other = files.setdefault(file.path, file)
        if other.address != file.address:
            raise RecipeError(
                f"{who}: {file.address} and {other.address} have the same path {file.path} below their roots; "
                "make them two sources"
            )
    return replace(listing, files=[_completed(files[path], who) for path in sorted(files)])


def _completed(file: InputFile, who: str) -> InputFile:
    """An input with what its reader left out."""
    if "://" not in file.address and not file.stamp:
        try:
            facts = Folders().info(file.address)
        except OSError as error:
            raise RecipeError(f"{who}: {file.address}: {error.strerror or error}") from error
        file = replace(file, stamp=str(facts["stamp"]))
    return file if file.identity else replace(file, identity=f"{file.address} {file.path}")


def list_at(address: str, folder: Path, suffixes: tuple[str, ...], who: str) -> InputFiles:
    """The files of a file, a folder or a glob, in order of path, and those of a folder that are passed over for their
    ending; a glob names what is wanted, and passes nothing over. RecipeError, which begins with `who` asks, where the
    address leads nowhere."""
    address = located(address, folder)
    place = f"{who}: {address}"
    try:
        fs, path = file_system(address)
    except (ValueError, ImportError) as error:  # a protocol that nobody knows, or one whose package is not installed
        raise RecipeError(f"{place}: {error}; {PROTOCOLS}") from error
    except OSError as error:  # some file systems connect at once
        raise not_reached(error, place) from error
    passed_over: dict[str, int] = {}
    try:
        if any(c in path for c in "*?[") and not fs.exists(path):
            root = _fixed_part(path)
            chosen, _ = _found_below(fs, root, path, (), place)
        elif fs.isdir(path):
            root = path.rstrip("/")
            if is_run(root, fs.exists):
                raise RecipeError(
                    f"{place}: this is the folder of a run; name the folder in it that is meant, "
                    f"such as {address.rstrip('/')}/write"
                )
            chosen, passed_over = _found_below(fs, root, None, suffixes, place)
        elif fs.exists(path):
            root = str(PurePosixPath(path).parent)
            chosen = {path: (Folders() if "file" in fs.protocol else fs).info(path)}
        else:
            raise RecipeError(f"{place}: no such file or folder")
    except PermissionError as error:
        if refused := refusal(error):
            raise RunFailed(f"{place}: {refused}") from error
        raise RecipeError(f"{place}: may not be read: {error}") from error
    except OSError as error:
        raise not_reached(error, place) from error
    except Exception as error:
        if not of_storage(error):
            raise
        raise RunFailed(f"{place}: {refusal(error) or f'cannot be reached: {error}'}") from error
    prefix = "" if "file" in fs.protocol else f"{fs.protocol if isinstance(fs.protocol, str) else fs.protocol[0]}://"
    for name, facts in chosen.items():
        refuse_special(who, prefix + name, facts)
    inputs = [
        InputFile(
            prefix + name,
            name[len(root) :].lstrip("/"),
            int(cast(int, facts["size"])),
            str(facts.get("stamp") or tag_of(facts)),
            identity=str(facts.get("identity") or prefix + name),
        )
        for name, facts in sorted(chosen.items())
    ]
    return InputFiles(inputs, {prefix + name: size for name, size in passed_over.items()})


def _found_below(
    fs: AbstractFileSystem, root: str, glob: str | None, suffixes: tuple[str, ...], place: str
) -> tuple[Found, dict[str, int]]:
    """The files that match a glob, or whose endings a reader takes, less those of runs, unless a folder of the run is
    named; and of a folder the sizes of the others."""
    if "file" in fs.protocol:
        fs = Folders(root if glob is None or "**" in glob else None)
    there = fs.find(root, detail=True) if glob is None else fs.glob(glob, detail=True)
    if isinstance(fs, Folders):
        all_were_read([error for error in fs.unread if glob is None or may_hold(str(error.filename), glob)])
    exists = there.__contains__ if glob is None else fs.exists
    files = {name: facts for name, facts in there.items() if facts["type"] not in ("directory", LOOP)}
    hidden = glob is not None and is_hidden(root, glob)
    wanted = {
        name
        for name in files
        if (not suffixes or name.lower().endswith(suffixes)) and (hidden or not is_hidden(root, name))
    }
    runs = runs_above(files, root, exists)
    named = set() if glob is None else named_by_glob(glob)
    chosen = {
        name: facts
        for name, facts in files.items()
        if name in wanted and (name not in runs or named & set(_steps_below(runs[name], name)))
    }
    if wanted and not chosen:
        of_runs = min(runs[name] for name in wanted)
        raise RecipeError(f"{place}: only files of runs are there ({of_runs}); name the folder in it that is meant")
    if not chosen and glob is not None:
        raise RecipeError(f"{place}: nothing matches" + ("" if fs.exists(root) else f" (there is no folder {root})"))
    if not chosen:
        has = f"no file that ends in {', '.join(suffixes)}; it has {endings_in_words(by_ending(files))}"
        raise RecipeError(f"{place}: the folder has {has}" if files else f"{place}: the folder is empty")
    others = files.keys() - wanted - runs.keys() if glob is None else ()
    return chosen, {name: int(cast(int, files[name]["size"])) for name in sorted(others)}


def not_reached(error: OSError, place: str) -> RunFailed:
    """For a file system of another machine."""
    if isinstance(error, socket.gaierror):
        return RunFailed(f"{place}: the host cannot be found ({error.strerror}); {PROTOCOLS}")
    return RunFailed(f"{place}: {refusal(error) or f'cannot be reached: {error.strerror or error}'}")


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


def _fixed_part(path: str) -> str:
    """The folder above the first wildcard."""
    steps = []
    for step in path.split("/")[:-1]:
        if globbing.has_magic(step):
            break
        steps.append(step)
    return "/".join(steps) or "/"


# --- folders of this machine ------------------------------------------------------------------------------------------


class Folders(LocalFileSystem):  # type: ignore[misc]
    """What `find` and `glob` see. A link is not entered where it leads around itself, nor, where all below `whole` is
    taken, back below it: those files are found in their own place."""

    cachable = False

    def __init__(self, whole: str | None = None) -> None:
        super().__init__()
        self.whole = None if whole is None else Path(whole).resolve()
        self.unread: list[OSError] = []  # folders that could not be looked into

    def info(self, path: str | os.DirEntry[str], **options: JSON) -> dict[str, JSON]:
        facts: dict[str, JSON] = super().info(path, **options)
        entry = path if isinstance(path, os.DirEntry) else Path(str(facts["name"]))
        there = entry.stat(follow_symlinks=False)
        if facts["islink"]:
            link = Path(str(facts["name"]))
            try:
                there = link.stat()
            except OSError:
                return {**facts, "type": SPECIAL, "kind": f"a link to {link.readlink()}, {NOWHERE}"}
            if stat.S_ISDIR(there.st_mode):
                is_listed = isinstance(path, os.DirEntry)  # and not named by whoever asks
                facts["type"] = LOOP if is_listed and self.is_loop(link) else "directory"
            elif stat.S_ISREG(there.st_mode):
                facts["type"] = "file"
        facts["stamp"] = stamp_of(there)
        facts["identity"] = f"{there.st_dev} {there.st_ino} {there.st_size}"
        if facts["type"] == "other":
            facts["type"] = SPECIAL
            facts["kind"] = f"{next((kind for is_kind, kind in KINDS if is_kind(there.st_mode)), 'no file')}; {UNREAD}"
        return facts

    def is_loop(self, link: Path) -> bool:
        target = link.resolve()
        if self.whole is not None and target.is_relative_to(self.whole):
            return True
        return any(above.resolve().is_relative_to(target) for above in link.parents)

    def walk(
        self,
        path: str,
        maxdepth: int | None = None,
        topdown: bool = True,
        on_error: Callable[[OSError], None] | None = None,
        **options: JSON,
    ) -> Iterator[tuple[str, Mapping[str, JSON], Mapping[str, JSON]]]:
        walked: Iterator[tuple[str, Mapping[str, JSON], Mapping[str, JSON]]] = super().walk(
            path, maxdepth, topdown, on_error or self.note, **options
        )
        return walked

    def note(self, error: OSError) -> None:
        if not isinstance(error, FileNotFoundError) and Path(str(error.filename)).name != OF_THE_SYSTEM:
            self.unread.append(error)


def stamp_of(facts: os.stat_result) -> str:
    """Differs once a file was written to or replaced, even if its modification time was set back; the first word is
    that time."""
    return f"{facts.st_mtime_ns} {facts.st_ctime_ns} {facts.st_ino}"


def is_hidden(root: str, name: str) -> bool:
    """As of macOS's `._a.jsonl`, and of what other programs keep beside their data."""
    return "/." in name[len(root.rstrip("/")) :]


def may_hold(folder: str, glob: str) -> bool:
    """Could a folder have files that match?"""
    steps, wanted = folder.split("/"), glob.split("/")[:-1]
    for step, pattern in zip(steps, wanted, strict=False):
        if pattern == "**":
            return True
        if not fnmatchcase(step, pattern):
            return False
    return len(steps) <= len(wanted)


# --- contents ---------------------------------------------------------------------------------------------------------


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
    if not isinstance(record, dict) or not isinstance(files := record.get("files"), dict):
        return {}
    return files if record.get("sum") == sum_of(files) else {}


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


def not_in(store: Store, listing: InputFiles, who: str) -> InputFiles:
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


def changed_since(files: list[InputFile]) -> list[str]:
    """Paths of the local files that are not as they were when they were found, below their source's root."""

    def stamp_now(file: InputFile) -> object:
        try:
            return Folders().info(file.address)["stamp"]
        except OSError:
            return None

    return [file.path for file in files if "://" not in file.address and stamp_now(file) != file.stamp]


def without_protocol(address: str) -> str:
    return address.partition("://")[2] or address


def _content_hash(file: InputFile, who: str) -> str:
    try:
        with open_input(file.address) as stream:
            return hash_of_stream(stream)
    except OSError as error:
        raise RunFailed(f"sources.{who}: {file.address} cannot be read: {error.strerror or error}") from error
    except (ValueError, ImportError) as error:  # no file: its reader lists it
        raise RunFailed(f"sources.{who}: {file.address}: {error}; what is no file needs `content`") from error


# --- opening ----------------------------------------------------------------------------------------------------------


def origin_of(source: str, span: FileSpan) -> Origin:
    """What a reader is told of a span of a file."""
    file, start, end = span.file, span.start, span.end
    records = None
    if file.records:
        from gristmill.pipeline.crawls.listing import unpacked

        records = unpacked(file.records, start, end)
    return Origin(source, file.path, file.size, start, end, records, file.address, file.stamp)


def open_stretch(reader: Reader, span: FileSpan) -> Any:
    """The input that a span is of, opened by its reader."""
    return reader.open(origin_of("", span), Access())


def open_listed(address: str, tag: str) -> BinaryIO:
    """Open an object on s3:// in the version that was listed; RunFailed if it was replaced."""
    for _ in range(2):
        file: Any = open_input(address)
        if tag_of(file.details) == tag:
            return cast(BinaryIO, file)
        file.close()
        file.fs.invalidate_cache()  # this process may remember an older one
    raise RunFailed(f"{address}: the object was replaced since it was listed; run the same command again")


def open_input(address: str) -> BinaryIO:
    """An input file, opened to be read in order with few jumps."""
    if "://" not in address:
        return Path(address).open("rb")
    fs, path = file_system(address)
    return cast(BinaryIO, open_object(fs, path, block_size=8 << 20, cache_type="readahead"))


# --- inputs of a finished run -----------------------------------------------------------------------------------------


class NoOriginal(LookupError):
    """An original cannot be read; the message says why."""


def reader_of(recipe: Mapping[str, Any], source: str) -> Reader:
    """The reader of a source, from the recipe as run.json has it; only readers that come with Gristmill."""
    settings = (recipe.get("sources") or {}).get(source)
    named = [name for name in settings or {} if name in registry.names()]
    readers = [name for name in named if issubclass(registry.find(name), Reader)]
    if not isinstance(settings, dict) or len(readers) != 1:
        raise NoOriginal(f"run.json does not name a reader of ours for the source {source}")
    chosen = settings[readers[0]]
    if not isinstance(chosen, dict):
        raise NoOriginal(f"run.json: the reader of {source} is not as the mill writes it")
    try:
        return cast(Reader, registry.build({"stage": readers[0], "settings": chosen, "code": None}))
    except (SettingsError, TypeError) as error:
        raise NoOriginal(f"run.json: the reader of {source} is not as the mill writes it") from error


def addresses_of(remembered: Mapping[str, Remembered], path: str, reader: Reader) -> Iterator[tuple[str, int]]:
    """Input files that the run has read and that a path below a source's root may stand for, with their sizes then."""
    for address, facts in remembered.items():
        below = address == path or address.endswith(f"/{path}")
        if below and any(is_below(address, root) for root in reader.roots):
            yield address, int(facts[0])


def is_below(address: str, root: str) -> bool:
    """Can an address come from this file, folder or glob? Of a relative one only the end is compared."""
    root = root.removeprefix("./").rstrip("/")
    if not root or root == ".":
        return True
    tail = f"*/{root.removeprefix('~/')}" if not root.startswith("/") and "://" not in root else root
    while tail.startswith("*/../"):
        tail = "*/" + tail.removeprefix("*/../")
    return fnmatchcase(address, tail) or fnmatchcase(address, f"{tail}/*")


# --- by their endings -------------------------------------------------------------------------------------------------


def ending_of(path: str) -> str:
    """`.html.gz` of `a/page.HTML.gz`, in small letters."""
    name = PurePosixPath(path).name.lower()
    match = ENDING.search(name)
    if match is None:
        return NO_ENDING
    last = name[name.rindex(".") :]
    return one_line(match[0] if last in PACKED else last)


def by_ending(paths: Iterable[str]) -> dict[str, int]:
    """The files of each ending, the most frequent first; of many endings a few."""
    counted = sorted(Counter(ending_of(path) for path in paths).items(), key=lambda kind: (-kind[1], kind[0]))
    rest = sum(files for _, files in counted[MOST:])
    return dict(counted[:MOST]) | ({OTHERS: rest} if rest else {})


def endings_in_words(endings: Mapping[str, int]) -> str:
    """2 .gz, 2 .bad and 7 with other endings"""
    names = [f"{files:,} {ending}" for ending, files in endings.items()]
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]])) if OTHERS in endings else ", ".join(names)
