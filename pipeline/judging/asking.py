"""Asking a language model about many texts: what plans of that share, and answers that are counted as they come and
kept, so that a failure costs none."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field

from gristmill.classifiers.llm.account import Prices
from gristmill.classifiers.llm.answers import AnswerFolder
from gristmill.classifiers.llm.cache import AnswerCache
from gristmill.classifiers.llm.model import Answer, LanguageModelError
from gristmill.classifiers.rating.medu import MeduError
from gristmill.kernels.common.settings import Settings
from gristmill.pipeline.errors import RunFailed

Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class PricesOfTokens(Settings):
    """Of a million tokens, in any currency."""

    prompt: Price
    answer: Price


class AskingPlan(Settings):
    """What plans of asking a language model about texts have in common."""

    description: str | None = None
    text: Annotated[str, Field(description="the column with the text")] = "text"
    cut: Annotated[int, Field(ge=1, description="tokens of each text that the model sees")] = 512
    most_failures: Annotated[float, Field(ge=0, le=1, description="highest share of unreadable answers")] = 0.02
    seed: Annotated[int, Field(ge=0)] = 0
    prices: PricesOfTokens | None = None

    @property
    def costs(self) -> Prices | None:
        return Prices(self.prices.prompt, self.prices.answer) if self.prices else None


class CountedAnswers(AnswerFolder):
    """Kept answers; `seen` is told how many have come."""

    def __init__(self, folder: Path, seen: Callable[[int], None]) -> None:
        super().__init__(folder)
        self.seen, self.before = seen, len(self)

    def add(self, key: str, answer: Answer) -> None:
        super().add(key, answer)
        self.seen(len(self) - self.before)


@contextlib.contextmanager
def kept_answers(folder: Path, seen: Callable[[int], None]) -> Iterator[AnswerCache]:
    """The folder that every answer is kept in; RunFailed says how to go on with them."""
    try:
        with CountedAnswers(folder, seen) as cache:
            yield cache
    except (LanguageModelError, MeduError) as error:
        raise RunFailed(f"{error}\nThe answers so far are kept in {folder}: run the same command to resume") from error
