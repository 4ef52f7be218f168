"""Filters, formatters and extractors of DataTrove as a stage, with the verdicts and texts that DataTrove gives alone
(docs/coming_from.md).

A block sees one document at a time, whatever its `batch_size`, and nothing of those before it: random numbers follow
from the document's uid, PIIFormatter begins with its first replacement, Trafilatura's deduplication forgets other
pages. A block whose answers follow from earlier documents is refused (`gristmill.stages.state`).
"""

from __future__ import annotations

import inspect
import json
import re
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from gristmill.kernels.common.extras import install
from gristmill.stages.documents import PAGE, as_json, column_of
from gristmill.stages.others.blocks import BlockAddress, Draws, Library, OtherBlock, Result, drop_by_result
from gristmill.stages.read.charset import decode_page
from gristmill.stages.read.payload import is_pdf
from gristmill.stages.stage import Applied, Rewrite, Signals, Verdict, with_columns

if TYPE_CHECKING:
    from datatrove.data import Document

DATATROVE = Library(
    "DataTrove",
    "datatrove",
    install("datatrove"),
    (
        "datatrove.pipeline.filters.base_filter:BaseFilter",
        "datatrove.pipeline.formatters.base:BaseFormatter",
        "datatrove.pipeline.extractors.base:BaseExtractor",
    ),
)
WORDS = "split_into_words"  # what a block calls that needs the words of a language
# Columns that a block finds in a document's metadata, beside what is in `meta`.
METADATA = ("url", "date", "language", "language_score")


class Datatrove(OtherBlock, Rewrite):
    """Run a block of DataTrove: a filter, a formatter or an extractor, yours too if it extends one of these.

    Its reasons are the stage's; what it adds to a document's metadata is put into `meta`. A document on which it raises
    is quarantined. An extractor reads pages as `extract` does, and no PDF files; its `timeout` is not applied, the
    run's own is.
    """

    block: Annotated[
        BlockAddress, Field(description="its module and class: datatrove.pipeline.filters:GopherQualityFilter")
    ]

    library: ClassVar[Library] = DATATROVE

    @model_validator(mode="after")
    def _has_its_packages(self) -> Self:
        if missing := packages_missing(self.kind, self.settings):
            name = self.block.rpartition(":")[2]
            raise ValueError(f"{name} needs packages that are not installed here: pip install {' '.join(missing)}")
        return self

    @property
    def address(self) -> str:
        return self.block

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]  # what it reads follows from its block
        return ("uid", "id", "text", "meta", *METADATA, *(PAGE.names if self.does is run_extractor else ()))

    @property
    def does(self) -> Callable[[Any, Document], Result]:
        return next(WORK[base.__name__] for base in self.kind.__mro__ if base.__name__ in WORK)

    def rewrite(self, batch: pa.RecordBatch) -> Applied:
        block, work = self.built(), self.does
        rows = Rows(batch, pages=work is run_extractor)
        results: dict[int, Result] = {}
        seconds = np.zeros(len(batch))
        with Draws(block, self.model_dump_json(include={"block", "settings"})).apart() as draws:
            for row in rows.work:
                begun = time.perf_counter()
                document = rows.document(row)
                draws.seed(rows.identity(row))
                forget(block)
                with self.looking_at(rows.identity(row)):
                    results[row] = work(block, document)
                rows.take(row, document)
                seconds[row] = time.perf_counter() - begun
        forget(block)
        verdict = Verdict.keep(len(batch)).drop(rows.without_text, "no_text_in_source")
        return Applied(rows.answer(), drop_by_result(verdict, results, self.kind), seconds)


def packages_missing(kind: type, settings: Mapping[str, Any]) -> list[str]:
    """What a block needs and is not here, by the names that pip takes: the packages that its class and those above it
    declare, and those of the words of its language, which DataTrove asks for with the first document."""
    from datatrove.utils import word_tokenizers
    from datatrove.utils._import_utils import check_required_dependencies

    declared = [each for base in kind.__mro__ for each in getattr(base, "_requires_dependencies", [])]
    refusals = [refusal_of(lambda: check_required_dependencies(kind.__name__, declared))]
    if any(WORDS in method.__code__.co_names for method in vars(kind).values() if inspect.isfunction(method)):
        argument = inspect.signature(vars(kind).get("__init__", kind)).parameters.get("language")
        language = settings.get("language", argument.default if argument else None)
        if isinstance(language, str):
            refusals.append(refusal_of(lambda: word_tokenizers.load_word_tokenizer(language)))
    return sorted({name for refused in refusals for name in refused})


