"""What is asked of a language model for one document, and its mark: by a rubric of the user's own words and labels, or
by a MEDU description.

Marks lie between 0 and 1. An answer that cannot be read has no mark, and the kind of its failure is said; none is
guessed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import numpy as np

from gristmill.classifiers.llm.last_score import last_score
from gristmill.classifiers.llm.model import Answer, Request
from gristmill.classifiers.rating import prompts
from gristmill.classifiers.rating.reading import MARKS, UNREAD, label_of, probabilities_of

Reading = Literal["at_once", "reasoned"]

LABEL = re.compile(r"[^\W_](?:[\w -]{0,38}\w)?")
LONGEST_RUBRIC = 20_000  # characters; it stands in every prompt


class Asking(Protocol):
    """How a document is put to a model, and how its answer is read."""

    def request(self, document: str) -> Request: ...

    def mark(self, answer: Answer) -> tuple[float | None, str]:
        """The mark and no failure, or none and the kind of failure."""
        ...


@dataclass(frozen=True)
class ByDescription:
    """As MEDU asks (`classifiers/rating/medu.py`), by a description that it made: the same prompts, so that kept
    answers serve both."""

    description: str
    reading: Reading
    max_tokens: int

    def request(self, document: str) -> Request:
        if self.reading == "at_once":
            return prompts.at_once(self.description, document)
        return prompts.reasoned(self.description, document, self.max_tokens)

    def mark(self, answer: Answer) -> tuple[float | None, str]:
        if self.reading == "reasoned":
            label, failure = label_of(answer)
            return (None, failure) if label == UNREAD else (float(MARKS[label]), "")
        probabilities, failure = probabilities_of(answer)
        return (None, failure) if probabilities is None else (float(probabilities @ MARKS), "")


@dataclass(frozen=True)
class ByRubric:
    """By a rubric, whose labels stand for marks. At once, the mark is the expected one of all labels' probabilities."""

    rubric: str
    marks: Mapping[str, float]
    reading: Reading
    max_tokens: int

    def __post_init__(self) -> None:
        if not self.rubric.strip() or len(self.rubric) > LONGEST_RUBRIC:
            raise ValueError(f"a rubric has 1 to {LONGEST_RUBRIC:,} characters")
        if len({label.lower() for label in self.marks}) < max(len(self.marks), 2):
            raise ValueError("two or more labels are needed, and they must differ in more than capitals")
        for label, mark in self.marks.items():
            if not LABEL.fullmatch(label):
                raise ValueError(
                    f"the label {label!r}: expected up to 40 letters and digits, with spaces or hyphens between"
                )
            if not 0 <= mark <= 1:
                raise ValueError(f"the label {label!r} has the mark {mark:g}; marks lie between 0 and 1")

    def request(self, document: str) -> Request:
        fenced = prompts.fenced(document, "DOCUMENT")
        if self.reading == "at_once":
            own = f"{fenced}\nThe document has ended. Your mark, one word:\n"
            return Request(own, self._shared, prompts.SCORE, max_tokens=1, labels=tuple(self.marks))
        own = (
            f"{fenced}\nThe document has ended. Judge it by what was asked above, "
            f"and end with `{prompts.SCORE}` and your mark.\n"
        )
        return Request(own, self._shared, max_tokens=self.max_tokens)

    def mark(self, answer: Answer) -> tuple[float | None, str]:
        if answer.failure:
            return None, answer.failure
        return self._reasoned(answer) if self.reading == "reasoned" else self._expected(answer)

    @cached_property
    def _shared(self) -> str:
        words = ", ".join(self.marks)
        last = (
            f"Answer with the mark alone: one of {words}.\n\n"
            if self.reading == "at_once"
            else "First describe the document in a few sentences and weigh what was asked. "
            "Then give the mark on a last line of its own, "
            f"written as `{prompts.SCORE}` and one of {words}.\n\n"
        )
        asked = f"You judge one document at a time. What is asked:\n\n{self.rubric.strip()}\n\n"
        return f"{asked}Your mark is one of: {words}.\n\n{prompts.GUARD}{last}"

    def _reasoned(self, answer: Answer) -> tuple[float | None, str]:
        label, failure = last_score(answer, tuple(self.marks))
        return (None, failure) if failure else (self.marks[label], "")

    def _expected(self, answer: Answer) -> tuple[float | None, str]:
        logs = answer.logprobs
        if logs is None or len(logs) != len(self.marks) or not all(math.isfinite(log) for log in logs):
            return None, "no_labels"
        weights = np.exp(np.array(logs) - max(logs))
        return float(weights @ np.array(list(self.marks.values())) / weights.sum()), ""
