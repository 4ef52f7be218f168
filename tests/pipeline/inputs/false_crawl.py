"""A false Common Crawl: dumps of made-up pages in a folder, with lists, WET files, news and a columnar index; and a server
of this machine that gives them out by range, and fails a share of the requests. For tests, and for
benchmarks/pipeline/common_crawl.py."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import random
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

DUMP, NEWS = "CC-MAIN-2024-10", "CC-NEWS-2024-02"
WORDS = [
    "the",
    "of",
    "and",
    "a",
    "to",
    "in",
    "is",
    "mill",
    "river",
    "stone",
    "wheel",
    "grain",
    "water",
    "miller",
    "field",
    "village",
    "bread",
    "morning",
    "road",
    "house",
]
LANGUAGES = ("eng", "deu", "fra,eng", "jpn", "deu,eng")
FAULTS = ("503", "429", "404", "cut", "short", "long", "slow", "reset")
# Of a fault that costs no further request, all else does.
FREE = ("slow", "long")
SLOW = 0.05  # seconds in the midst of a body


@dataclass
class Crawl:
    """What was written."""

    root: Path
    files: list[str] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)  # of the index


def member(kind: str, url: str, body: bytes, content: str, number: int) -> bytes:
    header = (
        f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Record-ID: <urn:uuid:{number:08d}-0000-0000-0000-000000000000>\r\n"
        f"WARC-Target-URI: {url}\r\nWARC-Date: 2024-02-20T00:00:00Z\r\nContent-Type: {content}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return gzip.compress(header.encode() + body + b"\r\n\r\n", 6, mtime=0)


def page(chance: random.Random, words: int) -> bytes:
    text = "".join(f"<p>{' '.join(chance.choices(WORDS, k=30)).capitalize()}.</p>" for _ in range(words // 30 + 1))
    noise = "".join(f"<!-- {chance.getrandbits(64):x} -->" for _ in range(words // 4))  # pages pack less well
    html = f"<html><head><title>A page</title></head><body><article>{text}</article>{noise}</body></html>"
    return f"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n{html}".encode()


def write_list(root: Path, path: str, names: Sequence[str]) -> None:
    target = root / f"{path}.paths.gz"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(gzip.compress("".join(f"{name}\n" for name in names).encode(), mtime=0))


def make_crawl(
    root: Path,
    files: int = 4,
    records: int = 20,
    words: int = 120,
    seed: int = 0,
    tables: int = 2,
    news: bool = True,
) -> Crawl:
    chance, crawl = random.Random(seed), Crawl(root)
    wet = []
    for number in range(files):
        name = f"crawl-data/{DUMP}/segments/17079{number % 3}/warc/{DUMP}-{number:05d}.warc.gz"
        data = member("warcinfo", "", b"software: none\r\n", "application/warc-fields", 0)
        texts = b""
        for record in range(records):
            host = f"{chance.choice(('www', 'a', 'b'))}.{chance.choice(('one', 'two', 'three'))}.example"
            url, serial = f"https://{host}/{number}/{record}", number * records + record
            data += member("request", url, b"GET / HTTP/1.1\r\n\r\n", "application/http; msgtype=request", serial)
            one = member("response", url, page(chance, words), "application/http; msgtype=response", serial)
            crawl.rows.append(
                {
                    "url": url,
                    "url_host_name": host,
                    "url_host_registered_domain": host.partition(".")[2],
                    "content_languages": LANGUAGES[serial % len(LANGUAGES)],
                    "content_mime_detected": "application/pdf" if serial % 7 == 6 else "text/html",
                    "fetch_status": 200,
                    "warc_filename": name,
                    "warc_record_offset": len(data),
                    "warc_record_length": len(one),
                }
            )
            data += one
            text = " ".join(chance.choices(WORDS, k=words)).encode()
            texts += member("conversion", url, text, "text/plain", serial)
        put(root / name, data)
        wet.append(name.replace("/warc/", "/wet/").replace(".warc.gz", ".warc.wet.gz"))
        put(root / wet[-1], texts)
        crawl.files.append(name)
    write_list(root, f"crawl-data/{DUMP}/warc", crawl.files)
    write_list(root, f"crawl-data/{DUMP}/wet", wet)
    if news:
        name = "crawl-data/CC-NEWS/2024/02/CC-NEWS-20240201000000-00001.warc.gz"
        url = "https://news.example/1"
        put(root / name, member("response", url, page(chance, words), "application/http; msgtype=response", 1))
        write_list(root, "crawl-data/CC-NEWS/2024/02/warc", [name])
    write_index(crawl, tables)
    return crawl


def write_index(crawl: Crawl, tables: int) -> None:
    """Sorted by host, as Common Crawl's is, in a few row groups a file."""
    rows = sorted(crawl.rows, key=lambda row: (row["url_host_registered_domain"], row["url"]))
    above = f"cc-index/table/cc-main/warc/crawl={DUMP}/subset="
    names = [f"{above}robotstxt/part-00000.parquet"]
    put(crawl.root / names[0], b"PAR1: read by nobody")
    for number in range(tables):
        some = rows[number * len(rows) // tables : (number + 1) * len(rows) // tables]
        names.append(f"{above}warc/part-{number:05d}.gz.parquet")
        put(crawl.root / names[-1], b"")
        pq.write_table(
            pa.Table.from_pylist(some),
            crawl.root / names[-1],
            row_group_size=max(1, len(some) // 3),
            compression="gzip",
        )
    write_list(crawl.root, f"crawl-data/{DUMP}/cc-index-table", names)


def put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


class Server(ThreadingHTTPServer):
    """`first`: faults of the first requests that ask for more than a byte; `share` of the others meet one of `faults`.
    `served` holds for each whole answer what was asked for: name, start and end."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, root: Path, share: float = 0.0, seed: int = 0, faults: Sequence[str] = FAULTS) -> None:
        self.root, self.share, self.faults = root, share, tuple(faults)
        self.first: list[str] = []
        self.gone: set[str] = set()  # names that are answered with 404
        self.requests = self.bytes = 0
        self.met: Counter[str] = Counter()
        self.asked: list[tuple[str, int, int]] = []
        self.times: list[float] = []
        self.wait = ""  # Retry-After of 503 and 429
        self.most = 0  # answers with a body at once
        self._at_once = 0
        self._rng, self._lock = random.Random(seed), threading.Lock()
        self._tags: dict[tuple[Path, int], str] = {}
        super().__init__(("127.0.0.1", 0), _Answer)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def draw(self) -> str:
        with self._lock:
            self.requests += 1
            self.times.append(time.monotonic())
            fault = self.first.pop(0) if self.first else ""
            fault = fault or (self._rng.choice(self.faults) if self._rng.random() < self.share else "")
            self.met[fault] += bool(fault)
            return fault

    @property
    def costly(self) -> int:
        """Faults that a request more mends."""
        return sum(count for fault, count in self.met.items() if fault not in FREE)

    def tag(self, path: Path) -> str:
        key = path, path.stat().st_mtime_ns
        if key not in self._tags:
            self._tags[key] = f'"{hashlib.md5(path.read_bytes()).hexdigest()}"'
        return self._tags[key]

    def sent(self, size: int) -> None:
        with self._lock:
            self.bytes += size

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients end their connections."""


@contextlib.contextmanager
def serving(root: Path, **how: Any) -> Iterator[Server]:
    server = Server(root, **how)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def do_GET(self) -> None:
        server, name = self.server, self.path.lstrip("/")
        fault, path = server.draw(), server.root / name
        if fault in ("503", "429"):
            return self.head(
                int(fault), {"Content-Length": "0"} | ({"Retry-After": server.wait} if server.wait else {})
            )
        if fault == "reset":
            return self.reset()
        if fault == "silence":
            time.sleep(5)
            return self.reset()
        if fault == "404" or name in server.gone or not path.is_file():
            return self.head(404, {"Content-Length": "0"})
        data, tag = path.read_bytes(), server.tag(path)
        start, end, status = 0, len(data), 200
        match = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if match and self.headers.get("If-Range", tag) == tag:
            first, last = match.groups()
            start = int(first) if first else max(0, len(data) - int(last))
            end = min(len(data), int(last) + 1) if first and last else len(data)
            status = 206
            if start >= len(data):
                return self.head(416, {"Content-Length": "0", "Content-Range": f"bytes */{len(data)}"})
        server.asked.append((name, start, end))
        body = data[start:end]
        length = len(body)
        headers = (
            {"ETag": tag, "Content-Range": f"bytes {start}-{end - 1}/{len(data)}"} if status == 206 else {"ETag": tag}
        )
        if fault == "short":  # less than there is, and the rest comes all the same
            length = max(1, length // 2)
        if fault == "long":
            length *= 2
        self.head(status, headers | {"Content-Length": str(length)})
        if fault == "cut":
            body = body[: len(body) // 2]
        half = len(body) // 2
        for piece in (body[:half], body[half:]):
            self.wfile.write(piece)
            server.sent(len(piece))
            if fault == "slow":
                self.wfile.flush()
                time.sleep(SLOW)
        self.wfile.flush()
        if fault == "cut":
            self.reset()
        if fault in ("short", "long"):
            self.close_connection = True

    def head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def reset(self) -> None:
        """The connection ends as if the machine had gone."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.close()

    def log_message(self, format: str, *args: Any) -> None: ...
