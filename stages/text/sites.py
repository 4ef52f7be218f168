"""Which site a page is of: the registered domain of its url, by the Public Suffix List (publicsuffix.org, MPL-2.0; the
package `publicsuffixlist` carries it).

`news.example.co.uk` and `example.co.uk` are one site, `anna.github.io` and `bert.github.io` are two. An address of
numbers is a site of its own, and so is a host that no suffix is known of.
"""

from __future__ import annotations

from functools import cache, lru_cache

import numpy as np
import pyarrow as pa
import xxhash
from publicsuffixlist import PublicSuffixList

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.base.types import Hashes
from gristmill.stages.text.url_lists import mended_urls

HOSTS_REMEMBERED = 1 << 16


@cache
def public_suffixes() -> PublicSuffixList:
    return PublicSuffixList()


def site_of_host(host: str) -> str:
    """A host in the form that `mended_urls` gives it."""
    if ":" in host or host.replace(".", "").isdecimal():
        return host
    return public_suffixes().privatesuffix(host) or host


@lru_cache(HOSTS_REMEMBERED)
def _hash_of_host(host: bytes) -> int:
    return xxhash.xxh3_64_intdigest(site_of_host(host.decode(errors="replace")).encode()) or 1


def hosts_of(urls: pa.Array | pa.ChunkedArray) -> list[bytes]:
    """The host of each url, empty where it is null or has none."""
    data, offsets = text_column(urls)
    seen = mended_urls(data, offsets[:-1], offsets[1:])
    text = seen.text.tobytes()
    return [text[start:end] for start, end in zip(seen.starts.tolist(), seen.hosts.tolist(), strict=True)]


def sites_of(urls: pa.Array | pa.ChunkedArray) -> Hashes:
    """The hash of each url's site; 0 where a url is null or has no host."""
    return np.array([_hash_of_host(host) if host else 0 for host in hosts_of(urls)], np.uint64)


def site_name(url: str) -> str:
    return site_of_host(hosts_of(pa.array([url]))[0].decode(errors="replace"))


__all__ = ["hosts_of", "public_suffixes", "site_name", "site_of_host", "sites_of"]
