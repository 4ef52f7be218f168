"""One POST of JSON over HTTP/1.1 (RFC 9112) on asyncio's streams: as little of the protocol as asking a model needs,
and no package more.

Connections are kept open and used again. Through a proxy https is a tunnel (CONNECT), http a request in absolute form.
Nothing is followed anywhere: a redirect is an answer like others. Sizes are bounded, and the caller bounds the time of
a whole exchange (`asyncio.timeout`), so a server that sends a byte a minute holds nobody up.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from gristmill.classifiers.llm.http_proxy import Proxy

MOST_HEADER = 64 << 10
MOST_BODY = 64 << 20
LONGEST_IDLE = 4.0  # seconds; uvicorn closes after 5


class WireError(Exception):
    """The server hung up, or what it says is no HTTP. `fresh` is False where an old connection was closed before it
    said anything."""

    def __init__(self, message: str, fresh: bool = True) -> None:
        super().__init__(message)
        self.fresh = fresh


class ProxyRefused(Exception):
    """The proxy does not let us through, and trying again will not help."""


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
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or parts.query
            or parts.fragment
            or parts.username
            or parts.password
        ):
            raise ValueError(
                f"{url!r}: expected http://HOST[:PORT]/PATH or https://..., without a name, a password or a query"
            )
        if any(character <= " " or character == "\x7f" for character in url):
            raise ValueError(f"{url!r}: a space or a control character in an address")
        secure = parts.scheme == "https"
        return Address(parts.hostname, port or (443 if secure else 80), parts.path.rstrip("/"), secure)

    @property
    def display_name(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"


class Connection:
    """To one address, opened when it is first needed and again when it was lost."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None, proxy: Proxy | None = None) -> None:
        self._address = address
        self._tls = tls
        self._proxy = proxy
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._used = 0.0

    async def post(self, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """Raises WireError or OSError; after any exception the connection is closed."""
        if self._streams is not None and time.monotonic() - self._used > LONGEST_IDLE:
            self.close()
        old = self._streams is not None
        if self._streams is None:
            try:
                await self._open()
            except BaseException:
                self.close()
                raise
        reader, writer = self._opened()
        try:
            lines = [
                f"POST {self._target}{path} HTTP/1.1",
                f"Host: {self._address.display_name}",
                f"Content-Length: {len(body)}",
            ]
            lines += [f"{name}: {value}" for name, value in (*headers.items(), *self._to_proxy)]
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

    @property
    def _target(self) -> str:
        """What a request line names: a path, or to a proxy that is no tunnel the whole address."""
        return (
            self._address.path
            if self._proxy is None or self._tls is not None
            else f"http://{self._address.display_name}{self._address.path}"
        )

    @property
    def _to_proxy(self) -> tuple[tuple[str, str], ...]:
        """Headers of a request that the proxy reads; the server behind a tunnel is not told them."""
        return self._proxy.headers if self._proxy is not None and self._tls is None else ()

    async def _open(self) -> None:
        if self._proxy is None:
            self._streams = await asyncio.open_connection(
                self._address.host, self._address.port, ssl=self._tls, limit=MOST_HEADER
            )
            return
        self._streams = await asyncio.open_connection(self._proxy.host, self._proxy.port, limit=MOST_HEADER)
        if self._tls is not None:
            await self._tunnel(self._proxy, self._tls)

    async def _tunnel(self, proxy: Proxy, tls: ssl.SSLContext) -> None:
        reader, writer = self._opened()
        host = f"[{self._address.host}]" if ":" in self._address.host else self._address.host
        there = f"{host}:{self._address.port}"
        lines = [f"CONNECT {there} HTTP/1.1", f"Host: {there}", *(f"{name}: {value}" for name, value in proxy.headers)]
        writer.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n")
        await writer.drain()
        _, status = await _first_line(reader)
        await _headers(reader)
        if not 200 <= status < 300:
            refused = f"the proxy {proxy.display_name} answered {status} to CONNECT {there}"
            if status >= 500 or status in (408, 429):
                raise WireError(refused)
            raise ProxyRefused(refused + ("; it wants a name and a password" if status == 407 else ""))
        await writer.start_tls(tls, server_hostname=self._address.host)

    def _opened(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is None:
            raise WireError("the connection is closed")
        return self._streams

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def _reply(reader: asyncio.StreamReader) -> tuple[Reply, bool]:
    """The reply, and whether the connection stays open."""
    while True:
        version, status = await _first_line(reader)
        headers = await _headers(reader)
        if status >= 200:
            break  # 1xx: the real reply follows
    lasting = version == "HTTP/1.1" and "close" not in headers.get("connection", "").lower()
    if status in (204, 304):
        body = b""
    elif "chunked" in headers.get("transfer-encoding", "").lower():
        body = await _chunks(reader)
    elif "content-length" in headers:
        body = await _exactly(reader, _size(headers["content-length"], 10))
    else:
        body, lasting = await _to_the_end(reader), False
    return Reply(status, headers, body), lasting


async def _first_line(reader: asyncio.StreamReader) -> tuple[str, int]:
    """Version and status of a reply."""
    first = await _line(reader, nothing_yet=True)
    version, _, rest = first.partition(" ")
    status = rest[:3]
    if not version.startswith("HTTP/1.") or not (status.isascii() and status.isdigit() and len(status) == 3):
        raise WireError(f"no HTTP/1.1 reply: {first[:80]!r}")
    return version, int(status)


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


def _size(digits: str, base: int) -> int:
    try:
        size = int(digits, base)
    except ValueError as error:
        raise WireError(f"a length of {digits[:40]!r}") from error
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
