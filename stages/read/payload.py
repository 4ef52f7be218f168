"""What an HTTP response carried: its status, the headers that matter, and its payload with transfer and content
encodings undone; and what bytes and texts are by how they begin: a page, a PDF file, markup.

Crawlers often store the payload decoded under its old headers, so an encoding is undone only if the bytes are really
so. Texts that are markup are pages that a reader of texts was given: nobody wants them as they are, and `extract` can
make text of them.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import zstandard
from isal import igzip_lib, isal_zlib

from gristmill.stages.read.charset import is_utf8
from gristmill.stages.read.records import fields_of

STATUS = re.compile(rb"HTTP/\d+(?:\.\d+)?[ \t]+(\d{3})[ \t]*([^\r\n]*)", re.IGNORECASE)
HEADER_END = re.compile(rb"\n\r?\n")
CHUNK_LINE = re.compile(rb"[ \t]*([0-9a-fA-F]{1,15})[ \t]*(?:;[^\r\n]{0,1000})?\r?\n")
ZSTD = b"\x28\xb5\x2f\xfd"
BINARY = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")
TYPE = re.compile(r"[\s\"']*([\w.+*-]{1,100}/[\w.+*-]{1,100})", re.ASCII)
TERMS = re.compile(
    rb"(?<=\n)(X-Robots-Tag|TDM-Reservation|TDM-Policy|Content-Usage)[ \t]*:([^\r\n]*(?:\r?\n[ \t][^\r\n]*)*)",
    re.IGNORECASE,
)
MOST_TERMS, LONGEST_TERM = 20, 1000
PIECE, MOST_MEMBERS = 1 << 16, 10_000  # of a gzip body
MOST_ENCODINGS = 4  # that servers put on a payload: two now and then, by mistake
PLAIN_TYPE = "text/plain"
HTML_TYPES = ("text/html", "application/xhtml+xml")
# Types under which servers send pages too: then the first bytes decide.
VAGUE_TYPES = ("", "application/octet-stream", "application/xml", "text/xml", "unknown/unknown", "*/*", "html", "text")
LOOKS_LIKE_HTML = re.compile(
    # a comment ends once: else all ways to end many are tried
    rb"(?:\xef\xbb\xbf)?\s*+(?:<\?xml[^>]{0,200}>\s*+)?(?:(?><!--.{0,2000}?-->)\s*+)*+"
    rb"<(?:!doctype\s+html|html|head|body|title|meta|script|div|table|h1|p)\b",
    re.IGNORECASE | re.DOTALL,
)
PDF_TYPE = "application/pdf"
SURELY_NOT = (
    (b"%PDF-", PDF_TYPE),
    (b"\x89PNG", "image/png"),
    (b"GIF8", "image/gif"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b\x08", "application/gzip"),
)


class PayloadTooLarge(Exception):
    """A payload that is larger, decoded, than a record may be."""


class Undecodable(Exception):
    """A payload whose content encoding, which the message names, cannot be undone, and that is no text as it is."""


@dataclass(slots=True)
class Response:
    status: int | None  # None where the body is no HTTP
    reason: str
    fields: dict[bytes, bytes]
    payload: bytes


def response_of(body: bytes) -> Response:
    """The answer; what says "continue" and the like before it (1xx) is left out."""
    at = 0
    while (status := STATUS.match(body, at)) is not None:
        gap = HEADER_END.search(body, at)
        end, start = gap.span() if gap else (len(body), len(body))
        if not (status[1].startswith(b"1") and STATUS.match(body, start)):
            fields = fields_of(body[at:end])
            return Response(int(status[1]), status[2].decode("latin-1").strip(), fields, body[start:])
        at = start
    return Response(None, body[:40].decode("latin-1"), {}, b"")


def stated_terms(body: bytes) -> dict[str, str]:
    """Headers that state terms of use, by their names in `meta`; those that are repeated are joined."""
    gap = HEADER_END.search(body)
    found: dict[str, list[str]] = {}
    for name, value in TERMS.findall(body, 0, gap.start() + 1 if gap else len(body)):
        text = " ".join(value.decode("utf-8", "replace").split())[:LONGEST_TERM]
        if text:
            found.setdefault(name.decode("ascii").lower().replace("-", "_"), []).append(text)
    return {name: "; ".join(values[:MOST_TERMS]) for name, values in found.items()}


def kind_of(content_type: bytes | None) -> str:
    """The type that a header names, of one that is badly written too: `text/html charset=utf-8`, `text/html,
    text/html`."""
    header = (content_type or b"").decode("latin-1").lower()
    match = TYPE.match(header)
    return match[1] if match else header.split(";")[0].strip()


def not_html(kind: str, payload: bytes) -> str | None:
    """What a payload is if it is no page; its declared type counts, but not against its first bytes."""
    if kind in HTML_TYPES:
        surely_not = next((other for mark, other in SURELY_NOT if payload.startswith(mark)), None)
        return PDF_TYPE if is_pdf(payload) else surely_not
    if kind in VAGUE_TYPES and LOOKS_LIKE_HTML.match(payload):
        return None
    return kind or "no type"


def is_pdf(payload: bytes) -> bool:
    """By its first bytes, whatever its type; white space and a byte order mark may stand before the mark."""
    return payload.startswith(b"%PDF-") or payload[:1024].lstrip(b"\xef\xbb\xbf\0\t\n\x0b\x0c\r ").startswith(b"%PDF-")


def is_plain_text(kind: str, payload: bytes) -> bool:
    """Is it text/plain, and not what servers only call so, such as a picture?"""
    return kind == PLAIN_TYPE and not payload.startswith(tuple(mark for mark, _ in SURELY_NOT)) and not no_text(payload)


class Payload(NamedTuple):
    """What a response holds, as the server meant it."""

    data: bytes
    whole: bool  # False where a packed stream breaks off, as far as its format tells


def decoded_payload(response: Response, limit: int) -> Payload:
    """Without chunks and content encodings; raises PayloadTooLarge and Undecodable."""
    whole = True
    payload = response.payload
    fields = response.fields
    if b"chunked" in fields.get(b"transfer-encoding", b"").lower():
        payload = unchunked(payload)
    named = b",".join(fields.get(name, b"") for name in (b"content-encoding", b"transfer-encoding")).lower().split(b",")
    encodings = [each for encoding in named if (each := encoding.strip()) not in (b"", b"identity", b"chunked")]
    if len(encodings) > MOST_ENCODINGS:  # each is tried on all of it
        raise Undecodable(f"of {len(encodings):,} layers")
    for encoding in reversed(encodings):
        packed = payload
        payload, ended = decompressed(payload, encoding, limit)
        whole = whole and ended
        if payload is packed and no_text(payload):
            raise Undecodable(encoding.decode("latin-1"))
        if len(payload) > limit:
            raise PayloadTooLarge
    return Payload(payload, whole)


def unchunked(data: bytes) -> bytes:
    """Chunks put together; the data itself if they are not chunks, and what there is if they break off. A text may
    begin with a number: a first chunk is none if anything but a line's end follows it, or if it breaks off or is empty
    behind a bare newline."""
    parts: list[bytes] = []
    position = 0
    while line := CHUNK_LINE.match(data, position):
        length = int(line[1], 16)
        after = line.end() + length
        newline = 2 if data[after : after + 2] == b"\r\n" else int(data[after : after + 1] == b"\n")
        if not parts:
            cut = after >= len(data) or length == 0
            if not line[0].endswith(b"\r\n") and cut and after != len(data):
                return data
            if not cut and not newline:
                return data
        if length == 0:
            return b"".join(parts)
        parts.append(data[line.end() : after])
        position = after + newline
    return b"".join(parts) if parts else data


def decompressed(data: bytes, encoding: bytes, limit: int) -> Payload:
    """Data with one content encoding undone, at most one byte more than `limit`; of a stream that breaks off, what
    comes before; unchanged where it is not so encoded or is corrupt."""
    try:
        if encoding in (b"gzip", b"x-gzip") and data.startswith(b"\x1f\x8b"):
            return ungzipped(data, limit)
        if encoding == b"deflate":
            return inflated(data, limit)
        if encoding == b"zstd" and data.startswith(ZSTD):
            return unzstd(data, limit)
        if encoding == b"br" and not LOOKS_LIKE_HTML.match(data):
            return Payload(unbrotlied(data, limit) or data, True)
    # the stub of isal calls its error class a value
    except (igzip_lib.IsalError, zstandard.ZstdError, OSError):  # type: ignore[misc]
        return Payload(data, True)
    return Payload(data, True)


def ungzipped(data: bytes, limit: int) -> Payload:
    """All members; what follows them and is none is left out."""
    parts: list[bytes] = []
    at = held = members = 0
    whole = True
    while data.startswith(b"\x1f\x8b", at) and held <= limit:
        stream = isal_zlib.decompressobj(wbits=31)
        members += 1
        try:
            while not stream.eof and at < len(data) and held <= limit:
                piece = data[at : at + PIECE]  # what is left of it is copied for each member
                parts.append(bytes(stream.decompress(piece, limit + 1 - held)))
                held += len(parts[-1])
                at += len(piece) - len(stream.unused_data)
        except igzip_lib.IsalError:  # type: ignore[misc]
            if members == 1:
                raise
        whole = stream.eof
        if not whole or members == MOST_MEMBERS:
            return Payload(b"".join(parts), whole and at == len(data))
    return Payload(b"".join(parts), whole)


def inflated(data: bytes, limit: int) -> Payload:
    """With or without zlib's header, as servers send both. Text that is not packed may be read as a stream, too; what
    comes out is noise."""
    if len(data) > 1 and data[0] & 15 == 8 and data[0] >> 4 < 8 and (data[0] << 8 | data[1]) % 31 == 0:
        try:
            stream = isal_zlib.decompressobj(wbits=15)
            text = bytes(stream.decompress(data, limit + 1))
            return Payload(text, stream.eof) if text else Payload(data, True)
        except igzip_lib.IsalError:  # type: ignore[misc]
            pass
    stream = isal_zlib.decompressobj(wbits=-15)
    text = bytes(stream.decompress(data, limit + 1))
    packed = not is_text(data) or (stream.eof and not stream.unused_data and is_text(text))
    return Payload(text, stream.eof) if text and packed else Payload(data, True)


def is_text(data: bytes) -> bool:
    return not no_text(data) and is_utf8(data)


def unzstd(data: bytes, limit: int) -> Payload:
    """All frames; the first where what follows is none."""

    def text(of_all: bool) -> Payload:
        with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=of_all) as reader:
            return Payload(bytes(reader.read(limit + 1)), True)

    if data.find(ZSTD, len(ZSTD)) > 0:
        with suppress(zstandard.ZstdError):
            return text(of_all=True)
    return text(of_all=False)


def unbrotlied(data: bytes, limit: int) -> bytes:
    """What brotli packed, at most one byte more than `limit`; of a stream that breaks off, what comes before; nothing
    if it is none."""
    whole = b""
    for step in (limit + 1, 1 << 12, 1):  # a read that meets the break gives nothing, so that the last ones are short
        stream, parts, held = pa.CompressedInputStream(pa.BufferReader(data), "brotli"), [whole], len(whole)
        try:
            stream.read(held)
            while held <= limit and (part := stream.read(min(step, limit + 1 - held))):
                parts.append(part)
                held += len(part)
            return b"".join(parts)
        except OSError:
            whole = b"".join(parts)
            if not no_text(data):  # a page that is not packed may begin as a stream does
                return b""
    return whole


def no_text(data: bytes) -> bool:
    """Does it hold bytes that the WHATWG calls binary (MIME sniffing, section 4), and no mark of UTF-16 before them?"""
    return not data.startswith((b"\xff\xfe", b"\xfe\xff")) and BINARY.search(data, 0, 1 << 10) is not None


BEGINS_WITH_A_TAG = r"^\x{feff}?\s*<"  # 9 ms on 160 MB of texts; the few that do are looked at one by one
MARKUP = "markup"  # under which such texts are counted
FIRST = 8192  # characters of a text that may be comments before its first tag


def rows_of_markup(texts: pa.Array) -> list[int]:
    """The rows whose text begins as a page or a piece of one does; rows without text are none."""
    tagged = pc.fill_null(pc.match_substring_regex(texts, BEGINS_WITH_A_TAG), False).to_numpy(zero_copy_only=False)
    return [
        row for row in np.flatnonzero(tagged).tolist() if LOOKS_LIKE_HTML.match(texts[row].as_py()[:FIRST].encode())
    ]
