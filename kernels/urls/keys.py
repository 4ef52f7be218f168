"""When two URLs name one page: 128 bits of a canonical URL (`gristmill.kernels.urls.urls`) without what does not change
the page.

Left out: the fragment (unless it begins with `!` or `/`, where it is the page of an application), one slash at the end
of the path, tracking parameters (of the query, or of the path as in `/a;jsessionid=1`), and the order of the other
query parameters. Measured: 0.7 million URLs a second from URLs to survivors (benchmarks/dedup/bloom.py).
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from gristmill.kernels.base.bare import helper, inlined, kernel
from gristmill.kernels.base.splitmix import mixed, mixed_plain
from gristmill.kernels.base.types import Array, Hashes, Offsets
from gristmill.kernels.urls.urls import Urls
from gristmill.kernels.words.token_rules import ALL

PARAMETER = 0xA0761D6478BD642F  # seeds the hash of a parameter, which may equal a path of another URL
HIGH_STEP, LOW_STEP = 0x9FB21C651E98DF25, 0xD6E8FEB86659FD93
_HIGH, _LOW, _PARAMETER = np.uint64(HIGH_STEP), np.uint64(LOW_STEP), np.uint64(PARAMETER)
_HIGH_SHIFT, _LOW_SHIFT = np.uint64(32), np.uint64(29)
_QUESTION, _AMPERSAND, _EQUALS, _HASH, _SLASH, _BANG, _SEMICOLON = 63, 38, 61, 35, 47, 33, 59


class Names(NamedTuple):
    """Names of parameters in lower case, end to end; a name may be a prefix."""

    text: Array
    offsets: Offsets
    begins: Array  # uint8: is the rest of the name free?


def names_of(patterns: tuple[str, ...]) -> Names:
    """A pattern is a name, or a prefix and `*`."""
    texts = [pattern.removesuffix("*").lower().encode() for pattern in patterns]
    return Names(
        np.frombuffer(b"".join(texts), np.uint8),
        np.concatenate([[0], np.cumsum([len(text) for text in texts])]).astype(np.int64),
        np.array([pattern.endswith("*") for pattern in patterns], np.uint8),
    )


def url_keys(urls: Urls, ignored: Names) -> tuple[Hashes, Hashes]:
    """The two halves. Those of an empty URL are undefined."""
    high, low = np.zeros(len(urls), np.uint64), np.zeros(len(urls), np.uint64)
    _keys(urls.text, urls.starts, urls.sites, urls.ends, *ignored, high, low)
    return high, low


@inlined
def _high(h, byte):
    h = (h ^ np.uint64(byte)) * _HIGH
    return h ^ h >> _HIGH_SHIFT


@inlined
def _low(h, byte):
    h = (h + np.uint64(byte)) * _LOW
    return h ^ h >> _LOW_SHIFT


@inlined
def _until(text, i, end, byte):
    while i < end and text[i] != byte:
        i += 1
    return i


@helper
def _ignores(text, start, end, names, offsets, begins):
    """Whether text[start:end] is one of the names, in any case."""
    size = end - start
    for n in range(len(begins)):
        low, length = offsets[n], offsets[n + 1] - offsets[n]
        if length == size or (begins[n] and length < size):
            same = np.int64(0)
            while same < length:
                byte = text[start + same]
                if byte - 65 < 26 and byte >= 65:
                    byte |= 32
                if byte != names[low + same]:
                    break
                same += 1
            if same == length:
                return True
    return False


@helper
def _behind_ignored(text, i, end, names, offsets, begins):
    """Behind the parameter of a path that begins at i, if it is ignored; else i."""
    if text[i] != _SEMICOLON:
        return i
    stop = i + 1
    while stop < end and text[stop] != _SEMICOLON and text[stop] != _SLASH:
        stop += 1
    return stop if _ignores(text, i + 1, _until(text, i + 1, stop, _EQUALS), names, offsets, begins) else i


@helper
def _without_ignored(text, start, site, end, names, offsets, begins):
    """Hashes of host and path, without ignored path parameters and one slash at the end."""
    size, last, i = site - start, np.uint8(0), site
    while i < end:
        behind = _behind_ignored(text, i, end, names, offsets, begins)
        if behind == i:
            last = text[i]
            size += 1
            behind += 1
        i = behind
    size -= last == _SLASH
    a, b = np.uint64(size), np.uint64(0)
    i = start
    while size > 0:
        behind = _behind_ignored(text, i, end, names, offsets, begins) if i >= site else i
        if behind == i:
            a, b = _high(a, text[i]), _low(b, text[i])
            size -= 1
            behind += 1
        i = behind
    return a, b


@kernel
def _keys(text, starts, sites, ends, names, name_offsets, begins, high, low):
    for row in range(len(starts)):
        start, site, end = starts[row], sites[row], ends[row]
        fragment = _until(text, site, end, _HASH)
        query = _until(text, site, fragment, _QUESTION)
        if _until(text, site, query, _SEMICOLON) == query:
            path = query - 1 if query > site and text[query - 1] == _SLASH else query
            a, b = np.uint64(path - start), np.uint64(0)
            for i in range(start, path):
                a, b = _high(a, text[i]), _low(b, text[i])
        else:
            a, b = _without_ignored(text, start, site, query, names, name_offsets, begins)
        a_sum, b_sum = np.uint64(0), np.uint64(0)  # a sum: their order does not matter
        i = query + 1
        while i < fragment:
            stop = _until(text, i, fragment, _AMPERSAND)
            if stop > i and not _ignores(text, i, _until(text, i, stop, _EQUALS), names, name_offsets, begins):
                a_one, b_one = np.uint64(stop - i) + _PARAMETER, _PARAMETER
                for j in range(i, stop):
                    a_one, b_one = _high(a_one, text[j]), _low(b_one, text[j])
                a_sum += mixed(a_one)
                b_sum += mixed(b_one)
            i = stop + 1
        a, b = mixed(a) + a_sum, mixed(b) + b_sum
        if fragment + 1 < end and (text[fragment + 1] == _BANG or text[fragment + 1] == _SLASH):
            for i in range(fragment, end):
                a, b = _high(a, text[i]), _low(b, text[i])
        high[row], low[row] = mixed(a), mixed(b)


def parts_of_key_plain(url: bytes, site: int, patterns: tuple[str, ...]) -> tuple[bytes, list[bytes], bytes]:
    """What counts of a canonical URL, `site` its bytes up to the path: host and path, sorted parameters, fragment."""
    path, has_fragment, fragment = url[site:].partition(b"#")
    path, _, query = path.partition(b"?")

    def ignored(parameter: bytes) -> bool:
        name = parameter.partition(b"=")[0].lower()
        return any(
            name.startswith(p[:-1].lower().encode()) if p.endswith("*") else name == p.lower().encode()
            for p in patterns
        )

    path = re.sub(rb";([^;/]*)", lambda found: b"" if ignored(found[1]) else found[0], path)
    kept = sorted(p for p in query.split(b"&") if p and not ignored(p))
    return (
        url[:site] + path.removesuffix(b"/"),
        kept,
        has_fragment + fragment if fragment[:1] in (b"!", b"/") and fragment else b"",
    )


def url_key_plain(url: bytes, site: int, patterns: tuple[str, ...]) -> tuple[int, int]:
    place, parameters, fragment = parts_of_key_plain(url, site, patterns)
    a, b = (mixed_plain(h) for h in _chained_plain(len(place), 0, place))
    for parameter in parameters:
        more = _chained_plain(len(parameter) + PARAMETER, PARAMETER, parameter)
        a, b = a + mixed_plain(more[0]) & ALL, b + mixed_plain(more[1]) & ALL
    a, b = _chained_plain(a, b, fragment)
    return mixed_plain(a), mixed_plain(b)


def _chained_plain(a: int, b: int, text: bytes) -> tuple[int, int]:
    for byte in text:
        a = (a ^ byte) * HIGH_STEP & ALL
        a ^= a >> 32
        b = (b + byte) * LOW_STEP & ALL
        b ^= b >> 29
    return a, b
