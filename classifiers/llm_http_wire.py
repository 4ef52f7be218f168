"""One POST of JSON over HTTP/1.1 (RFC 9112) on asyncio's streams: as little of the protocol as asking a model needs, and no package more.

Connections are kept open and used again. Nothing is followed anywhere: a redirect is an answer like others. Sizes are bounded, and
the caller bounds the time of a whole exchange (`asyncio.timeout`), so a server that sends a byte a minute holds nobody up.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

MOST_HEADER = 64 << 10
MOST_BODY = 64 << 20
LONGEST_IDLE = 4.0  # seconds; uvicorn closes after 5


class WireError(Exception):
    """The server hung up, or what it says is no HTTP. `fresh` is False where an old connection was closed before it said anything."""

    def __init__(self, message: str, fresh: bool = True) -> None:
        super().__init__(message)
        self.fresh = fresh


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes


@dataclass(frozen=True)
class Address:
    host: str
    port: int
    path: str  # without a slash at its end
    secure: bool

    @staticmethod
    def of(url: str) -> Address:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError as error:
            raise ValueError(f"{url!r}: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or parts.username or parts.password:
            raise ValueError(f"{url!r}: expected http://HOST[:PORT]/PATH or https://..., without a name, a password or a query")
        if any(character <= " " or character == "\x7f" for character in url):
            raise ValueError(f"{url!r}: a space or a control character in an address")
        secure = parts.scheme == "https"
        return Address(parts.hostname, port or (443 if secure else 80), parts.path.rstrip("/"), secure)

    @property
    def said(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"


class Connection:
    """To one address, opened when it is first needed and again when it was lost."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None) -> None:
        self._address = address
        self._tls = tls
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._used = 0.0

    async def post(self, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """Raises WireError or OSError; after any exception the connection is closed."""
        if self._streams is not None and time.monotonic() - self._used > LONGEST_IDLE:
            self.close()
        old = self._streams is not None
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._address.host, self._address.port, ssl=self._tls, limit=MOST_HEADER)
        reader, writer = self._streams
        try:
            lines = [f"POST {self._address.path}{path} HTTP/1.1", f"Host: {self._address.said}", f"Content-Length: {len(body)}"]
            lines += [f"{name}: {value}" for name, value in headers.items()]
            writer.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)
            await writer.drain()
            reply, lasting = await _reply(reader)
        except WireError as error:
            self.close()
            raise WireError(str(error), fresh=error.fresh or not old) from error
        except (ConnectionError, BrokenPipeError) as error:
            self.close()
            raise WireError(f"the connection broke ({error.__class__.__name__})", fresh=not old) from error
        except BaseException:
            self.close()
            raise
        if not lasting:
            self.close()
        self._used = time.monotonic()
        return reply

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def _reply(reader: asyncio.StreamReader) -> tuple[Reply, bool]:
    """The reply, and whether the connection stays open."""
    while True:
        first = await _line(reader, nothing_yet=True)
        version, _, rest = first.partition(" ")
        status = rest[:3]
        if not version.startswith("HTTP/1.") or not (status.isascii() and status.isdigit() and len(status) == 3):
            raise WireError(f"no HTTP/1.1 reply: {first[:80]!r}")
        headers = await _headers(reader)
        if not status.startswith("1"):
            break  # 1xx: the real reply follows
    lasting = version == "HTTP/1.1" and "close" not in headers.get("connection", "").lower()
    if status in ("204", "304"):
        body = b""
    elif "chunked" in headers.get("transfer-encoding", "").lower():
        body = await _chunks(reader)
    elif "content-length" in headers:
        body = await _exactly(reader, _size(headers["content-length"], 10))
    else:
        body, lasting = await _to_the_end(reader), False
    return Reply(int(status), headers, body), lasting


async def _line(reader: asyncio.StreamReader, nothing_yet: bool = False) -> str:
    try:
        line = await reader.readuntil(b"\n")
    except asyncio.IncompleteReadError as error:
        raise WireError("the server hung up", fresh=not nothing_yet or bool(error.partial)) from error
    except asyncio.LimitOverrunError as error:
        raise WireError(f"a header line over {MOST_HEADER} bytes") from error
    return line.decode("latin-1").rstrip("\r\n")


async def _headers(reader: asyncio.StreamReader) -> dict[str, str]:
    headers: dict[str, str] = {}
    size = 0
    while line := await _line(reader):
        size += len(line)
        if size > MOST_HEADER:
            raise WireError(f"headers over {MOST_HEADER} bytes")
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return headers


def _size(said: str, base: int) -> int:
    try:
        size = int(said, base)
    except ValueError as error:
        raise WireError(f"a length of {said[:40]!r}") from error
    if not 0 <= size <= MOST_BODY:
        raise WireError(f"a body of {size} bytes; at most {MOST_BODY} are taken")
    return size


async def _exactly(reader: asyncio.StreamReader, size: int) -> bytes:
    try:
        return await reader.readexactly(size)
    except asyncio.IncompleteReadError as error:
        raise WireError(f"the server hung up after {len(error.partial)} of {size} bytes") from error


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    parts, total = [], 0
    while size := _size((await _line(reader)).partition(";")[0].strip(), 16):
        total += size
        if total > MOST_BODY:
            raise WireError(f"a body over {MOST_BODY} bytes")
        parts.append(await _exactly(reader, size))
        await _line(reader)
    await _headers(reader)  # trailers
    return b"".join(parts)


async def _to_the_end(reader: asyncio.StreamReader) -> bytes:
    body = await reader.read(MOST_BODY + 1)
    while more := await reader.read(MOST_BODY + 1 - len(body)) if len(body) <= MOST_BODY else b"":
        body += more
    if len(body) > MOST_BODY:
        raise WireError(f"a body over {MOST_BODY} bytes")
    return body
