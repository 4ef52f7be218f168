"""Pages from web archives: WARC and ARC, a gzip member or a zstd frame for each record, one for all, or not compressed.

A record belongs to the span in which its member begins. A span starts at the first verified member in it, and reads on past its
end to the next verified one, so that damage between two members is counted once, however the file is cut. In a file that is not
compressed a span finds its start by hopping from header to header, because a page may quote one.

fastwarc stops at the first damaged member and cannot start inside a file, so this is a reader of our own. Measured on 114 MB of
real pages: 78 MB of file a second on one core, to Arrow batches; fastwarc 104 MB/s to a Python list, so
0.74 of it (benchmarks/warc.py, run of 2026-11-21).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Annotated, BinaryIO, ClassVar

from pydantic import Field

from stages.documents import EMPTY, Collector, Reading
from stages.read.charset import charset_in, decode_text, is_utf8
from stages.read.members import Codec, Damaged, Window, codec_for, next_start, only_zeros
from stages.read.payload import TooLarge, Undecodable, decoded_payload, kind_of, not_html, response_of
from stages.read.records import Broken, FileInflow, Inflow, Record, begins, records
from stages.stage import Origin, Reader

MAX_RECORD = 64 << 20
WARC_SUFFIXES = (".warc", ".warc.gz", ".warc.zst", ".arc", ".arc.gz")


class Archive(Reader):
    """Reads the records of web archives; what becomes of a record is said by its subclasses."""

    max_record_bytes: Annotated[int, Field(description="larger records are skipped, unpacked size", gt=0)] = MAX_RECORD
    keep_truncated: Annotated[bool, Field(description="keep records that the crawler cut short")] = True

    def spans(self, file: BinaryIO, path: str, size: int, target: int) -> list[tuple[int, int | None]]:
        return [(start, min(start + target, size)) for start in range(0, size, target)] or [(0, None)]

    def read(self, file: BinaryIO, origin: Origin) -> Iterator[Reading]:
        collector = Collector(origin.source, origin.path, pages=self.pages)
        if origin.size == 0:
            collector.damage(0, 0, EMPTY)
        window = Window(file)
        codec = codec_for(window, origin.path)
        end = origin.size if origin.end is None else min(origin.end, origin.size)
        found = self.plain(window, collector, origin, end) if codec is None else self.members(codec, window, collector, origin, end)
        for place, record in found:
            self.account(record, place, collector)
            if collector.full:
                yield collector.take()
        yield collector.take()

    def plain(self, window: Window, collector: Collector, origin: Origin, end: int) -> Iterator[tuple[str, Record]]:
        for item in records(FileInflow(window, origin.size), self.max_record_bytes, origin.start):
            if item.place >= end:
                return
            if item.place < origin.start:
                continue
            if isinstance(item, Broken):
                collector.damage(item.place, item.end, item.what)
            else:
                yield f"{item.place}:0", item

    def members(self, codec: Codec, window: Window, collector: Collector, origin: Origin, end: int) -> Iterator[tuple[str, Record]]:
        at: int | None = origin.start
        if origin.start > 0:
            at = next_start(codec, window, origin.start, end, begins)
        while at is not None and at < origin.size:
            if at >= end and next_start(codec, window, at, at + 1, begins) is not None:
                return
            member = codec.open(window, at)
            broken: list[str] = []
            try:
                for item in records(Inflow(member.chunk), self.max_record_bytes):
                    if isinstance(item, Broken):
                        broken.append(item.what)
                    else:
                        yield f"{at}:{item.place}", item
                after = member.end
            except Damaged as damage:
                after = next_start(codec, window, at + 1, origin.size, begins) or origin.size
                if not only_zeros(window, at, after):
                    broken.append(str(damage))
            for what in broken:
                collector.damage(at, after, what.replace("the file ends", "the member ends") if after < origin.size else what)
            at = after

    def account(self, record: Record, place: str, collector: Collector) -> None:
        """Make a document of a record, or skip it with a reason."""
        fields = record.fields
        kind = fields.get(b"warc-type", b"").lower()
        url = text_of(without_angles(fields.get(b"warc-target-uri", b""))) or None
        if kind == b"revisit":
            collector.skip("revisit", url)
        elif kind not in (b"response", b"conversion", b"resource"):
            collector.skip("not_a_page")
        elif record.body is None:
            collector.skip("too_large", url, f"{record.length} bytes")
        elif not self.keep_truncated and b"warc-truncated" in fields:
            collector.skip("truncated", url, text_of(fields[b"warc-truncated"]))
        elif kind == b"conversion":
            add_conversion(record, place, url, collector)
        else:
            self.account_page(record, record.body, place, url, collector)

    @abstractmethod
    def account_page(self, record: Record, body: bytes, place: str, url: str | None, collector: Collector) -> None: ...


class Warc(Archive):
    """Pages from WARC and ARC files, compressed or not; the text of WET records comes through as it is."""

    suffixes: ClassVar[tuple[str, ...]] = WARC_SUFFIXES
    pages: ClassVar[bool] = True

    def account_page(self, record: Record, body: bytes, place: str, url: str | None, collector: Collector) -> None:
        fields = record.fields
        if fields[b"warc-type"].lower() == b"response" and body[:5].upper() == b"HTTP/":
            response = response_of(body)
            status, reason, headers = response.status or 0, response.reason, response.fields
            if 300 <= status < 400:
                return collector.skip("redirect", url, text_of(headers.get(b"location", b"")) or f"{status} {reason}".strip())
            if not 200 <= status < 300:
                return collector.skip("http_status", url, f"{status} {reason}".strip())
            declared = headers.get(b"content-type") or fields.get(b"warc-identified-payload-type")
            try:
                payload = decoded_payload(response, self.max_record_bytes)
            except TooLarge:
                return collector.skip("too_large", url, f"over {self.max_record_bytes} bytes when decoded")
            except Undecodable as encoding:
                return collector.skip("undecodable", url, f"its content encoding {encoding} cannot be undone")
        elif fields[b"warc-type"].lower() == b"response" and fields.get(b"content-type", b"").lower().startswith(b"application/http"):
            return collector.skip("not_http", url, body[:40].decode("latin-1"))
        else:
            payload, declared = body, fields.get(b"content-type")
        kind = kind_of(declared)
        if not payload or payload.isspace():
            return collector.skip("empty_page", url)
        other = not_html(kind, payload)
        if other is not None:
            return collector.skip("not_html", url, other)
        charset = charset_in((declared or b"").decode("latin-1"))
        meta = meta_of(fields, kind)
        collector.add(place, html=payload, charset=charset, id=id_of(fields), url=url, date=date_of(fields), meta=meta)


def add_conversion(record: Record, place: str, url: str | None, collector: Collector) -> None:
    """A record whose body is the text of a page already."""
    fields = record.fields
    body, content_type = record.body or b"", fields.get(b"content-type", b"")
    text = body.decode() if is_utf8(body) else decode_text(body, charset_in(content_type.decode("latin-1")))
    if not text or text.isspace():
        return collector.skip("empty_page", url)
    collector.add(place, text=text, id=id_of(fields), url=url, date=date_of(fields), meta=meta_of(fields, kind_of(content_type)))


def meta_of(fields: dict[bytes, bytes], kind: str) -> dict[str, str]:
    meta = {"content_type": kind} if kind else {}
    if ip := fields.get(b"warc-ip-address"):
        meta["ip"] = text_of(ip)
    if language := fields.get(b"warc-identified-content-language"):
        meta["language"] = text_of(language)
    if cut := fields.get(b"warc-truncated"):
        meta["truncated"] = text_of(cut)
    return meta


def without_angles(uri: bytes) -> bytes:
    """WARC 1.0 writes <uri>; a uri that only ends in '>' keeps it."""
    return uri[1:-1] if uri.startswith(b"<") and uri.endswith(b">") else uri


def id_of(fields: dict[bytes, bytes]) -> str | None:
    return text_of(fields.get(b"warc-record-id", b"")).strip("<>").removeprefix("urn:uuid:") or None


def date_of(fields: dict[bytes, bytes]) -> str | None:
    return text_of(fields.get(b"warc-date", b"")) or None


def text_of(value: bytes) -> str:
    return value.decode("utf-8", "replace")
