"""One request for a range of a file: over HTTP or to S3.

An answer is what the server says the range is, never what was hoped for: where it begins, the size of the whole file,
and a tag (ETag) that tells versions of it apart. `Interrupted` is what another request may mend.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

import httpx2
from fsspec.asyn import sync

from gristmill.kernels.common.http import LONGEST_WAIT, causes, may_pass, proxy_for, retry_after, tls_for
from gristmill.pipeline.errors import RunFailed, code_of, refusal
from gristmill.pipeline.formatting import one_line
from gristmill.pipeline.store.storage import REQUESTS, file_system

PIECE = 8 << 20  # bytes of one answer of S3 that are held in memory
RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")
counting = threading.Lock()  # of this process: many threads ask


class Interrupted(Exception):
    """No answer, or not all of it; the same request may bring the rest. `wait`: seconds that the server asks for."""

    def __init__(self, what: str, wait: float | None = None, missing: bool = False) -> None:
        super().__init__(what)
        self.wait = wait
        self.missing = missing


class Missing(RunFailed):
    """The server has no such file."""


class Changed(RunFailed):
    """The file is another than it was when it was listed."""


@dataclass(frozen=True)
class Answer:
    """What a server sends: bytes of a file from `start` on."""

    start: int
    size: int  # of the whole file
    tag: str
    chunks: Iterator[bytes]
    remark: str = ""  # what is odd about it, though it will do


class Wire(Protocol):
    root: str

    def ask(self, name: str, start: int, end: int | None, tag: str) -> Answer:
        """Bytes from `start` up to `end`, or to the file's end; the last ones where `start` is negative. With a tag, of
        that version of the file, or Changed."""
        ...

    def close(self) -> None: ...


def wire_to(root: str, timeout: float) -> Wire:
    if root.startswith(("http://", "https://")):
        return HttpWire(root, timeout)
    if root.startswith("s3://"):
        return S3Wire(root)
    raise RunFailed(f"{root}: dumps are read from https://, s3:// and folders")


def count(**more: int) -> None:
    with counting:
        REQUESTS.update(more)


class HttpWire:
    def __init__(self, root: str, timeout: float) -> None:
        self.root = root.rstrip("/")
        try:
            base = httpx2.URL(self.root)
            proxy = proxy_for(base)
        except (httpx2.InvalidURL, ValueError) as error:
            raise RunFailed(f"{root}: {error}") from error
        self._timeout = {"connect": timeout, "read": timeout, "write": timeout, "pool": None}
        self._transport = httpx2.HTTPTransport(verify=tls_for(base), proxy=proxy, trust_env=False)

    def ask(self, name: str, start: int, end: int | None, tag: str) -> Answer:
        wanted = f"bytes={start}" if start < 0 else f"bytes={start}-{'' if end is None else end - 1}"
        headers = {"Range": wanted, "User-Agent": "gristmill", "Accept-Encoding": "identity"}
        if tag and not tag.startswith("W/"):
            headers["If-Range"] = tag
        address = f"{self.root}/{name}"
        request = httpx2.Request("GET", address, headers=headers, extensions={"timeout": self._timeout})
        count(GET=1)
        try:
            response = self._transport.handle_request(request)
        except (httpx2.TransportError, OSError) as error:
            raise Interrupted(in_short(error)) from error
        try:
            return self._answer(response, address, start, end, tag)
        except BaseException:
            response.close()
            raise

    def _answer(self, response: httpx2.Response, address: str, start: int, end: int | None, tag: str) -> Answer:
        status, headers = response.status_code, response.headers
        found = headers.get("etag", "")
        if status in (200, 206) and headers.get("content-encoding", "identity").lower() != "identity":
            raise RunFailed(f"{address}: the server packs its answers, though it is asked not to; is a proxy between?")
        if status in (200, 206, 412, 416) and tag and (status == 412 or (found and found != tag)):
            raise Changed(f"{address}: another file is there now than was listed; run the same command again")
        if status == 206:
            match = RANGE.fullmatch(headers.get("content-range", ""))
            if match is None:
                raise Interrupted(f"a part without a range ({one_line(headers.get('content-range', ''))[:60]!r})")
            first, last, size = (int(number) for number in match.groups())
            if first != (max(0, size + start) if start < 0 else start) or not first <= last < size:
                raise Interrupted(f"bytes {first:,} to {last:,} of {size:,} came, and others were asked for")
            due = (size if end is None else min(end, size)) - first
            remark = length_remark(headers, due)
            return Answer(first, size, found, self._chunks(response, due, bool(remark)), remark)
        if status == 200:
            if start > 0:
                raise RunFailed(f"{address}: the server knows no ranges, and only whole files would come")
            size = int(headers.get("content-length") or 0) if headers.get("content-length", "").isdecimal() else 0
            if start < 0 or not size:
                raise RunFailed(f"{address}: the server knows no ranges, or does not say how long the file is")
            return Answer(
                0, size, found, self._chunks(response, size if end is None else min(end, size), end is not None)
            )
        if status == 416 and start <= 0 and headers.get("content-range") == "bytes */0":
            return Answer(0, 0, found, iter(()))
        detail = f"{status} {response.reason_phrase}".strip()
        if status == 404:
            raise Interrupted(detail, missing=True)
        if may_pass(status):
            wait = retry_after(headers.get("retry-after", ""), datetime.now(UTC))
            if wait is not None and wait > LONGEST_WAIT:
                raise RunFailed(
                    f"{address}: {detail}, and to wait {wait:,.0f} seconds; run the same command again then"
                )
            raise Interrupted(detail, wait)
        if 300 <= status < 400:
            raise RunFailed(f"{address}: it lies elsewhere now ({detail}); redirects are not followed")
        what = {401: "it wants credentials", 403: "it may not be read, or the server has had too many requests",
                416: "it is shorter than it was listed"}  # fmt: skip
        raise RunFailed(f"{address}: {what.get(status, 'it cannot be read')} ({detail})")

    def _chunks(self, response: httpx2.Response, due: int, is_odd: bool) -> Iterator[bytes]:
        """At most `due` bytes, whatever the server sends. The end of an answer is not waited for where it is `odd`: its
        length is another."""
        try:
            for chunk in response.iter_raw():
                count(bytes_in=len(chunk))
                yield chunk[:due]
                due -= len(chunk)
                if due < 0 or (is_odd and due == 0):
                    break
        except (httpx2.TransportError, httpx2.StreamError, OSError) as error:
            raise Interrupted(f"the answer breaks off ({in_short(error)})") from error
        finally:
            with contextlib.suppress(Exception):
                response.close()  # the connection too, where the answer did not end as it should
        if due > 0:
            raise Interrupted(f"{due:,} bytes less came than the range has")

    def close(self) -> None:
        self._transport.close()


def length_remark(headers: Mapping[str, str], due: int) -> str:
    given = headers.get("content-length")
    return "" if given is None or given == str(due) else f"Content-Length {one_line(given)[:20]} for {due} bytes"


def in_short(error: BaseException) -> str:
    *_, cause = causes(error)
    return one_line(getattr(cause, "strerror", None) or str(cause) or type(cause).__name__)[:200]


class S3Wire:
    """S3, where versions are told apart by request."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/")
        try:
            self._fs, self._path = file_system(self.root)
        except (ValueError, ImportError, OSError) as error:
            raise RunFailed(f"{root}: {error}") from error

    def ask(self, name: str, start: int, end: int | None, tag: str) -> Answer:
        path = f"{self._path}/{name}"
        try:
            return self._answer(path, start, end, tag)
        except FileNotFoundError as error:
            raise Interrupted("there is no such object", missing=True) from error
        except Exception as error:
            if refused := refusal(error):
                raise RunFailed(f"{self.root}/{name}: {refused}") from error
            if code_of(error) in ("PreconditionFailed", "412"):
                raise Changed(f"{self.root}/{name}: another object is there now than was listed") from error
            if code_of(error) in ("NoSuchKey", "404", "NoSuchBucket"):
                raise Interrupted("there is no such object", missing=True) from error
            if not isinstance(error, OSError) and not code_of(error):
                raise
            raise Interrupted(in_short(error)) from error

    def _answer(self, path: str, start: int, end: int | None, tag: str) -> Answer:
        bucket, key, version = self._fs.split_path(path)
        how: dict[str, Any] = {
            "Range": f"bytes={start}" if start < 0 else f"bytes={start}-{'' if end is None else end - 1}"
        }
        how |= {"IfMatch": tag} if tag else {}
        how |= {"VersionId": version} if version else {}
        answer = sync(self._fs.loop, self._fs._call_s3, "get_object", Bucket=bucket, Key=key, **how)
        match = RANGE.fullmatch(answer.get("ContentRange", ""))
        if match is None:
            raise Interrupted("a part without a range")
        first, last, size = (int(number) for number in match.groups())
        return Answer(first, size, answer.get("ETag", ""), self._body(answer["Body"], last + 1 - first))

    def _body(self, body: Any, due: int) -> Iterator[bytes]:
        try:
            while due > 0 and (chunk := sync(self._fs.loop, body.read, min(due, PIECE))):
                due -= len(chunk)
                yield chunk
        except Exception as error:
            if not isinstance(error, OSError) and type(error).__module__.partition(".")[0] not in (
                "aiohttp",
                "botocore",
                "aiobotocore",
            ):
                raise
            raise Interrupted(f"the answer breaks off ({in_short(error)})") from error
        finally:
            body.close()
        if due > 0:
            raise Interrupted(f"{due:,} bytes less came than the range has")

    def close(self) -> None: ...
