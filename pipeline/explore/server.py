"""The web server of `gristmill explore`: who may ask, and what a request may look like.

Whoever asks must have shown the token once, in the address that was printed; from then on a cookie stands for it
(SameSite=Strict, HttpOnly) and the token is in no address. The Host header must name this server, or a web page could
point a name of its own at loopback (DNS rebinding). Requests have no body, one of two methods, and limits on
everything.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import secrets
import socket
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeAlias
from urllib.parse import parse_qs, urlsplit

from gristmill.pipeline.explore.answers import HttpResponse, bare, elsewhere

CONNECTIONS = 48  # at once; further ones are turned away
SILENCE = 15.0  # seconds that a client may take for each piece of its request or of our answer
LONGEST_TARGET = 8192  # bytes of path and query
LOOPBACK = ("localhost", "127.0.0.1", "::1")

# A strict cookie does not go along when a link of another site is followed (a terminal in the browser), not even after
# a redirect.
WELCOME = b'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url=/"><title>Gristmill</title><a href="/">Go on</a>'

Request: TypeAlias = "socket.socket | tuple[bytes, socket.socket]"  # as socketserver has it
ClientAddress: TypeAlias = "tuple[str, int]"
Application = Callable[[str, str], HttpResponse]  # path, query


class Server(ThreadingHTTPServer):
    """Answers of one application, for those who have the token."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, host: str, port: int, application: Application) -> None:
        self.application = application
        self.token = secrets.token_urlsafe(32)
        self.session = secrets.token_urlsafe(32)
        self.named = host
        self._slots = threading.BoundedSemaphore(CONNECTIONS)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), Handler)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def cookie(self) -> str:
        """Cookies know no ports: two of these servers on one machine must not take each other's."""
        return f"gristmill_{self.port}"

    @property
    def address(self) -> str:
        """Where a person opens the page, with the token."""
        host = "127.0.0.1" if self.named in ("0.0.0.0", "") else "::1" if self.named == "::" else self.named
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/?token={self.token}"

    def is_us(self, host: str) -> bool:
        """Does a Host header name this server? A number always may, for no name was rebound to get here; the port may
        be a tunnel's."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
            if urlsplit(f"//{host}").netloc != host or "@" in host:
                return False
        except ValueError:
            return False
        with contextlib.suppress(ValueError):
            number = ipaddress.ip_address(name)
            return self.named not in LOOPBACK or number.is_loopback
        return (
            name == "localhost"
            or name == self.named.lower()
            or (self.named not in LOOPBACK and name == socket.gethostname().lower())
        )

    def process_request(self, request: Request, client_address: ClientAddress) -> None:
        if not self._slots.acquire(blocking=False):
            with contextlib.suppress(OSError):
                if isinstance(request, socket.socket):
                    request.sendall(b"HTTP/1.0 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\n\r\n")
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Request, client_address: ClientAddress) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Request, client_address: ClientAddress) -> None:
        """A browser that went away is no error; anything else is ours, and said on standard error without what was
        asked."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            print(f"explore: {type(error).__name__}: {error}", file=sys.stderr)


class Handler(BaseHTTPRequestHandler):
    """One request, one answer, and the connection is closed."""

    server: Server  # type: ignore[assignment]
    timeout = SILENCE
    server_version = "gristmill"
    sys_version = ""

    def do_GET(self) -> None:
        self._give(self._checked())

    def do_HEAD(self) -> None:
        self._give(self._checked(), body=False)

    def _checked(self) -> HttpResponse:
        """The first thing that is wrong with a request, or what the application says."""
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or not self.server.is_us(hosts[0].strip().lower()):
            return bare(421, "This server does not go by that name. Open it under the address that it printed.")
        if len(self.path) > LONGEST_TARGET:
            return bare(414, f"The address is longer than {LONGEST_TARGET:,} bytes.")
        if not self.path.startswith("/") or self.path.startswith("//"):
            return bare(400, "The address must begin with one slash.")
        if self.headers.get("Transfer-Encoding") or self.headers.get("Content-Length", "0").strip() not in ("", "0"):
            return bare(413, "Requests have no body here.")
        path, _, query = self.path.partition("#")[0].partition("?")
        if path == "/" and "token=" in query:
            return self._admitted(query)
        if self.headers.get("Sec-Fetch-Site", "none").lower() not in ("same-origin", "none"):
            return bare(403, "Another site asked for this.")
        if not self._has_cookie():
            return bare(
                403, "The token is missing. Open the address that gristmill explore printed, with ?token=… at its end."
            )
        return self.server.application(path, query)

    def _admitted(self, query: str) -> HttpResponse:
        try:
            given = parse_qs(query, max_num_fields=10, errors="replace").get("token", [""])[0]
        except ValueError:
            given = ""
        if not same(given, self.server.token):
            return bare(403, "That is not the token. Open the address that gristmill explore printed.")
        cookie = f"{self.server.cookie}={self.server.session}; Path=/; HttpOnly; SameSite=Strict"
        if self.headers.get("Sec-Fetch-Site", "none").lower() in ("same-origin", "none"):
            return elsewhere("/", cookie)
        return HttpResponse(200, WELCOME, more={"Set-Cookie": cookie})

    def _has_cookie(self) -> bool:
        cookies = [
            part.strip().partition("=") for header in self.headers.get_all("Cookie") or [] for part in header.split(";")
        ]
        return any(name == self.server.cookie and same(value, self.server.session) for name, _, value in cookies)

    def _give(self, answer: HttpResponse, body: bool = True) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(answer.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What http.server itself finds wrong, such as a method that it has no name for."""
        if code == 501:
            answer = bare(405, "Only GET and HEAD are understood: this page changes nothing.", {"Allow": "GET, HEAD"})
        else:
            answer = bare(code, self.responses[code][0] if code in self.responses else "wrong request")
        self.close_connection = True
        self._give(answer, body=self.command != "HEAD")

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged: addresses hold what was looked for."""


def same(given: str, secret: str) -> bool:
    """Compared in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), secret.encode())
