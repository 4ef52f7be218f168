"""Weights, gradients and optimiser state sharded over the ranks by FSDP2: stages 2 and 3 of ZeRO (Rajbhandari et al.
2020; Zhao et al. 2023).

Each rank keeps a shard of every float32 weight, and steps on that. Before a block's forward its weights are gathered,
in bf16 where that is the precision; after its backward the gradients are summed in float32 and scattered. Stage 2 keeps
the whole weights of a block between its forward and its backward pass, stage 3 gathers them twice. Gradients are
scattered after every pass, so none are ever kept whole.

With replicas (`gristmill.trainer.parallel.replicas`) a shard is of one replica's ranks, and a hook of FSDP2 sums its
gradient over the replicas, at an update's last pass alone. A mesh of two dimensions would do the same in float32; the
hook can send less.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, Shard

from gristmill.trainer.model.model import Decoder, SparseBlock
from gristmill.trainer.parallel.parts import Cut
from gristmill.trainer.parallel.ranks import RankGroup
from gristmill.trainer.parallel.replicas import ReplicaSum
from gristmill.trainer.step.masters import Slot, scale_gradients
from gristmill.trainer.step.optim import step_if_finite
from gristmill.trainer.step.recompute import Recompute, with_recompute

COMPILED_MOST = 64  # versions of a block's code; torch's own limit is 8


def prepare_blocks(model: Decoder, recompute: Recompute, compiled: bool) -> Decoder:
    """Applies to each block, in this order: recompute, then compile, then (by `shard_fully`) sharding.

    Compiled code must contain the recomputation, to plan it with the rest; the hooks that gather weights must stay
    outside of it. Only the blocks' forward functions change: no weight gets another name, and preparing twice equals
    preparing once.
    """
    if compiled:
        # Past the limit blocks silently run uncompiled; each kind of block, and each size that varies, counts as one.
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, COMPILED_MOST)
    for block in model.blocks:
        vars(block).pop("forward", None)
        # Sizes of messages between ranks are the host's to know: such a block is not compiled.
        compiles = compiled and not (isinstance(block, SparseBlock) and block.experts.count > 1)
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


def shard_fully(
    model: Decoder, ranks: RankGroup, zero: int, bf16: bool, offload: bool, device: torch.device
) -> Decoder:
    """In place; `model` may be on the CPU: each block is moved to the device and sharded in turn. All ranks must hold
    the same weights."""
    group = cast(torch.distributed.ProcessGroup, ranks.group or torch.distributed.group.WORLD)
    mesh = DeviceMesh.from_group(group, device.type)
    policy = (
        MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
        if bf16
        else MixedPrecisionPolicy(cast_forward_inputs=False)
    )
    options: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": policy,
        "shard_placement_fn": partial(_dimension, ranks.count),
    }
    if offload:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=device.type == "cuda")
    for block in model.blocks:
        fully_shard(block, **options, reshard_after_forward=zero == 3)
    # Embedding, norm and head stay gathered: the backward pass begins with them.
    fully_shard(model, **options, reshard_after_forward=False)
    if not isinstance(model, FSDPModule):
        raise TypeError("FSDP2 did not take the model over")
    for name in ("hidden", "losses", "logits"):  # as `forward`, which is the loss
        register_fsdp_forward_method(model, name)
    for module in [*model.blocks, model]:
        module.set_gradient_divide_factor(1.0)  # sums, not means
        module.set_force_sum_reduction_for_comms(True)
        module.unshard()  # slices move for the last time when they are first put together
        module.reshard()
    return model


def _dimension(ranks: int, parameter: nn.Parameter) -> Shard:
    """A stack of experts fewer than the ranks, or one that they do not share equally, is cut inside the experts."""
    inside = parameter.ndim == 3 and parameter.shape[0] % ranks and not parameter.shape[1] % ranks
    return Shard(1 if inside else 0)


def slots_of(model: Decoder) -> list[Slot]:
    """Each rank's slice of each parameter, as a plain tensor over the same memory."""
    slots = []
    for name, parameter in model.named_parameters():
        if not isinstance(parameter, DTensor):
            raise TypeError(f"{name} is not cut over ranks")
        local = parameter.to_local().detach().requires_grad_()
        slots.append(
            Slot(name, parameter, local, Cut(tuple(parameter.shape), _dim_of(parameter), _slice_of(parameter)))
        )
    return slots


