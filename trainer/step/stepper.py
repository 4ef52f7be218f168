"""One model and its optimizer in its precision: what a training loop calls.

- backward (several times): gradients of each pass are accumulated in float32
- step: the norm of all gradients, clip, the optimizer on the masters, and the new weights back to where the model
  computes

| precision | the model holds | the optimizer steps on | matmuls |
| --- | --- | --- | --- |
| float32 | float32 | the same | float32 |
| bf16 | bf16 | float32 masters | bf16 |
| fp16 | float32 | the same | fp16 by autocast; the loss is scaled |

An update whose gradients are not finite leaves weights, masters and the optimizer's state as they were, without a
synchronisation on CUDA: the norm that `step` returns is then not finite either.

How gradients are collected, where masters are kept, which processes there are, and how a checkpoint takes tensors are
objects that a stepper is given.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gristmill.trainer.model.model import Decoder
from gristmill.trainer.model.packed import PackedTokens
from gristmill.trainer.step import checkpoint
from gristmill.trainer.step.balance import BALANCE, Balance, LoadBalance
from gristmill.trainer.step.checkpoint import WHOLE, Due, Restored, Tensors
from gristmill.trainer.step.gradients import BucketedGradients, Gradients, buckets_of
from gristmill.trainer.step.optim import (
    DeviceMasters,
    HostMasters,
    MasterLookup,
    MasterStore,
    Slot,
    master_of,
    use_fused_kernel,
)
from gristmill.trainer.step.precision import LossScale, Precision, autocast_for
from gristmill.trainer.step.recompute import Recompute, prepare_blocks
from gristmill.trainer.step.world import ONE, World


class Stepper:
    """Created by `stepper_of`."""

    def __init__(
        self,
        model: Decoder,
        optimizer: torch.optim.Optimizer,
        clip: float,
        slots: Sequence[Slot],
        gradients: Gradients,
        masters: MasterStore,
        precision: Precision,
        device: torch.device,
        balance: Balance,
        world: World = ONE,
        files: Tensors = WHOLE,
    ) -> None:
        self.model, self.optimizer, self.clip, self.device, self.precision = model, optimizer, clip, device, precision
        self.world = world
        self.scale = LossScale(device) if precision == "fp16" else None
        self._slots, self._gradients, self._masters, self._files = slots, gradients, masters, files
        self.balance = LoadBalance(model, balance, world)

    def computing(self) -> AbstractContextManager[object]:
        """Around what uses the model's weights, evaluation too."""
        return computing_in(self.precision, self.device)

    @property
    def passes_at_once(self) -> bool:
        """Whether `accumulate` needs all passes of an update before it begins."""
        return False

    def part_of(self, packed: PackedTokens) -> PackedTokens:
        """What this process computes of a line of rows, on the CPU."""
        return packed

    def loss(self, packed: PackedTokens) -> Tensor:
        """The sum over the targets; divide it by what the whole update counts."""
        with self.computing():
            total: Tensor = self.model(packed)
        return total

    def backward(self, loss: Tensor, last: bool) -> None:
        """Adds to the gradients; `last`: of the update."""
        self._gradients.backward(self.scaled(loss), last)

    def scaled(self, loss: Tensor) -> Tensor:
        return self.scale.scaled(loss) if self.scale else loss

    def accumulate(self, steps: Iterable[tuple[PackedTokens, bool]], whole: Tensor) -> Tensor:
        """All passes of an update that counts `whole` targets, each with whether it is the last. Returns the sum of
        the losses, float64."""
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for packed, last in steps:
            loss = self.loss(packed)
            total += loss.detach().double()
            self.backward(loss / whole, last)
        return self.world.total(total)

    def step(self, share: float, limit: Tensor | None = None, poisoned: Tensor | None = None) -> Tensor:
        """One step at `share` of the peak rate. Returns the gradient's norm before clipping, on the device; a norm
        above `limit` leaves everything as it was too.

        `poisoned`: whether the update is refused for its loss, which the loss scale must ignore.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = group["base_rate"] * share
        gradients = list(self._gradients.flat())
        if self.scale:
            self.scale.unscale_(gradients)
        norm = self._norm(gradients)
        allowed = norm if limit is None else torch.where(norm <= limit, norm, torch.inf)
        self._masters.step(self.optimizer, self._gradients.local(), allowed, self.clip)
        if self.scale:
            self.scale.update((~norm.isfinite()).float(), poisoned)
        self.balance.step(allowed.isfinite())
        del gradients
        self._gradients.clear()
        self._send_weights()
        return norm

    def drop_gradients(self) -> None:
        """Of an update that is abandoned after an error in the middle of it."""
        self._gradients.clear()
        self.balance.drop()

    def weights(self) -> dict[str, Tensor]:
        """Float32, whole, on the CPU, by the model's names. Every process calls this; {} but in the first."""
        tensors = self._tensors()
        wholes = self._files.wholes(tensors, self._files.entries(tensors))
        return {name: whole.to(torch.float32, copy=True) for name, whole in wholes}

    def save(self, folder: Path, step: int, facts: Mapping[str, Any], keep: int = 2, due: Due | None = None) -> None:
        """Every process calls this, the first one writes (`gristmill.trainer.step.checkpoint`)."""
        also = {**({"loss_scale": self.scale.state()} if self.scale else {}), **self.balance.state()}
        checkpoint.save(folder, step, self._tensors(), self.optimizer, facts, keep, also, due, self._files)

    def load(self, path: Path) -> Restored:
        """However many processes saved it. All call this and see the same files."""
        restored = checkpoint.load(path, self._tensors(), self.optimizer, self._files)
        self._masters.write_weights()
        self._send_weights()
        if self.scale and "loss_scale" in restored.also:
            self.scale.load_state(restored.also["loss_scale"])
        self.balance.load_state(restored.also)
        return restored

    def _tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds beside the optimizer's state."""
        return {slot.name: slot.master for slot in self._slots} | self.balance.buffers(self.model)

    # Hooks of steppers over several processes

    def _norm(self, gradients: Sequence[Tensor]) -> Tensor:
        return squares_of(gradients, self.device).sqrt()

    def _send_weights(self) -> None:
        self._gradients.send_weights()


