"""One form for all spellings of a URL (RFC 3986, section 6; WHATWG URL for what browsers forgive).

    HTTP://user@WWW.Example.COM.:80/%7Eann/?q=%70#top   is   example.com/~ann/?q=p#top

Removed: scheme, user, default port, `www.`, outer dots of the host, a slash that is the whole path. Folded: the case of
the host. Decoded: percent escapes of unreserved characters or of UTF-8; other escapes are in upper case, and a stray
`%` is dropped. A host that needs more than bytes (Unicode to punycode, IPv6) is only marked; `punycode` and `address`
of this file are for those few. Measured: 3 million URLs of 45 bytes a CPU second.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import ipaddress
import re
import unicodedata
from functools import cache
from typing import NamedTuple

import numpy as np

from gristmill.kernels.base.compiled import helper, kernel
from gristmill.kernels.base.types import Array, Bytes, Offsets

ODD_HOST, HAD_WWW = 1, 2  # bits of `marks`
FOLDED_POINTS = 0x10000
LONGEST_HOST = 253  # characters; what the domain name system can hold at all


class Urls(NamedTuple):
    """URL i is `text[starts[i]:ends[i]]`: host up to `hosts[i]`, port up to `sites[i]`, path and query up to `keys[i]`,
    then a fragment. A key omits the last slash of a path."""

    text: Bytes
    starts: Offsets
    ends: Offsets
    hosts: Offsets
    sites: Offsets
    keys: Offsets
    marks: Bytes

    def __len__(self) -> int:
        return len(self.starts)


def canonical_urls(data: Bytes, starts: Offsets, ends: Offsets) -> Urls:
    """The urls `data[starts[i]:ends[i]]`; their bytes never grow."""
    count = len(starts)
    room = int((ends - starts).sum())
    text, marks = np.zeros(room, np.uint8), np.zeros(count, np.uint8)
    places = np.zeros((5, count), np.int64)
    _canonical(data, starts, ends, text, places, marks)
    return Urls(text, places[0], places[1], places[2], places[3], places[4], marks)


def folded_text(data: Bytes, starts: Offsets, ends: Offsets) -> Bytes:
    """The texts `data[starts[i]:ends[i]]` in lower case, byte for byte in the same place; other bytes are zero."""
    out = np.zeros(len(data), np.uint8)
    _fold(data, starts, ends, case_folding(), out)
    return out


@cache
def case_folding() -> Array:
    """uint16[0x10000]: the lower case of each code point where it takes as many bytes, else the point itself."""
    table = np.arange(FOLDED_POINTS, dtype=np.uint16)
    for point in range(FOLDED_POINTS):
        low = chr(point).lower()
        if len(low) == 1 and low != chr(point) and ord(low) < FOLDED_POINTS and _size(ord(low)) == _size(point):
            table[point] = ord(low)
    table.flags.writeable = False
    return table


def _size(point: int):
    return 1 if point < 0x80 else 2 if point < 0x800 else 3


@helper
def _hex(byte):
    if 48 <= byte <= 57:
        return byte - 48
    byte |= 32
    return byte - 87 if 97 <= byte <= 102 else -1


@helper
def _unreserved(byte):
    return (
        48 <= byte <= 57
        or 97 <= byte | 32 <= 122
        or byte == 45
        or byte == 46
        or byte == 95
        or byte == 126
        or byte >= 128
    )


@helper
def _decode(text, i, end, to):
    """Decodes percent escapes of text[i:end] in place to text[to:]; returns the new end."""
    while i < end:
        byte = np.int64(text[i])
        if byte == 37:  # %
            high = _hex(np.int64(text[i + 1])) if i + 2 < end else -1
            low = _hex(np.int64(text[i + 2])) if i + 2 < end else -1
            if high < 0 or low < 0:
                i += 1
                continue
            value = high * 16 + low
            if _unreserved(value):
                text[to] = value
                to += 1
            else:
                text[to] = 37
                text[to + 1] = high + (48 if high < 10 else 55)
                text[to + 2] = low + (48 if low < 10 else 55)
                to += 3
            i += 3
            continue
        text[to] = byte
        to += 1
        i += 1
    return to


@helper
def _host(text, start, end):
    """Moves a decoded host to `start`, in lower case, without outer dots and `www.`; returns its end and marks."""
    while end > start and text[end - 1] == 46:
        end -= 1
    first = start
    while first < end and text[first] == 46:
        first += 1
    mark = 0
    for i in range(first, end):
        if text[i] - 65 < 26 and text[i] >= 65:
            text[i] |= 32
        if text[i] >= 128 or text[i] == 91:
            mark |= ODD_HOST
    if (
        end - first > 4
        and text[first] == 119
        and text[first + 1] == 119
        and text[first + 2] == 119
        and text[first + 3] == 46
    ):
        for i in range(first + 4, end):
            if text[i] == 46 and text[first + 4] != 46:  # www.com is a name of its own
                mark |= HAD_WWW
                first += 4
                break
    for i in range(end - first):
        text[start + i] = text[first + i]
    return start + end - first, mark


@kernel
def _fold(text, starts, ends, table, out):
    for row in range(len(starts)):
        i, end = starts[row], ends[row]
        while i < end:
            byte = np.int64(text[i])
            if byte < 128:
                out[i] = byte | 32 if 65 <= byte <= 90 else byte
                i += 1
            elif 0xC2 <= byte < 0xE0 and i + 1 < end and text[i + 1] & 0xC0 == 0x80:
                point = np.int64(table[(byte & 31) << 6 | text[i + 1] & 63])
                out[i] = 0xC0 | point >> 6
                out[i + 1] = 0x80 | point & 63
                i += 2
            elif 0xE0 <= byte < 0xF0 and i + 2 < end and text[i + 1] & 0xC0 == 0x80 and text[i + 2] & 0xC0 == 0x80:
                point = np.int64(
                    table[(byte & 15) << 12 | np.int64(text[i + 1] & 63) << 6 | np.int64(text[i + 2] & 63)]
                )
                out[i] = 0xE0 | point >> 12
                out[i + 1] = 0x80 | point >> 6 & 63
                out[i + 2] = 0x80 | point & 63
                i += 3
            else:
                out[i] = byte
                i += 1


@helper
def _plain_host(data, a, b):
    """Whether it is a host in canonical form already, as nearly all lines of lists are."""
    if a == b or data[a] == 46 or data[b - 1] == 46 or data[a] == 119:
        return False
    plain = True
    for i in range(a, b):
        byte = data[i]
        plain &= (byte >= 97) & (byte <= 122) | (byte >= 48) & (byte <= 57) | (byte == 46) | (byte == 45)
    return plain


@helper
def _after_scheme(text, start, end):
    """Past `name://` or `//`; start where there is neither."""
    i = start
    while i < end and (
        97 <= text[i] | 32 <= 122 or (i > start and (48 <= text[i] <= 57 or text[i] == 43 or 45 <= text[i] <= 46))
    ):
        i += 1
    named = i > start and i + 2 < end and text[i] == 58 and text[i + 1] == 47 and text[i + 2] == 47
    if named:
        i += 1
    elif not (start + 1 < end and text[start] == 47 and text[start + 1] == 47):
        return start
    else:
        i = start
    while i < end and text[i] == 47:
        i += 1
    return i


@kernel
def _canonical(data, starts, ends, text, places, marks):
    begin = np.int64(0)
    for row in range(len(starts)):
        a, b = starts[row], ends[row]
        while a < b and data[a] <= 32:
            a += 1
        while b > a and data[b - 1] <= 32:
            b -= 1
        if _plain_host(data, a, b):
            for i in range(b - a):
                text[begin + i] = data[a + i]
            places[0, row] = begin
            begin += b - a
            places[1, row], places[2, row], places[3, row], places[4, row] = begin, begin, begin, begin
            continue
        end = begin
        for i in range(a, b):  # what browsers do first: no tabs and line ends, backslashes are slashes
            byte = data[i]
            if byte != 9 and byte != 10 and byte != 13:
                text[end] = 47 if byte == 92 else byte
                end += 1
        i = _after_scheme(text, begin, end)
        authority_end = i
        colons, colon = 0, np.int64(-1)
        first = i
        while (
            authority_end < end
            and text[authority_end] != 47
            and text[authority_end] != 63
            and text[authority_end] != 35
        ):
            if text[authority_end] == 64:
                first, colons, colon = authority_end + 1, 0, np.int64(-1)
            elif text[authority_end] == 58:
                colons += 1
                colon = authority_end
            authority_end += 1
        mark = ODD_HOST if colons > 1 else 0
        host_end = authority_end
        port_end = authority_end
        if colons == 1:
            digits = True
            for j in range(colon + 1, authority_end):
                digits &= 48 <= text[j] <= 57
            if digits:
                host_end = colon
                size = authority_end - colon - 1
                usual = size == 2 and text[colon + 1] == 56 and text[colon + 2] == 48
                usual |= size == 3 and text[colon + 1] == 52 and text[colon + 2] == 52 and text[colon + 3] == 51
                if usual or size == 0:
                    port_end = colon
        to = _decode(text, first, host_end, first)
        to, more = _host(text, first, to)
        for j in range(to - first):
            text[begin + j] = text[first + j]
        host = begin + to - first
        to = host
        for j in range(host_end, port_end):
            text[to] = text[j]
            to += 1
        site = to
        i = authority_end
        if i < end and text[i] == 47 and (i + 1 == end or text[i + 1] == 63 or text[i + 1] == 35):
            i += 1
        to = _decode(text, i, end, to)
        key = site
        while key < to and text[key] != 35:
            key += 1
        if key > site and text[key - 1] == 47:
            key -= 1
        places[0, row], places[1, row], places[2, row], places[3, row], places[4, row] = begin, to, host, site, key
        marks[row] = mark | more
        begin = to


def punycode(host: str) -> str:
    """A Unicode host in `xn--` form: lower case, NFKC, each label encoded (RFC 3492). As UTS 46 without a list of
    exceptions. A label that no name server could hold is unchanged: Python's encoder is worse than quadratic (4,000
    letters 6.5 s)."""
    if len(host) > LONGEST_HOST:
        return host
    host = unicodedata.normalize("NFKC", host.lower()).replace("。", ".")
    return ".".join(
        label if label.isascii() else "xn--" + label.encode("punycode").decode() for label in host.split(".")
    )


def address(authority: str) -> str | None:
    """`[2001:DB8::1]:80` or a bare IPv6 address as `[2001:db8::1]`, None where there is none; other ports stay."""
    match = re.fullmatch(r"\[([0-9A-Fa-f:.]+)\](?::(?:80|443|(\d+))?)?|([0-9A-Fa-f:.]+)", authority)
    try:
        host = f"[{ipaddress.IPv6Address(match[1] or match[3]).compressed}]" if match else None
    except ValueError:
        return None
    return f"{host}:{match[2]}" if host and match[2] else host


def odd_host_mended(url: str) -> str:
    """A canonical URL whose host was marked, with a host of bytes; an invalid host is unchanged."""
    host, rest = re.fullmatch(r"([^/?#]*)(.*)", url, re.DOTALL).groups()
    if not host.isascii():
        return punycode(host).removeprefix("www.") + rest
    return (address(host) or host) + rest


def canonical_plain(url: bytes) -> tuple[bytes, int, int, int, int]:
    """The reference of `canonical_urls`: text, ends of host, site and key, marks."""
    url = re.sub(rb"[\t\r\n]", b"", url.strip(bytes(range(33)))).replace(b"\\", b"/")
    url = re.sub(rb"^(?:[A-Za-z][A-Za-z0-9+.-]*:)?///*", b"", url)
    authority, rest = re.fullmatch(rb"([^/?#]*)(.*)", url, re.DOTALL).groups()
    authority = authority.rpartition(b"@")[2]
    host, port, mark = authority, b"", ODD_HOST if authority.count(b":") > 1 else 0
    if authority.count(b":") == 1:
        name, _, digits = authority.partition(b":")
        if re.fullmatch(rb"\d*", digits):
            host, port = name, b"" if digits in (b"", b"80", b"443") else b":" + digits
    host = _decoded_plain(host).rstrip(b".").lstrip(b".").lower()
    mark |= ODD_HOST if re.search(rb"[\x80-\xff\[]", host) else 0
    if host.startswith(b"www.") and b"." in host[4:] and host[4:5] != b".":
        host, mark = host[4:], mark | HAD_WWW
    path = _decoded_plain(re.sub(rb"^/(?=[?#]|\Z)", b"", rest))
    key = path.partition(b"#")[0]
    site = host + port
    return site + path, len(host), len(site), len(site) + len(key.removesuffix(b"/")), mark


def _decoded_plain(text: bytes) -> bytes:
    def decoded(found: re.Match[bytes]) -> bytes:
        if found[1] is None:
            return b""
        value = bytes.fromhex(found[1].decode())
        return value if re.fullmatch(rb"[A-Za-z0-9._~\x80-\xff-]", value) else b"%" + found[1].upper()

    return re.sub(rb"%([0-9A-Fa-f]{2})?", decoded, text)


def folded_plain(text: str) -> str:
    return "".join(
        low if len(low := c.lower()) == 1 and max(c, low) < "\U00010000" and len(low.encode()) == len(c.encode()) else c
        for c in text
    )
