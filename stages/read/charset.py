"""Which characters bytes stand for: a byte order mark, the HTTP header, the page's meta tag or XML declaration,
detection, in that order.

Labels are read as browsers read them (the WHATWG table, through resiliparse): `latin1` means windows-1252. A
declaration is held against the bytes: valid UTF-8 with a few characters beyond ASCII is that, whatever is declared;
else the first declaration whose bytes decode cleanly wins, then valid UTF-8, then a declaration that a few stray bytes
break, then detection (stages/read/charset_guess.py). Nothing here raises: what cannot be decoded becomes U+FFFD.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache

import numpy as np

from gristmill.kernels.base.utf8 import measured_utf8
from gristmill.stages.read.charset_guess import guess_codec

BOMS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))
COMMENT = re.compile(rb"<!--(?:-?>|.*?(?:-->|\Z))", re.DOTALL)
META_BYTES = 4096  # the standard says 1,024; pages with long heads put it later, and browsers still find it
# Spaces are never given back (`*+`): a run of them would be cut in two in every way, which is quadratic.
META = re.compile(rb"<meta\b[^>]{0,400}?charset\s*+=\s*+[\"']?\s*+([a-z0-9_:.-]{2,40})", re.IGNORECASE)
XML = re.compile(rb"<\?xml\b[^>]{0,200}?\bencoding\s*+=\s*+[\"']\s*+([a-z0-9_:.-]{2,40})", re.IGNORECASE)
HTTP = re.compile(r"charset\s*+=\s*+[\"']?\s*+([a-z0-9_:.-]{2,40})", re.IGNORECASE)
TO_JAPANESE = re.compile(rb"\x1b\$(?:[@B]|\(D)")  # ISO-2022-JP's escapes from ASCII; no other text has them
TAG_LE = re.compile(rb"(?:[\t\n\r ]\0)*+<\0[!?a-zA-Z]\0")
TAG_BE = re.compile(rb"(?:\0[\t\n\r ])*+\0<\0[!?a-zA-Z]")
HEAD_BYTES, ENOUGH_PAIRS = 4096, 16
REPLACEMENT = "\ufffd".encode()
# The share of characters beyond ASCII that may be lost before a declaration counts as wrong. Other text hardly ever
# reads as UTF-8: of 18,546 texts of 300 characters in 33 encodings 6 did for half of theirs.
STRAY, STRAY_IN_UTF8 = 0.01, 0.5
MOST_STRAYS = 10_000  # bytes that are read as declared, one by one
ENOUGH_UTF8 = 4  # characters beyond ASCII, all valid, that no other encoding's text happens to be

# Where Python's codec of that name knows fewer characters than the one that browsers use.
WIDER = {
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "gbk": "gb18030",
    "gb2312": "gb18030",
    "big5": "big5hkscs",
    "iso8859-11": "cp874",
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
}


@dataclass(frozen=True, slots=True)
class Decoded:
    """Bytes with the encoding in which they were read, and the first that was declared for them."""

    data: bytes  # without their byte order mark
    codec: str
    declared: str | None
    characters: str | None  # None: the bytes are valid UTF-8

    @property
    def overruled(self) -> bool:
        """Were the bytes read in another encoding than they declare?"""
        return self.declared is not None and self.codec != self.declared

    @property
    def detected(self) -> bool:
        """Was nothing declared, and the bytes are not UTF-8 either?"""
        return self.declared is None and self.codec != "utf-8"

    @property
    def text(self) -> str:
        return self.data.decode() if self.characters is None else self.characters

    @property
    def utf8(self) -> bytes:
        """The text as UTF-8 without NULs; the bytes themselves where they are that."""
        data = self.data if self.characters is None else self.characters.encode("utf-8", "replace")
        return data.replace(b"\0", b"")


def charset_in(content_type: str | None) -> str | None:
    """The charset that a Content-Type header names, in lower case."""
    match = HTTP.search(content_type) if content_type else None
    return match[1].lower() if match else None


def charset_of(data: bytes, http: str | None) -> str:
    """The Python name of the encoding of a page; `http` is the charset (a label) that its HTTP header gave."""
    return decode_page(data, http).codec


def decode_html(data: bytes, http_charset: str | None) -> str:
    return decode_page(data, http_charset).text


def decode_text(data: bytes, charset: str | None = None) -> str:
    return decode_labelled(data, charset).text


def decode_labelled(data: bytes, charset: str | None) -> Decoded:
    """Bytes that are no page; `charset` is a label."""
    return decode(without_mark(data), declared(data, charset))


def decode_page(data: bytes, http: str | None) -> Decoded:
    return decode(without_mark(data), declared_for_page(data, http))


def without_mark(data: bytes) -> bytes:
    return next((data[len(mark) :] for mark, _ in BOMS if data.startswith(mark)), data)


def declared_for_page(data: bytes, http: str | None) -> Iterator[str]:
    yield from declared(data, http)
    codec = declared_in_page(data)
    if codec:
        yield codec


def declared(data: bytes, label: str | None) -> Iterator[str]:
    yield from (codec for mark, codec in BOMS if data.startswith(mark))
    codec = codec_of(label)
    if codec:
        yield codec


def decode(data: bytes, declarations: Iterable[str]) -> Decoded:
    """Bytes without a mark in the encoding that they are in; `declarations` are codecs, the most trusted first."""
    first: str | None = None
    broken: list[str] = []
    unmistakable = utf16_without_mark(data) or iso_2022_jp(data)
    for codec in declarations:
        first = first or codec
        if unmistakable is not None:
            return decode_as(data, unmistakable, first)
        if codec in broken:
            continue
        if codec != "utf-8" and surely_utf8(data):
            return Decoded(data, "utf-8", first, None)
        decoded = decode_utf8(data, first) if codec == "utf-8" else decode_cleanly(data, codec, first)
        if decoded is not None:
            return decoded
        broken.append(codec)
    if unmistakable is not None:
        return decode_as(data, unmistakable, first)
    if "utf-8" not in broken and (decoded := decode_utf8(data, first)) is not None:
        return with_strays(decoded)
    for codec in broken:
        decoded = decode_as(data, codec, first)
        if share_lost(decoded) <= STRAY:
            return with_strays(decoded)
    return with_strays(decode_as(data, guess_codec(data, first, codec_of) or first or "utf-8", first))


def decode_as(data: bytes, codec: str, first: str | None) -> Decoded:
    return Decoded(data, codec, first, data.decode(codec, "replace"))


def with_strays(decoded: Decoded) -> Decoded:
    """Of a page that was declared as windows-1252 and is UTF-8 in part, the other bytes as declared. In the encodings
    of Windows, bytes without a character become U+0080 to U+009F, as in browsers."""
    data, codec, text = decoded.data, decoded.codec, decoded.characters
    if text is not None and codec.startswith(("cp125", "cp874")):
        return replace(decoded, characters=as_windows(data, codec))
    if text is not None and codec == "utf-8" and decoded.declared == "cp1252" and text.count("\ufffd") <= MOST_STRAYS:
        return replace(decoded, characters=data.decode(codec, "gristmill.cp1252"))
    return decoded


def as_windows(data: bytes, codec: str) -> str:
    return codecs.charmap_decode(data, "strict", windows(codec))[0]


@cache
def windows(codec: str) -> str:
    """The characters of all bytes."""
    known = [bytes([byte]).decode(codec, "replace") for byte in range(256)]
    return "".join(chr(byte) if byte < 0xA0 and known[byte] == "\ufffd" else known[byte] for byte in range(256))


def stray_bytes(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return as_windows(error.object[error.start : error.end], "cp1252"), error.end


codecs.register_error("gristmill.cp1252", stray_bytes)


def decode_utf8(data: bytes, first: str | None) -> Decoded | None:
    """The bytes as UTF-8, if they are that but for strays."""
    if is_utf8(data):
        return Decoded(data, "utf-8", first, None)
    decoded = decode_as(data, "utf-8", first)
    return decoded if share_lost(decoded) <= STRAY_IN_UTF8 else None


def decode_cleanly(data: bytes, codec: str, first: str | None) -> Decoded | None:
    """The bytes in an encoding in which all of them stand for something; else None."""
    if codec.startswith("utf-16") and b"\0" not in data and (b"</" in data or is_utf8(data)):
        return None  # markup that can be read byte by byte is not UTF-16, though any two bytes are a character of it
    try:
        return Decoded(data, codec, first, data.decode(codec))
    except UnicodeError:
        return None


def utf16_without_mark(data: bytes) -> str | None:
    """UTF-16 that begins with a tag, or of which a quarter is ASCII."""
    head = data[:HEAD_BYTES]
    if b"\0" not in head:
        return None
    zeros = np.frombuffer(head[: len(head) & ~1], np.uint8).reshape(-1, 2) == 0
    first, second = zeros.mean(axis=0) if len(zeros) >= ENOUGH_PAIRS else (0.0, 0.0)
    for codec, ascii_share, other_share, tag in (
        ("utf-16-le", second, first, TAG_LE),
        ("utf-16-be", first, second, TAG_BE),
    ):
        if tag.match(head) or (ascii_share >= 0.25 and other_share < ascii_share / 8 and b"</" not in head):
            return codec
    return None


def iso_2022_jp(data: bytes) -> str | None:
    if not data.isascii() or b"\x1b" not in data or not TO_JAPANESE.search(data):
        return None
    return "iso2022_jp" if share_lost(decode_as(data, "iso2022_jp", None)) <= STRAY else None


def is_utf8(data: bytes) -> bool:
    return data.isascii() or int(measured_utf8(np.frombuffer(data, np.uint8))[0]) >= 0


def surely_utf8(data: bytes) -> bool:
    return not data.isascii() and int(measured_utf8(np.frombuffer(data, np.uint8))[0]) >= ENOUGH_UTF8


def plainly_utf8(data: bytes) -> bool:
    """Whether bytes are UTF-8 whatever is declared for them, without a mark and NULs, so that `decode_page` would give
    them back: in ASCII all encodings agree but for UTF-16 and those with escapes."""
    beyond, odd = measured_utf8(np.frombuffer(data, np.uint8))
    return not odd and (beyond == 0 or beyond >= ENOUGH_UTF8) and not data.startswith(BOMS[0][0])


def share_lost(decoded: Decoded) -> float:
    """Of the characters beyond ASCII (in UTF-16 of all), the share that could not be decoded."""
    text, codec = decoded.characters or "", decoded.codec
    in_source = decoded.data.count(REPLACEMENT) if codec == "utf-8" else 0
    whole = len(text) if codec.startswith("utf-16") else len(text) - len(text.encode("ascii", "ignore"))
    return (text.count("\ufffd") - in_source) / max(whole, 1)


def declared_in_page(data: bytes) -> str | None:
    head = data[:META_BYTES]
    match = META.search(COMMENT.sub(b"", head) if b"<!--" in head else head) or XML.match(data)
    codec = codec_of(match[1].decode("ascii")) if match else None
    return (
        "utf-8" if codec and codec.startswith("utf-16") else codec
    )  # a tag that can be read byte by byte is not UTF-16


@lru_cache(maxsize=256)
def codec_of(label: str | None) -> str | None:
    """Python's codec for a WHATWG label; None for labels that no browser knows."""
    if not label or not label.isascii():
        return None
    from resiliparse.parse.encoding import map_encoding_to_html5

    codec: str | None = map_encoding_to_html5(label.strip(" \t\r\n\"'").lower(), False)
    if not codec:
        return None
    try:
        codecs.lookup(codec)
    except LookupError:  # a codec of resiliparse's that this Python was built without
        return None
    return WIDER.get(codec, codec)
