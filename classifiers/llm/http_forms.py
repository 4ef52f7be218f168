"""How a request is written for each kind of endpoint, and how its reply is read."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from gristmill.classifiers.llm.model import ABSENT, Answer, LanguageModelError, Request
from gristmill.classifiers.llm.tokens import PromptTokens

CHAT_TOP, COMPLETIONS_TOP = 20, 5  # the most that OpenAI's API gives
GIVEN_UP = {
    "content_filter": "filtered",
    "abort": "aborted",
    "error": "aborted",
}  # finish_reason of an answer without its end, and its failure
UNCLEAR = 0.1  # of the probability of what names one label: so much may lie on tokens that begin several
TOKEN_NAME = "token_id:{}"  # vLLM's, where it is asked for ids in the place of texts


class NoAnswer(Exception):
    """A whole reply that does not say what was asked."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Form(Protocol):
    path: str

    def bodies(self, request: Request) -> list[dict[str, Any]]: ...

    def answer(self, request: Request, replies: Sequence[Mapping[str, Any]]) -> Answer: ...


def form_of(kind: str, model: str, top: int, extra: dict[str, Any], tokens: PromptTokens | None) -> Form:
    if kind == "tokens":
        if tokens is None:
            raise LanguageModelError("form `tokens` needs the model's tokenizer: PromptTokens.load(FOLDER OR HUB ID)")
        return TokenForm(model, extra, tokens)
    if kind == "thinking":
        return ThinkingForm(model, extra, 0)
    if kind == "completions":
        return TextForm(model, extra, top or COMPLETIONS_TOP)
    return ChatForm(model, extra, top or CHAT_TOP)


class ChatForm:
    path = "/chat/completions"

    def __init__(self, model: str, extra: dict[str, Any], top: int) -> None:
        self._fixed = {"model": model, **extra}
        self._top = top

    def bodies(self, request: Request) -> list[dict[str, Any]]:
        body = {
            **self._fixed,
            "messages": [{"role": "user", "content": content_of(request)}],
            "temperature": request.temperature,
        }
        if request.labels:
            _check_prefixes(request.labels)
            return [{**body, "max_tokens": 1, "logprobs": True, "top_logprobs": self._top}]
        return [{**body, "max_tokens": request.max_tokens}]

    def answer(self, request: Request, replies: Sequence[Mapping[str, Any]]) -> Answer:
        choice = replies[0]["choices"][0]
        message = choice.get("message") if isinstance(choice, dict) else None
        text = message.get("content") if isinstance(message, dict) else None
        if not request.labels:
            return _answer(text, choice, replies)
        try:
            likely = {
                str(entry["token"]): float(entry["logprob"])
                for entry in choice["logprobs"]["content"][0]["top_logprobs"]
            }
        except (KeyError, TypeError, IndexError, ValueError, AttributeError):
            raise NoAnswer("no_labels", "no log-probabilities in the reply: does this endpoint give any?") from None
        return _answer(text or "", choice, replies, by_text(likely, request.labels))


def content_of(request: Request) -> str | list[dict[str, Any]]:
    """A message's text, behind its images where there are any."""
    text = request.shared + request.own
    if not request.images:
        return text
    addresses = ["data:image/png;base64," + base64.b64encode(image).decode("ascii") for image in request.images]
    images: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": address}} for address in addresses]
    return [*images, {"type": "text", "text": text}]


def no_images(request: Request, form: str) -> None:
    if request.images:
        raise LanguageModelError(f"form `{form}` takes no images; use `chat`")


class ThinkingForm(ChatForm):
    """OpenAI's models that think before they answer take another name for the limit, which counts the thinking too, and
    neither temperature nor label probabilities."""

    def bodies(self, request: Request) -> list[dict[str, Any]]:
        if request.labels:
            raise LanguageModelError("form `thinking` gives no label probabilities; take the reading `reasoned`")
        messages = [{"role": "user", "content": content_of(request)}]
        return [{**self._fixed, "messages": messages, "max_completion_tokens": request.max_tokens}]


class TextForm:
    path = "/completions"

    def __init__(self, model: str, extra: dict[str, Any], top: int) -> None:
        self._fixed = {"model": model, **extra}
        self._top = top

    def bodies(self, request: Request) -> list[dict[str, Any]]:
        no_images(request, "completions")
        body = {
            **self._fixed,
            "prompt": request.shared + request.own + request.opening,
            "temperature": request.temperature,
        }
        if request.labels:
            _check_prefixes(request.labels)
            return [{**body, "max_tokens": 1, "logprobs": self._top}]
        return [{**body, "max_tokens": request.max_tokens}]

    def answer(self, request: Request, replies: Sequence[Mapping[str, Any]]) -> Answer:
        choice = replies[0]["choices"][0]
        text = choice.get("text") if isinstance(choice, dict) else None
        return _answer(text, choice, replies, by_text(_top(choice), request.labels) if request.labels else None)


