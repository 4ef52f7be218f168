"""Dumps under one root: their lists of files, facts of files, and stretches of files through the cache. A root that is
a folder of this machine is read as it is."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO, cast

import xxhash

from gristmill.pipeline.crawls.fetch import Facts, Fetcher
from gristmill.pipeline.crawls.remote import Place, RemoteFile, facts_path, fetcher_for, folder_of, note
from gristmill.pipeline.crawls.spool import STRETCH, Spool, joined
from gristmill.pipeline.crawls.wires import Missing
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.formatting import one_line
from gristmill.stages.read.cc import Cc

THREADS = 16
LARGEST_LIST = 1 << 30  # bytes, unpacked; a dump has 100,000 files, and their names take 15 MB
LONGEST_NAME = 1000


class Dumps:
    """What a `cc` source finds under its root. Use it in a `with`."""

    def __init__(self, reader: Cc, root: str, who: str) -> None:
        self.reader = reader
        self.root = root.rstrip("/")
        self.who = who
        self.is_local = "://" not in root
        self.asked: Counter[str] = Counter()  # requests and bytes so far
        self._fetcher: Fetcher | None = None if self.is_local else fetcher_for(reader, self.root, self.asked)
        self._facts_path = facts_path(reader, self.root)
        self._facts: dict[str, Facts] = {}

    def __enter__(self) -> Dumps:
        if not self.is_local:
            self._facts = facts_in(self._facts_path)
        return self

    def __exit__(self, *error: object) -> None:
        if self._fetcher is not None:
            self._fetcher.close()

    def names(self, dump: str, what: str) -> list[str]:
        """The names in a list of a dump, each below the root."""
        path = list_path(dump, what)
        try:
            packed = (Path(self.root) / path).read_bytes() if self._fetcher is None else self._fetcher.whole(path)
        except (FileNotFoundError, Missing) as error:
            raise RecipeError(
                f"{self.who}: {self.root} has no dump {dump} with a list {path.rpartition('/')[2]}; is the name right?"
            ) from error
        except OSError as error:
            raise RunFailed(f"{self.who}: {self.root}/{path} cannot be read: {error.strerror or error}") from error
        try:
            with gzip.open(io.BytesIO(packed)) as file:
                data = file.read(LARGEST_LIST)
        except (OSError, EOFError, zlib.error) as error:
            raise RunFailed(f"{self.who}: {self.root}/{path}: this is no list of files in gzip: {error}") from error
        names = [line for line in data.decode("utf-8", "replace").splitlines() if line]
        for name in names:
            if not is_below(name):
                raise RunFailed(
                    f"{self.who}: {self.root}/{path} names {one_line(name)[:80]!r}, which is no file below it"
                )
        return list(dict.fromkeys(names))

    def facts(self, names: Sequence[str]) -> list[Facts]:
        """Sizes and tags, asked for once: what was learned before is known."""
        fetcher = self._fetcher
        if fetcher is None:
            return [Facts((Path(self.root) / name).stat().st_size, "") for name in names]
        unknown = [name for name in names if name not in self._facts]
        with ThreadPoolExecutor(THREADS) as threads:
            for name, facts in zip(unknown, threads.map(fetcher.facts, unknown), strict=True):
                self.learn(name, facts)
        return [self._facts[name] for name in names]

    def learn(self, name: str, facts: Facts) -> None:
        self._facts[name] = facts
        note(self._facts_path, name, facts)

    def tail(self, name: str, length: int) -> BinaryIO:
        """The end of a Parquet file, with its whole footer."""
        if self._fetcher is None:
            return (Path(self.root) / name).open("rb")
        data = self._end(name, length)
        if len(data) >= 8 and (footer := int.from_bytes(data[-8:-4], "little") + 8) > len(data):
            data = self._end(name, footer)
        return io.BytesIO(data)

    def _end(self, name: str, length: int) -> bytes:
        facts = self._facts.get(name)
        if facts is None:
            heard: list[tuple[int, Facts]] = []
            fetcher = cast(Fetcher, self._fetcher)
            data = b"".join(fetcher.stretch(name, -length, None, learn=lambda at, facts: heard.append((at, facts))))
            start, facts = heard[0]
            self.learn(name, facts)
            spool = Spool(folder_of(self.reader) / "files", f"{self.root}/{name}", facts.tag)
            spool.begin(start)
            spool.write(data)
            spool.end()
            spool.close()
            return data
        start = max(0, facts.size - length)
        with self.opened(name, [(start, facts.size)]) as file:
            file.seek(start)
            return file.read(facts.size - start)

    def opened(self, name: str, wanted: Sequence[STRETCH]) -> BinaryIO:
        if self._fetcher is None:
            return (Path(self.root) / name).open("rb")
        facts = self._facts[name]
        stretches = joined(wanted, self.reader.gap)
        place = Place(self.root, name, facts.tag)
        return cast(BinaryIO, RemoteFile(self.reader, place, stretches, facts.size, self.asked))


def list_path(dump: str, what: str) -> str:
    if dump.startswith("CC-NEWS-"):
        year, month = dump.removeprefix("CC-NEWS-").split("-")
        return f"crawl-data/CC-NEWS/{year}/{month}/{what}.paths.gz"
    return f"crawl-data/{dump}/{what}.paths.gz"


def is_below(name: str) -> bool:
    """Is a name from a list one of a file below the root? It is written into requests and paths of this machine."""
    steps = name.split("/")
    return len(name) <= LONGEST_NAME and all(
        step
        and step not in (".", "..")
        and step.isascii()
        and step.isprintable()
        and not set(step) & set(' \\?#%:*"<>|')
        for step in steps
    )


def chosen(names: Sequence[str], path: str | list[str], sample: float) -> list[str]:
    """Those that match a glob; of them the share whose hashes are smallest."""
    globs = [path] if isinstance(path, str) else path
    matching = [name for name in names if any(fnmatchcase(name, glob) for glob in globs)]
    if sample >= 1 or not matching:
        return sorted(matching)
    by_hash = sorted(matching, key=lambda name: (xxhash.xxh3_64_intdigest(name.encode()), name))
    return sorted(by_hash[: max(1, round(sample * len(by_hash)))])


def facts_in(path: Path) -> dict[str, Facts]:
    known = {}
    for line in _lines(path):
        try:
            name, size, tag = json.loads(line)
        except (ValueError, TypeError):
            continue  # the last line of a run that was killed
        if isinstance(name, str) and isinstance(size, int) and isinstance(tag, str):
            known[name] = Facts(size, tag)
            if size < 0:  # it has changed since
                del known[name]
    return known


def _lines(path: Path) -> Iterator[str]:
    try:
        yield from path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return
