"""Activation recomputation: what a backward pass recomputes instead of saving (Chen et al. 2016; by operator as in
Korthikanti et al. 2022).

`selective` saves the outputs of matmuls and of attention, which are the costliest, and recomputes norms, rotary
positions and the SwiGLU. `full` saves only the inputs of each block, for a third more matmuls. Losses and gradients
stay the same bits where the operators' are.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from gristmill.trainer.model.model import Decoder

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
COMPILED_MOST = 64  # versions of a block's code; torch's own limit is 8
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


def prepare_blocks(model: Decoder, recompute: Recompute, compiled: bool) -> Decoder:
    """Applies to each block recomputation, then compilation.

    Compiled code must contain the recomputation, to plan it with the rest; hooks of what comes later must stay outside
    of it. Only the blocks' forward functions change: no weight gets another name, and preparing twice equals preparing
    once.
    """
    if compiled:
        # Past the limit blocks silently run uncompiled; each kind of block, and each size that varies, counts as one.
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, COMPILED_MOST)
    for block in model.blocks:
        vars(block).pop("forward", None)
        compiles = compiled and bool(block.compiles)
        if compiles or recompute != "none":
            block.forward = BlockForward(block, recompute, compiles)
    return model


class BlockForward:
    """A block's forward function. A copy of the model gets one of its own, which uses the copy's weights."""

    def __init__(self, block: nn.Module, recompute: Recompute, compiled: bool) -> None:
        self._made_of = (block, recompute, compiled)
        forward = with_recompute(MethodType(type(block).forward, block), recompute, compiled)
        self._forward = torch.compile(forward) if compiled else forward

    def __call__(self, *inputs: Any) -> Any:
        return self._forward(*inputs)

    def __deepcopy__(self, memo: dict[int, Any]) -> BlockForward:
        block, recompute, compiled = self._made_of
        return BlockForward(copy.deepcopy(block, memo), recompute, compiled)
