"""Runs to explore, and a way to ask: a crawl whose pages try everything, and a server in a thread."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import io
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from gristmill.pipeline.explore.app import Explorer
from gristmill.pipeline.explore.server import Server
from tests.pipeline.runs import go, save

SCRIPT = "<script>alert('planted')</script>"
ESCAPED = "&lt;script&gt;alert('planted')&lt;/script&gt;"
EVIL_URL = f"https://evil.example/{SCRIPT}?q=\"><img src=x onerror=alert('url')>"
WORDS = "The miller keeps what is good and says of everything else why it went, to those who ask for it. "
LONG = 10_000_000  # characters
HOSTILE = f"""<!doctype html><html><head><title>A title {ESCAPED}</title>
<meta http-equiv="refresh" content="0;url=http://beacon.invalid/refresh"><base href="http://beacon.invalid/">
<link rel="dns-prefetch" href="//beacon.invalid"><link rel=preconnect href="//beacon.invalid"><link rel=stylesheet href="//beacon.invalid/style.css">
<style>@import url(http://beacon.invalid/import.css); body {{ background: url('http://beacon.invalid/back.png') }}</style>
<script>alert('script')</script><script src="http://beacon.invalid/script.js"></script></head>
<body onload="alert('onload')" background="http://beacon.invalid/body.png"><h1>Hostile {ESCAPED}</h1>
<p>{WORDS * 3} {ESCAPED}</p><p style="background: url(http://beacon.invalid/p.png)">{WORDS * 3}</p>
<img src="http://beacon.invalid/pixel.png" onerror="alert('img')"><svg/onload=alert('svg')><iframe src="http://beacon.invalid/frame"></iframe>
<form action="http://beacon.invalid/form"><button>Send</button></form><a href="http://beacon.invalid/click" id="away">Away</a>
<video src="http://beacon.invalid/video" autoplay></video><object data="http://beacon.invalid/object"></object><p>{WORDS * 3}</p></body></html>"""


def page(words: str) -> str:
    paragraphs = "".join(f"<p>{words}</p>" for _ in range(3))
    return f"<!doctype html><html><head><title>Page</title></head><body><h1>A page</h1>{paragraphs}</body></html>"


def story(number: int) -> str:
    """Eight sentences that no other paragraph has: what repeats on a page is not its text."""
    words, dice = WORDS.strip(" .").replace(" keeps", "").split(), random.Random(number)
    return " ".join(f"{' '.join(dice.choices(words, k=21)).capitalize()}." for _ in range(8))


def crawl(path: Path) -> Path:
    """A WARC file: a hostile page, one of 10 MB, two of other encodings, two that are equal, one that was not found."""
    cyrillic = (
        "Мельник хранит хорошее зерно, а о прочем говорит, почему оно ушло, всем, кто его об этом спрашивает. " * 3
    )
    japanese = "粉屋は良いものを残し、ほかのものについてはなぜ去ったのかを、尋ねる人みなに語る。" * 6
    long = "".join(f"<p>{number} {WORDS}{story(number)}</p>" for number in range(LONG // (len(WORDS) * 9)))
    pages: list[tuple[str, bytes, str, str]] = [
        (EVIL_URL, HOSTILE.encode(), "text/html; charset=utf-8", "200 OK"),
        ("https://long.example/", page("").replace("</body>", long + "</body>").encode(), "text/html", "200 OK"),
        ("https://ru.example/", page(cyrillic).encode("cp1251"), "text/html; charset=windows-1251", "200 OK"),
        ("https://ja.example/", page(japanese).encode("shift_jis"), "text/html; charset=shift_jis", "200 OK"),
        ("https://one.example/", page(WORDS * 4).encode(), "text/html", "200 OK"),
        ("https://two.example/", page(WORDS * 4).encode(), "text/html", "200 OK"),
        ("https://short.example/", page("Too few words.").encode(), "text/html", "200 OK"),
        ("https://gone.example/", b"<p>not here</p>", "text/html", "404 Not Found"),
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        writer = WARCWriter(file, gzip=True)
        for number, (url, body, kind, status) in enumerate(pages):
            headers = StatusAndHeaders(status, [("Content-Type", kind)], protocol="HTTP/1.1")
            facts = {
                "WARC-Date": "2026-01-01T00:00:00Z",
                "WARC-Record-ID": f"<urn:uuid:00000000-0000-0000-0000-{number:012d}>",
            }
            writer.write_record(
                writer.create_warc_record(
                    url, "response", payload=io.BytesIO(body), http_headers=headers, warc_headers_dict=facts
                )
            )
    return path


def finished(folder: Path) -> Path:
    """A run over that crawl."""
    crawl(folder / "crawl" / "a.warc.gz")
    few = "{min_words: 10, max_words: 10000000, min_mean_word_length: 0, max_mean_word_length: 1000, min_alphabetic_word_share: 0, min_stop_words: 0}"
    text = f"name: explored\nsources:\n  web: {{warc: {{path: 'crawl/*.warc.gz'}}}}\nstages: [extract, gopher_quality: {few}, exact_dedup, write]\n"
    go(save(folder / "recipe.yaml", text), folder / "out")
    return folder / "out"


def hashes(out: Path) -> dict[str, tuple[str, int]]:
    """Every file of a folder: what is in it, and when it was written."""
    return {
        str(path.relative_to(out)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(out.rglob("*"))
        if path.is_file()
    }


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


class Asker:
    """One browser's worth of cookies."""

    def __init__(self, server: Server, admitted: bool = True) -> None:
        self.server = server
        self.cookie = ""
        if admitted:
            reply = self.get(f"/?token={server.token}")
            assert reply.status == 303 and reply.headers["location"] == "/", reply
            self.cookie = reply.headers["set-cookie"].split(";")[0]

    def get(self, target: str, method: str = "GET", **headers: str) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        try:
            connection.putrequest(method, target.partition("#")[0], skip_host=True, skip_accept_encoding=True)
            sent = {"Host": f"127.0.0.1:{self.server.port}"} | ({"Cookie": self.cookie} if self.cookie else {})
            for name, value in (sent | {name.replace("_", "-"): value for name, value in headers.items()}).items():
                if value:
                    connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def links(self, target: str, pattern: str) -> list[str]:
        return [
            found.replace("&amp;", "&")
            for found in re.findall(r'href="([^"]+)"', self.get(target).text)
            if re.search(pattern, found)
        ]

    def uid_of(self, url: str) -> str:
        """The page of the document with this url."""
        [link] = self.links(f"/documents?url={quote(url)}", "^/document/")
        return link


@contextlib.contextmanager
def served(out: Path | str, host: str = "127.0.0.1") -> Iterator[Server]:
    with Server(host, 0, Explorer(str(out))) as server:
        yield server
