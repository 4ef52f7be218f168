"""What `explore` refuses: strangers, other names, other methods, addresses that mean files, numbers that mean nothing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote, urlsplit

import pytest
from markupsafe import escape
from typer.testing import CliRunner

from gristmill.kernels.common.extras import install
from gristmill.pipeline.cli import app as cli
from gristmill.pipeline.explore import app as answering
from gristmill.pipeline.explore.search import BadRequest, as_typed, fields_of, number_of, words_of
from gristmill.pipeline.explore.server import Server
from tests.pipeline.explore.explore_runs import Asker, hashes, served
from tests.pipeline.look.outfolder import make

SECRET = "a secret beside the run"


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "secret.txt").write_text(SECRET)
    return make(folder / "out")


@pytest.fixture(scope="module")
def server(out: Path) -> Iterator[Server]:
    before = hashes(out.parent)
    with served(out) as it:
        yield it
    assert hashes(out.parent) == before and len(before) > 20


@pytest.fixture
def asker(server: Server) -> Asker:
    return Asker(server)


TRAVERSALS = [
    "/../secret.txt",
    "/../../../../etc/passwd",
    "/documents/../../secret.txt",
    "/%2e%2e/secret.txt",
    "/%2e%2e%2fsecret.txt",
    "/..%2fsecret.txt",
    "/..%5csecret.txt",
    "/..\\secret.txt",
    "/%252e%252e%252fsecret.txt",
    "/..%c0%afsecret.txt",
    "/....//secret.txt",
    "/.%00./secret.txt",
    "/run.json",
    "/stages/language/report.json",
    "/style.css/../../secret.txt",
    "/style.css%00.html",
    "/document/../../secret.txt",
    "/document/%2e%2e%2f%2e%2e%2fsecret.txt",
    "/document/0000000000000000/../../secret.txt",
    "/document//etc/passwd",
    "/templates/base.html",
    "/.lock",
    "/file:///etc/passwd",
    "//evil.example/",
    "/documents/",
    "//documents",
    "/documents%0a/",
]


@pytest.mark.parametrize("target", TRAVERSALS)
def test_no_address_is_a_path(asker: Asker, target: str) -> None:
    reply = asker.get(target)
    assert reply.status == 404 and SECRET.encode() not in reply.body and b"root:" not in reply.body


@pytest.mark.parametrize(
    "path",
    ["../../secret.txt", "/etc/passwd", "..%2f..%2fsecret.txt", "language/../../..", "%00", "partitions/extract"],
)
@pytest.mark.parametrize("field", ["stage", "source"])
def test_no_field_is_a_path(asker: Asker, field: str, path: str) -> None:
    for target in (f"/documents?{field}={path}", f"/rejects?{field}={path}", f"/document/{path}"):
        reply = asker.get(target)
        assert reply.status in (400, 404) and SECRET not in reply.text and "root:" not in reply.text


@pytest.mark.parametrize("target", ["http://evil.example/", "*", "?token=", "documents", "evil.example:443"])
def test_an_address_begins_with_one_slash(asker: Asker, target: str) -> None:
    assert asker.get(target).status == 400


def test_nobody_gets_in_without_the_token(server: Server) -> None:
    stranger = Asker(server, admitted=False)
    wrong = ["", server.token[:-1], server.token + "x", server.token.swapcase(), server.session, "%00", "é", "a" * 4000]
    for target in [
        "/",
        "/documents",
        "/style.css",
        "/report",
        "/nothing",
        *(f"/?token={quote(token)}" for token in wrong),
        *(f"/documents?at=3&token={quote(token)}" for token in wrong),
    ]:
        reply = stranger.get(target)
        assert reply.status == 403 and "set-cookie" not in reply.headers, target
        assert reply.headers["content-type"].startswith("text/plain") and b"web" not in reply.body
    for cookie in ("", server.token, server.session[:-1], server.session + " x", "\xff"):
        assert stranger.get("/", Cookie=f"{server.cookie}={cookie}").status == 403
    assert stranger.get("/", Cookie=f"other=1; {server.cookie}={server.session}").status == 200
    assert stranger.get("/", Cookie=f"gristmill_1={server.session}").status == 403


@pytest.mark.parametrize(
    ("target", "address"),
    [
        ("/?token={0}", "/"),
        ("/documents?words=a+b&token={0}&url=%22x", "/documents?words=a+b&url=%22x"),
        ("/document/0123456789abcdef?part=1&token={0}", "/document/0123456789abcdef?part=1"),
        ("//evil.example/?token={0}", "/evil.example/"),
        ("/%0d%0aSet-Cookie:x?a=<script>&token={0}", "/%0d%0aSet-Cookie:x?a=<script>"),
    ],
)
def test_the_token_leaves_any_address_and_the_cookie_stays_here(server: Server, target: str, address: str) -> None:
    reply = Asker(server, admitted=False).get(target.format(server.token))
    assert (reply.status, reply.headers["location"], reply.body) == (303, address, b"")
    cookie = f"{server.cookie}={server.session}; Path=/; HttpOnly; SameSite=Strict"
    assert reply.headers["set-cookie"] == cookie and server.token not in str(reply.headers)
    from_a_link = Asker(server, admitted=False).get(target.format(server.token), Sec_Fetch_Site="cross-site")
    assert from_a_link.status == 200 and f'content="0;url={escape(address)}"' in from_a_link.text
    assert server.token not in from_a_link.text and "<script" not in from_a_link.text


def test_a_link_to_a_document_is_good_for_a_colleague(server: Server) -> None:
    asker = Asker(server)
    [document, *_] = asker.links("/documents", "^/document/")
    [link] = asker.links(document, "token=")
    colleague = Asker(server, admitted=False)
    told = colleague.get(document)
    assert told.status == 403 and "The token is missing" in told.text
    wrong = colleague.get(link.replace(server.token, "x"))
    assert wrong.status == 403 and "That is not the token" in wrong.text
    reply = colleague.get(link)
    colleague.cookie = reply.headers["set-cookie"].split(";")[0]
    assert colleague.get(reply.headers["location"]).body == asker.get(document).body


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "a@127.0.0.1",
        "10.0.0.1",
        "[::1",
        "127.0.0.1/x",
    ],
)
def test_another_name_is_not_ours(asker: Asker, host: str) -> None:
    for target in ("/", f"/?token={asker.server.token}"):
        reply = asker.get(target, Host=host)
        assert reply.status == 421 and "set-cookie" not in reply.headers, host


def test_one_host_must_be_named(asker: Asker) -> None:
    assert asker.get("/", Host="").status == 400
    for version, hosts, status in (("1.0", "", 421), ("1.1", "Host: localhost\r\nHost: evil.example\r\n", 400)):
        head = f"GET / HTTP/{version}\r\n{hosts}Cookie: {asker.cookie}\r\n\r\n"
        assert sent(asker.server, head.encode()).startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize("host", ["localhost", "LocalHost:1234", "127.0.0.1:9", "[::1]:80", "127.0.0.2"])
def test_loopback_has_several_names_and_tunnels_other_ports(asker: Asker, host: str) -> None:
    assert asker.get("/", Host=host).status == 200


def test_beyond_this_machine_numbers_and_its_name_are_good(out: Path) -> None:
    with served(out, "0.0.0.0") as server:
        asker = Asker(server)
        assert server.address.startswith("http://127.0.0.1:")
        assert [asker.get("/", Host=host).status for host in ("10.1.2.3:80", socket.gethostname(), "evil.example")] == [
            200,
            200,
            421,
        ]


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_other_sites_get_nothing_even_with_the_cookie(asker: Asker, site: str) -> None:
    assert asker.get("/", Sec_Fetch_Site=site).status == 403
    assert [asker.get("/", Sec_Fetch_Site=site).status for site in ("same-origin", "none")] == [200, 200]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "NONSENSE"])
def test_only_two_methods(asker: Asker, method: str) -> None:
    reply = asker.get("/", method)
    assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD") and "content-security-policy" in reply.headers


def test_head_is_get_without_its_body(asker: Asker) -> None:
    for target in ("/documents", "/nothing", "/style.css"):
        head, get = asker.get(target, "HEAD"), asker.get(target)
        assert head.body == b"" and (head.status, head.headers["content-length"]) == (get.status, str(len(get.body)))


def test_requests_have_no_body_and_an_end(asker: Asker) -> None:
    assert asker.get("/", Content_Length="5").status == 413
    assert asker.get("/", Transfer_Encoding="chunked").status == 413
    assert asker.get("/documents?words=" + "x" * 8200).status == 414
    assert asker.get("/" + "x" * 70_000).status == 414
    assert asker.get("/documents?words=" + "x" * 4100).status == 400
    assert asker.get("/documents?words=" + "x" * 501).status == 400
    assert asker.get("/documents?words=" + "+".join("abcdefghi")).status == 400
    assert asker.get("/documents?" + "&".join(f"a{n}=1" for n in range(100))).status == 400
    assert asker.get("/", X_Long="x" * 70_000).status == 431


@pytest.mark.parametrize(
    "number",
    [
        "-1",
        "0",
        "1e3",
        "1.5",
        "0x10",
        "NaN",
        "١",
        "²",
        "9" * 14,
        "9" * 400,
        "+1",
        "1;2",
        "%00",
        "true",
        "-9223372036854775808",
    ],
)
def test_a_place_is_a_whole_number_within_reason(asker: Asker, number: str) -> None:
    for target in (
        f"/documents?at={quote(number)}",
        f"/rejects?at={quote(number)}",
        f"/documents?words=x&at={quote(number)}",
    ):
        assert asker.get(target).status == (200 if number == "0" else 400), target


def test_a_place_beyond_the_last_has_nothing(asker: Asker) -> None:
    for at in (10**6, 999999999999):
        for target in (f"/documents?at={at}", f"/documents?words=text&at={at}"):
            reply = asker.get(target)
            assert reply.status == 200 and reply.text.count("<li class=") == 0 and 'rel="next"' not in reply.text
    assert asker.get("/documents?at=").text == asker.get("/documents?at=0").text


@pytest.mark.parametrize(
    "words",
    [
        "%ff%fe",
        "%c3%28",
        "%ed%a0%80",
        "%00%1b[31m",
        "%F0%9F%92%A9",
        "%u0041",
        "%",
        "%zz",
        "\xe9",
        "%e2%80%ae",
        "'\"",
        '"',
        "\\",
        "a%0d%0aSet-Cookie:x",
    ],
)
def test_odd_encodings_are_words_like_others(asker: Asker, words: str) -> None:
    target = f"/documents?words={words}&url={words}"
    request = f"GET {target} HTTP/1.0\r\nHost: localhost\r\nCookie: {asker.cookie}\r\n\r\n"
    head, _, body = sent(asker.server, request.encode("latin-1")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200" if words.isascii() else b"HTTP/1.1 400") and b"\nSet-Cookie:x" not in head
    assert b"\x1b" not in body and "\u202e" not in body.decode()
    found = asker.get("/find?q=" + quote(words)).headers["location"]
    assert found.startswith("/documents") and found.isascii() and "\r" not in found


def test_every_answer_has_its_guards(asker: Asker) -> None:
    for target in ("/", "/documents", "/nothing", "/style.css", "/documents?at=x", "/../x"):
        headers = asker.get(target).headers
        assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-opener-policy"] == headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["cache-control"] == "no-store" and headers["x-frame-options"] == "DENY"
        assert (
            headers["content-security-policy"].startswith("default-src 'none'")
            and "unsafe" not in headers["content-security-policy"]
        )
        assert "python" not in headers["server"].lower()


def test_garbage_is_no_request_and_the_server_goes_on(asker: Asker) -> None:
    for garbage in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"\r\n" * 10,
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost\x00: x\r\n\r\n",
        os.urandom(3000),
    ):
        with socket.create_connection(("127.0.0.1", asker.server.port), timeout=5) as connection:
            connection.sendall(garbage)
            connection.shutdown(socket.SHUT_WR)
            assert b"200 OK" not in b"".join(iter(lambda: connection.recv(65536), b""))
    refused = sent(asker.server, b"GET <script>\r\n\r\n")
    assert refused.startswith(b"HTTP/1.1 400 Bad Request\r\n") and b"content-type: text/plain" in refused
    assert b"script" not in refused
    assert asker.get("/").status == 200


def sent(server: Server, request: bytes) -> bytes:
    """All that comes back until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_a_connection_has_one_request_and_no_other_protocol(asker: Asker) -> None:
    ask = f"GET /style.css HTTP/1.1\r\nHost: localhost\r\nCookie: {asker.cookie}\r\n"
    assert sent(asker.server, f"{ask}\r\n{ask}\r\n".encode()).count(b"HTTP/1.1 ") == 1
    for more in (
        "Upgrade: websocket\r\nConnection: Upgrade\r\n",
        "Connection: keep-alive\r\n",
        "Expect: 100-continue\r\n",
    ):
        received = sent(asker.server, f"{ask}{more}\r\n".encode())
        assert received.startswith(b"HTTP/1.1 200 ") and received.count(b"HTTP/1.1 ") == 1