@torch.no_grad()
def squares_of(gradients: Sequence[Tensor], device: torch.device) -> Tensor:
    """The sum of the squares of their norms, in float32 at the least."""
    if not gradients:
        return torch.zeros((), dtype=torch.float32, device=device)
    wide = torch.promote_types(gradients[0].dtype, torch.float32)
    return torch.stack(torch._foreach_norm(list(gradients), 2, dtype=wide)).to(device).square().sum()


def stepper_of(
    model: Decoder,
    optimizer: Any,
    precision: Precision = "float32",
    *,
    balance: Balance = BALANCE,
    offload: bool = False,
    recompute: Recompute = "none",
    compile: bool = False,
    device: torch.device | None = None,
) -> Stepper:
    """`optimizer`: the settings (`gristmill.trainer.step.optim.AdamW`, `gristmill.trainer.step.muon.Muon`). The model
    is taken over and changed in place; it may be on the CPU and is moved to `device` (None: it stays). `balance`: how
    experts' loads are kept even. `offload`: the optimizer's masters and state live on the host.
    """
    device = device or next(model.parameters()).device
    check_model(model)
    if any(p.dtype in (torch.bfloat16, torch.float16) for p in model.parameters()):
        model.float()
    prepare_blocks(model, recompute, compile)
    slots = slots_on(device, model, precision, offload)
    gradients = BucketedGradients(buckets_of(dict(model.named_parameters())))
    masters: MasterStore = HostMasters(slots) if offload else DeviceMasters(slots)
    built = optimizer_for(model, optimizer, slots, offload)
    if not offload and hasattr(built, "step_into"):
        gradients.keep_in_place()
    return Stepper(model, built, optimizer.clip, slots, gradients, masters, precision, device, balance)


def slots_on(
    device: torch.device, model: Decoder, precision: Precision, offload: bool, stepped: Container[str] | None = None
) -> list[Slot]:
    """Moves the model to the device, in its precision, and makes masters of the parameters that are `stepped` here
    (None: all)."""
    learning = [(name, p) for name, p in model.named_parameters() if stepped is None or name in stepped]
    copies = {name: master_of(p.detach(), precision, offload, device) for name, p in learning}
    model.to(device=device, dtype=torch.bfloat16 if precision == "bf16" else None)
    return [
        Slot(name, weight, weight if (copy := copies[name]) is None else copy)
        for name, weight in model.named_parameters()
        if name in copies
    ]


def optimizer_for(model: Decoder, settings: Any, slots: Sequence[Slot], offload: bool) -> torch.optim.Optimizer:
    """Of the masters in `slots`; the other parameters of the model are another process's."""
    built: torch.optim.Optimizer = settings.optimizer(model, MasterLookup(slots))
    keep_only(built, {slot.name for slot in slots})
    if offload:
        use_fused_kernel(built)
    return built


def computing_in(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    return autocast_for(device, "fp16") if precision == "fp16" else nullcontext()


def keep_only(optimizer: torch.optim.Optimizer, names: set[str]) -> None:
    """Removes all other parameters from an optimizer that has not stepped yet."""
    for group in optimizer.param_groups:
        kept = [name in names for name in group["names"]]
        for key, values in group.items():
            if isinstance(values, list) and len(values) == len(kept):
                group[key] = [value for value, keep in zip(values, kept, strict=True) if keep]
    optimizer.param_groups[:] = [group for group in optimizer.param_groups if group["names"]]


def check_model(model: nn.Module) -> None:
    if frozen := [name for name, p in model.named_parameters() if not p.requires_grad]:
        raise ValueError(f"every parameter must learn; {', '.join(frozen[:3])} are told not to")
