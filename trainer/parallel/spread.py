"""Spreads a model and its optimizer over ranks. From outside, and always in this order:

1. all ranks start from the first one's weights
2. context parallel: attention over ranks that share rows
3. expert parallel: each rank keeps a part of the experts
4. pipeline: each rank keeps some of the blocks
5. recomputation and compilation of each block, as on one GPU
6. ZeRO 2 and 3: FSDP2 shards weights and gradients; or tensor parallel: each rank keeps a part of each layer, and
   ZeRO 0 or 1 sums gradients in buckets
7. masters and the optimizer, of what this rank steps on

| precision | ZeRO 0, 1 | ZeRO 2, 3 |
| --- | --- | --- |
| bf16 | the model holds bf16, float32 masters | float32 shards, gathered in bf16 |
| float32, fp16 | the model holds float32 | float32 shards |

An update whose gradients are not finite leaves weights, masters and the optimizer's state as they were on every rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gristmill.shards.loader import Loader
from gristmill.trainer.model.matmuls import has_fused_linears
from gristmill.trainer.model.model import Decoder
from gristmill.trainer.model.packed import PackedTokens
from gristmill.trainer.parallel.context import share_rows, split
from gristmill.trainer.parallel.expert_parallel import share_experts
from gristmill.trainer.parallel.memory import rank_memory
from gristmill.trainer.parallel.parts import Cut, Cuts
from gristmill.trainer.parallel.pipeline import Pipeline, StagedDecoder
from gristmill.trainer.parallel.pipeline_plan import plan_for, schedule_for
from gristmill.trainer.parallel.ranks import ALONE, Grid, RankGroup, grid_of
from gristmill.trainer.parallel.sharded import (
    ShardedGradients,
    ShardedMasters,
    shard_fully,
    slots_of,
)
from gristmill.trainer.parallel.tensor_parallel import split_layers
from gristmill.trainer.parallel.zero import ReducedGradients, owners
from gristmill.trainer.run.batch_search import predicted_step, step_rows_on_cpu
from gristmill.trainer.run.loop import OneDevice
from gristmill.trainer.run.settings import SPLIT, Training, layout_faults
from gristmill.trainer.step.balance import BALANCE
from gristmill.trainer.step.optim import DeviceMasters, HostMasters, MasterStore, Slot
from gristmill.trainer.step.precision import Precision
from gristmill.trainer.step.recompute import prepare_blocks
from gristmill.trainer.step.stepper import Stepper, check_model, optimizer_for, slots_on, squares_of


class OverRanks(OneDevice):
    """For `train`: what differs from one device. Made by `over`."""

    def __init__(self, ranks: RankGroup) -> None:
        self.world = self._ranks = ranks

    def build(self, model: Decoder, training: Training, device: torch.device) -> Stepper:
        if self._ranks.count == 1:
            return super().build(model, training, device)
        return spread(model, training, self._ranks, device)

    def step_rows(self, stepper: Stepper, loader: Loader, training: Training) -> int:
        """By prediction: of several ranks, one that runs out of memory leaves the others waiting."""
        readers, device, length = stepper.world.readers, stepper.device, loader.shards.meta.row_length
        rows, most = training.rank_rows(readers), training.most_step_rows(readers)
        if device.type != "cuda":
            return step_rows_on_cpu(rows, length, most)
        room = min(self._ranks.gather(torch.cuda.get_device_properties(device).total_memory))
        shape, fused = stepper.model.shape, has_fused_linears(device)

        def predicted(some: int) -> int:
            """Bytes of a rank whose steps have `some` of its rows."""
            return rank_memory(shape, training, self._ranks.count, length, some, fused).peak

        return predicted_step(predicted, rows, room, most)


def over(ranks: RankGroup) -> OneDevice:
    """For `train`: one rank alone steps as one device does."""
    return OverRanks(ranks)


class SpreadStepper(Stepper):
    """Created by `spread`. `ranks.data` are the ranks that see tokens of their own."""

    _gradients: ShardedGradients | ReducedGradients

    def __init__(self, *, ranks: Grid, cuts: Mapping[str, Cut], **parts: Any) -> None:
        super().__init__(**parts, world=ranks, files=Cuts(ranks.all, cuts))
        self.ranks = ranks
        self.pipeline: Pipeline | None = None
        if isinstance(self.model, StagedDecoder) and isinstance(self._gradients, ReducedGradients):
            self.pipeline = Pipeline(self.model, ranks, self._gradients, self.computing, self.device)

    @property
    def passes_at_once(self) -> bool:
        return self.pipeline is not None

    def part_of(self, packed: PackedTokens) -> PackedTokens:
        ranks, shape = self.ranks.context, self.model.shape
        return packed if ranks.count == 1 else split(packed, ranks.rank, ranks.count, shape, self.ranks.tensor.count)

    def loss(self, packed: PackedTokens) -> Tensor:
        if self.pipeline is not None:
            raise RuntimeError("a pipeline makes the passes of an update together: call accumulate")
        return super().loss(packed)

    def accumulate(self, steps: Iterable[tuple[PackedTokens, bool]], whole: Tensor) -> Tensor:
        """A pipeline takes all passes and has an order of its own. The sum is of all ranks' losses."""
        if self.pipeline is None:
            return self.ranks.pipeline.total(super().accumulate(steps, whole))
        total = self.pipeline.run([packed for packed, _ in steps], lambda loss: self.scaled(loss) / whole)
        return self.ranks.pipeline.total(self.ranks.data.total(total))

    def drop_gradients(self) -> None:
        super().drop_gradients()
        if self.pipeline is not None:
            self.pipeline.clear()

    @torch.no_grad()
    def _norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """What several ranks hold counts once."""
        copies, everywhere = list(self._gradients.copies()), self.ranks.all.count
        squares = torch.zeros((), dtype=torch.float32, device=self.device)
        for held in sorted(set(copies)):
            of_these = [gradient for gradient, count in zip(gradients, copies, strict=True) if count == held]
            squares = squares + squares_of(of_these, self.device) / held
        if any(held != everywhere for held in copies) or not copies:
            return self.ranks.all.total(squares).sqrt()
        return (squares * everywhere).sqrt()

    def _send_weights(self) -> None:
        super()._send_weights()
        if self.pipeline is not None:
            self.pipeline.refresh()


