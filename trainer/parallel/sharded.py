"""Weights, gradients and optimiser state sharded over the ranks by FSDP2: stages 2 and 3 of ZeRO (Rajbhandari et al.
2020; Zhao et al. 2023).

Each rank keeps a shard of every float32 weight, and steps on that. Before a block's forward its weights are gathered,
in bf16 where that is the precision; after its backward the gradients are summed in float32 and scattered. Stage 2 keeps
the whole weights of a block between its forward and its backward pass, stage 3 gathers them twice. Gradients are
scattered after every pass, so none are ever kept whole.

With replicas a shard is of one replica's ranks (hybrid sharding; Zhao et al. 2023, section 3.2.2), and its gradient is
summed over the replicas at an update's last pass alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
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

from gristmill.trainer.model.model import Decoder
from gristmill.trainer.parallel.parts import Cut
from gristmill.trainer.parallel.ranks import Grid
from gristmill.trainer.step.optim import Slot, scale_gradients, step_if_finite


def shard_fully(model: Decoder, grid: Grid, zero: int, bf16: bool, offload: bool, device: torch.device) -> Decoder:
    """In place; `model` may be on the CPU: each block is moved to the device and sharded in turn. All ranks must hold
    the same weights."""
    shards = cast(torch.distributed.ProcessGroup, grid.shards.group or torch.distributed.group.WORLD)
    if grid.replicas.count == 1:
        mesh = DeviceMesh.from_group(shards, device.type)
    else:
        places = torch.arange(grid.all.count).view(grid.replicas.count, grid.shards.count)
        groups = [grid.replicas.group, shards]
        mesh = DeviceMesh.from_group(groups, device.type, places, mesh_dim_names=("replicate", "shard"))
    policy = (
        MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
        if bf16
        else MixedPrecisionPolicy(cast_forward_inputs=False)
    )
    options: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": policy,
        "shard_placement_fn": partial(_dimension, grid.shards.count),
    }
    if offload:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=device.type == "cuda")
    for block in model.blocks:
        fully_shard(block, **options, reshard_after_forward=zero == 3)
    # Embedding, norm and head stay gathered: the backward pass begins with them.
    fully_shard(model, **options, reshard_after_forward=False)
    if not isinstance(model, FSDPModule):
        raise TypeError("FSDP2 did not take the model over")
    for name in ("hidden", "logits"):  # as `forward`, which is the loss
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


def slots_of(model: Decoder) -> tuple[list[Slot], dict[str, Cut]]:
    """Each rank's slice of each parameter, as a plain tensor over the same memory, and which part that is."""
    slots, cuts = [], {}
    for name, parameter in model.named_parameters():
        if not isinstance(parameter, DTensor):
            raise TypeError(f"{name} is not cut over ranks")
        local = parameter.to_local().detach().requires_grad_()
        slots.append(Slot(name, parameter, local))
        cuts[name] = Cut(tuple(parameter.shape), _dim_of(parameter), _slice_of(parameter))
    return slots, cuts


def _slice_of(parameter: DTensor) -> tuple[tuple[int, int], ...]:
    """As `torch.chunk` splits: the first ranks have more, the last may have none."""
    mesh, dim = parameter.device_mesh, _dim_of(parameter)
    each = -(-parameter.shape[dim] // mesh.size(mesh.ndim - 1))
    start = min(parameter.shape[dim], mesh.get_local_rank(mesh.ndim - 1) * each)
    stop = min(parameter.shape[dim], start + each)
    if stop - start != parameter.to_local().shape[dim]:
        raise RuntimeError(
            f"this rank should hold rows {start:,} to {stop:,} of a parameter, and FSDP2 gave it "
            f"{parameter.to_local().shape[dim]:,}"
        )
    return ((start, stop),) if stop > start else ()


def _dim_of(parameter: DTensor) -> int:
    placement = parameter.placements[-1]
    if not isinstance(placement, Shard):
        raise RuntimeError(f"FSDP2 placed a parameter as {placement}")
    return placement.dim


class ShardedGradients:
    """Gradients that FSDP2 has sharded (see `gristmill.trainer.step.gradients.Gradients`)."""

    def __init__(self, model: Decoder, slots: list[Slot], replicas: int) -> None:
        self._model, self._slots, self._replicas = model, slots, replicas

    def backward(self, loss: Tensor, last: bool) -> None:
        if self._replicas > 1 and isinstance(self._model, FSDPModule):
            self._model.set_requires_all_reduce(last)
        loss.backward()  # type: ignore[no-untyped-call]

    def local(self) -> dict[str, Tensor]:
        gradients: dict[str, Tensor] = {}
        for slot in self._slots:
            gradient = slot.weight.grad
            gradients[slot.name] = (
                gradient.to_local() if isinstance(gradient, DTensor) else torch.zeros_like(slot.master)
            )
        return gradients

    def flat(self) -> Iterator[Tensor]:
        yield from (gradient for gradient in self.local().values() if gradient.numel())

    def copies(self) -> Iterable[int]:
        """How many ranks hold each tensor of `flat`."""
        return [self._replicas for _ in self.flat()]

    def clear(self) -> None:
        for slot in self._slots:
            slot.weight.grad = None

    def send_weights(self) -> None:
        """Slices are all there is."""


class ShardedMasters:
    """The optimiser steps on the shards themselves (see `gristmill.trainer.step.optim.MasterStore`), on the GPU, or
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
