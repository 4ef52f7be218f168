"""AdamW with parameter groups, the masters that an optimizer steps on, and one update from several small batches.

Matrices decay; vectors (norms, biases) and embeddings do not, because decay there only fights the norm that follows.
Fused on CUDA: one kernel a group. A gradient that is not finite changes nothing, whatever the optimizer and the device
(`step_if_finite`).

Masters live on the GPU beside the weights, or in host memory, where they take no room on the GPU (12 bytes a parameter
with AdamW): gradients are copied over in pinned memory, the CPU steps in float32, and the new weights are copied back
in the model's precision. The result is the same to rounding, and slower: 6 bytes a parameter cross the bus each time,
and the CPU's memory is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as checked_dataclass
from torch import Tensor, nn

from gristmill.kernels.gpu.plain import AdamWRule, adamw_step, step_scalars
from gristmill.trainer.checked import CHECKED, BelowOne, Number
from gristmill.trainer.step.precision import Precision
from gristmill.trainer.step.world import ONE, World

# A norm that gradients are scaled down to; math.inf clips nothing. Elsewhere 0 means none; here nothing would be left.
Clip = Annotated[float, Field(gt=0)]


@checked_dataclass(frozen=True, config=CHECKED)
class AdamW:
    """Settings. `faster` multiplies the rate of the parameters whose names begin so: (("heads.", 10.0),)."""

    rate: Number = 1e-4  # peak learning rate
    weight_decay: Number = 0.01  # of matrices, but not of embeddings
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.98)  # decay of the two moments
    eps: Number = 1e-8  # added to the root of the second moment
    clip: Clip = 1.0  # largest norm of all gradients
    faster: tuple[tuple[str, float], ...] = ()  # beginnings of names, and by how much their rate is larger

    def optimizer(self, model: nn.Module, masters: MasterLookup | None = None) -> torch.optim.AdamW:
        """For the parameters of `model` that learn, or for their float32 masters."""
        groups = parameter_groups(model, self, masters)
        fused = all(p.is_cuda for group in groups for p in group["params"])
        kind = OnePassAdamW if fused and masters is not None else torch.optim.AdamW
        return kind(groups, lr=self.rate, betas=self.betas, eps=self.eps, fused=fused)


def parameter_groups(model: nn.Module, settings: AdamW, masters: MasterLookup | None = None) -> list[dict[str, Any]]:
    """Groups in an order that depends on the model alone. `base_rate` is the peak rate, `names` are the parameters'
    names."""
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    groups: dict[tuple[float, float], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        decay = settings.weight_decay if parameter.ndim >= 2 and id(parameter) not in embeddings else 0.0
        rate = settings.rate * next((times for prefix, times in settings.faster if name.startswith(prefix)), 1.0)
        group = groups.setdefault(
            (decay, rate), {"params": [], "names": [], "weight_decay": decay, "lr": rate, "base_rate": rate}
        )
        group["params"].append(masters.of(parameter) if masters else parameter)
        group["names"].append(name)
    return list(groups.values())


# --- masters ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slot:
    """A parameter that this process steps on: the weight that the model computes with, and the master that the
    optimizer changes (the same tensor, or a float32 copy)."""

    name: str
    weight: Tensor
    master: Tensor


class MasterLookup:
    """The master of a weight, for optimizers; a weight that this process does not step on stands for itself."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._of = {id(slot.weight): slot.master for slot in slots}

    def of(self, weight: Tensor) -> Tensor:
        return self._of.get(id(weight), weight)


class MasterStore(Protocol):
    def step(
        self, optimizer: torch.optim.Optimizer, gradients: Mapping[str, Tensor], norm: Tensor, most: float
    ) -> None:
        """Scales gradients down to the norm `most` and steps, unless `norm` is not finite."""

    def write_weights(self) -> None:
        """Rounds the masters into the weights."""


