"""lm-evaluation-harness gets the answers that our own evaluation gives."""

from __future__ import annotations

import abc
import math
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from gristmill.trainer.evaluation.evaluate import bits_per_byte
from gristmill.trainer.evaluation.harness import HarnessError, harness_model
from gristmill.trainer.evaluation.multiple_choice import Question, answer_questions
from gristmill.trainer.evaluation.scoring import plain_tokenizer
from tests.trainer.tiny import TEXTS, bigram_model, byte_pairs, log_chances, random_model, words


class Hook:
    def __init__(self) -> None:
        self.kept: list[tuple[str, Any, Any]] = []

    def add_partial(self, what: str, request: Any, answer: Any) -> None:
        self.kept.append((what, request, answer))


class FakeLM(abc.ABC):
    """As much of the harness's base class as it asks a model for."""

    def __init__(self) -> None:
        self.cache_hook = Hook()

    @abc.abstractmethod
    def loglikelihood(self, requests: Any) -> Any: ...
    @abc.abstractmethod
    def loglikelihood_rolling(self, requests: Any) -> Any: ...
    @abc.abstractmethod
    def generate_until(self, requests: Any) -> Any: ...


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: dict[str, Any] = {name: ModuleType(name) for name in ("lm_eval", "lm_eval.api", "lm_eval.api.model")}
    parts["lm_eval.api.model"].LM = FakeLM
    for name, module in parts.items():
        monkeypatch.setitem(sys.modules, name, module)


def asked(*arguments: tuple[Any, ...]) -> list[Any]:
    return [SimpleNamespace(args=each) for each in arguments]


def test_continuations_are_scored_as_choices_are(harness: None) -> None:
    model, tokenizer = random_model(), byte_pairs()
    lm = harness_model(model, tokenizer, 64, "cpu", before=1)
    assert isinstance(lm, FakeLM)
    question = Question("1", "x", "the cat sat", (" on the mat", " on the log"), 0)
    found = lm.loglikelihood(asked(*((question.context, choice) for choice in question.choices)))
    assert [log_prob for log_prob, _ in found] == pytest.approx(
        answer_questions(model, [question], tokenizer, 64, "cpu", before=1).log_probs[0].tolist()
    )
    assert all(type(log_prob) is float and type(greedy) is bool for log_prob, greedy in found)
    assert lm.cache_hook.kept[0] == ("loglikelihood", (question.context, question.choices[0]), found[0])


def test_whole_texts_are_scored_in_windows_that_do_not_overlap(harness: None) -> None:
    model, tokenizer = random_model(), byte_pairs()
    lm = harness_model(model, tokenizer, 16, "cpu", before=1)
    found = lm.loglikelihood_rolling(asked(*((text,) for text in TEXTS)))
    bits = bits_per_byte(model, TEXTS, TEXTS, tokenizer, 16, "cpu", before=1, stride=16).bits
    assert (
        [-nats / math.log(2) for nats in found] == pytest.approx(bits.tolist())
        and found[3] == 0
        and len(found) == len(TEXTS)
    )


def greedily(context: str, most: int) -> list[int]:
    model, plain = random_model(), plain_tokenizer(byte_pairs())
    tokens = [1, *plain.encode(context, add_special_tokens=False).ids]
    begun = len(tokens)
    for _ in range(most):
        tokens.append(int(log_chances(model, tokens)[-1].argmax()))
    return tokens[begun:]


def test_text_is_generated_greedily_up_to_where_it_is_to_stop(harness: None) -> None:
    model, tokenizer = random_model(), byte_pairs()
    lm = harness_model(model, tokenizer, 64, "cpu", before=1, step_tokens=8)
    wanted = {context: greedily(context, 12) for context in ("the cat", "x", "a longer text about nothing")}
    found = lm.generate_until(asked(*((context, {"until": [], "max_gen_toks": 12}) for context in wanted)))
    assert found == [tokenizer.decode(tokens) for tokens in wanted.values()] and all(found)
    whole = found[0]
    stop = whole[len(whole) // 2 :][:2]
    (stopped,) = lm.generate_until(asked(("the cat", {"until": stop, "max_gen_toks": 12})))
    assert stopped == whole[: whole.find(stop)]
    ending = harness_model(model, tokenizer, 64, "cpu", before=1, end=wanted["x"][3])
    (short,) = ending.generate_until(asked(("x", {"max_gen_toks": 12})))
    first = wanted["x"].index(wanted["x"][3])
    assert short == tokenizer.decode(wanted["x"][:first])


def test_what_it_does_not_do_is_said(harness: None) -> None:
    lm = harness_model(random_model(), byte_pairs(), 64, "cpu")
    with pytest.raises(HarnessError, match="greedily alone"):
        lm.generate_until(asked(("x", {"do_sample": True})))
    with pytest.raises(HarnessError, match="64 at once"):
        lm.generate_until(asked(("x", {"max_gen_toks": 64})))
    with pytest.raises(HarnessError, match="from nothing"):
        lm.generate_until(asked(("", {"max_gen_toks": 4})))


def test_without_the_harness_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(HarnessError, match="pip install lm_eval"):
        harness_model(random_model(), byte_pairs(), 64, "cpu")


def test_greedy_answers_are_marked(harness: None) -> None:
    chances = torch.tensor([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125], [0.5, 0.375, 0.125]])
    lm = harness_model(bigram_model(chances), words("a", "b", "c"), 16, "cpu", before=2)
    found = lm.loglikelihood(asked(("a b", " b b"), ("a b", " b a"), ("", "a")))
    assert [greedy for _, greedy in found] == [True, False, True]
    assert [log_prob for log_prob, _ in found] == pytest.approx(
        [2 * math.log(0.75), math.log(0.75 * 0.125), math.log(0.5)], abs=1e-6
    )
