"""Requests to a model go through the proxy that the environment names; a proxy of the test's own listens on loopback."""

from __future__ import annotations

import base64
import contextlib
import logging
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gristmill.classifiers.llm.http import Endpoint, HttpModel
from gristmill.classifiers.llm.model import Answer, LanguageModelError, Request
from tests.classifiers.llm.llm_server import LanguageServer, chat_reply

SECRET = "p%40ss:word"


class ForwardProxy:
    """Passes bytes on to one server, whatever host is asked for; `lines` are the first lines it was sent, `heads` all
    headers."""

    def __init__(self, target: tuple[str, int], status: int = 200) -> None:
        self.target, self.status = target, status
        self.lines: list[str] = []
        self.heads: list[str] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> ForwardProxy:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._listening.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._handle, args=(client,), daemon=True).start()

    def _handle(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            head = b""
            while b"\r\n\r\n" not in head:
                data = client.recv(65536)
                if not data:
                    return
                head += data
            text, _, rest = head.partition(b"\r\n\r\n")
            self.heads.append(text.decode("latin-1"))
            self.lines.append(self.heads[-1].split("\r\n")[0])
            if self.status != 200:
                client.sendall(f"HTTP/1.1 {self.status} no\r\nContent-Length: 0\r\n\r\n".encode())
                return
            with socket.create_connection(self.target) as server:
                if head.startswith(b"CONNECT"):
                    client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                    server.sendall(rest)
                else:
                    server.sendall(head)
                there = threading.Thread(target=pass_on, args=(client, server), daemon=True)
                there.start()
                pass_on(server, client)


def pass_on(source: socket.socket, to: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            to.sendall(data)
        to.shutdown(socket.SHUT_WR)


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def server() -> Iterator[LanguageServer]:
    with LanguageServer(lambda path, body: chat_reply("an answer")) as found:
        yield found


def target_of(server: LanguageServer) -> tuple[str, int]:
    host, port = server.url.removeprefix("http://").removesuffix("/v1").split(":")
    return host, int(port)


def serve_https(server: LanguageServer, folder: Path) -> Path:
    """The certificate that it signs itself, for model.example."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-keyout", str(key),
         "-out", str(certificate), "-subj", "/CN=model.example", "-addext", "subjectAltName=DNS:model.example"],
        check=True, capture_output=True,
    )  # fmt: skip
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    server._server.socket = tls.wrap_socket(server._server.socket, server_side=True)
    return certificate


def ask(url: str, count: int = 3, key_variable: str = "") -> dict[int, Answer]:
    model = HttpModel(
        Endpoint(
            url=url,
            model="m",
            key_variable=key_variable,
            timeout=5.0,
            first_pause=0.01,
            longest_pause=0.02,
            attempts=2,
            connections=2,
        )
    )
    return dict(model.answers([Request(shared="", own=f"text {i}") for i in range(count)]))


def test_http_goes_through_the_proxy_in_absolute_form(server: LanguageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with ForwardProxy(target_of(server)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://me:{SECRET}@127.0.0.1:{proxy.port}")
        answers = ask("http://model.example:8000/v1")
    assert [answers[i].text for i in range(3)] == ["an answer"] * 3
    assert 1 <= len(proxy.lines) <= 2  # connections that are kept open, for three requests
    assert set(proxy.lines) == {"POST http://model.example:8000/v1/chat/completions HTTP/1.1"}
    credentials = base64.b64encode(b"me:p@ss:word").decode()
    assert all(
        f"Proxy-Authorization: Basic {credentials}" in head and "Host: model.example:8000" in head
        for head in proxy.heads
    )


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate of this test")
def test_https_goes_through_a_tunnel_whose_end_is_verified(
    server: LanguageServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    certificate = serve_https(server, tmp_path)
    with ForwardProxy(target_of(server)) as proxy:
        monkeypatch.setenv("https_proxy", f"http://me:{SECRET}@127.0.0.1:{proxy.port}")
        with pytest.raises(LanguageModelError, match=r"https://model.example/v1: its certificate is not trusted"):
            ask("https://model.example/v1", 1)  # it signed its certificate itself
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with pytest.raises(LanguageModelError, match=r"https://other.example/v1: its certificate is not trusted"):
            ask("https://other.example/v1", 1)
        proxy.lines.clear()
        answers = ask("https://model.example/v1")
        assert [answers[i].text for i in range(3)] == ["an answer"] * 3
        assert 1 <= len(proxy.lines) <= 2 and set(proxy.lines) == {"CONNECT model.example:443 HTTP/1.1"}
    credentials = base64.b64encode(b"me:p@ss:word").decode()
    assert all(f"Proxy-Authorization: Basic {credentials}" in head for head in proxy.heads)
    assert all("Proxy-Authorization" not in headers for headers in server.headers) and len(server.headers) == 3


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate of this test")
def test_keys_and_passwords_are_in_no_log_and_no_error(
    server: LanguageServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("OUR_KEY", "s3cret")
    monkeypatch.setenv("SSL_CERT_FILE", str(serve_https(server, tmp_path)))
    with ForwardProxy(target_of(server)) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:{SECRET}@127.0.0.1:{proxy.port}")
        assert ask("https://model.example/v1", 1, "OUR_KEY")[0].text == "an answer"
        with pytest.raises(LanguageModelError) as error:
            ask("https://other.example/v1", 1, "OUR_KEY")
    assert server.headers[0]["Authorization"] == "Bearer s3cret" and "start_tls.complete" in caplog.text
    # an error that crosses processes takes its causes along, and those of httpx2 hold the request
    assert error.value.__cause__ is error.value.__context__ is None
    for secret in ("s3cret", "p@ss", SECRET, base64.b64encode(b"me:p@ss:word").decode()):
        assert secret not in caplog.text + str(error.value)


@pytest.mark.parametrize(("scheme", "status"), [("https", 407), ("https", 403), ("http", 407)])
def test_a_proxy_that_refuses_stops_at_once_and_its_password_is_not_told(
    scheme: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ForwardProxy(("127.0.0.1", 1), status) as proxy:
        monkeypatch.setenv(f"{scheme.upper()}_PROXY", f"http://me:{SECRET}@127.0.0.1:{proxy.port}")
        with pytest.raises(LanguageModelError, match=f"{status}") as error:
            ask(f"{scheme}://model.example/v1", 1)
    assert "prox" in str(error.value) and "word" not in str(error.value).replace("password", "")
    assert len(proxy.lines) == 1


def test_a_proxy_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setenv("ALL_PROXY", f"127.0.0.1:{port}")
    [answer] = ask("http://model.example/v1", 1).values()
    assert answer.failure == "disconnected" and f"no connection to the proxy 127.0.0.1:{port}" in answer.detail


def test_an_endpoint_of_this_machine_is_asked_directly(server: LanguageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    assert [answer.text for answer in ask(server.url).values()] == ["an answer"] * 3


def test_hosts_of_no_proxy_are_asked_directly(server: LanguageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    url = server.url.replace("127.0.0.1", "0.0.0.0")  # reaches this machine, and is no address of it
    with ForwardProxy(target_of(server)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        assert [answer.text for answer in ask(url).values()] == ["an answer"] * 3 and proxy.lines
        proxy.lines.clear()
        monkeypatch.setenv("NO_PROXY", "inside.example,0.0.0.0")
        assert [answer.text for answer in ask(url).values()] == ["an answer"] * 3 and not proxy.lines


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("socks5://me:word@h:1", "HTTPS_PROXY: .*socks5://"),
        ("http://me:word@h:x", "HTTPS_PROXY: no port"),
        ("http://", "HTTPS_PROXY: no host"),
    ],
)
def test_what_is_no_proxy_is_said_without_its_password(value: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", value)
    with pytest.raises(LanguageModelError, match=words) as error:
        ask("https://model.example/v1", 1)
    assert "me:word" not in str(error.value)