def _slice_of(parameter: DTensor) -> tuple[tuple[int, int], ...]:
    """As `torch.chunk` splits: the first ranks have more, the last may have none."""
    mesh, dim = parameter.device_mesh, _dim_of(parameter)
    each = -(-parameter.shape[dim] // mesh.size())
    start = min(parameter.shape[dim], mesh.get_local_rank() * each)
    stop = min(parameter.shape[dim], start + each)
    if stop - start != parameter.to_local().shape[dim]:
        raise RuntimeError(
            f"this rank should hold rows {start:,} to {stop:,} of a parameter, and FSDP2 gave it "
            f"{parameter.to_local().shape[dim]:,}"
        )
    return ((start, stop),) if stop > start else ()


def _dim_of(parameter: DTensor) -> int:
    (placement,) = parameter.placements
    if not isinstance(placement, Shard):
        raise RuntimeError(f"FSDP2 placed a parameter as {placement}")
    return placement.dim


class BetweenReplicas:
    """A hook of FSDP2 on one module's gradient after it is scattered: gradients of an update's passes are added up
    here, and summed over the replicas at the last."""

    def __init__(self, between: ReplicaSum, key: int) -> None:
        self._between, self._key = between, key
        self.last = False
        self.added: Tensor | None = None

    def __call__(self, scattered: Tensor) -> None:
        if scattered.is_cuda:  # FSDP2 allocates it on another stream than this one
            scattered.record_stream(torch.cuda.current_stream(scattered.device))
        if not self.last:
            self.added = scattered.clone() if self.added is None else self.added.add_(scattered)
            scattered.zero_()
            return
        if self.added is not None:
            scattered.add_(self.added)
            self.added = None
        self._between(scattered, self._key)


def sum_between_replicas(model: Decoder, between: ReplicaSum) -> list[BetweenReplicas]:
    """Of a model that `shard_fully` has sharded over the ranks of one replica."""
    hooks = []
    for key, module in enumerate([*model.blocks, model]):
        if not isinstance(module, FSDPModule):
            raise TypeError("FSDP2 did not take the model over")
        hooks.append(BetweenReplicas(between, key))
        module.set_all_reduce_hook(hooks[-1])
    return hooks


class ShardedGradients:
    """Gradients that FSDP2 has sharded (see `gristmill.trainer.parallel.zero.Gradients`)."""

    def __init__(self, slots: list[Slot], hooks: Sequence[BetweenReplicas] = (), replicas: int = 1) -> None:
        self._slots, self._hooks, self._replicas = slots, hooks, replicas

    def backward(self, loss: Tensor, last: bool) -> None:
        for hook in self._hooks:
            hook.last = last
        loss.backward()  # type: ignore[no-untyped-call]

    def local(self) -> dict[str, Tensor]:
        gradients: dict[str, Tensor] = {}
        for slot in self._slots:
            gradient = slot.weight.grad
            gradients[slot.name] = (
                gradient.to_local() if isinstance(gradient, DTensor) else torch.zeros_like(slot.master)
            )
        return gradients

    def shared(self) -> Iterator[tuple[Tensor, int]]:
        yield from ((gradient, self._replicas) for gradient in self.local().values() if gradient.numel())

    def clear(self) -> None:
        for slot in self._slots:
            slot.weight.grad = None
        for hook in self._hooks:
            hook.added = None

    def broadcast_weights(self) -> None:
        """Slices are all there is."""


class ShardedMasters:
    """The optimiser steps on the shards themselves (see `gristmill.trainer.step.masters.MasterStore`), on the GPU, or
    on the host where FSDP2 keeps them there."""

    def __init__(self, slots: list[Slot]) -> None:
        self._slots = slots

    def step(
        self, optimizer: torch.optim.Optimizer, gradients: Mapping[str, Tensor], norm: Tensor, most: float
    ) -> None:
        for slot in self._slots:
            if not isinstance(slot.weight, DTensor):
                raise TypeError(f"{slot.name} is not cut over ranks")
            if slot.weight.to_local().data_ptr() != slot.master.data_ptr():
                raise RuntimeError(f"{slot.name}: FSDP2 moved this slice after the optimiser was made")
            slot.master.grad = gradients[slot.name]
        scale_gradients(list(gradients.values()), norm, most)
        step_if_finite(optimizer, norm if all(slot.master.is_cuda for slot in self._slots) else norm.cpu())
        for slot in self._slots:
            slot.master.grad = None

    def write_weights(self) -> None:
        """They are the weights."""
