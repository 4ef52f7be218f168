"""Pages from web archives: WARC and ARC, a gzip member or a zstd frame for each record, one for all, or not compressed;
and WACZ, a zip file of these.

A record belongs to the span in which its member begins. A span starts at the first verified member in it, and reads on
past its end to the next verified one, so that damage between two members is counted once, however the file is cut. In a
file that is not compressed a span finds its start by hopping from header to header, because a page may quote one. A
span of a zip file has the archives in it that begin there.

Whole records are read by the block (`page_rows.py`): a kernel makes rows of plain pages, and what is odd
goes through `account` as a record of its own. What is damaged, large or cut is read one by one.

fastwarc stops at the first damaged member and cannot start inside a file, so this is a reader of our own. Its speed
beside fastwarc: benchmarks/text/warc.py, docs/sources.md.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, BinaryIO, ClassVar, Self

from pydantic import Field

from gristmill.kernels.archives import pages
from gristmill.kernels.common.settings import Bytes
from gristmill.stages.documents import EMPTY, MAX_RECORD, Collector, Reading
from gristmill.stages.read.charset import charset_in, decode_text, is_utf8
from gristmill.stages.read.members import (
    Chunks,
    Codec,
    Damaged,
    Member,
    Window,
    WrongChecksum,
    codec_for,
    next_start,
    only_zeros,
)
from gristmill.stages.read.page_rows import Block, Blocks, PageCollector
from gristmill.stages.read.payload import (
    PayloadTooLarge,
    Undecodable,
    decoded_payload,
    is_pdf,
    is_plain_text,
    kind_of,
    not_html,
    response_of,
    stated_terms,
)
from gristmill.stages.read.records import Broken, FileInflow, Inflow, Record, begins, records
from gristmill.stages.read.zipped import MAGIC, WRONG_SUM, BrokenZip, Entry, archives_in, opened, spans_of_zip
from gristmill.stages.stage import Origin, Reader

# What `warcinfo` records say of the crawler, which the public summary of a run names (gristmill report --for eu).
CRAWLER = "crawler"
OF_CRAWLERS = ("software", "http-header-user-agent", "robots", "ispartof")
LONGEST_WARCINFO, LONGEST_TOLD, MOST_CRAWLERS = 1 << 16, 200, 16
WARC_SUFFIXES = (".warc", ".warc.gz", ".warc.zst", ".arc", ".arc.gz", ".wacz")


@dataclass(frozen=True)
class Archived:
    """A web archive to read: a file, or a member of a zip file; and the names of places in it."""

    file: BinaryIO
    name: str
    size: int
    start: int
    end: int
    entry: Entry | None = None

    def place(self, at: int, inside: int) -> str:
        """Of a record, for its identity: where its member begins in the file (in what is unpacked, of an archive that
        is deflated), and where in it."""
        if self.entry is None:
            return f"{at}:{inside}"
        return f"{self.entry.header}+{at}:{inside}" if self.entry.deflated else f"{self.entry.start + at}:{inside}"

    def places(self, starts: list[int]) -> list[str]:
        """The same of records that each begin a member, or a file that is not compressed."""
        before, at = ("", 0) if self.entry is None else (f"{self.entry.header}+", 0)
        if self.entry is not None and not self.entry.deflated:
            before, at = "", self.entry.start
        return [f"{before}{at + start}:0" for start in starts]

    def in_file(self, place: int) -> int:
        """About where in the file a place of the archive is."""
        return (
            place
            if self.entry is None
            else self.entry.start + (self.entry.end - self.entry.start) * place // max(1, self.size)
        )

    def damage(self, broken: Broken, collector: Collector) -> None:
        if self.entry is None:
            collector.damage(broken.place, broken.end, broken.what)
        elif self.entry.deflated:
            collector.damage(self.entry.start, self.entry.end, f"{self.name}, byte {broken.place:,}: {broken.what}")
        else:
            collector.damage(
                self.entry.start + broken.place, self.entry.start + broken.end, f"{self.name}: {broken.what}"
            )


class Archive(Reader):
    """Reads the records of web archives; what becomes of a record is said by its subclasses."""

    max_record_bytes: Annotated[Bytes, Field(description="larger records are skipped, unpacked size", gt=0)] = (
        MAX_RECORD
    )
    keep_truncated: Annotated[
        bool,
        Field(
            description="keep records that the crawler cut short, and pages whose gzip or deflate body breaks off; "
            "they have `truncated` in `meta`"
        ),
    ] = True

    def spans(self, file: BinaryIO, path: str, size: int, target: int) -> list[tuple[int, int | None]]:
        if is_zip(file):
            return spans_of_zip(file, size, self.suffixes, target)
        return [(start, min(start + target, size)) for start in range(0, size, target)] or [(0, None)]

    def read(self, file: BinaryIO, origin: Origin) -> Iterator[Reading]:
        collector = PageCollector(origin.source, origin.path, pages=self.gives_pages, at=origin.start)
        if origin.size == 0:
            collector.damage(0, 0, EMPTY)
        for archive in self.archives(file, origin, collector):
            for _ in self.account_all(archive, Window(archive.file), collector):
                if collector.full:
                    yield collector.take()
        collector.at = origin.size if origin.end is None else min(origin.end, origin.size)
        yield collector.take()

    def account_all(self, archive: Archived, window: Window, collector: PageCollector) -> Iterator[None]:
        """Make documents of the records of an archive; stops where the collector may be full, and is then to be
        emptied."""
        codec = self.codec(window, archive.name)
        for read in self.plain(window, archive) if codec is None else self.members(codec, window, archive):
            if isinstance(read, Block):
                yield from self.account_block(read, archive, collector)
                continue
            at, through, item = read
            if isinstance(item, Broken):
                archive.damage(item, collector)
            else:
                collector.at = archive.in_file(through)
                self.account(item, archive.place(at, item.place - at if codec is None else item.place), collector)
            yield

    def account_block(self, block: Block, archive: Archived, collector: PageCollector) -> Iterator[None]:
        """The same for a block, up to a record that is broken."""
        while True:
            why = collector.take_pages(block, self.max_record_bytes, self.odd_fields)
            collector.give_uids(archive.places(block.places(collector.new_records())))
            if why == pages.ODD:
                place, record = collector.odd_record(block)
                self.account(record, archive.place(place, 0), collector)
            if block.number:
                collector.at = archive.in_file(block.reached)
            yield
            if why in (pages.END, pages.BROKEN):
                return

    def archives(self, file: BinaryIO, origin: Origin, collector: Collector) -> Iterator[Archived]:
        """The file itself, or of a zip file the archives that begin in the span."""
        end = origin.size if origin.end is None else min(origin.end, origin.size)
        if not is_zip(file):
            yield Archived(file, origin.path, origin.size, origin.start, end)
            return
        try:
            entries = archives_in(file, origin.size, self.suffixes)
        except BrokenZip as error:
            collector.remark(f"{error}; its records are looked for without it")
            yield Archived(file, ".gz", origin.size, origin.start, end)
            return
        if not entries:
            collector.damage(0, origin.size, "no web archive is in this zip file")
        for entry in entries:
            if not origin.start <= entry.header < end:
                continue
            if entry.wrong is not None:
                collector.damage(entry.header, entry.end, f"{entry.name}: {entry.wrong}")
                continue
            with opened(file, entry) as (member, size, wrong):
                if wrong == WRONG_SUM:  # each of its records may be whole all the same
                    collector.remark(f"{entry.name}: {wrong}")
                elif wrong is not None:
                    collector.damage(entry.start, entry.end, f"{entry.name}: {wrong}")
                if is_zip(member):
                    collector.damage(
                        entry.start, entry.end, f"{entry.name}: a zip file in a zip file is not read; unpack it"
                    )
                else:
                    yield Archived(member, entry.name, size, 0, size, entry)

    def codec(self, window: Window, name: str) -> Codec | None:
        return codec_for(window, name)

    def plain(self, window: Window, archive: Archived) -> Iterator[Block | tuple[int, int, Record | Broken]]:
        """Blocks, and single records with the places where they begin and up to which the archive was read for
        them."""
        inflow, blocks = FileInflow(window, archive.size), Blocks(window)
        singly = records(inflow, self.max_record_bytes, archive.start)
        while True:
            if archive.start <= inflow.place < archive.end and blocks.due():
                block = blocks.stretch(inflow.place, archive.end, archive.size)
                yield block
                inflow.back(block.reached, None)
                if blocks.left(block):
                    continue
            item = next(singly, None)
            if item is None or item.place >= archive.end:
                return
            if item.place >= archive.start:
                yield item.place, inflow.place, item

    def members(
        self, codec: Codec, window: Window, archive: Archived
    ) -> Iterator[Block | tuple[int, int, Record | Broken]]:
        """Blocks, and single records with the places where their members begin and up to which the archive was read for
        them."""
        size, end = archive.size, archive.end
        at: int | None = archive.start
        blocks = Blocks(window)
        if archive.start > 0:
            at = next_start(codec, window, archive.start, end, begins)
        while at is not None and at < size:
            if at >= end and next_start(codec, window, at, at + 1, begins) is not None:
                return
            if at < end and blocks.due():
                block, after = blocks.members(codec, at, end)
                if block.starts:
                    yield block
                if block.number == len(block.starts) and after > at:
                    at = after
                    continue
                blocks.left(block)
                at = block.starts[block.number] if block.starts else at
            member = codec.open(window, at)
            broken: list[str] = []
            wrong_checksum: list[str] = []
            inflow = Inflow(chunks_of(member, wrong_checksum))
            alone = True  # is the record, in its member? A wrong checksum then accuses it
            try:
                for item in records(inflow, self.max_record_bytes):
                    if wrong_checksum and (alone or isinstance(item, Broken)):
                        break
                    alone = False
                    if isinstance(item, Broken):
                        broken.append(item.what)
                    else:
                        yield at, at + (member.end - at) * inflow.place // max(1, inflow.end), item
                after = member.end
                if wrong_checksum:  # what seems a member's end after damage may be none
                    after = next_start(codec, window, at + 1, size, begins) or size
                    broken += wrong_checksum
            except Damaged as damage:
                after = next_start(codec, window, at + 1, size, begins) or size
                if not only_zeros(window, at, after):
                    broken.append(str(damage))
            for what in broken:
                yield (
                    at,
                    after,
                    Broken(at, after, what.replace("the file ends", "the member ends") if after < size else what),
                )
            at = after

    def account(self, record: Record, place: str, collector: Collector) -> None:
        """Make a document of a record, or skip it with a reason."""
        fields = record.fields
        kind = fields.get(b"warc-type", b"").lower()
        url = text_of(without_angles(fields.get(b"warc-target-uri", b""))) or None
        if kind == b"warcinfo":
            collector.note(crawler_note(record.body or b""), MOST_CRAWLERS)
        if kind == b"revisit":
            collector.skip("revisit", url)
        elif kind not in (b"response", b"conversion", b"resource"):
            collector.skip("not_a_page")
        elif record.body is None:
            collector.skip("too_large", url, f"{record.length} bytes")
        elif not self.keep_truncated and (cut := cut_by(fields)):
            collector.skip("truncated", url, cut)
        elif kind == b"conversion":
            add_conversion(record, place, url, collector)
        else:
            self.account_page(record, record.body, place, url, collector)

    @property
    def odd_fields(self) -> int:
        """Behind the last field of an answer that makes it odd for the kernel."""
        return pages.TERMS

    @abstractmethod
    def account_page(self, record: Record, body: bytes, place: str, url: str | None, collector: Collector) -> None: ...


class Warc(Archive):
    """Pages from WARC, ARC and WACZ files, compressed or not; the text of WET records comes through as it is."""

    keep_plain_text: Annotated[
        bool,
        Field(
            description=(
                "take responses of type text/plain as documents too; their text is the body, and `extract` leaves it"
            )
        ),
    ] = False
    keep_pdf: Annotated[
        bool,
        Field(description="take PDF files as documents too; `extract` makes text of them (needs the extra `pdf`)"),
    ] = False
    keep_headers: Annotated[
        bool,
        Field(
            description="keep X-Robots-Tag, TDM-Reservation, TDM-Policy and Content-Usage of a page's answer in `meta`; "
            "on by itself where `opt_out` looks at them"
        ),
    ] = False
    suffixes: ClassVar[tuple[str, ...]] = WARC_SUFFIXES
    pages: ClassVar[bool] = True

    @property
    def gives_pdf(self) -> bool:
        return self.gives_pages and self.keep_pdf

    @property
    def odd_fields(self) -> int:
        return pages.RESPONSE if self.keep_headers else pages.TERMS

    def with_headers(self) -> Self:
        return self.model_copy(update={"keep_headers": True})

    def account_page(self, record: Record, body: bytes, place: str, url: str | None, collector: Collector) -> None:
        fields, whole = record.fields, True
        if fields[b"warc-type"].lower() == b"response" and body[:5].upper() == b"HTTP/":
            response = response_of(body)
            status, reason, headers = response.status or 0, response.reason, response.fields
            if 300 <= status < 400:
                return collector.skip(
                    "redirect", url, text_of(headers.get(b"location", b"")) or f"{status} {reason}".strip()
                )
            if not 200 <= status < 300:
                return collector.skip("http_status", url, f"{status} {reason}".strip())
            declared = headers.get(b"content-type") or fields.get(b"warc-identified-payload-type")
            try:
                payload, whole = decoded_payload(response, self.max_record_bytes)
            except PayloadTooLarge:
                return collector.skip("too_large", url, f"over {self.max_record_bytes} bytes when decoded")
            except Undecodable as encoding:
                return collector.skip("undecodable", url, f"its content encoding {encoding} cannot be undone")
            if not whole and not self.keep_truncated:
                return collector.skip("truncated", url, "its content encoding breaks off")
        elif fields[b"warc-type"].lower() == b"response" and fields.get(b"content-type", b"").lower().startswith(
            b"application/http"
        ):
            return collector.skip("not_http", url, body[:40].decode("latin-1"))
        else:
            payload, declared = body, fields.get(b"content-type")
        kind = kind_of(declared)
        if not whole and not payload:
            return collector.skip("undecodable", url, "its content encoding breaks off before any text")
        if not payload or payload.isspace():
            return collector.skip("empty_page", url)
        other = not_html(kind, payload)
        charset = charset_in((declared or b"").decode("latin-1"))
        meta = meta_of(fields, kind) | ({} if whole else {"truncated": "content-encoding"})
        if self.keep_headers and body is not payload:
            meta |= stated_terms(body)
        if (
            self.keep_plain_text and is_plain_text(kind, payload) and not (url or "").startswith("urn:")
        ):  # a crawler's notes on a page
            text = decode_text(payload, charset).replace("\0", "")
            return add_document(collector, place, fields, meta, url=url, text=text)
        if other is not None and self.keep_pdf and is_pdf(payload):
            return add_document(collector, place, fields, meta, url=url, html=payload)
        if other is not None:
            return collector.skip("not_html", url, other)
        add_document(collector, place, fields, meta, url=url, html=payload, charset=charset)


def is_zip(file: BinaryIO) -> bool:
    file.seek(0)
    head = file.read(4)
    file.seek(0)
    return head in MAGIC


def chunks_of(member: Member, wrong_checksum: list[str]) -> Chunks:
    """The chunks of a member, at whose end a wrong checksum is noted and not raised."""

    def chunk() -> bytes:
        try:
            return member.chunk()
        except WrongChecksum as damage:
            wrong_checksum.append(str(damage))
            return b""

    return chunk


def add_conversion(record: Record, place: str, url: str | None, collector: Collector) -> None:
    """A record whose body is the text of a page already."""
    fields = record.fields
    body, content_type = record.body or b"", fields.get(b"content-type", b"")
    text = body.decode() if is_utf8(body) else decode_text(body, charset_in(content_type.decode("latin-1")))
    if not text or text.isspace():
        return collector.skip("empty_page", url)
    add_document(collector, place, fields, meta_of(fields, kind_of(content_type)), url=url, text=text)


def add_document(
    collector: Collector, place: str, fields: dict[bytes, bytes], meta: dict[str, str], **content: Any
) -> None:
    if "truncated" in meta:
        collector.note("truncated")
    collector.add(place, id=id_of(fields), date=date_of(fields), meta=meta, **content)


def meta_of(fields: dict[bytes, bytes], kind: str) -> dict[str, str]:
    meta = {"content_type": kind} if kind else {}
    if ip := fields.get(b"warc-ip-address"):
        meta["ip"] = text_of(ip)
    if language := fields.get(b"warc-identified-content-language"):
        meta["language"] = text_of(language)
    if cut := cut_by(fields):
        meta["truncated"] = cut
    return meta


def cut_by(fields: dict[bytes, bytes]) -> str | None:
    """Why a record is not whole: its crawler says so, or more of it follows in records of their own."""
    if b"warc-truncated" in fields:
        return text_of(fields[b"warc-truncated"]) or "unspecified"
    return "segmented" if b"warc-segment-number" in fields else None


def crawler_note(body: bytes) -> str:
    """The note (`Reading.noted`) of a record in which a crawler tells of itself: `CRAWLER` and JSON, without control
    characters. Long values are cut."""
    told: dict[str, str] = {}
    for line in body[:LONGEST_WARCINFO].decode("utf-8", "replace").splitlines():
        name, _, value = line.partition(":")
        key = name.strip().lower()
        said = "".join(c if c.isprintable() else " " for c in value).strip()[:LONGEST_TOLD]
        if key in OF_CRAWLERS and said:
            told.setdefault(key, said)
    return f"{CRAWLER} {json.dumps(told, ensure_ascii=False, sort_keys=True)}"


def without_angles(uri: bytes) -> bytes:
    """WARC 1.0 writes <uri>; a uri that only ends in '>' keeps it."""
    return uri[1:-1] if uri.startswith(b"<") and uri.endswith(b">") else uri


def id_of(fields: dict[bytes, bytes]) -> str | None:
    return text_of(fields.get(b"warc-record-id", b"")).strip("<>").removeprefix("urn:uuid:") or None


def date_of(fields: dict[bytes, bytes]) -> str | None:
    return text_of(fields.get(b"warc-date", b"")) or None


def text_of(value: bytes) -> str:
    return value.decode("utf-8", "replace")
