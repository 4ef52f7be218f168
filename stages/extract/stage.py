"""The stage that turns pages into text, and says of each page without text why it has none."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator, model_validator

from gristmill.kernels.base.types import Array
from gristmill.stages.checks import Complaint, RecipeContext
from gristmill.stages.documents import PAGE, as_json, column_of
from gristmill.stages.extract.choices import (
    OURS,
    REASONS,
    Comments,
    EngineName,
    Form,
    View,
    check_engine,
    each_once,
    other_uids,
)
from gristmill.stages.extract.nesting import nests_deeper
from gristmill.stages.figures import FactList, Report, StageFigures
from gristmill.stages.pdf.files import MOST_UNREAD, NEEDS_OCR, REASONS as PDF_REASONS, Limits
from gristmill.stages.read.charset import Decoded, decode_page
from gristmill.stages.read.payload import MARKUP, is_pdf, rows_of_markup
from gristmill.stages.stage import Applied, CannotRun, Made, Rewrite, Signals, Verdict, with_columns

if TYPE_CHECKING:
    from gristmill.stages.extract.gristmill import Extracted
    from gristmill.stages.pdf.pages import PdfFacts

PAGES = "pages"  # under which documents with html are counted

# What is noted of pages: read in another encoding than they declare, in one that was detected, with characters that
# were lost.
NOTED = ("charset_overruled", "charset_detected", "replacement_characters")


class Extract(Rewrite):
    """Main text out of HTML and PDF files: fills `text`, adds to `meta`, removes `html` and `charset`; drops non-pages.

    Texts pass untouched, but for those that begin as markup does: pages whose reader was not told of `html`. What the
    reader put into `meta` wins over what the page says of itself.
    """

    engine: Annotated[
        EngineName,
        Field(
            description=(
                "gristmill is ours; resiliparse and trafilatura (an extra) are others; plain is all visible text"
            )
        ),
    ] = OURS
    form: Annotated[
        Form, Field(description="markdown keeps headings, lists, tables, code as such; only gristmill writes it")
    ] = "text"
    comments: Annotated[
        Comments,
        Field(
            description="what readers wrote below a text: left out, kept where the model takes it for text, or put "
            "into `meta` as `comments`; on forums it is the text and stays; only for the engine gristmill"
        ),
    ] = "drop"
    views: list[View] = Field(
        default=["full"],
        description="full is the main text; precise is only what is sure to be; with both, a page where full has a "
        "tenth more becomes two documents, their view in the signal `view`, and `one_view` keeps one of them after the "
        "filters; only for the engine gristmill",
        min_length=1,
    )
    max_nesting: Annotated[
        int,
        Field(
            description=(
                "resiliparse, trafilatura and plain drop pages that nest elements deeper, which cost them the "
                "square of it"
            ),
            ge=1,
        ),
    ] = 1000
    max_pdf_seconds: Annotated[float, Field(description="processor time of a PDF file; it is dropped beyond", gt=0)] = (
        30.0
    )
    max_pdf_pages: Annotated[
        int, Field(description="pages of a PDF file that are read; `meta` counts others", ge=1)
    ] = 2000
    max_unread_share: Annotated[
        float,
        Field(
            description="of a PDF file's pages without text, or with noise for text; beyond, it needs OCR", ge=0, le=1
        ),
    ] = MOST_UNREAD
    ocr_price: Annotated[
        float, Field(description="dollars for OCR of a million pages, for estimates; olmOCR states 176 to 190", ge=0)
    ] = 190.0

    needs: ClassVar[tuple[str, ...]] = ("html", "charset", "text", "url", "meta")
    costly: ClassVar[bool] = True
    _once = field_validator("views")(each_once)

    @property
    def added(self) -> tuple[str, ...]:
        return ("view",) if len(self.views) > 1 else ()

    def check_recipe(self, context: RecipeContext) -> list[Complaint]:
        """Nobody wants a page twice."""
        if len(self.views) == 1 or context.wanted is None or "view" in context.wanted:
            return []
        return [Complaint("two views of a page would both stay; put `one_view` after the filters", ("views",))]

    @classmethod
    def figures(cls, report: Report) -> StageFigures | None:
        noted = report.get("noted", {})
        return StageFigures("PDF files", [FactList("", pdf_facts(noted))]) if noted.get("pdf_files") else None

    @model_validator(mode="after")
    def _engine_is_here(self) -> Extract:
        check_engine(self.engine)
        if self.form != "text" and self.engine != OURS:
            raise ValueError(f"the engine {self.engine} writes text alone; {self.form} is written by {OURS}")
        if self.comments != "drop" and self.engine != OURS:
            raise ValueError(f"comments: the engine {self.engine} cannot tell readers' comments; {OURS} can")
        if self.views != ["full"] and self.engine != OURS:
            raise ValueError(f"views: the engine {self.engine} has one; {OURS} has more")
        return self

    def unreached(self, pdf: bool) -> tuple[str, ...]:
        others = () if self.engine == "trafilatura" else ("trafilatura",)
        return others if pdf else (*others, "pypdfium2")

    def prepare(self) -> None:
        from gristmill.stages.extract.engines import extract

        extract(b"<title>a</title><p>a b c</p>", engine=self.engine)

    def rewrite(self, batch: pa.RecordBatch) -> Applied:
        if len(self.views) > 1 and "uid" not in batch.schema.names:
            raise CannotRun("views: the documents have no `uid`, which tells the views of a page that they are its own")
        absent = [name for name in PAGE.names if name not in batch.schema.names]  # a source of texts has no pages
        batch = with_columns(batch, {name: pa.nulls(len(batch), PAGE.field(name).type) for name in absent})
        columns = Signals(batch)
        texts: list[str | None] = columns.column("text").to_pylist()
        metas: list[str | None] = columns.column("meta").to_pylist()
        urls: list[str | None] = columns.column("url").to_pylist()
        charsets: list[str | None] = columns.column("charset").to_pylist()
        pages = columns.column("html")
        markup_rows = set(rows_of_markup(columns.column("text"))) - set(np.flatnonzero(pages.is_valid()).tolist())
        no_source, too_deep, empty = (np.zeros(len(batch), dtype=bool) for _ in range(3))
        noted = {name: np.zeros(len(batch), dtype=bool) for name in NOTED}
        no_page = {reason: np.zeros(len(batch), dtype=bool) for reason in (*REASONS, *PDF_REASONS)}
        details, pdfs = [""] * len(batch), Counter[str]()
        seconds = np.zeros(len(batch))
        precise: list[str | None] = [None] * len(batch)
        for row, text in enumerate(texts):
            start = time.perf_counter()
            html = pages[row].as_py()  # one at a time: the pages of a batch may be larger than its text by far
            charset = charsets[row]
            if text is not None and row in markup_rows:
                html, charset = text.encode(), "utf-8"
            if html is None:
                no_source[row] = not text
                continue
            page = None if is_pdf(html) else decode_page(html, charset)
            extracted = self.read_pdf(html) if page is None else self.read(page, urls[row])
            seconds[row] = time.perf_counter() - start
            if extracted is None:
                too_deep[row], texts[row] = True, None
                continue
            texts[row], metas[row] = extracted.text, merged(metas[row], extracted)
            precise[row] = extracted.precise
            if extracted.no_page:
                no_page[extracted.no_page][row] = True
            empty[row] = not extracted.text
            if extracted.pdf is not None:
                pdfs.update(extracted.pdf.counts)
                details[row] = self.detail_of(extracted.pdf, extracted.no_page)
            facts = (
                page is not None and page.overruled,
                page is not None and page.detected,
                "\ufffd" in extracted.text,
            )
            for name, holds in zip(NOTED, facts, strict=True):
                noted[name][row] = holds
        extracted_columns = {"text": column_of(texts, pa.string()), "meta": column_of(metas, pa.string())}
        verdict = (
            Verdict.keep(len(batch))
            .drop(no_source, "no_text_in_source")
            .drop(too_deep, "nested_too_deep", [f"more than {self.max_nesting:,} elements open at once"] * len(batch))
        )
        for reason, where in no_page.items():
            verdict.drop(where, reason, details if reason in PDF_REASONS else None)
        kept = verdict.drop(empty, "no_text").kept
        done, more = with_columns(batch, extracted_columns).drop_columns(PAGE.names), None
        if len(self.views) > 1:
            is_page = np.asarray(pages.is_valid()) | np.isin(np.arange(len(batch)), sorted(markup_rows))
            done = with_columns(done, {"view": pc.if_else(pa.array(is_page), "full", pa.scalar(None, pa.string()))})
            more = precise_views(done, precise, kept)
        counts = {name: int(np.count_nonzero(rows & kept)) for name, rows in noted.items()}
        counts |= {PAGES: len(batch) - pages.null_count, MARKUP: len(markup_rows), **pdfs}
        counts["ocr_microdollars"] = round(pdfs["needs_ocr_pages"] * self.ocr_price)
        return Applied(done, verdict, seconds, {name: count for name, count in counts.items() if count}, more)

    def alarms(self, source: str, documents: int, noted: Mapping[str, int]) -> list[str]:
        pages, markup_texts = noted.get(PAGES, 0), noted.get(MARKUP, 0)
        if markup_texts and not pages:
            return [
                f"{self.called}: {markup_texts:,} of {documents:,} texts of {source} were markup, and their "
                "text was extracted; name the field with"
                " `html:` in its reader, or read .html files with `html`"
            ]
        if documents and not pages:
            return [
                f"{self.called} had no page to extract from {source} ({documents:,} "
                f"document{'s' if documents > 1 else ''} without HTML); a field of"
                " pages is named with `html:` in its reader, and a source of texts joins after it (`join:`)"
            ]
        return []

    def read_pdf(self, data: bytes) -> Extracted:
        from gristmill.stages.extract.engines import pdf_page

        return pdf_page(data, self.form, Limits(self.max_pdf_seconds, self.max_pdf_pages), self.max_unread_share)

    def detail_of(self, pdf: PdfFacts, no_page: str | None) -> str:
        """More of why a PDF file is dropped, and what OCR would cost."""
        if no_page != NEEDS_OCR:
            return pdf.detail
        price = pdf.unread * self.ocr_price / 1e6
        return f"{pdf.unread:,} of {pdf.pages - pdf.left_out:,} pages have no text; OCR costs about ${price:.6f}"

    def read(self, page: Decoded, url: str | None) -> Extracted | None:
        """What the engine makes of one page; None where it is nested too deep for it."""
        if self.engine == OURS:
            from gristmill.stages.extract.gristmill import gristmill

            return gristmill(page.utf8, url, self.form, self.comments, self.views)
        from gristmill.stages.extract.engines import ENGINES, markup

        html = markup(page.text)
        return None if nests_deeper(html, self.max_nesting) else ENGINES[self.engine](html, url)


def pdf_facts(noted: Mapping[str, int]) -> list[tuple[str, str]]:
    """What a run met of PDF files, for the report."""
    needed, cost = noted.get("needs_ocr_pages", 0), noted.get("ocr_microdollars", 0) / 1e6
    left_out, heads = noted.get("pdf_pages_left_out", 0), noted.get("pdf_head_rows", 0)
    facts = [("files", f"{noted['pdf_files']:,}"), ("pages read", f"{noted.get('pdf_pages', 0):,}")]
    facts += [("pages beyond `max_pdf_pages`", f"{left_out:,}")] if left_out else []
    facts += [("rows taken for running heads", f"{heads:,}")] if heads else []
    facts.append(("pages that need OCR", f"{needed:,}"))
    if needed:
        facts.append(
            ("OCR of these, about", f"${cost:,.{2 if cost >= 1 else 4}f} (${1e6 * cost / needed:,.0f} a million pages)")
        )
    return facts


def precise_views(done: pa.RecordBatch, texts: list[str | None], kept: Array) -> Made | None:
    """The documents of precise views, of pages whose full view stays."""
    rows = [row for row, text in enumerate(texts) if text is not None and kept[row]]
    if not rows:
        return None
    views = done.take(pa.array(rows))
    columns = {
        "uid": pa.array(other_uids(views.column("uid").to_numpy())),
        "text": column_of([texts[row] for row in rows], pa.string()),
        "view": pa.array(["precise"] * len(rows)),
    }
    arrays = [columns.get(name, views.column(name)) for name in views.schema.names]
    return Made(pa.RecordBatch.from_arrays(arrays, schema=views.schema), np.array(rows, np.int64))


def merged(meta: str | None, page: Extracted) -> str | None:
    """The reader's `meta` with what the page says of itself; `published` is the page's date, since `date` is the
    crawl's."""
    facts = {
        "title": page.title,
        "author": page.author,
        "published": page.date,
        "language": page.language,
        "canonical": page.canonical,
        "kind": page.kind,
        "comments": page.comments,
    }
    stated: dict[str, Any] = {name: value for name, value in facts.items() if value is not None}
    if page.pdf is not None:
        stated |= page.pdf.meta
    return as_json(stated | (json.loads(meta) if meta else {})) if stated else meta
