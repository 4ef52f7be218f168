"""Documents said again by a language model, in styles that models learn well from; what is not faithful is refused."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator

from gristmill.stages.documents import as_json, column_of
from gristmill.stages.edits.editor import REFUSED, Editor, editor_figures, prefixed, refused_before
from gristmill.stages.edits.faithful import Findings, check
from gristmill.stages.edits.made import MADE_FROM, made_uid
from gristmill.stages.edits.passages import passages_of, size_of
from gristmill.stages.edits.prompts import STYLES, StyleName, rephrase_request
from gristmill.stages.figures import Report, StageFigures
from gristmill.stages.stage import Applied, CannotRun, Made, Signals, Verdict, with_columns

if TYPE_CHECKING:
    from gristmill.classifiers.llm.model import Answer, Request


class Written(NamedTuple):
    """A document that was made, of the row that it was made of."""

    row: int
    style: StyleName
    text: str
    accepted: int
    passages: int


class Rephrase(Editor):
    """Add documents that a language model writes of those that come, one for each style; the originals stay, or go.

    Each passage's answer is checked against the passage (chapter Editing and rephrasing); a refused one is left out and
    counted. A document is made where at least `least_accepted` of its passages are. Signals `synthetic`, `style` and
    `made_from` (the original's uid) tell them apart; `meta` has the prompt. Synthetic documents that come pass as they
    are.
    """

    styles: list[StyleName] = Field(
        default=["question_answer"], description="what is written of each document", min_length=1
    )
    originals: Annotated[
        Literal["keep", "drop"],
        Field(description="drop: those of which a document was made in every style go, as `rephrased`"),
    ] = "keep"
    least_accepted: Annotated[
        float, Field(description="the share of a document's passages that must pass, for it to be made", ge=0, le=1)
    ] = 0.5
    negations: Annotated[
        Literal["count", "refuse"],
        Field(description="what happens where a sentence denies what the source says; the check is a guess"),
    ] = "count"

    needs: ClassVar[tuple[str, ...]] = ("uid", "text", "meta")
    adds: ClassVar[tuple[str, ...]] = ("synthetic", "style", MADE_FROM)
    expect_drops: ClassVar[float] = 1.0  # with `originals: drop`

    @field_validator("styles")
    @classmethod
    def _each_once(cls, styles: list[StyleName]) -> list[StyleName]:
        if len(set(styles)) < len(styles):
            raise ValueError("a style may be named once")
        return styles

    @classmethod
    def figures(cls, report: Report) -> StageFigures | None:
        noted = report.get("noted", {})
        before, made = noted.get("rephrase_bytes", 0), noted.get("rephrase_bytes_made", 0)
        facts = [
            ("documents made", f"{noted.get('rephrase_made', 0):,}"),
            ("too few passages for a document", f"{noted.get('rephrase_too_few_passages', 0):,}"),
            ("bytes", f"{made:,} written of {before:,}; {made / max(1, made + before):.1%} of both"),
            ("sentences with a negation changed", f"{noted.get('rephrase_negations_changed', 0):,}, a guess"),
            ("passages without a check of names", f"{noted.get('rephrase_names_unchecked', 0):,}"),
        ]
        return editor_figures(report, "rephrase", "Documents written by a language model", facts)

    def instructions(self) -> list[str]:
        return [STYLES[style].instructions for style in self.styles]

    def requests_for(self, text: str) -> list[Request]:
        passages = passages_of(text, self.passage_tokens)
        return [
            rephrase_request(STYLES[style], passage, self.max_tokens) for style in self.styles for passage in passages
        ]

    def rewrite(self, batch: pa.RecordBatch) -> Applied:
        if "uid" not in batch.schema.names:
            raise CannotRun("the documents have no `uid`, from which those that are made have theirs")
        batch = with_origin(batch)
        texts: list[str | None] = Signals(batch).column("text").to_pylist()
        synthetic = np.asarray(flags(batch.column("synthetic")))
        noted: Counter[str] = Counter()
        requests: list[Request] = []
        spans: list[tuple[int, int]] = []
        for row, text in enumerate(texts):
            asked = self.requests_for(text or "") if not synthetic[row] else []
            spans.append((len(requests), len(requests) + len(asked)))
            requests += asked
        answers = self.ask(requests, noted)
        written: list[Written] = []
        reasons: list[tuple[int, str, Answer]] = []
        for row, (start, end) in enumerate(spans):
            if start == end:
                continue
            text = texts[row] or ""
            noted.update(documents=1, bytes=size_of(text))
            passages = passages_of(text, self.passage_tokens)
            for place, style in enumerate(self.styles):
                first = start + place * len(passages)
                some = answers[first : first + len(passages)]
                document, told = self.written(row, style, passages, some, noted)
                written += [document] if document else []
                reasons += [(row, reason, answer) for reason, answer in zip(told, some, strict=True)]
        self.gate(batch, reasons)
        verdict = Verdict.keep(len(batch))
        if self.originals == "drop":
            counts = Counter(document.row for document in written)
            verdict.drop(np.array([counts[row] == len(self.styles) for row in range(len(batch))], bool), "rephrased")
        noted.update(made=len(written), bytes_made=sum(size_of(document.text) for document in written))
        made = self.made_of(batch, written) if written else None
        return Applied(batch, verdict, noted=prefixed(noted, "rephrase"), made=made)

    def written(
        self, row: int, style: StyleName, passages: Sequence[str], answers: Sequence[Answer], noted: Counter[str]
    ) -> tuple[Written | None, list[str]]:
        """The document of a style, if enough passages passed; and why each of the others did not."""
        texts, reasons, rules = list[str](), list[str](), STYLES[style]
        for passage, answer in zip(passages, answers, strict=True):
            reason, found = refused_before(answer), Findings()
            if not reason:
                found = check(passage, answer.text, rules.bounds, rules.instructions, self.negations == "refuse")
                reason = found.reason
            reasons.append(reason)
            noted[f"{REFUSED}{reason}" if reason else "accepted"] += 1
            noted["negations_changed"] += found.negations
            noted["names_unchecked"] += found.names_unchecked
            texts += [] if reason else [answer.text.strip()]
        if not texts or len(texts) < self.least_accepted * len(passages):
            noted["too_few_passages"] += 1
            return None, reasons
        return Written(row, style, "\n\n".join(texts), len(texts), len(passages)), reasons

    def made_of(self, batch: pa.RecordBatch, written: Sequence[Written]) -> Made:
        rows = [document.row for document in written]
        copies = batch.take(pa.array(rows))
        uids: list[int] = copies.column("uid").to_pylist()
        columns: dict[str, pa.Array] = {
            "uid": pa.array(
                [made_uid(uid, self.called, document.style) for uid, document in zip(uids, written, strict=True)],
                copies.schema.field("uid").type,
            ),
            "text": column_of([document.text for document in written], copies.schema.field("text").type),
            "synthetic": true_as(copies.schema.field("synthetic").type, len(written)),
            "style": pa.array([document.style for document in written], pa.string()),
            MADE_FROM: pa.array([f"{uid:016x}" for uid in uids], pa.string()),
        }
        if "meta" in copies.schema.names:
            metas = zip(copies.column("meta").to_pylist(), uids, written, strict=True)
            columns["meta"] = column_of([self.meta(*each) for each in metas], copies.schema.field("meta").type)
        arrays = [columns.get(name, copies.column(name)) for name in copies.schema.names]
        return Made(pa.RecordBatch.from_arrays(arrays, schema=copies.schema), np.array(rows, np.int64))

    def meta(self, meta: str | None, uid: int, document: Written) -> str:
        """Beside what was known of the original: by which model and prompt, and how much of it passed."""
        facts: dict[str, Any] = {
            "from": f"{uid:016x}",
            "style": document.style,
            "prompt": f"{document.style}/{STYLES[document.style].version}",
            "model": self.model or self.model_path,
            "revision": self.revision,
            "passages": [document.accepted, document.passages],
        }
        return as_json((json.loads(meta) if meta else {}) | {"rephrased": {k: v for k, v in facts.items() if v != ""}})


def with_origin(batch: pa.RecordBatch) -> pa.RecordBatch:
    """With the columns that tell what a model wrote; those that are there stay."""
    columns = {
        "synthetic": pa.array([False] * len(batch), pa.bool_()),
        "style": pa.nulls(len(batch), pa.string()),
        MADE_FROM: pa.nulls(len(batch), pa.string()),
    }
    return with_columns(batch, {name: column for name, column in columns.items() if name not in batch.schema.names})


def flags(column: pa.Array) -> pa.Array:
    """Booleans of a source's own column, which may hold numbers or words."""
    if pa.types.is_boolean(column.type):
        return pc.fill_null(column, False)
    words = pa.array(["true", "1", "1.0", "yes"])
    return pc.is_in(pc.utf8_lower(pc.coalesce(column.cast(pa.string()), pa.scalar(""))), value_set=words)


def true_as(kind: pa.DataType, rows: int) -> pa.Array:
    return pa.array(["true"] * rows, kind) if pa.types.is_string(kind) else pa.array([True] * rows).cast(kind)
