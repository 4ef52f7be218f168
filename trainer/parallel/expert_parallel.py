"""Experts over a few ranks, and what balances their load from one update to the next.

Each rank of a group holds an equal part of the experts of every layer; tokens go to them and back
(`gristmill.trainer.model.experts`). The gradient of an expert is the sum over all tokens of its group already, so it is
summed over the ranks that hold the same experts (`Grid.twins`) alone.

The load of an update is that of all its passes and ranks. It moves the biases by one step each, and is the load of
the next update's auxiliary loss. A step grows while its direction stays and shrinks when it turns (as Rprop's do,
Riedmiller and Braun 1993): at the start of a run Adam moves a wide router's scores a hundred times faster than steps of
one length could follow. All of it is state of the run: every rank holds it whole, all agree, and checkpoints carry it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from gristmill.trainer.checked import CHECKED, Number
from gristmill.trainer.model.model import Decoder, SparseBlock
from gristmill.trainer.parallel.parts import Cut, Part, whole_cut
from gristmill.trainer.parallel.ranks import RankGroup


@dataclass(frozen=True, config=CHECKED)
class Balance:
    """How experts' loads are kept even. `bias`: by how much at least a sigmoid router's biases move at each update.
    `loss`: the rate of the auxiliary loss, which is 1 where loads are even; None: 0.01, and 0 where there are biases.
    `z`: that of the squared log of the sum of exponentials of the router's logits (Zoph et al. 2022)."""

    bias: Number = 1e-3  # by how much at least a router's biases move at each update
    loss: Number | None = None  # rate of the auxiliary loss; 0.01, or 0 with biases
    z: Number = 0.0  # rate of the z-loss of the router's logits


BALANCE = Balance()
GROWS, SHRINKS, MOST = 1.5, 0.5, 100.0  # a bias's step where its direction stays, where it turns; at most, times `bias`


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
            load_E = torch.where(accepted, load_E.to(router.load.dtype), router.load)
            if router.bias is not None:
                way_E, before_E = torch.sign(1 - load_E), torch.sign(1 - router.load)
                paced_E = router.pace * torch.where(way_E == before_E, GROWS, SHRINKS)
                router.pace.copy_(torch.where(accepted, paced_E.clamp(1.0, MOST), router.pace))
                router.bias.add_(torch.where(accepted, self._settings.bias * router.pace * way_E, 0.0))
            router.load.copy_(load_E)
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
        return {name: [buffer.tolist() for buffer in buffers] for name, buffers in self._kept().items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """What a checkpoint does not have stays as it is: those of earlier versions have no paces."""
        for name, buffers in self._kept().items():
            for buffer, saved in zip(buffers, state.get(name, buffers), strict=True):
                buffer.copy_(torch.as_tensor(saved, dtype=buffer.dtype))
        self.drop()

    def _kept(self) -> dict[str, list[Tensor]]:
        if not self._routers:
            return {}
        return {
            "expert_loads": [each.load for each in self._routers],
            "bias_paces": [each.pace for each in self._routers],
        }
