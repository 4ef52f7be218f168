"""Activation recomputation: what a backward pass recomputes instead of saving (Chen et al. 2016; by operator as in
Korthikanti et al. 2022).

`selective` saves the outputs of matmuls and of attention, which are the costliest, and recomputes norms, rotary
positions and the SwiGLU. `full` saves only the inputs of each block, for a third more matmuls. Losses and gradients
stay the same bits where the operators' are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

Recompute = Literal["none", "selective", "full"]
Forward = Callable[..., Any]

MATMULS = {
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
    "expert_mlp",
    "wide_matmul",
}
ATTENTION = ("attention_forward", "_attention", "varlen_attn", "flash")


def with_recompute(forward: Forward, recompute: Recompute, compiled: bool = False) -> Forward:
    """A forward pass with the same output that saves less. Below `torch.compile`, which then plans the recomputation
    itself: torch 2.11 does so inside an autograd function only where asked operator by operator."""
    if recompute == "none":
        return forward
    policy = _save_costly if recompute == "selective" else _save_nothing if compiled else None
    contexts: dict[str, Any] = {"context_fn": partial(create_selective_checkpoint_contexts, policy)} if policy else {}

    def checkpointed(*inputs: Any) -> Any:
        return checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=False, **contexts)

    return checkpointed


def _save_costly(_: Any, operator: Any, *inputs: Any, **names: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if is_costly(operator) else CheckpointPolicy.PREFER_RECOMPUTE


def _save_nothing(_: Any, operator: Any, *inputs: Any, **names: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_RECOMPUTE


def is_costly(operator: Any) -> bool:
    """A matmul or an attention, ours or torch's."""
    if not isinstance(operator, torch._ops.OpOverload):
        return False
    name = operator._schema.name.partition("::")[2]
    return "backward" not in name and (name in MATMULS or any(word in name for word in ATTENTION))
