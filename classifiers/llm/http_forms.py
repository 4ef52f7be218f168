"""How a request is written for each kind of endpoint, and how its reply is read."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from gristmill.classifiers.llm.model import ABSENT, Answer, LanguageModelError, Request
from gristmill.classifiers.llm.tokens import PromptTokens

CHAT_TOP, COMPLETIONS_TOP = 20, 5  # the most that OpenAI's API gives
AT_ITS_END = ("", "stop", "eos", "eos_token", "end_turn", "stop_sequence", "complete")  # finish_reason, in any capitals
CUT = ("length", "max_tokens", "model_length")
FILTERED = ("content_filter", "safety", "recitation")
UNCLEAR = 0.1  # of the probability of what names one label: so much may lie on tokens that begin several
ROUNDED = 0.1  # how far above 0 a log-probability, and above 1 a sum of probabilities, may be by rounding (bfloat16)
APART = 1.0  # of two labels' log-probabilities: a server whose chosen token is that much less likely contradicts itself
FRAME = 16_384  # tokens that a server may put around a prompt (its template, its own instructions)
BYTES_A_TOKEN = 4  # where a server does not say how many it read and wrote
LONGEST_NAME = 80
SURROGATE = frozenset(map(chr, range(0xD800, 0xE000)))
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
        choice = choice_of(replies[0])
        message = choice.get("message")
        if not isinstance(message, dict):
            message = {}
        text = message.get("content")
        if text is None and request.labels:
            text = ""  # of one token, which may be a sign that is not shown
        if message.get("refusal"):
            raise NoAnswer("refusal", f"the model refuses: {str(message['refusal'])[:200]}")
        if not request.labels:
            return _answer(text, choice)
        try:
            first = choice["logprobs"]["content"][0]
            listed = [entry_of(entry["token"], entry["logprob"], entry.get("bytes")) for entry in first["top_logprobs"]]
            chosen = str(first.get("token") or "")
            if first.get("logprob") is not None and all(token != chosen for token, _, _ in listed):
                listed.append(entry_of(chosen, first["logprob"], first.get("bytes")))
        except (KeyError, TypeError, IndexError, AttributeError):
            raise NoAnswer("no_labels", "no log-probabilities in the reply: does this endpoint give any?") from None
        return _answer(text, choice, by_text(listed, request.labels, (chosen, str(text))))


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
        choice = choice_of(replies[0])
        text = choice.get("text")
        if not request.labels:
            return _answer(text, choice)
        return _answer(text, choice, by_text(_top(choice), request.labels, (str(text),)))


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
        choices = [choice_of(reply) for reply in replies]
        text = choices[0].get("text")
        if not request.labels:
            return _answer(text, choices[0])
        tree = self._tokens.labels(request)
        logprobs = []
        for question, choice in zip(tree.questions, choices, strict=True):
            likely = {token: value for token, value, _ in _top(choice)}
            names = [TOKEN_NAME.format(token) for token in question.tokens]
            lacking = [name for name in names if name not in likely]
            if lacking:
                raise NoAnswer(
                    "no_labels",
                    f"{lacking[0]} is not in the reply: a server without `logprob_token_ids`? Use form `completions`",
                )
            logprobs.append([likely[name] for name in names])
            _check_sum(logprobs[-1])
        return _answer(text or "", choices[0], tree.logprobs(logprobs))


def choice_of(reply: Mapping[str, Any]) -> dict[str, Any]:
    """The one choice that was asked for."""
    choices = reply["choices"]
    if len(choices) != 1:
        raise NoAnswer("no_choices", f"{len(choices)} choices, where one was asked for")
    choice = choices[0]
    if not isinstance(choice, dict) or choice.get("index") not in (None, 0):
        raise NoAnswer("no_choices", "the reply's only choice is not the first one: an answer to something else?")
    finish_of(choice)
    return choice


def finish_of(choice: Mapping[str, Any]) -> str:
    """stop, length, or nothing where the server does not tell."""
    said = str(choice.get("finish_reason") or "")[:40]
    if said.lower() in CUT:
        return "length"
    if said.lower() not in AT_ITS_END:
        kind = "filtered" if said.lower() in FILTERED else "aborted"
        raise NoAnswer(kind, f"the server ended the answer before its end (finish_reason {said})")
    return "stop" if said else ""


Listed = tuple[str, float, bytes | None]  # a token, its log-probability, and its bytes where the server gives them


def _top(choice: Mapping[str, Any]) -> list[Listed]:
    try:
        return [entry_of(token, value) for token, value in choice["logprobs"]["top_logprobs"][0].items()]
    except (KeyError, TypeError, IndexError, AttributeError):
        raise NoAnswer("no_labels", "no log-probabilities in the reply: does this endpoint give any?") from None


def entry_of(token: Any, value: Any, spelled: Any = None) -> Listed:
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise NoAnswer("no_labels", f"a log-probability that is no number ({str(value)[:40]!r})")
    if value > ROUNDED:
        raise NoAnswer("no_labels", f"the log-probability {value:g}, which would be a probability above 1")
    is_bytes = isinstance(spelled, list) and all(type(one) is int and 0 <= one < 256 for one in spelled)
    return str(token), float(value), bytes(spelled) if is_bytes else None


def _check_sum(values: Sequence[float]) -> None:
    total = sum(math.exp(min(value, 0.0)) for value in values)
    if total > 1 + ROUNDED:
        raise NoAnswer("no_labels", f"probabilities of next tokens with the sum {total:.2f}")


def _check_prefixes(labels: Sequence[str]) -> None:
    for label in labels:
        if longer := [other for other in labels if other != label and other.startswith(label)]:
            raise LanguageModelError(
                f"label {label!r} is the beginning of label {longer[0]!r}: by the next token as text one cannot be "
                "told from the other. "
                "Use labels that differ before one of them ends, or the reading `reasoned`"
            )


def by_text(listed: Sequence[Listed], labels: Sequence[str], said: Sequence[str] = ()) -> tuple[float, ...]:
    """Labels' log-probabilities from the likeliest tokens as text: a token counts for the one label that it begins (`
    Great`, `Use`), or that it is in other capitals.

    A label of which no token is listed is less likely than all that are, and gets `ABSENT`. A token that begins several
    labels says nothing of either; where such tokens weigh more than `UNCLEAR` of the others there is no answer. Nor is
    there one in a reply that contradicts itself: whose probabilities have a sum above 1, whose bytes spell another
    token, or that says another label (`said`: the token it chose, its text) than the one it calls far likelier.
    """
    listed = list(dict.fromkeys(listed))
    _check_sum([value for _, value, _ in listed])
    mass = [0.0] * len(labels)
    unclear = 0.0
    for token, value, spelled in listed:
        matching = _meant(token, labels)
        if len(matching) == 1:
            if spelled is not None and _meant(spelled.decode("utf-8", "replace"), labels) != matching:
                raise NoAnswer("no_labels", f"the token {token!r} has the bytes of another ({spelled[:40]!r})")
            mass[matching[0]] += math.exp(min(value, 0.0))
        elif matching:
            unclear += math.exp(min(value, 0.0))
    shown = ", ".join(repr(token) for token, _, _ in listed[:5])
    if not any(mass):
        raise NoAnswer("no_labels", f"none of the labels is among the likeliest next tokens ({shown})")
    if unclear > UNCLEAR * sum(mass):
        raise NoAnswer(
            "no_labels", f"labels begin alike in this model's tokens ({shown}); form `tokens` tells them apart"
        )
    for word in said:
        matching = _meant(word, labels)
        if len(matching) == 1 and mass[matching[0]] * math.exp(APART) < max(mass):
            likeliest = labels[mass.index(max(mass))]
            raise NoAnswer(
                "no_labels", f"the answer is {word.strip()[:40]!r}, and {likeliest!r} is said to be likelier"
            )
    return tuple(math.log(share) if share > 0 else ABSENT for share in mass)


def _meant(token: str, labels: Sequence[str]) -> list[int]:
    """The labels that a token begins, or else is in other capitals."""
    word = token.strip()
    begun = [i for i, label in enumerate(labels) if word and label.startswith(word)]
    return begun or [i for i, label in enumerate(labels) if label.casefold() == word.casefold()]


def _answer(text: Any, choice: Mapping[str, Any], logprobs: tuple[float, ...] | None = None) -> Answer:
    if not isinstance(text, str):
        raise NoAnswer("no_text", f"a reply without text (finish_reason {finish_of(choice) or 'not given'})")
    if logprobs is not None and not all(math.isfinite(value) for value in logprobs):
        raise NoAnswer("no_labels", "a log-probability that is no number")
    if "\0" in text or not SURROGATE.isdisjoint(text):
        raise NoAnswer("bad_text", "a text with NUL or with half a character (a lone surrogate)")
    return Answer(text=text, logprobs=logprobs, finish=finish_of(choice))


@dataclass
class Usage:
    """What replies took by the server's own count; where it gives none, or one that cannot be, by bytes."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    guessed: bool = False
    model: str = ""  # who answered, in the server's words

    def add(self, asked: bytes, reply: Mapping[str, Any], most: int) -> None:
        """`asked` is a request's body, `most` the tokens that it allowed an answer."""
        usage = reply.get("usage")
        counts: Mapping[str, Any] = usage if isinstance(usage, dict) else {}
        prompt, completion = _count(counts, "prompt_tokens"), _count(counts, "completion_tokens")
        if prompt is None or not prompt <= len(asked) + FRAME:
            prompt, self.guessed = len(asked) // BYTES_A_TOKEN, True
        if completion is None or not completion <= max(2 * most, FRAME):
            completion, self.guessed = min(most, len(json.dumps(reply.get("choices"))) // BYTES_A_TOKEN), True
        details = counts.get("prompt_tokens_details")
        cached = _count(details, "cached_tokens") if isinstance(details, dict) else 0
        self.prompt, self.completion = self.prompt + prompt, self.completion + completion
        self.cached += min(cached or 0, prompt)
        self.model = str(reply.get("model") or self.model)[:LONGEST_NAME]

    def of(self, answer: Answer) -> Answer:
        return replace(
            answer,
            prompt_tokens=self.prompt,
            completion_tokens=self.completion,
            cached_tokens=self.cached,
            guessed=self.guessed,
            model=self.model,
        )


def _count(usage: Mapping[str, Any], name: str) -> int | None:
    value = usage.get(name)
    return value if type(value) is int and value >= 0 else None
