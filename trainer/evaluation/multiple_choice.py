"""Multiple choice by log-probability: which of the choices does the model find likeliest after the context?

A line of JSON a question, all of one file in UTF-8:

    {"id": "arc-1", "domain": "science", "context": "Question: What do plants breathe in?\\nAnswer:",
     "choices": [" carbon dioxide", " iron"], "answer": 0}

Context and choice are put together as they stand, so that choices say themselves where a space is; `answer` counts from
0. Tokens are those of both together, cut where the context's own end, with spaces at the context's end given to the
choice (as in lm-evaluation-harness). Where the two grow together in one token and nothing would be left of the choice,
which the harness takes for certain, the cut is where the tokens begin to differ.

A context that is too long loses its beginning. `before`, and what a first token without anything before it costs: as in
`gristmill.trainer.evaluation.evaluate`.
"""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as checked_dataclass
from tokenizers import Tokenizer

from gristmill.kernels.base.types import Array
from gristmill.trainer.checked import CHECKED, from_json
from gristmill.trainer.evaluation.scoring import (
    STEP_TOKENS,
    Continuation,
    plain_tokenizer,
    score_continuations,
    tokenise,
)
from gristmill.trainer.model.model import Decoder
from gristmill.trainer.parallel.ranks import ALONE, RankGroup

By = Literal["raw", "byte", "token"]


class BadQuestions(ValueError):
    """A file of questions that cannot be read, or a question that cannot be asked."""


@checked_dataclass(frozen=True, config=CHECKED)
class Question:
    id: str
    domain: str
    context: str
    choices: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=2)]
    answer: Annotated[int, Field(ge=0, strict=True)]

    def __post_init__(self) -> None:
        if len(set(self.choices)) < len(self.choices):
            raise ValueError("two of the choices are the same text")
        if self.answer >= len(self.choices):
            raise ValueError(f"answer must be a number from 0 to {len(self.choices) - 1}, not {self.answer}")


