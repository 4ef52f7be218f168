"""Which site a page is of: the registered domain of its url, by the Public Suffix List (publicsuffix.org, MPL-2.0; the
package `publicsuffixlist` carries it).

`news.example.co.uk` and `example.co.uk` are one site, `anna.github.io` and `bert.github.io` are two. An address of
numbers is a site of its own, and so is a host that no suffix is known of.
"""

from __future__ import annotations

from functools import cache, lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from publicsuffixlist import PublicSuffixList

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.base.types import Array, Hashes
from gristmill.kernels.urls.urls import Urls
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
    """The host of each url, in lower case without `www.` and port; empty where it is null or names no page (`N/A`)."""
    data, offsets = text_column(urls)
    seen = mended_urls(data, offsets[:-1], offsets[1:])
    text, named = seen.text.tobytes(), names_a_page(urls, seen)
    places = zip(seen.starts.tolist(), seen.hosts.tolist(), named.tolist(), strict=True)
    return [text[start:end] if is_named else b"" for start, end, is_named in places]


def names_a_page(given: pa.Array | pa.ChunkedArray, urls: Urls) -> Array:
    """What stands for a url that nobody knows is the same in many documents, which have nothing else in common."""
    given = pa.chunked_array([given]) if isinstance(given, pa.Array) else given
    dots = np.append(urls.text == ord("."), False)
    hosts = np.stack([urls.starts, urls.hosts], 1).ravel()
    named: Array = (
        np.logical_or.reduceat(dots, hosts)[::2] & (urls.hosts > urls.starts) if len(urls) else np.zeros(0, np.bool_)
    )
    rest = np.flatnonzero(~named)
    named[rest] = pc.fill_null(pc.match_substring(given.take(pa.array(rest)), "//"), False).to_numpy()
    return named


def sites_of(urls: pa.Array | pa.ChunkedArray) -> Hashes:
    """The hash of each url's site; 0 where a url is null or has no host."""
    return np.array([_hash_of_host(host) if host else 0 for host in hosts_of(urls)], np.uint64)


def site_name(url: str) -> str:
    return site_of_host(hosts_of(pa.array([url]))[0].decode(errors="replace"))


__all__ = ["hosts_of", "names_a_page", "public_suffixes", "site_name", "site_of_host", "sites_of"]
