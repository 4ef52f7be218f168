"""PDF files as pages: their text, what they say of themselves, and why one has no text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gristmill.stages.pdf.document import Form, PdfText, text_of
from gristmill.stages.pdf.files import MOST_UNREAD, NEEDS_OCR, USUAL, Limits, Unreadable, read_pdf


@dataclass(frozen=True)
class PdfFacts:
    """`detail` says more of the reason why there is no text."""

    pages: int = 0
    unread: int = 0  # of the pages read, those whose text layer does not say what they show
    left_out: int = 0  # pages beyond the limit
    heads: int = 0  # rows taken for running heads
    producer: str | None = None
    detail: str = ""

    @property
    def meta(self) -> dict[str, Any]:
        """For a document's `meta`."""
        facts = {"pages": self.pages, "pages_without_text": self.unread, "pages_left_out": self.left_out}
        facts["running_heads"] = self.heads
        producer = {} if self.producer is None else {"producer": self.producer}
        return {name: count for name, count in facts.items() if count} | producer

    @property
    def counts(self) -> dict[str, int]:
        """For a run's account."""
        return {
            "pdf_files": 1,
            "pdf_pages": self.pages - self.left_out,
            "pdf_pages_left_out": self.left_out,
            "needs_ocr_pages": self.unread,
            "pdf_head_rows": self.heads,
        }


def read_page(
    data: bytes, form: Form, limits: Limits = USUAL, most_unread: float = MOST_UNREAD
) -> tuple[PdfText | None, PdfFacts, str | None]:
    """Text of a file and its facts; and why it is not to be used, one of gristmill.stages.pdf.files.REASONS."""
    try:
        made = text_of(read_pdf(data, limits), form)
    except Unreadable as error:
        return None, PdfFacts(detail=str(error)), error.reason
    unread, count = len(made.unread), made.pages_read
    facts = PdfFacts(made.page_count, unread, made.page_count - count, made.heads, made.facts.get("producer"))
    return made, facts, NEEDS_OCR if unread > most_unread * count else None
