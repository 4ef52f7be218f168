"""Storage of a run: any fsspec address, local or an object store. A file appears whole or not at all.

Locally that is a temporary file, fsync and rename; on object stores one PUT (fsspec uploads become visible when they
are closed).

Retries: a request is sent again by the store's own library. botocore does so in its mode `standard`, with exponential
backoff and jitter: on 500, 502, 503, 504, SlowDown, and where a connection fails. `with_retries` covers what botocore
does not: a body that ends early or stalls, and an object that is not found although it was listed. Whatever still fails
is RunFailed, which no reader takes for damage of the file. Refused credentials are never retried. Requests to s3:// are
counted as they go out (`REQUESTS`), retries too.

Checksums: a local file is hashed whole before anything is made of its content, once in a process while its stamp stays.
Object stores keep checksums of their own, and are asked for no byte more than a task needs; `gristmill maintain
verify --read` asks for all.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import multiprocessing
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol, TypeVar, cast

import fsspec
import xxhash
from fsspec.core import split_protocol

from gristmill.kernels.common.files import HashingFile, whole_hashed_file
from gristmill.pipeline.errors import DamagedFile, NotJson, RecipeError, RunFailed, of_storage, refusal
from gristmill.pipeline.store.records import FileRef

Stamp = tuple[int, ...]  # size, and of a local file when it was written and changed, and its inode
T = TypeVar("T")

# --- object stores ----------------------------------------------------------------------------------------------------

TRIES = 6  # of a body, or of an object that was listed
PAUSE, LONGEST_PAUSE, PATIENCE = 0.2, 5.0, 120.0  # seconds: half of the first pause at most, of any, in all
ATTEMPTS = 8  # of one request, by botocore; with its waits of at most 1, 2, 4, ... 20 seconds about half a minute
CONNECT = 10  # seconds for a connection; botocore's minute, eight times over, looks like a hang
SILENCE = 4.0  # seconds of failing requests before the user is told
S3: dict[str, Any] = {
    "config_kwargs": {"retries": {"mode": "standard", "total_max_attempts": ATTEMPTS}, "connect_timeout": CONNECT}
}
# Of this process: clients are shared by all that work in it, so their requests are too.
REQUESTS: Counter[str] = Counter()
KINDS = {"Head": "HEAD", "List": "LIST", "Delete": "DELETE", "Abort": "DELETE", "Put": "PUT", "Copy": "PUT"}
KINDS |= {"Create": "PUT", "Upload": "PUT", "Complete": "PUT"}  # by how S3 charges, not by the verb of HTTP


def file_system(address: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """The file system of an address, and the path in it. `::` is part of a name, and no chain of file systems.
    ValueError or ImportError for a protocol that is not known, or whose package is not installed."""
    protocol = split_protocol(address)[0] or "file"
    kind, is_s3 = fsspec.get_filesystem_class(protocol), protocol in ("s3", "s3a")
    fs = kind(**{**kind._get_kwargs_from_urls(address), **(S3 if is_s3 else {})})
    if is_s3:
        fs.retries = 2  # s3fs has a loop of its own around botocore's
        events = fs.s3.meta.events
        events.register("before-send.s3", _count_request, unique_id="gristmill-sent")
        events.register("response-received.s3", _count_response, unique_id="gristmill-answer")
        events.register_first("needs-retry.s3", Waiting().note, unique_id="gristmill-waiting")
    return fs, str(fs._strip_protocol(address))


def open_object(fs: fsspec.AbstractFileSystem, path: str, **how: Any) -> IO[bytes]:
    """An object known to exist, opened to be read; each range that is fetched is as long as was asked."""
    name = fs.unstrip_protocol(path)
    return _with_whole_bodies(with_retries(lambda: fs.open(path, "rb", **how), name), name)


def open_if_there(fs: fsspec.AbstractFileSystem, path: str) -> IO[bytes]:
    """The same for an object that may not exist: FileNotFoundError at once."""
    return _with_whole_bodies(fs.open(path, "rb"), fs.unstrip_protocol(path))


def _with_whole_bodies(file: IO[bytes], name: str) -> IO[bytes]:
    cache = getattr(file, "cache", None)  # of fsspec's buffered files, which fetch through it
    fetch = getattr(cache, "fetcher", None)
    if cache is not None and fetch is not None:
        cache.fetcher = lambda start, end: with_retries(lambda: _whole(fetch(start, end), start, end), name)
    return file


def _whole(data: bytes, start: int, end: int) -> bytes:
    if len(data) != end - start:
        raise CutBody(f"the answer was cut off: {len(data):,} bytes of {end - start:,}")
    return data


def abort_uploads(fs: fsspec.AbstractFileSystem, root: str) -> int:
    """Clear the parts of files that were being uploaded below a root when their run was killed; S3 charges for them."""
    if "s3" not in fs.protocol:
        return 0
    bucket, prefix, _ = fs.split_path(root)
    uploads = fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=f"{prefix}/").get("Uploads") or []
    for upload in uploads:
        fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
    return len(uploads)


class Waiting:
    """Tells the user once that a store does not answer, while its requests are retried. Workers stay silent: their
    driver talks to the same store."""

    def __init__(self) -> None:
        self.since = 0.0  # of the first of the consecutive failed requests

    def note(self, caught_exception: Exception | None = None, **_: Any) -> None:
        if caught_exception is None:
            self.since = 0.0
        elif not self.since:
            self.since = time.monotonic()
        elif time.monotonic() - self.since > SILENCE and multiprocessing.parent_process() is None:
            self.since = math.inf
            print(f"waiting: {caught_exception}; it is tried again for a while", file=sys.stderr, flush=True)


def _count_request(request: Any, event_name: str, **_: Any) -> None:
    REQUESTS[request_kind(event_name)] += 1
    length = request.headers.get("Content-Length") or 0
    REQUESTS["bytes_out"] += int(length)


def _count_response(
    event_name: str, context: Mapping[str, Any], response_dict: Mapping[str, Any] | None = None, **_: Any
) -> None:
    REQUESTS["retries"] += context.get("retries", {}).get("attempt", 1) > 1
    if response_dict is not None and request_kind(event_name) != "HEAD":
        REQUESTS["bytes_in"] += int(response_dict["headers"].get("content-length") or 0)


def request_kind(event_name: str) -> str:
    operation = event_name.rpartition(".")[2]
    return next((kind for start, kind in KINDS.items() if operation.startswith(start)), "GET")


def requests_since(before: Mapping[str, int]) -> dict[str, int]:
    """Requests of this process since a copy of REQUESTS was taken; nothing without object stores."""
    return {name: count - before.get(name, 0) for name, count in REQUESTS.items() if count > before.get(name, 0)}


# --- retries ----------------------------------------------------------------------------------------------------------


class CutBody(OSError):
    """Fewer bytes, or more, than were asked for."""


def with_retries(action: Callable[[], T], name: str) -> T:
    """The result of an action, retried with exponential backoff and jitter while its errors are transient; RunFailed,
    which names the object, when they are not or when tries or patience are spent."""
    began = time.monotonic()
    for tried in range(1, TRIES + 1):
        try:
            return action()
        except Exception as error:
            if not isinstance(error, OSError) and not of_storage(error):
                raise
            spent = tried == TRIES or time.monotonic() - began > PATIENCE
            if spent or not is_transient(error):
                raise RunFailed(f"{name}: {in_plain_words(error)}{f'; tried {tried} times' * (tried > 1)}") from error
        REQUESTS["retries"] += 1
        time.sleep(random.random() * min(PAUSE * 2**tried, LONGEST_PAUSE))
    raise AssertionError(name)


def is_transient(error: Exception) -> bool:
    """May the same request succeed in a moment? What botocore gave up is not begun again, except bodies, which it does
    not read."""
    if refusal(error):
        return False
    if isinstance(error, OSError) and not of_storage(error):
        return isinstance(error, FileNotFoundError | CutBody | ConnectionError | TimeoutError)
    return True


def in_plain_words(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such object, though it was there before"
    return refusal(error) or (getattr(error, "strerror", None) or f"{error}" or type(error).__name__)


# --- the folder of a run ----------------------------------------------------------------------------------------------


class WriteLease(Protocol):
    """The right to write into a folder of an object store, which another run may take over (`lock.py`)."""

    token: str

    def check(self) -> None: ...


class Store:
    """The folder of a run, by address."""

    def __init__(self, address: str) -> None:
        self.address = address
        try:
            fs, root = file_system(address)
        except (ValueError, ImportError) as error:  # an unknown protocol, or one whose package is not installed
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

    # --- reading ------------------------------------------------------------------------------------------------------

    def open(self, path: str) -> IO[bytes]:
        """A file that is known to be there: an object store may not find it at once."""
        return Path(self.at(path)).open("rb") if self.local else open_object(self.fs, self.at(path))

    def read(self, path: str) -> bytes:
        with Path(self.at(path)).open("rb") if self.local else open_if_there(self.fs, self.at(path)) as file:
            return file.read()

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

    # --- listing ------------------------------------------------------------------------------------------------------

    def exists(self, path: str) -> bool:
        try:
            return bool(self.fs.exists(self.at(path)))
        finally:
            if not self.local:
                self.fs.invalidate_cache()  # a cached listing hides what workers write from now on

    def modified(self, path: str) -> datetime:
        return cast(datetime, self.fs.modified(self.at(path)))

    def files(self, folder: str) -> dict[str, int]:
        """Path below the root -> bytes, of every file under a folder; none if there is no such folder."""
        return {path: stamp[0] for path, stamp in self.stamps(folder).items()}

    def stamps(self, folder: str) -> dict[str, Stamp]:
        """Path below the root -> stamp, of every file under a folder; none if there is no such folder."""
        try:
            if self.local:
                return dict(_walk(self.at(folder), len(self.root) + 1))
            self.fs.invalidate_cache()  # workers write from other processes; a cached listing would hide it
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

    # --- writing ------------------------------------------------------------------------------------------------------

    def check_root(self) -> None:
        """Refuse a local folder that `make_root` could not make or write to; nothing is made."""
        if not self.local:
            return
        try:
            above = Path(self.root)
            while not above.exists():
                above = above.parent
            code = 0
            if not above.is_dir():
                code = errno.EEXIST if str(above) == self.root else errno.ENOTDIR
            elif not os.access(above, os.W_OK | os.X_OK):
                code = errno.EROFS if os.statvfs(above).f_flag & os.ST_RDONLY else errno.EACCES
            if code:
                raise OSError(code, os.strerror(code))
        except OSError as error:
            raise RunFailed(f"{self.address}: the output folder cannot be written: {error.strerror}") from error

    def make_root(self) -> None:
        self.check_root()
        try:
            self.fs.makedirs(self.root, exist_ok=True)
        except OSError as error:
            raise RunFailed(
                f"{self.address}: the output folder cannot be written: {refusal(error) or error.strerror or error}"
            ) from error
        except Exception as error:
            if not of_storage(error):
                raise
            raise RunFailed(f"{self.address}: {refusal(error) or f'cannot be reached: {error}'}") from error

    def commit(self, path: str) -> AbstractContextManager[HashingFile]:
        """A file to write to, that appears under its name when the block ends well, and not at all otherwise."""
        return whole_hashed_file(Path(self.at(path))) if self.local else self._upload(path)

    @contextlib.contextmanager
    def _upload(self, path: str) -> Iterator[HashingFile]:
        file = self.fs.open(self.at(path), "wb")
        try:
            yield HashingFile(file)
            self.check_lease()
        except BaseException:
            _discard_upload(file)
            raise
        try:
            file.close()
        except Exception as error:
            _discard_upload(file)
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


def _discard_upload(file: Any) -> None:
    """No upload of a file is completed, also not when the object goes away."""
    file.closed = True
    if (discard := getattr(file, "discard", None)) is not None:
        with contextlib.suppress(Exception):
            discard()


def digest(data: Any) -> str:
    """A short stable hash of plain data; refuses what has no stable form."""
    return hashlib.sha256(
        json.dumps(data, sort_keys=True, ensure_ascii=True, separators=(",", ":"), allow_nan=True).encode()
    ).hexdigest()[:32]


def json_bytes(data: Any) -> bytes:
    """As this project writes JSON files."""
    return (json.dumps(data, indent=1, ensure_ascii=False, sort_keys=False) + "\n").encode("utf-8", "replace")


def stamp_of(facts: os.stat_result) -> Stamp:
    """Changes whenever a file is written to or replaced."""
    return facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino


def _walk(folder: str, skip: int) -> Iterator[tuple[str, Stamp]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(entry.path, skip)
            else:
                with contextlib.suppress(FileNotFoundError):  # a temporary file may go during the walk
                    yield entry.path[skip:], stamp_of(entry.stat())


# --- checksums of files -----------------------------------------------------------------------------------------------


def open_checked(store: Store, facts: FileRef) -> IO[bytes]:
    """A file of the run, opened to be read; DamagedFile if its content is not what was written."""
    if not is_whole(store, facts.path, facts.checksum):
        raise DamagedFile(facts.path)
    return store.open(facts.path)


def is_whole(store: Store, path: str, checksum: str) -> bool:
    """Has a local file the content that it was written with? A missing file is left to whoever opens it."""
    stamp = store.stamp(path)
    return stamp is None or _hash_while_stamp_stays(store.at(path), stamp) == checksum


@lru_cache(1 << 14)
def _hash_while_stamp_stays(path: str, stamp: Stamp) -> str:
    return hash_of_content(path)


def hash_of_content(path: str) -> str:
    """The hash of a local file: the one that `HashingFile` has of what is written."""
    with Path(path).open("rb", buffering=0) as file:
        return hash_of_stream(file)


def hash_of_object(store: Store, path: str) -> str:
    """The same of a file anywhere, all of which is fetched."""
    with store.open(path) as file:
        return hash_of_stream(file)


def hash_of_stream(file: Any) -> str:
    """The same of all that is left to read in a file."""
    return str(hashlib.file_digest(file, xxhash.xxh3_128).hexdigest())


def tag_of(facts: Mapping[str, Any]) -> str:
    """What a file system knows that differs between versions of a file."""
    return str(
        next(
            (facts[key] for key in ("ETag", "etag", "blob_id", "mtime", "LastModified", "created") if facts.get(key)),
            "",
        )
    )
