"""Experts over a few ranks, and what balances their load from one update to the next.

Each rank of a group holds an equal part of the experts of every layer; tokens go to them and back
(`gristmill.trainer.model.experts`). The gradient of an expert is the sum over all tokens of its group already, so it is
summed over the ranks that hold the same experts (`Grid.twins`) alone.

The load of an update is that of all its passes and ranks. It moves the biases by one step each, and is the load of the
next update's auxiliary loss. Both are state of the run: every rank holds them whole, all agree, and checkpoints carry
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from gristmill.trainer.checked import CHECKED, Number
from gristmill.trainer.model.model import Decoder, SparseBlock
from gristmill.trainer.step.parallel import RankGroup
from gristmill.trainer.step.parts import Cut, Part, whole_cut


@dataclass(frozen=True, config=CHECKED)
class Balance:
    """How experts' loads are kept even. `bias`: by how much a sigmoid router's biases move at each update. `loss`: the
    rate of the auxiliary loss, which is 1 where loads are even; None: 0.01, and 0 where there are biases. `z`: that of
    the squared log of the sum of exponentials of the router's logits (Zoph et al. 2022)."""

    bias: Number = 1e-3  # by how much a router's biases move at each update
    loss: Number | None = None  # rate of the auxiliary loss; 0.01, or 0 with biases
    z: Number = 0.0  # rate of the z-loss of the router's logits


BALANCE = Balance()


def share_experts(model: Decoder, ranks: RankGroup) -> dict[str, Cut]:
    """Reduces each sparse block to this rank's experts, in place; returns by name what was split, and how. All ranks
    must hold the same weights."""
    experts = model.shape.experts
    if experts is None:
        raise ValueError(f"{ranks.count} ranks are to share the experts, and this shape has none: take experts 1")
    if experts.number % ranks.count:
        raise ValueError(f"{ranks.count} ranks cannot share {experts.number} experts equally")
    own = experts.number // ranks.count
    cuts: dict[str, Cut] = {}
    for layer, block in enumerate(model.blocks):
        if not isinstance(block, SparseBlock):
            continue
        for name, parameter in list(block.experts.named_parameters()):
            cut = Cut(tuple(parameter.shape), 0, ((ranks.rank * own, (ranks.rank + 1) * own),))
            setattr(block.experts, name, nn.Parameter(cut.of(parameter.detach()).clone()))
            cuts[f"blocks.{layer}.experts.{name}"] = cut
        block.experts.count = ranks.count
        block.experts.group = ranks.group or torch.distributed.group.WORLD
    return cuts


class LoadBalance:
    """The routers of a model over the ranks that see tokens of their own."""

    def __init__(self, model: Decoder, settings: Balance, ranks: RankGroup) -> None:
        self._routers, self._settings, self._ranks = model.routers, settings, ranks
        # Of the last update, on the device: largest load over the mean in any layer, auxiliary loss, tokens dropped.
        self.metrics: Tensor | None = None
        for router in self._routers:
            loss = (0.0 if router.bias is not None else 0.01) if settings.loss is None else settings.loss
            router.loss, router.z = loss, settings.z

    @torch.no_grad()
    def step(self, accepted: Tensor) -> None:
        """After an update; one that is not `accepted` moves nothing."""
        if not self._routers:
            return
        tally = self._ranks.all_reduce(torch.stack([router.tally for router in self._routers]))
        counts_LE, (tokens_L, penalties_L) = tally[:, :-2], tally[:, -2:].unbind(1)
        active = self._routers[0].shape.active
        load_LE = counts_LE / counts_LE.mean(1, keepdim=True).clamp(min=1e-9)
        dropped = (active * tokens_L - counts_LE.sum(1)).sum()
        penalty = (penalties_L / tokens_L.clamp(min=1)).mean()
        self.metrics = torch.stack([load_LE.max(), penalty, dropped])
        for router, load_E in zip(self._routers, load_LE, strict=True):
            router.load.copy_(torch.where(accepted, load_E.to(router.load.dtype), router.load))
            if router.bias is not None:
                step_E = self._settings.bias * torch.sign(1 - load_E).to(router.bias.dtype)
                router.bias.add_(torch.where(accepted, step_E, 0.0))
        self.drop()

    def facts(self) -> dict[str, float]:
        """As a line of metrics has them; waits for the device."""
        if self.metrics is None:
            return {}
        load, loss, dropped = self.metrics.tolist()
        return {"expert_load": load, "auxiliary_loss": loss, "tokens_dropped": round(dropped)}

    def drop(self) -> None:
        """Forgets what was counted of an update that is abandoned."""
        for router in self._routers:
            router.tally.zero_()

    def parts(self, model: Decoder) -> dict[str, Part]:
        """Biases, as checkpoints and folders hold them."""
        return {
            name: Part(bias, whole_cut(bias.shape)) for name, bias in model.named_buffers() if name.endswith(".bias")
        }

    def state(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"expert_loads": [router.load.tolist() for router in self._routers]} if self._routers else {}

    def load_state(self, loads: Sequence[Sequence[float]]) -> None:
        for router, load in zip(self._routers, loads, strict=True):
            router.load.copy_(torch.tensor(load, dtype=router.load.dtype))
        self.drop()
