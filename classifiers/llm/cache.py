"""Answers that are kept: one line of JSON each, by the sha256 of prompt, model and settings. Nothing is asked twice,
nor lost to a kill.

The file is only ever appended to, a line by one write. A torn last line (the machine went down) is no line; the next
starts after it. Failures are not kept, so that another run asks again. One process at a time writes a file; a second is
told so.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from types import TracebackType

from gristmill.classifiers.llm.account import Account
from gristmill.classifiers.llm.model import Answer, LanguageModel, LanguageModelError, Request, request_key

FIELDS = {field.name for field in fields(Answer)} - {"failure", "detail"}


class FileIsTaken(LanguageModelError):
    """Another process writes it."""


class AnswerCache:
    """Use it in a `with`: the lock goes when it is closed."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.damaged = 0  # lines that could not be read
        self._answers: dict[str, Answer] = {}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._file)
            raise FileIsTaken(f"{self.path}: another process is writing to this file of answers") from error
        except OSError as error:
            os.close(self._file)
            raise LanguageModelError(
                f"{self.path}: this file system knows no locks ({error.strerror}); keep answers on another one"
            ) from error
        self._load()

    def __enter__(self) -> AnswerCache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: str) -> Answer | None:
        return self._answers.get(key)

    def add(self, key: str, answer: Answer) -> None:
        if answer.failure or key in self._answers:
            return
        self._answers[key] = answer
        fields_of_answer = {name: value for name, value in asdict(answer).items() if name in FIELDS}
        line = (
            json.dumps({"key": key, "answer": fields_of_answer}, ensure_ascii=True, separators=(",", ":")).encode()
            + b"\n"
        )
        while line:
            line = line[os.write(self._file, line) :]

    def close(self) -> None:
        if self._file >= 0:
            os.fsync(self._file)
            os.close(self._file)
            self._file = -1

    def _load(self) -> None:
        ended = True
        with self.path.open("rb") as file:
            for line in file:
                ended = line.endswith(b"\n")
                entry = _entry(line)  # cut anywhere but before its line's end it is no JSON
                if entry is None:
                    self.damaged += 1
                else:
                    self._answers[entry[0]] = entry[1]
        if not ended:
            os.write(self._file, b"\n")


def _entry(line: bytes) -> tuple[str, Answer] | None:
    try:
        entry = json.loads(line)
        fields_of_answer = {name: value for name, value in entry["answer"].items() if name in FIELDS}
        if fields_of_answer.get("logprobs") is not None:
            fields_of_answer["logprobs"] = tuple(float(value) for value in fields_of_answer["logprobs"])
            if not all(math.isfinite(value) for value in fields_of_answer["logprobs"]):
                return None
        return str(entry["key"]), Answer(**fields_of_answer)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def answer_all(
    model: LanguageModel, requests: Sequence[Request], account: Account, cache: AnswerCache | None = None
) -> Iterator[tuple[int, Answer]]:
    """Every request's answer, once, as they come: kept ones first, and what is asked twice is asked once."""
    places: dict[str, list[int]] = {}
    for i, request in enumerate(requests):
        places.setdefault(request_key(request, model.identity), []).append(i)
    wanted = []
    for key, same in places.items():
        answer = cache.get(key) if cache is not None else None
        if answer is None:
            wanted.append(key)
            continue
        account.add_kept(answer)
        for i in same:
            yield i, answer
    start = time.perf_counter()
    seen: set[int] = set()
    for number, answer in model.answers([requests[places[key][0]] for key in wanted]) if wanted else ():
        if number in seen:
            raise LanguageModelError(f"{model.name} answered request {number} twice")
        seen.add(number)
        account.add(answer)
        account.seconds += time.perf_counter() - start
        if cache is not None:
            cache.add(wanted[number], answer)
        for i in places[wanted[number]]:
            yield i, answer
        start = time.perf_counter()
    if len(seen) < len(wanted):
        raise LanguageModelError(f"{model.name} left {len(wanted) - len(seen)} of {len(wanted)} requests unanswered")
