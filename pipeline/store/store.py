"""Where a run's files live: any fsspec address. A file appears whole or not at all.

Locally that is a temporary file, fsync and rename; on object stores one PUT (fsspec uploads become visible when they
are closed).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol, cast

import fsspec
import xxhash

from gristmill.kernels.base.files import whole_file
from gristmill.pipeline.errors import NotJson, RecipeError, RunFailed, of_storage, refusal
from gristmill.pipeline.store.objects import abort_uploads, file_system, in_plain_words, open_if_there, open_object

Stamp = tuple[int, ...]  # size, and of a local file when it was written and changed, and its inode


class HashingFile:
    """Passes writes on and keeps the hash and length of what went by."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = xxhash.xxh3_128()
        self.length = 0
        self.closed = False

    def write(self, data: bytes | memoryview) -> int:
        view = memoryview(data)
        self._hash.update(view)
        self.length += view.nbytes
        self._file.write(view)
        return view.nbytes

    def flush(self) -> None:
        self._file.flush()

    def tell(self) -> int:
        return self.length

    def close(self) -> None:  # the store closes the file beneath, after fsync
        self.closed = True

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    @property
    def checksum(self) -> str:
        return str(self._hash.hexdigest())


class WriteLease(Protocol):
    """The right to write into a folder of an object store, which another run may take over (`lock.py`)."""

    token: str

    def check(self) -> None: ...


