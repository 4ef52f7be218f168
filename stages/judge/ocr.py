"""Pages of PDF files without a text layer, or with noise for one, read by a vision model.

Pages are drawn in the child process that also reads PDF files, and asked for as judges ask: by vLLM, over HTTP, by
transformers; answers are kept (`cache_path`). Other pages of such a file keep their own text.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from gristmill.kernels.common.device import on_device
from gristmill.kernels.common.paths import PathRole
from gristmill.kernels.common.settings import PLACEMENT
from gristmill.stages.documents import PAGE, as_json, column_of
from gristmill.stages.figures import FactList, Report, StageFigures
from gristmill.stages.judge.back_end import BackEnd
from gristmill.stages.judge.cost import doubts
from gristmill.stages.judge.llm_score import answers_in, opened
from gristmill.stages.pdf.document import text_of
from gristmill.stages.pdf.files import Limits, Opened, Unreadable, read_pdf, render_pages
from gristmill.stages.read.payload import is_pdf
from gristmill.stages.stage import Applied, CannotRun, Rewrite, Signals, Verdict, with_columns

if TYPE_CHECKING:
    from gristmill.classifiers.llm.account import Account
    from gristmill.classifiers.llm.model import Answer, LanguageModel

PROMPT = (
    "Below is the picture of one page of a document. Return all of its text in reading order, as plain text with an "
    "empty line between paragraphs. Join words that a line's end cuts. Leave out running heads and page numbers. Return "
    "nothing else; nothing at all if the page has no text."
)
TOGETHER = 256  # pages asked for at once


@dataclass
class Job:
    """A file with pages to be read, and what came of them."""

    row: int
    data: bytes
    opened: Opened
    pages: list[int]
    facts: dict[str, str]
    texts: dict[int, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


class OcrBackEnd(BackEnd):
    """A vision model."""

    def unreached(self, pdf: bool) -> tuple[str, ...]:
        return tuple(name for name in super().unreached(pdf) if name != "PIL")

    def opened(self) -> LanguageModel:
        if self.endpoint or self.engine == "vllm":
            return super().opened()
        from gristmill.classifiers.llm.vision import VisionModel

        return VisionModel(self.model_path or self.model, self.revision or None, on_device(self.device))


class Ocr(OcrBackEnd, Rewrite):
    """Text of scanned pages of PDF files, by a vision model; stands before `extract`, which reads all other files.

    A file with such a page becomes a text here, of its other pages' own text too; others pass untouched. A file of
    which no page can be read is dropped. Too many failures stop the run.
    """

    prompt: Annotated[str, Field(description="what the model is told beside the picture", min_length=1)] = PROMPT
    longest_side: Annotated[int, Field(description="pixels of a page's longer side", ge=64, le=8192)] = 1288
    max_tokens: Annotated[int, Field(description="of a page's text", ge=1)] = 4096
    max_pdf_seconds: Annotated[float, Field(description="processor time to read, or to draw, a file", gt=0)] = 60.0
    max_pdf_pages: Annotated[int, Field(description="pages of a file that are read; `meta` counts others", ge=1)] = 2000
    prompt_price: Annotated[
        float, Field(description="dollars for a million tokens of prompts, for the report", ge=0)
    ] = 0.0
    completion_price: Annotated[float, Field(description="and of answers", ge=0)] = 0.0
    most_failures: Annotated[
        float,
        Field(description="the share of pages of a batch without an answer beyond which the run stops", ge=0, le=1),
    ] = 0.02
    cache_path: Annotated[
        str,
        PathRole(is_name=bool),
        Field(
            description="a folder in which answers are kept for other runs: one that is there, or a whole path",
            json_schema_extra=PLACEMENT,
        ),
    ] = ""

    needs: ClassVar[tuple[str, ...]] = ("html", "charset", "text", "meta")
    costly: ClassVar[bool] = True
    patience: ClassVar[float] = 86_400.0  # a batch may hold thousands of pages

    @model_validator(mode="after")
    def _can_show_pictures(self) -> Self:
        if self.form not in ("chat", "thinking"):
            raise ValueError(f"form: pictures are shown in a chat; {self.form} takes text alone")
        if self.cache_path and not (Path(self.cache_path).is_absolute() or Path(self.cache_path).is_dir()):
            raise ValueError(
                f"cache_path: there is no folder {self.cache_path} beside the recipe; make it, or give a whole path"
            )
        return self

    @property
    def limits(self) -> Limits:
        return Limits(self.max_pdf_seconds, self.max_pdf_pages)

    @classmethod
    def figures(cls, report: Report) -> StageFigures | None:
        noted = report.get("noted", {})
        asked = noted.get("ocr_pages", 0)
        if not asked:
            return None
        cost = noted.get("ocr_microdollars", 0) / 1e6
        facts = [
            ("files", f"{noted.get('ocr_files', 0):,}"),
            ("pages", f"{asked:,}, of which {noted.get('ocr_kept_pages', 0):,} were known from earlier runs"),
            ("pages without an answer", f"{noted.get('ocr_failed_pages', 0):,}"),
            ("answers cut at max_tokens", f"{noted.get('ocr_cut_pages', 0):,}"),
            ("tokens", f"{noted.get('ocr_prompt_tokens', 0):,} of prompts, {noted.get('ocr_tokens', 0):,} of answers"),
            *doubts(noted, "ocr_"),
            (
                "dollars",
                f"{cost:,.{2 if cost >= 1 else 4}f}, {1e6 * cost / asked:,.2f} a million pages"
                if cost
                else "no price was given",
            ),
        ]
        return StageFigures("OCR", [FactList("", facts)])

    def rewrite(self, batch: pa.RecordBatch) -> Applied:
        absent = [name for name in PAGE.names if name not in batch.schema.names]  # a source of texts
        if absent:
            return Applied(batch, Verdict.keep(len(batch)))
        jobs = self.read_all(batch)
        if not jobs:
            return Applied(batch, Verdict.keep(len(batch)))
        noted = Counter(ocr_files=len(jobs), ocr_pages=sum(len(job.pages) for job in jobs))
        for some in together(jobs):
            noted.update(self.read_pages(some))
        self.gate(jobs, noted)
        columns = Signals(batch)
        texts, metas = columns.column("text").to_pylist(), columns.column("meta").to_pylist()
        done, failed, details = np.zeros(len(batch), bool), np.zeros(len(batch), bool), [""] * len(batch)
        for job in jobs:
            done[job.row] = True
            made = text_of(job.opened, "text", job.texts)
            texts[job.row], metas[job.row] = made.text, self.meta(metas[job.row], job, made.heads)
            noted["pdf_head_rows"] += made.heads
            failed[job.row] = not job.texts and bool(job.failures)
            details[job.row] = job.failures[0] if job.failures else ""
        empty = done & np.array([not text for text in texts])
        left = pa.array(done)
        changed = {
            "text": column_of(texts, pa.string()),
            "meta": column_of(metas, pa.string()),
            **{name: without(columns.column(name), left) for name in PAGE.names},
        }
        verdict = Verdict.keep(len(batch)).drop(failed, "ocr_failed", details).drop(empty & ~failed, "no_text")
        return Applied(with_columns(batch, changed), verdict, noted={name: n for name, n in noted.items() if n})

    def read_all(self, batch: pa.RecordBatch) -> list[Job]:
        """Files with pages that need OCR. Of a file that cannot be read, `extract` says why."""
        jobs, column = [], Signals(batch).column("html")
        for row in range(len(batch)):
            data = column[row].as_py()
            if data is None or not is_pdf(data):
                continue
            try:
                opened = read_pdf(data, self.limits)
            except Unreadable:
                continue
            made = text_of(opened)
            if made.unread:
                jobs.append(Job(row, data, opened, made.unread, made.facts))
        return jobs

    def read_pages(self, some: Sequence[tuple[Job, list[int]]]) -> dict[str, int]:
        """Ask for pages; their texts go to their jobs, and counts come back."""
        from gristmill.classifiers.llm.account import ANSWERED_BY, Account, Prices
        from gristmill.classifiers.llm.model import Request

        asked: list[tuple[Job, int]] = []
        requests: list[Request] = []
        for job, pages in some:
            try:
                pictures = render_pages(job.data, pages, self.longest_side, self.limits)
            except Unreadable as error:
                pictures = {}
                job.failures += [f"it cannot be drawn: {error}"]
            for page in pages:
                if page in pictures:
                    asked.append((job, page))
                    requests.append(Request(self.prompt, max_tokens=self.max_tokens, images=(pictures[page],)))
                elif not job.failures:
                    job.failures.append(f"page {page + 1} cannot be drawn")
        account, cut = Account(), 0
        for (job, page), answer in zip(asked, self.answers(requests, account), strict=True):
            if answer.failure:
                job.failures.append(f"page {page + 1}: {answer.failure}: {answer.detail}"[:300])
            else:
                job.texts[page] = answer.text
                cut += answer.finish == "length"
        return {
            "ocr_kept_pages": account.kept,
            "ocr_cut_pages": cut,
            "ocr_prompt_tokens": account.prompt_tokens,
            "ocr_tokens": account.completion_tokens,
            "ocr_tokens_guessed": account.guessed,
            **{f"ocr_{ANSWERED_BY}{name}": count for name, count in sorted(account.models.items())},
            "ocr_microdollars": round(1e6 * account.cost(Prices(self.prompt_price, self.completion_price))),
        }

    def answers(self, requests: Sequence[Any], account: Account) -> list[Answer]:
        from gristmill.classifiers.llm.cache import answer_all
        from gristmill.classifiers.llm.model import LanguageModelError

        answers: dict[int, Answer] = {}
        if not requests:
            return []
        try:
            cache = answers_in(self.cache_path) if self.cache_path else None
            answers.update(answer_all(self.model_here(), requests, account, cache))
        except LanguageModelError as error:
            raise CannotRun(str(error)) from error
        except Exception as error:  # of an engine or a full disk no document is to be blamed
            raise CannotRun(f"{type(error).__name__}: {error}") from error
        return [answers[row] for row in range(len(requests))]

    def model_here(self) -> LanguageModel:
        return opened(OcrBackEnd(**{name: getattr(self, name) for name in BackEnd.model_fields}))

    def gate(self, jobs: Sequence[Job], noted: Counter[str]) -> None:
        """One page without an answer is a page less; many are a model or a server that does not do its work."""
        failed = noted["ocr_failed_pages"] = sum(len(job.pages) - len(job.texts) for job in jobs)
        if failed > max(1.0, self.most_failures * noted["ocr_pages"]) or (failed and not self.most_failures):
            examples = "".join(f"\n  {job.failures[0]}" for job in [job for job in jobs if job.failures][:3])
            raise CannotRun(
                f"{failed:,} of {noted['ocr_pages']:,} pages have no answer, more than {self.most_failures:.1%}. "
                f"Some of them:{examples}"
            )

    def meta(self, meta: str | None, job: Job, heads: int) -> str:
        """What the reader knew wins over what the file says."""
        facts: dict[str, Any] = {**job.facts, "pages": job.opened.page_count, "ocr_pages": len(job.texts)}
        left_out, failed = job.opened.page_count - len(job.opened.pages), len(job.pages) - len(job.texts)
        facts |= {"pages_left_out": left_out} if left_out else {}
        facts |= {"pages_without_text": failed} if failed else {}
        facts |= {"running_heads": heads} if heads else {}
        return as_json(facts | (json.loads(meta) if meta else {}))


def together(jobs: Sequence[Job]) -> Iterator[list[tuple[Job, list[int]]]]:
    """Pages of one or several files, a bounded number at a time."""
    some: list[tuple[Job, list[int]]] = []
    held = 0
    for job in jobs:
        for start in range(0, len(job.pages), TOGETHER):
            pages = job.pages[start : start + TOGETHER]
            if some and held + len(pages) > TOGETHER:
                yield some
                some, held = [], 0
            some.append((job, pages))
            held += len(pages)
    if some:
        yield some


def without(column: pa.Array, rows: pa.Array) -> pa.Array:
    """A column that is null in some rows."""
    return pc.if_else(rows, pa.scalar(None, column.type), column)
