"""HTTP as all clients here speak it, by httpx2's transports: proxies, certificates, and what is tried again when.

A request is sent again where the same one may be answered otherwise in a moment (`may_pass`), after growing pauses with
jitter (`backoff`), or when the server asks for it (`retry_after`).
"""

from __future__ import annotations

import contextlib
import ipaddress
import math
import random
import ssl
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

import httpx2

LONGEST_WAIT = 600.0  # seconds; a server that asks to wait longer is not waited for


def may_pass(status: int) -> bool:
    """May the same request be answered otherwise in a moment?"""
    return status in (408, 425, 429) or status >= 500


def backoff(
    failures: int, first: float, longest: float, uniform: Callable[[float, float], float] = random.uniform
) -> float:
    """Seconds to pause after so many failures in a row: `first`, then twice as long each time, up to `longest`; up to
    half of it is left out at random, so that clients do not return together."""
    return min(first * 2.0 ** (failures - 1), longest) * uniform(0.5, 1.0)


def retry_after(header: str, now: datetime) -> float | None:
    """Seconds to wait, 0 or more and finite, from a number or a date; None where nothing sensible is said."""
    header = header.strip()
    try:
        seconds = float(header)
    except ValueError:
        try:
            date = parsedate_to_datetime(header)
            seconds = (date.replace(tzinfo=date.tzinfo or UTC) - now).total_seconds()
        except (ValueError, TypeError, OverflowError):  # years, hours and zones may have any number of digits
            return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None


def tls_for(address: httpx2.URL) -> ssl.SSLContext:
    """Authorities, of SSL_CERT_FILE or the system, take 70 ms to load: only where they are asked for."""
    return ssl.create_default_context() if address.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, what it came from, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def proxy_for(address: httpx2.URL) -> httpx2.Proxy | None:
    """The proxy that HTTPS_PROXY, HTTP_PROXY or ALL_PROXY names, in either case and as urllib reads them and NO_PROXY;
    none for an address of this very machine. httpx2 would read them too, but fails on any it cannot speak to, needed
    or not. ValueError, without the password, where it is no proxy that is spoken to here."""
    named = getproxies_environment()
    kind = address.scheme if named.get(address.scheme) else "all"
    host = f"[{address.host}]" if ":" in address.host else address.host
    port = address.port or (443 if address.scheme == "https" else 80)
    if not named.get(kind) or _is_here(address.host) or proxy_bypass(f"{host}:{port}"):
        return None
    variable, url = f"{kind.upper()}_PROXY", named[kind] if "://" in named[kind] else f"http://{named[kind]}"
    parts, proxy = urlsplit(url), None
    if parts.scheme != "http":
        raise ValueError(f"{variable}: a proxy is spoken to as http://HOST:PORT here, and not by {parts.scheme}://")
    with contextlib.suppress(ValueError, httpx2.InvalidURL):  # which may quote the password
        proxy = httpx2.Proxy(url) if parts.port != 0 else None
    if proxy is None or not proxy.url.host:
        lacking = "host" if proxy is not None else "port"
        raise ValueError(f"{variable}: no {lacking} of a proxy; expected http://[NAME:PASSWORD@]HOST:PORT")
    return proxy


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost" or host.lower().endswith(".localhost")