class TokenForm:
    path = "/completions"

    def __init__(self, model: str, extra: dict[str, Any], tokens: PromptTokens) -> None:
        self._fixed = {"model": model, **extra}
        self._tokens = tokens

    def bodies(self, request: Request) -> list[dict[str, Any]]:
        no_images(request, "tokens")
        prompt = self._tokens.prompts([request])[0]
        body = {**self._fixed, "temperature": request.temperature}
        if not request.labels:
            return [{**body, "prompt": prompt, "max_tokens": request.max_tokens}]
        exact = {"max_tokens": 1, "logprobs": 1, "return_tokens_as_token_ids": True}
        questions = self._tokens.labels(request).questions
        return [
            {**body, **exact, "prompt": [*prompt, *asked.path], "logprob_token_ids": list(asked.tokens)}
            for asked in questions
        ]

    def answer(self, request: Request, replies: Sequence[Mapping[str, Any]]) -> Answer:
        choice = replies[0]["choices"][0]
        text = choice.get("text") if isinstance(choice, dict) else None
        if not request.labels:
            return _answer(text, choice, replies)
        tree = self._tokens.labels(request)
        logprobs = []
        for question, reply in zip(tree.questions, replies, strict=True):
            likely = _top(reply["choices"][0])
            names = [TOKEN_NAME.format(token) for token in question.tokens]
            lacking = [name for name in names if name not in likely]
            if lacking:
                raise NoAnswer(
                    "no_labels",
                    f"{lacking[0]} is not in the reply: a server without `logprob_token_ids`? Use form `completions`",
                )
            logprobs.append([likely[name] for name in names])
        return _answer(text or "", choice, replies, tree.logprobs(logprobs))


def _top(choice: Any) -> dict[str, float]:
    try:
        return {str(token): float(value) for token, value in choice["logprobs"]["top_logprobs"][0].items()}
    except (KeyError, TypeError, IndexError, ValueError, AttributeError):
        raise NoAnswer("no_labels", "no log-probabilities in the reply: does this endpoint give any?") from None


def _check_prefixes(labels: Sequence[str]) -> None:
    for label in labels:
        if longer := [other for other in labels if other != label and other.startswith(label)]:
            raise LanguageModelError(
                f"label {label!r} is the beginning of label {longer[0]!r}: by the next token as text one cannot be "
                "told from the other. "
                "Use labels that differ before one of them ends, or the reading `reasoned`"
            )


def by_text(likely: Mapping[str, float], labels: Sequence[str]) -> tuple[float, ...]:
    """Labels' log-probabilities from the likeliest tokens as text: a token counts for the one label that it begins (`
    Great`, `Use`).

    A label of which no token is listed is less likely than all that are, and gets `ABSENT`. A token that begins several
    labels says nothing of either; where such tokens weigh more than `UNCLEAR` of the others there is no answer.
    """
    if any(math.isnan(value) for value in likely.values()):
        raise NoAnswer("no_labels", "a log-probability that is no number")
    mass = [0.0] * len(labels)
    unclear = 0.0
    for token, value in likely.items():
        beginning = token.strip()
        matching = [i for i, label in enumerate(labels) if beginning and label.startswith(beginning)]
        if len(matching) == 1:
            mass[matching[0]] += math.exp(min(value, 0.0))
        elif matching:
            unclear += math.exp(min(value, 0.0))
    listed = ", ".join(repr(token) for token in list(likely)[:5])
    if not any(mass):
        raise NoAnswer("no_labels", f"none of the labels is among the likeliest next tokens ({listed})")
    if unclear > UNCLEAR * sum(mass):
        raise NoAnswer(
            "no_labels", f"labels begin alike in this model's tokens ({listed}); form `tokens` tells them apart"
        )
    return tuple(math.log(share) if share > 0 else ABSENT for share in mass)


def _answer(
    text: Any, choice: Any, replies: Sequence[Mapping[str, Any]], logprobs: tuple[float, ...] | None = None
) -> Answer:
    finish = str(choice.get("finish_reason") or "") if isinstance(choice, dict) else ""
    if finish in GIVEN_UP:
        raise NoAnswer(GIVEN_UP[finish], f"the server ended the answer before its end (finish_reason {finish})")
    if not isinstance(text, str):
        raise NoAnswer("no_text", "a reply without text" + (f" (finish_reason {finish[:40]})" if finish else ""))
    if logprobs is not None and not all(math.isfinite(value) for value in logprobs):
        raise NoAnswer("no_labels", "a log-probability that is no number")
    spent = [reply["usage"] for reply in replies if isinstance(reply.get("usage"), dict)]
    details = [
        usage["prompt_tokens_details"] for usage in spent if isinstance(usage.get("prompt_tokens_details"), dict)
    ]
    return Answer(
        text=text,
        logprobs=logprobs,
        prompt_tokens=sum(_count(usage, "prompt_tokens") for usage in spent),
        completion_tokens=sum(_count(usage, "completion_tokens") for usage in spent),
        cached_tokens=sum(_count(detail, "cached_tokens") for detail in details),
        finish=finish,
    )


def _count(usage: Mapping[str, Any], name: str) -> int:
    value = usage.get(name)
    return value if isinstance(value, int) and value >= 0 else 0