def refusal_of(action: Callable[[], object]) -> list[str]:
    """The packages that DataTrove says are to be installed for it."""
    try:
        action()
    except ImportError as error:
        named = re.search(r"`pip install ([^`]+)`", str(error))
        return named[1].split() if named else [str(error.name or error)]
    except ValueError:  # a language that it does not know, which it says better itself
        pass
    return []


class Rows:
    """A batch as documents of DataTrove, one at a time, and the columns that come back."""

    def __init__(self, batch: pa.RecordBatch, pages: bool) -> None:
        self.batch = batch
        there = Signals(batch)
        self.columns: dict[str, list[Any]] = {
            name: there.column(name).to_pylist() if name in batch.schema.names else [None] * len(batch)
            for name in ("uid", "id", "text", "meta", "charset", *METADATA)
        }
        self.texts, self.metas = self.columns["text"], self.columns["meta"]
        self.html = there.column("html") if pages and "html" in batch.schema.names else None
        payloads = [None] * len(batch) if self.html is None else self.html.to_pylist()
        is_page = np.array([payload is not None and not is_pdf(payload) for payload in payloads], bool)
        self.pages = pages
        self.work: list[int] = np.flatnonzero(is_page).tolist() if pages else list(range(len(batch)))
        self.without_text = ~is_page & np.array([pages and not text for text in self.texts], bool)

    def identity(self, row: int) -> object:
        """What tells a document from others: a table without uids has texts."""
        uid = self.columns["uid"][row]
        return self.texts[row] if uid is None else uid

    def document(self, row: int) -> Document:
        from datatrove.data import Document

        text = self.texts[row] or ""
        if self.html is not None:
            text = decode_page(self.html[row].as_py(), self.columns["charset"][row]).text
        return Document(text=text, id=str(self.columns["id"][row] or self.identity(row)), metadata=self.metadata(row))

    def metadata(self, row: int) -> dict[str, Any]:
        meta = self.metas[row]
        known = {name: self.columns[name][row] for name in METADATA}
        return (json.loads(meta) if meta else {}) | {name: value for name, value in known.items() if value is not None}

    def take(self, row: int, document: Document) -> None:
        """What a block made of a document."""
        if not isinstance(document.text, str):
            raise TypeError(f"the block left {type(document.text).__name__} as the text")
        if document.text or self.texts[row] is not None or self.html is not None:
            self.texts[row] = document.text
        given, meta = self.metadata(row), self.metas[row]
        added = {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in document.metadata.items()
            if name not in given or not alike(value, given[name])
        }
        if added:
            self.metas[row] = as_json((json.loads(meta) if meta else {}) | added)

    def answer(self) -> pa.RecordBatch:
        kind = self.batch.schema.field("text").type
        texts = column_of(self.texts, kind if pa.types.is_large_string(kind) else pa.string())
        done = with_columns(self.batch, {"text": texts, "meta": column_of(self.metas, pa.string())})
        return done.drop_columns([name for name in PAGE.names if name in done.schema.names]) if self.pages else done


def alike(value: Any, given: Any) -> bool:
    """Is what stands in the metadata still what was given? Texts, which may be long, are not written as JSON for it."""
    return bool(value == given) if isinstance(value, str) else as_json({"": value}) == as_json({"": given})


def run_filter(block: Any, document: Document) -> Result:
    [answer] = block.filter_batch([document])
    return answer if isinstance(answer, tuple) else (answer, None)


def run_formatter(block: Any, document: Document) -> Result:
    document.text = block.format(document.text)
    return True, None


def run_extractor(block: Any, document: Document) -> Result:
    document.text = block.extract(document.text) or ""
    return bool(document.text), "no_text"


WORK: dict[str, Callable[[Any, Document], Result]] = {
    "BaseFilter": run_filter,
    "BaseFormatter": run_formatter,
    "BaseExtractor": run_extractor,
}


def forget(block: Any) -> None:
    """Blocks of DataTrove that remember documents: where PIIFormatter is in its round of replacements, and what
    Trafilatura has seen on other pages."""
    for part in vars(block).values():
        if type(part).__name__ == "PIIReplacer":
            part._replace_i = 0
    seen = getattr(sys.modules.get("trafilatura.deduplication"), "LRU_TEST", None)
    if seen is not None and type(block).__name__ == "Trafilatura":
        seen.clear()
