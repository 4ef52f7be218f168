"""What a decoder of the Llama family looks like, and shapes by name.

A name is about the number of parameters at a vocabulary of 50,304 (`1m` at 12,288, `10m` at 16,384, `8b` at Llama 3's
own 128,256). Small shapes tie the embedding to the head, as small models of the field do; `3b` and `8b` are those of
Llama 3.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RopeScaling:
    """Longer waves turn slower, as in Llama 3.1: those longer than `context / low` by `factor`, those shorter than
    `context / high` not at all."""

    factor: float
    low: float
    high: float
    context: int

    def __post_init__(self) -> None:
        if self.factor <= 0 or self.low <= 0 or self.high <= self.low or self.context < 1:
            raise ValueError(f"{self}: factor, low and context are above 0, and high is above low")


@dataclass(frozen=True)
class DecoderShape:
    """`windows` are given to the blocks in turn: how many tokens a query sees, itself counted; 0 for all before it.
    None given: all see all."""

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    mlp: int
    head_size: int = 0  # 0: hidden / heads
    context: int = 4096
    rope_base: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    norm_eps: float = 1e-5
    tied: bool = False
    windows: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("vocabulary", "hidden", "layers", "heads", "kv_heads", "mlp", "context"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise ValueError(f"{name} must be a whole number above 0, not {getattr(self, name)!r}")
        if not self.head_size:
            if self.hidden % self.heads:
                raise ValueError(f"{self.heads} heads do not share a width of {self.hidden} equally; say head_size")
            object.__setattr__(self, "head_size", self.hidden // self.heads)
        if type(self.head_size) is not int or self.head_size < 1:
            raise ValueError(f"head_size must be a whole number above 0, not {self.head_size!r}")
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} query heads cannot share {self.kv_heads} key-value heads equally")
        if self.head_size % 2:
            raise ValueError(f"head_size {self.head_size}: rotary positions turn pairs, so it must be even")
        for name in ("rope_base", "norm_eps"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a number above 0, not {getattr(self, name)!r}")
        if any(type(window) is not int or window < 0 for window in self.windows):
            raise ValueError(f"windows {self.windows}: whole numbers, 0 for no limit")

    def window(self, layer: int) -> int:
        return self.windows[layer % len(self.windows)] if self.windows else 0

    @property
    def parameters(self) -> int:
        attention = self.hidden * self.head_size * (2 * self.heads + 2 * self.kv_heads)
        blocks = self.layers * (attention + 3 * self.hidden * self.mlp + 2 * self.hidden)
        return blocks + self.hidden + self.vocabulary * self.hidden * (1 if self.tied else 2)

    def facts(self) -> dict[str, Any]:
        """As JSON has it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> DecoderShape:
        scaling = facts.get("rope_scaling")
        return cls(
            **{
                **facts,
                "rope_scaling": RopeScaling(**scaling) if scaling else None,
                "windows": tuple(facts.get("windows", ())),
            }
        )


NAMED: dict[str, dict[str, Any]] = {
    "1m": {"hidden": 64, "layers": 4, "heads": 2, "kv_heads": 1, "mlp": 192, "context": 512, "tied": True},
    "10m": {"hidden": 256, "layers": 8, "heads": 4, "kv_heads": 2, "mlp": 768, "context": 1024, "tied": True},
    "30m": {"hidden": 384, "layers": 10, "heads": 6, "kv_heads": 2, "mlp": 1024, "context": 1024, "tied": True},
    "60m": {"hidden": 512, "layers": 12, "heads": 8, "kv_heads": 4, "mlp": 1408, "context": 2048, "tied": True},
    "124m": {"hidden": 768, "layers": 12, "heads": 12, "kv_heads": 12, "mlp": 2048, "context": 2048, "tied": True},
    "350m": {"hidden": 1024, "layers": 24, "heads": 16, "kv_heads": 8, "mlp": 2816, "tied": True},
    "760m": {"hidden": 1536, "layers": 24, "heads": 12, "kv_heads": 4, "mlp": 4096},
    "1.3b": {"hidden": 2048, "layers": 20, "heads": 32, "kv_heads": 8, "mlp": 8192, "tied": True},
    "3b": {
        "hidden": 3072,
        "layers": 28,
        "heads": 24,
        "kv_heads": 8,
        "mlp": 8192,
        "context": 8192,
        "rope_base": 500_000.0,
        "tied": True,
    },
    "8b": {
        "hidden": 4096,
        "layers": 32,
        "heads": 32,
        "kv_heads": 8,
        "mlp": 14_336,
        "context": 8192,
        "rope_base": 500_000.0,
    },
}


def shape_named(name: str, vocabulary: int, **changes: Any) -> DecoderShape:
    """A shape by name, with changes: `shape_named("124m", 50_304, context=1024)`."""
    if name not in NAMED:
        raise ValueError(f"no shape is named {name!r}; there are {', '.join(NAMED)}")
    return DecoderShape(vocabulary, **{**NAMED[name], **changes})
