"""What goes back to a browser: a status, a body, and headers that let nothing on a page run, load, leave or be
embedded."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from gristmill.pipeline.formatting import for_machines

PAGE_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; frame-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
# Crawled markup: no script, no request, no form, no origin.
FRAME_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
# report.html has a script of its own, which its own policy names by hash; here it gets an origin of its own too.
REPORT_POLICY = (
    "sandbox allow-scripts allow-popups; default-src 'none'; style-src 'unsafe-inline'; script-src "
    "'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
ALWAYS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=(), clipboard-read=(), payment=(), usb=()",
    "X-DNS-Prefetch-Control": "off",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class HttpResponse:
    """A response, whole."""

    status: int
    body: bytes
    kind: str = "text/html; charset=utf-8"
    policy: str = PAGE_POLICY
    more: dict[str, str] = field(default_factory=dict)

    @property
    def headers(self) -> dict[str, str]:
        frames = "SAMEORIGIN" if self.policy == FRAME_POLICY else "DENY"
        first = {
            "Content-Type": self.kind,
            "Content-Length": str(len(self.body)),
            "Content-Security-Policy": self.policy,
        }
        return first | {"X-Frame-Options": frames} | ALWAYS | self.more


def as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def page(text: str, status: int = 200) -> HttpResponse:
    return HttpResponse(status, as_bytes(text))


def json_answer(data: object) -> HttpResponse:
    return HttpResponse(
        200,
        as_bytes(json.dumps(data, default=for_machines)),
        "application/json; charset=utf-8",
        "default-src 'none'; sandbox",
    )


def elsewhere(address: str, cookie: str | None = None) -> HttpResponse:
    """See another page of ours."""
    return HttpResponse(303, b"", more={"Location": address} | ({"Set-Cookie": cookie} if cookie else {}))


def bare(status: int, message: str, more: dict[str, str] | None = None) -> HttpResponse:
    """A message for whoever has not shown the token, or speaks no HTTP: plain text, nothing of the run in it."""
    return HttpResponse(
        status, as_bytes(f"{message}\n"), "text/plain; charset=utf-8", "default-src 'none'; sandbox", more or {}
    )
