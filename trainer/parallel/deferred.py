"""Weight gradients that wait: a backward pass computes the gradients of inputs, which another rank needs soon, and
keeps what the weights' gradients are made of until there is time (Qi et al. 2024, zero bubble).

Matmuls of blocks alone are worth it; the rest (norms, embedding, head) comes with the inputs. It works below autograd,
not on its graph: torch's own split runs an operator with two gradients twice, and neither goes through torch.compile.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gristmill.trainer.model.model import Block, Decoder
from gristmill.trainer.parallel.tensor_parallel import ColumnParallelLinear, RowParallelLinear

Waiting = list[tuple[Tensor, Tensor, Tensor]]  # weight, the output's gradient, the input

LAYERS = ("qkv", "out", "gate_up", "down")


class DeferredLinear(nn.Linear):
    """Not taken for a plain one: fused operators leave it alone."""

    multiply: Callable[[Tensor, Tensor], Tensor] = staticmethod(F.linear)

    def forward(self, x: Tensor) -> Tensor:
        return self.multiply(x, self.weight)


SPLITTABLE = (nn.Linear, DeferredLinear, ColumnParallelLinear, RowParallelLinear)


class DeferredWeights:
    """What waits, by the backward pass that left it."""

    def __init__(self, model: Decoder) -> None:
        """Changes the layers of `model`, whose weights stay the same."""
        self._waiting: dict[Hashable, Waiting] = {}
        self._here: Waiting = []
        for block in model.blocks:
            for name in LAYERS:
                layer = getattr(block, name, None)
                if not isinstance(block, Block) or not isinstance(layer, nn.Linear) or type(layer) not in SPLITTABLE:
                    raise ValueError(
                        f"a zero-bubble schedule cannot split the backward pass of {type(layer).__name__} layers; take "
                        "pipeline_schedule '1f1b' or 'interleaved'"
                    )
                setattr(block, name, _deferring(layer, self._multiply))

    def during(self, key: Hashable, backward: Callable[[], object]) -> None:
        self._here = self._waiting[key] = []
        backward()
        self._here = []

    def gradients(self, key: Hashable) -> list[tuple[Tensor, Tensor]]:
        """Of the weights of that backward pass, and forgets what they are made of."""
        with torch.no_grad():
            return [(weight, grad.t() @ x) for weight, grad, x in self._waiting.pop(key)]

    def clear(self) -> None:
        self._waiting.clear()
        self._here = []

    def _multiply(self, x: Tensor, weight: Tensor) -> Tensor:
        output: Tensor = _Deferred.apply(x, (weight, self))  # type: ignore[no-untyped-call]
        return output

    def _keep(self, weight: Tensor, grad: Tensor, x: Tensor) -> None:
        self._here.append((weight, grad, x))


class _Deferred(torch.autograd.Function):
    """`layer`: a weight, hidden from autograd, and where its gradients wait."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: tuple[Tensor, DeferredWeights]) -> Tensor:
        ctx.save_for_backward(x)
        ctx.layer = layer
        return F.linear(x, layer[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        weight, deferred = ctx.layer
        (x,) = ctx.saved_tensors
        deferred._keep(weight, grad, x.detach())  # its graph would keep more
        return grad @ weight, None


def _deferring(layer: nn.Linear, multiply: Callable[[Tensor, Tensor], Tensor]) -> nn.Linear:
    if type(layer) is nn.Linear:
        weight = layer.weight
        layer = DeferredLinear(weight.shape[1], weight.shape[0], bias=False, device="meta")
        layer.weight = weight
    layer.multiply = multiply  # type: ignore[assignment]
    return layer
