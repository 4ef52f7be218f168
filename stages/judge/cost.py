"""What asking a language model will take, before any work: requests, tokens, dollars, hours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable


@dataclass(frozen=True)
class Cost:
    requests: int
    prompt_tokens: int
    answer_tokens: int
    dollars: float | None = None  # None: no price is known
    hours: float | None = None  # None: no speed is known

    @classmethod
    def of(
        cls, requests: float, prompts: float, answers: float, prices: tuple[float, float], tokens_per_second: float
    ) -> Self:
        """`prices` of a million tokens of prompts and of answers; speed is that of answers."""
        dollars = (prompts * prices[0] + answers * prices[1]) / 1e6 if any(prices) else None
        hours = answers / tokens_per_second / 3600 if tokens_per_second else None
        return cls(round(requests), round(prompts), round(answers), dollars, hours)

    def __str__(self) -> str:
        dollars = "no price given" if self.dollars is None else f"${self.dollars:,.2f}"
        hours = "" if self.hours is None else f", {self.hours:,.1f} hours"
        return (
            f"{self.requests:,} requests, {self.prompt_tokens:,} tokens of prompts, "
            f"{self.answer_tokens:,} of answers: {dollars}{hours}"
        )


@runtime_checkable
class Asks(Protocol):
    """A stage that asks a language model about documents."""

    def cost_ahead(self, documents: float, text_bytes: float) -> Cost: ...


def doubts(noted: Mapping[str, int], prefix: str) -> list[tuple[str, str]]:
    """Of what a stage noted: tokens that no server counted, and the names under which a server answered."""
    begins = f"{prefix}answered_by:"
    names = {name.removeprefix(begins): count for name, count in noted.items() if name.startswith(begins)}
    guessed = noted.get(f"{prefix}tokens_guessed", 0)
    facts = [("tokens estimated", f"of {guessed:,} answers: the server gave no count, or one that cannot be")]
    return [
        *(facts if guessed else []),
        *([("answered by", ", ".join(f"{name} ({n:,})" for name, n in sorted(names.items())))] if names else []),
    ]
