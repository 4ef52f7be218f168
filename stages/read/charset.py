"""Which characters bytes stand for: a byte order mark, the HTTP header, the page's meta tag or XML declaration, detection, in that order.

Labels are read as browsers read them (the WHATWG table, through resiliparse): `latin1` means windows-1252. Nothing here raises:
what cannot be decoded becomes U+FFFD.
"""

from __future__ import annotations

import re

from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

BOMS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))
COMMENT = re.compile(rb"<!--(?:-?>|.*?(?:-->|\Z))", re.DOTALL)
META_BYTES = 4096  # the standard says 1,024; pages with long heads put it later, and browsers still find it
# Spaces are never given back (`*+`): a run of them would be cut in two in every way, which is quadratic.
META = re.compile(rb"<meta\b[^>]{0,400}?charset\s*+=\s*+[\"']?\s*+([a-z0-9_:.-]{2,40})", re.IGNORECASE)
XML = re.compile(rb"<\?xml\b[^>]{0,200}?\bencoding\s*+=\s*+[\"']\s*+([a-z0-9_:.-]{2,40})", re.IGNORECASE)
HTTP = re.compile(r"charset\s*+=\s*+[\"']?\s*+([a-z0-9_:.-]{2,40})", re.IGNORECASE)

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
# Python's names for what uchardet finds and that no label stands for.
NO_LABELS = ("cp949", "mac-cyrillic")


def charset_in(content_type: str | None) -> str | None:
    """The charset that a Content-Type header names, in lower case."""
    found = HTTP.search(content_type) if content_type else None
    return found[1].lower() if found else None


def charset_of(data: bytes, http: str | None) -> str:
    """The Python name of the encoding of a page; `http` is the charset (a label) that its HTTP header gave."""
    return declared(data, http) or declared_in_page(data) or detected(data)


def decode_html(data: bytes, http_charset: str | None) -> str:
    return decoded(data, charset_of(data, http_charset))


def decode_text(data: bytes, charset: str | None = None) -> str:
    return decoded(data, declared(data, charset) or detected(data))


def decoded(data: bytes, codec: str) -> str:
    try:
        text = data.decode(codec, "replace")
    except (LookupError, UnicodeError):  # a codec of resiliparse's that this Python was built without
        text = data.decode("utf-8", "replace")
    return text.removeprefix("\ufeff")


def declared(data: bytes, label: str | None) -> str | None:
    for mark, codec in BOMS:
        if data.startswith(mark):
            return codec
    return codec_of(label)


def declared_in_page(data: bytes) -> str | None:
    found = META.search(COMMENT.sub(b"", data[:META_BYTES])) or XML.match(data)
    codec = codec_of(found[1].decode("ascii")) if found else None
    return "utf-8" if codec and codec.startswith("utf-16") else codec  # a tag that can be read byte by byte is not UTF-16


def detected(data: bytes) -> str:
    """UTF-8 where the bytes allow it, else what uchardet makes of a sample; an escape byte may be ISO-2022, which is ASCII too."""
    if b"\x1b" not in data:
        try:
            data.decode("utf-8")
        except UnicodeDecodeError:
            pass
        else:
            return "utf-8"
    found = detect_encoding(data, html5_compatible=False)
    return found if found in NO_LABELS else codec_of(found) or "utf-8"


def codec_of(label: str | None) -> str | None:
    """Python's codec for a WHATWG label; None for labels that no browser knows."""
    if not label or not label.isascii():
        return None
    codec: str | None = map_encoding_to_html5(label.strip(" \t\r\n\"'").lower(), False)
    return WIDER.get(codec, codec) if codec else None
