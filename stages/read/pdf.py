"""PDF files in a folder, one document a file: plain, gzip or zstd."""

from __future__ import annotations

from typing import ClassVar

from gristmill.stages.documents import Collector
from gristmill.stages.read.html import PACKED, Html
from gristmill.stages.read.other_formats import OTHERS, PDF
from gristmill.stages.read.payload import is_pdf
from gristmill.stages.stage import Origin


class Pdf(Html):
    """PDF files, one document a file, for `extract`; its id is its path below the source. .gz and .zst are unpacked."""

    suffixes: ClassVar[tuple[str, ...]] = tuple(".pdf" + packed for packed in ("", *PACKED))
    holds: ClassVar[str] = "PDF"
    others: ClassVar[tuple[tuple[bytes, str, str], ...]] = tuple(other for other in OTHERS if other is not PDF)

    def add(self, data: bytes, origin: Origin, collector: Collector) -> None:
        url = self.url_of(origin.path)
        if is_pdf(data):
            collector.add(0, html=data, id=origin.path, url=url)
        else:
            collector.skip("not_pdf" if data else "empty_page", url or origin.path)
