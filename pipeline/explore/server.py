"""The web server of `gristmill explore`, by Starlette and uvicorn: who may ask, and what a request may look like.

Whoever asks must have shown the token once, in any address; from then on a cookie stands for it (SameSite=Strict,
HttpOnly), and the token leaves the address. The Host header must name this server, or a web page could point a name of
its own at loopback (DNS rebinding). Requests have no body, one of two methods, and limits on lengths.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import secrets
import socket
import sys
import threading
from html import escape
from urllib.parse import parse_qs, urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gristmill.pipeline.explore.answers import bare, elsewhere, respond
from gristmill.pipeline.explore.app import Explorer

LONGEST_TARGET = 8192  # bytes of path and query
LONGEST_HEAD = 65_536  # bytes of all headers
LOOPBACK = ("localhost", "127.0.0.1", "::1")

# A strict cookie does not go along when a link of another site is followed (a terminal in the browser), not even after
# a redirect.
WELCOME = (
    '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={0}"><title>Gristmill</title>'
    '<a href="{0}">Go on</a>'
)


class Server:
    """Answers about one run, for those who have the token. It listens from the beginning and serves within `with`."""

    def __init__(self, host: str, port: int, explorer: Explorer) -> None:
        self.token = secrets.token_urlsafe(32)
        self.session = secrets.token_urlsafe(32)
        self.named = host
        explorer.token = self.token
        six = ":" in host
        self._socket = socket.create_server(
            (host, port),
            family=socket.AF_INET6 if six else socket.AF_INET,
            dualstack_ipv6=six and socket.has_dualstack_ipv6(),
        )
        app = Starlette(
            routes=explorer.routes,
            middleware=[Middleware(Guard, server=self)],
            exception_handlers={404: explorer.nothing, Exception: fault},
        )
        app.router.redirect_slashes = False
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            log_level="critical",  # addresses hold the token and what was looked for
            access_log=False,
            proxy_headers=False,
            server_header=False,
            h11_max_incomplete_event_size=2 * LONGEST_HEAD,  # cut off here; what is shorter is told why by the guard
        )
        self._uvicorn = uvicorn.Server(config)
        # Its threads inherit being a daemon: whoever ends the command does not wait for what is being read.
        self._thread = threading.Thread(target=self._uvicorn.run, args=([self._socket],), daemon=True)

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._uvicorn.should_exit = True
        self._thread.join(1.0)

    def wait(self) -> None:
        self._thread.join()

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

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


class Guard:
    """Lets a request through to the pages, or answers with the first thing that is wrong with it."""

    def __init__(self, app: ASGIApp, server: Server) -> None:
        self.app = app
        self.server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self.refusal(Request(scope)) or self.app)(scope, receive, send)

    def refusal(self, request: Request) -> Response | None:
        headers, path, query = request.headers, request.scope["raw_path"], request.scope["query_string"]
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self.server.is_us(hosts[0].strip().lower()):
            return bare(421, "This server does not go by that name. Open it under the address that it printed.")
        if len(path) + len(query) > LONGEST_TARGET:
            return bare(414, f"The address is longer than {LONGEST_TARGET:,} bytes.")
        if sum(len(name) + len(value) for name, value in headers.raw) > LONGEST_HEAD:
            return bare(431, f"The headers are longer than {LONGEST_HEAD:,} bytes.")
        if not path.startswith(b"/"):
            return bare(400, "The address must begin with a slash.")
        if request.method not in ("GET", "HEAD"):
            return bare(405, "Only GET and HEAD are understood: this page changes nothing.", {"Allow": "GET, HEAD"})
        if "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
            return bare(413, "Requests have no body here.")
        from_here = headers.get("sec-fetch-site", "none").lower() in ("same-origin", "none")
        if given := parse_qs(query.decode("latin-1")).get("token"):
            return self.admission(request, given[0], from_here)
        if not from_here:
            return bare(403, "Another site asked for this.")
        if not same(request.cookies.get(self.server.cookie, ""), self.server.session):
            return bare(
                403,
                "The token is missing. Add it to this address, as in the one that gristmill explore printed: ?token=…",
            )
        return None

    def admission(self, request: Request, token: str, from_here: bool) -> Response:
        """The same address without the token, and a cookie that stands for it."""
        if not same(token, self.server.token):
            return bare(
                403, "That is not the token. It is in the address that gristmill explore printed, and new each time."
            )
        path, query = (request.scope[name].decode("latin-1") for name in ("raw_path", "query_string"))
        rest = "&".join(field for field in query.split("&") if not field.startswith("token="))
        address = f"/{path.lstrip('/')}" + (f"?{rest}" if rest else "")  # never //, which is another server
        cookie = f"{self.server.cookie}={self.server.session}; Path=/; HttpOnly; SameSite=Strict"
        if from_here:
            return elsewhere(address, cookie)
        return respond(WELCOME.format(escape(address)), more={"Set-Cookie": cookie})


def fault(request: Request, error: Exception) -> Response:
    """An error of ours: said on standard error, without what was asked."""
    print(f"explore: {type(error).__name__}: {error}", file=sys.stderr)
    return bare(500, "Something went wrong here; the terminal says what.")


def same(given: str, secret: str) -> bool:
    """Compared in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), secret.encode())