def read_questions(path: Path) -> list[Question]:
    """Empty lines are passed over."""
    questions: list[Question] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(path.read_bytes().removeprefix(codecs.BOM_UTF8).split(b"\n"), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            facts = json.loads(line.decode("utf-8"))
            if not isinstance(facts, dict):
                raise ValueError("a question is an object with id, domain, context, choices and answer")
            question = from_json(Question, facts, "question")
        except UnicodeDecodeError as error:
            raise BadQuestions(f"{where}: not UTF-8 ({error.reason} at byte {error.start:,})") from None
        except RecursionError:
            raise BadQuestions(f"{where}: not a question, but lists inside of lists") from None
        except json.JSONDecodeError as error:
            raise BadQuestions(f"{where}: not JSON ({error.msg} at character {error.pos:,})") from None
        except ValueError as error:
            raise BadQuestions(f"{where}: {error}") from None
        if question.id in seen:
            raise BadQuestions(f"{where}: id {question.id!r} is that of line {seen[question.id]:,} too")
        seen[question.id] = number
        questions.append(question)
    if not questions:
        raise BadQuestions(f"{path}: there are no questions")
    return questions


@dataclass(frozen=True)
class Answers:
    """By question: of each choice the log-probability (nats), the bytes of UTF-8 and the tokens."""

    questions: tuple[Question, ...]
    log_probs: tuple[Array, ...]
    bytes: tuple[Array, ...]
    tokens: tuple[Array, ...]

    def correct(self, by: By = "raw") -> Array:
        """Whether the right choice is the likeliest, by question; of the log-probability itself, per byte, or per
        token. The first of equal ones counts."""
        sizes: dict[By, Sequence[Array]] = {
            "raw": [np.ones(1)] * len(self.questions),
            "byte": self.bytes,
            "token": self.tokens,
        }
        each = zip(self.questions, self.log_probs, sizes[by], strict=True)
        return np.array(
            [int(np.argmax(log_probs / size)) == question.answer for question, log_probs, size in each], bool
        )

    def accuracy(self, by: By = "raw") -> float:
        return float(self.correct(by).mean())

    @property
    def answer_bits(self) -> Array:
        """Of the right choice, by question, float64: a smoother measure than whether it won."""
        nats = [-log_probs[question.answer] for question, log_probs in zip(self.questions, self.log_probs, strict=True)]
        return np.array(nats, np.float64) / math.log(2)

    @property
    def answer_bytes(self) -> Array:
        return np.array(
            [sizes[question.answer] for question, sizes in zip(self.questions, self.bytes, strict=True)], np.int64
        )

    def bits_per_byte(self) -> float:
        """Of the right answers."""
        return float(self.answer_bits.sum() / self.answer_bytes.sum())


def answer_questions(
    model: Decoder,
    questions: Sequence[Question],
    tokenizer: Tokenizer,
    row_length: int,
    device: torch.device | str,
    *,
    before: int | None = None,
    step_tokens: int = STEP_TOKENS,
    ranks: RankGroup = ALONE,
) -> Answers:
    """All choices of all questions, packed together; `ranks` share the work, and all have the whole of it
    (`gristmill.trainer.evaluation.scoring.score_continuations`)."""
    encoded = encode_questions(questions, tokenizer, row_length, before)
    log_probs = -_nats(model, encoded, device, step_tokens, ranks)
    cuts = np.cumsum([len(question.choices) for question in questions])[:-1]
    sizes = np.array([len(choice.encode()) for question in questions for choice in question.choices], np.int64)
    tokens = np.array([pair.asked for pair in encoded], np.int64)
    return Answers(tuple(questions), *(tuple(np.split(array, cuts)) for array in (log_probs, sizes, tokens)))


# --- pairs of a context and what goes on from it ---------------------------------------------------------------------


class Pair(NamedTuple):
    """A text's last `asked` tokens, given those before; the first of all may have none before it."""

    tokens: Array
    asked: int


def encode_questions(
    questions: Sequence[Question], tokenizer: Tokenizer, row_length: int, before: int | None = None
) -> list[Pair]:
    """All choices of all questions; BadQuestions names one that cannot be asked."""
    asked_of = [(question, choice) for question in questions for choice in question.choices]
    plain = plain_tokenizer(tokenizer)
    wholes = tokenise([question.context + choice for question, choice in asked_of], plain)
    distinct = list(dict.fromkeys(question.context.rstrip() for question in questions))
    of_context = dict(zip(distinct, tokenise(distinct, plain), strict=True))
    opening = np.array([] if before is None else [before], np.int64)
    encoded = []
    for (question, choice), whole in zip(asked_of, wholes, strict=True):
        asked = len(whole) - _context_tokens(of_context[question.context.rstrip()], whole)
        named = f"question {question.id!r}: choice {_excerpt(choice)}"
        if asked < 1:
            raise BadQuestions(f"{named} adds no token to its context")
        if asked > row_length:
            raise BadQuestions(
                f"{named} has {asked:,} tokens, more than the {row_length:,} that the model reads at once"
            )
        encoded.append(Pair(np.concatenate([opening, whole])[-(row_length + 1) :], asked))
    return encoded


def _excerpt(choice: str) -> str:
    return repr(choice if len(choice) <= 60 else choice[:57] + "...")


def _context_tokens(context: Array, whole: Array) -> int:
    """How many tokens of the whole are the context's."""
    if len(context) < len(whole):
        return len(context)
    unlike = np.flatnonzero(context[: len(whole)] != whole)
    return int(unlike[0]) if len(unlike) else len(whole)


def _nats(
    model: Decoder, pairs: Sequence[Pair], device: torch.device | str, step_tokens: int, ranks: RankGroup
) -> Array:
    """-log p of what is asked for. A first token is asked for, and nothing precedes it: it costs as much as any."""
    nats = np.array([math.log(model.shape.vocabulary) if pair.asked == len(pair.tokens) else 0.0 for pair in pairs])
    some = [i for i, pair in enumerate(pairs) if len(pair.tokens) > 1]
    pieces = [Continuation(pairs[i].tokens, max(1, len(pairs[i].tokens) - pairs[i].asked)) for i in some]
    nats[some] += score_continuations(model, pieces, device, step_tokens, ranks)
    return nats
