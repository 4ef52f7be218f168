"""A small endpoint in OpenAI's manner for tests, in a thread: it answers by a rule, and misbehaves on demand.

What it does to a request hangs on which prompt it is and on how often that prompt has come, so a test can say `429
twice, then right`.
"""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = dict[str, Any]
Rule = Callable[[str, Reply], Reply]  # path and body of a request to the reply
Mood = Callable[[str, int], str]  # prompt and how often it came before to a kind of trouble, or "" for none

WHOLE = ("", "chunked", "to the end", "close quietly")  # unusual ways of a right reply


class LanguageServer:
    """`delivered` counts whole, right replies by prompt; `asked` all tries; `names` the ids that came with each prompt."""

    def __init__(
        self, rule: Rule, mood: Mood = lambda prompt, before: "", retry_after: str = "0.05", key: str = ""
    ) -> None:
        self.rule, self.mood, self.retry_after, self.key = rule, mood, retry_after, key
        self.asked: Counter[str] = Counter()
        self.delivered: Counter[str] = Counter()
        self.names: dict[str, set[str]] = {}
        self.bodies: list[Reply] = []
        self.headers: list[Message] = []
        self.most_at_once = self._now = 0
        self.lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 10

            def do_POST(self) -> None:
                server.handle(self)

            def log_message(self, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def handle_error(self, *args: object) -> None:
                pass  # clients hang up on us as we do on them

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> LanguageServer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def handle(self, http: BaseHTTPRequestHandler) -> None:
        body = json.loads(http.rfile.read(int(http.headers["Content-Length"])))
        prompt = prompt_of(body)
        with self.lock:
            before = self.asked[prompt]
            self.asked[prompt] += 1
            self.names.setdefault(prompt, set()).add(http.headers["X-Request-Id"])
            self.bodies.append(body)
            self.headers.append(http.headers)
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        try:
            if self.key and http.headers["Authorization"] != f"Bearer {self.key}":
                return send(http, 401, b'{"error": "bad key"}')
            whole = json.dumps(self.rule(http.path, body)).encode()
            trouble = self.mood(prompt, before)
            if trouble in WHOLE:
                with self.lock:
                    self.delivered[prompt] += 1
            if not trouble:
                return send(http, 200, whole)
            misbehave(http, trouble, whole, self.retry_after)
        finally:
            with self.lock:
                self._now -= 1


def prompt_of(body: Reply) -> str:
    if "messages" not in body:
        return json.dumps(body["prompt"])
    content = body["messages"][-1]["content"]  # a text, or parts, of which some are pictures
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def send(http: BaseHTTPRequestHandler, status: int, body: bytes, headers: Sequence[tuple[str, str]] = ()) -> None:
    http.send_response(status)
    for name, value in [("Content-Type", "application/json"), ("Content-Length", str(len(body))), *headers]:
        http.send_header(name, value)
    http.end_headers()
    http.wfile.write(body)


def misbehave(http: BaseHTTPRequestHandler, trouble: str, whole: bytes, retry_after: str) -> None:
    if trouble in ("429", "503"):
        send(http, int(trouble), b'{"error": "slow down"}', [("Retry-After", retry_after)])
    elif trouble in ("500", "400", "404"):
        send(http, int(trouble), b'{"error": "so it is"}')
    elif trouble == "gzip":
        send(http, 200, gzip.compress(whole), [("Content-Encoding", "gzip")])
    elif trouble == "302":
        send(http, 302, b"", [("Location", "http://127.0.0.1:1/elsewhere")])
    elif trouble == "cut json":
        send(http, 200, whole[: len(whole) // 2])
    elif trouble == "no json":
        send(http, 200, b"<html>Bad gateway</html>")
    elif trouble == "deep json":
        send(http, 200, b"[" * 200_000)
    elif trouble == "no choices":
        send(http, 200, b'{"choices": []}')
    elif trouble == "hang":
        http.connection.settimeout(30)
        http.connection.recv(1)  # until the client gives up
        hang_up(http)
    elif trouble == "disconnect":
        hang_up(http)
    elif trouble in ("cut body", "drip"):
        http.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(whole) + whole[:20])
        for place in range(20, len(whole) - 1 if trouble == "drip" else 20):
            time.sleep(0.05)
            http.wfile.write(whole[place : place + 1])
        hang_up(http)
    elif trouble == "chunked":  # no trouble for a client that knows HTTP
        http.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for place in range(0, len(whole), 7):
            piece = whole[place : place + 7]
            http.wfile.write(b"%x;x=y\r\n%s\r\n" % (len(piece), piece))
        http.wfile.write(b"0\r\nTrailer: t\r\n\r\n")
    elif trouble == "to the end":
        http.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n" + whole)
        hang_up(http)
    elif trouble == "close quietly":  # says nothing of closing, and closes: the next request finds a dead connection
        send(http, 200, whole)
        hang_up(http)
    elif trouble == "twice":  # one request, two replies in the same bytes
        other = json.dumps(chat_reply("of another request")).encode()
        http.wfile.write(
            b"".join(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(one), one) for one in (whole, other))
        )
    elif trouble == "long header":
        http.wfile.write(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000)
        hang_up(http)
    elif trouble == "huge":
        http.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n")
        hang_up(http)
    else:
        raise ValueError(trouble)


def hang_up(http: BaseHTTPRequestHandler) -> None:
    http.wfile.flush()
    http.close_connection = True
    try:
        http.connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # the client was first


def chat_reply(text: str, likely: dict[str, float] | None = None, finish: str = "stop") -> Reply:
    choice: Reply = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
    if likely is not None:
        choice["logprobs"] = {
            "content": [{"token": text, "top_logprobs": [{"token": t, "logprob": p} for t, p in likely.items()]}]
        }
    return {
        "choices": [choice],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}},
    }


def text_reply(text: str, likely: dict[str, float] | None = None) -> Reply:
    choice: Reply = {"index": 0, "text": text, "finish_reason": "length"}
    if likely is not None:
        choice["logprobs"] = {"tokens": [text], "token_logprobs": [0.0], "top_logprobs": [likely]}
    return {"choices": [choice], "usage": {"prompt_tokens": 7, "completion_tokens": 1}}
