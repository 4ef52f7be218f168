"""Asking a language model about many texts: answers are counted as they come and kept, so that a failure costs none."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gristmill.classifiers.llm.answers import AnswerFolder
from gristmill.classifiers.llm.cache import AnswerCache
from gristmill.classifiers.llm.model import Answer, LanguageModel, LanguageModelError, Request
from gristmill.classifiers.rating.medu import MeduError
from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.json_types import JSONObject


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
