"""AdamW with parameter groups, and one update from several small batches.

Matrices decay; vectors (norms, biases) and embeddings do not, because decay there only fights the norm that follows.
Fused on CUDA: one kernel a group. An update adds the gradients of all its losses (each already divided by what the
whole update counts), sums them over the ranks, clips, steps. A gradient that is not finite changes nothing, whatever
the optimiser and the device (`step_if_finite`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as checked_dataclass
from torch import Tensor, nn

from gristmill.trainer.checked import CHECKED, BelowOne, Number
from gristmill.trainer.parallel.ranks import ALONE, RankGroup
from gristmill.trainer.step.one_pass_adamw import OnePassAdamW
from gristmill.trainer.step.precision import Masters

Loop = Literal["fused", "foreach", "single"]
# A norm that gradients are scaled down to; math.inf clips nothing. Elsewhere 0 means none; here nothing would be left.
Clip = Annotated[float, Field(gt=0)]


@checked_dataclass(frozen=True, config=CHECKED)
class AdamW:
    """Settings. `faster` multiplies the rate of the parameters whose names begin so: (("heads.", 10.0),).

    `loop`: one kernel for many parameters, an operation at a time for many, or one parameter at a time; None: fused on
    CUDA, else torch's choice.
    """

    rate: Number = 1e-4  # peak learning rate
    weight_decay: Number = 0.01  # of matrices, but not of embeddings
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.98)  # decay of the two moments
    eps: Number = 1e-8  # added to the root of the second moment
    clip: Clip = 1.0  # largest norm of all gradients
    faster: tuple[tuple[str, float], ...] = ()  # beginnings of names, and by how much their rate is larger
    loop: Loop | None = None  # fused on CUDA, else torch's choice unless given

    def optimizer(self, model: nn.Module, masters: Masters | None = None) -> torch.optim.AdamW:
        """For the parameters of `model` that learn, or for their float32 masters."""
        groups = parameter_groups(model, self, masters)
        loop_options = loop_arguments(self.loop, [p for group in groups for p in group["params"]])
        one_pass = (
            masters is not None and self.loop is None and all(p.is_cuda for group in groups for p in group["params"])
        )
        return (OnePassAdamW if one_pass else torch.optim.AdamW)(
            groups, lr=self.rate, betas=self.betas, eps=self.eps, **loop_options
        )


def loop_arguments(loop: Loop | None, parameters: Sequence[Tensor]) -> dict[str, Any]:
    """As arguments of torch's optimisers."""
    if loop is None:
        return {"fused": all(p.is_cuda for p in parameters), "foreach": None}
    return {"fused": loop == "fused", "foreach": loop == "foreach"}


def parameter_groups(model: nn.Module, settings: AdamW, masters: Masters | None = None) -> list[dict[str, Any]]:
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
    ranks: RankGroup = ALONE,
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
    total = ranks.all_reduce(total)
    for parameter in learning:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    ranks.sum_gradients(learning)
    norm = clip_gradients(learning, clip)
    step_if_finite(optimizer, norm)
    return Update(total, norm)


def step_if_finite(optimizer: torch.optim.Optimizer, norm: Tensor) -> None:
    """Optimisers that look at `found_inf` themselves do so on the device; others cost a synchronisation."""
    if norm.is_cuda and getattr(optimizer, "_step_supports_amp_scaling", False):
        optimizer.found_inf = (~norm.isfinite()).float()  # type: ignore[attr-defined]
        optimizer.step()
    elif norm.isfinite():
        optimizer.step()


def clip_gradients(parameters: Sequence[Tensor], most: float) -> Tensor:
    """The norm of all gradients together; they are scaled down to `most`."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = gradient_norm(gradients)
    torch._foreach_mul_(gradients, (most / (norm + 1e-6)).clamp(max=1.0))
    return norm


@torch.no_grad()
def gradient_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Of all gradients together, in float32 at the least: the norm of a bf16 tensor is not rounded to bf16 on the way.
    On the device of the first one."""
    norms: list[Tensor] = []
    for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):
        of_dtype = [gradient for gradient in gradients if gradient.dtype == dtype]
        norms += torch._foreach_norm(of_dtype, 2, dtype=torch.promote_types(dtype, torch.float32))
    if not norms:
        return torch.zeros(())
    widest = torch.float64 if any(norm.dtype == torch.float64 for norm in norms) else torch.float32
    total: Tensor = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device, widest) for norm in norms]))
    return total
