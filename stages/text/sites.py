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


def sites_of(urls: pa.Array | pa.ChunkedArray) -> Hashes:
    """The hash of each url's site; 0 where a url is null or has no host."""
    data, offsets = text_column(urls)
    seen = mended_urls(data, offsets[:-1], offsets[1:])
    text = seen.text.tobytes()
    spans = zip(seen.starts.tolist(), seen.hosts.tolist(), strict=True)
    return np.array([_hash_of_host(text[start:end]) if end > start else 0 for start, end in spans], np.uint64)


__all__ = ["public_suffixes", "site_of_host", "sites_of"]
