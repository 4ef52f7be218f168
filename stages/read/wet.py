"""Text that a crawl has extracted already: the `conversion` records of Common Crawl's WET files."""

from __future__ import annotations

from typing import ClassVar

from gristmill.stages.documents import Collector
from gristmill.stages.read.records import Record
from gristmill.stages.read.warc import Archive


class Wet(Archive):
    """Text from WET files (`conversion` records); pages among them are skipped as `not_text`."""

    suffixes: ClassVar[tuple[str, ...]] = (".wet", ".wet.gz", ".wet.zst", ".warc.wet", ".warc.wet.gz", ".warc.wet.zst")

    def account_page(self, record: Record, body: bytes, place: str, url: str | None, collector: Collector) -> None:
        collector.skip("not_text", url)
