"""What an HTTP response carried: its status, the headers that matter, and its payload with transfer and content encodings undone.

Crawlers often store the payload decoded under its old headers, so an encoding is undone only if the bytes are really so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa
import zstandard
from isal import igzip_lib, isal_zlib

from stages.read.records import fields_of

STATUS = re.compile(rb"HTTP/\d+(?:\.\d+)?[ \t]+(\d{3})[ \t]*([^\r\n]*)", re.IGNORECASE)
CHUNK_LINE = re.compile(rb"[ \t]*([0-9a-fA-F]{1,15})[ \t]*(?:;[^\r\n]{0,1000})?\r?\n")
HTML_TYPES = ("text/html", "application/xhtml+xml")
# Types under which servers send pages too: then the first bytes decide.
VAGUE_TYPES = ("", "application/octet-stream", "application/xml", "text/xml", "unknown/unknown", "*/*", "html", "text")
LOOKS_LIKE_HTML = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]{0,200}>\s*)?(?:<!--.{0,2000}?-->\s*)*"
    rb"<(?:!doctype\s+html|html|head|body|title|meta|script|div|table|h1|p)\b",
    re.IGNORECASE | re.DOTALL,
)
SURELY_NOT = (
    (b"%PDF-", "application/pdf"),
    (b"\x89PNG", "image/png"),
    (b"GIF8", "image/gif"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"PK\x03\x04", "application/zip"),
)


class TooLarge(Exception):
    """A payload that is larger, decoded, than a record may be."""


@dataclass(slots=True)
class Response:
    status: int | None  # None where the body is no HTTP
    reason: str
    fields: dict[bytes, bytes]
    payload: bytes


def response_of(body: bytes) -> Response:
    status = STATUS.match(body)
    if status is None:
        return Response(None, body[:40].decode("latin-1"), {}, b"")
    end = body.find(b"\r\n\r\n")
    bare = body.find(b"\n\n", 0, end if end >= 0 else len(body))
    end, gap = (bare, 2) if bare >= 0 else (end, 4) if end >= 0 else (len(body), 0)
    return Response(int(status[1]), status[2].decode("latin-1").strip(), fields_of(body[:end]), body[end + gap :])


def kind_of(content_type: bytes | None) -> str:
    return (content_type or b"").decode("latin-1").split(";")[0].strip().lower()


def not_html(kind: str, payload: bytes) -> str | None:
    """What a payload is if it is no page; its declared type counts, but not against its first bytes."""
    if kind in HTML_TYPES:
        return next((other for mark, other in SURELY_NOT if payload.startswith(mark)), None)
    if kind in VAGUE_TYPES and LOOKS_LIKE_HTML.match(payload):
        return None
    return kind or "no type"


def decoded_payload(response: Response, limit: int) -> bytes:
    """The payload as the server meant it; raises TooLarge."""
    payload = response.payload
    fields = response.fields
    if b"chunked" in fields.get(b"transfer-encoding", b"").lower():
        payload = unchunked(payload)
    for encoding in reversed(fields.get(b"content-encoding", b"").lower().split(b",")):
        payload = unencoded(payload, encoding.strip(), limit)
        if len(payload) > limit:
            raise TooLarge
    return payload


def unchunked(data: bytes) -> bytes:
    """Chunks put together; the data itself if they are not chunks, and what there is if they break off."""
    parts: list[bytes] = []
    at = 0
    while line := CHUNK_LINE.match(data, at):
        length = int(line[1], 16)
        if length == 0:
            return b"".join(parts)
        parts.append(data[line.end() : line.end() + length])
        at = line.end() + length
        at += 2 if data[at : at + 2] == b"\r\n" else 1 if data[at : at + 1] == b"\n" else 0
    return b"".join(parts) if parts else data


def unencoded(data: bytes, encoding: bytes, limit: int) -> bytes:
    """Data with one content encoding undone, at most one byte more than `limit`; unchanged where it is not so encoded."""
    try:
        if encoding in (b"gzip", b"x-gzip") and data.startswith(b"\x1f\x8b"):
            return bytes(isal_zlib.decompressobj(wbits=31).decompress(data, limit + 1))
        if encoding == b"deflate":
            wrapped = data[:1] == b"\x78"
            return bytes(isal_zlib.decompressobj(wbits=15 if wrapped else -15).decompress(data, limit + 1)) or data
        if encoding == b"zstd" and data.startswith(b"\x28\xb5\x2f\xfd"):
            with zstandard.ZstdDecompressor().stream_reader(data) as reader:
                return bytes(reader.read(limit + 1))
        if encoding == b"br" and not LOOKS_LIKE_HTML.match(data):
            return bytes(pa.CompressedInputStream(pa.BufferReader(data), "brotli").read(limit + 1)) or data
    except (igzip_lib.IsalError, zstandard.ZstdError, OSError):  # type: ignore[misc]  # its stub calls the class a value
        return data
    return data
