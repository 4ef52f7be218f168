"""Asking a language model about many texts: what plans of that share, and answers that are counted as they come and
kept, so that a failure costs none."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from gristmill.classifiers.llm.account import Prices
from gristmill.classifiers.llm.answers import AnswerFolder
from gristmill.classifiers.llm.cache import AnswerCache
from gristmill.classifiers.llm.model import Answer, LanguageModel, LanguageModelError, Request
from gristmill.classifiers.rating.medu import MeduError
from gristmill.kernels.common.settings import Settings
from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.json_types import JSONObject
from gristmill.stages.judge.back_end import BackEnd

Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class AskedModel(BackEnd):
    """The language model that is asked."""

    def watched(self, seen: Callable[[int], None]) -> Watched:
        return Watched(self.opened(), seen)


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


class Watched:
    """A model whose answers are counted as they come."""

    def __init__(self, model: LanguageModel, seen: Callable[[int], None]) -> None:
        self.model, self.seen, self.count = model, seen, 0

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def identity(self) -> JSONObject:
        return dict(self.model.identity)

    def answers(self, requests: Sequence[Request]) -> Iterator[tuple[int, Answer]]:
        for pair in self.model.answers(requests):
            self.count += 1
            self.seen(self.count)
            yield pair


@contextlib.contextmanager
def kept_answers(folder: Path) -> Iterator[AnswerCache]:
    """The folder that every answer is kept in; RunFailed says how to go on with them."""
    try:
        with AnswerFolder(folder) as cache:
            yield cache
    except (LanguageModelError, MeduError) as error:
        raise RunFailed(f"{error}\nThe answers so far are kept in {folder}: run the same command to resume") from error
