"""What a backward pass works out anew instead of keeping it (Chen et al. 2016; by operator as in Korthikanti et al.
2022).

`selective` keeps the answers of matrix products and of attention, which cost most to make, and works out norms, rotary
positions and the SwiGLU anew. `full` keeps what goes into each block alone, for a third more products. Losses and
gradients stay the same bits where the operators are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

Recompute = Literal["none", "selective", "full"]
Forward = Callable[..., Any]

PRODUCTS = {
    "mm",
    "addmm",
    "bmm",
    "_scaled_mm",
    "_scaled_mm_v2",
    "linear",
    "fp8_linear",
    "product",
    "added",
    "gated_mlp",
}
ATTENTION = ("attention_forward", "_attention", "varlen_attn", "flash")


def recomputed(forward: Forward, recompute: Recompute, compiled: bool = False) -> Forward:
    """A forward pass that gives the same and keeps less. Below `torch.compile`, which then sees to it by itself: torch
    2.11 does so for what stands inside an autograd function only where operator by operator is asked."""
    if recompute == "none":
        return forward
    policy = _policy if recompute == "selective" else _nothing if compiled else None
    contexts: dict[str, Any] = {"context_fn": partial(create_selective_checkpoint_contexts, policy)} if policy else {}

    def leaner(*inputs: Any) -> Any:
        return checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=False, **contexts)

    return leaner


def _policy(_: Any, operator: Any, *inputs: Any, **names: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if costly(operator) else CheckpointPolicy.PREFER_RECOMPUTE


def _nothing(_: Any, operator: Any, *inputs: Any, **names: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_RECOMPUTE


def costly(operator: Any) -> bool:
    """A matrix product or an attention, ours and torch's."""
    if not isinstance(operator, torch._ops.OpOverload):
        return False
    name = operator._schema.name.partition("::")[2]
    return "backward" not in name and (name in PRODUCTS or any(word in name for word in ATTENTION))
