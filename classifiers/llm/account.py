"""What asking a model took: calls, tokens, seconds, money, and what failed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from gristmill.classifiers.llm.model import Answer

ANSWERED_BY = "answered_by:"  # what begins a model's name among what a stage notes


@dataclass(frozen=True)
class Prices:
    """Of a million tokens, in any currency. Prompt tokens that a prefix cache spared cost `cached_prompt` (as others
    where it is None)."""

    prompt: float
    completion: float
    cached_prompt: float | None = None


@dataclass
class Tokens:
    prompt: int = 0
    completion: int = 0
    cached: int = 0  # of the prompt

    def cost(self, prices: Prices) -> float:
        cached_price = prices.prompt if prices.cached_prompt is None else prices.cached_prompt
        fresh = self.prompt - self.cached
        return (fresh * prices.prompt + self.cached * cached_price + self.completion * prices.completion) / 1e6


@dataclass
class Account:
    """Tokens and failures are those of answers asked for now; `kept` answers come from an earlier run, which paid for
    them: `before` has their tokens."""

    calls: int = 0
    kept: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    guessed: int = 0  # answers whose tokens are an estimate
    seconds: float = 0.0  # by the clock, while asking
    failures: Counter[str] = field(default_factory=Counter)
    before: Tokens = field(default_factory=Tokens)
    models: Counter[str] = field(default_factory=Counter)  # who answered, in the server's words; kept answers too

    def add(self, answer: Answer) -> None:
        self.calls += 1
        self.prompt_tokens += answer.prompt_tokens
        self.cached_tokens += answer.cached_tokens
        self.completion_tokens += answer.completion_tokens
        self.guessed += answer.guessed
        self.answered(answer)
        if answer.failure:
            self.failures[answer.failure] += 1

    def add_kept(self, answer: Answer) -> None:
        self.kept += 1
        self.before.prompt += answer.prompt_tokens
        self.before.completion += answer.completion_tokens
        self.before.cached += answer.cached_tokens
        self.answered(answer)

    def answered(self, answer: Answer) -> None:
        if answer.model:
            self.models[answer.model] += 1

    def merge(self, other: Account) -> None:
        self.calls += other.calls
        self.kept += other.kept
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.completion_tokens += other.completion_tokens
        self.seconds += other.seconds
        self.guessed += other.guessed
        self.failures.update(other.failures)
        self.models.update(other.models)
        self.before.prompt += other.before.prompt
        self.before.completion += other.before.completion
        self.before.cached += other.before.cached

    @property
    def kept_share(self) -> float:
        return self.kept / max(self.calls + self.kept, 1)

    @property
    def tokens_a_second(self) -> float:
        return (self.prompt_tokens + self.completion_tokens) / self.seconds if self.seconds > 0 else 0.0

    def cost(self, prices: Prices) -> float:
        return Tokens(self.prompt_tokens, self.completion_tokens, self.cached_tokens).cost(prices)

    def counts(self) -> dict[str, int]:
        """What a stage notes; failures are left to it, since it reads answers too."""
        return {
            "kept_answers": self.kept,
            "prompt_tokens": self.prompt_tokens,
            "answer_tokens": self.completion_tokens,
            "tokens_guessed": self.guessed,
            **{f"{ANSWERED_BY}{name}": count for name, count in sorted(self.models.items())},
        }

    def as_dict(self, prices: Prices | None = None) -> dict[str, Any]:
        facts = {
            "calls": self.calls,
            "kept": self.kept,
            "kept_share": round(self.kept_share, 4),
            "prompt_tokens": self.prompt_tokens,
            "prompt_tokens_spared": self.cached_tokens,
            "completion_tokens": self.completion_tokens,
            "tokens_guessed": self.guessed,
            "seconds": round(self.seconds, 3),
            "tokens_a_second": round(self.tokens_a_second, 1),
            "failures": dict(sorted(self.failures.items())),
            "answered_by": dict(sorted(self.models.items())),
            "kept_prompt_tokens": self.before.prompt,
            "kept_completion_tokens": self.before.completion,
        }
        if prices is None:
            return facts
        return {**facts, "cost": round(self.cost(prices), 6), "kept_cost": round(self.before.cost(prices), 6)}
