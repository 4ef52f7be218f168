"""Files of sites out of web archives: robots.txt, ai.txt, trust.txt and tdmrep.json, each a document.

Common Crawl keeps robots.txt in archives of their own (`robotstxt/`), other crawlers beside the pages. A recipe of this
reader and `write` gathers them; `opt_out` reads the folder that it wrote (docs/opt_out.md).
"""

from __future__ import annotations

from typing import ClassVar
from urllib.parse import urlsplit

from gristmill.stages.documents import Collector
from gristmill.stages.read.charset import decode_text
from gristmill.stages.read.payload import PayloadTooLarge, Undecodable, decoded_payload, no_text, response_of
from gristmill.stages.read.records import Record
from gristmill.stages.read.warc import WARC_SUFFIXES, Archive, date_of, id_of

SITE_PATHS = ("/robots.txt", "/ai.txt", "/.well-known/ai.txt", "/trust.txt", "/.well-known/trust.txt",
              "/.well-known/tdmrep.json")  # fmt: skip


class SiteFiles(Archive):
    """Read what sites say of their use, for `opt_out`: robots.txt, ai.txt, trust.txt and tdmrep.json in WARC, ARC and
    WACZ files."""

    suffixes: ClassVar[tuple[str, ...]] = WARC_SUFFIXES

    def account(self, record: Record, place: str, collector: Collector) -> None:
        if record.fields.get(b"warc-type", b"").lower() == b"conversion":
            return collector.skip("not_a_site_file")
        super().account(record, place, collector)

    def account_page(self, record: Record, body: bytes, place: str, url: str | None, collector: Collector) -> None:
        if not is_site_file(url):
            return collector.skip("not_a_site_file")
        if body[:5].upper() == b"HTTP/":
            response = response_of(body)
            if response.status != 200:
                return collector.skip("http_status", url, str(response.status))
            try:
                body, _ = decoded_payload(response, self.max_record_bytes)
            except PayloadTooLarge:
                return collector.skip("too_large", url, f"over {self.max_record_bytes} bytes when decoded")
            except Undecodable as encoding:
                return collector.skip("undecodable", url, f"its content encoding {encoding} cannot be undone")
        elif record.fields.get(b"warc-type", b"").lower() == b"response":
            return collector.skip("not_http", url)
        if not body or body.isspace():
            return collector.skip("empty_page", url)
        if no_text(body) or body.lstrip()[:1] == b"<":  # a page that says there is none
            return collector.skip("no_site_file", url)
        collector.add(
            place, id=id_of(record.fields), url=url, date=date_of(record.fields), text=decode_text(body, "utf-8")
        )


def is_site_file(url: str | None) -> bool:
    try:
        return url is not None and urlsplit(url).path.lower() in SITE_PATHS
    except ValueError:
        return False