class Store:
    """A folder of a run, by address."""

    def __init__(self, address: str) -> None:
        self.address = address
        try:
            fs, root = file_system(address)
        except (
            ValueError,
            ImportError,
        ) as error:  # an unknown protocol, or one whose package is not installed
            raise RecipeError(f"{address}: {error}") from error
        except Exception as error:
            if not of_storage(error):
                raise
            raise RunFailed(f"{address}: {refusal(error) or error}") from error
        self.fs: fsspec.AbstractFileSystem = fs
        self.root = root.rstrip("/")
        self.lease: WriteLease | None = None  # checked before each write
        self.local = "file" in (self.fs.protocol if isinstance(self.fs.protocol, tuple) else (self.fs.protocol,))

    @property
    def sample(self) -> Store:
        """The folder of runs on a part of the inputs (`--sample`, `--limit`)."""
        return Store(f"{self.address.rstrip('/')}-sample")

    @property
    def anywhere(self) -> str:
        """The address for processes that work in other folders."""
        return self.root if self.local else self.address

    def at(self, path: str) -> str:
        """The full path of a path below the root."""
        return f"{self.root}/{path}" if path else self.root

    def open(self, path: str) -> IO[bytes]:
        """A file that is known to be there: an object store may not find it at once."""
        return Path(self.at(path)).open("rb") if self.local else open_object(self.fs, self.at(path))

    def read(self, path: str) -> bytes:
        with Path(self.at(path)).open("rb") if self.local else open_if_there(self.fs, self.at(path)) as file:
            return file.read()

    def exists(self, path: str) -> bool:
        try:
            return bool(self.fs.exists(self.at(path)))
        finally:
            if not self.local:
                self.fs.invalidate_cache()  # a listing that is remembered hides what workers write from now on

    def modified(self, path: str) -> datetime:
        return cast(datetime, self.fs.modified(self.at(path)))

    def make_root(self) -> None:
        try:
            self.fs.makedirs(self.root, exist_ok=True)
            if self.local and not os.access(self.root, os.W_OK | os.X_OK):
                code = errno.EROFS if os.statvfs(self.root).f_flag & os.ST_RDONLY else errno.EACCES
                raise OSError(code, os.strerror(code))
        except OSError as error:
            raise RunFailed(
                f"{self.address}: the output folder cannot be written: {refusal(error) or error.strerror or error}"
            ) from error
        except Exception as error:
            if not of_storage(error):
                raise
            raise RunFailed(f"{self.address}: {refusal(error) or f'cannot be reached: {error}'}") from error

    def files(self, folder: str) -> dict[str, int]:
        """Path below the root -> bytes, of every file under a folder; none if there is no such folder."""
        return {path: stamp[0] for path, stamp in self.stamps(folder).items()}

    def stamps(self, folder: str) -> dict[str, Stamp]:
        """Path below the root -> stamp, of every file under a folder; none if there is no such folder."""
        try:
            if self.local:
                return dict(_walk(self.at(folder), len(self.root) + 1))
            self.fs.invalidate_cache()  # workers write from other processes; a remembered listing would hide it
            listing = self.fs.find(self.at(folder), detail=True)
        except FileNotFoundError:
            return {}
        return {name[len(self.root) + 1 :]: (int(facts["size"]),) for name, facts in listing.items()}

    def stamp(self, path: str) -> Stamp | None:
        """The stamp of one local file; None where there is no such file, and on object stores, which would charge for
        it."""
        try:
            return stamp_of(Path(self.at(path)).stat()) if self.local else None
        except OSError:
            return None

    @contextlib.contextmanager
    def commit(self, path: str) -> Iterator[HashingFile]:
        """A file to write to, that appears under its name when the block ends well, and not at all otherwise."""
        full = self.at(path)
        if self.local:
            with whole_file(Path(full)) as local_file:
                yield HashingFile(local_file)
            return
        file = self.fs.open(full, "wb")
        try:
            yield HashingFile(file)
            self.check_lease()
        except BaseException:
            _give_up(file)
            raise
        try:
            file.close()
        except Exception as error:
            _give_up(file)
            if of_storage(error.__cause__ or error):
                raise RunFailed(f"{self.address}/{path} cannot be written: {in_plain_words(error)}") from error
            raise
        self.check_lease()  # the request may have been sent again for a while

    def check_lease(self) -> None:
        """RunFailed where another run may have taken over."""
        if self.lease is not None:
            self.lease.check()

    @property
    def lease_token(self) -> str | None:
        return None if self.lease is None else self.lease.token

    def write(self, path: str, data: bytes) -> str:
        with self.commit(path) as file:
            file.write(data)
        return file.checksum

    def write_if_other(self, path: str, content: bytes) -> str:
        """A small file with this content, written if it is not there or holds another; its checksum."""
        try:
            there = self.read(path)
        except (FileNotFoundError, NotADirectoryError):
            there = None
        if there != content:
            return self.write(path, content)
        return xxhash.xxh3_128_hexdigest(content)

    def write_json(self, path: str, data: Any) -> None:
        self.write(path, json_bytes(data))

    def read_json_if_whole(self, path: str) -> Any:
        """The data of a JSON file that this run can make again: None where there is none, or one that was cut off."""
        try:
            return json.loads(self.read(path))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None

    def read_json(self, path: str) -> Any:
        """The data of a JSON file, or None where there is none."""
        try:
            return json.loads(self.read(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, RecursionError) as error:
            raise NotJson(self.at(path), error) from error

    def remove(self, paths: list[str]) -> None:
        """Files, and the folders that are empty without them."""
        for path in paths:
            self.check_lease()
            if self.local:
                Path(self.at(path)).unlink(missing_ok=True)
            else:
                with contextlib.suppress(FileNotFoundError):
                    self.fs.rm_file(self.at(path))
        if self.local:
            folders = {str(folder) for path in paths for folder in PurePosixPath(path).parents if str(folder) != "."}
            for folder in sorted(folders, key=len, reverse=True):
                with contextlib.suppress(OSError):  # not empty, or gone
                    Path(self.at(folder)).rmdir()

    def remove_temporary(self) -> int:
        """Clear what a killed run left half written."""
        if not self.local:
            return abort_uploads(self.fs, self.root)
        drafts = [path for path in self.files("") if path.endswith(".tmp") and PurePosixPath(path).name.startswith(".")]
        self.remove(drafts)
        return len(drafts)


def _give_up(file: Any) -> None:
    """No upload of a file is completed, also not when the object goes away."""
    file.closed = True
    if (discard := getattr(file, "discard", None)) is not None:
        with contextlib.suppress(Exception):
            discard()


def json_bytes(data: Any) -> bytes:
    """As this project writes JSON files."""
    return (json.dumps(data, indent=1, ensure_ascii=False, sort_keys=False) + "\n").encode("utf-8", "replace")


def stamp_of(facts: os.stat_result) -> Stamp:
    """What changes whenever somebody writes to a file or puts another in its place."""
    return facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino


def _walk(folder: str, skip: int) -> Iterator[tuple[str, Stamp]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(entry.path, skip)
            else:
                with contextlib.suppress(FileNotFoundError):  # a temporary file may go while we look
                    yield entry.path[skip:], stamp_of(entry.stat())
