"""What goes back to a browser: a status, a body, and headers that let nothing on a page run, load, leave or be
embedded."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import Response

PAGE_POLICY = (
    "default-src 'none'; style-src 'self'; img-src data:; frame-src 'self'; "
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
DATA_POLICY = "default-src 'none'; sandbox"
ALWAYS = {
    "Server": "gristmill",
    "Connection": "close",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=(), clipboard-read=(), payment=(), usb=()",
    "X-DNS-Prefetch-Control": "off",
    "Cache-Control": "no-store",
}
HTML = "text/html; charset=utf-8"
NOTHING: Mapping[str, str] = {}


def respond(
    body: str | bytes, status: int = 200, kind: str = HTML, policy: str = PAGE_POLICY, more: Mapping[str, str] = NOTHING
) -> Response:
    frames = "SAMEORIGIN" if policy == FRAME_POLICY else "DENY"
    headers = {"Content-Type": kind, "Content-Security-Policy": policy, "X-Frame-Options": frames, **ALWAYS, **more}
    return Response(body.encode("utf-8", "replace") if isinstance(body, str) else body, status, headers)


def elsewhere(address: str, cookie: str | None = None) -> Response:
    """See another page of ours."""
    return respond("", 303, more={"Location": address} | ({"Set-Cookie": cookie} if cookie else {}))


def bare(status: int, message: str, more: Mapping[str, str] = NOTHING) -> Response:
    """A message for whoever has not shown the token, or speaks no HTTP: plain text, nothing of the run in it."""
    return respond(f"{message}\n", status, "text/plain; charset=utf-8", DATA_POLICY, more)
