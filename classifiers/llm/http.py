"""Any endpoint that speaks OpenAI's API (vLLM, SGLang, llama.cpp, hosted ones): many requests at once, and none lost on
the way.

What may pass is tried again with growing, jittered pauses: timeouts, broken connections, 408, 409, 425, 429 and 5xx,
replies cut short or without choices. `Retry-After` is obeyed by all connections together. What cannot pass (401, 403,
404, a redirect) stops at once; what is wrong with one request alone (400, 413, 422) is that answer's failure. Each
request keeps one id over all tries (`X-Request-Id`, `Idempotency-Key`), and its first whole reply is its answer.

httpx2's connection pool speaks HTTP, below its client: no cookies, redirects or log lines. The API key is read from an
environment variable when requests are sent; it stands in no setting, message or identity.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import queue
import random
import ssl
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx2

from gristmill.classifiers.llm.http_forms import Form, NoAnswer, Usage, form_of
from gristmill.classifiers.llm.model import Answer, LanguageModelError, Request
from gristmill.classifiers.llm.tokens import PromptTokens
from gristmill.kernels.common.http import LONGEST_WAIT, backoff, causes, may_pass, proxy_for, retry_after, tls_for

HOPELESS = {
    401: "the key is missing or wrong",
    403: "the key may not do this",
    404: "no such model or path",
    405: "no such path",
    407: "the proxy wants a name and a password",
}
MOST_DETAIL = 300
MOST_BODY = 64 << 20
LONGEST_IDLE = 4.0  # seconds; uvicorn closes after 5
OURS = {  # of a request's body: what we write into it, or what would make a reply of another shape
    "model", "messages", "prompt", "temperature", "max_tokens", "max_completion_tokens", "logprobs", "top_logprobs",
    "logprob_token_ids", "return_tokens_as_token_ids", "stream", "n", "best_of", "echo",
}  # fmt: skip


@dataclass(frozen=True)
class Endpoint:
    """`url` ends before /chat/completions: https://api.example.com/v1.

    `form`: `chat`; `thinking` (OpenAI's models that think first); `completions` (bare text: base models, and `opening`
    counts); `tokens` (token ids made here by the model's own tokenizer, exact label probabilities: for vLLM's server
    from 0.26 on). `revision` is the user's word for which weights answer: the address is no part of an answer's
    identity. `body` goes into every request as it is ({"seed": 1}); what requests say themselves (OURS) is refused
    there.
    """

    url: str
    model: str
    form: Literal["chat", "thinking", "completions", "tokens"] = "chat"
    key_variable: str = ""
    revision: str = ""
    connections: int = 64
    timeout: float = 300.0  # seconds, of a whole exchange
    attempts: int = 6
    first_pause: float = 0.5
    longest_pause: float = 60.0
    longest_wait: float = LONGEST_WAIT
    top_logprobs: int = 0  # how many the server gives; 0: 20 for chat, 5 for completions
    seed: int = 0  # of the jitter
    body: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_address(self.url)
        ours = sorted(OURS & set(self.body))
        if ours:
            raise ValueError(f"body names {', '.join(ours)}, which our own settings and requests say already")
        if self.connections < 1 or self.attempts < 1 or min(self.timeout, self.first_pause, self.longest_pause) <= 0:
            raise ValueError("connections, attempts, timeout and pauses must be above 0")


@dataclass(frozen=True)
class _Failed:
    kind: str
    detail: str
    again: bool
    wait: float | None = None  # what the server asked for
    reply: Mapping[str, Any] = field(default_factory=dict)  # where it is JSON


class HttpModel:
    def __init__(self, endpoint: Endpoint, tokens: PromptTokens | None = None) -> None:
        self.endpoint = endpoint
        self._form: Form = form_of(endpoint.form, endpoint.model, endpoint.top_logprobs, dict(endpoint.body), tokens)
        self._tokens = {"tokens": tokens.fingerprint} if tokens is not None and endpoint.form == "tokens" else {}

    @property
    def name(self) -> str:
        return self.endpoint.model

    @property
    def identity(self) -> Mapping[str, Any]:
        here = self.endpoint
        return {
            "model": here.model,
            "revision": here.revision,
            "form": here.form,
            "body": dict(here.body),
            "top_logprobs": here.top_logprobs,
            **self._tokens,  # made here, whatever the server's tokenizer is
        }

    def answers(self, requests: Sequence[Request]) -> Iterator[tuple[int, Answer]]:
        """The connections live in a thread of their own, so a slow consumer makes no timeouts."""
        if not requests:
            return
        session = _Session(self.endpoint, self._form, self._key(), requests)
        thread = threading.Thread(target=session.run, name="llm-http", daemon=True)
        thread.start()
        try:
            while (item := session.arrived.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            session.stop()
            thread.join()

    def _key(self) -> str:
        if not self.endpoint.key_variable:
            return ""
        key = os.environ.get(self.endpoint.key_variable, "").strip()
        if not key:
            raise LanguageModelError(
                f"the environment variable {self.endpoint.key_variable} is empty; it should hold the key of "
                f"{self.endpoint.url}"
            )
        if not (key.isascii() and key.isprintable()):
            raise LanguageModelError(
                f"the environment variable {self.endpoint.key_variable} holds characters that no key has"
            )
        return key


class _Session:
    """One call of `answers`: workers that share the requests and the connections."""

    def __init__(self, endpoint: Endpoint, form: Form, key: str, requests: Sequence[Request]) -> None:
        self.endpoint = endpoint
        self.form = form
        self.requests = requests
        self.places = iter(range(len(requests)))
        self.address = httpx2.URL(endpoint.url.rstrip("/") + form.path)
        try:
            self.proxy = proxy_for(self.address)
        except ValueError as error:
            raise LanguageModelError(str(error)) from error
        self.tls = tls_for(self.address)
        self.headers = {
            "Content-Type": "application/json", "Accept": "application/json", "User-Agent": "gristmill",
            "Accept-Encoding": "identity",  # without a word any encoding would do
        }  # fmt: skip
        if key:
            self.headers["Authorization"] = f"Bearer {key}"
        self.open_again = 0.0  # when the server takes requests again, by the monotonic clock
        self.arrived: queue.SimpleQueue[tuple[int, Answer] | BaseException | None] = queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._main = self._loop.create_task(self._work())

    def run(self) -> None:
        end: BaseException | None = None
        try:
            self._loop.run_until_complete(self._main)
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            end = error
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
            self.arrived.put(end)

    def stop(self) -> None:
        with contextlib.suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._main.cancel)

    async def _work(self) -> None:
        workers = [
            asyncio.create_task(self._worker()) for _ in range(min(self.endpoint.connections, len(self.requests)))
        ]
        try:
            await asyncio.gather(*workers)
        finally:
            for task in workers:
                task.cancel()
            await asyncio.wait(workers)

    async def _worker(self) -> None:
        """A pool of its own, though it needs one connection: a pool for all looks at all connections twice for each
        request. No limit, since a request that times out while its pool tidies up keeps its place there."""
        limits = httpx2.Limits(keepalive_expiry=LONGEST_IDLE)
        async with httpx2.AsyncHTTPTransport(verify=self.tls, proxy=self.proxy, limits=limits) as transport:
            for place in self.places:
                self.arrived.put((place, await self._answer(transport, self.requests[place])))

    async def _answer(self, transport: httpx2.AsyncHTTPTransport, request: Request) -> Answer:
        """What a bad answer took is counted too."""
        start = time.perf_counter()
        answer, usage, replies = Answer(), Usage(), list[dict[str, Any]]()
        try:
            for body in self.form.bodies(request):
                reply = await self._reply_to(transport, json.dumps(body, ensure_ascii=True).encode(), request, usage)
                if isinstance(reply, _Failed):
                    answer = Answer(failure=reply.kind, detail=reply.detail)
                    break
                replies.append(reply)
            else:
                answer = self.form.answer(request, replies)
        except NoAnswer as error:
            answer = Answer(failure=error.kind, detail=str(error))
        return replace(usage.of(answer), seconds=time.perf_counter() - start)

    async def _reply_to(
        self, transport: httpx2.AsyncHTTPTransport, body: bytes, request: Request, usage: Usage
    ) -> dict[str, Any] | _Failed:
        """The reply to one body, after as many tries as it takes; what replies say they took goes to `usage`."""
        name = uuid.uuid4().hex
        jitter = random.Random(f"{self.endpoint.seed} {hashlib.sha256(body).hexdigest()}")
        failed = _Failed("", "", True)
        for attempt in range(self.endpoint.attempts):
            if attempt:
                await asyncio.sleep(
                    backoff(attempt, self.endpoint.first_pause, self.endpoint.longest_pause, jitter.uniform)
                )
            await self._until_open(jitter)
            reply = await self._try(transport, body, name)
            if not isinstance(reply, _Failed):
                usage.add(body, reply, request.max_tokens)
                return reply
            failed = reply
            if failed.reply.get("usage"):  # no answer, and paid for
                usage.add(body, failed.reply, request.max_tokens)
            if failed.wait is not None:
                if failed.wait > self.endpoint.longest_wait:
                    return _Failed(failed.kind, f"{failed.detail}; it asks to wait {failed.wait:g} s", False)
                self.open_again = max(self.open_again, time.monotonic() + failed.wait)
            if not failed.again:
                break
        return failed

    async def _until_open(self, jitter: random.Random) -> None:
        while (remaining := self.open_again - time.monotonic()) > 0:
            await asyncio.sleep(remaining + jitter.uniform(0.0, 0.05))

    async def _try(self, transport: httpx2.AsyncHTTPTransport, body: bytes, name: str) -> dict[str, Any] | _Failed:
        headers = {**self.headers, "X-Request-Id": name, "Idempotency-Key": name}
        try:
            async with asyncio.timeout(self.endpoint.timeout):
                response, content = await self._post(transport, headers, body)
        except TimeoutError:
            return _Failed("timeout", f"no whole reply in {self.endpoint.timeout:g} s", True)
        except (httpx2.TransportError, OSError) as error:
            lost = error
        else:
            return self._classify(response, content)
        return self._lost(lost)  # out here, since what it raises must not carry the request and its key as a context

    async def _post(
        self, transport: httpx2.AsyncHTTPTransport, headers: Mapping[str, str], body: bytes
    ) -> tuple[httpx2.Response, bytes]:
        steps: set[str] = set()

        async def trace(step: str, facts: Mapping[str, Any]) -> None:
            steps.add(step)
            if step == "http11.receive_response_headers.started":
                self._loop.call_soon(steps.add, "waited")  # done before any byte that is still to come is read

        request = httpx2.Request("POST", self.address, headers=headers, content=body, extensions={"trace": trace})
        for again in (False, True):
            try:
                response = await transport.handle_async_request(request)
                break
            except (httpx2.NetworkError, httpx2.RemoteProtocolError):
                if again or "connection.connect_tcp.started" in steps:
                    raise  # else an idle connection that the server had closed
        parts, size = [], 0
        async with contextlib.aclosing(response):
            if "waited" not in steps:  # it came behind the last reply, in the same bytes
                raise httpx2.RemoteProtocolError("a second reply to an earlier request")
            async for part in response.aiter_raw():
                size += len(part)
                if size > MOST_BODY:
                    raise httpx2.RemoteProtocolError(f"a body over {MOST_BODY} bytes")
                parts.append(part)
        return response, b"".join(parts)

    def _lost(self, error: Exception) -> _Failed:
        """Raises what no further try can mend."""
        cause: BaseException = error
        for cause in causes(error):
            if isinstance(cause, ssl.SSLCertVerificationError):
                raise LanguageModelError(
                    f"{self.endpoint.url}: its certificate is not trusted ({cause.verify_message}); SSL_CERT_FILE can "
                    "name authorities of your own"
                )
        here = there = self.address.netloc.decode()
        if self.proxy is not None:
            there = f"the proxy {self.proxy.url.netloc.decode()}"
        message = str(error)[:MOST_DETAIL] or type(error).__name__
        if isinstance(error, httpx2.ProxyError):
            status, refused = message[:3], f"{there} answered {message} to CONNECT {here}"
            if status >= "500" or status in ("408", "429"):
                return _Failed("disconnected", refused, True)
            lacking = "; it wants a name and a password" if status == "407" else ""
            raise LanguageModelError(f"{self.endpoint.url}: {refused}{lacking}")
        if isinstance(error, httpx2.ConnectError):
            reason = cause.strerror if isinstance(cause, OSError) else ""
            return _Failed("disconnected", f"no connection to {there} ({reason or cause})", True)
        return _Failed("disconnected", f"the connection broke ({message})", True)

    def _classify(self, response: httpx2.Response, body: bytes) -> dict[str, Any] | _Failed:
        status, wait = response.status_code, retry_after(response.headers.get("retry-after", ""), datetime.now(UTC))
        encoding = response.headers.get("content-encoding", "").strip().lower()
        if status == 200 and encoding not in ("", "identity"):
            raise LanguageModelError(
                f"{self.endpoint.url} compresses its replies ({encoding[:20]!r}) though it is asked not to; is a proxy "
                "between?"
            )
        if status == 200:
            try:
                content = json.loads(body)
            except (ValueError, RecursionError):
                return _Failed("bad_json", f"no JSON: {excerpt(body)}", True)
            if not isinstance(content, dict) or not isinstance(content.get("choices"), list) or not content["choices"]:
                reply = content if isinstance(content, dict) else {}
                return _Failed("no_choices", f"a reply without choices: {excerpt(body)}", True, reply=reply)
            return content
        message = f"{status}: {excerpt(body)}"
        if status in HOPELESS:
            raise LanguageModelError(
                f"{self.endpoint.url}{self.form.path}, model {self.endpoint.model!r}: {HOPELESS[status]} ({message})"
            )
        if 300 <= status < 400:
            raise LanguageModelError(
                f"{self.endpoint.url} wants to send us elsewhere ({status}); redirects are not followed. Name the "
                "right address"
            )
        if status == 409 or may_pass(status):  # 409: another request of this id is still at work
            return _Failed("rate_limited" if status == 429 else "server_error", message, True, wait)
        return _Failed("refused", message, False)


def _check_address(url: str) -> None:
    try:
        address, port = httpx2.URL(url), urlsplit(url).port
    except (ValueError, httpx2.InvalidURL) as error:
        raise ValueError(f"{url!r}: {error}") from error
    strange = port == 0 or address.userinfo or address.query or address.fragment
    if address.scheme not in ("http", "https") or not address.host or strange:
        raise ValueError(
            f"{url!r}: expected http://HOST[:PORT]/PATH or https://..., without a name, a password or a query"
        )
    if " " in url:
        raise ValueError(f"{url!r}: a space in an address")


def excerpt(body: bytes) -> str:
    return " ".join(body[: 4 * MOST_DETAIL].decode("utf-8", errors="replace").split())[:MOST_DETAIL] or "(nothing)"
