"""AdamW on CUDA that reads and writes each number once: clipping, the step, and the rounding of masters into bf16
weights in one kernel a parameter.

Its state is that of torch.optim.AdamW, so either can resume from a checkpoint of the other. Torch's own takes four
passes (gradients to float32, clip, step, round): 22 ms of an update of 1.3 billion parameters on an H200, where this
takes 10 (benchmarks/training/gpu_kernels.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gristmill.kernels.gpu.plain import AdamWRule, adamw_step, step_scalars


class OnePassAdamW(torch.optim.AdamW):
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
