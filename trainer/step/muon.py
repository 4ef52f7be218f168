"""Muon: momentum whose matrices are orthogonalised before they are added to the weights (Jordan et al. 2024), and AdamW
for all else.

Matrices of the blocks, each expert's too, use Muon; the embedding, the head and the norms AdamW. A matrix that holds
several (queries, keys and values; gate and up) is orthogonalised part by part, because each is a map of its own. An
orthogonal matrix of r x c has entries of root mean square 1 / sqrt(max(r, c)), AdamW's steps about 0.2: multiplied by
0.2 sqrt(max(r, c)) (Moonlight, Liu et al. 2025) both take the same rate and weight decay.

Newton-Schulz with Jordan's coefficients: five steps bring singular values between about 0.7 and 1.2, which serves as
well as 1 and needs only matmuls: in bf16 on CUDA, all matrices of one shape in one batch. Gradients that are not finite
(`found_inf`) change nothing, without a synchronisation on CUDA.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from gristmill.trainer.checked import CHECKED, BelowOne, Number
from gristmill.trainer.model.model import Block, SparseBlock
from gristmill.trainer.step.optim import AdamW, Clip, MasterLookup, parameter_groups

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5
AT_ONCE = 1 << 27  # entries orthogonalised together: 256 MB of bf16, a few times that in use
Scale = Literal["adamw", "spectral"]
OF_THE_REST = AdamW(rate=1e-3, weight_decay=0.1, betas=(0.9, 0.95))


@dataclass(frozen=True, config=CHECKED)
class Muon:
    """Settings. `adamw` are those of the parameters that are no matrices of blocks; its `clip` is ignored, because all
    gradients are clipped together.

    `scale`: "adamw" takes rates that suit AdamW; "spectral" multiplies by sqrt(max(1, rows / columns)), as Jordan's own
    runs do, at rates about 0.02.
    """

    rate: Number = 1e-3  # peak learning rate
    weight_decay: Number = 0.1  # of the matrices
    momentum: BelowOne = 0.95  # of the gradients
    nesterov: bool = True  # looks ahead by one step
    clip: Clip = 1.0  # largest norm of all gradients
    scale: Scale = "adamw"  # adamw: rates that suit AdamW; spectral: about 0.02
    adamw: AdamW = OF_THE_REST  # for all that is no matrix of a block

    def optimizer(self, model: nn.Module, masters: MasterLookup | None = None) -> MuonOptimizer:
        """For the parameters of `model` that learn, or for their float32 masters."""
        learning = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        matrices = [name for name, parameter in learning.items() if parameter.ndim >= 2 and "blocks" in name.split(".")]
        if not matrices:
            raise ValueError("Muon is for the matrices of a model's `blocks`, and this model has none; take AdamW")
        parts = rows_of_parts(model)
        muon_group = {
            "params": [masters.of(learning[name]) if masters else learning[name] for name in matrices],
            "names": matrices,
            "parts": {name: parts.get(name, (learning[name].shape[0],)) for name in matrices},
            "way": "muon",
            "lr": self.rate,
            "base_rate": self.rate,
            "weight_decay": self.weight_decay,
            "momentum": self.momentum,
            "nesterov": self.nesterov,
            "scale": self.scale,
        }
        adamw_groups = [_without(group, set(matrices)) for group in parameter_groups(model, self.adamw, masters)]
        adamw = {"way": "adamw", "betas": self.adamw.betas, "eps": self.adamw.eps}
        of_the_rest = [
            {**group, **adamw, "fused": all(p.is_cuda for p in group["params"]), "foreach": None}
            for group in adamw_groups
            if group["names"]
        ]
        return MuonOptimizer([muon_group, *of_the_rest])


def _without(group: dict[str, Any], names: set[str]) -> dict[str, Any]:
    kept = [(name, p) for name, p in zip(group["names"], group["params"], strict=True) if name not in names]
    return {**group, "names": [name for name, _ in kept], "params": [p for _, p in kept]}


def rows_of_parts(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Rows of each matrix in a matrix that holds several, by the parameter's name."""
    rows: dict[int, tuple[int, ...]] = {}
    for block in model.modules():
        if isinstance(block, Block):
            queries, keys = block.heads * block.head_size, block.kv_heads * block.head_size
            gates = [block.gate_up.weight] if hasattr(block, "gate_up") else []
            if isinstance(block, SparseBlock):
                gates.append(block.experts.gate_up)
                rows[id(block.experts.down)] = (block.experts.down.shape[1],)
            rows |= {id(block.qkv.weight): (queries, keys, keys)}
            rows |= {id(gate): (gate.shape[-2] // 2,) * 2 for gate in gates}
    return {name: rows[id(parameter)] for name, parameter in model.named_parameters() if id(parameter) in rows}


class MuonOptimizer(torch.optim.Optimizer):
    """As torch's optimisers; `group["way"]` says how its parameters are stepped. Create it with
    `Muon(...).optimizer(model)`."""

    _step_supports_amp_scaling = True  # looks at found_inf itself

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        self._adamw = torch.optim.AdamW(groups)
        super().__init__(groups, {})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        found_inf: Tensor | None = getattr(self, "found_inf", None)
        for group in self.param_groups:
            if group["way"] == "muon":
                self._by_muon(group, found_inf)
        self._by_adamw(found_inf)

    def _by_muon(self, group: dict[str, Any], found_inf: Tensor | None) -> None:
        named = zip(group["names"], group["params"], strict=True)
        learning = [(parameter, group["parts"][name]) for name, parameter in named if parameter.grad is not None]
        if not learning:
            return
        overflow = None if found_inf is None else found_inf.to(learning[0][0].device) > 0
        decay, rate = 1 - group["lr"] * group["weight_decay"], group["lr"]
        for parameters, rows in _batches_of_equal_shape(learning):
            directions = torch.stack([self._direction(p, group, overflow) for p in parameters])
            steps = orthogonalise(directions, rows, group["scale"])
            for parameter, step in zip(parameters, steps, strict=True):
                moved = parameter * decay - step.to(parameter.dtype) * rate
                parameter.copy_(moved if overflow is None else torch.where(overflow, parameter, moved))

    def _direction(self, parameter: Tensor, group: dict[str, Any], overflow: Tensor | None) -> Tensor:
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        momentum: Tensor = state["momentum"]
        if parameter.grad is None:
            raise RuntimeError("a parameter without a gradient has no direction")
        gradient = parameter.grad.to(parameter.dtype)
        if overflow is not None:
            gradient = torch.where(overflow, momentum, gradient)  # leaves the momentum as it is
        momentum.lerp_(gradient, 1 - group["momentum"])
        return gradient.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum

    def _by_adamw(self, found_inf: Tensor | None) -> None:
        groups = [group for group in self.param_groups if group["way"] == "adamw"]
        fused = any(group["fused"] for group in groups)
        if found_inf is not None and not fused and bool(found_inf):
            return
        self._adamw.param_groups, self._adamw.state = groups, self.state
        self._adamw.found_inf = found_inf if fused else None  # type: ignore[attr-defined]
        self._adamw.step()


def _batches_of_equal_shape(
    learning: Sequence[tuple[Tensor, tuple[int, ...]]],
) -> Iterator[tuple[list[Tensor], tuple[int, ...]]]:
    """Matrices of one shape with equal parts, as many as are orthogonalised at once."""
    batches: dict[tuple[Any, ...], list[Tensor]] = {}
    for parameter, rows in learning:
        batches.setdefault((parameter.shape, rows), []).append(parameter)
    for (shape, rows), parameters in batches.items():
        batch_size = max(1, AT_ONCE // max(1, shape.numel()))
        yield from ((parameters[start : start + batch_size], rows) for start in range(0, len(parameters), batch_size))


def orthogonalise(matrices: Tensor, rows: Sequence[int], scale: Scale) -> Tensor:
    """N matrices (or N times E, of E experts), each with its parts (`rows` of each) made orthogonal and scaled."""
    parts = [
        newton_schulz(part.flatten(0, -3)).view(part.shape) * scale_of(part.shape[-2], part.shape[-1], scale)
        for part in torch.split(matrices, list(rows), dim=-2)
    ]
    return torch.cat(parts, dim=-2)


def scale_of(rows: int, columns: int, scale: Scale) -> float:
    return 0.2 * math.sqrt(max(rows, columns)) if scale == "adamw" else math.sqrt(max(1.0, rows / columns))


def newton_schulz(matrices: Tensor, steps: int = STEPS) -> Tensor:
    """N x rows x columns: the singular vectors stay, the singular values come near 1; a matrix of zeros stays. bf16 on
    CUDA, else the input's type."""
    a, b, c = COEFFICIENTS
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(-2, -1), keepdim=True, dtype=torch.promote_types(x.dtype, torch.float32)).clamp(min=1e-30)
    if x.is_cuda:
        x = x.to(torch.bfloat16)
    for _ in range(steps):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