def spread(
    model: Decoder, training: Training, ranks: RankGroup = ALONE, device: torch.device | None = None
) -> SpreadStepper:
    """Spreads what `training` says over `ranks`; it says what each of its settings does. Raises ValueError for what no
    run of that shape over so many ranks can do."""
    device = device or next(model.parameters()).device
    if fault := next(layout_faults(training, model.shape, ranks.count), None):
        raise ValueError(fault[1])
    check_model(model)
    optimizer, precision, zero, offload = training.optimizer, training.precision, training.zero, training.offload
    schedule = schedule_for(training, model.shape)
    compile = training.compile
    if compile is None:
        compile = device.type == "cuda" and schedule not in SPLIT
    grid = grid_of(ranks, training.tensor, training.context, training.pipeline, training.experts, training.replicas)
    plan = plan_for(model.shape, grid.pipeline.count, schedule) if grid.pipeline.count > 1 else None
    if any(p.dtype in (torch.bfloat16, torch.float16) for p in model.parameters()):
        model.float()
    grid.all.share_weights(model)
    if grid.context.count > 1:
        share_rows(model, grid.context)
    cuts = share_experts(model, grid.experts) if grid.experts.count > 1 else {}
    apart = dict.fromkeys(cuts, grid.twins)
    if plan:
        model = StagedDecoder(model, plan, grid.pipeline)
    prepare_blocks(model, training.recompute, compile)
    gradients: ShardedGradients | ReducedGradients
    if zero >= 2 and grid.shards.count > 1:
        shard_fully(model, grid, zero, precision == "bf16", offload, device)
        slots, cuts = slots_of(model)
        gradients = ShardedGradients(model, slots, grid.replicas.count)
        masters: MasterStore = ShardedMasters(slots)
    else:
        cuts |= split_layers(model, grid.tensor) if grid.tensor.count > 1 else {}
        slots, gradients = _unsharded(model, grid, cuts, apart, precision, zero, offload, device)
        masters = HostMasters(slots) if offload else DeviceMasters(slots)
    built = optimizer_for(model, optimizer, slots, offload)
    if plan is None and not offload and isinstance(gradients, ReducedGradients) and hasattr(built, "step_into"):
        gradients.keep_in_place()
    return SpreadStepper(
        model=model,
        optimizer=built,
        clip=optimizer.clip,
        slots=slots,
        gradients=gradients,
        masters=masters,
        precision=precision,
        device=device,
        balance=training.balance or BALANCE,
        ranks=grid,
        cuts=cuts,
    )


def _unsharded(
    model: Decoder,
    grid: Grid,
    cuts: Mapping[str, Cut],
    apart: Mapping[str, RankGroup],
    precision: Precision,
    zero: int,
    offload: bool,
    device: torch.device,
) -> tuple[list[Slot], ReducedGradients]:
    """Every rank holds whole weights, except the layers in `cuts`; it steps on all of them, or on those that it
    owns. The gradients of those `apart` are summed by other ranks than `Grid.shards`, and owned by one of these."""
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    owner_of: dict[str, int] = {}
    owned = set(sizes)
    if zero and grid.shards.count > 1:
        for group, names in ((grid.shards, sizes.keys() - apart.keys()), (grid.twins, apart.keys())):
            owner_of |= owners({name: sizes[name] for name in sizes if name in names}, group.count)
        owned = {name for name, owner in owner_of.items() if owner == apart.get(name, grid.shards).rank}
    slots = slots_on(device, model, precision, offload, owned)
    weights = dict(model.named_parameters())
    holders = {
        name: (grid.replicas.count if owner_of else apart.get(name, grid.data).count)
        * (1 if name in cuts else grid.tensor.count)
        for name in weights
    }
    ranks = grid.shards if owner_of else grid.data
    return slots, ReducedGradients(weights, ranks, owner_of, holders, apart, grid.replicas)
