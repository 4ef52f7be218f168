"""What a decoder of the Llama family looks like, and shapes by name.

A name is about the number of parameters at a vocabulary of 50,304 (`1m` at 12,288, `10m` at 16,384, `8b` at Llama 3's
own 128,256). Small shapes tie the embedding to the head, as small models of the field do; `3b` and `8b` are those of
Llama 3. `300m-a124m` and `4b-a1.3b` are mixtures of 8 experts, of which a token sees 2: as many parameters as `124m`
and `1.3b` are active for each token.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from gristmill.trainer.checked import CHECKED, Count, from_json

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Whole = Annotated[int, Field(ge=0, strict=True)]
Switch = Annotated[bool, Field(strict=True)]


@dataclass(frozen=True, config=CHECKED)
class RopeScaling:
    """Longer waves turn slower, as in Llama 3.1: those longer than `context / low` by `factor`, those shorter than
    `context / high` not at all."""

    factor: Positive
    low: Positive
    high: Positive
    context: Count

    def __post_init__(self) -> None:
        if self.high <= self.low:
            raise ValueError(f"high {self.high} is not above low {self.low}")


@dataclass(frozen=True, config=CHECKED)
class Mixture:
    """A mixture of experts in place of the MLP: each token goes to `active` of `number` experts of inner width `width`.

    `router` "softmax" (Mixtral, Qwen3-MoE, OLMoE): scores are shares of all experts. "sigmoid" (DeepSeek-V3, GLM-4.5):
    each score is between 0 and 1, and a bias for each expert, which balances the load, helps to choose but weighs
    nothing. `normalised`: the weights of a token's experts sum to 1. `shared`: this many more experts, as one MLP, that
    see every token. `dense`: layers, counted from 0, that keep an ordinary MLP.
    """

    number: Annotated[int, Field(ge=2, strict=True)]
    active: Count
    width: Count
    router: Literal["softmax", "sigmoid"] = "softmax"
    normalised: Switch = True
    shared: Whole = 0
    dense: tuple[Whole, ...] = ()

    def __post_init__(self) -> None:
        if self.active > self.number:
            raise ValueError(f"active {self.active} is more than the {self.number} experts")
        object.__setattr__(self, "dense", tuple(sorted(set(self.dense))))


@dataclass(frozen=True, config=CHECKED)
class DecoderShape:
    """`windows` are given to the blocks in turn: how many tokens a query sees, itself counted; 0 for all before it.
    None given: all see all. `qk_norm`: queries and keys are normed before they are rotated, each head by itself or over
    the width of all heads. With experts in all layers `mlp` means nothing, and is set to the width of one."""

    vocabulary: Count
    hidden: Count
    layers: Count
    heads: Count
    kv_heads: Count
    mlp: Count
    head_size: Whole = 0  # 0: hidden / heads
    context: Count = 4096
    rope_base: Positive = 10_000.0
    rope_scaling: RopeScaling | None = None
    norm_eps: Positive = 1e-5
    tied: Switch = False
    windows: tuple[Whole, ...] = ()
    qk_norm: Literal["head", "width"] | None = None
    experts: Mixture | None = None

    def __post_init__(self) -> None:
        if not self.head_size:
            if self.hidden % self.heads:
                raise ValueError(f"{self.heads} heads do not share a width of {self.hidden} equally; say head_size")
            object.__setattr__(self, "head_size", self.hidden // self.heads)
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} query heads cannot share {self.kv_heads} key-value heads equally")
        if self.head_size % 2:
            raise ValueError(f"head_size {self.head_size}: rotary positions turn pairs, so it must be even")
        if self.experts is not None:
            if self.experts.dense and self.experts.dense[-1] >= self.layers:
                raise ValueError(f"experts.dense {self.experts.dense}: there are the layers 0 to {self.layers - 1}")
            if not self.experts.dense:
                object.__setattr__(self, "mlp", self.experts.width)
            elif len(self.experts.dense) == self.layers:
                raise ValueError("experts.dense names every layer: a shape without a sparse one has no experts")

    def window(self, layer: int) -> int:
        return self.windows[layer % len(self.windows)] if self.windows else 0

    def experts_of(self, layer: int) -> Mixture | None:
        """None: the layer has an ordinary MLP."""
        return None if self.experts is None or layer in self.experts.dense else self.experts

    def matrices(self, layer: int, experts: int | None = None) -> int:
        """Numbers in the matrices of a block, with so many of its experts (None: all)."""
        mixture = self.experts_of(layer)
        inner = self.mlp
        if mixture is not None:
            inner = (mixture.number if experts is None else experts) * mixture.width + mixture.shared * mixture.width
        attention = self.head_size * (2 * self.heads + 2 * self.kv_heads)
        return self.hidden * (attention + 3 * inner + (mixture.number if mixture else 0))

    @property
    def qk_norm_widths(self) -> tuple[int, int]:
        """Numbers in the weights of the norms of queries and of keys."""
        if self.qk_norm is None:
            return (0, 0)
        return (
            (self.head_size, self.head_size)
            if self.qk_norm == "head"
            else (self.heads * self.head_size, self.kv_heads * self.head_size)
        )

    @property
    def parameters(self) -> int:
        return self._count(None)

    @property
    def active_parameters(self) -> int:
        """Those that a token meets."""
        return self._count(None if self.experts is None else self.experts.active)

    def _count(self, experts: int | None) -> int:
        blocks = sum(self.matrices(layer, experts) for layer in range(self.layers))
        norms = self.layers * (2 * self.hidden + sum(self.qk_norm_widths))
        return blocks + norms + self.hidden + self.vocabulary * self.hidden * (1 if self.tied else 2)

    def facts(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> DecoderShape:
        """ValueError names what is wrong, in a line."""
        return from_json(cls, facts, "shape")


NAMED: dict[str, dict[str, Any]] = {
    "1m": {"hidden": 64, "layers": 4, "heads": 2, "kv_heads": 1, "mlp": 192, "context": 512, "tied": True},
    "10m": {"hidden": 256, "layers": 8, "heads": 4, "kv_heads": 2, "mlp": 768, "context": 1024, "tied": True},
    "30m": {"hidden": 384, "layers": 10, "heads": 6, "kv_heads": 2, "mlp": 1024, "context": 1024, "tied": True},
    "60m": {"hidden": 512, "layers": 12, "heads": 8, "kv_heads": 4, "mlp": 1408, "context": 2048, "tied": True},
    "124m": {"hidden": 768, "layers": 12, "heads": 12, "kv_heads": 12, "mlp": 2048, "context": 2048, "tied": True},
    "350m": {"hidden": 1024, "layers": 24, "heads": 16, "kv_heads": 8, "mlp": 2816, "tied": True},
    "760m": {"hidden": 1536, "layers": 24, "heads": 12, "kv_heads": 4, "mlp": 4096},
    "1.3b": {"hidden": 2048, "layers": 20, "heads": 32, "kv_heads": 8, "mlp": 8192, "tied": True},
    "300m-a124m": {
        "hidden": 768,
        "layers": 12,
        "heads": 12,
        "kv_heads": 12,
        "mlp": 1024,
        "context": 2048,
        "tied": True,
        "experts": Mixture(8, 2, 1024, "sigmoid"),
    },
    "4b-a1.3b": {
        "hidden": 2048,
        "layers": 20,
        "heads": 32,
        "kv_heads": 8,
        "mlp": 4096,
        "tied": True,
        "experts": Mixture(8, 2, 4096, "sigmoid"),
    },
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
