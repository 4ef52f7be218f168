"""Which proxy requests go through: HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY, in either case, as urllib reads
them.

An endpoint of this very machine is asked directly. A proxy's name and password stand in no message.
"""

from __future__ import annotations

import base64
import ipaddress
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass


@dataclass(frozen=True)
class Proxy:
    host: str
    port: int
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # what lets us in

    @property
    def display_name(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def proxy_for(host: str, port: int, secure: bool) -> Proxy | None:
    """None where requests go directly. ValueError where the environment names something that is no proxy we can speak
    to."""
    scheme = "https" if secure else "http"
    named = getproxies_environment()
    url = named.get(scheme) or named.get("all")
    if not url or _is_here(host) or proxy_bypass(f"[{host}]:{port}" if ":" in host else f"{host}:{port}"):
        return None
    variable = f"{scheme if named.get(scheme) else 'all'}_proxy".upper()
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme != "http":
        raise ValueError(f"{variable}: a proxy is spoken to as http://HOST:PORT here, and not by {parts.scheme}://")
    try:
        host, port = parts.hostname or "", parts.port or 80
    except ValueError as error:
        raise ValueError(f"{variable}: no port of a proxy") from error
    if not host:
        raise ValueError(f"{variable}: no host of a proxy; expected http://[NAME:PASSWORD@]HOST:PORT")
    return Proxy(host, port, _credentials(parts.username, parts.password))


def _credentials(name: str | None, password: str | None) -> tuple[tuple[str, str], ...]:
    if name is None:
        return ()
    pair = f"{unquote(name)}:{unquote(password or '')}".encode()
    return (("Proxy-Authorization", f"Basic {base64.b64encode(pair).decode()}"),)


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost" or host.lower().endswith(".localhost")
