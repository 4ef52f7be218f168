"""AdamW with groups of parameters, and one update from several small batches.

Matrices decay; vectors (norms, biases) and embeddings do not, since decay there only fights the norm that follows. Fused on CUDA: one kernel a
group. An update adds the gradients of all its losses (each already divided by what the whole update counts), sums them over the ranks, clips, steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trainer.parallel import ALONE, Ranks
from trainer.precision import Masters


@dataclass(frozen=True)
class AdamW:
    """Settings. `faster` multiplies the rate of the parameters whose names begin so: (("heads.", 10.0),)."""

    rate: float = 1e-4
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-8
    clip: float = 1.0
    faster: tuple[tuple[str, float], ...] = ()

    def optimizer(self, model: nn.Module, masters: Masters | None = None) -> torch.optim.AdamW:
        """For the parameters of `model` that learn, or for their float32 masters."""
        groups = parameter_groups(model, self, masters)
        on_cuda = all(p.is_cuda for group in groups for p in group["params"])
        return torch.optim.AdamW(groups, lr=self.rate, betas=self.betas, eps=self.eps, fused=on_cuda)


def parameter_groups(model: nn.Module, settings: AdamW, masters: Masters | None = None) -> list[dict[str, Any]]:
    """Groups in an order that depends on the model alone. `base_rate` is the peak rate, `names` are the parameters' names."""
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    groups: dict[tuple[float, float], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        decay = settings.weight_decay if parameter.ndim >= 2 and id(parameter) not in embeddings else 0.0
        rate = settings.rate * next((times for prefix, times in settings.faster if name.startswith(prefix)), 1.0)
        group = groups.setdefault((decay, rate), {"params": [], "names": [], "weight_decay": decay, "lr": rate, "base_rate": rate})
        group["params"].append(masters.of(parameter) if masters else parameter)
        group["names"].append(name)
    return list(groups.values())


@dataclass(frozen=True)
class Update:
    """What an update was: the sum of its losses and the gradient's norm before clipping, both still on the device."""

    loss: Tensor
    norm: Tensor


def update(
    optimizer: torch.optim.Optimizer,
    learning: Sequence[Tensor],
    losses: Iterable[Tensor],
    share: float,
    clip: float,
    ranks: Ranks = ALONE,
    masters: Masters | None = None,
) -> Update:
    """One step of the optimiser at `share` of the peak rate. `learning` are the model's parameters; `losses` is read lazily, one graph at a time.

    A gradient that is not finite leaves the weights as they were (its norm says so); on CUDA that costs no wait.
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
    total = ranks.summed(total)
    for parameter in learning:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    ranks.sum_gradients(learning)
    if masters:
        masters.take_gradients()
        learning = masters.masters
    norm = clipped(learning, clip)
    if all(parameter.is_cuda for parameter in learning):
        optimizer.found_inf = (~norm.isfinite()).float()  # type: ignore[attr-defined]  # the fused kernel then leaves all as it was
        optimizer.step()
    elif norm.isfinite():
        optimizer.step()
    if masters:
        masters.give_weights()
    return Update(total, norm)


def clipped(parameters: Sequence[Tensor], most: float) -> Tensor:
    """The norm of all gradients, which are scaled down to `most` together."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    torch._foreach_mul_(gradients, (most / (norm + 1e-6)).clamp(max=1.0))
    return norm