class DeviceMasters:
    """An optimizer with a method `step_into(weights, masters, gradients, norm, most)` clips, steps and rounds by
    itself, in one pass over its numbers."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots
        self._copied = [slot for slot in slots if slot.master is not slot.weight]

    def step(self, optimizer: Any, gradients: Mapping[str, Tensor], norm: Tensor, most: float) -> None:
        if hasattr(optimizer, "step_into"):
            slots = self._slots
            optimizer.step_into(
                [s.weight for s in slots], [s.master for s in slots], [gradients[s.name] for s in slots], norm, most
            )
            return
        for slot in self._slots:
            slot.master.grad = gradients[slot.name]
        scale_gradients(list(gradients.values()), norm, most)
        step_if_finite(optimizer, norm)
        for slot in self._slots:
            slot.master.grad = None
        self.write_weights()

    @torch.no_grad()
    def write_weights(self) -> None:
        if self._copied:
            torch._foreach_copy_([slot.weight for slot in self._copied], [slot.master for slot in self._copied])


class HostMasters:
    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots
        pinned = any(slot.weight.is_cuda for slot in slots)
        self._gradients = [torch.empty_like(slot.master, pin_memory=pinned) for slot in slots]
        self._rounded = [
            slot.master.detach()
            if slot.weight.dtype == slot.master.dtype
            else torch.empty(slot.weight.shape, dtype=slot.weight.dtype, pin_memory=pinned)
            for slot in slots
        ]

    def step(
        self, optimizer: torch.optim.Optimizer, gradients: Mapping[str, Tensor], norm: Tensor, most: float
    ) -> None:
        scale_gradients(list(gradients.values()), norm, most)
        for slot, gradient in zip(self._slots, self._gradients, strict=True):
            gradient.copy_(gradients[slot.name], non_blocking=True)
        norm_on_host = norm.cpu()  # synchronises with all copies before it
        for slot, gradient in zip(self._slots, self._gradients, strict=True):
            slot.master.grad = gradient
        step_if_finite(optimizer, norm_on_host)
        for slot in self._slots:
            slot.master.grad = None
        self.write_weights()

    @torch.no_grad()
    def write_weights(self) -> None:
        """The next forward pass waits for its weights on the GPU; the host does not wait."""
        for slot, rounded in zip(self._slots, self._rounded, strict=True):
            if rounded.dtype != slot.master.dtype:
                rounded.copy_(slot.master)
            slot.weight.copy_(rounded, non_blocking=True)


def scale_gradients(gradients: Sequence[Tensor], norm: Tensor, most: float) -> None:
    """In place, on the device or on the host."""
    factor = (most / (norm + 1e-6)).clamp(max=1.0)
    for kind in {gradient.device.type for gradient in gradients}:
        torch._foreach_mul_([gradient for gradient in gradients if gradient.device.type == kind], factor.to(kind))


def master_of(weight: Tensor, precision: Precision, offload: bool, device: torch.device) -> Tensor | None:
    """A float32 copy; None: the weight itself."""
    if offload:
        return copy_to_host(weight, device.type == "cuda")
    return weight.to(device, torch.float32, copy=True).requires_grad_() if precision == "bf16" else None


def copy_to_host(weight: Tensor, pinned: bool) -> Tensor:
    """A float32 copy; `pinned`: in memory that the GPU can read by itself."""
    copy = torch.empty(weight.shape, dtype=torch.promote_types(weight.dtype, torch.float32), pin_memory=pinned)
    return copy.copy_(weight.detach()).requires_grad_()


def use_fused_kernel(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """AdamW on the CPU by torch's fused kernel: it reads each number once."""
    if isinstance(optimizer, torch.optim.AdamW):
        for group in optimizer.param_groups:
            group["fused"], group["foreach"] = True, False
    return optimizer


# --- one pass over all numbers ----------------------------------------------------------------------------------------


