"""Objects behind s3:// and other addresses that are not of this machine: how they are opened, tried again and counted.

A request is sent again by the store's own library. botocore does so in its mode `standard`, with exponential backoff
and jitter: on 500, 502, 503, 504, SlowDown, and where a connection fails. It knows nothing of what is tried again here:
a body that ends early or stalls, and an object that is not found although somebody has listed it. What is left after
that is RunFailed, which no reader takes for damage of the file. Credentials that are refused are never tried again.

Requests to s3:// are counted as they go out (`REQUESTS`), those that are sent again too.
"""

from __future__ import annotations

import math
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import IO, Any, TypeVar

import fsspec
from fsspec.core import split_protocol, url_to_fs

from gristmill.pipeline.errors import RunFailed, of_storage, refusal

ATTEMPTS = 8  # of one request, by botocore; with its waits of at most 1, 2, 4, ... 20 seconds about half a minute
TRIES = 6  # of a body, or of an object that was listed
PAUSE, LONGEST_PAUSE, PATIENCE = 0.2, 5.0, 120.0  # seconds: before the second try at most, later, in all
CONNECT = 10  # seconds for a connection; botocore's minute, eight times over, looks like a hang
SILENCE = 4.0  # seconds of failing requests before somebody is told
S3: dict[str, Any] = {
    "config_kwargs": {"retries": {"mode": "standard", "total_max_attempts": ATTEMPTS}, "connect_timeout": CONNECT}
}
# Of this process: clients are shared by all that work in it, so what they send is too.
REQUESTS: Counter[str] = Counter()
PLAIN = (None, "file", "local", "gs", "gcs", "hf", "http", "https")  # never the first link of a chain
KINDS = {"Head": "HEAD", "List": "LIST", "Delete": "DELETE", "Abort": "DELETE", "Put": "PUT", "Copy": "PUT"}
KINDS |= {"Create": "PUT", "Upload": "PUT", "Complete": "PUT"}  # by how S3 charges, not by the verb of HTTP
T = TypeVar("T")


def file_system(address: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """The file system of an address, and the path in it. Errors are those of `url_to_fs`."""
    protocol = split_protocol(address)[0]
    if protocol not in ("s3", "s3a"):
        fs, path = unchained(address) if protocol in PLAIN else url_to_fs(address)
        return fs, str(path)
    fs, path = unchained(address, **S3)
    fs.retries = 2  # s3fs has a loop of its own around botocore's
    events = fs.s3.meta.events
    events.register("before-send.s3", _count_sent, unique_id="gristmill-sent")
    events.register("response-received.s3", _count_answer, unique_id="gristmill-answer")
    events.register_first("needs-retry.s3", Waiting().note, unique_id="gristmill-waiting")
    return fs, str(path)


def unchained(address: str, **options: Any) -> tuple[fsspec.AbstractFileSystem, str]:
    """The same of an address in which `::` is part of a name, and no chain of file systems."""
    kind = fsspec.get_filesystem_class(split_protocol(address)[0] or "file")
    fs = kind(**{**kind._get_kwargs_from_urls(address), **options})
    return fs, str(fs._strip_protocol(address))


def open_object(fs: fsspec.AbstractFileSystem, path: str, **how: Any) -> IO[bytes]:
    """An object that is known to be there, opened to be read; each stretch that is fetched is as long as was asked."""
    name = fs.unstrip_protocol(path)
    return _whole_bodies(patiently(lambda: fs.open(path, "rb", **how), name), name)


def open_if_there(fs: fsspec.AbstractFileSystem, path: str) -> IO[bytes]:
    """The same of one that may not be there: FileNotFoundError at once."""
    return _whole_bodies(fs.open(path, "rb"), fs.unstrip_protocol(path))


def _whole_bodies(file: IO[bytes], name: str) -> IO[bytes]:
    cache = getattr(file, "cache", None)  # of fsspec's buffered files, which fetch through it
    fetch = getattr(cache, "fetcher", None)
    if cache is not None and fetch is not None:
        cache.fetcher = lambda start, end: patiently(lambda: _whole(fetch(start, end), start, end), name)
    return file


def _whole(data: bytes, start: int, end: int) -> bytes:
    if len(data) != end - start:
        raise CutBody(f"{len(data):,} bytes came of {end - start:,} from byte {start:,} on")
    return data


class CutBody(OSError):
    """Fewer bytes, or more, than were asked for."""


def patiently(action: Callable[[], T], name: str) -> T:
    """What an action answers, tried again with backoff and jitter where that may help; RunFailed, which names the
    object, where it does not."""
    begun = time.monotonic()
    for tried in range(1, TRIES + 1):
        try:
            return action()
        except Exception as error:
            if not isinstance(error, OSError) and not of_storage(error):
                raise
            over = tried == TRIES or time.monotonic() - begun > PATIENCE
            if over or not passes(error):
                raise RunFailed(f"{name}: {in_plain_words(error)}{f'; tried {tried} times' * (tried > 1)}") from error
        REQUESTS["retries"] += 1
        time.sleep(random.random() * min(PAUSE * 2**tried, LONGEST_PAUSE))
    raise AssertionError(name)


def passes(error: Exception) -> bool:
    """May the same request be answered otherwise in a moment? What botocore gave up is not begun again, but for bodies
    that it does not read."""
    if refusal(error):
        return False
    if isinstance(error, OSError) and not of_storage(error):
        return isinstance(error, FileNotFoundError | CutBody | ConnectionError | TimeoutError)
    return True


def in_plain_words(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such object, though it was there before"
    return refusal(error) or (getattr(error, "strerror", None) or f"{error}" or type(error).__name__)


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
    """Tells a person once that a store does not answer, while its requests are sent again. Workers do not: their driver
    talks to the same store."""

    def __init__(self) -> None:
        self.since = 0.0  # of the first of the requests in a row that found nobody

    def note(self, caught_exception: Exception | None = None, **_: Any) -> None:
        if caught_exception is None:
            self.since = 0.0
        elif not self.since:
            self.since = time.monotonic()
        elif time.monotonic() - self.since > SILENCE and multiprocessing.parent_process() is None:
            self.since = math.inf
            print(f"waiting: {caught_exception}; it is tried again for a while", file=sys.stderr, flush=True)


def _count_sent(request: Any, event_name: str, **_: Any) -> None:
    REQUESTS[kind_of(event_name)] += 1
    length = request.headers.get("Content-Length") or 0
    REQUESTS["bytes_out"] += int(length)


def _count_answer(
    event_name: str, context: Mapping[str, Any], response_dict: Mapping[str, Any] | None = None, **_: Any
) -> None:
    REQUESTS["retries"] += context.get("retries", {}).get("attempt", 1) > 1
    if response_dict is not None and kind_of(event_name) != "HEAD":
        REQUESTS["bytes_in"] += int(response_dict["headers"].get("content-length") or 0)


def kind_of(event_name: str) -> str:
    operation = event_name.rpartition(".")[2]
    return next((kind for start, kind in KINDS.items() if operation.startswith(start)), "GET")


def since(before: Mapping[str, int]) -> dict[str, int]:
    """What this process has sent since; nothing without object stores."""
    return {name: count - before.get(name, 0) for name, count in REQUESTS.items() if count > before.get(name, 0)}