def test_an_error_of_ours_is_said_here_and_not_there(
    asker: Asker, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(answering, "style", lambda: {}[SECRET])
    reply = asker.get("/style.css")
    assert reply.status == 500 and SECRET not in reply.text and "content-security-policy" in reply.headers
    assert capfd.readouterr().err == f"explore: KeyError: '{SECRET}'\n"


def test_those_who_hold_the_line_keep_nobody_out(asker: Asker) -> None:
    silent = [socket.create_connection(("127.0.0.1", asker.server.port)) for _ in range(100)]
    for connection in silent[::2]:
        connection.sendall(b"GET / HTTP/1.1\r\nX-Slow: ")
    assert asker.get("/").status == 200
    for connection in silent:
        connection.close()


def test_two_read_at_once_and_others_wait_so_long(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "PATIENCE", 0.1)
    explorer = answering.Explorer(str(out))
    with explorer.reading(60.0), explorer.reading(60.0) as second:
        assert not second.over
        with pytest.raises(answering.Busy, match="ask again"), explorer.reading(1.0):
            pass
    with explorer.reading(0.0) as late:
        time.sleep(0.01)
        assert late.over


def test_what_a_query_is_made_of() -> None:
    assert words_of('a "b c" d "e') == ("a", "b c", "d", "e")
    for words in (
        ("a\u3000b", "c"),
        ("a\u00a0b c",),
        ("a\tb", "d"),
    ):  # any space: the next page of a list is asked for in the same words
        assert words_of(as_typed(words)) == words
    assert fields_of("a=1&a=2&b=+x+") == {"a": "1", "b": "x"}
    with pytest.raises(BadRequest, match="at: a whole number"):
        number_of({"at": "-3"}, "at", 0)


def heeding() -> None:
    """What a shell starts in the background is deaf to Ctrl-C, and so are its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_it_cleanly(out: Path, how: signal.Signals) -> None:
    command = [sys.executable, "-m", "gristmill.pipeline.cli.app", "explore", str(out), "--no-open"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heeding)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("explore: http://127.0.0.1:") and "?token=" in line
    process.send_signal(how)
    said, err = process.communicate(timeout=10)
    assert process.returncode == 0 and said == "" and "Traceback" not in err


BUSY = """
import sys, time
from gristmill.pipeline.cli import app
from gristmill.pipeline.explore import app as explore
explore.style = lambda: time.sleep(60)
app.command()
"""


def test_ctrl_c_does_not_wait_for_those_who_read_and_nothing_is_logged(out: Path) -> None:
    command = [sys.executable, "-c", BUSY, "explore", str(out), "--no-open"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heeding)
    assert process.stdout is not None
    address = process.stdout.readline().split()[1]
    server = SimpleNamespace(port=urlsplit(address).port, token=urlsplit(address).query.removeprefix("token="))
    asker = Asker(server)
    assert asker.get("/documents?words=sought").status == 200 and asker.get("/documents?at=sought").status == 400
    for head in ("GET /sought", "GET /sought HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket"):
        assert sent(server, f"{head}\r\n\r\n".encode()).startswith(b"HTTP/1.1 4")
    with socket.create_connection(("127.0.0.1", server.port)) as reading:
        reading.sendall(f"GET /style.css HTTP/1.1\r\nHost: localhost\r\nCookie: {asker.cookie}\r\n\r\n".encode())
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        said, err = process.communicate(timeout=10)
    assert (process.returncode, said, err) == (0, "", "Press Ctrl-C to stop\n")


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_without_its_packages_the_command_says_what_to_install(
    out: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    result = CliRunner().invoke(cli.app, ["explore", str(out), "--no-open"])
    assert str(result.exception) == f"explore needs Starlette and uvicorn: {install('explore')}"


def test_a_folder_without_a_run_and_a_port_that_is_taken(tmp_path: Path, out: Path, server: Server) -> None:
    runner = CliRunner()
    for folder in (tmp_path, tmp_path / "absent"):
        result = runner.invoke(cli.app, ["explore", str(folder), "--no-open"])
        assert result.exit_code != 0 and "no " in str(result.exception)
    taken = runner.invoke(cli.app, ["explore", str(out), "--no-open", "--port", str(server.port)])
    assert "cannot listen" in str(taken.exception)
