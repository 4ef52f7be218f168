"""An S3 server of this machine, and a proxy before it that fails a share of the requests: what tests of object stores and
benchmarks/soak/kills.py share."""

from __future__ import annotations

import contextlib
import http.client
import random
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FAULTS = ("503", "cut", "slow", "reset", "lost")  # lost: done, and the connection ends before the answer
SLOW = 0.3  # seconds in the midst of a body
PASSED_ON = ("connection", "transfer-encoding", "content-length", "date", "server")  # headers that are the proxy's own
REFUSED = '<?xml version="1.0" encoding="UTF-8"?><Error><Code>{0}</Code><Message>{1}</Message></Error>'


def settings(endpoint: str) -> dict[str, str]:
    """For the environment of whoever is to find the server behind s3://."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


SERVER = """
import os, sys

port, listening = map(int, sys.argv[1:])
os.environ["MOTO_PORT"] = str(port)
from moto.moto_server import werkzeug_app as moto
from werkzeug.serving import make_server

app = moto.DomainDispatcherApplication(moto.create_backend_app)
how = {"threaded": True, "request_handler": moto.MotoRequestHandler, "fd": listening}
make_server("127.0.0.1", port, app, **how).serve_forever()
"""


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """Its address. The server inherits a socket that listens already: no other process can be given its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        server = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(port), str(listening.fileno())],
            pass_fds=[listening.fileno()],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    try:
        asked = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        asked.request("GET", "/")  # waits in the socket's queue until the server is there
        asked.getresponse().read()
        asked.close()
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


class Proxy(ThreadingHTTPServer):
    """Passes requests on to a server. `share` of them meet a fault drawn from `faults`; `refuse` answers a request with
    an error of its own (code, name), if it wants to; `before_put` hears of each object before it is passed on, and
    says whether it is."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, upstream: str, share: float = 0.0, seed: int = 0, faults: Sequence[str] = FAULTS) -> None:
        self.upstream, self.share, self.faults = upstream.rpartition("/")[2], share, faults
        self.refuse: Callable[[str, str], tuple[int, str] | None] = lambda method, path: None
        self.first: list[str] = []  # faults of the first requests, but for those without a body (HEAD)
        self.unheard: tuple[str, ...] = ()  # headers that do not reach the server
        self.before_put: Callable[[str], bool] = lambda path: True
        self.met: Counter[str] = Counter()  # faults by kind, and requests by method
        self._rng, self._lock = random.Random(seed), threading.Lock()
        super().__init__(("127.0.0.1", 0), _Passing)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def draw(self, method: str) -> str:
        with self._lock:
            self.met[method] += 1
            fault = self._rng.choice(self.faults) if self._rng.random() < self.share else ""
            fault = self.first.pop(0) if self.first and method != "HEAD" else fault
            self.met[fault] += bool(fault)
            return fault

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that are killed end their connections."""


@contextlib.contextmanager
def proxy_before(upstream: str, **how: Any) -> Iterator[Proxy]:
    proxy = Proxy(upstream, **how)
    threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        proxy.server_close()


class _Passing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        refused = self.server.refuse(self.command, self.path)
        fault = "" if refused else self.server.draw(self.command)
        if refused or fault == "503":
            code, name = refused or (503, "SlowDown")
            self.server.met["refused"] += bool(refused)
            self.answer(
                code, {"Content-Type": "application/xml"}, REFUSED.format(name, "as the test wants it").encode()
            )
            return
        wanted = self.command != "PUT" or self.server.before_put(self.path)
        if fault == "reset" or not wanted:
            self.reset()
            return
        connection = http.client.HTTPConnection(self.server.upstream)
        heard = {name: value for name, value in self.headers.items() if name not in self.server.unheard}
        connection.request(self.command, self.path, body, heard)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        headers = {name: value for name, value in answer.getheaders() if name.lower() not in PASSED_ON}
        headers["Date"] = answer.headers["Date"]
        length = answer.headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(data))
        if fault == "cut" and self.command == "HEAD":
            fault = ""
        if fault == "lost" or (fault == "cut" and len(data) < 2):
            self.reset()
            return
        if fault == "short" and self.command == "GET":  # a body that is whole as far as it says itself
            data = data[: len(data) // 2]
            length = str(len(data))
            headers = {name: value for name, value in headers.items() if "checksum" not in name.lower()}
        self.answer(answer.status, headers | {"Content-Length": length}, data, fault)

    do_PUT = do_HEAD = do_POST = do_DELETE = do_GET

    def answer(self, code: int, headers: dict[str, str], data: bytes, fault: str = "") -> None:
        self.send_response_only(code)
        for name, value in ({"Content-Length": str(len(data))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        half = len(data) // 2
        self.wfile.write(data[:half])
        if fault == "cut":
            self.reset()
            return
        if fault == "slow":
            self.wfile.flush()
            time.sleep(SLOW)
        self.wfile.write(data[half:])

    def reset(self) -> None:
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass
