"""A language model names edits of a document; they are checked, and applied by us."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field

from gristmill.stages.documents import column_of
from gristmill.stages.edits.editor import REFUSED, Editor, editor_figures, prefixed, refused_before
from gristmill.stages.edits.passages import passages_of_lines, size_of
from gristmill.stages.edits.program import BadProgram, Program, apply_program, read_program
from gristmill.stages.figures import Report, StageFigures
from gristmill.stages.stage import Applied, Signals, Verdict, with_columns

if TYPE_CHECKING:
    from gristmill.classifiers.llm.model import Answer, Request

NOTHING = Program(frozenset(), ())


class Refine(Editor):
    """Lines dropped and damage mended as a language model says, in a small language of edits; it never writes text.

    An answer that is no such program changes nothing, and is counted by its reason; so is a document of which more than
    `most_removed` would go. Too many refused answers stop the run.
    """

    most_removed: Annotated[
        float,
        Field(
            description="the share of a document's bytes that edits may take; beyond, it stays as it was", ge=0, le=1
        ),
    ] = 0.5

    needs: ClassVar[tuple[str, ...]] = ("uid", "text")
    answer_share: ClassVar[float] = 0.1

    @classmethod
    def figures(cls, report: Report) -> StageFigures | None:
        noted = report.get("noted", {})
        facts = [
            ("documents changed", f"{noted.get('refine_changed', 0):,}"),
            ("lines dropped", f"{noted.get('refine_lines_dropped', 0):,} of {noted.get('refine_lines', 0):,}"),
            ("strings replaced", f"{noted.get('refine_strings_replaced', 0):,}"),
            ("bytes removed", f"{noted.get('refine_bytes_removed', 0):,} of {noted.get('refine_bytes', 0):,}"),
            ("documents left, too much would go", f"{noted.get('refine_too_much_removed', 0):,}"),
        ]
        return editor_figures(report, "refine", "Edits by a language model", facts)

    def instructions(self) -> list[str]:
        from gristmill.stages.edits.prompts import REFINE

        return [REFINE]

    def requests_for(self, text: str) -> list[Request]:
        from gristmill.stages.edits.prompts import refine_request

        lines = shown_lines(text)
        return [
            refine_request([lines[row] for row in rows], self.max_tokens)
            for rows in passages_of_lines(lines, self.passage_tokens)
        ]

    def rewrite(self, batch: pa.RecordBatch) -> Applied:
        texts: list[str | None] = Signals(batch).column("text").to_pylist()
        noted: Counter[str] = Counter()
        requests: list[Request] = []
        spans: list[tuple[int, int]] = []
        for text in texts:
            asked = self.requests_for(text or "")
            spans.append((len(requests), len(requests) + len(asked)))
            requests += asked
        answers = self.ask(requests, noted)
        reasons: list[tuple[int, str, Answer]] = []
        empty = np.zeros(len(batch), bool)
        for row, (start, end) in enumerate(spans):
            text = texts[row]
            if text is None or start == end:
                continue
            after, told = self.edited(text, answers[start:end], noted)
            reasons += [(row, reason, answer) for reason, answer in zip(told, answers[start:end], strict=True)]
            empty[row] = not after.strip()
            texts[row] = after
        self.gate(batch, reasons)
        done = with_columns(batch, {"text": column_of(texts, pa.string())})
        verdict = Verdict.keep(len(batch)).drop(empty, "nothing_left")
        return Applied(done, verdict, noted=prefixed(noted, "refine"))

    def edited(self, text: str, answers: list[Answer], noted: Counter[str]) -> tuple[str, list[str]]:
        """The text afterwards, and of each passage why its answer was refused."""
        lines, reasons, after, programs = shown_lines(text), list[str](), list[str | None](), list[Program]()
        for rows, answer in zip(passages_of_lines(lines, self.passage_tokens), answers, strict=True):
            shown, program, reason = [lines[row] for row in rows], NOTHING, refused_before(answer)
            if not reason:
                try:
                    program = read_program(answer.text, shown)
                except BadProgram as error:
                    reason = error.reason
            reasons.append(reason)
            programs.append(program)
            after += apply_program(program, shown)
        noted.update(f"{REFUSED}{reason}" if reason else "accepted" for reason in reasons)
        before = size_of(text)
        noted.update(documents=1, lines=len(lines), bytes=before)
        if not any(program.changes for program in programs):
            return text, reasons
        made = joined(text, after)
        removed = before - size_of(made)
        if removed > self.most_removed * before:
            noted["too_much_removed"] += 1
            return text, reasons
        noted.update(
            changed=int(made != text),
            lines_dropped=sum(len(program.dropped) for program in programs),
            strings_replaced=sum(len(program.replaced) for program in programs),
            bytes_removed=max(0, removed),
        )
        return made, reasons


def shown_lines(text: str) -> list[str]:
    """Lines that a model is shown: those that are not blank."""
    return [line for line in text.split("\n") if line.strip()]


def joined(text: str, after: list[str | None]) -> str:
    """The text with its lines as they are now. Blank lines on both sides of what goes become one."""
    out: list[str] = []
    row, dropped = 0, False
    for line in text.split("\n"):
        if not line.strip():
            if dropped and (not out or not out[-1].strip()):
                continue
            out.append(line)
            continue
        now, row = after[row], row + 1
        if now is None or not now.strip():
            dropped = True
        else:
            out.append(now)
            dropped = False
    while dropped and out and not out[-1].strip():
        out.pop()
    return "\n".join(out)