class OnePassAdamW(torch.optim.AdamW):
    """AdamW on CUDA that reads and writes each number once: clipping, the step, and the rounding of masters into bf16
    weights in one kernel a parameter.

    Its state is that of torch.optim.AdamW, so either can resume from a checkpoint of the other. Torch's own takes four
    passes (gradients to float32, clip, step, round): 22 ms of an update of 1.3 billion parameters on an H200, where
    this takes 10 (benchmarks/training/gpu_kernels.py).
    """

    @torch.no_grad()
    def step_into(
        self,
        weights: Sequence[Tensor],
        masters: Sequence[Tensor],
        gradients: Sequence[Tensor],
        norm: Tensor,
        most: float,
    ) -> None:
        """One step of `masters` (this optimiser's parameters), whose gradients may be of lower precision and are scaled
        down to the norm `most`; `weights` become the masters rounded. A norm that is not finite leaves all as it was.
        """
        index_of = {id(master): number for number, master in enumerate(masters)}
        found_inf = (~norm.isfinite()).float()
        factor = (most / (norm + 1e-6)).clamp(max=1.0)
        step = _on_cuda if norm.is_cuda else adamw_step
        for group in self.param_groups:
            states = [self._state_of(parameter) for parameter in group["params"]]
            # A list: a single tensor would cause a synchronisation.
            torch._foreach_add_([state["step"] for state in states], [1 - found_inf] * len(states))
            rate = torch.full((), group["lr"], dtype=torch.float64, device=norm.device)
            scalars = step_scalars(rate, states[0]["step"], factor, found_inf, group["betas"])
            rule = AdamWRule(group["betas"], group["eps"], group["weight_decay"])
            for parameter, state in zip(group["params"], states, strict=True):
                index = index_of[id(parameter)]
                step(weights[index], gradients[index], parameter, state["exp_avg"], state["exp_avg_sq"], scalars, rule)

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        return state


def _on_cuda(
    weight: Tensor, gradient: Tensor, master: Tensor, mean: Tensor, square: Tensor, scalars: Tensor, rule: AdamWRule
) -> None:
    from gristmill.kernels.gpu import adamw

    adamw.adamw_step(weight, gradient, master, mean, square, scalars, rule)


# --- one update, for small models -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Update:
    """The sum of an update's losses and the gradient's norm before clipping, both still on the device."""

    loss: Tensor
    norm: Tensor


def update(
    optimizer: torch.optim.Optimizer,
    learning: Sequence[Tensor],
    losses: Iterable[Tensor],
    share: float,
    clip: float,
    world: World = ONE,
) -> Update:
    """One step of the optimiser at `share` of the peak rate. `learning` are the model's parameters; `losses` is read
    lazily, one graph at a time.

    A gradient that is not finite leaves the weights as they were (its norm shows it); on CUDA that costs no
    synchronisation.
    """
    for group in optimizer.param_groups:
        group["lr"] = group["base_rate"] * share
    for parameter in learning:
        parameter.grad = None
    total: Tensor | None = None
    for loss in losses:
        loss.backward()  # type: ignore[no-untyped-call]
        total = loss.detach() if total is None else total + loss.detach()
    if total is None:
        total = torch.zeros((), device=learning[0].device)
    total = world.total(total)
    for parameter in learning:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    world.sum_gradients(learning)
    norm = nn.utils.clip_grad_norm_(learning, clip)
    step_if_finite(optimizer, norm)
    return Update(total, norm)


def step_if_finite(optimizer: torch.optim.Optimizer, norm: Tensor) -> None:
    """Optimisers that look at `found_inf` themselves do so on the device; others cost a synchronisation."""
    if norm.is_cuda and getattr(optimizer, "_step_supports_amp_scaling", False):
        optimizer.found_inf = (~norm.isfinite()).float()  # type: ignore[attr-defined]
        optimizer.step()
    elif norm.isfinite():
        optimizer.step()
